"""The shard rows of one acquisition that are in progress: those that take frames, those that wait for their
last slabs or for room on the disk, those that the sealer makes or seals.

``states`` has the states of a shard row and those of its files, ``verdicts`` what happens to a frame whose
slab does not collect. Once a shard row is sealed only its holes are remembered, to distinguish a late frame
from a duplicate, and, if it was sealed early, what it needs to be opened again (``earlier_shard_rows``).
Owned by the acquisition's thread."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import image_of
from shardwright.kernels.place import slabs_and_indices
from shardwright.model.errors import StorageFullError
from shardwright.shard.layout import frames_of_shard_row, slabs_of_shard_row

from .assembly import first_of_fullest_image
from .closed_shard_rows import EarlierShardRow, HoleMemory, SealedShardRows
from .commands import Discard, Prepare, Seal
from .earlier_shard_rows import EarlierShardRows
from .full_disk import retry_at_s
from .states import FILES, SHARD_ROW, FilesEvent, FilesState, ShardRowEvent, ShardRowState
from .verdicts import REFUSING, VERDICTS, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.model.error_text import ErrorText
    from shardwright.model.write_settings import WriteSettings
    from shardwright.shard.layout import StoreLayout
    from shardwright.shard.shard_row_files import ShardRowFiles

    from .closed_shard_rows import EarlierMemory
    from .commands import SealerCommand, ShardRowPrepared, SlabReload
    from .full_disk import FullDisk
    from .limits import Limits
    from .recovered_state import RecoveredShardRow

_CHANGING = frozenset(FilesState) - {
    FilesState.PREPARING,
    FilesState.REFUSED,
    FilesState.READY,
    FilesState.SPOILED,
    FilesState.GONE,
}


@dataclass
class ShardRow:
    """A shard row in progress. Only ``ShardRows`` writes its fields; whoever else has one reads."""

    number: int
    slabs: int  # in all
    # What happens to a frame of it, and what may be done to its files: two state machines, since the files
    # may break, or wait for room, whether it takes frames or not.
    state: ShardRowState = ShardRowState.NEW
    files_state: FilesState = FilesState.PREPARING
    files: ShardRowFiles | None = None  # None until they are made
    # Why they could not be made; it counts only once a slab needs them: another root, or the next attempt,
    # may have room.
    failure: ErrorText | None = None
    # The number of the latest command to make them. The shard row may be discarded and prepared again before
    # the first answer comes; that answer is for files about to be deleted.
    request: int = 0
    # Its files are below the second root. Stays true for the next attempt, and for new files after an I/O
    # error: the main root was full.
    spilled: bool = False
    retry_s: float = 0.0  # while it waits for room: when to try again
    # Something of it is on the disk and may have been acknowledged: a failing acquisition seals it or leaves
    # it to recovery, but never deletes it. Sticky: a rewrite that loses every frame does not make it
    # deletable.
    holds_frames: bool = False
    # slabs that were handed to the workers, or wait for that: they take no frames any more
    done_slabs: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)  # rows of the slab table that wait for usable files
    # Slabs at the workers, or stored while a frame of theirs is still being staged. Not 0: the files must
    # stay.
    in_flight: int = 0
    # As counted for its shards in the account, which gives it back when these shards are replaced.
    stored_bytes: int = 0

    @property
    def takes_frames(self) -> bool:
        return self.state is ShardRowState.OPEN

    @property
    def ready(self) -> bool:
        """True if its files are there and usable."""
        return self.files_state is FilesState.READY

    @property
    def rewriting(self) -> bool:
        """True after an I/O error: no worker may start on the old files."""
        return self.files_state in (FilesState.BROKEN, FilesState.REWRITING)

    @property
    def waits_for_room(self) -> bool:
        return self.files_state in (
            FilesState.NO_ROOM,
            FilesState.NO_ROOM_TO_SEAL,
            FilesState.NO_ROOM_TO_REOPEN,
        )

    @property
    def can_be_sealed(self) -> bool:
        """True if its files hold all that was reported as stored, and are neither rewritten nor being
        sealed."""
        return self.files_state in (FilesState.READY, FilesState.NO_ROOM_TO_SEAL)

    @property
    def is_done(self) -> bool:
        """True if every slab of it that will come is stored."""
        comes = self.takes_frames and len(self.done_slabs) < self.slabs
        return not comes and self.in_flight == 0 and not self.waiting

    @property
    def reopened(self) -> bool:
        """True if its files replace sealed shards, which keep the final names until it is sealed: readers see
        those."""
        return self.files is not None and self.files.journal.reopened

    @property
    def replaces_sealed(self) -> bool:
        """True if it is opened again, and its older shards keep the final names until it is sealed."""
        return self.reopened or self.state is ShardRowState.REOPENING


class ShardRows:
    """The shard rows of one acquisition: those in progress, which it alone writes, and what is remembered of
    the sealed ones. ``ask`` takes commands for the sealer, ``on_event`` (name, facts)."""

    def __init__(
        self,
        layout: StoreLayout,
        limits: Limits,
        ask: Callable[[SealerCommand], None],
        settings: WriteSettings,
        on_event: Callable[[str, dict[str, Any]], None],
        full_disk: FullDisk,
    ) -> None:
        # In progress; others read it. One that is given up is taken out at once, and a report about its files
        # that comes later finds nothing to change.
        self.by_number: dict[int, ShardRow] = {}
        self.layout, self._grids = layout, layout.grids  # they get more images, and change nothing of others
        # Those that were sealed before they were full, and what an open one of them still owes: sealed again
        # without it, it would replace shards that have more frames. The core notes stored and closed slabs.
        self.earlier = EarlierShardRows(self._grids)
        # For frames of closed slabs: which places have one. A late frame is counted otherwise than a
        # duplicate.
        self.holes = HoleMemory(len(self._grids.grids))
        # All that are sealed, for good or not. None of them is prepared ahead: its files would begin without
        # what is sealed. Others read how far shapes may reach.
        self.closed = SealedShardRows(self._grids)
        # The next shard row, whose files the sealer makes before a frame needs them: so no frame waits for
        # the disk at a shard's edge. After a resumption also those that were found without a frame.
        self._prepared: dict[int, ShardRow] = {}
        # The number of those in progress that take frames, by image: no frame looks through all.
        self._taking: dict[int, int] = {}
        # Those in progress that wait for room on the disk. Few, if any, so that no step looks through all.
        self._without_room: dict[int, ShardRow] = {}
        # Commands to prepare files so far. Each has its number, by which the answer to an earlier one for the
        # same shard row is known.
        self._requests = 0
        # False once a full disk is to end the acquisition: by ``on_full``, or since its caller must end
        self.waits_for_room = settings.on_full != "fail"
        self._limits = limits
        self._ask = ask  # appends to the core's commands: what is asked first is done first
        # As they were at the begin. Only ``on_full`` and ``spill_root`` are read, which never change.
        self._settings = settings
        self._on_event = on_event
        self._full_disk = full_disk  # the core's: records and the end of the store wait in the same one

    def take_images(self, layout: StoreLayout) -> None:
        """Takes the layout with those of images that were added."""
        self.layout, self._grids = layout, layout.grids
        self.earlier.take_images(self._grids)
        self.holes.take_images(len(self._grids.grids))
        self.closed.take_images(self._grids)

    # ------------------------------------------------------------------ which shard rows there are

    def prepare_first(self, prepare: Callable[[Prepare], ShardRowPrepared]) -> ShardRowPrepared:
        """Prepares the first shards at once, by ``prepare``, so that a full disk is refused before any frame.
        Raises ``StorageError``."""
        shard_row = self._prepared[0] = ShardRow(0, self._slabs_of(0))
        report = prepare(self._preparing(shard_row))
        if report.error is not None and report.error.is_a(StorageFullError) and self._can_spill(shard_row):
            self._note_spill(shard_row, report.error)
            report = prepare(self._preparing(shard_row, spill=True))
        if report.error is not None:
            raise report.error.to_error()
        return report

    def note_prepared(self, report: ShardRowPrepared) -> ShardRow | None:
        """Notes files that were made, or not. Returns the shard row if it is open."""
        shard_row = self.by_number.get(report.shard_row) or self._prepared.get(report.shard_row)
        if shard_row is None or shard_row.request != report.request:
            return None  # discarded meanwhile
        shard_row.files, shard_row.failure = report.files, report.error
        self._files_go(shard_row, FilesEvent.REFUSED if report.files is None else FilesEvent.PREPARED)
        if report.files is not None:
            self._full_disk.has_room(shard_row.number)
        return self.by_number.get(report.shard_row)

    def restore(self, found: RecoveredShardRow) -> ShardRow:
        """Adds a shard row that was found on disk, its files open."""
        stood, number = found.standing, found.files.shard_row
        reopened = found.files.journal.reopened
        shard_row = ShardRow(
            number,
            stood.slabs,
            state=ShardRowState.OPEN,
            files_state=FilesState.READY,
            files=found.files,
            spilled=stood.spilled,
            # also where none is left: what has its final name is no more deleted than what has frames
            holds_frames=reopened or stood.sealing_begun or bool(stood.whole_slabs or stood.named_slabs),
            done_slabs={*stood.whole_slabs, *stood.named_slabs},
            stored_bytes=stood.stored_bytes,
        )
        self.earlier.restore_open(number, stood.fillable_slabs)
        for slab, filled in stood.holes.items():
            self.holes.remember(slab, filled)
        self.by_number[number] = shard_row
        self._count_taking(shard_row, 1)
        return shard_row

    def restore_closed(self, numbers: Iterable[int], holes: HoleMemory, earlier: EarlierMemory) -> None:
        self.holes = holes
        self.earlier.restore(earlier)
        for number in sorted(numbers):
            self.closed.add(number)

    def of_slab(self, slab: int) -> ShardRow:
        """Returns the shard row in progress to which a slab belongs."""
        return self.by_number[self._grids.shard_row_of_slab(slab)]

    def state_of(self, number: int) -> ShardRowState:
        shard_row = self.by_number.get(number)
        if shard_row is not None:
            return shard_row.state
        if number in self.earlier:
            return ShardRowState.EARLIER
        return ShardRowState.SEALED if number in self.closed else ShardRowState.NEW

    def may_refuse(self, slab: int) -> bool:
        """Returns whether frames of a slab that does not collect may have to be refused: ``verdicts`` says
        which."""
        number = self._grids.shard_row_of_slab(slab)
        return self._may_refuse(self.state_of(number), number, slab)

    def _may_refuse(self, state: ShardRowState, number: int, slab: int) -> bool:
        if state is ShardRowState.OPEN:
            return slab in self.by_number[number].done_slabs
        return state in REFUSING

    def verdicts(self, slab: int, in_slab: np.ndarray) -> np.ndarray:
        """Returns ``FrameVerdict`` for frames at int64[n] indices in a slab that does not collect."""
        number = self._grids.shard_row_of_slab(slab)
        verdicts: np.ndarray = VERDICTS[self.state_of(number)][self._stored(number, slab, in_slab)]
        return verdicts

    def verdict(self, number: int, slab: int, position: int) -> int:
        """Returns ``FrameVerdict`` for the frame at a position of a slab of this shard row that does not
        collect."""
        state = self.state_of(number)
        if not self._may_refuse(state, number, slab):
            # Whatever is at its place. A slab may be a single frame, for which the look-up costs much.
            return int(VERDICTS[state][Stored.NO_SLAB])
        _, in_slab = slabs_and_indices(np.array([position]), *self._grids.tables)
        return int(self.verdicts(slab, in_slab)[0])

    def _stored(self, number: int, slab: int, in_slab: np.ndarray) -> np.ndarray:
        """Returns ``Stored`` for int64[n] indices in the slab."""
        shard_row = self.by_number.get(number)
        if shard_row is not None and shard_row.takes_frames:
            if slab not in shard_row.done_slabs:
                return np.full(in_slab.size, Stored.NO_SLAB)
            if (filled := self.earlier.fillable(number).get(slab)) is not None:
                return np.where(filled[in_slab], Stored.FRAME, Stored.NOTHING)
        if number in self.earlier:
            return self.earlier[number].stored(slab, in_slab)
        return self.holes.stored(slab, in_slab)

    def may_open(self, number: int) -> bool:
        """Returns whether one more shard row may be in progress, if this one is not."""
        return number in self.by_number or len(self.by_number) < self._limits.open_shard_rows

    def open(self, number: int) -> ShardRow:
        """Opens a shard row for frames, unless it is open, and lets the next one be prepared."""
        if number not in self.by_number:
            shard_row = self._prepared.pop(number, None)
            if shard_row is None or shard_row.files_state is FilesState.REFUSED:
                shard_row = self._new(number)
            self._go(shard_row, ShardRowEvent.OPEN)
            self.by_number[number] = shard_row
            self._prepare_next(number)
        return self.by_number[number]

    def _prepare_next(self, number: int) -> None:
        """Lets the next shard row be prepared; not while several images are filled, since each of them would
        need one."""
        if (following := self._grids.next_shard_row(number)) is None:
            return
        one_image = self._grids.slower_axes == 0 or self._taking.keys() <= {image_of(number)}
        if (
            one_image
            and following not in self.by_number
            and following not in self._prepared
            and following not in self.closed
        ):
            self.discard_prepared()
            self._prepared = {following: self._new(following)}

    def set_empty_aside(self, numbers: set[int]) -> None:
        """Treats shard rows that were found on disk without a frame as prepared, not as open. ``numbers``:
        shard rows that have frames in slabs that are not full."""
        for number, shard_row in list(self.by_number.items()):
            empty = not shard_row.holds_frames and not shard_row.done_slabs and number not in numbers
            if shard_row.takes_frames and empty:
                self._go(shard_row, ShardRowEvent.EMPTY)
                self._prepared[number] = self.by_number.pop(number)

    def reopen(self, number: int, reload: SlabReload) -> None:
        """Lets the sealer make new files for a sealed shard row. ``reopened`` or ``stays_closed`` must
        follow."""
        self.by_number[number] = ShardRow(
            number,
            self._slabs_of(number),
            state=ShardRowState.REOPENING,
            files_state=FilesState.REOPENING,
        )
        self._ask(self.earlier.ask(number, reload))

    def reopened(
        self, shard_row: ShardRow, files: ShardRowFiles, reloaded: frozenset[int], copied_bytes: int
    ) -> EarlierShardRow:
        """Takes the new files, which hold all that was sealed except the reloaded slabs. Returns what was
        sealed."""
        earlier = self.earlier.reopened(shard_row.number, reloaded)
        shard_row.files, shard_row.spilled = files, files.placement.spill is not None
        self._files_go(shard_row, FilesEvent.REOPENED)
        self._go(shard_row, ShardRowEvent.REOPENED)
        shard_row.done_slabs.update(set(earlier.begun.tolist()) - reloaded)
        shard_row.holds_frames = True
        shard_row.stored_bytes += copied_bytes
        for slab in earlier.holes.keys() & shard_row.done_slabs:
            self.holes.remember(slab, earlier.holes[slab])
        self.holes.forget(self._empty_slabs(shard_row))
        self._full_disk.has_room(shard_row.number)
        self._prepare_next(shard_row.number)
        return earlier

    def stays_closed(self, shard_row: ShardRow) -> np.ndarray:
        """Leaves a shard row closed, since its sealed shards cannot be read: further frames of it are late.
        Returns int64[n]: the slots of the staging area that were taken for it."""
        self._files_go(shard_row, FilesEvent.GIVE_UP)
        self._go(shard_row, ShardRowEvent.UNREADABLE)
        self._full_disk.has_room(shard_row.number)
        del self.by_number[shard_row.number]
        return self.earlier.unreadable(shard_row.number)

    def replace_sealed(self) -> set[int]:
        """Returns the images of which a shard row is opened again."""
        return {image_of(number) for number, row in self.by_number.items() if row.replaces_sealed}

    def oldest_when_all_open(self, image: int) -> ShardRow | None:
        """Returns the shard row to close when one more is needed, for a frame of ``image``; None while
        another is not OPEN."""
        if sum(self._taking.values()) < len(self.by_number):
            return None
        oldest = first_of_fullest_image(
            dict.fromkeys(self.by_number, 1), lambda number: self._grids.shard_rows_of(number, image)
        )
        return None if oldest is None else self.by_number[oldest]

    def sealed(
        self,
        shard_row: ShardRow,
        records: np.ndarray,
        index_bytes: int,
        passed: Callable[[], np.ndarray],
    ) -> None:
        """Notes that a shard row's files have their final names. ``records``: of all that is in them;
        ``passed``: returns ``Accounts.passed``."""
        places = frames_of_shard_row(self.layout.of(shard_row.number), shard_row.number)
        shard_row.stored_bytes += index_bytes
        self._files_go(shard_row, FilesEvent.SEALED)
        self._go(shard_row, ShardRowEvent.FULL if records.size == places else ShardRowEvent.SEALED)
        self._full_disk.has_room(shard_row.number)
        self.closed.add(shard_row.number)
        if shard_row.state is ShardRowState.EARLIER:
            earlier = replace(EarlierShardRow.of(self._grids, records), stored_bytes=shard_row.stored_bytes)
            self.earlier.remember(shard_row.number, earlier, passed)
        self._remove(shard_row)

    def give_up(self, shard_row: ShardRow) -> None:
        """Forgets a shard row whose files are left as they are, or deleted."""
        self._files_go(shard_row, FilesEvent.GIVE_UP)
        self._remove(shard_row)

    def _remove(self, shard_row: ShardRow) -> None:
        self._count_taking(shard_row, -shard_row.takes_frames)  # of one that is given up
        del self.by_number[shard_row.number]
        self.earlier.closed(shard_row.number)

    def discard_prepared(self) -> None:
        for shard_row in self._prepared.values():
            self._files_go(shard_row, FilesEvent.GIVE_UP)
            self._ask(Discard(shard_row.number))
        self._prepared = {}

    def close(self, shard_row: ShardRow, *, aside: bool) -> None:
        """Lets a shard row take no more frames. ``aside``: until it is sealed and opened again for them."""
        self._go(shard_row, ShardRowEvent.SET_ASIDE if aside else ShardRowEvent.CLOSE)

    def remember_empty_slabs(self, shard_row: ShardRow) -> None:
        """Remembers slabs without a frame as holes: the shard row is closed."""
        for slab in self._empty_slabs(shard_row):
            self.holes.remember(slab, None)

    def _empty_slabs(self, shard_row: ShardRow) -> list[int]:
        slabs = slabs_of_shard_row(self.layout.of(shard_row.number), shard_row.number)
        return [slab for slab in slabs if slab not in shard_row.done_slabs]

    def seal_if_done(self, shard_row: ShardRow) -> None:
        if shard_row.is_done and shard_row.ready:
            self.seal(shard_row)

    def seal(self, shard_row: ShardRow) -> None:
        """Lets the sealer seal a shard row. Its new shards may replace older ones, so every slab that was
        reloaded from these must be stored. What a rewrite could not read back is reported as lost."""
        assert not self.earlier.has_reloaded_slabs(shard_row.number), (
            "sealed now it would lose frames that are sealed"
        )
        self._files_go(shard_row, FilesEvent.SEAL)
        if shard_row.takes_frames:
            self.close(shard_row, aside=bool(self.earlier.fillable(shard_row.number)))
        self._ask(Seal(shard_row.number))

    def seal_failed(self, shard_row: ShardRow) -> None:
        """Notes files that did not get their final names: they are moved to new ones, or spoiled."""
        self._files_go(shard_row, FilesEvent.SEAL_FAILED)

    def _slabs_of(self, number: int) -> int:
        return math.prod(self._grids.of(number).shard_row_extent_chunks(number))

    def _new(self, number: int) -> ShardRow:
        shard_row = ShardRow(number, self._slabs_of(number))
        self._ask(self._preparing(shard_row))
        return shard_row

    def _preparing(self, shard_row: ShardRow, *, spill: bool = False) -> Prepare:
        self._requests += 1
        shard_row.request, shard_row.spilled, shard_row.failure = self._requests, spill, None
        return Prepare(shard_row.number, self._requests, spill=spill)

    # ------------------------------------------------------------------ their slabs

    def slab_closed(self, shard_row: ShardRow, slab: int, row: int) -> None:
        """Notes a slab that takes no more frames. Its row of the slab table waits for usable files."""
        shard_row.done_slabs.add(slab)
        shard_row.waiting.append(row)

    def slab_waits(self, shard_row: ShardRow, row: int) -> None:
        """Lets a slab wait again: it must go into other files than those that failed."""
        shard_row.waiting.append(row)

    def slabs_sent(self, shard_row: ShardRow, rows: list[int]) -> None:
        """Notes waiting rows that go to the workers."""
        sent = set(rows)
        shard_row.waiting = [row for row in shard_row.waiting if row not in sent]
        shard_row.in_flight += len(rows)

    def slab_held_back(self, shard_row: ShardRow) -> None:
        """Notes a stored slab of which a worker is still staging a frame."""
        shard_row.in_flight += 1

    def slab_done(self, shard_row: ShardRow, stored_bytes: int = 0) -> None:
        """Notes a slab that no worker uses any more, well or not."""
        shard_row.in_flight -= 1
        shard_row.stored_bytes += stored_bytes

    def note_frames(self, shard_row: ShardRow) -> None:
        """Notes that the files have a frame."""
        shard_row.holds_frames = True

    def give_up_waiting(self) -> list[int]:
        """Removes and returns the rows that wait for files, of all shard rows."""
        rows = [row for shard_row in self.by_number.values() for row in shard_row.waiting]
        for shard_row in self.by_number.values():
            shard_row.waiting = []
        return rows

    @property
    def making_files(self) -> bool:
        """True if slabs wait for files that are being made; not while the disk has no room for them."""
        return any(
            shard_row.waiting and not shard_row.waits_for_room for shard_row in self.by_number.values()
        )

    @property
    def are_changing(self) -> bool:
        """True while slabs of any are being stored or wait for that, or its files are sealed, moved or wait
        for room."""
        return any(
            shard_row.waiting or shard_row.in_flight or shard_row.files_state in _CHANGING
            for shard_row in self.by_number.values()
        )

    # ------------------------------------------------------------------ shard rows without usable files

    def spoil(self, shard_row: ShardRow) -> None:
        """Notes that the files lack something that was, or may have been, acknowledged: they are never
        sealed."""
        self._files_go(shard_row, FilesEvent.SPOIL)

    def broke(self, shard_row: ShardRow) -> None:
        """Notes an I/O error of the files: nothing more is written into them."""
        self._files_go(shard_row, FilesEvent.BROKE)

    def rewrite_begins(self, shard_row: ShardRow) -> None:
        """Notes that the sealer copies what can be read back to new files."""
        self._files_go(shard_row, FilesEvent.REWRITE)

    def rewritten(self, shard_row: ShardRow, files: ShardRowFiles | None) -> None:
        """Takes the new files from the sealer. With None only the old ones are left, and lack something."""
        if files is not None:
            shard_row.files = files
        self._files_go(shard_row, FilesEvent.REWRITTEN)
        if files is None:
            self.spoil(shard_row)

    def cannot_be_filled(self, shard_row: ShardRow, now_s: float) -> ErrorText | None:
        """Returns the reason why a shard row that needs files will never have them, or None. For want of room
        the shard row keeps waiting, if ``on_full`` allows it."""
        error = shard_row.failure
        needs = shard_row.waiting or shard_row.is_done or self._grids.in_place  # for any frame
        if error is None or shard_row.files_state is not FilesState.REFUSED or not needs:
            return None
        if error.is_a(StorageFullError) and self._waits_for_room(shard_row, now_s, error):
            return None
        self.spoil(shard_row)
        return error

    def can_sync(self, number: int) -> bool:
        """Returns whether what is not in the files of a shard row in progress, or is in usable ones, can be
        synced."""
        shard_row = self.by_number.get(number)
        return shard_row is None or shard_row.ready

    def files_for_waiting(self, shard_row: ShardRow) -> ShardRowFiles | None:
        """Returns the files for waiting rows, or None while they must keep waiting."""
        if not shard_row.waiting or not shard_row.ready:
            return None
        return shard_row.files

    def cannot_continue(self, shard_row: ShardRow) -> ErrorText | None:
        """Returns the reason why an open shard row will never have files, as soon as that is known: with the
        policy ``fail`` before any frame of it is acknowledged. None if it has them or waits for room."""
        error = shard_row.failure
        waits = (
            error is not None
            and error.is_a(StorageFullError)
            and (self.waits_for_room or self._can_spill(shard_row))
        )
        return None if waits else error

    def may_stage(self, shard_row: ShardRow) -> bool:
        """Returns whether frames of a shard row may be acknowledged before their slabs are in its files. Only
        if these are ready with policy ``fail``, so that the frames are sure to get there, and where their
        pixels are there at once."""
        return (self._settings.on_full != "fail" and not self._grids.in_place) or shard_row.ready

    def waits_with_files(self, shard_row: ShardRow, now_s: float, error: ErrorText) -> bool:
        """Lets a shard row wait for room to be sealed (for folders and the frame log: even the ballast was
        not enough), or to be opened again. Returns False when the error ends the acquisition. It never
        spills: its files are there, and new shards must lie in the root of the sealed ones."""
        if not error.is_a(StorageFullError) or not self.waits_for_room:
            return False
        self._wait_for_room(shard_row, now_s, error)
        return True

    def _waits_for_room(self, shard_row: ShardRow, now_s: float, error: ErrorText) -> bool:
        if self._can_spill(shard_row):
            self._spill(shard_row, error)
            return True
        if not self.waits_for_room:
            return False
        self._wait_for_room(shard_row, now_s, error)
        return True

    def _can_spill(self, shard_row: ShardRow) -> bool:
        return self._settings.on_full == "spill" and not shard_row.spilled

    def _wait_for_room(self, shard_row: ShardRow, now_s: float, error: ErrorText) -> None:
        self._full_disk.wait(shard_row.number, error.message)
        shard_row.retry_s = retry_at_s(now_s)
        self._files_go(shard_row, FilesEvent.WAIT)

    def _spill(self, shard_row: ShardRow, error: ErrorText) -> None:
        self._note_spill(shard_row, error)
        self._files_go(shard_row, FilesEvent.RETRY)
        self._ask(self._preparing(shard_row, spill=True))

    def _note_spill(self, shard_row: ShardRow, error: ErrorText) -> None:
        self._on_event(
            "spilling",
            {"shard_row": shard_row.number, "root": str(self._settings.spill_root), "reason": error.message},
        )

    @property
    def waiting_for_room(self) -> bool:
        return bool(self._without_room)

    def wait_no_longer(self) -> None:
        """Retries all that waits for room once more, at once; without room that ends the acquisition."""
        self.waits_for_room = False
        for shard_row in self._without_room.values():
            shard_row.retry_s = 0.0

    def retry_full_disk(self, now_s: float) -> None:
        """Retries to preallocate (in the main root first), to reopen or to seal what had no room."""
        for shard_row in list(self._without_room.values()):
            if now_s < shard_row.retry_s:
                continue
            self._files_go(shard_row, FilesEvent.RETRY)
            if shard_row.files_state is FilesState.SEALING:
                self._ask(Seal(shard_row.number))
            elif shard_row.files_state is FilesState.REOPENING:
                self._ask(self.earlier.ask_again(shard_row.number))
            else:
                self._ask(self._preparing(shard_row))

    def _go(self, shard_row: ShardRow, event: ShardRowEvent) -> None:
        took = shard_row.takes_frames
        shard_row.state = SHARD_ROW.after(shard_row.state, event)
        self._count_taking(shard_row, shard_row.takes_frames - took)

    def _count_taking(self, shard_row: ShardRow, more: int) -> None:
        if more:
            image = image_of(shard_row.number)
            self._taking[image] = self._taking.get(image, 0) + more
            if not self._taking[image]:
                del self._taking[image]

    def _files_go(self, shard_row: ShardRow, event: FilesEvent) -> None:
        """Moves the files of a shard row to their next state."""
        shard_row.files_state = FILES.after(shard_row.files_state, event)
        if shard_row.waits_for_room:
            self._without_room[shard_row.number] = shard_row
        else:
            self._without_room.pop(shard_row.number, None)
