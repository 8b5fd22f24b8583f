"""One acquisition: the state machine between frames that come in and shards that are sealed.

    submit -> pending batches -> slab table -> worker tasks -> (reports) -> stored -> commit -> durable
                                           \\-> staged, when the slab takes long          \\-> the keeper seals the group

Single owner: every method is called from one thread (ingest, or the user's own under its writer's lock), which never waits for a worker or a disk
here. Workers and the keeper answer through one queue; ``wake`` tells the owner that ``poll`` has something to do, and ``poll`` must be called
several times a second for the clocks behind it. A frame's pixels belong to the pipeline from ``submit`` until its sequence comes out of ``poll``.
Its other modules: ``frame_flow`` (frames to slabs), ``outcomes`` (what comes of them), ``failure``.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from queue import Empty
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.degrade_level import DegradeLevel
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import DuplicateFrameError, ResumeError
from shardwright.model.fates import Fate, Reason
from shardwright.wire.descriptor import FRAME_DROPPED, descriptor_dtype, not_held

from .commands import Finish, RemoveStore
from .commit_ledger import joined
from .frame_flow import AcquisitionState, _Batch
from .groups import Group, GroupState
from .outcomes import Outcomes
from .settings import WriteSettings
from .store_folder import StoreFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.model.receipt import Receipt

    from .limits import Limits
    from .restored import Restored, RestoredGroup
    from .workers import WorkerPool

_SETTLE_ROWS = 4096
_EVENT_OF_FATE = {
    Fate.DUPLICATE: "frames_duplicate",
    Fate.LATE: "frames_late",
    Fate.DROPPED: "frames_dropped",
    Fate.LOST: "frames_lost",
}
_HINT_OF_FATE = {
    Fate.DUPLICATE: "Is the index right? Images of several positions or channels fall on one place where the array has no axis for them",
    Fate.LATE: "Its place had been closed: more frames came in another order than the ring holds",
    Fate.DROPPED: "Frames come faster than they are stored: is it the disk or the codec?",
    Fate.LOST: "`shardwright inspect --missing STORE` lists the places that such frames leave empty",
}
__all__ = ["Acquisition", "AcquisitionState"]


class Acquisition(Outcomes):
    """Creates the store and prepares its first shards before it returns. Raises ``OutputExistsError``, ``StorageError``, ``StorageFullError``.

    ``restored``: goes on with what ``pipeline.resume`` found on disk instead.
    """

    def __init__(
        self,
        path: Path,
        spec: ArraySpec,
        limits: Limits,
        pool: WorkerPool,
        wake: Callable[[], None],
        settings: WriteSettings | None = None,
        *,
        restored: Restored | None = None,
    ) -> None:
        settings = settings or WriteSettings()
        folder = StoreFolder.create(path, spec, limits, settings) if restored is None else restored.folder
        self._is_new = restored is None
        try:
            super().__init__(folder, limits, pool, wake, settings, () if restored is None else restored.staged_slots)
        except BaseException:
            if restored is None:
                folder.remove_store()
            raise
        try:
            if restored is None:
                self._group_prepared(self._groups.prepare_first(self._keeper.prepare))  # a full disk is a clean refusal here
            else:
                self._restore(restored)
            self._keeper.start()  # last: what fails before leaves no thread behind
        except BaseException:
            self.take_back()
            raise

    @classmethod
    def resume(
        cls,
        path: Path,
        pool: WorkerPool,
        wake: Callable[[], None],
        settings: WriteSettings,
        limits_of: Callable[[ArraySpec], Limits],
        *,
        take_over: bool = False,
    ) -> Acquisition:
        """Go on with an unfinished store. Raises ``LockedError``, ``ResumeError``, ``ShardFormatError`` or ``StorageError``."""
        from .resume import restore  # imports what builds on this module's parts

        restored = restore(path, limits_of, settings, threads=pool.threads, take_over=take_over)
        try:
            return cls(path, restored.spec, restored.limits, pool, wake, settings, restored=restored)
        except BaseException:
            restored.close()
            raise

    # ------------------------------------------------------------------ the owner's calls

    @property
    def identity(self) -> str:
        """32 hex digits that no other acquisition has."""
        return self.folder.manifest.identity

    @property
    def next_sequence(self) -> int:
        return self.accounts.seen.stop

    @property
    def is_finishing(self) -> bool:
        return self._finish_asked

    @property
    def stored_watermark(self) -> int:
        """Frames from sequence 0 without a hole that a kill of this process cannot lose; settled ones (duplicate, late, dropped, lost) count."""
        return self.accounts.stored.value

    @property
    def durable_watermark(self) -> int:
        """Likewise, that a power cut cannot lose."""
        return self.accounts.durable.value

    def missing(self, stop: int) -> list[tuple[int, int]]:
        """(first, last) ranges of sequences below ``stop`` that never came."""
        return self.accounts.seen.missing(stop)

    def new_client(self) -> int:
        """Another client takes over: its epoch. Writes the manifest: not in the ingest thread. Raises ``StorageError`` or ``FencedError``."""
        if self.state is not AcquisitionState.OPEN:
            raise ResumeError(f"{self.path} is being ended", got=self.state.value)
        return self.folder.count_client()

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray) -> None:
        """Take frames: ``descriptor_dtype``[n] with positions inside the array, and int64[n] addresses of their pixels (C order, little-endian).

        Frames with flags have no pixels and are only recorded. A sequence that came before is dropped, its pixels released.
        """
        sequences = descriptors["sequence"].astype(np.int64)
        if self.state not in (AcquisitionState.OPEN, AcquisitionState.FINISHING) or self._finish_asked:
            self._refuse(descriptors, sequences)
            return
        again = self.accounts.seen.holds(sequences)
        if again.any():
            self._released.append(sequences[again])
            descriptors, addresses, sequences = descriptors[~again], addresses[~again], sequences[~again]
        positions = descriptors["position"].astype(np.int64)
        self.accounts.receive(sequences, positions)
        records = self._records_of(descriptors)
        told = descriptors["flags"] != 0
        if told.any():
            dropped = descriptors["flags"][told] == FRAME_DROPPED
            self._settle(
                records[told],
                np.where(dropped, Fate.DROPPED, Fate.LOST).astype(np.uint8),
                np.where(dropped, Reason.OVERLOAD, Reason.NOT_HELD).astype(np.uint8),
                release=False,
            )
            kept = ~told
            records, positions, sequences, addresses = records[kept], positions[kept], sequences[kept], addresses[kept]
        if sequences.size:
            self._pending.append(_Batch(records, positions, sequences, addresses.astype(np.int64), np.zeros(sequences.size, np.uint8)))
        self._advance()

    def poll(self, timeout_s: float | None = None) -> np.ndarray:
        """Handle what workers and keeper reported; returns int64 sequences whose pixels are no longer needed.

        With a timeout, first waits that long for a report (for an owner that has nothing else to wait for).
        """
        alive = self._pool.alive()
        ended = not alive and self._pool.ended()  # asked before the reports: all that its workers had to say is among them
        try:
            report = self._reports.get(timeout=timeout_s) if timeout_s is not None else self._reports.get_nowait()
            while True:
                self._handle(report)
                report = self._reports.get_nowait()
        except Empty:
            pass
        if not alive:
            self._fail_with_pool(ended=ended)
        self._advance()
        released, self._released = self._released, []
        sequences = joined(released)
        if self._restored_frames.size and sequences.size:
            ours = np.isin(sequences, self._restored_frames)
            self._restored_frames = np.setdiff1d(self._restored_frames, sequences)
            sequences = sequences[~ours]
        return sequences

    def settle_missing(self) -> None:
        """Sequences below ``next_sequence`` that never came and that nobody can send any more: recorded as lost, so that they hold nothing up."""
        if self.state is not AcquisitionState.OPEN:
            return
        for first, last in self.missing(self.next_sequence):
            for start in range(first, last + 1, _SETTLE_ROWS):
                records = self._records_of(not_held(start, min(_SETTLE_ROWS, last + 1 - start), descriptor_dtype(len(self.spec.frame_fields))))
                sequences = records["sequence"].astype(np.int64)
                self.accounts.receive(sequences, records["position"].astype(np.int64))
                reason = np.where(self.accounts.may_be_acknowledged(sequences), Reason.NOT_HELD, Reason.NOT_ACKNOWLEDGED)
                self._settle(records, Fate.LOST, reason.astype(np.uint8), release=False)
        self._advance()

    def flush(self) -> None:
        """Make everything that came so far durable, now: frames of unfinished slabs are staged. Watch ``durable_watermark``."""
        self._flush_goal = self.accounts.seen.value
        self._advance()

    @property
    def flush_is_stuck(self) -> bool:
        """Whether a flush waits for frames that nothing under way can make durable: their slab is not full, and they cannot be staged."""
        waiting = self.accounts.durable.value < self._flush_goal
        under_way = self.in_flight or self._ledger.busy or self._pending or self.unrecorded_frames or self._groups.making_files
        return waiting and not under_way and not self._desk.usable

    def finish(self, *, keep_empty: bool = True) -> None:
        """No more frames: incomplete slabs are closed with fill value, every shard is sealed. Keep calling ``poll`` until the state is SEALED.

        Unless ``keep_empty``, a store in which no frame was ever recorded is removed: its name is free again."""
        self._finish_asked, self._keep_empty = True, keep_empty
        self._advance()

    def wait_for_room_no_longer(self) -> None:
        """From now on a full disk ends the acquisition, whatever ``on_full`` says: what is stored stays there for recovery. For whoever must end."""
        if not self._groups.waits_for_room or self.state not in (AcquisitionState.OPEN, AcquisitionState.FINISHING):
            return
        if self._groups.waiting_for_room:
            self.flush()  # what waits only in memory is staged, as far as there are slots
        self._groups.wait_no_longer()
        self._unrecorded = deque((0.0, report) for _, report in self._unrecorded)
        self._store_retry_s = None if self._store_retry_s is None else 0.0
        self._advance()

    def receipt(self) -> Receipt:
        failed = self.state is AcquisitionState.FAILED
        receipt = self.accounts.receipt(self.path, over=failed or self.state is AcquisitionState.SEALED, failed=failed)
        chunks, frames = self._level_counts.chunks.tolist(), self._level_counts.frames.tolist()
        return replace(
            receipt,
            frames_faster=frames[DegradeLevel.FASTER],
            frames_uncompressed=frames[DegradeLevel.UNCOMPRESSED],
            chunks_faster=chunks[DegradeLevel.FASTER],
            chunks_uncompressed=chunks[DegradeLevel.UNCOMPRESSED],
        )

    def take_losses(self) -> list[tuple[int, int, ErrorText]]:
        """(first, last, why) of frames that were taken in, perhaps acknowledged, and could not be kept; each is told once."""
        losses, self._losses = self._losses, []
        return losses

    def take_events(self) -> list[tuple[str, dict[str, Any]]]:
        """(name, facts) of what an operator should know; each is told once."""
        self._tell_of_first_frames()
        events = list(self._events)
        self._events.clear()
        return events

    def take_duplicates(self) -> ErrorText | None:
        """What there is to say of frames since the last call whose place was taken, None without any. A sequence that is sent again is none."""
        count = self.accounts.frames_by_fate[Fate.DUPLICATE] - self._duplicates_told
        if not count:
            return None
        self._duplicates_told += count
        record = self.accounts.first_by_fate.pop(Fate.DUPLICATE)
        index = self.grid.index_of(int(record["position"]))
        named = f"frame {int(record['sequence'])}" + (f" (id {int(record['frame_id'])})" if record["frame_id"] >= 0 else "")
        return ErrorText(
            DuplicateFrameError,
            f"the place of {named} is taken",
            expected="one frame for each place",
            got=f"another one for index {index}" + (f", and {count - 1} more such frames" if count > 1 else ""),
            hint=f"{_HINT_OF_FATE[Fate.DUPLICATE]}. on_duplicate: count keeps the first of a place and counts the others",
        )

    def _tell_of_first_frames(self) -> None:
        """The first frame of each fate is an event; how many follow stands in the counts, so that a camera which is too fast fills no log."""
        for fate, event in _EVENT_OF_FATE.items():
            frames = self.accounts.frames_by_fate[fate]
            raised = fate is Fate.DUPLICATE and self.settings.on_duplicate == "fail"
            if frames and fate not in self._told_fates and not raised:
                self._told_fates.add(fate)
                self._note(event, {"frames": frames, **self._facts_of_first(fate), "hint": _HINT_OF_FATE[fate]})

    def _facts_of_first(self, fate: Fate) -> dict[str, Any]:
        """Which frame it was, as far as that is known."""
        record = self.accounts.first_by_fate.get(fate)
        if record is None:
            return {}
        facts: dict[str, Any] = {"sequence": int(record["sequence"]), "reason": Reason(int(record["reason"])).name.lower()}
        if record["frame_id"] >= 0:
            facts["frame_id"] = int(record["frame_id"])
        if record["position"] >= 0:
            facts["index"] = list(self.grid.index_of(int(record["position"])))
        return facts

    def close(self) -> None:
        """Wait for the keeper's thread, which after SEALED or FAILED has nothing left to do. Earlier: leave the store for recovery."""
        if self.state not in (AcquisitionState.SEALED, AcquisitionState.FAILED):
            self._await_workers()
            self._keeper.stop()
        self._keeper.join()
        self.folder.close()

    def take_back(self) -> None:
        """In place of ``close``, for an acquisition that nobody got: a store that was made for it goes, so that its name is free for the next try.
        One that was taken up stays as it is for recovery."""
        if not self._is_new:
            self.close()
            return
        self._keeper.stop()
        self._keeper.join()
        self.folder.remove_store()

    def _await_workers(self) -> None:
        """Nobody may read or write any more when the files are closed and the staging area is unmapped."""
        while self.in_flight and self._pool.alive():
            self.poll(0.1)

    def _refuse(self, descriptors: np.ndarray, sequences: np.ndarray) -> None:
        """Frames that come too late for anything: after the end, or after a failure (then they count as lost)."""
        if self._why is not None and not self._finish_asked:
            self.accounts.receive(sequences, descriptors["position"].astype(np.int64))
            self.accounts.frames_by_fate[Fate.LOST] += sequences.size
        self._released.append(sequences[descriptors["flags"] == 0])

    def _advance(self) -> None:
        """Go as far as rows, groups and clocks allow; called after every change."""
        if self.state in (AcquisitionState.FAILING, AcquisitionState.FAILED):
            self._failing_step()
            return
        now_s = time.monotonic()
        self._groups.retry_full_disk(now_s)
        while self._pending and self._place(self._pending[0]):
            self._pending.popleft()
        self._relieve_ring()
        self._look_at_ring(now_s)
        self._stage_and_commit(now_s)
        if self._why is not None:
            self._failing_step()
        elif self._finish_asked and not self._pending:
            self._finish_step()

    # ------------------------------------------------------------------ the end

    def _finish_step(self) -> None:
        if self.state is AcquisitionState.OPEN:
            self.state = AcquisitionState.FINISHING
            for group in list(self._groups.by_number.values()):
                if group.state is GroupState.OPEN and self._why is None:
                    self._close_group(group)
            self._groups.discard_prepared()
        if self._store_retry_s is not None and time.monotonic() >= self._store_retry_s:
            self._store_retry_s, self._store_asked = None, False
        done = not self._groups.by_number and not self._ledger.committing and not self.in_flight and not self.unrecorded_frames
        if self.state is AcquisitionState.FINISHING and done and not self._store_asked:
            self._store_asked = True
            if self.accounts.frames_received or self._keep_empty:
                self._keeper.put(Finish(self.accounts.received_extent, keep_workspace=False))
            else:
                self._keeper.put(RemoveStore())

    # ------------------------------------------------------------------ the beginning

    def _restore(self, restored: Restored) -> None:
        """Take up what recovery found: closed groups, groups to go on with, staged frames."""
        self.accounts = restored.accounts
        self._groups.restore_closed(restored.closed_groups, restored.holes, restored.earlier)
        self._sealed_extent = max((self._groups.visible.end_of(number) for number in restored.closed_groups), default=0)
        for found in restored.groups:
            self._restore_group(found)
        if restored.staged.size:
            self._restore_staged(restored)
        self._groups.set_empty_aside({self.grid.group_of_slab(slab) for slab in self._table.incomplete()})
        self._duplicates_told = self.accounts.frames_by_fate[Fate.DUPLICATE]
        self._told_fates.update(fate for fate, frames in self.accounts.frames_by_fate.items() if frames)  # by the process before
        self.accounts.first_by_fate.clear()
        self._advance()

    def _restore_group(self, found: RestoredGroup) -> None:
        done = set(found.whole_slabs)
        group = Group(found.files.group, found.slabs - len(done), found.files, done_slabs=done, frames=found.frames)
        self._keeper.adopt(found.files)
        group.stored_bytes = found.stored_bytes
        group.takes_back, group.reopened = found.takes_back, found.files.journal.reopened
        group.opens_again = found.sealing_begun or bool(found.takes_back)
        self._groups.restore(group)
        for slab, filled in found.holes.items():
            self._groups.holes.remember(slab, filled)
        if found.sealing_begun:
            self._close_group(group)
        else:
            self._groups.seal_if_done(group)

    def _restore_staged(self, restored: Restored) -> None:
        """Frames of unfinished slabs, their pixels read from the staging area."""
        if not self._collect_staged(restored.staged, np.array(restored.staged_slots, np.int64)):
            if self._why is not None:
                raise self._why.to_error()
            raise ResumeError(
                f"the staged frames of {self.path} need more memory than there is", hint="Resume with at least the memory that it was begun with"
            )
