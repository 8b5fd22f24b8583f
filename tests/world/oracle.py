"""The oracle: knows what was sent and what was acknowledged, nothing of how. Whatever breaks a promise is
raised as a ``ViolationError``."""

from __future__ import annotations

import traceback
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.frame_admission import in_order
from shardwright.array.grid import image_of
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.wire.descriptor import METADATA_FIELDS

from .disk import DefectError
from .story import FILL, MOST_PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.acquire.accounts import Accounts
    from shardwright.acquire.core import Core
    from shardwright.array.grid import Grids
    from shardwright.model.receipt import Receipt

    from .faults import Faults
    from .finished_store import Left
    from .story import Frame


class ViolationError(AssertionError):
    """A promise is broken, or the core asked for what it must not."""


def metadata_of(sequences: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of what the camera tells of frames (int64[n]), each with values of its own; of some frames
    it does not tell all."""
    columns = {"frame_id": sequences, "camera_ns": 1_000_003 * (1 + sequences)}
    columns["monotonic_ns"] = 17 * (1 + sequences)
    for number, name in enumerate(METADATA_FIELDS):
        columns[name] = np.where(sequences % 7 == number, np.nan, sequences + number / 8)
    return columns


def violation_of(play: Callable[[], None]) -> str | None:
    """Returns what was wrong with a play: None when every promise was kept."""
    try:
        play()
    except ViolationError as violation:
        return str(violation)
    except (Exception, DefectError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"a defect: {error!r} at {last.filename.rsplit('/', 1)[-1]}:{last.lineno} in {last.name}"
    return None


class Oracle:
    """``stored``, ``durable``: bool[frames], acknowledged to the client. ``sends``: sequences, in the order
    of time. ``excused``: that were acknowledged, and that a power cut or rot may have taken all the same; a
    recovery that finds them ends that. ``excusals``: what was excused, by recovery. ``faults``: of the disk.
    ``spoiled``: slabs that rot may have taken."""

    def __init__(self, grids: Grids, frames: tuple[Frame, ...], faults: Faults, width: int = 1) -> None:
        """``width``: of files, in columns."""
        self._grids, self._width = grids, width
        self._frames = frames
        self._faults = faults
        self._ranks: dict[int, int] | None = None  # of each place, in the order of the acquisition
        if grids.slower_axes is not None:
            self._ranks = {
                position: rank for rank, position in enumerate(islice(in_order(grids), MOST_PLACES))
            }
        self._all = np.arange(len(frames))
        self.stored = np.zeros(len(frames), np.bool_)
        self.durable = np.zeros(len(frames), np.bool_)
        self.excused: set[int] = set()
        self.excusals: list[frozenset[int]] = []
        self.sent: set[int] = set()
        self.sent_now: set[int] = set()  # in the life that is the last so far
        self.told: set[int] = set()  # sent without pixels
        # by sequence: (when, by which client) it was sent
        self._arrivals: dict[int, set[tuple[int, int]]] = {}
        self.written_off: set[int] = set()  # whoever had them has heard that they are lost
        self._told_lost: set[int] = set()  # of these, that did not come again since, and were stored
        # Acknowledged, not found again, and not sent again: whoever has released them must hear of each that
        # it was acknowledged, and is lost.
        self._acknowledged_and_lost: set[int] = set()
        self.failures = 0  # lives that ended in a failure of the disk or of a thread
        self.has_begun_to_fail = False  # one may lose its power before it counts as such
        # not stored as a store was finished, whose last shapes cover their places: they come when it goes on
        self.shut_out: set[int] = set()
        self.kills = 0
        self.power_cuts = 0
        self.has_excused = False  # something has taken frames
        # shard rows of which the frame log has perhaps no record any more, or whose journal is damaged
        self.log_cut: set[int] = set()
        self.rows_damaged: set[int] = set()
        self._flipped_at = -1  # how many recoveries were over when a byte has changed
        self.closed_for_good = False  # a row could not be opened again
        self.spoiled: set[int] = set()
        self.unread: set[int] = set()  # slabs of which a chunk could not be read as its files were replaced
        self._in_memory: set[int] = set()  # perhaps in memory alone, though every sync succeeds from now on
        self._is_unmarked = False

    @property
    def faulty(self) -> bool:
        """Whether the disk has failed, or has taken frames."""
        return self._faults.has_failed or self.has_excused

    def token(self, sequence: int) -> int:
        """The pixels of a frame."""
        return FILL if self._frames[sequence].fill else sequence + 1

    # ------------------------------------------------------------------ while it runs

    def arrive(self, sequences: Iterable[int], now_ns: int, client_epoch: int) -> None:
        self._acknowledged_and_lost.difference_update(sequences)
        for n in sequences:
            self._arrivals.setdefault(n, set()).add((now_ns, client_epoch))

    def observe(self, accounts: Accounts) -> None:
        """What the client could know by now. What took a frame before excuses nothing any more once it was
        sent again, and acknowledged."""
        stored = accounts.stored.holds(self._all)
        if self.excused or self._told_lost:
            again = (self.sent_now - self.told).intersection(self._list(stored & ~self.stored))
            self.excused -= again
            self._told_lost -= again
        self.stored |= stored
        self.durable |= accounts.durable.holds(self._all)
        if (self.durable & ~self.stored).any():
            raise ViolationError(f"durable, but not stored: {self._list(self.durable & ~self.stored)}")

    def finishing(self, extents: np.ndarray) -> None:
        """``extents``: int64[images, axes], of the shapes that a store gets last."""
        for n in self._list(~self.stored):
            position = self._frames[n].position
            index = self._grids.of(position).index_of(position)
            if image_of(position) >= len(extents):
                continue  # it was not added
            if all(i < extent for i, extent in zip(index, extents[image_of(position)], strict=False)):
                self.shut_out.add(n)

    def released(self, sequences: np.ndarray, core: Core) -> None:
        """Pixels that come back to the camera are acknowledged, unless the acquisition has failed."""
        if core.end.why is None:
            early = sequences[~core.accounts.stored.holds(sequences)]
            if early.size:
                raise ViolationError(f"released before they were stored: {early.tolist()}")

    def taken_up(self, accounts: Accounts, lost: Iterable[int], *, power: bool) -> None:
        """After a kill everything that was acknowledged is there; after a power cut all that was durable.
        ``lost``: sequences that the frame log has as such."""
        promised, held = self.durable if power else self.stored, accounts.stored.holds(self._all)
        missing = promised & ~held
        gone = [n for n in self._list(missing) if not self._is_spoiled(n) and n not in self.excused]
        if gone:
            how = (
                "durable, but gone after a power cut"
                if power
                else ("acknowledged as stored, but gone after a kill")
            )
            raise ViolationError(f"{how}: {gone}")
        self.excusals.append(frozenset(self.excused))
        # Of what the log has as lost the pixels may lie in a shard all the same.
        self.excused.difference_update(set(self._list(held)).difference(lost))
        self.excused.update(self._list(self.stored & ~held))
        self._acknowledged_and_lost.difference_update(self._list(held))
        self._owe(self.stored & ~held)
        self._write_off(n for n in lost if not self.stored[n])
        self.stored &= held
        self.durable &= self.stored
        self.sent_now = set()
        self.observe(accounts)
        if self._is_unmarked:
            self._in_memory.update(self._list(self.stored))
            self._is_unmarked = False

    def leave_unmarked(self) -> None:
        """If only a process that is killed has heard that a sync failed, no later one can know it: the pages
        are in memory, clean, and the next power cut takes them. They may hold any frame that it has stored
        and not made durable before."""
        self._is_unmarked = True
        self._in_memory.update(self._list(self.stored & ~self.durable))

    def begin(self) -> None:
        """Another process begins. It takes such pages for durable: for a block of the frame log that is in
        memory alone it deletes a journal, and with that frames that were durable. So may whoever takes the
        store up next, of all that it finds."""
        if self._is_unmarked:
            self._in_memory.update(self._list(self.stored))

    def lose_power(self) -> None:
        self.power_cuts += 1
        self.excused |= self._in_memory
        self._in_memory.clear()
        self._is_unmarked = False

    def lose_what_is_not_durable(self) -> None:
        """The power was cut, and nobody takes the store up any more who tells what is left."""
        self.excused.update(self._list(self.stored & ~self.durable))
        self._owe(self.stored & ~self.durable)
        self.stored &= self.durable

    def lose_what_is_excused(self) -> None:
        """Likewise of what a bit that has changed may have taken."""
        gone = self.stored & np.isin(self._all, sorted(self.excused))
        self._owe(gone)
        self.stored &= ~gone
        self.durable &= self.stored

    def _owe(self, frames: np.ndarray) -> None:
        """Of these some were acknowledged as lost."""
        self._acknowledged_and_lost.update(set(self._list(frames)) - self._told_lost - self.told)

    def excused_since(self, recoveries: int) -> set[int]:
        """Returns which sequences were excused at any time since so many recoveries were over."""
        return self.excused.union(*self.excusals[recoveries:])

    def cannot_read(self, slabs: set[int]) -> None:
        """A chunk of one of these could not be read as its files were replaced."""
        self.unread |= slabs
        stored = self._list(self.stored)
        self.excuse(n for n in stored if self._grids.slab_of_position(self._frames[n].position) in slabs)

    def excuse(self, sequences: Iterable[int]) -> None:
        """What the disk does has taken these frames."""
        self.has_excused = True
        self.excused.update(sequences)

    def flip(self) -> None:
        """A byte of what is written about frames has changed: until recovery is over, who reads may hear of
        that."""
        self._flipped_at = len(self.excusals)

    def had_a_flip(self, recoveries: int) -> bool:
        """Returns whether one of those that were read since so many recoveries were over had changed."""
        return self._flipped_at >= recoveries

    def write_off(self, accounts: Accounts) -> None:
        """Nobody sends any more what is missing, of a newest frame of colours the rest."""
        places = self._grids.frame_places
        for first, last in accounts.seen.missing(-(-accounts.seen.stop // places) * places):
            self._write_off(range(first, last + 1))

    def hear_losses(self, losses: Iterable[tuple[int, int, object]]) -> None:
        """Of frames that were perhaps acknowledged: these the disk must have taken."""
        for first, last, _ in losses:
            if not self.faulty:
                raise ViolationError(f"frames {first} to {last} are told lost, but nothing failed")
            kept = [n for n in range(first, last + 1) if self.stored[n] and not self._may_be_gone(n)]
            if kept:
                raise ViolationError(f"frames {kept} are told lost, but nothing took them")
            self._write_off(range(first, last + 1))

    def _write_off(self, sequences: Iterable[int]) -> None:
        sequences = list(sequences)
        self.written_off.update(sequences)
        self._told_lost.update(sequences)

    def _may_be_gone(self, n: int) -> bool:
        """Whether what the disk did may have taken an acknowledged frame."""
        slab = self._grids.slab_of_position(self._frames[n].position)
        return n in self.excused or slab in self.spoiled or slab in self.unread

    def _list(self, mask: np.ndarray) -> list[int]:
        found: list[int] = np.flatnonzero(mask).tolist()
        return found

    # ------------------------------------------------------------------ at the end

    def judge(self, left: Left | None, receipt: Receipt | None, *, is_known: bool = True) -> None:
        """The store that is left, once it is sealed; None: it was removed. ``receipt``: of who sealed it.
        ``is_known``: this one had heard of all that was sent in its life."""
        if left is None:
            if self.stored.any() or self.sent_now:
                raise ViolationError(
                    f"the store was removed, though frames were sent: {sorted(self.sent_now)}"
                )
            return
        rows = self._rows(left.records)
        self._judge_columns(left.records)
        stored = {n for n, (status, _) in rows.items() if status is FrameStatus.STORED}
        self._judge_pixels(left, stored)
        self._judge_places(stored)
        for n, (status, reason) in rows.items():
            self._judge_status(n, status, reason, rows)
        if is_known and (missing := sorted(self.sent_now - rows.keys())):
            raise ViolationError(f"sealed, but sequences {missing} have no status")
        # nobody knows of those behind all that is known
        lost = {n for n in self._acknowledged_and_lost if n < max(rows, default=0)}
        if promised := sorted(lost.union(self._list(self.stored)) - rows.keys()):
            raise ViolationError(f"acknowledged, but without a status: {promised}")
        if receipt is not None:
            self._judge_receipt(receipt, rows, left)

    def sealed(self, core: Core, ring_frames: int) -> None:
        """Nothing is kept once everything is sealed, and all of it is durable."""
        self.observe(core.accounts)
        kept = {
            "rows": core.table.rows_used,
            "slots": core.scheduler.slots - core.scheduler.free_slots,
            "ring": ring_frames,
            "in flight": core.in_flight,
        }
        if any(kept.values()):
            raise ViolationError(f"sealed, but still kept: {kept}")
        if core.accounts.durable.value < core.accounts.seen.stop:
            raise ViolationError(
                f"sealed, but durable only up to {core.accounts.durable.value} of {core.accounts.seen.stop}"
            )

    def _rows(self, records: np.ndarray) -> dict[int, tuple[FrameStatus, Reason]]:
        rows: dict[int, tuple[FrameStatus, Reason]] = {}
        for n, status, reason, position in zip(
            *(records[name].tolist() for name in ("sequence", "status", "reason", "position")), strict=True
        ):
            if n in rows:
                raise ViolationError(
                    f"sequence {n} has two statuses: {rows[n]} and {FrameStatus(status).name}"
                )
            if n >= len(self._frames) or n not in self.sent:
                raise ViolationError(f"sequence {n} has a status, but nobody sent it")
            if position != self._frames[n].position and position != -1:
                raise ViolationError(
                    f"sequence {n} is recorded at {position} instead of {self._frames[n].position}"
                )
            rows[n] = FrameStatus(status), Reason(reason)
        return rows

    def _judge_columns(self, records: np.ndarray) -> None:
        """All that the camera told of a frame, and when and from whom it came. Of a lost one not even its
        place may be known."""
        known = records[records["status"] != FrameStatus.LOST]
        for name, expected in metadata_of(known["sequence"]).items():
            wrong = ~np.isclose(known[name], expected, rtol=0, atol=0, equal_nan=True)
            for n, found, value in zip(
                known["sequence"][wrong].tolist(), known[name][wrong].tolist(), expected[wrong], strict=True
            ):
                raise ViolationError(f"sequence {n} is recorded with {name} {found} instead of {value}")
        names = ("sequence", "arrival_ns", "arrival_monotonic_ns", "client_epoch")
        for n, utc_ns, ns, epoch in zip(*(known[name].tolist() for name in names), strict=True):
            if utc_ns != ns or (ns, epoch) not in self._arrivals.get(n, ()):
                raise ViolationError(
                    f"sequence {n} is recorded as come at {utc_ns} ({ns}) from client {epoch}, instead of "
                    f"{sorted(self._arrivals.get(n, ()))}"
                )

    def _judge_pixels(self, left: Left, stored: set[int]) -> None:
        """Every place of every image holds the pixels of the frame that is stored there, and no others."""
        expected = {self._frames[n].position: self.token(n) for n in stored}
        # Its row may be in a page of the frame log that a power cut took, or behind a byte that has changed.
        # Or it is lost with one of its shards, and others have their names already.
        without_row: dict[int, set[int]] = {}
        for n in self.excused:
            without_row.setdefault(self._frames[n].position, set()).add(self.token(n))
        within: set[int] = set()
        for position, pixels in left.pixels(self._width):
            within.add(position)
            if self._grids.slab_of_position(position) in self.spoiled:
                continue
            token, found = expected.get(position), set(pixels.tolist())
            unknown = found - {FILL} if token is None else set()
            if unknown and not (len(unknown) == 1 and unknown <= without_row.get(position, set())):
                raise ViolationError(f"place {position} has pixels that no status tells of: {found}")
            if token is not None and found != {token}:
                raise ViolationError(
                    f"sequence {token - 1} is reported as stored at {position}, where {found} is"
                )
        outside = expected.keys() - within
        if gone := [p for p in outside if self._grids.slab_of_position(p) not in self.spoiled]:
            raise ViolationError(f"frames are reported as stored at {gone}, which is not within the shape")

    def _is_spoiled(self, n: int) -> bool:
        return bool(self.spoiled) and self._grids.slab_of_position(self._frames[n].position) in self.spoiled

    def _judge_places(self, stored: set[int]) -> None:
        places: dict[int, int] = {}
        for n in sorted(stored):
            other = places.setdefault(self._frames[n].position, n)
            if other != n:
                raise ViolationError(f"place {self._frames[n].position} is stored twice: by {other} and {n}")

    def _judge_status(
        self,
        n: int,
        status: FrameStatus,
        reason: Reason,
        rows: dict[int, tuple[FrameStatus, Reason]],
    ) -> None:
        position, what = (
            self._frames[n].position,
            (f"sequence {n} at {self._frames[n].position} is {status.name} ({reason.name})"),
        )
        others = [m for m in self.sent if m != n and self._frames[m].position == position]
        before = [m for m in others if m < n]
        if status is FrameStatus.DUPLICATE and not others:
            raise ViolationError(f"{what}, but no other frame came for its place")
        # what nobody held any more, and newer frames passed, is late when it comes
        in_order = self.is_in_order(n) and n not in self.written_off
        if (
            status in (FrameStatus.DUPLICATE, FrameStatus.LATE)
            and not others
            and in_order
            and not self.closed_for_good
        ):
            raise ViolationError(f"{what}, though it came in order")
        taken = [m for m in others if rows.get(m, (None,))[0] is FrameStatus.STORED]
        never_kept = self.kills and any(
            rows.get(m, (FrameStatus.LOST,))[0] is FrameStatus.LOST for m in others
        )
        if status is FrameStatus.DUPLICATE and not taken and not never_kept and not self._may_be_lost(others):
            raise ViolationError(f"{what}, but its place is empty")
        if (
            status is FrameStatus.LATE
            and any(m in before and self.stored[m] for m in taken)
            and not self.power_cuts
            and not self.kills
        ):
            raise ViolationError(f"{what}, but its place has sequence {taken}")
        if status is FrameStatus.LATE and self._is_alone(n) and not (self.kills or self.failures):
            raise ViolationError(f"{what}, though no other frame is in its shard, and its row opens again")
        if status is FrameStatus.DROPPED and n not in self.told:
            raise ViolationError(f"{what}, but it was sent with its pixels")
        if status is FrameStatus.LOST:
            self._judge_loss(n, reason, what)

    def _is_alone(self, n: int) -> bool:
        """Whether a frame has a shard of its own, in a shard row with others: however late it comes, it would
        be refused for their sake."""
        grid = self._grids.of(self._frames[n].position)
        return grid.is_split and grid.frames_per_slab == 1 and not self.closed_for_good

    def _may_be_lost(self, sequences: list[int]) -> bool:
        """Whether a frame that once had a place may be gone since."""
        return (
            bool(self.power_cuts)
            or self.failures > 0
            or any(self._is_spoiled(m) or m in self.excused for m in sequences)
        )

    def is_in_order(self, n: int) -> bool:
        """Whether every frame up to this one came in order, with gaps perhaps: that of the acquisition if it
        has one, else that of its image."""
        newest: dict[int, int] = {}
        for m in sorted(m for m in self.sent if m <= n):
            position = self._frames[m].position
            line, place = (
                (image_of(position), position) if self._ranks is None else (0, self._ranks[position])
            )
            if newest.get(line, -1) >= place:
                return False
            newest[line] = place
        return True

    def _judge_loss(self, n: int, reason: Reason, what: str) -> None:
        excused = self._is_spoiled(n) or n in self.excused or n in self.told or n in self._told_lost
        if self.stored[n] and not excused:
            raise ViolationError(f"{what}, but it was acknowledged as stored")
        if reason is Reason.NOT_ACKNOWLEDGED and self.stored[n] and n not in self._told_lost:
            raise ViolationError(f"{what}, but it was acknowledged")
        if reason is Reason.NOT_ACKNOWLEDGED and n in self._acknowledged_and_lost:
            raise ViolationError(f"{what}, but it was acknowledged before it was lost")
        is_unread = self._grids.slab_of_position(self._frames[n].position) in self.unread
        if reason is Reason.IO_ERROR and not self._is_spoiled(n) and not is_unread:
            raise ViolationError(f"{what}, but the disk can read it")
        if reason is Reason.ACQUISITION_FAILED and not self.failures:
            raise ViolationError(f"{what}, but nothing failed")
        if not (self.kills or self.power_cuts or self.failures or excused):
            raise ViolationError(f"{what}, but nothing happened to it")

    def _judge_receipt(
        self, receipt: Receipt, rows: dict[int, tuple[FrameStatus, Reason]], left: Left
    ) -> None:
        count = {status: sum(found is status for found, _ in rows.values()) for status in FrameStatus}
        told = {
            "frames_stored": count[FrameStatus.STORED],
            "frames_durable": count[FrameStatus.STORED],
            "frames_duplicate": count[FrameStatus.DUPLICATE],
            "frames_late": count[FrameStatus.LATE],
            "frames_dropped": count[FrameStatus.DROPPED],
            "frames_lost": count[FrameStatus.LOST],
            "frames_received": len(rows),
        }
        for name, expected in told.items():
            if getattr(receipt, name) != expected:
                raise ViolationError(
                    f"the receipt says {name} {getattr(receipt, name)}, the store {expected}"
                )
        if not left.shards - left.unknown <= receipt.shards <= left.shards:
            raise ViolationError(f"the receipt says shards {receipt.shards}, the store {left.shards}")
