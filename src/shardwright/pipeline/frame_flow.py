"""Frames to slabs: the owner's side of an acquisition up to the workers, and the state that all of it shares.

    pending batches -> slab table -> (a slab is full, or closed with holes) -> its group's files are there -> worker tasks

``Acquisition`` is one class in four modules: this one, ``failure`` (ending in good order), ``outcomes`` (what workers and keeper report, staging,
commits) and ``acquisition`` (the owner's calls). All of it runs in the owner's thread, which never waits for a worker or a disk.
"""

from __future__ import annotations

import enum
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import Grid
from shardwright.kernels.place import DUPLICATE, LATE, PLACED, slabs_and_places
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import WorkerError
from shardwright.model.fates import Fate, Reason
from shardwright.shard.frame_record import PASSED_OVER, record_dtype
from shardwright.shard.slab_map import slabs_of_group

from .accounts import Accounts
from .assembly import SlabTable
from .commands import Record
from .commit_ledger import CommitLedger
from .encoding import SlabDone, SlabEncoder, SlabJob, SlabTask, StageDone
from .groups import Group, Groups, GroupState
from .keeper import ShardKeeper
from .level_counts import LevelCounts
from .measures import Measures
from .overload_level import OverloadLevel, backlog_part
from .reopen import TakingBack
from .staging_desk import StagingDesk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.model.degrade_level import DegradeLevel
    from shardwright.model.errors import ShardwrightError

    from .earlier_row import EarlierRow
    from .keeper_reports import KeeperReport, NotRecorded
    from .limits import Limits
    from .settings import WriteSettings
    from .store_folder import StoreFolder
    from .workers import WorkerPool

    Report = SlabDone | StageDone | KeeperReport
    Event = tuple[str, dict[str, Any]]  # name and facts

_FATES = {DUPLICATE: (Fate.DUPLICATE, Reason.PLACE_TAKEN), LATE: (Fate.LATE, Reason.PLACE_CLOSED)}


class AcquisitionState(enum.Enum):
    OPEN = "open"
    FINISHING = "finishing"
    SEALED = "sealed"
    FAILING = "failing"
    FAILED = "failed"


@dataclass
class _Batch:
    """Frames that were submitted; ``first`` is the next one to place."""

    records: np.ndarray
    positions: np.ndarray
    sequences: np.ndarray
    addresses: np.ndarray
    fates: np.ndarray
    first: int = 0

    def keep(self, chosen: np.ndarray) -> None:
        """Of what is left to be placed: only those, bool[n]."""
        for name in ("records", "positions", "sequences", "addresses", "fates"):
            setattr(self, name, getattr(self, name)[self.first :][chosen])
        self.first = 0


class FrameFlow(ABC):
    """Takes ``folder`` over; ``Acquisition.close`` closes it."""

    def __init__(
        self,
        folder: StoreFolder,
        limits: Limits,
        pool: WorkerPool,
        wake: Callable[[], None],
        settings: WriteSettings,
        staged_slots: Iterable[int],
    ) -> None:
        self.path: Path = folder.path
        self.spec: ArraySpec = folder.spec
        self.limits = limits
        self.settings = settings
        self.folder = folder
        self.grid = Grid.of(self.spec)
        self.state = AcquisitionState.OPEN
        self._why: ErrorText | None = None
        self.measures = Measures()
        self._pool = pool
        self._line = pool.line()
        self._wake = wake
        self._encoder = SlabEncoder(self.spec, self.grid)
        self._task_ranges = self._encoder.task_ranges(limits.chunks_per_task)
        levels = self._encoder.levels if settings.overload == "degrade" else self._encoder.levels[:1]
        self._overload = OverloadLevel(levels, tasks_to_try=pool.threads)
        self._level_counts = LevelCounts(limits.rows)
        self._restored_frames = np.zeros(0, np.int64)  # sequences whose pixels are the staging area's, not a camera's
        self._ring_used, self._ring_frames = 0, limits.ring_frames
        self._record_dtype = record_dtype(len(self.spec.frame_fields))
        self._table = SlabTable(self.grid, limits.rows, self._record_dtype)
        self._pending: deque[_Batch] = deque()
        self._tasks_left = np.zeros(limits.rows, np.int64)
        self._waits_for_stage: set[int] = set()  # rows that are stored while a frame of theirs is still being staged
        self._doomed: set[int] = set()  # rows to give up once nobody reads their pixels
        self._rows_in_flight = 0
        self.unrecorded_frames = 0  # that the frame log does not have yet
        self._rows_starved = False  # a slab waits for a row
        self._row_waits_for_room = False  # a sealed row waits for slots or rows, which a commit may give back
        self._keeps_frames = settings.durability == "durable"  # until they are durable
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._released: list[np.ndarray] = []
        self._losses: list[tuple[int, int, ErrorText]] = []
        self._events: list[Event] = []  # this very list for good: the groups note theirs in it
        self._duplicates_told = 0
        self._told_fates: set[Fate] = set()  # whose first frame was an event of this process
        self._ledger = CommitLedger()
        frames_per_step = math.prod(self.grid.counts[1:]) if self.grid.counts else 1
        self.accounts = Accounts(limits.frame_bytes, frames_per_step, received_extent=0 if self.grid.counts else 1)
        self.thread_died = False  # a worker or the keeper: whoever runs this process must end it
        self._store_asked = False
        self._given_up = False
        self._leaves_something = False  # files that only recovery can finish
        self._keeper_dead = False
        self._sealed_extent = 0
        self._finish_asked, self._keep_empty = False, True
        self._low_water = False
        self._flush_goal = 0
        self._next_stage_s = 0.0
        self._unrecorded: deque[tuple[float, NotRecorded]] = deque()
        self._store_retry_s: float | None = None
        # What is made here knows queues and lists, never this object: one that has ended is gone at once with its tables, and waits for no collector.
        report = partial(_report, self._reports, wake)
        self._desk = StagingDesk(folder.staging, staged_slots, self._table, limits.frame_bytes, pool, report)
        self._keeper = ShardKeeper(folder, self._encoder.layout, report)
        self._groups = Groups(self.grid, limits, self._keeper.put, settings, partial(_note, self._events))

    def warn_below(self, low_water_bytes: int) -> None:
        """Another limit of free disk below which an event warns. From any thread."""
        self.settings = replace(self.settings, low_water_bytes=low_water_bytes)

    @property
    def client_epoch(self) -> int:
        """Counts the clients that sent to this acquisition, one after the other."""
        return self.folder.manifest.client_epoch

    @property
    def in_flight(self) -> int:
        """Slabs and frames handed over to the workers; while it is not 0, submitted pixels may be being read."""
        return self._rows_in_flight + int(self._desk.tasks.sum())

    @property
    def slabs_used(self) -> int:
        """Rows of the slab table that hold a slab, of ``limits.rows``. From any thread."""
        return self._table.rows_used

    @property
    def degrade_level(self) -> DegradeLevel:
        """At which chunks are encoded now. From any thread."""
        return self._overload.level

    @property
    def keeper_busy_s(self) -> float:
        """How long the keeper has been at the call that it makes now. From any thread."""
        return self._keeper.busy.busy_s()

    def _group_of_row(self, row: int) -> Group:
        """A row that is in use belongs to a group that is not sealed yet."""
        return self._groups.by_number[self.grid.group_of_slab(int(self._table.slab[row]))]

    def _note(self, event: str, facts: dict[str, Any]) -> None:
        _note(self._events, event, facts)

    @abstractmethod
    def _fail(self, error: ErrorText) -> None:
        """Take nothing more in, save what is sound (``failure``)."""

    @property
    def why(self) -> ErrorText | None:
        """Why it failed, or is about to, and where a defect was raised."""
        return self._why

    @property
    def error(self) -> ShardwrightError | None:
        """Why it failed, or is about to: a fresh one each time."""
        return None if self._why is None else self._why.to_error()

    # ------------------------------------------------------------------ the overload policy

    def see_ring(self, used_frames: int, ring_frames: int) -> None:
        """How many frames of the camera's ring are in use, as whoever owns it knows: told before each ``poll``."""
        self._ring_used, self._ring_frames = used_frames, ring_frames

    def _look_at_ring(self, now_s: float) -> None:
        if not self._overload.can_change:
            return
        part = backlog_part(
            ring_frames=self._ring_frames,
            used_frames=self._ring_used,
            collecting_frames=self._table.held_frames,
            held_frames=self.limits.held_frames,
            unsynced_frames=self._ledger.unsynced_frames if self._keeps_frames else 0,
        )
        before = self._overload.look(part, now_s)
        if before is not None:
            self._note("overload_level", {"level": self._overload.level.label, "before": before.label, "backlog": round(part, 2)})

    # ------------------------------------------------------------------ frames to slabs

    def _records_of(self, descriptors: np.ndarray) -> np.ndarray:
        records = np.zeros(descriptors.size, self._record_dtype)
        assert descriptors.dtype.names is not None
        for name in descriptors.dtype.names:
            records[name] = descriptors[name]
        records["slot"] = records["flags"] = 0
        records["arrival_ns"], records["arrival_monotonic_ns"] = time.time_ns(), time.monotonic_ns()
        records["client_epoch"] = self.client_epoch
        records["fate"] = Fate.STORED
        return records

    def _place(self, batch: _Batch) -> bool:
        """Place a batch from where it stands; False when it has to wait for a row or a group."""
        while True:
            first = batch.first
            done, rows, missing = self._table.place(first, batch.positions, batch.sequences, batch.addresses, batch.records, batch.fates)
            taken = np.flatnonzero(batch.fates[first:done] == DUPLICATE) + first
            if taken.size:
                self._settle(batch.records[taken], *_FATES[DUPLICATE])
            batch.first = done
            for row in rows:
                self._dispatch(row)
            if self._why is not None:
                return False  # the rest of the batch was given up with everything that waited
            if missing < 0:
                return True
            if self._groups.is_closed_slab(missing) and self._reject_late(batch):
                if not batch.positions.size:
                    return True
            elif not self._open_slab(missing):
                return False

    def _reject_late(self, batch: _Batch) -> bool:
        """Settle all that is left of a batch and belongs to places which are shut, in one step, however they are mixed with others.
        Returns whether there were any."""
        slabs, places = slabs_and_places(batch.positions[batch.first :], *self._table.grid_tables)
        fates = np.full(slabs.size, PLACED)
        for slab in np.unique(slabs).tolist():
            if self._groups.is_closed_slab(slab):
                here = slabs == slab
                fates[here] = self._groups.fates(slab, places[here])
        for fate, why in _FATES.items():
            if (rejected := fates == fate).any():
                self._settle(batch.records[batch.first :][rejected], *why)
        batch.keep(fates == PLACED)
        return bool((fates != PLACED).any())

    def _settle(
        self, records: np.ndarray, fate: Fate | np.ndarray, reason: Reason | np.ndarray, *, release: bool = True, settled: bool = True
    ) -> None:
        """Frames that are not stored: they go to the frame log, and only then are acknowledged and (``release``) their pixels free."""
        records = records.copy()
        records["fate"], records["reason"] = fate, reason
        self.accounts.settle(records)
        self.unrecorded_frames += records.size
        self._keeper.put(Record(records, release, settled))

    def _open_slab(self, slab: int) -> bool:
        """A row for a new slab, and its group; False when it has to wait. Makes room by closing what is oldest."""
        number = self.grid.group_of_slab(slab)
        if not self._groups.open(number):
            if (row := self._groups.earlier_to_open(number)) is not None:
                self._open_again(number, row, slab)
            elif number not in self._groups.by_number and (oldest_group := self._groups.oldest_when_all_open()) is not None:
                self._close_group(oldest_group, passed_over=True)
            return False
        group = self._groups.by_number[number]
        if slab in group.done_slabs:  # closed by an end that came early: the way to its empty places is that of a sealed group
            group.opens_again = True
            self._close_group(group)
            return False
        if self._table.open(slab):
            self._rows_starved = False
            return True
        self._rows_starved = True
        if not self._rows_under_way and (oldest := self._table.oldest()) is not None:
            self._close_slab(oldest, passed_over=True)
        return False

    @property
    def _rows_under_way(self) -> bool:
        """Whether rows come back without another slab being closed."""
        waiting = any(group.waiting for group in self._groups.by_number.values())
        return waiting or self._rows_in_flight > 0 or bool(self._waits_for_stage) or self._ledger.rows_to_come

    def _open_again(self, number: int, row: EarlierRow, wanted: int) -> None:
        """A group that was closed before it was full takes frames again, once there is room for the slab that is wanted. Of its other incomplete
        slabs as many collect again as there is room for then, the newest first."""
        takes_back = {slab: int(filled.sum()) for slab, filled in row.takes_back().items()}
        if wanted in takes_back and self._waits_to_take_back(number, takes_back[wanted]):
            return
        slabs, frames, most = [], 0, self._room_to_take_back
        for slab in sorted(takes_back, key=lambda slab: (slab != wanted, -slab))[: self._table.free_rows]:
            if frames + takes_back[slab] <= most:
                slabs.append(slab)
                frames += takes_back[slab]
        self._groups.reopen(number, TakingBack(tuple(slabs), self._desk.take_slots(frames)))

    @property
    def _room_to_take_back(self) -> int:
        """How many frames of a sealed row can collect again now."""
        return min(self._desk.free_slots, self._most_held - self._table.held_frames)

    def _waits_to_take_back(self, number: int, frames: int) -> bool:
        """Whether a slab with so many frames has to wait for room, which the oldest slabs make; its row is opened once, so that without it the slab
        would be closed for good. False also when there will never be room."""
        self._row_waits_for_room = False
        if self._table.free_rows and frames <= self._room_to_take_back:
            return False
        if frames <= min(self._desk.slots, self._most_held):
            if self._rows_under_way or self._desk.tasks.any() or self._ledger.slots_to_come or self._ledger.committing:
                self._row_waits_for_room = True
                return True
            if (oldest := self._table.oldest()) is not None:
                self._close_slab(oldest, passed_over=True)
                return True
        reason = "the staging area has no room for what is there of a slab" if self._desk.slots else "there is no staging area (any more)"
        self._note("row_reopening_failed", {"group": number, "reason": reason, "then": "frames that come for that slab are late"})
        return False

    def _collect_staged(self, records: np.ndarray, slots: np.ndarray) -> bool:
        """Frames whose pixels are in the staging area, and nowhere else: they collect. False when there is no room for them."""
        staging = self.folder.staging
        assert staging is not None, "frames are in it"
        sequences, positions = records["sequence"].astype(np.int64), records["position"].astype(np.int64)
        self._restored_frames = np.union1d(self._restored_frames, sequences)
        addresses = staging.address_of(slots)
        placed = self._place(_Batch(records, positions, sequences, addresses, np.zeros(records.size, np.uint8)))
        slabs, places = slabs_and_places(positions, *self._table.grid_tables)
        for row in np.flatnonzero(np.isin(self._table.slab, slabs)).tolist():
            here = (slabs == self._table.slab[row]) & (self._table.addresses[row, places] == addresses)
            self._table.staging_slot[row, places[here]] = slots[here]
        return placed

    @property
    def _most_held(self) -> int:
        """How many frames may wait for others before the ring could not take a slab's worth of new ones."""
        spare = self.limits.ring_frames - self.limits.held_frames
        return self.limits.ring_frames - max(1, min(spare // 2, self.limits.frames_per_slab))

    def _relieve_ring(self) -> None:
        """Close the oldest incomplete slabs while too many frames wait for others."""
        while self._table.held_frames > self._most_held and (oldest := self._table.oldest()) is not None:
            self._close_slab(oldest, passed_over=True)

    def _close_slab(self, slab: int, *, passed_over: bool = False) -> None:
        """``passed_over``: by newer frames, so that it stays closed whoever goes on with this acquisition."""
        row = self._table.close(slab)
        self._table.records["flags"][row] = PASSED_OVER if passed_over else 0
        self._groups.holes.remember(slab, self._table.filled(row))
        self._dispatch(row)

    def _close_group(self, group: Group, *, passed_over: bool = False) -> None:
        """No more frames for this group: what is incomplete is closed, what never came is remembered as a hole."""
        group.state = GroupState.CLOSING
        group.opens_again = group.opens_again and not passed_over
        for slab in self._table.incomplete_of_group(group.number):
            self._close_slab(slab, passed_over=passed_over)
            if self._why is not None:
                return  # closing it showed that its files are no good
        for slab in slabs_of_group(self._encoder.layout, group.number):
            if slab not in group.done_slabs:
                self._groups.holes.remember(slab, None)
        group.slabs_left = 0
        self._groups.seal_if_done(group)

    def _dispatch(self, row: int) -> None:
        """Hand a slab to the workers, as soon as its group's files are prepared: no worker ever waits for a disk that is another's."""
        if self.state is AcquisitionState.FAILING:
            self._doomed.add(row)
            return
        slab = int(self._table.slab[row])
        group = self._group_of_row(row)
        self._level_counts.begin_slab(row)
        self._table.records["slab_frames"][row] = int(self._table.frames[row]) % (1 << 16)
        group.done_slabs.add(slab)
        group.slabs_left -= 1
        group.waiting.append(row)
        self._start_waiting(group)

    def _start_waiting(self, group: Group) -> None:
        try:
            files = self._groups.files_for_waiting(group, time.monotonic())
        except Exception as error:  # noqa: BLE001  (whatever made the files impossible)
            self._fail(ErrorText.of(error, WorkerError(f"storing a slab failed: {error!r}")))
            return
        if files is None:
            return
        rows, group.waiting = group.waiting, []
        now_ns = time.monotonic_ns()
        for row in rows:
            group.in_flight += 1
            self._rows_in_flight += 1
            self._tasks_left[row] = len(self._task_ranges)
            self._level_counts.begin_writing(row)
            frames, slab = self._table.addresses[row], int(self._table.slab[row])
            records = self._table.records[row].view(np.uint8).reshape(frames.size, -1)
            job = SlabJob(
                self._encoder, frames, records, row=row, slab=slab, files=files, report=self._reports.put, wake=self._wake,
                tasks=len(self._task_ranges), queued_ns=now_ns, overload=self._overload,
            )  # fmt: skip
            self._pool.put(self._line, [SlabTask(job, first, stop) for first, stop in self._task_ranges])


def _report(reports: SimpleQueue[Report], wake: Callable[[], None], report: StageDone | KeeperReport) -> None:
    """Called from workers and keeper."""
    reports.put(report)
    wake()


def _note(events: list[Event], event: str, facts: dict[str, Any]) -> None:
    events.append((event, facts))
