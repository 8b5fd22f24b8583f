"""How one array's slabs become chunks: the tables that every task of an acquisition shares, and the task itself."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardwright.codecs.degrade import degrade_ladder
from shardwright.codecs.parameters import CodecParameters
from shardwright.kernels.encode import NOT_PACKED, encode_chunks
from shardwright.kernels.journal import journal_chunks, journal_frames, stage_frames
from shardwright.kernels.write import start_writeback, write_runs, write_slots
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import WorkerError
from shardwright.shard.journal import CHUNK_ENTRY, GroupJournal
from shardwright.shard.layout import PAGE_BYTES, ArrayLayout
from shardwright.storage.failpoints import reach
from shardwright.storage.files import raise_errno, storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardwright.array.grid import Grid
    from shardwright.array.spec import ArraySpec
    from shardwright.model.degrade_level import DegradeLevel
    from shardwright.shard.group_files import GroupFiles
    from shardwright.shard.staging import StagingArea

    from .overload_level import OverloadLevel
    from .workers import WorkerState


class SlabDone(NamedTuple):
    """A worker's report on chunks of one slab: ``error`` is set when they were not stored; else how long they waited for a worker and took it.
    ``chunks`` were written, at ``level``; those that are all fill were not."""

    row: int
    stored_bytes: int
    error: ErrorText | None
    queue_ns: int = 0
    encode_ns: int = 0
    chunks: int = 0
    level: DegradeLevel | None = None


class SlabEncoder:
    """Frozen after construction; shared by all workers without a lock."""

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        codec = CodecParameters.of(spec, grid.chunk_bytes)
        self.layout = ArrayLayout.of(grid, codec.max_encoded_bytes, spec.index_location == "start")
        self.grid = grid
        self._codecs = {level: faster.as_array() for level, faster in degrade_ladder(codec).items()}
        self._block_bytes = codec.block_bytes
        self._scratch_bytes = codec.scratch_bytes
        self._keep_empty = spec.write_empty_chunks
        plane = self.layout.plane
        self._fill_row = np.frombuffer(spec.fill_bytes() * (plane.row_bytes // spec.itemsize), np.uint8).copy()

    @property
    def chunks_per_slab(self) -> int:
        return len(self.layout.plane.file)

    @property
    def levels(self) -> tuple[DegradeLevel, ...]:
        """At which this array's chunks can be encoded, from the configured one to the fastest."""
        return tuple(self._codecs)

    def encode(
        self,
        frames: np.ndarray,
        records: np.ndarray,
        slab: int,
        files: GroupFiles,
        first: int,
        stop: int,
        state: WorkerState,
        level: DegradeLevel,
    ) -> np.ndarray:
        """Encode chunks [first, stop) of a slab into their slots, then note them in the journal; returns the encoded bytes of each, 0 for one that
        is all fill and absent.

        ``frames`` int64[P]: address of each frame's pixels in storage order, 0 where none came; ``records`` uint8[P, record_bytes] alike. The task
        that has the slab's first chunk journals the frames, before its chunks: a slab all of whose chunks are journaled has its frames there too.
        """
        plane, slot_bytes = self.layout.plane, self.layout.slot_bytes
        index_layer, slot_layer = self.layout.layer_of_slab(slab)
        part = slice(first, stop)
        file = plane.file[part]
        slot = slot_layer * plane.layer_slots[file] + plane.slot[part]
        entry = index_layer * plane.layer_entries + plane.entry[part]
        offset = files.slots[0].layout.data_start + slot * slot_bytes  # unless packed
        mapped = [shard.slots_address for shard in files.slots]
        targets = self._mapped_slots(mapped, file, slot) if None not in mapped else state.slots(stop - first, slot_bytes)
        packed = files.journal.packed
        descriptors = np.array([shard.descriptor for shard in files.slots], np.int64)
        nbytes, forms, crcs = np.zeros(stop - first, np.int64), np.zeros(stop - first, np.uint8), np.zeros(stop - first, np.uint32)
        reach("slots.before_store")
        encode_chunks(
            frames,
            plane.frame_row_bytes,
            plane.geometry[part],
            targets,
            file if packed else NOT_PACKED,
            slot_bytes,
            plane.chunk_rows,
            plane.row_bytes,
            self._codecs[level],
            self._block_bytes,
            self._keep_empty,
            self._fill_row,
            state.contexts.addresses,
            state.scratch(self._scratch_bytes),
            nbytes,
            forms,
            crcs,
        )
        if None in mapped:
            self._write(files, descriptors, file, offset, targets, nbytes)
        if files.cached:
            start_writeback(descriptors, file, offset, nbytes)
        reach("slots.after_store")
        if first == 0:
            self._journal_frames(files.journal, slot_layer, records, frames != 0, state)
        self._journal_chunks(files.journal, file, slot, offset, nbytes, crcs, state)
        for number, shard in enumerate(files.slots):
            mine = file == number
            shard.record(entry[mine], offset[mine], nbytes[mine])
        return nbytes

    def _mapped_slots(self, addresses: list[int | None], file: np.ndarray, slot: np.ndarray) -> np.ndarray:
        targets: np.ndarray = np.array(addresses, np.int64)[file] + slot * self.layout.slot_bytes
        return targets

    def _write(
        self, files: GroupFiles, descriptors: np.ndarray, file: np.ndarray, offsets: np.ndarray, addresses: np.ndarray, nbytes: np.ndarray
    ) -> None:
        """From the worker's buffer into the files; packed, ``offsets`` becomes where the chunks went. Raises ``StorageError``."""
        with storage_errors("write chunks of", "a shard"):
            reach("slots.before_write")
            if files.journal.packed:
                raise_errno(write_runs(descriptors, files.cursors, file, addresses, nbytes, PAGE_BYTES, offsets))
            else:
                raise_errno(write_slots(descriptors[file], offsets, addresses, nbytes, PAGE_BYTES))

    def _journal_frames(self, journal: GroupJournal, slot_layer: int, records: np.ndarray, filled: np.ndarray, state: WorkerState) -> None:
        with storage_errors("write", journal.path):
            reach("journal.before_frames")
            place = journal.layout.frames_place(slot_layer)
            raise_errno(journal_frames(journal.descriptor, place, records, filled, journal.seed, state.scratch(records.size)))

    def _journal_chunks(
        self,
        journal: GroupJournal,
        file: np.ndarray,
        slot: np.ndarray,
        offset: np.ndarray,
        nbytes: np.ndarray,
        crcs: np.ndarray,
        state: WorkerState,
    ) -> None:
        with storage_errors("write", journal.path):
            reach("journal.before_chunks")
            places = journal.layout.chunk_places(file, slot)
            scratch = state.scratch(CHUNK_ENTRY.itemsize * slot.size)
            raise_errno(journal_chunks(journal.descriptor, places, offset, nbytes, crcs, journal.writer_epoch, journal.seed, scratch))
            reach("journal.after_chunks")

    def task_ranges(self, chunks_per_task: int) -> list[tuple[int, int]]:
        """The chunk ranges that a slab is cut into, of about equal size."""
        tasks = math.ceil(self.chunks_per_slab / chunks_per_task)
        edges = [self.chunks_per_slab * i // tasks for i in range(tasks + 1)]
        return list(pairwise(edges))


@dataclass(frozen=True)
class SlabJob:
    """What the tasks of one slab share. ``frames`` and ``records`` are the slab table's row: both stay put until every task has reported.

    The owner is woken by an error and by whichever task is the last to report: there is nothing to do before, and a thread that is woken for each
    task takes the processor from those that encode.
    """

    encoder: SlabEncoder
    frames: np.ndarray
    records: np.ndarray
    row: int
    slab: int
    files: GroupFiles
    report: Callable[[SlabDone], None]
    wake: Callable[[], None]
    tasks: int
    queued_ns: int  # since when it waits for workers
    overload: OverloadLevel  # asked when a worker begins: what has waited is encoded as fast as what comes now
    _left: Iterator[int] = field(init=False)  # how many have not reported; drawn under the GIL, by each task once it has

    def __post_init__(self) -> None:
        object.__setattr__(self, "_left", iter(range(self.tasks - 1, -1, -1)))

    def tell(self, done: SlabDone) -> None:
        self.report(done)
        if next(self._left) == 0 or done.error is not None:
            self.wake()


@dataclass(slots=True)  # not frozen: there is one for each task, and that would cost as much as its way through the queue
class SlabTask:
    """Chunks [first, stop) of one slab."""

    job: SlabJob
    first: int
    stop: int

    def run(self, state: WorkerState) -> None:
        job = self.job
        begun_ns, level = time.monotonic_ns(), job.overload.level
        try:
            nbytes = job.encoder.encode(job.frames, job.records, job.slab, job.files, self.first, self.stop, state, level)
        except Exception as error:  # noqa: BLE001  (whatever it was, the acquisition must hear of it)
            job.tell(SlabDone(job.row, 0, _told(error)))
        except BaseException as error:
            job.tell(SlabDone(job.row, 0, ErrorText(WorkerError, f"a worker thread died: {error!r}")))  # nobody else would report this task
            raise
        else:
            waited_ns, took_ns = begun_ns - job.queued_ns, time.monotonic_ns() - begun_ns
            job.tell(SlabDone(job.row, int(nbytes.sum()), None, waited_ns, took_ns, int(np.count_nonzero(nbytes)), level))


def _told(error: Exception) -> ErrorText:
    return ErrorText.of(error, WorkerError(f"storing a slab failed: {error!r}"))


@dataclass(frozen=True)
class StageDone:
    """A worker's report on frames of one row that were to be staged."""

    row: int
    places: np.ndarray
    slots: np.ndarray
    error: ErrorText | None


@dataclass(frozen=True)
class StageTask:
    """Frames at ``places`` of a row into staging slots ``slots``: pixels, then records. ``records`` uint8[n, record_bytes] is the task's own copy."""

    area: StagingArea
    addresses: np.ndarray
    records: np.ndarray
    frame_bytes: int
    row: int
    places: np.ndarray
    slots: np.ndarray
    report: Callable[[StageDone], None]

    def run(self, state: WorkerState) -> None:
        error: ErrorText | None = None
        try:
            with storage_errors("write", self.area.path):
                reach("staging.before_write")
                data, entries = self.area.data_place(self.slots), self.area.entry_place(self.slots)
                raise_errno(stage_frames(self.area.descriptor, self.addresses, self.frame_bytes, data, entries, self.records, self.area.seed))
        except Exception as failure:  # noqa: BLE001  (travels in the report)
            error = _told(failure)
        except BaseException as failure:
            self.report(StageDone(self.row, self.places, self.slots, ErrorText(WorkerError, f"a worker thread died: {failure!r}")))
            raise
        self.report(StageDone(self.row, self.places, self.slots, error))
