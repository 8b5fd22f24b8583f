"""The chunks of a virtual array as ranges of the files of shards, shard by shard, in the order of the grid.

An index and the state of its file are read together (``SealedShard.look``), so that a range and the state on
record belong to each other.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.disk.read_file import ChangedError
from shardwright.model.errors import ShardFormatError, StoreChangingError
from shardwright.shard.shard_description import find_description
from shardwright.shard.shard_sums import ShardSums

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from shardwright.shard.sealed_shard import ReadIndex

    from .virtual_tree import ArrayPart, Shape, VirtualArray

_AT_ONCE = 16  # shards of which an index is read, or waits

Listed = tuple["Shape", "ArrayPart", "Shape"]  # the first chunk in the virtual grid, the part, the shard


@dataclass(frozen=True)
class ChunkRanges:
    """The chunks of one shard that hold an element of the array, in C order.

    path, version    of the file
    origin, counts   the first chunk in the virtual grid, and chunks along each axis
    offset, nbytes   uint64[chunks]; ``nbytes`` is 0 for an absent chunk
    is_file          its only chunk is the whole file
    is_packed        a compaction has nothing to do, as for shards that are HDF5 files, too
    """

    path: Path
    version: Any
    origin: Shape
    counts: Shape
    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    is_file: bool
    is_packed: bool


def listed_shards(array: VirtualArray) -> list[Listed]:
    """Returns the shards of an array that are there. Raises ``ShardFormatError`` if one is on record and not
    there, ``StorageError``."""
    found: list[Listed] = []
    for part in array.parts:
        stored = part.stored
        there = dict(stored.shard_files())
        for key, sums in ShardSums(stored.path).read().items():
            shard = stored.coordinates_of(key)
            if key not in there and None not in sums and shard is not None and stored.contains_shard(shard):
                raise ShardFormatError(
                    f"{stored.path / key} is on record, and not there",
                    hint="`shardwright verify` lists what is wrong with the store",
                )
        for shard in there.values():
            if shard is not None and stored.contains_shard(shard):
                chunk = [i * n for i, n in zip(shard, stored.shard_chunks, strict=True)]
                chunk = [0] * (len(part.first) - len(chunk)) + chunk
                found.append((tuple(map(add, part.first, chunk)), part, shard))
    return sorted(found, key=lambda each: each[0])


def chunk_ranges(shards: Sequence[Listed]) -> Iterator[ChunkRanges]:
    """Yields the chunks of each of ``shards``. Raises ``ShardFormatError``, ``StorageError``,
    ``StoreChangingError``."""
    left = iter(shards)
    with ThreadPoolExecutor(_AT_ONCE, "shardwright-ranges") as pool:
        while some := list(islice(left, _AT_ONCE)):
            yield from pool.map(_ranges_of, some)


def _ranges_of(listed: Listed) -> ChunkRanges:
    origin, part, shard = listed
    stored = part.stored
    path = stored.path / stored.shard_key(shard)
    try:
        with closing(stored.open_shard(shard)) as file:
            index = file.look()
            file.check_sound()
            start, stop = index.data_range
            is_packed = stored.container is not None or _is_packed(index, start, stop)
            if not is_packed and (told := find_description(file, stored.described, shard)) is not None:
                is_packed = _is_packed(index, start, told.start)
    except (ChangedError, FileNotFoundError):
        raise StoreChangingError(f"{path} is being changed", hint="Wait until the store is at rest") from None
    inside = stored.chunks_in_shape(shard)
    entries, present = index.entries[inside], index.present[inside]
    counts = stored.extent_inside(shard)
    return ChunkRanges(
        path,
        index.version,
        origin,
        (*(1,) * (len(origin) - len(counts)), *counts),
        np.where(present, entries["offset"], 0).astype(np.uint64),
        np.where(present, entries["nbytes"], 0).astype(np.uint64),
        is_file=not stored.is_sharded,
        is_packed=is_packed,
    )


def _is_packed(index: ReadIndex, start: int, stop: int) -> bool:
    """Returns whether chunks follow each other from ``start`` to ``stop`` without gaps, and share no bytes:
    compaction gives each its own."""
    chunks = np.sort(index.entries[index.present], order="offset")
    bounds = np.array((start, stop), np.uint64)
    ends = np.concatenate([bounds[:1], chunks["offset"] + chunks["nbytes"]])
    return np.array_equal(ends, np.concatenate([chunks["offset"], bounds[1:]]))
