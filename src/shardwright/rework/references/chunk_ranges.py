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
from urllib.parse import quote

import numpy as np

from shardwright.disk.read_file import ChangedError
from shardwright.model.errors import ShardFormatError, StoreChangingError
from shardwright.read.store_state import tries
from shardwright.shard.shard_sums import ShardSums

from .staleness import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from shardwright.read.store import StoredArray
    from shardwright.shard.sealed_shard import ReadIndex

    from .virtual_tree import ArrayPart, ReferredStore, Shape, VirtualArray

_AT_ONCE, _AHEAD = 16, 64  # shards
_AHEAD_CHUNKS = 1 << 22  # of their indexes

Listed = list[tuple["Shape", int, "Shape"]]  # the first chunk in the virtual grid, part, shard


@dataclass(frozen=True)
class ChunkRanges:
    """The chunks of one shard that hold an element of the array, in C order.

    origin, counts   the first chunk in the virtual grid, and chunks along each axis
    offset, nbytes   uint64[chunks]; ``nbytes`` is 0 for an absent chunk
    key, version     of the file, in its store
    is_file          its only chunk is the whole file
    may_move         a compaction would move chunks
    """

    source: ReferredStore
    origin: Shape
    counts: Shape
    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    key: str
    version: Any
    is_file: bool
    may_move: bool

    def location(self, *, escaped: bool) -> str:
        """Returns the URL of the file, its characters ``escaped`` or as they are."""
        scheme, _, rest = f"{self.source.url}/{self.key}".partition("://")
        return f"{scheme}://{quote(rest, safe='/:') if escaped else rest}"

    @property
    def coordinates(self) -> npt.NDArray[np.int64]:
        """int64[axes, chunks]: in the virtual grid."""
        inside = np.indices(self.counts).reshape(len(self.counts), -1)
        found: npt.NDArray[np.int64] = inside + np.array(self.origin)[:, None]
        return found


def listed_shards(array: VirtualArray) -> Listed:
    """Returns the shards of an array that are there. Raises ``ShardFormatError`` if one is on record and not
    there, ``StorageError``."""
    found: Listed = []
    for number, part in enumerate(array.parts):
        stored = part.stored
        there = dict(stored.shard_files())
        for key, sums in ShardSums(stored.path).read().items():
            shard = stored.coordinates_of(key)
            if key not in there and None not in sums and shard is not None and stored.contains_shard(shard):
                raise ShardFormatError(
                    f"{stored.path / key} is on record, and not there",
                    hint="`shardwright verify` lists what is wrong with the store",
                )
        shards = (shard for shard in there.values() if shard is not None and stored.contains_shard(shard))
        found += [(_origin(part, shard), number, shard) for shard in shards]
    return sorted(found)


def _origin(part: ArrayPart, shard: Shape) -> Shape:
    return part.in_grid([i * n for i, n in zip(shard, part.stored.shard_chunks, strict=True)])


def chunk_ranges(array: VirtualArray, shards: Listed) -> Iterator[ChunkRanges]:
    """Yields the chunks of each of ``shards``. Raises ``ShardFormatError``, ``StorageError``,
    ``StoreChangingError``."""
    left = iter(shards)
    most = max(part.stored.chunks_per_shard for part in array.parts)
    ahead = max(1, min(_AHEAD, _AHEAD_CHUNKS // most))
    with ThreadPoolExecutor(_AT_ONCE, "shardwright-ranges") as pool:
        while some := list(islice(left, ahead)):
            yield from pool.map(lambda each: _ranges_of(array.parts[each[1]], each[2]), some)


def _ranges_of(part: ArrayPart, shard: Shape) -> ChunkRanges:
    stored, source = part.stored, part.source
    key = (stored.path / stored.shard_key(shard)).relative_to(source.store.root).as_posix()
    index = _index_of(stored, shard)
    inside = stored.chunks_in_shape(shard)
    entries, present = index.entries[inside], index.present[inside]
    counts, origin = stored.extent_inside(shard), _origin(part, shard)
    start, stop = index.data_range
    source.states[key] = state_of(index.version)
    return ChunkRanges(
        source,
        origin,
        (*(1,) * (len(origin) - len(counts)), *counts),
        np.where(present, entries["offset"], 0).astype(np.uint64),
        np.where(present, entries["nbytes"], 0).astype(np.uint64),
        key,
        index.version,
        is_file=not stored.is_sharded,
        may_move=int(index.entries["nbytes"][index.present].sum()) < stop - start,
    )


def _index_of(stored: StoredArray, shard: Shape) -> ReadIndex:
    for _ in tries():
        with suppress(ChangedError), stored.open_shard(shard) as file:
            index = file.look()
            file.check_sound()
            return index
    raise StoreChangingError(
        f"{stored.path / stored.shard_key(shard)} changes faster than it is read",
        hint="Wait until the store is at rest",
    )
