"""Every limit of one acquisition, derived from its specification into one frozen object before anything is
allocated.

ring        frames whose pixels are held: those that wait for their slab, and those whose slab is being
            compressed
staging     room on disk for frames whose slab takes long to fill
row         bookkeeping of one slab that is open or being compressed
shard row   shard files that are filled together (preallocated on disk, mapped)
"""

from __future__ import annotations

import math
import os
import resource
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardwright.array.acquisition_spec import AcquisitionSpec, parse_acquisition
from shardwright.array.default_layout import sizes_text
from shardwright.array.level_shapes import table_entries
from shardwright.codecs.parameters import CodecParameters
from shardwright.model.errors import BudgetError, SpecError
from shardwright.shard.frame_record import record_of
from shardwright.shard.journal import CHUNK_ENTRY
from shardwright.shard.layout import largest_shard, page_aligned, plane_table_bytes
from shardwright.shard.shared_journal import MOST_ROWS
from shardwright.store.sampled_channels import SampledChannels
from shardwright.wire.messages import MAX_PIXELLESS_FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.array.grid import Grid, Grids
    from shardwright.array.spec import ArraySpec, Dimension

# raw bytes of one worker task: long enough to hide Python's part, short enough to share a slab between
# workers
TASK_BYTES = 8 << 20
# with a slow codec: a task is never interrupted, and other acquisitions wait for its worker
SLOW_TASK_BYTES = 2 << 20
RUNTIME_BYTES = 320 << 20  # interpreter, numba and its compiler, libraries; measured after warm-up
SMALL_RING_BYTES = 32 << 20  # small arrays get room to arrive in any order
# memory beside the pixels of a frame that came in its own message, while they are needed; measured: 1.5 KiB
MESSAGE_BYTES = 2 << 10
FRAMES_AT_WORKERS = 8  # where frames do not wait for their slab in memory
SMALL_STAGING_BYTES = 16 << 20
MIN_ROWS = 64
MOST_IN_PLACE_FRAMES = 1 << 16  # in place at once, unless frames in order need more
JOINED_CHUNK_BYTES = 5  # the checksum of what has come of a chunk, and whether any of it is not fill value
CHUNK_ENTRY_BYTES = 48  # of an open shard's table, and of two more if readers see it grow
REORDER_DISK_BYTES = 1 << 30  # shards held open for frames that come far out of order
MAX_RING_FRAMES = 1 << 20
IMAGE_BYTES = 3 << 10  # its name, grid, encoder and account; measured: 2.4 KiB
CONTROL_GROUP = Path("/sys/fs/cgroup")  # that of this process, as a container sees it
DESCRIPTORS_PER_FILE = 2  # a mapping keeps one of its own
MAX_DESCRIPTORS = 1 << 20  # where the system sets no limit
SPARE_DESCRIPTORS = 256  # of the process: logs, libraries, threads, the control socket
# of an acquisition, beside its shard rows: ring, lock, staging, ballast, frame table, folders, and zarr.json
# of several images, which are replaced together
OWN_DESCRIPTORS = 80


class _ArrayNeeds(NamedTuple):
    """The limits that depend on one array alone. Those of an acquisition are the largest of its arrays'."""

    slab_bytes: int
    chunk_bytes: int
    slot_bytes: int
    chunks_per_shard: int
    index_bytes: int
    shard_file_bytes: int
    shard_files_per_shard_row: int
    shard_row_bytes: int
    chunks_per_task: int
    scratch_bytes: int
    buffer_bytes: int  # of one worker, if shards are not mapped
    context_bytes: int  # of its compressor

    @classmethod
    def of(cls, array: ArraySpec, grid: Grid, in_place_record_bytes: int | None) -> _ArrayNeeds:
        """``in_place_record_bytes``: of a frame's record, where frames are put into their chunks."""
        codec, levels = CodecParameters.of(array, grid.chunk_bytes), (grid, *grid.levels)
        shards = [
            largest_shard(level, codec.max_encoded_bytes, array.actual_index_location) for level in levels
        ]
        task_chunks = chunks_per_task(grid, codec)
        scratch_bytes = task_scratch_bytes(grid, codec) + levels_bytes(array, grid)
        buffer_bytes = task_chunks * shards[0].slot_bytes
        if in_place_record_bytes is not None:  # no task has all of a chunk
            journal_bytes = (task_chunks * CHUNK_ENTRY.itemsize, grid.frames_per_slab * in_place_record_bytes)
            scratch_bytes, buffer_bytes = page_aligned(max(journal_bytes)), parts_buffer_bytes(grid)
        return cls(
            slab_bytes=grid.frames_per_slab * grid.frame_bytes,
            chunk_bytes=grid.chunk_bytes,
            slot_bytes=shards[0].slot_bytes,
            chunks_per_shard=shards[0].chunks,
            index_bytes=shards[0].index_bytes,
            shard_file_bytes=shards[0].file_bytes,
            shard_files_per_shard_row=grid.files_per_shard_row,
            shard_row_bytes=math.prod(grid.row_shards)
            * sum(
                math.prod(level.plane_shards) * shard.file_bytes
                for level, shard in zip(levels, shards, strict=True)
            ),
            chunks_per_task=task_chunks,
            scratch_bytes=scratch_bytes,
            buffer_bytes=buffer_bytes,
            context_bytes=codec.context_bytes,
        )

    @classmethod
    def largest(
        cls, arrays: Iterable[tuple[ArraySpec, Grid]], in_place_record_bytes: int | None
    ) -> _ArrayNeeds:
        # Field by field, not of the array that is largest: a worker has one buffer for the tasks of all, and
        # the array with the deepest slab need not be that with the longest chunk.
        needs = (cls.of(array, grid, in_place_record_bytes) for array, grid in arrays)
        return cls(*map(max, zip(*needs, strict=True)))


# Of the needs of an array, those for which room is made when the acquisition begins, in words.
_PLANNED = {
    "chunks_per_shard": "chunks of a shard",
    "shard_files_per_shard_row": "files of a shard row",
    "shard_row_bytes": "bytes of a shard row",
    "scratch_bytes": "bytes that a worker needs",
    "buffer_bytes": "bytes that a worker writes at once",
    "context_bytes": "bytes of a compressor",
}


@dataclass(frozen=True)
class Limits:
    """The limits of one acquisition, in bytes or counts. ``memory_bytes`` is what a process with this one
    acquisition holds and cannot give back; ``mapped_bytes`` is page cache of open shards on top of it.
    ``staged_bytes``: of a frame's pixels in the staging area, 0 if they are in its chunks."""

    frame_bytes: int
    frames_per_slab: int
    slab_bytes: int
    chunk_bytes: int
    slot_bytes: int
    chunks_per_shard: int
    index_bytes: int
    shard_file_bytes: int
    shard_files_per_shard_row: int
    shard_row_bytes: int
    held_frames: int
    ring_frames: int
    ring_bytes: int
    staging_frames: int
    staged_bytes: int
    rows: int
    open_shard_rows: int
    chunks_per_task: int
    scratch_bytes: int
    buffer_bytes: int
    context_bytes: int
    table_bytes: int
    threads: int
    mapped_bytes: int
    memory_bytes: int
    disk_reserved_bytes: int
    descriptors: int

    @classmethod
    def derive(
        cls,
        spec: AcquisitionSpec | ArraySpec,
        *,
        threads: int,
        ring_frames: int | None = None,
        memory_bytes: int | None = None,
        batch_frames: int = 1,
        descriptors: int | None = None,
    ) -> Limits:
        """Derives the limits. Raises ``BudgetError`` naming what does not fit into ``memory_bytes`` or
        ``ring_frames``. ``descriptors``: the open files to stay within; an acquisition that needs more even
        for frames in order gets those."""
        spec = parse_acquisition(spec)
        grids = spec.grids
        # images share their arrays
        arrays = {id(array): (array, grid) for array, grid in zip(spec.arrays, grids.grids, strict=True)}
        record_bytes = record_of(spec).itemsize
        needs = _ArrayNeeds.largest(arrays.values(), record_bytes if grids.in_place else None)
        ring = _ring_frames(grids, ring_frames, batch_frames)
        shallowest = min(grid.frames_per_slab for _, grid in arrays.values())
        # Open slabs, as many that are encoded meanwhile, and those that a full ring has frames of.
        rows = max(_least_rows(grids), 2 * grids.open_slabs + -(-ring // shallowest) + 2)
        files = needs.shard_files_per_shard_row
        open_shard_rows = min(
            grids.open_shard_rows + max(2, min(64, REORDER_DISK_BYTES // max(needs.shard_row_bytes, 1))),
            _shard_rows_within_descriptors(grids, files, descriptors),
        )
        # what is filled in order, and one that is being sealed
        filling = min(grids.open_shard_rows + 1, open_shard_rows)
        frames_per_slab = grids.frames_per_slab
        table_bytes = (
            len(spec.names) * IMAGE_BYTES
            + sum(plane_table_bytes(grid) for _, grid in arrays.values())
            + rows * frames_per_slab * (24 + record_bytes)
            + rows * joined_chunks(grids) * JOINED_CHUNK_BYTES
            + _shard_table_bytes(open_shard_rows, files, needs.chunks_per_shard)
            + _json_bytes(spec)
            + SampledChannels(spec).memory_bytes
        )
        workers_bytes = threads * (needs.scratch_bytes + needs.buffer_bytes + needs.context_bytes)
        limits = cls(
            **needs._asdict(),
            frame_bytes=grids.slot_bytes,
            frames_per_slab=frames_per_slab,
            held_frames=grids.held_frames,
            ring_frames=ring,
            ring_bytes=ring * grids.slot_bytes,
            staging_frames=_staging_frames(spec, ring, rows),
            staged_bytes=0 if grids.in_place else grids.slot_bytes,
            rows=rows,
            open_shard_rows=open_shard_rows,
            table_bytes=table_bytes,
            threads=threads,
            mapped_bytes=filling * needs.shard_row_bytes,
            memory_bytes=RUNTIME_BYTES + ring * grids.slot_bytes + workers_bytes + table_bytes,
            disk_reserved_bytes=(filling + 1) * needs.shard_row_bytes,
            descriptors=OWN_DESCRIPTORS + (open_shard_rows + 1) * (DESCRIPTORS_PER_FILE * files + 1),
        )
        limits._check(grids)
        if memory_bytes is not None and limits.memory_bytes > memory_bytes:
            again = partial(cls.derive, threads=threads, batch_frames=batch_frames, descriptors=descriptors)
            least = None if ring_frames is None else least_ring_frames(grids, batch_frames)
            raise limits._too_large(spec, memory_bytes, least, again)
        return limits

    @property
    def shard_table_bytes(self) -> int:
        """The tables of the chunks of all open shards."""
        return _shard_table_bytes(self.open_shard_rows, self.shard_files_per_shard_row, self.chunks_per_shard)

    @property
    def shared_journal_rows(self) -> int:
        """The number of rows, ended ones included, whose journals may lie on the disk before new rows share
        no more: a shared one stays until its last row ends. Where frames come in order few rows of a file
        have ended while others have not."""
        return 2 * (self.open_shard_rows + MOST_ROWS)

    @property
    def worker_bytes(self) -> int:
        """The buffers of all workers."""
        return self.threads * (self.scratch_bytes + self.buffer_bytes)

    @property
    def acquisition_bytes(self) -> int:
        """``memory_bytes`` without the process itself: what one more such acquisition adds to a daemon."""
        return self.memory_bytes - RUNTIME_BYTES

    def bytes_with(self, transport: str) -> int:
        """``acquisition_bytes`` plus the overhead of messages, if pixels come in messages."""
        return self.acquisition_bytes + message_overhead_bytes(self.ring_frames, transport)

    def _check(self, grids: Grids) -> None:
        assert self.ring_frames > self.held_frames, (
            "else frames in order could fill the ring with slabs that wait for one more frame"
        )
        assert self.rows > grids.open_slabs, "a slab must be able to open while others are being compressed"
        assert self.open_shard_rows > max(1, min(grids.open_shard_rows, grids.open_shard_rows_of_one)), (
            "the next shard must be able to open before the last is sealed"
        )
        assert self.slot_bytes >= self.chunk_bytes, "the stored form of a chunk always fits its slot"

    def _too_large(
        self, spec: AcquisitionSpec, budget_bytes: int, least_ring: int | None, derive: Callable[..., Limits]
    ) -> BudgetError:
        """Returns the error for a budget that is too small: what takes most of it, and sizes that fit.
        ``least_ring``: the smallest ring, if the user has chosen a larger one."""
        parts = [
            (
                self.ring_bytes + self.table_bytes - self.shard_table_bytes,
                f"the ring of {self.ring_frames} frames ({self.ring_bytes:,} bytes)",
                _smaller_chunks(spec.grids),
            ),
            (
                compressing_bytes := self.worker_bytes + self.threads * self.context_bytes,
                f"what {self.threads} threads compress at once ({compressing_bytes:,} bytes)",
                "Give chunks fewer rows and columns",
            ),
            (
                self.shard_table_bytes,
                (
                    f"the table of {self.chunks_per_shard:,} chunks in each shard "
                    f"({self.shard_table_bytes:,} bytes)"
                ),
                "Make shard_size_chunks smaller, or chunks larger",
            ),
        ]
        _, what, hint = max(parts)
        better = None
        if least_ring is not None:
            better = _ring_that_fits(spec, self, budget_bytes, least_ring, derive)
        return BudgetError(
            f"{what} does not fit the memory budget",
            expected=f"at most {budget_bytes:,} bytes in all",
            got=f"{self.memory_bytes:,} bytes",
            hint=f"{hint}. {better or _sizes_that_fit(spec, self, budget_bytes, derive)}",
        )

    def check_more_images(self, before: AcquisitionSpec, spec: AcquisitionSpec) -> int:
        """Returns the memory that the images take which ``spec`` has more than ``before``, without their
        samples. Raises ``BudgetError`` for images that do not fit what was planned, and made, as the
        acquisition began: ring, tables, buffers of workers, shards that are open at once."""
        grids = spec.grids
        arrays = {id(array): (array, grid) for array, grid in zip(spec.arrays, grids.grids, strict=True)}
        known = {id(array) for array in before.arrays}
        needs = _ArrayNeeds.largest(arrays.values(), record_of(spec).itemsize if grids.in_place else None)
        largest = "Declare an image with such an array at the begin: all is planned for the largest"
        several = (
            "Every image may have a chunk that waits for its other frames: give chunks one frame, images "
            'that come one after the other an order that begins with "p", or let frames be put into their '
            "chunks (partial_chunks: in_place); a stream of the daemon may have more ring_frames"
        )
        open_rows = max(1, min(grids.open_shard_rows, grids.open_shard_rows_of_one)) + 1
        planned = [
            ("bytes of a slot for any frame", grids.slot_bytes, self.frame_bytes, largest),
            ("frames of a chunk", grids.frames_per_slab, self.frames_per_slab, largest),
            ("chunks of a frame", joined_chunks(grids), joined_chunks(before.grids), largest),
            *((what, getattr(needs, n), getattr(self, n), largest) for n, what in _PLANNED.items()),
            ("open shards", open_rows, self.open_shard_rows, largest),
            ("frames in the ring", least_ring_frames(grids), self.ring_frames, several),
            ("open slabs", grids.open_slabs + 1, self.rows, several),
        ]
        if self.staging_frames and not grids.in_place:
            planned.append(("staged frames", grids.held_frames, self.staging_frames, several))
        for what, needed, most, hint in planned:
            if needed > most:
                raise BudgetError(
                    f"the image {spec.names[-1]!r} does not fit what the acquisition began with: {what}",
                    expected=f"at most {most:,}",
                    got=f"{needed:,}",
                    hint=hint,
                )
        if grids.slot_bytes != self.frame_bytes:
            raise BudgetError(
                f"the frames of {spec.names[-1]!r} do not fit the slots of the ring, which follow each other "
                "without a gap",
                expected=f"slots of {self.frame_bytes:,} bytes, a multiple of 8",
                hint=largest,
            )
        tables = sum(plane_table_bytes(grid) for key, (_, grid) in arrays.items() if key not in known)
        return (len(spec.names) - len(before.names)) * IMAGE_BYTES + tables

    def with_images(self, grids: Grids, more_bytes: int) -> Limits:
        """Returns the limits of the acquisition with the images that were added."""
        return replace(
            self,
            held_frames=grids.held_frames,
            table_bytes=self.table_bytes + more_bytes,
            memory_bytes=self.memory_bytes + more_bytes,
        )

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def check_room(more_bytes: int, room_bytes: int) -> None:
    """Raises ``BudgetError`` if an image takes more memory than there may be."""
    if more_bytes > room_bytes:
        raise BudgetError(
            "the memory budget has no room for one more image",
            expected=f"at most {max(0, room_bytes):,} bytes",
            got=f"{more_bytes:,} bytes",
            hint="End another acquisition, or raise the budget",
        )


def _shard_table_bytes(shard_rows: int, files: int, chunks: int) -> int:
    return shard_rows * files * chunks * CHUNK_ENTRY_BYTES


def _json_bytes(spec: AcquisitionSpec) -> int:
    """The memory for the JSON of frames that wait to be recorded: of those without pixels, and of the shard
    row that is being sealed, whose records are read, sorted and written."""
    row_frames = max(math.prod(grid.shard_row_frames) for grid in spec.grids.grids)
    return spec.frame_json_bytes * (MAX_PIXELLESS_FRAMES + 3 * row_frames)


def _ring_frames(grids: Grids, wish: int | None, batch_frames: int) -> int:
    """Returns ``wish``, or a default for the frames' size. Raises ``BudgetError`` when ``wish`` is too
    small."""
    least = least_ring_frames(grids, batch_frames)
    if wish is None:
        return max(least, min(MAX_RING_FRAMES, SMALL_RING_BYTES // max(grids.slot_bytes, MESSAGE_BYTES)))
    if wish < least:
        raise BudgetError(
            "ring_frames is too small for this chunking",
            expected=f"at least {least} frames",
            got=wish,
            hint=_smaller_chunks(grids),
            short_of="ring_frames",
        )
    return wish


def message_overhead_bytes(ring_frames: int, transport: str) -> int:
    """The memory of messages beside their pixels: 0 with a ring (``shm``)."""
    return ring_frames * MESSAGE_BYTES if transport == "message" else 0


def parts_buffer_bytes(grid: Grid) -> int:
    """The memory in which a worker makes the parts of frames before they are written: of several small
    frames, or of one, with the fill value past its edge."""
    frame_bytes = math.prod(grid.plane_chunks) * (grid.chunk_bytes // grid.frames_per_slab)
    return max(TASK_BYTES, page_aligned(frame_bytes))


def joined_chunks(grids: Grids) -> int:
    """The most chunks of a slab whose checksums are joined from parts of frames; 0 where no frame is put into
    its chunks."""
    return max(math.prod(grid.plane_chunks) for grid in grids.grids) if grids.in_place else 0


def chunks_per_task(grid: Grid, codec: CodecParameters) -> int:
    """The number of chunks of a slab that one worker task encodes: at least one, however large."""
    most_bytes = SLOW_TASK_BYTES if codec.is_slow else TASK_BYTES
    return min(max(1, most_bytes // grid.chunk_bytes), math.prod(grid.plane_chunks))


def task_scratch_bytes(grid: Grid, codec: CodecParameters) -> int:
    """The working memory of one task, without the frames of levels; they follow it, so it ends at a page."""
    if not grid.levels:
        return codec.scratch_bytes
    return page_aligned(max(codec.scratch_bytes, CHUNK_ENTRY.itemsize * chunks_per_task(grid, codec)))


def levels_bytes(array: ArraySpec, grid: Grid) -> int:
    """The memory in which a worker makes the levels of one slab: their frames, and a table of
    ``kernels.downsample`` that has the rows of a level's windows. 0 without levels."""
    tables = [
        8
        * table_entries(
            level.frames_per_slab * level.frame_shape[0],
            math.prod(shape.factors[:-1]),
            below.frame_shape[1],
        )
        for shape, (below, level) in zip(array.level_shapes, pairwise((grid, *grid.levels)), strict=True)
    ]
    return sum(map(level_frames_bytes, grid.levels)) + max(tables, default=0)


def level_frames_bytes(level: Grid) -> int:
    """The size of a slab's frames at a level, up to a multiple of 8, so that the next level begins at one."""
    return -(-level.frames_per_slab * level.frame_bytes // 8) * 8


def _shard_rows_within_descriptors(grids: Grids, files: int, share: int | None) -> int:
    """The number of shard rows (their files and a journal each) that may be open, without the prepared one.
    Where images may change at any frame, and a shard row of each takes more than half of what the process may
    open, the others are sealed and reopened. Raises ``BudgetError`` when that is too few even for one
    image."""
    most = most_descriptors() - SPARE_DESCRIPTORS
    a_shard_row = DESCRIPTORS_PER_FILE * files + 1
    fit = (most - OWN_DESCRIPTORS) // a_shard_row - 1
    least = grids.open_shard_rows + 2
    if grids.slower_axes is None:
        least = min(least, max(fit // 2, grids.open_shard_rows_of_one + 2))
    if fit < least:
        raise BudgetError(
            f"{least - 1} shard rows of {files} files are open at once, more than this process may open",
            expected=f"at most {most} descriptors",
            got=f"{OWN_DESCRIPTORS + a_shard_row * (least + 1)}",
            hint="Make shard_size_chunks of the frame's axes larger, so that fewer shards cover a frame, or "
            "raise the limit of open files",
            short_of="descriptors",
        )
    return max(least, (min(most, most if share is None else share) - OWN_DESCRIPTORS) // a_shard_row - 1)


def most_descriptors() -> int:
    """The number of files that this process may open: the hard limit, to which ``raise_descriptor_limit``
    raises the soft one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard


def raise_descriptor_limit() -> None:
    """Raises this process's soft limit of open files to its hard limit, which the limits rely on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard, (
        "every limit of open files was derived from the hard limit"
    )


def machine_memory_bytes() -> int:
    """The memory of this machine, or the limit of this process's control group if that is less."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _group_limit_bytes()
    return installed if limit is None else min(installed, limit)


def available_memory_bytes() -> int:
    """The memory that programs can take now: MemAvailable of proc(5), or what the limit of this process's
    control group leaves if that is less. Pages of files count as free in both: the kernel drops them."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    limit = _group_limit_bytes()
    if limit is None:
        return available
    used = int((CONTROL_GROUP / "memory.current").read_text())
    stat = dict(line.split() for line in (CONTROL_GROUP / "memory.stat").read_text().splitlines())
    return min(available, max(0, limit - used + int(stat["active_file"]) + int(stat["inactive_file"])))


def _group_limit_bytes() -> int | None:
    try:
        limit = (CONTROL_GROUP / "memory.max").read_text().strip()
    except OSError:
        return None
    return int(limit) if limit.isdecimal() else None


def default_threads() -> int:
    """The number of cores plus two: with O_DIRECT a worker waits for the disk part of its time. Measured on
    two cores, 2048x2048 frames: 2.6, 2.85 and 2.9 GB/s with 2, 3 and 4 workers."""
    return len(os.sched_getaffinity(0)) + 2


def _least_rows(grids: Grids) -> int:
    """The fewest rows of the slab table: in place each may have as many frames as a slab is deep."""
    return (
        max(1, min(MIN_ROWS, MOST_IN_PLACE_FRAMES // grids.frames_per_slab)) if grids.in_place else MIN_ROWS
    )


def _staging_frames(spec: AcquisitionSpec, ring_frames: int, rows: int) -> int:
    """The size of the staging area: frames of incomplete slabs, as many again whose slabs wait for a commit,
    and as many for frames out of order; more if frames are small. Where it has no pixels, all that the slab
    table can hold, up to a page's end, from which readers know how many there are."""
    grids = spec.grids
    if grids.frames_per_slab == 1:
        return 0
    if grids.in_place:
        record_bytes = record_of(spec).itemsize
        return page_aligned(rows * grids.frames_per_slab * record_bytes) // record_bytes
    by_bytes = SMALL_STAGING_BYTES // page_aligned(grids.slot_bytes)
    return min(ring_frames, max(4 * grids.held_frames, by_bytes))


def least_ring_frames(grids: Grids, batch_frames: int = 1) -> int:
    """The smallest ring: frames that wait in incomplete slabs, two slabs that are compressed or filled
    meanwhile (or frames that are put into chunks), and a batch on its way: of colours three frames, whose
    slots come back one by one."""
    if grids.frame_places > 1:
        batch_frames = max(batch_frames, 3 * grids.frame_places)
    if grids.in_place:
        return FRAMES_AT_WORKERS + batch_frames
    return grids.held_frames + max(2, min(2 * grids.frames_per_slab, 2 * grids.held_frames)) + batch_frames


def _smaller_chunks(grids: Grids) -> str:
    if len(grids.grids) > 1 and grids.slower_axes is None:
        return (
            f"Images may change at any frame, so each of the {len(grids.grids)} may have an incomplete "
            f"chunk: say with order when they change, or give chunks fewer frames"
        )
    if grids.open_slabs > 1:
        return (
            f"{grids.open_slabs} slabs are open at once, because frames change their chunk on faster axes "
            f"before a chunk of a slower axis is full: "
            "give the slower axis a smaller chunk_size, or chunk the faster axes"
        )
    deepest = grids.frames_per_slab
    return f"A chunk is {deepest} frames deep: give it a smaller chunk_size, or raise the budget"


def _ring_that_fits(
    spec: AcquisitionSpec, limits: Limits, budget_bytes: int, least: int, derive: Callable[..., Limits]
) -> str | None:
    """Returns a sentence with a number of frames for the ring, None if not even the ``least`` fits.
    ``derive`` returns the limits of a specification (and ``ring_frames``), whatever the budget."""
    frames = limits.ring_frames
    while frames > least:
        frames = max(least, frames // 2)
        if derive(spec, ring_frames=frames).memory_bytes <= budget_bytes:
            return f"ring_frames {frames} fits"
    return None


def _sizes_that_fit(
    spec: AcquisitionSpec, limits: Limits, budget_bytes: int, derive: Callable[..., Limits]
) -> str:
    """Returns a sentence with chunks and shards, halved as often as need be, and with the budget that is
    needed. ``derive`` as above. Only images of one array have one answer."""
    needed = f"A budget of {-(-limits.memory_bytes >> 20):,} MiB is enough"
    if len(spec.distinct_arrays) > 1:
        return needed
    (array,), found = spec.distinct_arrays, limits
    several = {"images": [image.name for image in spec.images], "plate": spec.plate, "order": spec.order}
    while found.memory_bytes > budget_bytes:
        smaller = _halved(array, shards=found.shard_table_bytes > max(found.ring_bytes, found.worker_bytes))
        if smaller is None:
            return f"{needed}, and no smaller chunks are"
        array = smaller
        try:
            found = derive(parse_acquisition({"array": array, **several}))
        except (BudgetError, SpecError):
            return needed  # smaller ones would be too many
    sizes = sizes_text([(d.name, d.chunk_size, d.shard_size_chunks) for d in array.dimensions])
    return f"{sizes} need {-(-found.memory_bytes >> 20):,} MiB. {needed}"


def _halved(array: ArraySpec, *, shards: bool) -> ArraySpec | None:
    """Returns the array with shards, or with chunks in shards as long as before, of half the size along one
    axis; None if there are none. Of chunks the frame axes go first: their depth is how many frames are
    held."""
    *frame_axes, y, x = array.dimensions
    for axes in ([*frame_axes, y, x],) if shards else (frame_axes, [y, x]):
        largest = max(axes, key=lambda d: d.shard_chunks if shards else d.chunk_size, default=None)
        half = None if largest is None else _half(largest, shards=shards)
        if half is not None:
            dimensions = tuple(half if d is largest else d for d in array.dimensions)
            return array.model_copy(update={"dimensions": dimensions})
    return None


def _half(d: Dimension, *, shards: bool) -> Dimension | None:
    chunk, shard = d.chunk_size, d.shard_chunks
    if shards:
        return d.model_copy(update={"shard_size_chunks": shard // 2}) if shard > 1 else None
    longer = None if d.shard_size_chunks is None else shard * 2
    half = d.model_copy(update={"chunk_size": chunk // 2, "shard_size_chunks": longer})
    return half if chunk > 1 else None
