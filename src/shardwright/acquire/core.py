"""The core of an acquisition: the state machine from incoming frames to sealed shards. It decides; threads
outside it act.

    frames, with their time  ─┐                  ┌─▶ Encode, Stage ─▶ workers ─▶ SlabEncoded, FramesStaged ─┐
    reports of what was done ─┼─▶ Core.submit    ├─▶ Prepare, Commit, Seal, Reopen, Rewrite, Record, Grow,  │
    tick, with the time      ─┤   .handle, .tick │   FinishStore, ... ─▶ sealer ─▶ a report for each ────────┤
    flush, finish, ...       ─┘                  └─▶ sequences whose pixels are free, watermarks, events    │
                              ▲                                                                             │
                              └─────────────────────────────────────────────────────────────────────────────┘

It has no clock, thread, lock, file or queue. The time comes with each call, pixels are addresses that it
never follows, and the same inputs give the same outputs. Its driver (``Acquisition``, or the simulation)
calls it from one thread, carries out ``take_commands`` in order and passes in the reports that ``commands``
names. A frame's pixels belong to it from ``submit`` until ``take_released`` returns its sequence.

The way of a frame: ``Arrivals`` -> a row of the slab table -> Encode, once its slab is full (or closed with
holes) and its shard row's files are there -> stored -> committed -> durable. A frame that waits long for its
slab is staged meanwhile. With frames in place every frame is staged at once, its pixels in the chunks of its
slab, and Encode completes chunks that have all that came.

``states`` has the tables of its own states and of those of a shard row's files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import image_of
from shardwright.kernels.place import DUPLICATE, slabs_and_indices
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    ClosedError,
    ResumeError,
    ShardFormatError,
    StorageError,
    StorageFullError,
    StoreGoneError,
    StoreMovedError,
    WorkerError,
)
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.shard.frame_record import record_of
from shardwright.wire.descriptor import FRAME_DROPPED, FRAME_NOT_HELD, FRAME_SKIPPED, not_held

from .accounts import Accounts
from .arrivals import Arrivals, ArrivedFrames, Wait
from .assembly import WITH_ITS_SLAB, SlabTable
from .call_time import CallTime
from .closed_shard_rows import split_by_slab
from .commands import (
    Abandon,
    Commit,
    Committed,
    Discard,
    FinishStore,
    FramesStaged,
    Grown,
    ImageAdded,
    MetadataUpdated,
    NotRecorded,
    Recorded,
    RecordImage,
    RemoveStore,
    SealerFailed,
    ShardRowPrepared,
    ShardRowReopened,
    ShardRowRewritten,
    ShardRowSealed,
    Shown,
    SlabEncoded,
    SlabReload,
    StoreFinished,
    UpdateMetadata,
)
from .commit_ledger import LOGGED, STAGED, CommitLedger, Uncommitted, joined
from .encoding_scheduler import EncodingScheduler
from .end import End
from .flushes import Flushes
from .free_pixels import FreePixels
from .full_disk import END, RECORDS, FullDisk
from .live_scheduler import END_INTERVAL_S, SHOW_INTERVAL_S, LiveScheduler
from .losses import Losses
from .measures import Measures
from .notifications import Notifications
from .recorder import Recorder
from .rewrites import Rewrites
from .shard_rows import ShardRow, ShardRows
from .staging_scheduler import StagingScheduler
from .states import AcquisitionState, FilesState, Life, LifeEvent
from .verdicts import REFUSALS, FrameVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec, Image
    from shardwright.array.grid import Grids
    from shardwright.codecs.degrade import DegradeLevel
    from shardwright.model.receipt import Receipt
    from shardwright.model.write_options import Extent, FlushLevel
    from shardwright.model.write_settings import WriteSettings
    from shardwright.shard.layout import StoreLayout
    from shardwright.shard.shard_row_files import ShardRowFiles

    from .call_time import Now
    from .closed_shard_rows import EarlierShardRow
    from .commands import Command, Joined, Report
    from .limits import Limits
    from .recovered_state import RecoveredShardRow, RecoveredState
    from .visible_frames import VisibleFrames

_SETTLE_ROWS = 4096
_CHECK_HINT = (
    "The compressor, or the memory of this machine, makes errors. Test the memory; encode_check: all checks "
    "each further chunk"
)
_STATUSES = {
    FrameVerdict.DUPLICATE: (FrameStatus.DUPLICATE, Reason.PLACE_TAKEN),
    FrameVerdict.LATE: (FrameStatus.LATE, Reason.PLACE_CLOSED),
}
# By the flags of a frame without pixels: its status, and the reason.
_OF_FLAGS = np.zeros((2, FRAME_SKIPPED + 1), np.uint8)
_OF_FLAGS[:, FRAME_DROPPED] = FrameStatus.DROPPED, Reason.OVERLOAD
_OF_FLAGS[:, FRAME_NOT_HELD] = FrameStatus.LOST, Reason.NOT_HELD
_OF_FLAGS[:, FRAME_SKIPPED] = FrameStatus.SKIPPED, Reason.NONE


class Core:
    """The state machine of one acquisition.

    ``levels``: the levels at which chunks can be encoded, from the configured one to the fastest.
    ``staging_slots``: size of the staging area; ``staged_slots`` hold frames already. ``path`` is used only
    in messages and the receipt."""

    def __init__(
        self,
        path: Path,
        spec: AcquisitionSpec,
        limits: Limits,
        settings: WriteSettings,
        layout: StoreLayout,
        levels: Sequence[DegradeLevel],
        *,
        threads: int,
        staging_slots: int,
        staged_slots: Iterable[int] = (),
        accounts: Accounts | None = None,
    ) -> None:
        """``accounts``: of an earlier process."""
        # Others may read what has no underscore, from the acquisition's thread. Only ``settings`` is assigned
        # again. Each part alone writes its state; its callers are those in here that let it, beside the
        # driver.
        # In messages and the receipt alone: the core opens no file, so that a simulation can replay it.
        self.path = path
        self.spec = spec
        # Derived before a frame came. The tables have their sizes from them, so that frames out of order wait
        # in ``arrivals`` for a row, and do not make the tables grow. Images that are added fit them.
        self.limits = limits
        # ``warn_below`` replaces them as a whole, from any thread: whoever reads them meanwhile has the old
        # ones or the new ones, without a lock.
        self.settings = settings
        # Durations of steps. Callers: the core, ``encoders``. Workers and sealer measure them and report
        # them: one thread writes, so that no histogram needs a lock.
        self.measures = Measures()
        record_dtype = record_of(spec)
        # Frames without a place, in the order in which they came. Caller: the core. A newer frame that
        # overtook one could close the slab that it waits for, and the frame would be late.
        self.arrivals = Arrivals(record_dtype)
        # Frames with a place, by slab. Callers: the core, both schedulers, ``losses``. No row is freed while
        # somebody needs its frames: workers read their pixels, and reports find their shard row by it.
        self.table = SlabTable(self.grids, limits.rows, record_dtype)
        # Counts and watermarks. Callers: the core, ``recorder``, ``losses``. Those of an earlier process go
        # on, so that a frame which it took is not taken again.
        self.accounts = Accounts(self.grids) if accounts is None else accounts
        self.accounts.follow_readers(live=settings.live != "none")
        # Events, losses and answers, kept until the driver takes them. Callers: the core and, by ``note``,
        # most parts. Nobody is called instead: a callback could call the core in the middle of a step.
        self.notifications = Notifications(
            path, spec, Flushes(self.accounts), raises_duplicates=settings.on_duplicate == "fail"
        )
        # How far the end is. Caller: the core. Other parts return an error and do not fail the acquisition
        # themselves, since a failure gives up what all of them have, in one order (``_fail``).
        self.end = End()
        # The time of the present call. Caller: the core. The parts get it as an argument: a simulation could
        # not replay a clock of their own.
        self._time = CallTime()
        # Commands in the order in which they are carried out. All parts append here, so that a Seal cannot
        # overtake the Commit before it. Never replaced: the parts refer to this list and not to the core, so
        # that there is no reference cycle, which would keep the tables of an ended acquisition until the
        # garbage collector runs.
        self._commands: list[Command] = []
        ask = self._commands.append
        # Sequences whose pixels nobody needs. Callers: the core, ``losses``. All go through one place, since
        # pixels of some frames are in no ring: their release would free the slot of another frame.
        self._released = FreePixels()
        levels = levels if settings.overload == "degrade" else levels[:1]
        # Rows at the workers. Caller: the core. Before its report no row is freed and the files of its shard
        # row are not replaced.
        self.encoders = EncodingScheduler(levels, threads, self.table, limits, self.measures, ask)
        # Slots of the staging area, and tasks that fill them. Caller: the core. No row with a task is freed
        # either, though its slab may be stored before.
        self.scheduler = StagingScheduler(
            staging_slots, staged_slots, self.table, limits.frame_bytes, settings.store_within_ms, ask
        )
        # All that waits for room. Callers: the core, ``shard_rows``. For the user that is one full disk, with
        # one event when it begins and one when it ends.
        self.full_disk = FullDisk(self.notifications.note)
        # The shard rows in progress, which it alone writes. Callers: the core, ``rewrites``, ``losses``.
        self.shard_rows = ShardRows(layout, limits, ask, settings, self.notifications.note, self.full_disk)
        # Shard rows that move to new files, and rows that keep their frames meanwhile. Caller: the core. What
        # cannot be read back is encoded again.
        self.rewrites = Rewrites(self.shard_rows, ask, self.notifications.note, in_place=self.grids.in_place)
        # What readers of the store do not see yet. Caller: the core. Used when ``live`` is none, too: split
        # shard rows have whole shards before they are sealed.
        self.live = LiveScheduler(self.grids, ask, live=settings.live != "none")
        # Records on their way to the frame log. Callers: the core, ``losses``. A client forgets a frame that
        # is acknowledged, so the record of one that is not stored must be in the log first.
        self.recorder = Recorder(self.accounts, ask)
        # Rows that a failure gives up. Caller: the core. Refers to the parts that have something of a frame.
        self.losses = Losses(
            self.table,
            self.shard_rows,
            self.end,
            self.accounts,
            self.recorder,
            self._released,
            self.notifications,
        )
        # Frames that are stored and not durable. Caller: the core. Each entry is taken out once: given back
        # again, its slots, rows and pixels would be those of new frames.
        self._ledger = CommitLedger(holds_pixels=settings.durability == "durable")

    @property
    def grids(self) -> Grids:
        return self.spec.grids

    @property
    def visible(self) -> VisibleFrames:
        return self.accounts.visible_frames

    # ------------------------------------------------------------------ outputs

    def take_commands(self) -> list[Command]:
        """Returns the commands to carry out, in this order. ``commands`` names the report for each."""
        commands = self._commands.copy()
        self._commands.clear()
        return commands

    def take_released(self) -> np.ndarray:
        """Returns int64[n] sequences whose pixels are no longer needed."""
        return self._released.take()

    @property
    def in_flight(self) -> int:
        """The number of slabs and staging tasks at the workers. While it is not 0, workers may read submitted
        pixels."""
        return len(self.encoders.rows) + int(self.scheduler.tasks.sum())

    @property
    def held_frames(self) -> int:
        """The number of frames that wait in the camera's ring for the rest of their slab; those that an
        earlier process has staged are not in it."""
        return max(0, self.table.held_frames - self._released.in_no_ring)

    @property
    def state(self) -> AcquisitionState:
        return self.end.state

    @property
    def flush_is_stuck(self) -> bool:
        """True if a flush waits for frames that nothing under way can make durable: their slab is not full,
        and they cannot be staged."""
        waits = self._ledger.is_flushing(self.accounts.durable.value)
        return waits and not self._ledger.busy and self._staging_is_stuck

    @property
    def _staging_is_stuck(self) -> bool:
        """True if nothing under way stores a frame, and none can be staged."""
        under_way = (
            self.in_flight
            or self.arrivals
            or self.recorder.frames
            or self.shard_rows.making_files
            or self.rewrites.holds_rows
        )
        return not under_way and not self.scheduler.usable

    @property
    def _may_show_more(self) -> bool:
        """True if something is under way after which readers of the files may see more frames."""
        return bool(
            self.arrivals
            or self.encoders.rows
            or self.recorder.frames
            or self.live.under_way
            or self.shard_rows.are_changing
        )

    @property
    def left_to_recovery(self) -> bool:
        """True if it has failed and recovery has work to do at its path: not if all was sealed, nor if the
        store is gone."""
        failed = self.state is AcquisitionState.FAILED
        return failed and self.losses.leaves_something and not self.end.store_is_gone

    def receipt(self) -> Receipt:
        failed = self.state is AcquisitionState.FAILED
        return self._receipt(over=failed or self.state is AcquisitionState.SEALED, failed=failed)

    def _receipt(self, *, over: bool, failed: bool) -> Receipt:
        return self.encoders.counted(
            self.accounts.receipt(self.path, self.spec.names, over=over, failed=failed)
        )

    # ------------------------------------------------------------------ inputs

    def update_metadata(self, request: int, image: int | None, attributes: dict[str, Any]) -> None:
        """Updates the metadata of the store, or of an image; ``Notifications.take_updates`` has the answer.
        Raises ``ClosedError`` once the end has begun."""
        if self.state is not AcquisitionState.OPEN or self.end.is_asked:
            raise ClosedError("the acquisition is being ended", hint="Update metadata before its end")
        self._commands.append(UpdateMetadata(request, image, attributes))

    def add_image(self, request: int, image: Image, room_bytes: int) -> None:
        """Adds an image, whose frames may come once ``Notifications.take_updates`` has the answer.
        ``room_bytes``: the memory that there is for it. Raises ``ClosedError`` once the end has begun."""
        if self.state is not AcquisitionState.OPEN or self.end.is_asked:
            raise ClosedError("the acquisition is being ended", hint="Add images before its end")
        self._commands.append(RecordImage(request, image, self.limits, room_bytes))

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray, now: Now) -> None:
        """Takes frames: ``descriptor_dtype``[n] with positions inside the array, and int64[n] addresses of
        their pixels (C order, little-endian).

        Frames with flags have no pixels and are only recorded. A sequence that came before is ignored and its
        pixels are released.
        """
        self._time.set(now)
        sequences = descriptors["sequence"].astype(np.int64)
        if not self.end.takes_frames:
            self._refuse(descriptors, sequences)
            return
        again = self.accounts.seen.holds(sequences)
        if again.any():
            self._released.append(sequences[again])
            descriptors, addresses, sequences = descriptors[~again], addresses[~again], sequences[~again]
        self.accounts.receive(sequences, descriptors["position"].astype(np.int64))
        self.accounts.count_json(descriptors)
        records = self.arrivals.records_of(descriptors, self._time)
        without_pixels = descriptors["flags"] != 0
        if without_pixels.any():
            status, reason = _OF_FLAGS[:, descriptors["flags"][without_pixels]]
            self.recorder.settle(records[without_pixels], status, reason, release=False)
            records, addresses = records[~without_pixels], addresses[~without_pixels]
        self.arrivals.add(records, addresses)
        self._advance()

    def _refuse(self, descriptors: np.ndarray, sequences: np.ndarray) -> None:
        """Releases frames that come after the end, or after a failure (then they count as lost)."""
        if self.end.why is not None and not self.end.is_asked:
            self.accounts.receive(sequences, descriptors["position"].astype(np.int64))
            self.accounts.count_json(descriptors)
            self.accounts.count_lost(sequences.size)
        self._released.append(sequences[descriptors["flags"] == 0])

    def warn_below(self, low_water_bytes: int) -> None:
        """Sets the free disk space below which an event warns. From any thread."""
        self.settings = replace(self.settings, low_water_bytes=low_water_bytes)

    def tick(self, now: Now) -> None:
        """Advances the time. To be called several times a second, and after reports. Does nothing within a
        millisecond of the last time, unless there was a report."""
        if self._time.looks_at(now):
            self._time.set(now)
            self._advance()

    def settle_missing(self, now: Now) -> None:
        """Records sequences below the newest that never came, and that no client can send any more, as lost:
        they would hold up the watermarks."""
        self._time.set(now)
        if self.state is not AcquisitionState.OPEN:
            return
        for first, last in self.accounts.seen.missing(self.accounts.whole_stop):
            for start in range(first, last + 1, _SETTLE_ROWS):
                count = min(_SETTLE_ROWS, last + 1 - start)
                records = self.arrivals.records_of(
                    not_held(start, count, self.spec.frame_descriptor), self._time
                )
                sequences = records["sequence"].astype(np.int64)
                self.accounts.receive(sequences, records["position"].astype(np.int64))
                reason = np.where(
                    self.accounts.may_be_acknowledged(sequences), Reason.NOT_HELD, Reason.NOT_ACKNOWLEDGED
                )
                self.recorder.settle(records, FrameStatus.LOST, reason.astype(np.uint8), release=False)
        self._advance()

    def flush(self, now: Now, level: FlushLevel = "durable", request: int | None = None) -> None:
        """Makes every frame that has come so far stored or durable, now: frames of unfinished slabs are
        staged. Or lets readers see them (``visible``): what is stored and can be shown is, now.
        ``Notifications.take_updates`` has the answer to a ``request``: None once it is so; a
        ``VisibilityError`` as soon as only more frames, or the end, can make frames visible, a
        ``StorageError`` if they cannot be staged."""
        self._time.set(now)
        goal = self.accounts.seen.value
        if level == "durable":
            self._ledger.flush(goal)
        self.notifications.flushes.ask(level, goal, request)
        self._advance()

    def finish(self, now: Now, *, keep_empty: bool = True, extent: Extent = "frames") -> None:
        """Ends the acquisition: incomplete slabs are closed with fill value, every shard is sealed.

        Unless ``keep_empty``, a store in which no frame was ever recorded is removed: its name is free
        again. ``extent``: ``declared`` lets arrays to which a frame came keep the length of their first axis
        that was declared; with ``frames`` they end with their newest frame."""
        self._time.set(now)
        if extent == "declared":
            self.accounts.reach_declared()
        self.end.ask(keep_empty=keep_empty)
        self._advance()

    def wait_for_room_no_longer(self, now: Now) -> None:
        """Lets a full disk end the acquisition from now on, whatever ``on_full`` says: stored frames stay
        there for recovery. For a caller that must end."""
        if not self.shard_rows.waits_for_room or not self.end.may_fail:
            return
        if self.shard_rows.waiting_for_room:
            self.flush(now)  # frames that are only in memory are staged, as far as there are slots
        self.shard_rows.wait_no_longer()
        self.recorder.try_again()
        self.end.wait_no_longer()
        self._time.set(now)
        self._advance()

    def workers_failed(self, why: str, now: Now, *, ended: bool) -> None:
        """Fails the acquisition since a worker died. The others still read pixels and report. Once the last
        has ended (``ended``), what is still under way will never be reported and is given up."""
        self._time.set(now)
        self._time.look_at_next_tick()
        self.end.note_dead_worker()
        self._fail(ErrorText(WorkerError, f"a worker thread died: {why}"))
        if self.in_flight and ended:
            staging = self.scheduler.give_up_tasks()
            rows = self.encoders.give_up() | staging
            self.losses.doom(rows)
            for row in rows:
                self.shard_rows.spoil(self._owner_of(row))  # a slab of it is half written
            for row in staging:  # its frames may be whole there, and readers have seen them
                self.shard_rows.note_frames(self._owner_of(row))
                self.losses.leave()

    def _advance(self) -> None:
        """Does all that rows, shard rows and clocks allow. Called after every change."""
        self._do_all()
        if self.notifications.flushes:
            self._answer_flushes()

    def _answer_flushes(self) -> None:
        if self.state in (AcquisitionState.FAILED, AcquisitionState.SEALED):
            self.notifications.flushes.end(self.end.why)
        elif self.state is AcquisitionState.OPEN:
            if not self._ledger.busy and self._staging_is_stuck:
                self.notifications.flushes.refuse_unstored()
            if not self._may_show_more:
                self.notifications.flushes.refuse_unseen(self.settings.live, self._why_unseen())
        self.notifications.flushes.answer()

    def _why_unseen(self) -> str:
        """Returns what keeps stored frames of a live store from readers."""
        if any(shard_row.reopened for shard_row in self.shard_rows.by_number.values()):
            return "their shard was sealed early and is open again"
        if any(self.table.frames[row] for row in self.table.collecting_rows()):
            return "their chunk is not full"
        return "the shape cannot cover them yet"

    def _do_all(self) -> None:
        self._time.has_looked()
        if self.state in (AcquisitionState.FAILING, AcquisitionState.FAILED):
            self._failing_step()
            return
        self.shard_rows.retry_full_disk(self._time.s)
        if self.end.life in (Life.OPEN, Life.FINISHING):
            self._grow_over_sealed()
        self.arrivals.place(self._place)
        self._relieve_ring()
        self._look_at_ring()
        self._stage_and_commit()
        self._show_stored()
        if self.end.why is not None:
            self._failing_step()
        elif self.end.is_asked and not self.arrivals:
            self._finish_step()

    # ------------------------------------------------------------------ frames to slabs

    def _place(self, batch: ArrivedFrames) -> Wait | None:
        """Places the rest of a batch. Returns what its next frame waits for, or None when all are placed."""
        while True:
            first = batch.first
            done, rows, missing = self.table.place(
                first, batch.positions, batch.sequences, batch.addresses, batch.records, batch.statuses
            )
            if done > first and (taken := batch.statuses[first:done] == DUPLICATE).any():
                self.recorder.settle(batch.records[first:done][taken], *_STATUSES[FrameVerdict.DUPLICATE])
            batch.place_up_to(done)
            for row in rows:
                self._dispatch(row)
            if self.end.why is not None:
                return Wait.NOTHING  # the rest of the batch was given up with all waiting frames
            if missing < 0:
                return None
            if self.shard_rows.may_refuse(missing) and self._refuse_some(batch):
                if not batch.positions.size:
                    return None
            elif (wait := self._open_slab(missing, int(batch.positions[batch.first]))) is not None:
                return wait

    def _refuse_some(self, batch: ArrivedFrames) -> bool:
        """Settles, in one step, all remaining frames of a batch that are refused, also when they are mixed
        with others. Returns whether there were any."""
        slabs, in_slab = slabs_and_indices(batch.positions[batch.left], *self.grids.tables)
        verdicts = np.full(slabs.size, FrameVerdict.TAKEN)
        for slab in np.unique(slabs).tolist():
            if self.shard_rows.may_refuse(slab):
                here = slabs == slab
                verdicts[here] = self.shard_rows.verdicts(slab, in_slab[here])
        for verdict in REFUSALS:
            if (refused := verdicts == verdict).any():
                self.recorder.settle(batch.records[batch.left][refused], *_STATUSES[verdict])
        kept = ~np.isin(verdicts, REFUSALS)
        batch.keep(kept)
        return not kept.all()

    def _open_slab(self, slab: int, position: int) -> Wait | None:
        """Opens a row of the slab table for the slab of a frame at ``position`` that is not refused, and its
        shard row. Returns None, or what the frame must wait for. Makes room by closing the oldest shard row
        or slab."""
        shard_rows, number = self.shard_rows, self.grids.shard_row_of_slab(slab)
        verdict = shard_rows.verdict(number, slab, position)
        if verdict == FrameVerdict.WAITS:
            return Wait.FILES
        if verdict == FrameVerdict.SETS_ASIDE:
            self._close_shard_row(shard_rows.by_number[number], aside=True)
            return Wait.FILES
        if not shard_rows.may_open(number):
            self._make_room_to_open(number)
            return Wait.FILES
        if verdict == FrameVerdict.REOPENS:
            return self._open_again(number, shard_rows.earlier[number], slab)
        shard_rows.open(number)
        if self.table.open(slab):
            return None
        if not self._rows_under_way and (oldest := self.table.oldest()) is not None:
            self._close_slab(oldest, passed_over=True)
        return Wait.ROW

    def _make_room_to_open(self, number: int) -> None:
        """Closes the oldest shard row when too many are open for one more, with this number."""
        if (oldest := self.shard_rows.oldest_when_all_open(image_of(number))) is not None:
            # its frames are not late, it opens again, where fewer may be open than frames in order need, and
            # where a frame would be late only because its shard shares files with others
            too_few = self.limits.open_shard_rows <= self.grids.open_shard_rows
            aside = too_few or self.grids.of(oldest.number).is_split
            self._close_shard_row(oldest, aside=aside, passed_over=not aside)

    @property
    def _rows_under_way(self) -> bool:
        """True if rows become free without another slab being closed."""
        waiting = any(shard_row.waiting for shard_row in self.shard_rows.by_number.values())
        coming = self.encoders.rows or self.scheduler.held_back or self.rewrites.holds_rows
        return waiting or bool(coming) or self._ledger.rows_to_come

    def _relieve_ring(self) -> None:
        """Closes the oldest incomplete slabs while too many frames wait for the rest of their slab."""
        while self._ring_is_held and (oldest := self.table.oldest_held()) is not None:
            self._close_slab(oldest, passed_over=True)

    @property
    def _ring_is_held(self) -> bool:
        # the slots of frames of colours are counted only where there may be too many of them
        at_most, most = self.table.held_frames * self.grids.frame_places, self._most_held
        return at_most > most and self.table.held_slots > most

    @property
    def _most_held(self) -> int:
        """The most frames that may wait for the rest of their slab: more would leave the ring no room for a
        slab of new ones. Those that wait for a worker, to be put in place, need none."""
        if self.grids.in_place:
            return max(self.scheduler.slots, self.limits.ring_frames)
        spare = self.limits.ring_frames - self.limits.held_frames
        places = self.grids.frame_places
        usable = self.limits.ring_frames // places * places
        return usable - max(places, min(spare // 2, self.limits.frames_per_slab))

    def _look_at_ring(self) -> None:
        """Under the overload policy ``degrade``, lets chunks be encoded faster while frames wait for
        encoders."""
        changed = self.encoders.look_at_ring(self._ledger.unsynced_frames, self._time.s)
        if changed is not None:
            before, part = changed
            self.notifications.note(
                "overload_level",
                {
                    "degrade_level": self.encoders.overload.level.label,
                    "before": before.label,
                    "backlog": round(part, 2),
                },
            )

    def _close_slab(self, slab: int, *, passed_over: bool = False) -> None:
        """``passed_over``: by newer frames, so that it also stays closed when the acquisition is resumed."""
        row = self.table.close(slab, passed_over=passed_over)
        self.shard_rows.holes.remember(slab, self.table.filled(row))
        self._dispatch(row)

    def _close_shard_row(
        self, shard_row: ShardRow, *, aside: bool = False, passed_over: bool = False
    ) -> None:
        """Closes a shard row: its incomplete slabs are closed, slabs without a frame are remembered as holes.
        ``aside``: it is opened again once it is sealed; ``passed_over``: as for ``_close_slab``."""
        self.shard_rows.close(shard_row, aside=aside)
        for slab in self.table.incomplete_of_shard_row(shard_row.number):
            self._close_slab(slab, passed_over=passed_over)
            if self.end.why is not None:
                return  # closing it showed that its files cannot be used
        self.shard_rows.remember_empty_slabs(shard_row)
        self._start_waiting(shard_row)
        self.shard_rows.seal_if_done(shard_row)

    def _owner_of(self, row: int) -> ShardRow:
        """Returns the shard row to which the slab in a row of the slab table belongs. It is not sealed
        yet."""
        return self.shard_rows.of_slab(int(self.table.slab[row]))

    def _dispatch(self, row: int) -> None:
        """Hands a slab to the workers as soon as its shard row's files are prepared: no worker ever waits for
        another acquisition's disk."""
        if self.end.is_failing:
            self.losses.doom([row])
            return
        shard_row = self._owner_of(row)
        self.encoders.begin(row)
        self.shard_rows.slab_closed(shard_row, int(self.table.slab[row]), row)
        self._start_waiting(shard_row)

    def _start_waiting(self, shard_row: ShardRow) -> None:
        if (error := self.shard_rows.cannot_be_filled(shard_row, self._time.s)) is not None:
            self._fail(error)
            return
        files = self.shard_rows.files_for_waiting(shard_row)
        if files is None:
            return
        # in place a slab waits until all of its frames are
        rows = [row for row in shard_row.waiting if not self.grids.in_place or self.table.is_in_place(row)]
        self.shard_rows.slabs_sent(shard_row, rows)
        for row in rows:
            self.encoders.send(row, files)

    # ------------------------------------------------------------------ shard rows that take frames again

    def _open_again(self, number: int, earlier: EarlierShardRow, wanted: int) -> Wait | None:
        """Reopens a shard row that was closed before it was full, once there is room for the ``wanted`` slab,
        which stays closed where there will never be. Of its other incomplete slabs as many collect again as
        there is room for then, the newest first; the shard row is sealed and reopened for the rest."""
        fillable_slabs = {slab: int(filled.sum()) for slab, filled in earlier.fillable_slabs().items()}
        if wanted in fillable_slabs and not self._has_room_to_reload(fillable_slabs[wanted]):
            if self._makes_room_to_reload(fillable_slabs[wanted]):
                return Wait.ROOM
            self._stays_closed(number, wanted)
            return None
        slabs, frames, most = [], 0, self._room_to_reload
        for slab in sorted(fillable_slabs, key=lambda slab: (slab != wanted, -slab))[: self.table.free_rows]:
            if frames + fillable_slabs[slab] <= most:
                slabs.append(slab)
                frames += fillable_slabs[slab]
        self.shard_rows.reopen(number, SlabReload(tuple(slabs), self.scheduler.take_slots(frames)))
        return Wait.FILES

    @property
    def _room_to_reload(self) -> int:
        """The number of frames of a sealed shard row that can collect again now."""
        return min(self.scheduler.free_slots, self._most_held - self.table.held_frames)

    def _has_room_to_reload(self, frames: int) -> bool:
        return self.table.free_rows > 0 and frames <= self._room_to_reload

    def _makes_room_to_reload(self, frames: int) -> bool:
        """Makes room for a slab with so many frames, by closing the oldest if need be. Returns False when
        there will never be any."""
        if frames > min(self.scheduler.slots, self._most_held):
            return False
        if self._slots_under_way:
            return True
        if (oldest := self.table.oldest()) is None:
            return False
        self._close_slab(oldest, passed_over=True)
        return True

    @property
    def _slots_under_way(self) -> bool:
        """True if slots of the staging area may become free without a slab being closed."""
        return bool(
            self._rows_under_way
            or self.scheduler.tasks.any()
            or self._ledger.slots_to_come
            or self._ledger.committing
        )

    def _stays_closed(self, number: int, slab: int) -> None:
        reason = (
            "the staging area has no room for the frames of a slab"
            if self.scheduler.slots
            else "there is no staging area, or it has failed"
        )
        self.notifications.note(
            "row_reopening_failed",
            {"shard_row": number, "reason": reason, "then": "further frames of that slab are late"},
        )
        self.shard_rows.earlier.close_slab(number, slab)

    def _collect_staged(
        self,
        records: np.ndarray,
        slots: np.ndarray,
        addresses: np.ndarray,
        joined: Mapping[int, Joined] | None = None,
    ) -> bool:
        """Collects frames whose pixels are only in the staging area, or in their chunks (``joined``, by
        slab). Returns False when there is no room for them."""
        records["flags"] = 0  # nothing has passed over the slab that collects them now
        batch = ArrivedFrames.of(records, addresses)
        if joined is None:
            self._released.expect_in_no_ring(batch.sequences)
        if self._place(batch) is not None:
            return False
        slabs, in_slab = slabs_and_indices(records["position"].astype(np.int64), *self.grids.tables)
        for row in np.flatnonzero(np.isin(self.table.slab, slabs)).tolist():
            here = (slabs == self.table.slab[row]) & (self.table.addresses[row, in_slab] == addresses)
            self.table.set_slots(row, in_slab[here], slots[here])
            if joined is not None:
                slab = int(self.table.slab[row])
                assert here.sum() == (slabs == slab).sum(), "a place was given to one frame"
                self.table.put_in_place(row, in_slab[here], joined[slab])
                self.shard_rows.note_frames(self._owner_of(row))
        return True

    # ------------------------------------------------------------------ staging, commits, flushes

    def _stage_and_commit(self) -> None:
        now_s = self._time.s
        self.recorder.try_again(now_s)
        flushing, in_place = self._ledger.is_flushing(self.accounts.durable.value), self.grids.in_place
        at_once = flushing or in_place or self.notifications.flushes.wait_for("stored")
        if at_once or self.scheduler.is_due(self._time.ns):
            self.scheduler.stage(self._rows_that_wait(), self._time.ns, at_once=at_once)
            if in_place:
                self._make_slots()
                for shard_row in list(self.shard_rows.by_number.values()):
                    self._start_waiting(shard_row)
        # what waits first: the ledger looks through all open shard rows
        waits_for = self.arrivals.waits_for
        starved = (self.scheduler.starved or waits_for is Wait.ROOM) and self._ledger.slots_to_come
        starved = starved or (waits_for in (Wait.ROW, Wait.ROOM) and self._ledger.rows_to_come)
        hurry = flushing or self.end.is_asked or starved or self._ring_waits_for_commit()
        if self._ledger.due(now_s, 0.0 if hurry else self.settings.sync_interval_ms / 1000):
            self._commit()

    def _make_slots(self) -> None:
        """Closes the oldest slab if frames found no slot for their record and none will be free otherwise:
        there may be more rows now than when the staging area was made."""
        if self.scheduler.starved and not self._slots_under_way:
            oldest = self.table.oldest_held()
            if oldest is not None:
                self._close_slab(oldest, passed_over=True)

    def _show_stored(self) -> None:
        """Lets readers of a live store see what is new; once all is sealed, the end of the store does."""
        at_once = self.notifications.flushes.wait_for("visible")
        if self.live.is_due(self._time.s, at_once=at_once) and self.end.life in (Life.OPEN, Life.FINISHING):
            if self.settings.live == "none" and self.accounts.misses_some:
                return  # ``_whole_steps`` cover nothing then: what waits is shown once these came
            shard_rows = self.shard_rows.by_number
            rows = [row for shard_row in shard_rows.values() for row in shard_row.waiting]
            received = self.accounts.extents
            if self.settings.live == "none":  # then a shape covers no frame that is still to come
                rows += self.table.collecting_rows()
                received = self._whole_steps()
            rows += [*self.encoders.rows, *self.scheduler.held_back]
            behind = self.table.slab[rows].tolist()
            self.live.show(self._time.s, shard_rows, behind, received)

    def _rows_that_wait(self) -> list[tuple[int, ShardRowFiles | None]]:
        """Returns rows with frames only in memory: slabs that collect, and slabs that wait for files; with
        the files into whose chunks these frames go, if they do."""
        owners = [(row, self._owner_of(row)) for row in self.table.collecting_rows()]
        owners += [
            (row, shard_row) for shard_row in self.shard_rows.by_number.values() for row in shard_row.waiting
        ]
        return [
            (row, shard_row.files if self.grids.in_place else None)
            for row, shard_row in owners
            if self.shard_rows.may_stage(shard_row)
        ]

    def _ring_waits_for_commit(self) -> bool:
        """True if a commit is needed for the ring: with durability ``durable`` pixels come back at a commit,
        and half the ring must not wait for the next one."""
        most = (self.limits.ring_frames - self.limits.held_frames) // 2
        return self._ledger.releases_waiting > max(1, most)

    def _commit(self) -> None:
        if keys := self._ledger.begin(self._time.s, self.shard_rows.can_sync):
            self._commands.append(Commit(frozenset(keys)))

    def _settle_durable(self, key: int, entry: Uncommitted) -> None:
        self.accounts.make_durable(joined(entry.sequences), frames=key != LOGGED)
        self.scheduler.give_back(joined(entry.slots))
        self._released.extend(entry.releases)
        for row in entry.rows:
            self.table.free(row)

    # ------------------------------------------------------------------ reports

    def handle(self, report: Report, now: Now) -> None:  # noqa: C901  (one case for each report)
        """Takes the report of a command. After all available reports, ``tick`` must be called."""
        self._time.set(now)
        self._time.look_at_next_tick()
        match report:
            case SlabEncoded():
                self._slab_encoded(report)
            case FramesStaged():
                self._frames_staged(report)
            case ShardRowPrepared():
                self._shard_row_prepared(report)
            case ShardRowReopened():
                self._shard_row_reopened(report)
            case ShardRowRewritten():
                self._shard_row_rewritten(report)
            case ShardRowSealed():
                self._shard_row_sealed(report)
            case Committed():
                self._committed(report)
            case Shown():
                self._shown(report)
            case Grown():
                self.live.answered(report.commands)
                self.visible.cover(report.extents)
            case Recorded():
                self._recorded(report)
            case NotRecorded():
                self._not_recorded(report)
            case MetadataUpdated():
                self.notifications.note_update(report.request, report.error)
            case ImageAdded():
                self._image_added(report)
            case SealerFailed():
                self._sealer_failed(report)
            case StoreFinished():
                self._store_finished(report)

    def _slab_encoded(self, report: SlabEncoded) -> None:
        row, failed_before = report.row, self.encoders.checks_failed
        if not self.encoders.done(report):
            return  # given up with dead workers
        if self.encoders.checks_failed > failed_before == 0:
            self._note_failed_check(report)
        shard_row = self._owner_of(row)
        stored_bytes = 0 if report.error else report.stored_bytes  # else counted when it is encoded again
        self.accounts.count_files(stored_bytes)
        self.shard_rows.slab_done(shard_row, stored_bytes)
        if report.error is None:
            self._slab_stored(shard_row, row)
        elif not self.end.is_failing and self.rewrites.note_io_error(shard_row, report.error):
            # Its frames are still in memory: they go into the new files.
            self.shard_rows.slab_waits(shard_row, row)
        else:
            self.shard_rows.spoil(shard_row)  # a slab of it is half written
            self._fail(report.error)
            self.losses.doom([row])
        self._after_slab(shard_row)

    def _note_failed_check(self, report: SlabEncoded) -> None:
        """Tells of the first chunk that failed the encode check. A compressor that is broken makes many more,
        of which the receipt has the number."""
        slab = int(self.table.slab[report.row])
        chunk, level = next((chunk, task.level) for task in report.tasks for chunk in task.replaced)
        path, coordinates = self.shard_rows.layout.of(slab).chunk_place(slab, chunk)
        image = {} if self.spec.is_single else {"image": self.spec.names[image_of(slab)]}
        facts = {"array": path, "chunk": coordinates, "degrade_level": level.label}
        self.notifications.note("encode_check_failed", {**image, **facts, "hint": _CHECK_HINT})

    def _after_slab(self, shard_row: ShardRow) -> None:
        if self.end.is_failing:
            return
        self._rewrite_if_idle(shard_row)
        self.shard_rows.seal_if_done(shard_row)

    def _slab_stored(self, shard_row: ShardRow, row: int) -> None:
        if self.scheduler.hold_back(row):
            self.shard_rows.slab_held_back(shard_row)
            return
        table = self.table
        sequences = self._store_frames(row, table.filled(row))
        self.shard_rows.note_frames(shard_row)
        if self.grids.in_place:  # the others are released already, and durable or in the ledger
            sequences = table.sequences[row][table.staging_slot[row] == WITH_ITS_SLAB]
        slab, in_place = int(table.slab[row]), self.grids.in_place
        self.shard_rows.earlier.stored(shard_row.number, slab)
        self.encoders.stored(row, int(table.frames[row]))
        if self.live.stored(shard_row, [slab]):
            self.visible.slab_stored(slab, table.sequences[row][table.filled(row)])
        held_row = row if self._ledger.holds_pixels and not in_place else None
        self._ledger.add(
            shard_row.number,
            self._time.s,
            sequences,
            slots=self.scheduler.slots_of(row),
            held_row=held_row,
            release=self._ledger.holds_pixels and in_place,
        )
        if held_row is None:
            if not self._ledger.holds_pixels:
                self._released.append(sequences)
            table.free(row)

    def _store_frames(self, row: int, in_slab: np.ndarray) -> np.ndarray:
        """Counts the frames at ``in_slab`` (a mask, or indices) of a row as stored; returns their
        sequences."""
        sequences: np.ndarray = self.table.sequences[row][in_slab]
        new = self.accounts.store(sequences, self.table.records["position"][row][in_slab].astype(np.int64))
        arrival_ns = self.table.records[row]["arrival_monotonic_ns"][in_slab]
        self.measures.store.observe_all_ns(self._time.ns - arrival_ns[new])
        return sequences

    def _frames_staged(self, report: FramesStaged) -> None:
        row = report.row
        if not self.scheduler.tasks[row]:
            return  # given up with dead workers
        if self.scheduler.done(report):
            if report.slots[0] >= 0:
                self._note_staged(row, self._store_frames(row, report.in_slab))
        else:
            self._not_staged(row, report)
        if self.scheduler.lets_go(row):
            shard_row = self._owner_of(row)
            self.shard_rows.slab_done(shard_row)
            self._slab_stored(shard_row, row)
            self._after_slab(shard_row)

    def _not_staged(self, row: int, report: FramesStaged) -> None:
        """After one failure nothing counts as staged any more. What is there all the same may be whole, and
        readers have seen it: recovery looks for it."""
        if self.end.is_failing:
            self.losses.leave()
        if self.grids.in_place:
            shard_row = self._owner_of(row)
            self.shard_rows.note_frames(shard_row)
            if shard_row.ready:
                self.shard_rows.spoil(shard_row)  # sealed, it would lack the slab
        if report.error is None:
            return
        if self.grids.in_place:
            self._fail(report.error)
            return
        self.notifications.note(
            "staging_failed",
            {**report.error.as_reason(), "then": "frames are stored when their slab is full"},
        )

    def _note_staged(self, row: int, sequences: np.ndarray) -> None:
        """Frames in place are durable once their chunks and the staging area are synced, by a commit of both
        or by the seal of their shard row."""
        if not self.grids.in_place:
            self._ledger.add(STAGED, self._time.s, sequences)
            return
        shard_row = self._owner_of(row)
        self.shard_rows.note_frames(shard_row)
        self._ledger.add(shard_row.number, self._time.s, sequences, release=self._ledger.holds_pixels)
        self._ledger.add(STAGED, self._time.s, sequences[:0])
        if not self._ledger.holds_pixels:
            self._released.append(sequences)

    def _recorded(self, report: Recorded) -> None:
        self.recorder.done(report)
        if not self.recorder.waits:
            self.full_disk.has_room(RECORDS)
        if report.release:
            self._released.append(report.sequences)
        if report.settled:
            self.accounts.stored.add(report.sequences)
            self._ledger.add(LOGGED, self._time.s, report.sequences)

    def _not_recorded(self, report: NotRecorded) -> None:
        """Leaves the frames unacknowledged until the log has room, or for good when the acquisition does not
        wait for room."""
        if self.shard_rows.waits_for_room and not self.end.is_failing:
            self.recorder.wait_for_room(report, self._time.s)
            self.full_disk.wait(RECORDS, report.error.message)
            return
        self.recorder.done(report)
        if report.release:
            self._released.append(report.records["sequence"].astype(np.int64))
        elif report.settled:
            # Frames that nobody has, some acknowledged before a crash: without their records a finished store
            # would say nothing of them. Recovery finds out once more.
            self.losses.leave()
        self._fail(report.error)

    def _committed(self, report: Committed) -> None:
        if not report.failed:
            self.measures.commit.observe_ns(report.commit_ns)
        for key, error in report.failed.items():
            self._commit_failed(key, error)
        failed = set(report.failed)
        if self.grids.in_place and STAGED in failed:
            failed |= self._ledger.in_commit - {LOGGED}  # their frames have no record
        for key, entry in self._ledger.end(failed):
            self._settle_durable(key, entry)
        if STAGED in report.failed:
            self._ledger.take(STAGED)  # these frames become durable with their slabs
        for shard_row in list(self.shard_rows.by_number.values()):
            self._rewrite_if_idle(shard_row)

    def _shown(self, report: Shown) -> None:
        self.live.answered(1)
        self.visible.show(report.slabs)
        for number, error in report.failed.items():
            shard_row = self.shard_rows.by_number.get(number)
            # one that is sealed or moved to new files anyway says itself what does not pass
            if shard_row is not None and shard_row.ready and not self._rewrite(shard_row, error):
                self._fail(error)

    def _commit_failed(self, key: int, error: ErrorText) -> None:
        if key == STAGED and error.is_a(StorageError) and not self.grids.in_place:
            self.notifications.note(
                "staging_failed", {**error.as_reason(), "then": "frames are stored when their slab is full"}
            )
            self.scheduler.give_up()
        elif key in (STAGED, LOGGED) or not self._rewrite(self.shard_rows.by_number.get(key), error):
            self._fail(error)

    def _shard_row_prepared(self, report: ShardRowPrepared) -> None:
        if report.files is not None:
            self.measures.shard_open.observe_ns(report.open_ns)
        limits, settings = self.limits, self.settings
        self.full_disk.look(report.free_bytes, settings.low_water_bytes, limits.shard_row_bytes)
        shard_row = self.shard_rows.note_prepared(report)
        if shard_row is None:
            return
        if (error := self.shard_rows.cannot_continue(shard_row)) is not None:
            self._fail(error)
            return
        self._start_waiting(shard_row)
        if not self.end.is_failing:
            self.shard_rows.seal_if_done(shard_row)

    def _shard_row_reopened(self, report: ShardRowReopened) -> None:
        shard_row, made = self.shard_rows.by_number.get(report.shard_row), report.made
        if shard_row is None or shard_row.files_state is not FilesState.REOPENING or self.end.is_failing:
            return  # given up, or about to be: the shard row stays as it was sealed
        if made is not None:
            before = self.shard_rows.reopened(shard_row, made.files, made.slabs, made.copied_bytes)
            self.scheduler.give_back(made.unused)
            old_bytes = made.old_bytes if before.stored_bytes is None else before.stored_bytes
            self.accounts.count_files(made.copied_bytes - old_bytes, -made.shards)
            self.notifications.note(
                "row_reopened", {"shard_row": shard_row.number, "frames_taken_back": int(made.records.size)}
            )
            taken = made.records, made.slots, made.addresses, made.joined
            if made.records.size and not self._collect_staged(*taken):
                self.shard_rows.spoil(shard_row)  # recovery finds the frames in the staging area
                self._fail(self.end.why or ErrorText(WorkerError, "no room for frames that were reloaded"))
            return
        error = report.error
        assert error is not None, "one or the other"
        if error.is_a(ShardFormatError):
            facts = {
                "shard_row": shard_row.number,
                **error.as_reason(),
                "then": "further frames of that shard row are late",
            }
            self.notifications.note("row_reopening_failed", facts)
            self.scheduler.give_back(self.shard_rows.stays_closed(shard_row))
            self.live.grows_over(shard_row.number)
        elif not self.shard_rows.waits_with_files(shard_row, self._time.s, error):
            self._fail(error)

    def _shard_row_sealed(self, report: ShardRowSealed) -> None:
        shard_row = self.shard_rows.by_number[report.shard_row]
        if report.error is not None:
            if not self.end.is_failing and self.shard_rows.waits_with_files(
                shard_row, self._time.s, report.error
            ):
                return
            self.shard_rows.seal_failed(shard_row)
            if report.renamed or not self._rewrite(shard_row, report.error):
                self.shard_rows.spoil(shard_row)
                self._fail(report.error)
                if self.end.life is Life.LEAVING:
                    self._give_up(shard_row)
            return
        self.measures.shard_seal.observe_ns(report.seal_ns)
        index_bytes = report.shards * self.shard_rows.layout.of(report.shard_row).index_bytes
        self.accounts.count_files(index_bytes, report.shards)
        assert report.records is not None, "it is sealed"
        self.visible.seal(report.shard_row, report.records)
        self.shard_rows.sealed(shard_row, report.records, index_bytes, self._passed)
        self.rewrites.closed(report.shard_row)
        self._settle_durable(report.shard_row, self._ledger.take(report.shard_row))
        self.live.sealed(shard_row, self.shard_rows.closed.extents)
        self.live.grows_over(shard_row.number)

    def _grow_over_sealed(self) -> None:
        """Lets the shapes of images cover their sealed shard rows. Not while one of these is open again: its
        sealed shards lack what it has got since."""
        if not self.live.has_sealed:
            return
        interval_s = SHOW_INTERVAL_S if self.end.life is Life.OPEN else END_INTERVAL_S
        if self._ledger.is_flushing(self.accounts.durable.value) or self.notifications.flushes.wait_for(
            "visible"
        ):
            interval_s = 0.0
        if not (rows := self.live.take_sealed(self._time.s, interval_s)):
            return
        whole, replaced = self._whole_steps().tolist(), self.shard_rows.replace_sealed()
        for number in rows:
            image = image_of(number)
            if image not in replaced:
                visible = self.shard_rows.closed.visible(number)
                self.live.grow(image, visible.extents(tuple(whole[image])))

    def _whole_steps(self) -> np.ndarray:
        """Returns int64[images, axes]: how far shapes may reach that cover no frame in order which is still
        to come, or has no place yet. A sealed shard row that is opened again takes the rest of a step."""
        return self.accounts.whole_steps(self.arrivals.positions())

    def _passed(self) -> np.ndarray:
        """Returns ``Accounts.passed``: a frame that waits behind others must still find its shard row."""
        return self.accounts.passed(self.arrivals.positions())

    def _store_finished(self, report: StoreFinished) -> None:
        full = report.error if report.error is not None and report.error.is_a(StorageFullError) else None
        asked = self.end.life is Life.FINISHING_STORE
        if full is not None and self.shard_rows.waits_for_room and asked:
            self.full_disk.wait(END, full.message, "Free some space: the end of the store is tried again")
            self.end.wait_for_room(self._time.s)
            return
        if report.error is not None:
            self.losses.leave()
        if full is None:
            self.full_disk.has_room(END)
        if report.error is None and asked:
            # records of frames that were not stored: in the table now
            for key, entry in self._ledger.take_all():
                self._settle_durable(key, entry)
            self.visible.end(self.accounts.images_known)
            self.end.go(LifeEvent.STORE_FINISHED)
            return
        self._fail(
            report.error or ErrorText(WorkerError, "the store was finished, which the core had not commanded")
        )
        self._fail_at_last()

    def _image_added(self, report: ImageAdded) -> None:
        """Gives the new image its place in every part that has one for each, before its first frame."""
        if (images := report.images) is not None:
            self.spec = images.spec
            self.limits = self.limits.with_images(self.grids, images.more_bytes)
            self.table.take_images(self.grids)
            self.accounts.take_images(self.grids)
            self.notifications.take_images(images.spec)
            self.encoders.take_images(self.limits)
            self.shard_rows.take_images(images.layout)
            self.live.take_images(self.grids)
        self.notifications.note_update(report.request, report.error)

    # ------------------------------------------------------------------ files that met an I/O error

    def _rewrite(self, shard_row: ShardRow | None, error: ErrorText) -> bool:
        """Moves a shard row to new files, once no worker uses the old ones. Returns False when it cannot be
        saved."""
        if shard_row is None or self.end.is_failing or not self.rewrites.note_io_error(shard_row, error):
            return False
        self._rewrite_if_idle(shard_row)
        return True

    def _rewrite_if_idle(self, shard_row: ShardRow) -> None:
        """Starts a rewrite once no worker or commit uses the old files. Slabs that cannot be read back are
        encoded again, if their frames are still held."""
        broken = shard_row.files_state is FilesState.BROKEN and not self.end.is_failing
        if not broken or shard_row.in_flight or self._ledger.commits(shard_row.number):
            return
        stored = shard_row.done_slabs - {int(self.table.slab[row]) for row in shard_row.waiting}
        held = self._ledger.take(shard_row.number).rows if self._ledger.holds_pixels else []
        self.live.forget(shard_row.number)
        self.rewrites.begin(shard_row, stored, {row: int(self.table.slab[row]) for row in held})

    def _shard_row_rewritten(self, report: ShardRowRewritten) -> None:
        shard_row = self.shard_rows.by_number.get(report.shard_row)
        if shard_row is None:
            return  # given up meanwhile
        self.shard_rows.rewritten(shard_row, report.files)
        if report.error is not None:
            self.losses.leave_held(self.rewrites.take_held(shard_row.number))
            self._fail(report.error)
            return
        self._settle_held_rows(shard_row, report.saved)
        self.live.stored(shard_row, sorted(report.saved))
        self.notifications.note(
            "shard_rewritten", {"shard_row": shard_row.number, "frames_lost": int(report.lost.size)}
        )
        if report.lost.size:
            self.accounts.settle(report.lost)  # the log has them already
            self.losses.report(report.lost)
        if not self.end.is_failing:
            self._start_waiting(shard_row)
            self._after_slab(shard_row)

    def _settle_held_rows(self, shard_row: ShardRow, saved: set[int]) -> None:
        """Handles rows that were held while their shard row was rewritten: those in the new files are
        durable, the others are written again."""
        for row in self.rewrites.take_held(shard_row.number):
            if int(self.table.slab[row]) in saved:
                sequences = self.table.sequences[row][self.table.filled(row)]
                entry = Uncommitted([sequences], [self.scheduler.slots_of(row)], [sequences], [row])
                self._settle_durable(shard_row.number, entry)
            elif self.end.is_failing:
                self.losses.doom([row])
            else:
                self.shard_rows.slab_waits(shard_row, row)

    # ------------------------------------------------------------------ the end

    def _finish_step(self) -> None:
        if self.end.life is Life.OPEN:
            self.end.go(LifeEvent.CLOSE)
            for shard_row in list(self.shard_rows.by_number.values()):
                if shard_row.takes_frames and self.end.why is None:
                    self._close_shard_row(shard_row)
            self.shard_rows.discard_prepared()
        self.end.try_again(self._time.s)
        done = (
            not self.shard_rows.by_number
            and not self._ledger.committing
            and not self.in_flight
            and not self.recorder.frames
        )
        if self.end.life is Life.FINISHING and done:
            self.end.go(LifeEvent.DONE)
            if self.accounts.frames_received or self.end.keeps_empty:
                self._finish_store(self._extents(), keep_workspace=False)
            else:
                self._commands.append(RemoveStore())

    def _finish_store(self, extents: np.ndarray, *, keep_workspace: bool) -> None:
        durable = self.accounts.frames_durable
        each = tuple(map(tuple, extents.tolist()))
        counts = {} if keep_workspace else self._receipt(over=True, failed=self.end.why is not None).counts
        self._commands.append(FinishStore(each, durable, keep_workspace=keep_workspace, counts=counts))

    def _extents(self) -> np.ndarray:
        """Returns int64[images, axes]: the extents of each image along its growing axes; 0 for one to which
        no frame came."""
        accounts = self.accounts
        # before a crash frames may have come to a single image whose places nobody knows now
        came = accounts.newest >= 0
        if self.spec.is_single:
            came[0] = accounts.seen.stop > 0
        return np.where(came[:, None], accounts.extents, 0)

    # ------------------------------------------------------------------ failing

    def _fail(self, error: ErrorText) -> None:
        """Stops taking frames. Slabs at the workers still count, waiting slabs go to the workers if possible,
        and the rest is lost."""
        if not self.end.may_fail:
            return  # the first reason counts
        if self.end.workers_live:
            for shard_row in [each for each in self.shard_rows.by_number.values() if each.can_be_sealed]:
                for slab in self.table.incomplete_of_shard_row(shard_row.number):
                    self._close_slab(slab)  # its staged frames were acknowledged
        self.end.fail(error)
        for records in self.arrivals.give_up():
            self.losses.lose(records)
        self.recorder.try_again()  # for the last time
        self.losses.doom(self.table.close(slab) for slab in self.table.incomplete())
        self.losses.doom(self.shard_rows.give_up_waiting())

    def _failing_step(self) -> None:
        """Once the workers are done, seals sound shard rows, leaves the others under their working names, and
        finishes the store. Only then is the state FAILED."""
        if self.state is AcquisitionState.FAILED or self.in_flight or self._rewriting:
            return
        for number in self.shard_rows.by_number:
            self.losses.leave_held(self.rewrites.take_held(number))  # the sealer died during its rewrite
        self.losses.lose_doomed()
        if self.end.sealer_dead:
            self._fail_at_last()
            return
        if self.end.life is Life.FAILING:
            self.end.go(LifeEvent.UNREAD)
            for shard_row in list(self.shard_rows.by_number.values()):
                self._give_up(shard_row)
            self.shard_rows.discard_prepared()
        if self.end.life is Life.LEAVING and not self.shard_rows.by_number:
            self.end.go(LifeEvent.DONE)
            extents = np.minimum(self.shard_rows.closed.extents, self._extents())
            self._finish_store(extents, keep_workspace=self.losses.leaves_something)

    @property
    def _rewriting(self) -> bool:
        """True if the sealer is copying a shard row to new files and will report; False if it has died."""
        return not self.end.sealer_dead and any(
            shard_row.files_state is FilesState.REWRITING for shard_row in self.shard_rows.by_number.values()
        )

    def _give_up(self, shard_row: ShardRow) -> None:
        if shard_row.files_state is FilesState.SEALING:
            return  # its report comes
        has_reloaded_slabs = self.shard_rows.earlier.has_reloaded_slabs(shard_row.number)
        if shard_row.holds_frames and shard_row.can_be_sealed and not has_reloaded_slabs:
            self.shard_rows.seal(shard_row)
            return
        self.shard_rows.give_up(shard_row)
        self.rewrites.closed(shard_row.number)
        if shard_row.holds_frames:
            self.losses.leave()
            self._commands.append(Abandon(shard_row.number))
        else:
            self._commands.append(Discard(shard_row.number))

    def _fail_at_last(self) -> None:
        """Ends as FAILED: no more reports will come, and all pixels are released."""
        for _, entry in self._ledger.take_all():
            self._released.extend(entry.releases)
        why, hint = self.end.why, ""
        assert why is not None, "the reason why it fails"
        if why.is_a(StoreGoneError):
            if not why.is_a(StoreMovedError):
                self.accounts.lose_all()
        elif self.losses.leaves_something:
            recover = f"`shardwright recover {self.path}`"
            hint = f"Stored frames are kept: once the cause is fixed, {recover} seals them"
        self.end.over(hint)

    def _sealer_failed(self, report: SealerFailed) -> None:
        if report.dead:
            self.end.note_dead_sealer()
            self.losses.leave()
        self._fail(report.error)

    # ------------------------------------------------------------------ the start

    def begin(self, prepared: ShardRowPrepared) -> None:
        """Starts a new acquisition with its first files."""
        self._shard_row_prepared(prepared)

    def restore(
        self,
        restored: RecoveredState,
        addresses: np.ndarray,
        now: Now,
        joined: Mapping[int, Joined] | None = None,
    ) -> None:
        """Takes over what recovery found: closed shard rows, open shard rows, and staged frames with their
        pixels at int64[n] ``addresses``, or in their chunks: ``joined`` says by slab what is there.
        ``visible`` has begun.

        Raises ``ResumeError`` when the staged frames do not fit into memory, or the reason of a failure.
        """
        self._time.set(now)
        standing = restored.standing
        self.end.restore(in_doubt=standing.in_doubt)
        self.shard_rows.restore_closed(standing.closed_shard_rows, standing.holes, standing.earlier)
        self.live.begin(self.shard_rows.closed.extents)
        for found in restored.shard_rows:
            self._restore_shard_row(found)
        if standing.staged.size and not self._collect_staged(
            standing.staged, np.array(standing.staged_slots, np.int64), addresses, joined
        ):
            if self.end.why is not None:
                raise self.end.why.to_error()
            raise ResumeError(
                f"the staged frames of {self.path} need more memory than the limits allow",
                hint="Resume it with at least as much memory as it was created with",
            )
        self.shard_rows.set_empty_aside(
            {self.grids.shard_row_of_slab(slab) for slab in self.table.incomplete()}
        )
        self.notifications.begin_with(self.accounts)
        if restored.damaged:
            self.notifications.note(
                "files_set_aside_warning",
                {
                    "folders": list(map(str, restored.damaged)),
                    "hint": "What is in them may be nowhere else: keep them, and look at the disk",
                },
            )
        self._advance()

    def _restore_shard_row(self, found: RecoveredShardRow) -> None:
        shard_row = self.shard_rows.restore(found)
        if self.live.stored(shard_row, found.standing.whole_slabs):
            records = found.files.frame_records()
            for slab, (mine, _) in split_by_slab(self.grids, records).items():
                if slab in shard_row.done_slabs:
                    self.visible.slab_stored(slab, records["sequence"][mine].astype(np.int64))
        if found.standing.sealing_begun:
            # some of its shards have their final names: it must be sealed, and then opened again, before it
            # takes more frames
            self._close_shard_row(shard_row, aside=True)
        else:
            self.shard_rows.seal_if_done(shard_row)
