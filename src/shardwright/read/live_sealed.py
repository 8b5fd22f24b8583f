"""Shards under their final names, for a live view: each one's index is read once, as long as the same file
has the name."""

from __future__ import annotations

import errno
import stat
from collections import OrderedDict
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import look
from shardwright.disk.files import FileIdentity
from shardwright.disk.read_file import ChangedError, ReadFile
from shardwright.disk.spill_links import shard_status
from shardwright.model.errors import ShardwrightError, StorageError
from shardwright.shard.sealed_shard import SealedShard

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from .box_reader import Opener
    from .store import StoredArray

MOST_OPEN_SHARDS = 64


class SealedShards:
    """Used under the lock of its view. ``folder``: the open folder of the store at ``path``; ``open_key``
    opens the file of a key."""

    def __init__(self, path: Path, folder: int, open_key: Opener) -> None:
        self._path = path
        self._folder = folder
        self._open_key = open_key
        # Open shards by key, those used last at the end. Each is compared with the file that has the name
        # now: after a compaction the old file would be read for ever.
        self._known: OrderedDict[str, SealedShard[ReadFile]] = OrderedDict()

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    def _status(self, key: str) -> os.stat_result:
        status = beneath.stat(key, folder=self._folder)
        return shard_status(self._path / key) if stat.S_ISLNK(status.st_mode) else status

    def find(self, key: str, array: StoredArray, final: Path | None) -> SealedShard[ReadFile] | None:
        """Returns the shard with this key, as its file is now; None if there is none. ``final``: the path of
        the file, where the key may not lead to it yet. Raises ``ChangedError`` for one that goes in that
        moment, ``ShardFormatError``, ``StorageError``."""
        known, is_there = self._known.get(key), False
        look("look.shard.name")
        try:
            status = self._status(key) if final is None else beneath.stat(final)
            is_there = True
            if known is None or known.file.identity != FileIdentity.of(status):
                look("look.shard")
                file = ReadFile(key, self._open_key(key)) if final is None else ReadFile.open(final)
                known = SealedShard(file, array.index)
                look("look.shard.index")
                known.check_sound()
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
