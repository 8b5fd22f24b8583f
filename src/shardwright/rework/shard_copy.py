"""A copy of a shard that takes the shard's place: written, synced, read back from the disk, compared, put on
record, renamed. Packing and edits make theirs so.

    WorkingFile ──▶ chunks behind each other ──▶ ``replace_shard``: description, index ──▶ sync ──▶ read back
    ──▶ record of the new sum ──▶ array held, still the same shard? rename ──▶ sync of the folder

Until the rename the old shard stays, and any failure leaves it so, without a working file. Compared is the
crc32c of every chunk: of the bytes as they came, and of those that the disk gives back.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import storage_errors, sync_directory
from shardwright.disk.read_file import ReadFile
from shardwright.kernels.file_io import checksum_ranges
from shardwright.model.errors import StorageError

from .pack_plan import parts_between
from .runtime.throttle import UNHURRIED
from .shard_record import sum_in_place

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy.typing as npt

    from shardwright.disk.working_file import WorkingFile, WriteBehind

    from .pack_plan import Int64s, PackPlan, UInt32s
    from .runtime.throttle import Throttle
    from .source_shard import PackedBytes


def copy_behind(chunks: PackedBytes, out: WriteBehind, throttle: Throttle = UNHURRIED) -> UInt32s:
    """Copy chunks without decoding, behind what was written before. Returns the crc32c of each as it came
    from the source. Raises ``ShardFormatError`` for a bad one, ``StorageError``."""
    while chunks.left_bytes:
        room = out.room
        throttle.take(2 * min(room.size, chunks.left_bytes))  # read here, written behind
        out.advance(chunks.read_into(room))
    return chunks.crcs


def replace_shard(
    working: WorkingFile,
    plan: PackPlan,
    crcs: UInt32s,
    record: Callable[[], None],
    may_replace: AbstractContextManager[None],
    throttle: Throttle = UNHURRIED,
) -> None:
    """Give a working file with all chunks of ``plan`` the shard's name. ``crcs``: of each chunk. ``record``
    is called once the copy is durable and was read back; ``may_replace`` is the right to replace the shard.

    Raises ``StorageError``, and what these two raise.
    """
    if plan.description:
        with closing(ReadFile.open(working.path)) as copy:
            plan = plan.with_description(sum_in_place(plan, copy, plan.target_offset, crcs))
    finish_copy(working, plan)
    check_copy(working, *plan.segments(crcs), plan.segment_name, throttle)
    record()
    working.replace(plan.path, may_replace)


def delete_shard(path: Path, may_delete: AbstractContextManager[None], point: str) -> None:
    """Delete a shard, durably, within the right to do so. ``point``: the failpoint before. Raises
    ``StorageError``, and what ``may_delete`` raises."""
    with storage_errors("delete", path):
        reach(point)
        with may_delete:
            beneath.unlink(path)
    sync_directory(path.parent)


class SegmentChecksums:
    """The checksums of a stream that comes in pieces cut anywhere. ``values``: the crc32c of each segment.
    ``sizes`` are in bytes, none is 0."""

    def __init__(self, sizes: Int64s) -> None:
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self.values = np.zeros(len(sizes), np.uint32)
        self._position = 0

    def add(self, piece: bytes | bytearray | npt.NDArray[np.uint8]) -> None:
        data: Any = np.frombuffer(piece, np.uint8)
        start, stop = self._position, self._position + data.size
        part = parts_between(self._starts, self._ends, start, stop)
        begin, end = np.maximum(self._starts[part], start), np.minimum(self._ends[part], stop)
        checksum_ranges(data.ctypes.data + begin - start, end - begin, self.values[part])
        self._position = stop

    def first_difference(self, expected: npt.NDArray[np.uint32]) -> int | None:
        different = np.flatnonzero(self.values != expected)
        return int(different[0]) if len(different) else None


def finish_copy(working: WorkingFile, plan: PackPlan) -> None:
    """Write the index behind or before the chunks, and make all of it durable. Raises ``StorageError``."""
    if plan.description:
        working.write(plan.data_end, plan.description)
    working.write(plan.index_offset, plan.array.index.encode(plan.entries()))
    working.finish(plan.file_bytes)


def check_copy(
    working: WorkingFile, sizes: Int64s, expected: UInt32s, name: Callable[[int], str], throttle: Throttle
) -> None:
    """Compare what the disk gives back with what was written: the crc32c of segments of these ``sizes``.
    Raises ``StorageError`` with the ``name`` of the first one that differs."""
    found = SegmentChecksums(sizes)
    for _, piece in working.read_pieces():
        throttle.take(piece.size)
        found.add(piece)
    if (wrong := found.first_difference(expected)) is not None:
        raise StorageError(
            f"{name(wrong)} does not read back from its copy as it was written",
            expected=f"crc32c {expected[wrong]:08x}",
            got=f"{found.values[wrong]:08x}",
            hint="The shard is left as it is. Check the disk before anything else is written to it",
        )
