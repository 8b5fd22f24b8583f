"""What workers and keeper report, and what follows: frames are staged, stored, made durable; groups are sealed, or rewritten after an I/O error.

Part of ``Acquisition`` (see ``frame_flow``). Everything here runs in the owner's thread.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ShardFormatError, StorageError, StorageFullError, WorkerError
from shardwright.shard.slab_map import frames_of_group, slabs_of_group

from .commands import Commit, Grow, Record
from .commit_ledger import LOGGED, STAGED, Uncommitted, joined
from .earlier_row import EarlierRow
from .encoding import SlabDone, StageDone
from .failure import Failing
from .frame_flow import AcquisitionState
from .groups import FULL_DISK_RETRY_S, Group, GroupState
from .keeper_reports import (
    Committed,
    GroupPrepared,
    GroupReopened,
    GroupRewritten,
    GroupSealed,
    KeeperFailed,
    KeeperReport,
    NotRecorded,
    Recorded,
    StoreFinished,
)


class Outcomes(Failing):
    # ------------------------------------------------------------------ staging, commits, flushes

    def _stage_and_commit(self, now_s: float) -> None:
        self._record_again(now_s)
        flushing = self.accounts.durable.value < self._flush_goal
        if flushing or now_s >= self._next_stage_s:
            patience_s = 0.0 if flushing else self.settings.store_within_ms / 2000
            self._next_stage_s = now_s + self.settings.store_within_ms / 4000
            self._desk.stage(self._rows_that_wait(), time.monotonic_ns() - int(patience_s * 1e9))
        starved = (self._desk.starved and self._ledger.slots_to_come) or (self._rows_starved and self._ledger.rows_to_come)
        starved = starved or (self._row_waits_for_room and (self._ledger.slots_to_come or self._ledger.rows_to_come))
        hurry = flushing or self._finish_asked or starved or self._ring_waits_for_commit()
        if self._ledger.due(now_s, 0.0 if hurry else self.settings.sync_interval_ms / 1000):
            self._commit()

    def _rows_that_wait(self) -> list[int]:
        """Rows whose frames are only in memory: slabs that collect, and slabs that wait for files."""
        collecting = [row for row in self._table.collecting_rows() if self._groups.may_stage(self._group_of_row(row))]
        waiting = [row for group in self._groups.by_number.values() if self._groups.may_stage(group) for row in group.waiting]
        return collecting + waiting

    def _ring_waits_for_commit(self) -> bool:
        """With durability ``durable`` pixels come back at a commit: do not let half the ring wait for the next one."""
        return self._keeps_frames and self._ledger.releases_waiting > max(1, (self.limits.ring_frames - self.limits.held_frames) // 2)

    def _commit(self) -> None:
        groups = self._groups.by_number
        keys = self._ledger.begin({number for number, group in groups.items() if group.state is GroupState.SEALING or not group.ready})
        if keys:
            self._keeper.put(Commit(frozenset(keys)))

    def _committed(self, report: Committed) -> None:
        if not report.failed:
            self.measures.commit.observe_ns(report.commit_ns)
        for key, error in report.failed.items():
            self._commit_failed(key, error)
        for key, entry in self._ledger.end(set(report.failed)):
            self._settle_durable(key, entry)
        if STAGED in report.failed:
            self._ledger.take(STAGED)  # these frames become durable with their slabs
        for group in list(self._groups.by_number.values()):
            self._rewrite_if_idle(group)

    def _settle_durable(self, key: int, entry: Uncommitted) -> None:
        self.accounts.make_durable(joined(entry.sequences), frames=key != LOGGED)
        self._desk.give_back(joined(entry.slots))
        self._released.extend(entry.releases)
        for row in entry.rows:
            self._table.free(row)

    def _commit_failed(self, key: int, error: ErrorText) -> None:
        if key == STAGED and error.is_a(StorageError):
            self._note("staging_failed", {"reason": str(error), "then": "frames are stored when their slab is full"})
            self._desk.area = None
        elif key in (STAGED, LOGGED) or not self._rewrite(self._groups.by_number.get(key), error):
            self._fail(error)

    def _rewrite(self, group: Group | None, error: ErrorText) -> bool:
        """Save a group by new files, once no worker is at the old ones; False when it cannot be saved."""
        if group is None or self.state is AcquisitionState.FAILING or not self._groups.note_io_error(group, error):
            return False
        self._rewrite_if_idle(group)
        return True

    # ------------------------------------------------------------------ reports

    def _handle(self, report: SlabDone | StageDone | KeeperReport) -> None:
        match report:
            case SlabDone():
                self._slab_task_done(report)
            case StageDone():
                self._stage_done(report)
            case GroupPrepared():
                self._group_prepared(report)
            case GroupReopened():
                self._group_reopened(report)
            case GroupRewritten():
                self._group_rewritten(report)
            case GroupSealed():
                self._group_sealed(report)
            case Committed():
                self._committed(report)
            case Recorded():
                self._recorded(report)
            case NotRecorded():
                self._not_recorded(report)
            case KeeperFailed():
                self._keeper_failed(report)
            case StoreFinished():
                self._store_finished(report)

    def _slab_task_done(self, report: SlabDone) -> None:
        row = report.row
        if self._tasks_left[row] <= 0:
            return  # given up with a dead pool
        group = self._group_of_row(row)
        self._count_bytes(group, report.stored_bytes)
        self._tasks_left[row] -= 1
        if report.error is None:
            self.measures.queue.observe_ns(report.queue_ns)
            self.measures.encode.observe_ns(report.encode_ns)
            assert report.level is not None, "what was written was written at a level"
            self._level_counts.wrote(row, report.level, report.chunks)
            self._overload.task_done(report.level)
        else:
            group.failed_rows.add(row)
            if not self._groups.note_io_error(group, report.error) or self.state is AcquisitionState.FAILING:
                group.sound = False  # a slab of it is half written
                self._fail(report.error)
        if self._tasks_left[row]:
            return
        self._rows_in_flight -= 1
        group.in_flight -= 1
        if row not in group.failed_rows:
            self._slab_stored(group, row)
        elif group.rewriting and self.state is not AcquisitionState.FAILING:
            group.failed_rows.discard(row)
            group.waiting.append(row)  # its frames are still here: into the new files
        else:
            self._doomed.add(row)
        self._after_slab(group)

    def _count_bytes(self, group: Group, stored_bytes: int) -> None:
        self.accounts.stored_bytes += stored_bytes
        group.stored_bytes += stored_bytes

    def _after_slab(self, group: Group) -> None:
        if self.state is AcquisitionState.FAILING:
            return
        self._rewrite_if_idle(group)
        self._groups.seal_if_done(group)

    def _rewrite_if_idle(self, group: Group) -> None:
        """Once nobody is at the old files. What cannot be read back is encoded again, where it is still held."""
        begun = not group.rewriting or group.rewrite_asked or self.state is AcquisitionState.FAILING
        if begun or group.in_flight or self._ledger.commits(group.number):
            return
        stored = group.done_slabs - {int(self._table.slab[row]) for row in group.waiting}
        group.held_rows = self._ledger.take(group.number).rows if self._keeps_frames else []
        self._groups.rewrite(group, stored, {int(self._table.slab[row]) for row in group.held_rows})

    def _slab_stored(self, group: Group, row: int) -> None:
        if self._desk.tasks[row]:
            self._waits_for_stage.add(row)  # a worker still reads its pixels
            group.in_flight += 1
            return
        table = self._table
        sequences = self._store_frames(row, table.filled(row))
        group.frames += sequences.size
        group.owed.discard(int(table.slab[row]))
        self._level_counts.stored(row, sequences.size)
        held_row = row if self._keeps_frames else None
        self._ledger.add(group.number, time.monotonic(), sequences, slots=self._desk.slots_of(row), held_row=held_row)
        if held_row is None:
            self._released.append(sequences)
            table.free(row)

    def _store_frames(self, row: int, places: np.ndarray) -> np.ndarray:
        """The frames at ``places`` (a mask, or indices) of a row are stored; returns their sequences."""
        sequences: np.ndarray = self._table.sequences[row][places]
        new = self.accounts.store(sequences)
        arrival_ns = self._table.records[row]["arrival_monotonic_ns"][places]
        self.measures.store.observe_all_ns(time.monotonic_ns() - arrival_ns[new])
        return sequences

    def _stage_done(self, report: StageDone) -> None:
        row = report.row
        if self._desk.done(report):
            sequences = self._store_frames(row, report.places)
            self._ledger.add(STAGED, time.monotonic(), sequences)
        elif report.error is not None:
            self._note("staging_failed", {"reason": str(report.error), "then": "frames are stored when their slab is full"})
        if row in self._waits_for_stage and not self._desk.tasks[row]:
            self._waits_for_stage.discard(row)
            group = self._group_of_row(row)
            group.in_flight -= 1
            self._slab_stored(group, row)
            self._after_slab(group)

    def _not_recorded(self, report: NotRecorded) -> None:
        """They stay unacknowledged until the log has room; where nobody waits for that, for good."""
        if not self._groups.waits_for_room or self.state is AcquisitionState.FAILING:
            self.unrecorded_frames -= report.records.size
            if report.release:
                self._released.append(report.records["sequence"].astype(np.int64))
            self._fail(report.error)
        else:
            self._unrecorded.append((time.monotonic() + FULL_DISK_RETRY_S, report))

    def _record_again(self, now_s: float) -> None:
        while self._unrecorded and now_s >= self._unrecorded[0][0]:
            _, report = self._unrecorded.popleft()
            self._keeper.put(Record(report.records, report.release, report.settled))

    def _recorded(self, report: Recorded) -> None:
        self.unrecorded_frames -= report.sequences.size
        if report.release:
            self._released.append(report.sequences)
        if report.settled:
            self.accounts.stored.add(report.sequences)
            self._ledger.add(LOGGED, time.monotonic(), report.sequences)

    def _group_prepared(self, report: GroupPrepared) -> None:
        if report.files is not None:
            self.measures.shard_open.observe_ns(report.open_ns)
        low = 0 < report.free_bytes < self.settings.low_water_bytes
        if low and not self._low_water:
            shards = report.free_bytes // max(1, self.limits.shard_file_bytes * self.limits.shard_files_per_group)
            self._note("disk_low", {"free_bytes": report.free_bytes, "low_water_bytes": self.settings.low_water_bytes, "shards_left": shards})
        self._low_water = low or (self._low_water and report.free_bytes == 0)
        group = self._groups.note_prepared(report)
        if group is None:
            return
        if (error := self._groups.fails_for_want_of_room(group)) is not None:
            self._fail(error)
        else:
            self._start_waiting(group)

    def _group_reopened(self, report: GroupReopened) -> None:
        group, made = self._groups.by_number.get(report.group), report.made
        if group is None or group.taking is None or self.state is AcquisitionState.FAILING:
            return  # given up, or about to be: the row stays sealed as it was
        if made is not None:
            before = self._groups.reopened(group, made.files, made.slabs)
            self._groups.holes.forget(slab for slab in slabs_of_group(self._encoder.layout, group.number) if slab not in group.done_slabs)
            self._desk.give_back(made.unused)
            self.accounts.shards -= made.shards
            self.accounts.stored_bytes -= made.old_bytes if before.stored_bytes is None else before.stored_bytes
            self._count_bytes(group, made.copied_bytes)
            self._note("row_reopened", {"group": group.number, "frames_taken_back": int(made.records.size)})
            if made.records.size and not self._collect_staged(made.records, made.slots):
                group.sound = False  # recovery has the frames: they are in the staging area
                self._fail(self._why or ErrorText(WorkerError, "frames that were taken back found no room"))
            return
        error = report.error
        assert error is not None, "one or the other"
        if error.is_a(ShardFormatError):
            self._note("row_reopening_failed", {"group": group.number, "reason": str(error), "then": "frames that come for it are late"})
            self._desk.give_back(group.taking.slots)
            self._groups.stays_closed(group)
        elif not self._groups.waits_to_reopen(group, time.monotonic(), error):
            self._fail(error)

    def _group_rewritten(self, report: GroupRewritten) -> None:
        group = self._groups.by_number.get(report.group)
        if group is None:
            return  # given up meanwhile
        self._groups.rewritten(group, report.files)
        if report.error is not None:
            self._leave_held(group)
            self._fail(report.error)
            return
        self._take_back_held(group, report.saved)
        self._note("shard_rewritten", {"group": group.number, "frames_lost": int(report.lost.size)})
        if report.lost.size:
            self.accounts.settle(report.lost)  # the log has them already
            self._tell_losses(report.lost)
            group.frames -= report.lost.size
        if self.state is not AcquisitionState.FAILING:
            self._start_waiting(group)
            self._after_slab(group)

    def _take_back_held(self, group: Group, saved: set[int]) -> None:
        """Rows that were held while their group was rewritten: those in the new files are durable, the others are written once more."""
        held, group.held_rows = group.held_rows, []
        for row in held:
            if int(self._table.slab[row]) in saved:
                sequences = self._table.sequences[row][self._table.filled(row)]
                entry = Uncommitted([sequences], [self._desk.slots_of(row)], [sequences], [row])
                self._settle_durable(group.number, entry)
            elif self.state is AcquisitionState.FAILING:
                self._doomed.add(row)
            else:
                group.waiting.append(row)

    def _group_sealed(self, report: GroupSealed) -> None:
        group = self._groups.by_number[report.group]
        if report.error is not None:
            if self.state is not AcquisitionState.FAILING and self._groups.waits_to_seal(group, time.monotonic(), report.error):
                return
            group.state = GroupState.CLOSING
            if report.renamed or not self._rewrite(group, report.error):
                group.sound = False
                self._fail(report.error)
                if self._given_up:
                    self._give_up(group)
            return
        self.measures.shard_seal.observe_ns(report.seal_ns)
        self._groups.sealed(report.group)
        self.accounts.shards += report.shards
        self._count_bytes(group, report.shards * self.limits.index_bytes)
        records = report.records
        if group.opens_again and records is not None and records.size < frames_of_group(self._encoder.layout, group.number):
            row = EarlierRow.of(self.grid, self._table.grid_tables, records)
            self._groups.opens_again(group.number, replace(row, stored_bytes=group.stored_bytes))
        self._settle_durable(report.group, self._ledger.take(report.group))
        self._sealed_extent = max(self._sealed_extent, self._groups.visible.end_of(group.number))
        self._keeper.put(Grow(self._groups.visible.elements(self.accounts.received_extent)))

    def _store_finished(self, report: StoreFinished) -> None:
        full = report.error if report.error is not None and report.error.is_a(StorageFullError) else None
        if full is not None and self._groups.waits_for_room and self.state is AcquisitionState.FINISHING:
            self._note("disk_full", {"reason": full.message, "hint": "Free some space: what is left to do is tried again"})
            self._store_retry_s = time.monotonic() + FULL_DISK_RETRY_S
            return
        self._keeper.stop()
        self._leaves_something = self._leaves_something or report.error is not None
        if report.error is None and self.state is AcquisitionState.FINISHING:
            for key, entry in self._ledger.take_all():  # records of frames that were not stored: in the table now
                self._settle_durable(key, entry)
            self.state = AcquisitionState.SEALED
            return
        self._fail(report.error or ErrorText(WorkerError, "the store was finished before its time"))
        self._fail_at_last()
