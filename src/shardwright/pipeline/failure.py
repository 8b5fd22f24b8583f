"""How an acquisition fails in good order: nothing more is taken in, what is sound is sealed, what is not stays on disk for recovery.

Part of ``Acquisition`` (see ``frame_flow``). Everything here runs in the owner's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import LostFramesError, StoreGoneError, StoreMovedError, WorkerError
from shardwright.model.fates import Fate, Reason

from .commands import Abandon, Discard, Finish, Record
from .frame_flow import AcquisitionState, FrameFlow
from .groups import Group, GroupState

if TYPE_CHECKING:
    from .keeper_reports import KeeperFailed


class Failing(FrameFlow):
    @property
    def left_to_recovery(self) -> bool:
        """Whether it has failed and recovery finds something of it at its path: neither where all was sealed, nor where the store is gone."""
        return self.state is AcquisitionState.FAILED and self._leaves_something and not self._store_is_gone

    @property
    def _store_is_gone(self) -> bool:
        return self._why is not None and self._why.is_a(StoreGoneError)

    def _fail(self, error: ErrorText) -> None:
        """Take nothing more in. What is at the workers counts; slabs that wait go there where that is possible; the rest is lost."""
        if self.state in (AcquisitionState.FAILING, AcquisitionState.FAILED):
            return
        finishing = [group for group in self._groups.by_number.values() if self._usable(group)]
        self._why = error
        if self._pool.alive():
            for group in finishing:
                for slab in self._table.incomplete_of_group(group.number):
                    self._close_slab(slab)  # what is staged of it was acknowledged
        self.state = AcquisitionState.FAILING
        for batch in self._pending:
            self._lose(batch.records[batch.first :])
        self._pending.clear()
        for _, report in self._unrecorded:  # for the last time
            self._keeper.put(Record(report.records, report.release, report.settled))
        self._unrecorded.clear()
        self._doomed.update(self._table.close(slab) for slab in self._table.incomplete())
        for group in self._groups.by_number.values():
            self._doomed.update(group.waiting)
            group.waiting = []

    def _usable(self, group: Group) -> bool:
        return group.sound and not group.rewriting and group.ready

    def _failing_step(self) -> None:
        """Once the workers are done: seal what is sound, leave what is not under its working name, finish the store, and only then be FAILED."""
        if self.state is AcquisitionState.FAILED or self.in_flight or self._rewriting:
            return
        for group in self._groups.by_number.values():
            self._leave_held(group)  # the keeper died over it
        for row in sorted(self._doomed):
            self._lose_row(row)
        self._doomed.clear()
        if self._keeper_dead:
            self._fail_at_last()
            return
        if not self._given_up:
            self._given_up = True
            for group in list(self._groups.by_number.values()):
                self._give_up(group)
            self._groups.discard_prepared()
        if not self._groups.by_number and not self._store_asked:
            self._store_asked = True
            extent = min(self._sealed_extent, self.accounts.received_extent)
            self._keeper.put(Finish(extent, keep_workspace=self._leaves_something))

    @property
    def _rewriting(self) -> bool:
        """Whether the keeper copies a group to new files: its report comes, unless it has died."""
        return not self._keeper_dead and any(group.rewrite_asked for group in self._groups.by_number.values())

    def _fail_at_last(self) -> None:
        """Nothing more will come: whatever still keeps pixels gives them back."""
        for _, entry in self._ledger.take_all():
            self._released.extend(entry.releases)
        assert self._why is not None, "the reason why it fails"
        if self._store_is_gone:
            if not self._why.is_a(StoreMovedError):
                self.accounts.lose_all()
        elif self._leaves_something:
            hint = f"What was stored is kept: once the cause is mended, `shardwright recover {self.path}` seals it"
            self._why = replace(self._why, hint=hint)
        self.state = AcquisitionState.FAILED

    def _give_up(self, group: Group) -> None:
        if group.state is GroupState.SEALING and group.retry_s is None:
            return  # its report comes
        holds = group.frames or group.reopened  # what is opened again may have frames in the staging area that nothing else leads to
        if holds and self._usable(group) and not group.owed:
            self._groups.seal(group)
            return
        del self._groups.by_number[group.number]
        if holds:
            self._leaves_something = True
            self._keeper.put(Abandon(group.number))
        else:
            self._keeper.put(Discard(group.number))

    def _lose(self, records: np.ndarray) -> None:
        """Frames that will not be stored: counted and recorded, their pixels free."""
        sequences = records["sequence"].astype(np.int64)
        self._released.append(sequences)
        if self._keeper_dead:
            self.accounts.frames_by_fate[Fate.LOST] += sequences.size
        elif sequences.size:
            self._settle(records, Fate.LOST, Reason.ACQUISITION_FAILED, release=False, settled=False)

    def _lose_row(self, row: int) -> None:
        """Frames of it that are staged stay there for recovery; the others are lost, and whoever heard that they were stored hears that too."""
        filled, staged = self._table.filled(row), self._table.staging_slot[row] >= 0
        if (filled & staged).any():
            self._leave_to_recovery(row, filled & staged)
        records = self._table.records[row][filled & ~staged]
        told = self.accounts.stored.holds(records["sequence"].astype(np.int64))
        if told.any():
            self._tell_losses(records[told])
        self._lose(records)
        self._table.free(row)

    def _leave_held(self, group: Group) -> None:
        """Its rewrite failed: the rows that were held meanwhile are in the old files, for recovery."""
        held, group.held_rows = group.held_rows, []
        for row in held:
            self._leave_to_recovery(row, self._table.filled(row))
            self._table.free(row)

    def _leave_to_recovery(self, row: int, places: np.ndarray) -> None:
        self._leaves_something = True
        self._group_of_row(row).sound = False  # sealed without them it would be closed, and recovery take them for stored
        self._released.append(self._table.sequences[row][places])

    def _tell_losses(self, records: np.ndarray) -> None:
        """Stored frames that a disk error took: the client and the operator hear of it."""
        self.accounts.lose_stored(records["sequence"].astype(np.int64))
        error = ErrorText(
            LostFramesError,
            "stored frames could not be read back after a disk error",
            got=f"{records.size} frames",
            hint="inspect --missing lists their places",
        )
        sequences = np.sort(records["sequence"].astype(np.int64))
        edges = np.flatnonzero(np.diff(sequences) != 1)
        firsts, lasts = sequences[np.concatenate(([0], edges + 1))], sequences[np.concatenate((edges, [sequences.size - 1]))]
        self._losses.extend((first, last, error) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True))
        self._told_fates.add(Fate.LOST)
        self._note("frames_lost", {"frames": int(records.size), "reason": error.message})

    def _keeper_failed(self, report: KeeperFailed) -> None:
        if report.dead:
            self._keeper_dead = self._leaves_something = self.thread_died = True
        self._fail(report.error)

    def _fail_with_pool(self, *, ended: bool) -> None:
        """A worker died. The others still read pixels and report; what is left when the last has gone (``ended``) will never be reported."""
        self.thread_died = True
        if self.state in (AcquisitionState.OPEN, AcquisitionState.FINISHING):
            self._fail(ErrorText(WorkerError, f"a worker thread died: {self._pool.failure}"))
        if self.in_flight and ended:
            rows = np.flatnonzero((self._tasks_left > 0) | (self._desk.tasks > 0))
            for row in rows.tolist():
                self._doomed.add(row)
                self._group_of_row(row).sound = False  # a slab of it is half written
            self._tasks_left[:] = 0
            self._desk.tasks[:] = 0
            self._rows_in_flight = 0
