"""Opens files below a folder such that nothing outside it can be reached, neither by a name nor by a link
below it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STORE_MARK = "zarr.json"  # a folder without one is no store, and is not served
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: a pipe must not block us
_NOT_THERE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ENXIO,
    errno.EISDIR,
)


class NotServedError(Exception):
    """There is no such file, or none that may be read."""


def is_plain(name: str) -> bool:
    """True if ``name`` can be the name of a file that is served: one component, and not hidden (work in
    progress has such names)."""
    return bool(name) and not name.startswith(".") and "/" not in name and "\0" not in name


def open_in_store(
    root: str, spill_root: str | None, parts: Sequence[str], *, unfinished: bool = False
) -> int:
    """Returns a descriptor of the file ``parts`` of a store below ``root``; a shard may be a link to one
    below ``spill_root``. ``unfinished``: the store is known to be one, though its mark may not be there yet.

    Raises ``NotServedError``; another ``OSError`` when the disk fails.
    """
    if len(parts) < 2 or not all(map(is_plain, parts)):
        raise NotServedError
    try:
        if not unfinished:
            os.close(_open_below(root, [parts[0], STORE_MARK]))
        try:
            return _open_below(root, parts)
        except OSError as error:
            if error.errno != errno.ELOOP or spill_root is None:
                raise
            return _open_below(spill_root, _spilled_parts(root, spill_root, parts))
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise NotServedError from None
        raise


def _open_below(root: str, parts: Sequence[str]) -> int:
    """Opens a file component by component, following no link."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        descriptor = os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotServedError
    return descriptor


def _spilled_parts(root: str, spill_root: str, parts: Sequence[str]) -> tuple[str, ...]:
    """Returns the target of the link ``parts``, below ``spill_root``."""
    target, spill = Path(root, *parts).readlink(), Path(spill_root)
    inside = target.parts[len(spill.parts) :]
    if target.parts[: len(spill.parts)] != spill.parts or not inside or not all(map(is_plain, inside)):
        raise NotServedError
    return inside
