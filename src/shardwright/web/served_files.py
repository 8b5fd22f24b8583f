"""Opens files below a folder such that nothing outside it can be reached, neither by a name nor by a link
below it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.array.chunk_keys import arrays_above
from shardwright.disk import beneath
from shardwright.disk.spill_links import spilled_file
from shardwright.disk.typed_errors import says_absent
from shardwright.model.errors import LinkError, StoreGoneError

if TYPE_CHECKING:
    from collections.abc import Sequence

STORE_MARK = "zarr.json"  # a folder without one is no store, and is not served


class NotServedError(Exception):
    """There is no such file."""


class ElsewhereError(PermissionError):
    """A running store that reaches into a folder that is not served. The message is for its user."""


def is_plain(name: str) -> bool:
    """True if ``name`` can be the name of a file that is served: one component, and not hidden (work in
    progress has such names)."""
    return bool(name) and not name.startswith(".") and "/" not in name and "\0" not in name


def open_in_store(
    root: str, spill_root: str | None, parts: Sequence[str], *, unfinished: bool = False
) -> int:
    """Returns a descriptor of the file ``parts`` of a store below ``root``; a shard may be a link to one
    below ``spill_root``. ``unfinished``: the store is known to be one, though its mark may not be there yet.

    Raises ``NotServedError`` if there is no such file; ``LinkError``, or another ``OSError``, for one that
    is there and cannot be read: another link, no regular file, one that the system or the disk refuses.
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
            return _open_spilled(path, spill_root)
    except OSError as error:
        if says_absent(error):
            raise NotServedError from None
        raise


def check_not_gone(root: str, parts: Sequence[str], *, only_store: bool = False) -> None:
    """Raises ``StoreGoneError`` if ``parts`` is the key of a chunk, and its array, or ``only_store``, is not
    there: who asks has read its metadata, which go before its chunks do, those of the store first, and would
    take an absent key for fill value."""
    for folder, below in arrays_above("/".join(parts)):
        # without an array nothing tells whether other keys are chunks
        if folder and below.startswith("c"):
            node = parts[:1] if only_store else folder.split("/")
            try:
                os.close(open_in_store(root, None, [*node, STORE_MARK]))
            except NotServedError:
                raise StoreGoneError(f"{parts[0]} was deleted or moved") from None


def _open_below(path: Path) -> int:
    """Opens a file, following no link."""
    descriptor = beneath.open_file(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block us
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise NotServedError
    raise PermissionError(errno.EACCES, "it is no regular file", str(path))


def _open_spilled(link: Path, spill_root: str) -> int:
    """Opens the file that the link of a spilled shard leads to, below ``spill_root``."""
    file = spilled_file(link)
    if not file.is_relative_to(spill_root):
        raise LinkError(f"{link} is a symbolic link out of {spill_root}, which is not followed")
    try:
        return _open_below(file)
    except FileNotFoundError as error:  # its disk is not there: a link that leads nowhere is not absent
        raise LinkError(f"{link} is a symbolic link that leads nowhere") from error
