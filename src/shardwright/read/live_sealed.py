"""Shards under their final names, for a live view: each one's index is read once, as long as the same file
has the name."""

from __future__ import annotations

import errno
import stat
from collections import OrderedDict
from typing import TYPE_CHECKING

from shardwright.model.errors import ShardFormatError, ShardwrightError, StorageError
from shardwright.storage import beneath
from shardwright.storage.failpoints import look
from shardwright.storage.spilled import shard_status

from .box_reader import ReadFile
from .shard_file import check_entries
from .store_state import ChangedError

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from .box_reader import Opener
    from .store import StoredArray

MOST_OPEN_SHARDS = 64


def version_of(status: os.stat_result) -> tuple[int, ...]:
    """Returns what changes when another file has the name, or this one is written."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class IndexedShard:
    """A shard under its final name, with its index. ``identity`` changes with every other file of that
    name."""

    def __init__(self, file: ReadFile, array: StoredArray, coordinates: tuple[int, ...]) -> None:
        """Raises ``ShardFormatError`` for a file that is no shard of this array, ``StorageError``."""
        self.file = file
        self.identity = version_of(file.status)
        size = file.status.st_size
        look("look.shard.index")
        try:
            self.entries = array.index.read(size, lambda offset, nbytes: bytes(file.read(offset, nbytes)))
        except ShardFormatError as error:
            raise ShardFormatError(
                f"{file.path}: {error.message}", expected=error.expected, got=error.got
            ) from None
        data = array.index.data_range(size)
        if faults := check_entries(array, coordinates, self.entries, data).faults:
            number, fault = faults[0]
            raise ShardFormatError(f"{file.path}: entry {number} of the index: {fault}")


class SealedShards:
    """Used under the lock of its view. ``folder``: the open folder of the store at ``path``; ``open_key``
    opens the file of a key."""

    def __init__(self, path: Path, folder: int, open_key: Opener) -> None:
        self._path = path
        self._folder = folder
        self._open_key = open_key
        self._known: OrderedDict[str, IndexedShard] = OrderedDict()

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    def _status(self, key: str) -> os.stat_result:
        status = beneath.stat(key, folder=self._folder)
        return shard_status(self._path / key) if stat.S_ISLNK(status.st_mode) else status

    def find(
        self, key: str, array: StoredArray, coordinates: tuple[int, ...], final: Path | None
    ) -> IndexedShard | None:
        """Returns the shard with this key, as its file is now; None if there is none. ``final``: the place of
        the file, where the key may not lead to it yet. Raises ``ChangedError`` for one that goes in that
        moment, ``ShardFormatError``, ``StorageError``."""
        known, is_there = self._known.get(key), False
        look("look.shard.name")
        try:
            status = self._status(key) if final is None else beneath.stat(final)
            is_there = True
            if known is None or known.identity != version_of(status):
                look("look.shard")
                file = ReadFile(key, self._open_key(key)) if final is None else ReadFile.open(final)
                known = IndexedShard(file, array, coordinates)
        except OSError as error:
            if isinstance(error, ShardwrightError):
                raise
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise StorageError(f"cannot read {self._path / key}: {error.strerror}") from error
            if final is None and beneath.is_link(self._path / key):  # a link that leads nowhere is not absent
                raise StorageError(f"cannot read {self._path / key}: its second root is not there") from error
            if is_there:
                raise ChangedError from None
            return None
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > MOST_OPEN_SHARDS:
            self._known.popitem(last=False)
        return known
