"""Opens files below a folder such that nothing outside it can be reached, neither by a name nor by a link
below it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.model.errors import LinkError
from shardwright.storage import beneath
from shardwright.storage.spilled import spilled_file

if TYPE_CHECKING:
    from collections.abc import Sequence

STORE_MARK = "zarr.json"  # a folder without one is no store, and is not served
_NOT_THERE = (
    errno.ENOENT,
    errno.ENOTDIR,
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
            os.close(_open_below(Path(root, parts[0], STORE_MARK)))
        path = Path(root, *parts)
        try:
            return _open_below(path)
        except LinkError:
            if spill_root is None or not beneath.is_link(path):
                raise
            return _open_below(_spilled(path, spill_root))
    except LinkError:
        raise NotServedError from None
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise NotServedError from None
        raise


def _open_below(path: Path) -> int:
    """Opens a file, following no link."""
    descriptor = beneath.open_file(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block us
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotServedError
    return descriptor


def _spilled(link: Path, spill_root: str) -> Path:
    """Returns the file that the link of a spilled shard leads to, below ``spill_root``."""
    file = spilled_file(link)
    if not file.is_relative_to(spill_root):
        raise NotServedError
    return file
