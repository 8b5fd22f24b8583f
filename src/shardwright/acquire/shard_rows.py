"""The shard rows of one acquisition: which are open, which wait for their last slabs or for room on the disk,
which are sealed.

REOPENING  was sealed before it was full, by an earlier process or on behalf of one; the sealer makes new
           files that continue it
OPEN       takes frames
CLOSING    takes no more frames; slabs of it are still being compressed
SEALING    handed to the sealer
(gone)     sealed (or, after a failure, given up); only its holes are remembered, to distinguish a late frame
           from a duplicate

The table below shows what happens to a frame whose slab is not collecting (``statuses``,
``Core._open_slab``). An *earlier* shard row is one that a previous process closed, by an early end or an end
that a kill cut short. A place is *shut* when it has a frame, or when newer frames that are kept had passed
over its slab.

    shard row                   the frame's slab    the frame
    not known, or prepared      any                 the shard row opens for it
    OPEN                        not begun           its slab gets a row of the slab table
    OPEN                        of an earlier one   place shut: refused; else the shard row is sealed,
                                                    reopened, and takes it
    REOPENING                   any                 place shut: refused; else it waits
    CLOSING, SEALING            any                 waits if the shard row will be reopened, else refused
    gone, earlier, not full     any                 place shut: refused; else the shard row is reopened
    gone otherwise              any                 refused

A shard row whose files met an I/O error is rewritten: once no worker uses the files, the sealer copies what
can be read back to new ones, and slabs whose frames are still held are encoded again. Owned by the
acquisition's thread.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import image_of
from shardwright.kernels.place import DUPLICATE, PLACED
from shardwright.model.errors import StorageError, StorageFullError

from .assembly import first_of_fullest_image
from .closed_shard_rows import HoleMemory, SealedShardRows
from .commands import Discard, Prepare, Reopen, Rewrite, Seal
from .states import FILES, FilesEvent, FilesState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.array.grid import Grids
    from shardwright.model.error_text import ErrorText
    from shardwright.model.write_settings import WriteSettings
    from shardwright.shard.shard_row_files import ShardRowFiles

    from .closed_shard_rows import EarlierShardRow
    from .commands import SealerCommand, ShardRowPrepared
    from .full_disk import FullDisk
    from .limits import Limits
    from .reopen import TakingBack

FULL_DISK_RETRY_S = 1.0
REMEMBERED_ROWS = 4096  # that may be reopened, about a KB each
MOST_REWRITES = 2  # of one shard row; a disk that fails more often than that ends the acquisition


class ShardRowState(enum.Enum):
    """The state that decides what happens to a frame of the shard row. ``FilesState`` is that of its
    files."""

    REOPENING = "reopening"
    OPEN = "open"
    CLOSING = "closing"
    SEALING = "sealing"


@dataclass
class ShardRow:
    """``slabs_left`` counts slabs not yet handed to the workers, ``in_flight`` those at the workers.
    ``files``: None until they are made, or ``failure`` says why they could not be made."""

    number: int
    slabs_left: int
    files: ShardRowFiles | None = None
    files_state: FilesState = FilesState.PREPARING
    failure: ErrorText | None = None
    request: int = 0  # number of the latest command to prepare them; reports of others are ignored
    in_flight: int = 0
    closed: bool = False  # takes no more frames
    # rows that wait for the files to be prepared, or rewritten
    waiting: list[int] = field(default_factory=list)
    done_slabs: set[int] = field(default_factory=set)
    frames: int = 0  # stored in its slabs
    has_parts: bool = False  # frames were put into chunks of it
    stored_bytes: int = 0  # as counted for its shards in the account
    sound: bool = True  # its files can still be used
    rewrites: int = 0
    # during a rewrite: rows that are in the old files, and stay in memory until they are durable
    held_rows: list[int] = field(default_factory=list)
    retry_s: float = 0.0  # while it waits: when to try again
    spilled: bool = False
    # done slabs of an earlier process whose empty places can still be filled
    takes_back: dict[int, np.ndarray] = field(default_factory=dict)
    opens_again: bool = False  # may be reopened once sealed: an early end must not refuse frames
    reopened: bool = False  # its new shards replace sealed ones
    taking: TakingBack | None = None  # the slabs to take back when it is reopened
    # slabs whose frames were taken back from the sealed shards and are not in the new ones yet
    owed: set[int] = field(default_factory=set)

    def go(self, event: FilesEvent) -> None:
        """Moves its files to their next state."""
        self.files_state = FILES.after(self.files_state, event)

    @property
    def state(self) -> ShardRowState:
        """The state for frames, as it follows from the state of the files."""
        if self.files_state in (FilesState.REOPENING, FilesState.NO_ROOM_TO_REOPEN):
            return ShardRowState.REOPENING
        if self.files_state in (FilesState.SEALING, FilesState.NO_ROOM_TO_SEAL):
            return ShardRowState.SEALING
        return ShardRowState.CLOSING if self.closed else ShardRowState.OPEN

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
        return self.sound and self.files_state in (FilesState.READY, FilesState.NO_ROOM_TO_SEAL)

    @property
    def is_done(self) -> bool:
        """True if every slab of it that will come is stored."""
        return self.slabs_left == 0 and self.in_flight == 0 and not self.waiting


class ShardRows:
    """``ask`` takes commands for the sealer, ``on_event`` (name, facts)."""

    def __init__(
        self,
        grids: Grids,
        limits: Limits,
        ask: Callable[[SealerCommand], None],
        settings: WriteSettings,
        on_event: Callable[[str, dict[str, Any]], None],
        full_disk: FullDisk,
    ) -> None:
        self.by_number: dict[int, ShardRow] = {}
        self.holes = HoleMemory(len(grids.grids))
        self.closed = SealedShardRows(grids)
        self._grids = grids
        self._limits = limits
        self._ask = ask
        self._settings = settings
        self._on_event = on_event
        self._prepared: dict[int, ShardRow] = {}
        self._earlier: dict[int, EarlierShardRow] = {}  # closed ones that can be reopened
        self._full_disk = full_disk
        self._requests = 0  # commands to prepare files
        self.waits_for_room = settings.on_full != "fail"

    # ------------------------------------------------------------------ which shard rows there are

    def prepare_first(self, prepare: Callable[[Prepare], ShardRowPrepared]) -> ShardRowPrepared:
        """Prepares the first shards at once, by ``prepare``, so that a full disk is refused before any frame.
        Raises ``StorageError``."""
        shard_row = self._prepared[0] = self._shard_row(0)
        report = prepare(self._preparing(shard_row))
        if report.error is not None and report.error.is_a(StorageFullError) and self._can_spill(shard_row):
            self._note_spill(shard_row, report.error)
            report = prepare(self._preparing(shard_row))
        if report.error is not None:
            raise report.error.to_error()
        return report

    def note_prepared(self, report: ShardRowPrepared) -> ShardRow | None:
        """Notes files that were made, or not. Returns the shard row if it is open."""
        shard_row = self.by_number.get(report.shard_row) or self._prepared.get(report.shard_row)
        if shard_row is None or shard_row.request != report.request:
            return None  # discarded meanwhile
        shard_row.files, shard_row.failure = report.files, report.error
        shard_row.go(FilesEvent.PREPARED if report.files is not None else FilesEvent.REFUSED)
        if report.files is not None:
            self._full_disk.has_room(shard_row.number)
        return self.by_number.get(report.shard_row)

    def restore(self, shard_row: ShardRow) -> None:
        """Adds a shard row that was found on disk, its files open."""
        self.by_number[shard_row.number] = shard_row

    def restore_closed(
        self, numbers: Iterable[int], holes: HoleMemory, earlier: dict[int, EarlierShardRow]
    ) -> None:
        self.holes = holes
        self._earlier = dict(earlier)
        for number in sorted(numbers):
            self.closed.add(number)

    def is_closed_slab(self, slab: int) -> bool:
        """Returns whether frames of a slab that is not collecting may have to be refused: ``statuses`` says
        which."""
        number = self._grids.shard_row_of_slab(slab)
        shard_row = self.by_number.get(number)
        if shard_row is None:
            return number in self.closed
        if shard_row.state is ShardRowState.OPEN:
            return slab in shard_row.done_slabs
        return shard_row.state is ShardRowState.REOPENING or not shard_row.opens_again

    def statuses(self, slab: int, places: np.ndarray) -> np.ndarray:
        """The status of frames at int64[n] places of a slab that is not collecting: PLACED when its shard row
        takes them, now or once it is open (again), DUPLICATE or LATE when they are refused."""
        number = self._grids.shard_row_of_slab(slab)
        shard_row, earlier = self.by_number.get(number), self._earlier.get(number)
        if shard_row is not None and shard_row.state is ShardRowState.OPEN and slab in shard_row.takes_back:
            return np.where(shard_row.takes_back[slab][places], DUPLICATE, PLACED)
        if earlier is not None:
            return earlier.statuses(slab, places)
        return (
            self.holes.statuses(slab, places) if self.is_closed_slab(slab) else np.full(places.size, PLACED)
        )

    def open(self, number: int) -> bool:
        """Opens a shard row for frames and lets the next one be prepared. Returns False when too many are
        open, or when it must be reopened first."""
        if number in self.by_number:
            return self.by_number[number].state is ShardRowState.OPEN
        if len(self.by_number) >= self._limits.open_shard_rows or number in self._earlier:
            return False
        prepared = self._prepared.pop(number, None)
        self.by_number[number] = (
            self._new(number) if prepared is None or prepared.files_state is FilesState.REFUSED else prepared
        )
        self._prepare_next(number)
        return True

    def _prepare_next(self, number: int) -> None:
        """Lets the next shard row be prepared; not while several images are filled, since each of them would
        need one."""
        following = self._grids.next_shard_row(number)
        one_image = self._grids.slower_axes == 0 or all(
            image_of(other) == image_of(number)
            for other, shard_row in self.by_number.items()
            if shard_row.state is ShardRowState.OPEN
        )
        if (
            following is not None
            and one_image
            and following not in self.by_number
            and following not in self._prepared
            and following not in self.closed
        ):
            self.discard_prepared()
            self._prepared = {following: self._new(following)}

    def set_empty_aside(self, numbers: set[int]) -> None:
        """Treats shard rows that were found on disk without a frame as prepared, not as open. ``numbers``:
        shard rows that have frames in the slab table."""
        for number, shard_row in list(self.by_number.items()):
            if (
                shard_row.state is ShardRowState.OPEN
                and not shard_row.done_slabs
                and not shard_row.reopened
                and number not in numbers
            ):
                self._prepared[number] = self.by_number.pop(number)

    def earlier_to_open(self, number: int) -> EarlierShardRow | None:
        """Returns a closed shard row that can be reopened, if one more may be open."""
        free = number not in self.by_number and len(self.by_number) < self._limits.open_shard_rows
        return self._earlier.get(number) if free else None

    def shut(self, number: int, slab: int) -> None:
        """Keeps one slab of a closed shard row closed for good."""
        earlier = self._earlier[number]
        self._earlier[number] = replace(earlier, passed_over=earlier.passed_over | {slab})

    def reopen(self, number: int, taking: TakingBack) -> None:
        """Lets the sealer make new files for a sealed shard row. ``reopened`` or ``stays_closed`` must
        follow."""
        self.by_number[number] = ShardRow(
            number, slabs_left=0, files_state=FilesState.REOPENING, taking=taking
        )
        self._ask(Reopen(number, taking))

    def reopened(
        self, shard_row: ShardRow, files: ShardRowFiles, taken_back: frozenset[int]
    ) -> EarlierShardRow:
        """Takes the new files, which hold all that was sealed except the slabs taken back. Returns what was
        sealed."""
        shard_row.files = files
        shard_row.go(FilesEvent.REOPENED)
        earlier = self._earlier.pop(shard_row.number)
        shard_row.done_slabs, shard_row.owed = set(earlier.begun.tolist()) - taken_back, set(taken_back)
        slabs = self._shard_row(shard_row.number).slabs_left
        shard_row.slabs_left = slabs - len(shard_row.done_slabs)
        shard_row.frames = earlier.frames - sum(int(earlier.holes[slab].sum()) for slab in taken_back)
        shard_row.reopened = True
        assert shard_row.taking is not None, "the command had it"
        # what was asked for and cannot be taken back (a damaged chunk) stays closed; the rest had no room
        shard_row.takes_back = {
            slab: filled
            for slab, filled in earlier.takes_back().items()
            if slab not in shard_row.taking.slabs
        }
        for slab in earlier.holes.keys() & shard_row.done_slabs:
            self.holes.remember(slab, earlier.holes[slab])
        self._full_disk.has_room(shard_row.number)
        self._prepare_next(shard_row.number)
        return earlier

    def stays_closed(self, shard_row: ShardRow) -> None:
        """Leaves a shard row closed, since its sealed shards cannot be read: further frames of it are
        late."""
        shard_row.go(FilesEvent.GIVE_UP)
        self._full_disk.has_room(shard_row.number)
        del self.by_number[shard_row.number], self._earlier[shard_row.number]

    def waits_to_reopen(self, shard_row: ShardRow, now_s: float, error: ErrorText) -> bool:
        """Lets a shard row wait for room to be reopened. Returns False when the full disk ends the
        acquisition. The new shards must lie in the root of the sealed ones: they never spill."""
        if not error.is_a(StorageFullError) or not self.waits_for_room:
            return False
        self._wait_for_room(shard_row, now_s, error)
        return True

    def opens_again(self, number: int, earlier: EarlierShardRow) -> None:
        """Remembers a shard row that was sealed and is not full: it may be reopened. So many are remembered,
        the newest; frames of others are refused from then on."""
        self._earlier[number] = earlier
        if len(self._earlier) > REMEMBERED_ROWS:
            del self._earlier[next(iter(self._earlier))]

    def oldest_when_all_open(self, image: int) -> ShardRow | None:
        """Returns the shard row to close when one more is needed, for a frame of ``image``; None while
        another is not OPEN."""
        if any(shard_row.state is not ShardRowState.OPEN for shard_row in self.by_number.values()):
            return None
        oldest = first_of_fullest_image(
            dict.fromkeys(self.by_number, 1), lambda number: self._grids.shard_rows_of(number, image)
        )
        return None if oldest is None else self.by_number[oldest]

    def sealed(self, number: int) -> None:
        """Notes that a shard row's files have their final names."""
        shard_row = self.by_number.pop(number)
        shard_row.go(FilesEvent.SEALED)
        self._full_disk.has_room(shard_row.number)
        self.closed.add(number)

    def discard_prepared(self) -> None:
        for shard_row in self._prepared.values():
            shard_row.go(FilesEvent.GIVE_UP)
            self._ask(Discard(shard_row.number))
        self._prepared = {}

    def seal_if_done(self, shard_row: ShardRow) -> None:
        if shard_row.is_done and shard_row.ready:
            self.seal(shard_row)

    def seal(self, shard_row: ShardRow) -> None:
        """Lets the sealer seal a shard row. Its new shards may replace older ones, so every slab that was
        taken back from these must be stored. What a rewrite could not read back is reported as lost."""
        assert not shard_row.owed, "sealed now it would lose frames that are sealed"
        shard_row.go(FilesEvent.SEAL)
        shard_row.closed = True
        self._ask(Seal(shard_row.number))

    def _shard_row(self, number: int) -> ShardRow:
        return ShardRow(number, slabs_left=math.prod(self._grids.of(number).shard_row_extent_chunks(number)))

    def _new(self, number: int) -> ShardRow:
        shard_row = self._shard_row(number)
        self._ask(self._preparing(shard_row))
        return shard_row

    def _preparing(self, shard_row: ShardRow) -> Prepare:
        self._requests += 1
        shard_row.request, shard_row.failure = self._requests, None
        return Prepare(shard_row.number, self._requests, spill=shard_row.spilled)

    @property
    def making_files(self) -> bool:
        """True if slabs wait for files that are being made; not while the disk has no room for them."""
        return any(
            shard_row.waiting and not shard_row.waits_for_room for shard_row in self.by_number.values()
        )

    # ------------------------------------------------------------------ shard rows without usable files

    def cannot_be_filled(self, shard_row: ShardRow, now_s: float) -> ErrorText | None:
        """Returns the reason why a shard row that needs files will never have them, or None. For want of room
        the shard row keeps waiting, if ``on_full`` allows it."""
        error = shard_row.failure
        needs = shard_row.waiting or shard_row.is_done or self._grids.in_place  # for any frame
        if error is None or shard_row.files_state is not FilesState.REFUSED or not needs:
            return None
        if error.is_a(StorageFullError) and self._waits_for_room(shard_row, now_s, error):
            return None
        shard_row.sound = False
        return error

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

    def waits_to_seal(self, shard_row: ShardRow, now_s: float, error: ErrorText) -> bool:
        """Lets a shard row wait for room to be sealed (for folders and the frame log): even the ballast was
        not enough. Returns False when that ends the acquisition."""
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
        shard_row.go(FilesEvent.WAIT)
        shard_row.retry_s = now_s + FULL_DISK_RETRY_S

    def _spill(self, shard_row: ShardRow, error: ErrorText) -> None:
        self._note_spill(shard_row, error)
        shard_row.go(FilesEvent.RETRY)
        self._ask(self._preparing(shard_row))

    def _note_spill(self, shard_row: ShardRow, error: ErrorText) -> None:
        self._on_event(
            "spilling",
            {"shard_row": shard_row.number, "root": str(self._settings.spill_root), "reason": error.message},
        )
        shard_row.spilled = True

    @property
    def waiting_for_room(self) -> bool:
        return any(shard_row.waits_for_room for shard_row in self.by_number.values())

    def wait_no_longer(self) -> None:
        """Retries all that waits for room once more, at once; without room that ends the acquisition."""
        self.waits_for_room = False
        for shard_row in self.by_number.values():
            shard_row.retry_s = 0.0

    def retry_full_disk(self, now_s: float) -> None:
        """Retries to preallocate (in the main root first), to reopen or to seal what had no room."""
        for shard_row in self.by_number.values():
            if not shard_row.waits_for_room or now_s < shard_row.retry_s:
                continue
            shard_row.go(FilesEvent.RETRY)
            if shard_row.files_state is FilesState.SEALING:
                self._ask(Seal(shard_row.number))
            elif shard_row.files_state is FilesState.REOPENING:
                assert shard_row.taking is not None, "set by the first command to reopen it"
                self._ask(Reopen(shard_row.number, shard_row.taking))
            else:
                shard_row.spilled = False
                self._ask(self._preparing(shard_row))

    def note_io_error(self, shard_row: ShardRow, error: ErrorText) -> bool:
        """Stops writing into the old files. Returns False when the shard row cannot be saved by new ones: not
        those of slabs that are not whole."""
        if self._grids.in_place:
            return False
        if shard_row.files_state is not FilesState.READY:
            shard_row.go(FilesEvent.BROKE)
            return True
        if (
            not error.is_a(StorageError)
            or error.is_a(StorageFullError)
            or shard_row.rewrites >= MOST_REWRITES
            or not shard_row.sound
        ):
            return False
        shard_row.go(FilesEvent.BROKE)
        shard_row.rewrites += 1
        self._on_event(
            "io_error",
            {
                "shard_row": shard_row.number,
                "reason": str(error),
                "then": "its shards are rewritten to new files",
            },
        )
        return True

    def rewrite(self, shard_row: ShardRow, stored_slabs: set[int], held_slabs: set[int]) -> None:
        """Lets the sealer move a shard row to new files, once no worker uses the old ones. ``stored_slabs``
        were acknowledged; of these, ``held_slabs`` can be encoded again."""
        shard_row.go(FilesEvent.REWRITE)
        self._ask(
            Rewrite(shard_row.number, frozenset(stored_slabs), frozenset(held_slabs), spill=shard_row.spilled)
        )

    def rewritten(self, shard_row: ShardRow, files: ShardRowFiles | None) -> None:
        """Takes the new files from the sealer. With None only the old ones are left, and are not sound."""
        shard_row.go(FilesEvent.REWRITTEN)
        if files is None:
            shard_row.sound = False
        else:
            shard_row.files = files
