"""Shards under their final names, for a live view: each one's index is read once, as long as the same file
has the name."""

from __future__ import annotations

import stat
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.failpoints import look
from shardwright.disk.files import FileIdentity
from shardwright.disk.read_file import ChangedError, ReadFile
from shardwright.disk.spill_links import shard_status
from shardwright.disk.typed_errors import says_absent, storage_errors
from shardwright.model.errors import StorageError
from shardwright.remote.object_shard import ShardSize
from shardwright.shard.sealed_shard import SealedShard

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from shardwright.disk.remote_path import RemotePath

    from .box_reader import Opener
    from .store import StoredArray

MOST_OPEN_SHARDS = 64
WHOLE_BYTES = 1 << 20  # of a shard at an address that is fetched whole; so many of each open one are kept


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
            if not says_absent(error):
                with storage_errors("read", self._path / key):
                    raise
            if is_there:
                raise ChangedError from None
            return None
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > MOST_OPEN_SHARDS:
            self._known.popitem(last=False)
        return known


class RemoteShards:
    """As ``SealedShards``, of the store at an address. An index that was read holds until bytes are asked for
    on its condition, and refused. A short shard comes with its index, for the read that asked for it."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._sizes: dict[Path, ShardSize] = {}  # by array
        self._known: OrderedDict[str, SealedShard[Any]] = OrderedDict()

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    def find(self, key: str, array: StoredArray, final: Path | None) -> SealedShard[Any] | None:
        """As ``SealedShards.find``."""
        del final
        known = self._known.pop(key, None)
        if known is None or known.file.has_changed:
            known = self._open(key, array)
            if not _is_there(known):
                return None
        self._known[key] = known
        while len(self._known) > MOST_OPEN_SHARDS:
            self._known.popitem(last=False)
        return known

    def ask_for(self, keys: Iterable[str], array: StoredArray) -> None:
        """Asks for the indexes of several shards side by side, so that ``find`` has them. Raises as it."""
        known, new = self._known, []
        for key in keys:
            if key not in known or known[key].file.has_changed:
                new.append(key)
            else:
                known[key].file.forget_edge()  # of an earlier read, that had no use for it
        # of more shards than are kept the bytes could fill the memory
        is_whole = len(new) <= MOST_OPEN_SHARDS
        shards: list[SealedShard[Any]] = [self._open(key, array, whole=is_whole) for key in new]
        if len(shards) > 1:
            found = shards[0].file.side_by_side().map(_is_there, shards)
            known.update((key, shard) for key, shard, there in zip(new, shards, found, strict=True) if there)

    def _open(self, key: str, array: StoredArray, *, whole: bool = True) -> SealedShard[Any]:
        expected = ShardSize.before_the_first(WHOLE_BYTES, array.index.most_bytes)
        size = self._sizes.setdefault(array.path, expected)
        return SealedShard((self._path / key).open_shard(size if whole else None), array.index)

    def find_file(self, path: Path | str, key: str) -> Any:
        """Returns the bytes of a key; None if there is none. Raises ``StorageError``."""
        del path
        file = (self._path / key).open_shard()
        try:
            return file if stat.S_ISREG(file.status.st_mode) else None
        except StorageError as error:
            if says_absent(error):
                return None
            raise


def _is_there(shard: SealedShard[Any]) -> bool:
    """Reads its index. Returns False where there is none."""
    try:
        shard.check_sound()
    except StorageError as error:
        if says_absent(error):
            return False
        raise
    return True
