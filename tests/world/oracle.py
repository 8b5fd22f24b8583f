"""The oracle: knows what was sent and what was acknowledged, nothing of how. Whatever breaks a promise is
raised as a ``ViolationError``."""

from __future__ import annotations

import traceback
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.frame_intake import in_order
from shardwright.array.grid import image_of
from shardwright.model.frame_status import FrameStatus, Reason

from .disk import DefectError
from .story import FILL, MOST_PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.acquire.accounts import Accounts
    from shardwright.acquire.core import Core
    from shardwright.array.grid import Grids
    from shardwright.model.receipt import Receipt

    from .finished_store import Left
    from .story import Frame


class ViolationError(AssertionError):
    """A promise is broken, or the core asked for what it must not."""


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
    of time. ``excused``: that were acknowledged, and that a power cut or rot may have taken all the same.
    ``faulty``: the disk has failed, or may have. ``spoiled``: slabs that rot may have taken."""

    def __init__(self, grids: Grids, frames: tuple[Frame, ...]) -> None:
        self._grids = grids
        self._frames = frames
        self._ranks: dict[int, int] | None = None  # of each place, in the order of the acquisition
        if grids.slower_axes is not None:
            self._ranks = {
                position: rank for rank, position in enumerate(islice(in_order(grids), MOST_PLACES))
            }
        self._all = np.arange(len(frames))
        self.stored = np.zeros(len(frames), np.bool_)
        self.durable = np.zeros(len(frames), np.bool_)
        self.excused: set[int] = set()
        self.sent: set[int] = set()
        self.sent_now: set[int] = set()  # in the life that is the last so far
        self.told: set[int] = set()  # sent without pixels
        self.written_off: set[int] = set()  # whoever had them has heard that they are lost
        self.failures = 0  # lives that ended in a failure of the disk or of a thread
        self.kills = 0
        self.power_cuts = 0
        self.closed_for_good = False  # a row could not be opened again
        self.faulty = False
        self.spoiled: set[int] = set()

    def token(self, sequence: int) -> int:
        """The pixels of a frame."""
        return FILL if self._frames[sequence].fill else sequence + 1

    # ------------------------------------------------------------------ while it runs

    def observe(self, accounts: Accounts) -> None:
        """What the client could know by now."""
        self.stored |= accounts.stored.holds(self._all)
        self.durable |= accounts.durable.holds(self._all)
        if (self.durable & ~self.stored).any():
            raise ViolationError(f"durable, but not stored: {self._list(self.durable & ~self.stored)}")

    def released(self, sequences: np.ndarray, core: Core) -> None:
        """Pixels that come back to the camera are acknowledged, unless the acquisition has failed."""
        if core.why is None:
            early = sequences[~core.accounts.stored.holds(sequences)]
            if early.size:
                raise ViolationError(f"released before they were stored: {early.tolist()}")

    def taken_up(self, accounts: Accounts, lost: Iterable[int], *, power: bool) -> None:
        """After a kill everything that was acknowledged is there; after a power cut all that was durable.
        ``lost``: sequences that the frame log has as such."""
        promised = self.durable if power else self.stored
        missing = promised & ~accounts.stored.holds(self._all)
        gone = [n for n in self._list(missing) if not self._is_spoiled(n) and n not in self.excused]
        if gone:
            how = (
                "durable, but gone after a power cut"
                if power
                else ("acknowledged as stored, but gone after a kill")
            )
            raise ViolationError(f"{how}: {gone}")
        self.excused.update(self._list(self.stored & ~accounts.stored.holds(self._all)))
        self.written_off.update(n for n in lost if not self.stored[n])
        self.stored &= accounts.stored.holds(self._all)
        self.durable &= self.stored
        self.sent_now = set()
        self.observe(accounts)

    def excuse(self) -> None:
        """What the disk does may have taken any frame."""
        self.excused.update(self._list(self.stored))

    def write_off(self, accounts: Accounts) -> None:
        """Nobody sends any more what is missing."""
        for first, last in accounts.seen.missing(accounts.seen.stop):
            self.written_off.update(range(first, last + 1))

    def hear_losses(self, losses: Iterable[tuple[int, int, object]]) -> None:
        """Of frames that were perhaps acknowledged."""
        for first, last, _ in losses:
            if not self.faulty:
                raise ViolationError(f"frames {first} to {last} are told lost, but nothing failed")
            self.written_off.update(range(first, last + 1))

    def _list(self, mask: np.ndarray) -> list[int]:
        found: list[int] = np.flatnonzero(mask).tolist()
        return found

    # ------------------------------------------------------------------ at the end

    def judge(self, left: Left | None, receipt: Receipt | None) -> None:
        """The store that is left, once it is sealed; None: it was removed."""
        if left is None:
            if self.stored.any() or self.sent_now:
                raise ViolationError(
                    f"the store was removed, though frames were sent: {sorted(self.sent_now)}"
                )
            return
        rows = self._rows(left.records)
        stored = {n for n, (status, _) in rows.items() if status is FrameStatus.STORED}
        self._judge_pixels(left, stored)
        self._judge_places(stored)
        for n, (status, reason) in rows.items():
            self._judge_status(n, status, reason, rows)
        if receipt is not None and (missing := sorted(self.sent_now - rows.keys())):
            raise ViolationError(f"sealed, but sequences {missing} have no status")
        if promised := [n for n in self._list(self.stored) if n not in rows]:
            raise ViolationError(f"acknowledged, but without a status: {promised}")
        if receipt is not None:
            self._judge_receipt(receipt, rows, left.shards)

    def sealed(self, core: Core, ring_frames: int) -> None:
        """Nothing is kept once everything is sealed."""
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
            *(records[name].tolist() for name in ("sequence", "fate", "reason", "position")), strict=True
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

    def _judge_pixels(self, left: Left, stored: set[int]) -> None:
        """Every place of every image holds the pixels of the frame that is stored there, and no others."""
        expected = {self._frames[n].position: self.token(n) for n in stored}
        within: set[int] = set()
        for position, pixels in left.pixels():
            within.add(position)
            if self._grids.slab_of_position(position) in self.spoiled:
                continue
            token, found = expected.get(position), set(pixels.tolist())
            if token is None and found != {FILL}:
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
        excused = self._is_spoiled(n) or n in self.excused or n in self.told or n in self.written_off
        if self.stored[n] and not excused:
            raise ViolationError(f"{what}, but it was acknowledged as stored")
        if reason is Reason.NOT_ACKNOWLEDGED and self.stored[n] and n not in self.written_off:
            raise ViolationError(f"{what}, but it was acknowledged")
        if reason is Reason.IO_ERROR and not self._is_spoiled(n):
            raise ViolationError(f"{what}, but the disk can read it")
        if reason is Reason.ACQUISITION_FAILED and not self.failures:
            raise ViolationError(f"{what}, but nothing failed")
        if not (self.kills or self.power_cuts or self.failures or excused):
            raise ViolationError(f"{what}, but nothing happened to it")

    def _judge_receipt(
        self, receipt: Receipt, rows: dict[int, tuple[FrameStatus, Reason]], shards: int
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
            "shards": shards,
        }
        for name, expected in told.items():
            if getattr(receipt, name) != expected:
                raise ViolationError(
                    f"the receipt says {name} {getattr(receipt, name)}, the store {expected}"
                )
