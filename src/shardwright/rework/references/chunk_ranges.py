"""The chunks of a virtual array as ranges of the files of shards, shard by shard, in the order of the grid.

An index and the state of its file are read together (``SealedShard.look``), so that a range and the state on
record belong to each other.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.disk.read_file import ChangedError
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import ConfigError, ShardFormatError, StoreChangingError
from shardwright.read.store_state import tries
from shardwright.shard.sealed_shard import SealedShard
from shardwright.shard.shard_sums import ShardSums

from .staleness import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from shardwright.read.store import StoredArray
    from shardwright.shard.sealed_shard import ReadIndex

    from .virtual_tree import ArrayPart, ReferredStore, VirtualArray

_AT_ONCE, _AHEAD = 16, 64  # shards


@dataclass(frozen=True)
class ChunkRanges:
    """The chunks of one shard that hold an element of the array, in C order.

    origin, counts   the first chunk in the virtual grid, and chunks along each axis
    offset, nbytes   uint64[chunks]; ``nbytes`` is 0 for an absent chunk
    key              of the file, below the store
    version          of the file that was looked at; None if it cannot be
    is_file          the only chunk is the whole file
    is_packed        the file holds chunks and its index, and no gap
    """

    source: ReferredStore
    origin: tuple[int, ...]
    counts: tuple[int, ...]
    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    key: str
    version: Any
    is_file: bool
    is_packed: bool

    def coordinates(self) -> npt.NDArray[np.int64]:
        """int64[chunks, axes]: in the virtual grid."""
        return np.stack([axis.ravel() for axis in np.indices(self.counts)], axis=-1) + np.array(self.origin)


Listed = list[tuple[tuple[int, ...], int, tuple[int, ...]]]  # the first chunk, part, shard


def listed_shards(array: VirtualArray) -> Listed:
    """Returns the shards of an array that are there. Raises ``ShardFormatError`` if one is on record and not
    there, ``StorageError``."""
    found: Listed = []
    for number, part in enumerate(array.parts):
        stored = part.stored
        shards = {key: shard for key, shard in stored.shard_files() if shard and stored.contains_shard(shard)}
        for key, sums in ShardSums(stored.path).read().items():
            shard = stored.coordinates_of(key)
            if key not in shards and sums != {None} and shard and stored.contains_shard(shard):
                raise ShardFormatError(
                    f"{stored.path / key} is on record, and not there",
                    hint="`shardwright verify` lists what is wrong with the store",
                )
        found += [(_origin(part, shard), number, shard) for shard in shards.values()]
    return sorted(found)


def _origin(part: ArrayPart, shard: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(f + i * n for f, i, n in zip(part.first, shard, part.stored.shard_chunks, strict=True))


def chunk_ranges(array: VirtualArray, shards: Listed) -> Iterator[ChunkRanges]:
    """Yields the chunks of each of ``shards``. Raises ``ShardFormatError``, ``StorageError``,
    ``StoreChangingError``, and ``ConfigError`` for a copy with other ranges."""
    left = iter(shards)
    with ThreadPoolExecutor(_AT_ONCE, "shardwright-ranges") as pool:
        while some := list(islice(left, _AHEAD)):
            yield from pool.map(lambda each: _ranges_of(array.parts[each[1]], each[2]), some)


def _ranges_of(part: ArrayPart, shard: tuple[int, ...]) -> ChunkRanges:
    stored, source = part.stored, part.source
    path = stored.path / stored.shard_key(shard)
    key = path.relative_to(source.store.root).as_posix()
    index, version = _index_at(path, stored), None
    if source.seen == source.store.root:
        version = index.version
    elif source.seen is not None:
        there = _index_at(source.seen / key, stored)
        if there.entries.tobytes() != index.entries.tobytes() or there.data_range != index.data_range:
            raise ConfigError(
                f"{source.seen / key} is not the shard that is here: its chunks lie elsewhere",
                hint="Give the address itself as STORE",
            )
        version = there.version
    counts = stored.extent_inside(shard)
    inside = index.entries.reshape(stored.shard_chunks)[tuple(map(slice, counts))].ravel()
    there_is = index.present.reshape(stored.shard_chunks)[tuple(map(slice, counts))].ravel()
    start, stop = index.data_range
    source.states.files[key] = state_of(index.version if version is None else version)
    return ChunkRanges(
        source,
        _origin(part, shard),
        counts,
        np.where(there_is, inside["offset"], 0).astype(np.uint64),
        np.where(there_is, inside["nbytes"], 0).astype(np.uint64),
        key,
        version,
        is_file=not stored.is_sharded,
        is_packed=int(index.entries["nbytes"][index.present].sum()) >= stop - start,
    )


def _index_at(path: Any, stored: StoredArray) -> ReadIndex:
    for _ in tries():
        with suppress(ChangedError), SealedShard.open(path, stored.index) as shard:
            index = shard.look()
            shard.check_sound()
            return index
    raise StoreChangingError(f"{path} changes faster than it is read", hint="Wait until the store is at rest")
