"""Encodes the slabs of one array to chunks, or puts frames into their chunks as they come: the tables that
all tasks of an acquisition share, and the tasks."""

from __future__ import annotations

import math
import threading
import time
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import image_of, number_in_image
from shardwright.codecs.degrade import DegradeLevel, degrade_ladder
from shardwright.codecs.parameters import CodecParameters
from shardwright.disk.failpoints import reach
from shardwright.disk.files import raise_errno, storage_errors
from shardwright.kernels.encode import NOT_PACKED, REPLACED, UNSOUND
from shardwright.kernels.encode_check import CHECK_ALL, CHECK_NONE, CHECK_SAMPLE
from shardwright.kernels.encode_planes import encode_planes
from shardwright.kernels.file_io import start_writeback, write_runs, write_slots
from shardwright.kernels.journal_kernels import journal_chunks, journal_frames, stage_frames
from shardwright.kernels.parts import place_parts, shifts_behind
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import CodecError, StorageError, WorkerError
from shardwright.model.write_settings import WriteSettings
from shardwright.shard.frames_in_place import part_bytes
from shardwright.shard.journal import CHUNK_ENTRY, ShardRowJournal
from shardwright.shard.layout import PAGE_BYTES, ArrayLayout, chunks_of_slab

from .commands import FramesStaged, SlabEncoded, TaskTimes
from .level_frames import LevelFrames
from .limits import TASK_BYTES, chunks_per_task, levels_bytes, task_scratch_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.grid import Grid
    from shardwright.array.spec import ArraySpec
    from shardwright.kernels.encode import Encoded
    from shardwright.kernels.encode_planes import Cut
    from shardwright.shard.frames_in_place import FramesInPlace
    from shardwright.shard.layout import PlaneLevel, SlabChunks
    from shardwright.shard.shard_row_files import ShardRowFiles
    from shardwright.shard.staging import StagingArea
    from shardwright.store.contrast_samples import ContrastSamples

    from .commands import Encode, Joined, Stage
    from .overload_level import OverloadLevel
    from .workers import WorkerState

Stored = tuple[np.ndarray, list[int]]  # of ``SlabEncoder.encode``
_CHECKS = {"none": CHECK_NONE, "sample": CHECK_SAMPLE, "all": CHECK_ALL}


class SlabEncoder:
    """Frozen after construction; shared by all workers without a lock. ``task_ranges``: the ranges of chunks
    that a slab is cut into. ``in_place``: frames are put into chunks as they come."""

    def __init__(
        self,
        spec: ArraySpec,
        grid: Grid,
        settings: WriteSettings | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        self.settings = settings = settings or WriteSettings()
        self._check = _CHECKS[settings.encode_check]
        codec = CodecParameters.of(spec, grid.chunk_bytes)
        self.layout = ArrayLayout.of_spec(spec, grid, codec.max_encoded_bytes)
        self._chunks_per_task = chunks_per_task(grid, codec)
        self._scratch_bytes = task_scratch_bytes(grid, codec)
        self._levels_bytes = levels_bytes(spec, grid)
        self._levels = [_LevelEncoder(spec, level, settings.min_ratio) for level in self.layout.plane.levels]
        self._above = LevelFrames(spec, grid) if grid.levels else None
        self.task_ranges = self._task_ranges()
        self._part_bytes = part_bytes(self.layout)
        self._shifts = shifts_behind(grid.frames_per_slab, self._part_bytes) if in_place else None
        # zeros are where nothing was written: left out, other fill would be bytes that nobody knows
        self._leaves_fill_out = not spec.write_empty_chunks and not any(spec.fill_bytes())

    @classmethod
    def of_images(cls, spec: AcquisitionSpec, settings: WriteSettings | None = None) -> list[SlabEncoder]:
        """Returns one encoder for each image. Images with the same array share its tables."""
        # By identity: ``AcquisitionSpec.arrays`` has one object for equal ones. A plate has thousands of
        # images, and the limits count the tables of each array once.
        made: dict[int, SlabEncoder] = {}  # by the id of the array's specification
        encoders = []
        for array, grid, path in zip(spec.arrays, spec.grids.grids, spec.paths, strict=True):
            if id(array) not in made:
                made[id(array)] = cls(array, grid, settings, in_place=spec.grids.in_place)
            encoders.append(made[id(array)].image(grid, path))
        return encoders

    @classmethod
    def of_more_images(
        cls, encoders: Sequence[SlabEncoder], before: AcquisitionSpec, spec: AcquisitionSpec
    ) -> tuple[SlabEncoder, ...]:
        """Returns ``encoders``, those of the images ``before``, and behind them those of the images that
        ``spec`` has more."""
        first = len(encoders)
        made = {id(array): encoder for array, encoder in zip(before.arrays, encoders, strict=True)}
        more = zip(spec.arrays[first:], spec.grids.grids[first:], spec.paths[first:], strict=True)
        for array, grid, path in more:
            if id(array) not in made:
                settings = encoders[0].settings
                made[id(array)] = cls(array, grid, settings, in_place=spec.grids.in_place)
            encoders = (*encoders, made[id(array)].image(grid, path))
        return tuple(encoders)

    def image(self, grid: Grid, path: str) -> SlabEncoder:
        """Returns the encoder of another image with the same array, at ``path`` in the store."""
        other = copy(self)
        other.layout = self.layout.image(grid, path)
        return other

    @property
    def chunks_per_slab(self) -> int:
        return len(self.layout.plane.file)

    @property
    def degrade_levels(self) -> tuple[DegradeLevel, ...]:
        """The levels at which this array's chunks can be encoded, from the configured one to the fastest."""
        return tuple(self._levels[0].codecs)

    def encode(
        self,
        frames: np.ndarray,
        records: np.ndarray,
        slab: int,
        files: ShardRowFiles,
        first: int,
        stop: int,
        state: WorkerState,
        level: DegradeLevel,
    ) -> Stored:
        """Encodes chunks [first, stop) of a slab, all of one level, into their slots, then journals them.
        Returns the encoded bytes of each, 0 for one that is all fill and absent, and the numbers of those
        that are stored uncompressed since they did not decode to their pixels. Raises ``CodecError`` if one
        does not decode in that form either, ``StorageError``.

        ``frames`` int64[P]: address of each frame's pixels of that level in storage order, 0 where none came;
        ``records`` uint8[P, record_bytes]: of the frames of the image alike. The task with the slab's first
        chunk journals the frames before its chunks, so that the frames of a slab are journaled when all of
        its chunks are.
        """
        slot_bytes, part = self.layout.slot_bytes, slice(first, stop)
        slab_chunks = chunks_of_slab(self.layout, slab, part)
        file = slab_chunks.file
        offset = files.offsets(file, slab_chunks.slot)  # unless in runs
        addresses, descriptors = files.addresses, files.descriptors
        targets = (
            state.slots(stop - first, slot_bytes)
            if addresses is None
            else addresses[file] + offset - files.journal.layout.data_start
        )
        # In runs the chunks of a file lie one behind the other in the buffer: one write for each file and not
        # for each chunk, and no gaps to punch when it is sealed, which costs a call for each chunk.
        runs = file if files.in_runs else NOT_PACKED
        reach("slots.before_store")
        nbytes, forms, crcs = self.to_slots(frames, part, targets, runs, state, level, slab)
        if (forms == UNSOUND).any():
            raise self._unsound(slab, first + int(np.argmax(forms == UNSOUND)))
        if addresses is None:
            self._write(files, descriptors, file, offset, targets, nbytes)
        filled = (records, frames != 0) if first == 0 else None
        self._note_stored(files, slab_chunks, offset, nbytes, crcs, filled, state)
        return nbytes, (np.flatnonzero(forms == REPLACED) + first).tolist()

    def _unsound(self, slab: int, chunk: int) -> CodecError:
        path, coordinates = self.layout.chunk_place(slab, chunk)
        return CodecError(
            f"chunk {coordinates} of array {path} does not decode to its pixels, compressed or not",
            hint="The memory of this machine makes errors: test it before it stores anything else",
        )

    def _note_stored(
        self,
        files: ShardRowFiles,
        slab_chunks: SlabChunks,
        offset: np.ndarray,
        nbytes: np.ndarray,
        crcs: np.ndarray,
        frames: tuple[np.ndarray, np.ndarray] | None,
        state: WorkerState,
    ) -> None:
        """Journals chunks that are in their files, behind the slab's ``frames`` (records, which came) if they
        are its first."""
        # The journal comes behind the pixels: its entry says that a chunk is whole. Write-back begins now, or
        # the sync of the next commit would find all of it to do, and acknowledgements would wait.
        if files.cached:
            start_writeback(files.descriptors, slab_chunks.file, offset, nbytes)
        reach("slots.after_store")
        if frames is not None:
            self._journal_frames(files.journal, slab_chunks.slot_layer, *frames, state)
        self._journal_chunks(files.journal, slab_chunks.file, slab_chunks.slot, offset, nbytes, crcs, state)
        files.note_stored(slab_chunks.file, slab_chunks.entry, offset, nbytes)

    def complete(
        self,
        frames: np.ndarray,
        records: np.ndarray,
        joined: Joined,
        slab: int,
        files: ShardRowFiles,
        first: int,
        stop: int,
        state: WorkerState,
    ) -> Stored:
        """Does what ``encode`` does for chunks that have all their frames (``joined``): puts fill value where
        none came, and journals them."""
        part = slice(first, stop)
        crcs, not_fill = (of_chunk[part].copy() for of_chunk in joined)
        # Pixels that are there are neither read nor written again, only the places of frames that never came.
        empty = np.flatnonzero(frames == 0)
        reach("slots.before_store")
        slab_chunks = chunks_of_slab(self.layout, slab, part)
        self._put_parts(0 * empty, empty, slab_chunks, part, files, (crcs, not_fill), state)
        there = not_fill | (not self._leaves_fill_out)
        nbytes = np.where(there, self.layout.grid.chunk_bytes, 0)
        offset = files.offsets(slab_chunks.file, slab_chunks.slot)
        filled = (records, frames != 0) if first == 0 else None
        self._note_stored(files, slab_chunks, offset, nbytes, crcs, filled, state)
        return nbytes, []

    def put_in_place(
        self, frames: np.ndarray, at: np.ndarray, slab: int, files: ShardRowFiles, state: WorkerState
    ) -> Joined:
        """Puts frames, int64[n] addresses of pixels, into the chunks of their slab, at its indices ``at``
        int64[n]. Returns what they add to the checksums of these chunks. Raises ``StorageError``."""
        joined = np.zeros(self.chunks_per_slab, np.uint32), np.zeros(self.chunks_per_slab, np.bool_)
        part = slice(0, self.chunks_per_slab)
        self._put_parts(frames, at, chunks_of_slab(self.layout, slab), part, files, joined, state)
        return joined

    def join(self, pixels: np.ndarray, index_in_slab: int) -> Joined:
        """Returns what a frame at an index in its slab, uint8[frame_bytes], adds to the checksums of the
        chunks in which it is."""
        assert self._shifts is not None, "made where frames are put in place"
        joined = np.zeros(self.chunks_per_slab, np.uint32), np.zeros(self.chunks_per_slab, np.bool_)
        part = np.empty(self._part_bytes, np.uint8)  # one after the other, for their checksums alone
        targets = np.full((1, self.chunks_per_slab), part.ctypes.data)
        frame, geometry = np.array([pixels.ctypes.data]), self.layout.plane.geometry
        place_parts(frame, self._shifts[[index_in_slab]], geometry, self._levels[0].cut, targets, joined)
        return joined

    def _put_parts(
        self,
        frames: np.ndarray,
        at: np.ndarray,
        slab_chunks: SlabChunks,
        part: slice,
        files: ShardRowFiles,
        joined: Joined,
        state: WorkerState,
    ) -> None:
        """Puts frames into a part of the slab's chunks, those with ``slab_chunks``: as many at once as fit
        into the worker's buffer, if shards are not mapped."""
        assert self._shifts is not None, "made where frames are put in place"
        nbytes, start = self._part_bytes, files.offsets(slab_chunks.file, slab_chunks.slot)
        mapped = None if files.addresses is None else files.addresses[slab_chunks.file]
        some = max(1, TASK_BYTES // (nbytes * start.size))
        for i in range(0, at.size, some):
            offsets = np.add.outer(at[i : i + some] * nbytes, start)
            if mapped is None:
                targets = state.slots(offsets.size, nbytes).reshape(offsets.shape)
            else:
                targets = mapped + offsets - files.journal.layout.data_start
            shifts = self._shifts[at[i : i + some]]
            geometry, cut = self.layout.plane.geometry[part], self._levels[0].cut
            reach("slots.before_part")
            place_parts(frames[i : i + some], shifts, geometry, cut, targets, joined)
            if mapped is not None:
                continue
            with storage_errors("write parts of chunks of", "a shard"):
                reach("slots.before_write")
                descriptors = np.broadcast_to(files.descriptors[slab_chunks.file], offsets.shape)
                raise_errno(
                    write_slots(
                        descriptors.ravel(),
                        offsets.ravel(),
                        targets.ravel(),
                        np.full(offsets.size, nbytes),
                        1,
                    )
                )

    def to_slots(
        self,
        frames: np.ndarray,
        part: slice,
        slots: np.ndarray,
        files: np.ndarray,
        state: WorkerState,
        level: DegradeLevel,
        slab: int,
    ) -> Encoded:
        """Encodes a part of a slab's chunks into the memory at ``slots``. ``frames``, ``slots``, ``files``:
        as for ``encode_planes``."""
        tools = (state.contexts.addresses, state.scratch(self._scratch_bytes))
        mine = next(each for each in self._levels if part.start < each.plane.stop)
        # An array that was added may have fewer levels than those with which the acquisition began.
        codec = mine.codecs.get(level, mine.codecs[DegradeLevel.CONFIGURED])
        geometry = self.layout.plane.geometry[part]
        check = self._check, number_in_image(slab) * self.chunks_per_slab + part.start
        nbytes = self.layout.slot_bytes
        return encode_planes(frames, geometry, mine.cut, codec, slots, nbytes, tools, files, check)

    def _write(
        self,
        files: ShardRowFiles,
        descriptors: np.ndarray,
        file: np.ndarray,
        offsets: np.ndarray,
        addresses: np.ndarray,
        nbytes: np.ndarray,
    ) -> None:
        """Writes chunks from the worker's buffer into the files. If these are packed, ``offsets`` is set to
        where the chunks went. Raises ``StorageError``."""
        with storage_errors("write chunks of", "a shard"):
            reach("slots.before_write")
            if files.in_runs:
                raise_errno(
                    write_runs(descriptors, files.cursors, file, addresses, nbytes, PAGE_BYTES, offsets)
                )
            else:
                raise_errno(write_slots(descriptors[file], offsets, addresses, nbytes, PAGE_BYTES))

    def _journal_frames(
        self,
        journal: ShardRowJournal,
        slot_layer: int,
        records: np.ndarray,
        filled: np.ndarray,
        state: WorkerState,
    ) -> None:
        with storage_errors("write", journal.path):
            reach("journal.before_frames")
            offset = journal.layout.frame_records_offset(slot_layer)
            raise_errno(
                journal_frames(
                    journal.descriptor, offset, records, filled, journal.seed, state.scratch(records.size)
                )
            )

    def _journal_chunks(
        self,
        journal: ShardRowJournal,
        file: np.ndarray,
        slot: np.ndarray,
        offset: np.ndarray,
        nbytes: np.ndarray,
        crcs: np.ndarray,
        state: WorkerState,
    ) -> None:
        with storage_errors("write", journal.path):
            reach("journal.before_chunks")
            entry_offsets = journal.layout.chunk_entry_offsets(file, slot)
            scratch = state.scratch(CHUNK_ENTRY.itemsize * slot.size)
            raise_errno(
                journal_chunks(
                    journal.descriptor,
                    entry_offsets,
                    offset,
                    nbytes,
                    crcs,
                    journal.writer_epoch,
                    journal.seed,
                    scratch,
                )
            )
            reach("journal.after_chunks")

    def _task_ranges(self) -> list[tuple[int, int]]:
        """Returns ranges of about equal size. All levels are one task, the first, since it is the longest:
        the slab would wait for it alone."""
        plane = self.layout.plane
        ranges = self._ranges(plane.levels[0])
        return ranges if self._above is None else [(plane.levels[1].first, self.chunks_per_slab), *ranges]

    def _ranges(self, level: PlaneLevel) -> list[tuple[int, int]]:
        chunks = level.stop - level.first
        tasks = math.ceil(chunks / self._chunks_per_task)
        return list(pairwise(level.first + chunks * i // tasks for i in range(tasks + 1)))

    def parts_of(
        self, frames: np.ndarray, slab: int, first: int, stop: int, state: WorkerState
    ) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yields what a task encodes one after the other: the frames, and the range of chunks. For the task
        of the levels these frames are made here, each level's from those of the level below; they stay valid
        until the next level is made."""
        plane = self.layout.plane
        if first < plane.levels[0].stop:
            yield frames, first, stop
            return
        assert self._above is not None, "chunks of levels"
        windows = self._above.windows(self.layout.grid.live_extent(slab))
        memory = state.scratch(self._scratch_bytes + self._levels_bytes)[self._scratch_bytes :]
        for number, level in enumerate(plane.levels[1:], 1):
            frames = self._above.make(number, frames, windows, memory[: self._levels_bytes])
            for begin, end in self._ranges(level):
                yield frames, begin, end


def join_frames(
    frames_in_place: FramesInPlace, encoders: Sequence[SlabEncoder], records: np.ndarray
) -> dict[int, Joined]:
    """Returns, by slab, the checksums of what is in place of its chunks: the frames of ``records``. Raises
    ``StorageError``."""
    joined: dict[int, Joined] = {}
    for position in records["position"].tolist() if records.size else ():
        encoder, pixels = encoders[image_of(position)], frames_in_place.read(position)
        if pixels is None:
            raise StorageError("a shard in progress, in which frames are, has gone")
        grid = encoder.layout.grid
        slab, adds = grid.slab_of_position(position), encoder.join(pixels, grid.index_in_slab(position))
        joined[slab] = joined_with(joined.get(slab), adds)
    return joined


def joined_with(joined: Joined | None, adds: Joined) -> Joined:
    """Returns the checksums of a slab's chunks with what a further frame adds."""
    # crc32c is linear (``kernels/parts``), so frames may come in any order, and no chunk is read back for its
    # checksum.
    return adds if joined is None else (joined[0] ^ adds[0], joined[1] | adds[1])


class _LevelEncoder:
    """The arguments of ``encode_planes`` for one level: ``cut``, and ``codecs`` by degrade level."""

    def __init__(self, spec: ArraySpec, plane: PlaneLevel, min_ratio: float) -> None:
        codec = replace(CodecParameters.of(spec, plane.grid.chunk_bytes), min_ratio=min_ratio)
        self.plane = plane
        self.codecs = {level: faster.as_array() for level, faster in degrade_ladder(codec).items()}
        fill_row = np.frombuffer(spec.fill_bytes() * (plane.row_bytes // spec.itemsize), np.uint8).copy()
        rows = (plane.frame_row_bytes, plane.chunk_rows, plane.row_bytes)
        self.cut: Cut = (*rows, fill_row, spec.write_empty_chunks)


class SlabJob:
    """The shared state of the tasks of one slab: what they store, and the results so far. The last task
    reports."""

    __slots__ = (
        "_done",
        "_error",
        "_left",
        "_lock",
        "_report",
        "_stored_bytes",
        "command",
        "encoder",
        "overload",
        "queued_ns",
        "records",
        "samples",
    )

    def __init__(
        self,
        command: Encode,
        encoder: SlabEncoder,
        overload: OverloadLevel,
        tasks: int,
        queued_ns: int,
        report: Callable[[SlabEncoded], None],
        samples: ContrastSamples,
    ) -> None:
        """``overload`` is read when a worker begins a task: one queued earlier, at ``queued_ns``, is encoded
        at the level of now."""
        self.command = command
        self.encoder = encoder
        self.overload = overload
        self.records = command.records.view(np.uint8).reshape(command.frames.size, -1)
        self.queued_ns = queued_ns
        self.samples = samples
        self._report = report
        self._lock = threading.Lock()  # among the tasks of this one slab
        self._done: list[TaskTimes] = []
        self._left = tasks
        self._stored_bytes = 0
        self._error: ErrorText | None = None

    def task_ended(self, times: TaskTimes | None, nbytes: int, error: ErrorText | None) -> None:
        """Counts a task that ended: its chunks took ``times`` and ``nbytes``, or ``error`` says why they are
        not stored."""
        with self._lock:
            if times is not None:
                self._done.append(times)
            self._stored_bytes += nbytes
            self._error = self._error or error
            self._left -= 1
            last = not self._left
        if last:  # no other task uses this job any more
            self._report(SlabEncoded(self.command.row, self._stored_bytes, self._error, tuple(self._done)))


# not frozen, since one is made for each task: that would cost as much as passing it through the queue
@dataclass(slots=True)
class SlabTask:
    """Chunks [first, stop) of one slab."""

    job: SlabJob
    first: int
    stop: int

    def run(self, state: WorkerState) -> None:
        job, command = self.job, self.job.command
        begun_ns, level = time.monotonic_ns(), job.overload.level
        try:
            encoder, slab = job.encoder, command.slab
            if command.joined is not None:
                part = slab, command.files, self.first, self.stop
                stored = [encoder.complete(command.frames, job.records, command.joined, *part, state)]
            else:
                stored = [
                    encoder.encode(frames, job.records, slab, command.files, first, stop, state, level)
                    for frames, first, stop in encoder.parts_of(
                        command.frames, slab, self.first, self.stop, state
                    )
                ]
            # Once for the slab. Frames in place were sampled as they came: their pixels may be gone by now.
            if self.first == 0 and command.joined is None:
                job.samples.add(slab, command.frames)
        except Exception as error:  # noqa: BLE001  (any error must be reported to the acquisition)
            job.task_ended(None, 0, _text_of(error))
        except BaseException as error:
            # no other thread would report this task
            job.task_ended(None, 0, ErrorText(WorkerError, f"a worker thread died: {error!r}"))
            raise
        else:
            took_ns = time.monotonic_ns() - begun_ns
            chunks = sum(int(np.count_nonzero(nbytes)) for nbytes, _ in stored)
            replaced = [chunk for _, some in stored for chunk in some]
            times = TaskTimes(begun_ns - job.queued_ns, took_ns, level, chunks, replaced)
            job.task_ended(times, sum(int(nbytes.sum()) for nbytes, _ in stored), None)


def _text_of(error: Exception) -> ErrorText:
    return ErrorText.of(error, WorkerError(f"storing a slab failed: {error!r}"))


@dataclass(frozen=True)
class StageTask:
    """Writes frames into the staging area, or into their chunks: pixels, then records."""

    command: Stage
    area: StagingArea
    encoder: SlabEncoder
    samples: ContrastSamples
    report: Callable[[FramesStaged], None]

    def run(self, state: WorkerState) -> None:
        error: ErrorText | None = None
        joined: Joined | None = None
        try:
            joined = self._put_in_place(state)
            self._write()
        except Exception as failure:  # noqa: BLE001  (travels in the report)
            error = _text_of(failure)
        except BaseException as failure:
            self._send(ErrorText(WorkerError, f"a worker thread died: {failure!r}"), None)
            raise
        self._send(error, joined)

    def _send(self, error: ErrorText | None, joined: Joined | None) -> None:
        command = self.command
        self.report(FramesStaged(command.row, command.in_slab, command.slots, error, joined))

    def _put_in_place(self, state: WorkerState) -> Joined | None:
        command = self.command
        if command.files is None:
            return None
        joined = self.encoder.put_in_place(
            command.frames, command.in_slab, command.slab, command.files, state
        )
        frames = np.zeros(self.encoder.layout.grid.frames_per_slab, np.int64)
        frames[command.in_slab] = command.frames
        self.samples.add(command.slab, frames, first=int(command.in_slab[0]))
        return joined

    def _write(self) -> None:
        area, command = self.area, self.command
        if command.slots[0] < 0:
            return  # stored with its slab
        records = command.records.view(np.uint8).reshape(command.frames.size, -1)
        with storage_errors("write", area.path):
            reach("staging.before_write")
            data, entries = area.data_offsets(command.slots), area.entry_offset(command.slots)
            frame_bytes = self.encoder.layout.grid.frame_bytes
            raise_errno(
                stage_frames(area.descriptor, command.frames, frame_bytes, data, entries, records, area.seed)
            )
