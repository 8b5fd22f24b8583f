"""Bytes of a shard file that belong to no chunk and not to the index. Packing drops those that mean nothing,
and only those. Shared by compaction and by moves, which pack shards on their way.

    | chunk | slot's tail | chunk | zeros | hole | old index | chunk | ??? | index |
                nothing             nothing                            kept

Zeros, holes, and an older index of the same array mean nothing. The shard's description is written again. If
every chunk begins at a slot of our writers (FORMAT.md), the bytes between a chunk and the end of its slot
mean nothing either: an encoder left them. Behind the last chunk that does not hold, since our writers cut the
file there. All other bytes may mean something: a shard may be a file of another format as well, with a
header, tables and a trailer around the same chunks.

Only what is neither a hole nor a slot's tail is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwright.disk.files import data_ranges
from shardwright.disk.working_file import PIECE_BYTES
from shardwright.model.errors import ShardFormatError, SpecError
from shardwright.shard.index import EMPTY
from shardwright.shard.layout import PAGE_BYTES, page_aligned

from .pack_plan import parts_between
from .runtime.throttle import UNHURRIED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.read.store import StoredArray

    from .pack_plan import Int64s, PackPlan
    from .source_shard import SourceShard

# int64[n, 2]: [start, stop) in the file, none empty, in order, none touching another
Ranges = npt.NDArray[np.int64]


@dataclass(frozen=True)
class UnknownBytes:
    """The first unknown bytes of a shard, from ``start`` on. ``stop``: of the gap in which they lie."""

    path: Path
    start: int
    stop: int

    def error(self) -> ShardFormatError:
        return ShardFormatError(
            f"{self.path} holds bytes that belong neither to a chunk nor to the index, from byte "
            f"{self.start} on",
            expected="zeros, a slot's tail or an older index",
            got=f"something else before byte {self.stop}",
            hint="It is left as it is, since packing would drop them: it may be a file of another format as "
            "well. If they are not needed, `shardwright rechunk` writes the same values to a new store",
        )


def unknown_bytes(
    source: SourceShard, plan: PackPlan, take: Callable[[int], None] = UNHURRIED.take
) -> UnknownBytes | None:
    """The first unknown bytes of an open shard that packing would drop, None when there are none.

    ``take`` is called before so many bytes are read. Raises ``ShardFormatError`` for a file that is cut
    meanwhile, ``StorageError``.
    """
    description = source.description
    if source.is_packed(plan) or (description is not None and description.user_block):
        return None  # nothing else is in it, but HDF5 of the same chunks
    start, stop = source.index.data_range
    if description is not None:
        stop = description.start
    gaps = gaps_between(source.array, source.index.entries, (start, stop))
    left = _data_within(source, gaps)
    while (at := _first_byte(source, left, take)) is not None:
        start, stop = next((start, stop) for start, stop in gaps.tolist() if start <= at < stop)
        behind = _behind_old_index(source, at, start, stop)
        if behind is None:
            return UnknownBytes(source.path, at, stop)
        left = np.maximum(left, behind)
        left = left[left[:, 1] > left[:, 0]]
    return None


def gaps_between(array: StoredArray, entries: npt.NDArray[np.void], data_range: tuple[int, int]) -> Ranges:
    """The ranges outside of chunks, slots' tails and the index of a shard with such index entries. Chunks may
    share bytes."""
    start, stop = data_range
    entries = entries[entries["offset"] != EMPTY]
    order = np.argsort(entries["offset"], kind="stable")
    offsets = entries["offset"][order].astype(np.int64)
    ends = np.maximum.accumulate(offsets + entries["nbytes"][order].astype(np.int64))
    slot_bytes = _slot_bytes(array)
    if slot_bytes and not ((offsets - page_aligned(start)) % slot_bytes).any():
        ends[:-1] = np.maximum(ends[:-1], offsets[:-1] + slot_bytes)
    gaps = np.stack([np.insert(ends, 0, start), np.append(offsets, stop)], axis=1)
    return gaps[gaps[:, 1] > gaps[:, 0]]


def _slot_bytes(array: StoredArray) -> int:
    """The length of a slot in which our writers would put a chunk; 0 for codecs that they do not write."""
    try:
        return page_aligned(array.configured_codec().max_encoded_bytes)
    except SpecError:
        return 0


def _data_within(source: SourceShard, gaps: Ranges) -> Ranges:
    """The parts of the gaps that the filesystem holds data for. Gaps shorter than a page are kept whole."""
    long = gaps[:, 1] - gaps[:, 0] >= PAGE_BYTES
    found = [piece for gap in gaps[long].tolist() for piece in data_ranges(source.file.descriptor, *gap)]
    ranges = np.concatenate([gaps[~long], np.array(found, np.int64).reshape(-1, 2)])
    return ranges[np.argsort(ranges[:, 0])]


def _first_byte(source: SourceShard, ranges: Ranges, take: Callable[[int], None]) -> int | None:
    """The offset of the first byte in these ranges of the file that is not zero."""
    sizes: Int64s = ranges[:, 1] - ranges[:, 0]
    ends = np.cumsum(sizes)
    starts, total = ends - sizes, int(sizes.sum())
    room = np.empty(min(PIECE_BYTES, total), np.uint8)
    for position in range(0, total, PIECE_BYTES):
        limit = min(position + PIECE_BYTES, total)
        part = parts_between(starts, ends, position, limit)
        begin, end = np.maximum(starts[part], position), np.minimum(ends[part], limit)
        offsets = ranges[part, 0] + (begin - starts[part])
        take(limit - position)
        no_crcs = np.zeros(begin.size, np.uint32)
        source.read_ranges(offsets, room.ctypes.data + begin - position, end - begin, no_crcs)
        nonzero = np.flatnonzero(room[: limit - position])
        if nonzero.size:
            at = position + int(nonzero[0])
            piece = int(np.searchsorted(ends, at, "right"))
            return int(ranges[piece, 0] + at - starts[piece])
    return None


def _behind_old_index(source: SourceShard, at: int, start: int, stop: int) -> int | None:
    """The end of the older index around ``at`` in the gap [start, stop): one begins right behind a chunk,
    or ends where newer chunks begin. Without a checksum no bytes are known to be one."""
    index = source.array.index
    size = index.nbytes
    if not index.codec.has_checksum:
        return None
    for first in (start, stop - size):
        if start <= first <= at < first + size <= stop:
            data = source.file.read(first, size)
            try:
                index.decode(bytes(data))
            except ShardFormatError:
                continue
            return first + size
    return None
