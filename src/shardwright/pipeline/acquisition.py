"""One acquisition: the state machine between frames that come in and shards that are sealed.

    submit -> pending batches -> slab table -> worker tasks -> (reports) -> release, watermark -> keeper seals the group -> durable

Single owner: every method is called from one thread (ingest, or the user's own), which never waits for a worker or a disk here. Workers and the
keeper answer through one queue; ``wake`` tells the owner that ``poll`` has something to do. A frame's pixels belong to the pipeline from ``submit``
until its sequence comes out of ``poll``.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Grid
from shardwright.kernels.place import DUPLICATE, LATE, PLACED, slab_and_place
from shardwright.model.errors import ShardwrightError, StorageError, WorkerError
from shardwright.model.receipt import Receipt

from .assembly import SlabTable
from .encoding import SlabDone, SlabEncoder, SlabTask
from .groups import Group, GroupState, HoleMemory, VisibleExtent
from .keeper import GroupPrepared, GroupSealed, KeeperFailed, KeeperReport, ShardKeeper, StoreFinished
from .watermark import Watermark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.storage.slot_file import IoMode

    from .limits import Limits
    from .workers import WorkerPool


class AcquisitionState(enum.Enum):
    OPEN = "open"
    FINISHING = "finishing"
    SEALED = "sealed"
    FAILING = "failing"
    FAILED = "failed"


@dataclass
class _Batch:
    """Frames that were submitted; ``first`` is the next one to place."""

    descriptors: np.ndarray
    positions: np.ndarray
    sequences: np.ndarray
    addresses: np.ndarray
    fates: np.ndarray
    first: int = 0


@dataclass
class _Counters:
    received: int = 0
    stored: int = 0
    durable: int = 0
    duplicate: int = 0
    late: int = 0
    lost: int = 0  # given up by a failure
    stored_bytes: int = 0
    shards: int = 0
    received_extent: int = 0  # newest index along the first frame axis, plus one


class Acquisition:
    """Creates the store and prepares its first shards before it returns. Raises ``OutputExistsError``, ``StorageError``, ``StorageFullError``."""

    def __init__(self, path: Path, spec: ArraySpec, limits: Limits, pool: WorkerPool, wake: Callable[[], None], io: IoMode = "auto") -> None:
        self.path = path
        self.spec = spec
        self.limits = limits
        self.grid = Grid.of(spec)
        self.state = AcquisitionState.OPEN
        self.error: ShardwrightError | None = None
        self._pool = pool
        self._wake = wake
        self._encoder = SlabEncoder(spec, self.grid)
        self._task_ranges = self._encoder.task_ranges(limits.chunks_per_task)
        self._table = SlabTable(self.grid, limits.rows)
        self._pending: deque[_Batch] = deque()
        self._groups: dict[int, Group] = {}
        self._prepared: dict[int, Group] = {}
        self._closed_groups_below = 0
        self._closed_groups: set[int] = set()  # closed ones at or above the line
        self._holes = HoleMemory()
        self._visible = VisibleExtent(self.grid)
        self._tasks_left = np.zeros(limits.rows, np.int64)
        self._rows_in_flight = 0
        self._reports: SimpleQueue[SlabDone | KeeperReport] = SimpleQueue()
        self._released: list[np.ndarray] = []
        self._counters = _Counters(received_extent=0 if self.grid.counts else 1)  # a single image is one place, frame or no frame
        self._stored = Watermark()
        self._durable = Watermark()
        self._frames_per_step = math.prod(self.grid.counts[1:]) if self.grid.counts else 1
        self._finish_asked = False
        self._store_asked = False
        self._given_up = False
        self._sealed_extent = 0
        self._keeper = ShardKeeper(path, spec, self._encoder.layout, io, self._report)
        self._prepare_first_group()

    # ------------------------------------------------------------------ the owner's calls

    @property
    def stored_watermark(self) -> int:
        """Frames settled without a hole from sequence 0: in their slot, or counted as duplicate or late."""
        return self._stored.value

    @property
    def durable_watermark(self) -> int:
        """Likewise, with the shards of these frames sealed and synced."""
        return self._durable.value

    @property
    def in_flight(self) -> int:
        """Slabs handed over to the workers; while it is not 0, submitted pixels may be being read."""
        return self._rows_in_flight

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray) -> None:
        """Take frames: ``wire.DESCRIPTOR``[n] with positions inside the array, and int64[n] addresses of their pixels (C order, little-endian)."""
        positions = descriptors["position"].astype(np.int64)
        sequences = descriptors["sequence"].astype(np.int64)
        if self.state is not AcquisitionState.OPEN or self._finish_asked:
            if self.error is not None and not self._finish_asked:
                self._counters.received += positions.size
                self._counters.lost += positions.size
            self._released.append(sequences)
            return
        counters = self._counters
        counters.received += positions.size
        if positions.size:
            counters.received_extent = max(counters.received_extent, int(positions.max()) // self._frames_per_step + 1)
        self._pending.append(_Batch(descriptors.copy(), positions, sequences, addresses.astype(np.int64), np.zeros(positions.size, np.uint8)))
        self._advance()

    def poll(self, timeout_s: float | None = None) -> np.ndarray:
        """Handle what workers and keeper reported; returns int64 sequences whose pixels are no longer needed.

        With a timeout, first waits that long for a report (for an owner that has nothing else to wait for).
        """
        try:
            report = self._reports.get(timeout=timeout_s) if timeout_s is not None else self._reports.get_nowait()
            while True:
                self._handle(report)
                report = self._reports.get_nowait()
        except Empty:
            pass
        if not self._pool.alive():
            self._fail_with_pool()
        self._advance()
        released, self._released = self._released, []
        return np.concatenate(released) if released else np.zeros(0, np.int64)

    def finish(self) -> None:
        """No more frames: incomplete slabs are closed with fill value, every shard is sealed. Keep calling ``poll`` until the state is SEALED."""
        self._finish_asked = True
        self._advance()

    def receipt(self) -> Receipt:
        c = self._counters
        held = c.durable if self.state is AcquisitionState.FAILED else c.stored + self._waiting_frames()
        return Receipt(
            path=str(self.path),
            frames_received=c.received,
            frames_stored=c.stored,
            frames_durable=c.durable,
            frames_missing=max(0, c.received_extent * self._frames_per_step - held),
            frames_duplicate=c.duplicate,
            frames_late=c.late,
            bytes_raw=c.stored * self.limits.frame_bytes,
            bytes_stored=c.stored_bytes,
            shards=c.shards,
        )

    def close(self) -> None:
        """Wait for the keeper's thread, which after SEALED or FAILED has nothing left to do."""
        if self.state not in (AcquisitionState.SEALED, AcquisitionState.FAILED):
            self._keeper.stop()
        self._keeper.join()

    # ------------------------------------------------------------------ frames to slabs

    def _waiting_frames(self) -> int:
        """Frames received whose fate is still open."""
        c = self._counters
        return c.received - c.stored - c.duplicate - c.late - c.lost

    def _advance(self) -> None:
        """Go as far as rows and groups allow; called after every change."""
        if self.state in (AcquisitionState.FAILING, AcquisitionState.FAILED):
            self._failing_step()
            return
        while self._pending and self._place(self._pending[0]):
            batch = self._pending.popleft()
            self._keeper.record(batch.descriptors[batch.fates == PLACED])
        self._relieve_ring()
        if self.error is not None:
            self._failing_step()
        elif self._finish_asked and not self._pending:
            self._finish_step()

    def _place(self, batch: _Batch) -> bool:
        """Place a batch from where it stands; False when it has to wait for a row or a group."""
        while True:
            done, rows, missing = self._table.place(batch.first, batch.positions, batch.sequences, batch.addresses, batch.fates)
            self._settle_rejected(batch, batch.first, done)
            batch.first = done
            for row in rows:
                self._dispatch(row)
            if self.error is not None:
                return False  # the rest of the batch was given up with everything that waited
            if missing < 0:
                return True
            if self._is_closed(missing):
                self._reject_one(batch, missing)
            elif not self._open_slab(missing):
                return False

    def _settle_rejected(self, batch: _Batch, first: int, stop: int) -> None:
        duplicates = batch.sequences[first:stop][batch.fates[first:stop] == DUPLICATE]
        self._counters.duplicate += duplicates.size
        self._settle(duplicates)

    def _reject_one(self, batch: _Batch, slab: int) -> None:
        i = batch.first
        _, place = slab_and_place(int(batch.positions[i]), *self._table.grid_tables)
        if self._holes.fate(slab, place) == LATE:
            self._counters.late += 1
            batch.fates[i] = LATE
        else:
            batch.fates[i] = DUPLICATE
            self._counters.duplicate += 1
        self._settle(batch.sequences[i : i + 1])
        batch.first = i + 1

    def _settle(self, sequences: np.ndarray) -> None:
        """Frames that need no storing: their pixels are free, and nothing waits for them."""
        if sequences.size:
            self._released.append(sequences)
            self._stored.settle(sequences)
            self._durable.settle(sequences)

    def _is_closed(self, slab: int) -> bool:
        number = self.grid.group_of_slab(slab)
        if self._group_closed(number):
            return True
        group = self._groups.get(number)
        return group is not None and (group.state is not GroupState.OPEN or slab in group.done_slabs)

    def _open_slab(self, slab: int) -> bool:
        """A row for a new slab, and its group; False when it has to wait. Makes room by closing what is oldest."""
        number = self.grid.group_of_slab(slab)
        if number not in self._groups and not self._open_group(number):
            return False
        if self._table.open(slab):
            return True
        if self._rows_in_flight == 0 and (oldest := self._table.oldest()) is not None:
            self._close_slab(oldest)
        return False

    def _relieve_ring(self) -> None:
        """Close the oldest incomplete slabs while so many frames wait for others that the ring could not take a slab's worth of new ones."""
        spare = self.limits.ring_frames - self.limits.held_frames
        most = self.limits.ring_frames - max(1, min(spare // 2, self.limits.frames_per_slab))
        while self._table.held_frames > most and (oldest := self._table.oldest()) is not None:
            self._close_slab(oldest)

    def _close_slab(self, slab: int) -> None:
        row = self._table.close(slab)
        self._holes.remember(slab, self._table.filled(row))
        self._dispatch(row)

    def _dispatch(self, row: int) -> None:
        """Hand a slab to the workers, as soon as its group's files are prepared: no worker ever waits for a disk that is another's."""
        if self.state is AcquisitionState.FAILING:
            self._lose_row(row)
            return
        slab = int(self._table.slab[row])
        group = self._groups[self.grid.group_of_slab(slab)]
        group.done_slabs.add(slab)
        group.slabs_left -= 1
        group.in_flight += 1
        self._rows_in_flight += 1
        group.waiting.append(row)
        self._start_waiting(group)

    def _start_waiting(self, group: Group) -> None:
        if not group.waiting or not group.shards.done():
            return
        error = group.shards.exception()
        if error is not None:
            group.sound = False
            self._fail(error)
            return
        shards, rows, group.waiting = group.shards.result(), group.waiting, []
        for row in rows:
            self._tasks_left[row] = len(self._task_ranges)
            frames, slab = self._table.addresses[row], int(self._table.slab[row])
            for first, stop in self._task_ranges:
                self._pool.put(SlabTask(self._encoder, frames, row, slab, first, stop, shards, self._report))

    # ------------------------------------------------------------------ groups of shards

    def _prepare_first_group(self) -> None:
        group = self._new_group(0)
        error = group.shards.exception()  # waits: a full disk is a clean refusal here
        if error is not None:
            self._keeper.stop()
            self._keeper.join()
            self._keeper.remove_store()
            raise error
        self._prepared[0] = group

    def _new_group(self, number: int) -> Group:
        return Group(number, self._keeper.prepare(number), slabs_left=math.prod(self.grid.group_extent_chunks(number)))

    def _open_group(self, number: int) -> bool:
        """Take frames into a group, the next one being prepared meanwhile; False when the oldest has to be sealed first."""
        if len(self._groups) >= self.limits.open_groups:
            if all(g.state is GroupState.OPEN for g in self._groups.values()):
                self._close_group(self._groups[min(self._groups)])
            return False
        prepared = self._prepared.pop(number, None)
        self._groups[number] = self._new_group(number) if prepared is None else prepared
        following = self.grid.next_group(number)
        if following is not None and following not in self._groups and following not in self._prepared and not self._group_closed(following):
            for other in self._prepared.values():
                self._keeper.discard(other.shards)
            self._prepared = {following: self._new_group(following)}
        return True

    def _group_closed(self, number: int) -> bool:
        return number < self._closed_groups_below or number in self._closed_groups

    def _close_group(self, group: Group) -> None:
        """No more frames for this group: what is incomplete is closed, what never came is remembered as a hole."""
        group.state = GroupState.CLOSING
        for slab in self._table.incomplete_of_group(group.number):
            self._close_slab(slab)
        for slab in self._slabs_of_group(group.number):
            if slab not in group.done_slabs:
                self._holes.remember(slab, None)
        group.slabs_left = 0
        self._seal_if_done(group)

    def _slabs_of_group(self, number: int) -> list[int]:
        grid = self.grid
        corner = [h * s for h, s in zip(grid.group_coordinates(number), grid.shard_chunks, strict=True)]
        slabs = [0]
        for first, extent, count in zip(corner, grid.group_extent_chunks(number), grid.slab_counts, strict=True):
            slabs = [slab * count + first + i for slab in slabs for i in range(extent)]
        return slabs

    def _seal_if_done(self, group: Group) -> None:
        if group.slabs_left == 0 and group.in_flight == 0 and group.state is not GroupState.SEALING:
            group.state = GroupState.SEALING
            self._keeper.seal(group.number, group.shards)

    # ------------------------------------------------------------------ reports

    def _report(self, report: SlabDone | KeeperReport) -> None:
        """Called from workers and keeper."""
        self._reports.put(report)
        self._wake()

    def _handle(self, report: SlabDone | KeeperReport) -> None:
        match report:
            case SlabDone():
                self._slab_done(report)
            case GroupPrepared():
                if report.group in self._groups:
                    self._start_waiting(self._groups[report.group])
            case GroupSealed():
                self._group_sealed(report)
            case KeeperFailed():
                self._fail(report.error)
            case StoreFinished():
                self._store_finished(report)

    def _slab_done(self, report: SlabDone) -> None:
        row = report.row
        if self._tasks_left[row] <= 0:
            return  # given up with a dead pool
        group = self._groups[self.grid.group_of_slab(int(self._table.slab[row]))]
        self._counters.stored_bytes += report.stored_bytes
        self._tasks_left[row] -= 1
        if report.error is not None:
            group.sound = group.sound and not isinstance(report.error, StorageError)
            group.failed_rows.add(row)
            self._fail(report.error)
        if self._tasks_left[row]:
            return
        self._rows_in_flight -= 1
        group.in_flight -= 1
        if row in group.failed_rows:
            self._lose_row(row)
            return
        sequences = self._table.sequences[row][self._table.filled(row)]
        self._table.free(row)
        self._released.append(sequences)
        self._counters.stored += sequences.size
        self._stored.settle(sequences)
        group.sequences.append(sequences)
        group.frames += sequences.size
        self._seal_if_done(group)

    def _group_sealed(self, report: GroupSealed) -> None:
        group = self._groups.pop(report.group)
        if report.error is not None:
            self._fail(report.error)
            return
        self._closed_groups.add(group.number)
        while self._closed_groups_below in self._closed_groups:
            self._closed_groups.remove(self._closed_groups_below)
            self._closed_groups_below += 1
        c = self._counters
        c.durable += group.frames
        c.shards += report.shards
        c.stored_bytes += report.shards * self.limits.index_bytes
        if group.sequences:
            self._durable.settle(np.concatenate(group.sequences))
        self._visible.seal(group.number)
        self._sealed_extent = max(self._sealed_extent, self._visible.end_of(group.number))
        self._keeper.grow(self._visible.elements(c.received_extent))

    # ------------------------------------------------------------------ the end

    def _finish_step(self) -> None:
        if self.state is AcquisitionState.OPEN:
            self.state = AcquisitionState.FINISHING
            for group in list(self._groups.values()):
                if group.state is GroupState.OPEN:
                    self._close_group(group)
            for group in self._prepared.values():
                self._keeper.discard(group.shards)
            self._prepared = {}
        if self.state is AcquisitionState.FINISHING and not self._groups and not self._store_asked:
            self._store_asked = True
            self._keeper.finish(self._counters.received_extent)

    def _store_finished(self, report: StoreFinished) -> None:
        if report.error is None and self.state is AcquisitionState.FINISHING:
            self.state = AcquisitionState.SEALED
            return
        self._fail(report.error or WorkerError("the store was finished before its time"))
        self.state = AcquisitionState.FAILED

    # ------------------------------------------------------------------ failure

    def _fail(self, error: BaseException) -> None:
        """Take nothing more in: what waits is given up, what is at the workers still counts, and what is stored in sound files will be sealed."""
        if self.state in (AcquisitionState.FAILING, AcquisitionState.FAILED):
            return
        self.state = AcquisitionState.FAILING
        self.error = error if isinstance(error, ShardwrightError) else WorkerError(f"storing a slab failed: {error!r}")
        for batch in self._pending:
            self._lose(batch.sequences[batch.first :])
        self._pending.clear()
        for slab in self._table.incomplete():
            self._lose_row(self._table.close(slab))
        for group in self._groups.values():
            for row in group.waiting:
                self._rows_in_flight -= 1
                group.in_flight -= 1
                self._lose_row(row)
            group.waiting = []

    def _failing_step(self) -> None:
        """Once the workers are done: seal what is sound, leave what is not under its working name, finish the store, and only then be FAILED."""
        if self.state is AcquisitionState.FAILED or self._rows_in_flight:
            return
        if not self._given_up:
            self._given_up = True
            for group in list(self._groups.values()):
                self._give_up(group)
            for group in self._prepared.values():
                self._keeper.discard(group.shards)
            self._prepared = {}
        if not self._groups and not self._store_asked:
            self._store_asked = True
            self._keeper.finish(min(self._sealed_extent, self._counters.received_extent))

    def _give_up(self, group: Group) -> None:
        if group.state is GroupState.SEALING:
            return  # its report comes
        if group.sound and group.frames:
            group.state = GroupState.SEALING
            self._keeper.seal(group.number, group.shards)
            return
        del self._groups[group.number]
        if group.sound:
            self._keeper.discard(group.shards)
        else:
            self._keeper.abandon(group.shards)

    def _lose(self, sequences: np.ndarray) -> None:
        """Frames that will not be stored: counted, their pixels free."""
        self._counters.lost += sequences.size
        self._released.append(sequences)

    def _lose_row(self, row: int) -> None:
        self._lose(self._table.sequences[row][self._table.filled(row)])
        self._table.free(row)

    def _fail_with_pool(self) -> None:
        """A worker died. The others still read pixels and report; what is left when the last has gone will never be reported."""
        if self.state in (AcquisitionState.OPEN, AcquisitionState.FINISHING):
            self._fail(WorkerError(f"a worker thread died: {self._pool.failure!r}"))
        if self._rows_in_flight and self._pool.ended():
            for row in np.flatnonzero(self._tasks_left > 0).tolist():
                self._lose_row(row)
            self._tasks_left[:] = 0
            self._rows_in_flight = 0
