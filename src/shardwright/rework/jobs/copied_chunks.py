"""The chunks of a new shard copied as they are encoded, from the shards of an array with the same chunks in
other shards. No codec is called: this is how shards of few frames become shards of many, and the reverse.

    each source shard that the new one reaches ──▶ its chunks in the array's shape ──▶ read, crc32c
    ──▶ inner checksum and first bytes checked ──▶ appended ──▶ the sum compared with the source's record

A chunk of which a part lies outside the shape is copied whole, as its own array has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.disk.typed_errors import says_absent
from shardwright.disk.working_file import PIECE_BYTES
from shardwright.model.errors import StorageError
from shardwright.rework.boxes import box_at, cells
from shardwright.rework.chunk_encoder import EncodedChunks
from shardwright.rework.pack_plan import PackPlan, runs_of
from shardwright.rework.shard_record import check_recorded, sum_of
from shardwright.rework.source_shard import PackedBytes, SourceShard
from shardwright.shard.index import CHECKSUM_BYTES
from shardwright.shard.shard_sums import ShardSums

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from shardwright.array.spec import Method
    from shardwright.read.store import StoredArray
    from shardwright.rework.pack_plan import Int64s
    from shardwright.rework.runtime.throttle import Throttle


def are_copied(source: StoredArray, target: StoredArray, method: Method | None) -> bool:
    """Returns whether each chunk of ``target`` is a chunk of ``source``, byte by byte. ``method``: as of
    ``MadeValues``."""
    return (
        method is None
        and source.chunk_shape == target.chunk_shape
        and source.chain.as_json == target.chain.as_json
        and source.fill_value == target.fill_value
    )


class CopiedChunks:
    """Reads the chunks of one new shard. One thread's. ``bytes_read``: so far."""

    def __init__(
        self, source: StoredArray, target: StoredArray, shard: tuple[int, ...], throttle: Throttle
    ) -> None:
        self._source, self._target, self._shard, self._throttle = source, target, shard, throttle
        self._record = ShardSums(source.path)
        self.bytes_read = 0

    def read(self) -> Generator[EncodedChunks]:
        """Yields all chunks, some at a time. Raises ``ShardFormatError`` for a source shard that is damaged,
        or not the one on record; ``StorageError``."""
        target = self._target
        start = tuple(i * n for i, n in zip(self._shard, target.shard_shape, strict=True))
        ends = zip(start, target.shard_shape, target.shape, strict=True)
        box = box_at(start, [min(n, length - a) for a, n, length in ends])
        for coordinates in cells(box, self._source.shard_shape):
            try:
                shard = SourceShard(self._source, coordinates)
            except StorageError as error:
                # of an array that was moved away ``check_unchanged`` publishes nothing
                if says_absent(error):
                    continue
                raise
            with shard:
                yield from self._read(shard)

    def _read(self, shard: SourceShard) -> Iterator[EncodedChunks]:
        numbers, of_target = self._taken(shard)
        entries = shard.index.entries[numbers]
        offsets, nbytes = (entries[name].astype(np.int64) for name in ("offset", "nbytes"))
        plan = PackPlan(self._source, shard.shard, numbers, offsets, nbytes, 0)
        chunks, sums = PackedBytes(shard, plan), np.zeros(numbers.size, np.uint32)
        has_inner = self._source.codecs.checksum
        for part in runs_of(nbytes, PIECE_BYTES):
            room = np.empty(int(nbytes[part].sum()), np.uint8)
            self._throttle.take(room.size)
            self.bytes_read += chunks.read_into(room)
            ends, sums[part] = np.cumsum(nbytes[part]), chunks.crcs[part]
            if has_inner:  # it was compared, and is the number
                last = room[ends[:, None] - np.arange(CHECKSUM_BYTES, 0, -1)]
                sums[part] = np.ascontiguousarray(last).view("<u4")[:, 0]
            addresses = room.ctypes.data + ends - nbytes[part]
            yield EncodedChunks(of_target[part], addresses, nbytes[part], sums[part])
        # without a checksum a flipped bit decodes, and the new record must not call it sound
        if numbers.size == shard.live_chunks:
            check_recorded(shard, self._record, lambda: sum_of(shard, numbers, sums))

    def _taken(self, shard: SourceShard) -> tuple[Int64s, Int64s]:
        """Returns the numbers of the chunks of a source shard that lie in the new one and in the shape, and
        their numbers there."""
        live, source, target = shard.index.live, self._source, self._target
        if not source.shape:
            return live, live
        within = np.stack(np.unravel_index(live, source.shard_chunks))

        def along(numbers: tuple[int, ...]) -> Int64s:
            return np.array(numbers, np.int64)[:, None]

        chunks = along(shard.shard) * along(source.shard_chunks) + within
        there = chunks - along(self._shard) * along(target.shard_chunks)
        taken = ((there >= 0) & (there < along(target.shard_chunks))).all(axis=0)
        taken &= (chunks * along(source.chunk_shape) < along(source.shape)).all(axis=0)
        return live[taken], np.ravel_multi_index(tuple(there[:, taken]), target.shard_chunks).astype(np.int64)
