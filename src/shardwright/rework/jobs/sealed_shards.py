"""The sealed shards of a store, which are those that may be compacted, while other shards of the store are
still written.

An acquisition keeps a journal, or a shard without its final name, for each shard row that is not sealed whole
(``.shardwright/``, here and beside spilled shards). The journal of a shard row is made before any of its
shards has its final name, and is deleted after all have theirs. So the shards are listed first and the
journals after them: a shard with a name and without a journal is sealed. A shard row that takes frames again
after an early end has a journal from then on (row ``replacing`` of ``scan.table``). Its old shards may be
repacked nevertheless, since the new ones hold copies of their chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.read.store import workspace_of
from shardwright.rework.change_checks import is_spilled
from shardwright.scan.unfinished_store import UnfinishedStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.read.store import Store, StoredArray


@dataclass(frozen=True)
class Shard:
    """One shard file of a store."""

    array: StoredArray
    coordinates: tuple[int, ...]

    @property
    def key(self) -> str:
        return self.array.shard_key(self.coordinates)

    @property
    def path(self) -> Path:
        """The path of the shard in the store."""
        return self.array.path / self.key


@dataclass
class ShardList:
    """The shard files of a store. ``sealed``: may be changed, also where the array was cropped since.
    ``spilled``: links to shards below another root, which are only read. ``open``: still being written.
    ``unknown``: path -> why it is no shard of the array. ``in_progress``: an
    acquisition is at work in the store."""

    sealed: list[Shard] = field(default_factory=list)
    spilled: list[Shard] = field(default_factory=list)
    open: list[Shard] = field(default_factory=list)
    unknown: dict[Path, str] = field(default_factory=dict)
    in_progress: bool = False


def sealed_shards(store: Store) -> ShardList:
    """All shard files of the store (or the one that it was opened by). Raises ``ShardFormatError`` when the
    work in progress cannot be understood: then nothing may be changed. ``StorageError``."""
    found = ShardList()
    shards = list(_shard_files(store, found))
    found.in_progress, open_shards = _open_shards(store)
    for shard in shards:
        if shard.path in open_shards:
            found.open.append(shard)
        elif found.in_progress and not shard.array.contains_shard(shard.coordinates):
            found.open.append(shard)  # sealed, but the array's shape does not cover it yet
        else:
            (found.spilled if is_spilled(shard.path) else found.sealed).append(shard)
    return found


def _shard_files(store: Store, found: ShardList) -> Iterator[Shard]:
    for array in store.arrays:
        if store.shard is not None:
            yield Shard(array, store.shard)
            continue
        for key, coordinates in array.shard_files():
            if coordinates is None:
                found.unknown[array.path / key] = "not a chunk key of this array"
            else:
                yield Shard(array, coordinates)


def _root_of(store: Store) -> Path:
    """The folder of the acquisition; a store may have been opened by an image, its array or one shard."""
    workspace = workspace_of(store.root)
    return store.root if workspace is None else workspace.parent


def _open_shards(store: Store) -> tuple[bool, set[Path]]:
    """Returns whether an acquisition is at work in the store, and the shards in rows that are not sealed."""
    root = _root_of(store)
    unfinished = UnfinishedStore.find(root)
    if unfinished is None:
        return False, set()
    return True, {root / path for path in unfinished.open_shards()}
