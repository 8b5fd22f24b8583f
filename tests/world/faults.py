"""What the disk does wrong: errors at the calls that a story names, and no room."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from shardwright.model.errors import StorageError

from .disk import Wrong
from .story import FOREVER

if TYPE_CHECKING:
    import random

    from .story import Fault

_NAMES = r".*\.before_(rename|replace|link|exchange|take_name|set_aside|delete|remove|create|name)"
# by kind: the points at which a fault of it is met
POINTS = {
    "chunk": r"slots\..*|shard\.before_write|growing\.before_write",
    "journal": r"journal\.before_(frames|chunks)",
    "stage": r"staging\.before_(write|clear)",
    "sync shard row": r"(shard|journal)\.before_sync",
    "sync stage": r"staging\.before_sync",
    "sync log": r"log\.before_sync",
    "log": r"log\.before_(append|payload|header|preallocate)",
    "create": r"(shard|journal)\.before_(create|preallocate|reserve)",
    "seal": r"shard\.before_(rename|index|truncate|link)|sums\..*",
    "reopen": r"sealed\.before_read|(shard|journal)\.before_(replace|live_replace)",
    "rewrite": r"(shard|journal)\.before_(read|replace|clear)",
    "finish": r"(folder|table|workspace|replace|directory)\..*",
    "copy": r"(growing|copy|ballast|files)\..*",
    "look": r"directory\.before_look|lock\..*",
    "write back": r"write back",
    "short": r".*\.before_(write|append|payload|header|index|live_index)",
    "stall": r".*",
    "late": _NAMES,
    "answer": _NAMES,
}
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in POINTS.items()}
_OF_MEMORY = re.compile(
    r"slots\.(before_store|after_store|before_part)|journal\.after_chunks"
)  # by no call: through a mapping
_SYNC = re.compile(r".*\.before_sync")
_WHOLE_FILES = re.compile(r".*\.before_(preallocate|reserve)|ballast\.before_fill")
_LITTLE = re.compile(
    r"(log|replace|sums|directory|folder|table)\.before_(append|payload|header|write|create)"
)
_SPARED = 6  # small things for which the ballast's room still suffices


class Faults:
    """``has_failed``: one was met, in whichever life. ``met``: one of those that were begun last;
    ``is_broken``: one of these that was more than a full disk. An answer that comes late (``has_stalled``),
    or again, is no failure."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._faults: tuple[Fault, ...] = ()
        self._calls: dict[str, int] = {}
        self._spare = 0
        self._rots = False
        self.met = self.is_broken = self.has_failed = self.has_stalled = False

    def begin(self, faults: tuple[Fault, ...]) -> None:
        """Of a life."""
        self._faults, self._calls, self._spare = faults, {}, 0
        self.met = self.is_broken = self.has_stalled = False

    @property
    def full(self) -> bool:
        number = self._calls.get("full", 0)
        return any(
            fault.kind == "full" and fault.after <= number < fault.after + fault.times
            for fault in self._faults
        )

    def has_no_room(self) -> bool:
        """What a process is told that asks for the room there is."""
        if full := self.full:
            self._meet_full()
        return full

    def make_room(self) -> None:
        """Somebody frees some space, on a disk that is not full for ever."""
        self._faults = tuple(
            fault for fault in self._faults if fault.kind != "full" or fault.times == FOREVER
        )

    def stalls(self, point: str) -> bool:
        """Whether the call that follows this point gets no answer for long."""
        return bool(self._faults) and self._waits(point, {"stall"})

    def makes_late(self, point: str) -> bool:
        """Whether the change of names that follows this point is made long after all looks that allow it."""
        return bool(self._faults) and self._waits(point, {"late"})

    def _waits(self, point: str, kinds: set[str]) -> bool:
        waits = self._meets(point, kinds)
        self.has_stalled = self.has_stalled or waits
        return waits

    def fails_write_back(self) -> bool:
        """Whether what the disk writes by itself cannot be written."""
        return bool(self._faults) and self._fails("write back", {"write back"})

    def reach(self, point: str) -> Wrong | None:
        """What the next sync or change of names of this actor meets. Raises ``OSError``."""
        if not self._faults:
            return None
        self._calls["full"] = self._calls.get("full", 0) + 1
        if point == "ballast.before_release":
            self._spare = _SPARED
        wrong = self._lost_answer(point) or self._short_write(point)
        if self._is_met(point):
            if _SYNC.fullmatch(point):
                return Wrong(self._rng.choice((errno.EIO, errno.EIO, errno.ENOSPC)))
            if _OF_MEMORY.fullmatch(point):
                raise StorageError("cannot write: the world says so")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.full and (_WHOLE_FILES.fullmatch(point) or self._takes_little(point)):
            self._meet_full()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return wrong

    def _lost_answer(self, point: str) -> Wrong | None:
        """A change of names whose answer is an error must be looked at, and taken for done: that excuses
        nothing."""
        if not self._meets(point, {"answer"}):
            return None
        return Wrong(self._rng.choice((errno.EIO, None)), True)

    def _short_write(self, point: str) -> Wrong | None:
        """One that is told how much was written must write the rest: that excuses nothing."""
        if not self._meets(point, {"short"}):
            return None
        return Wrong(self._rng.choice((errno.EIO, errno.ENOSPC, None, None)), short=True)

    def _takes_little(self, point: str) -> bool:
        """Of what a full disk often has room for still: whether it has none."""
        if not _LITTLE.fullmatch(point) or self._rng.random() >= 0.4:
            return False
        if self._spare:
            self._spare -= 1
            return False
        return True

    @property
    def rots(self) -> bool:
        """Whether the fault that was met last takes bytes with it."""
        return self._rots

    def _is_met(self, point: str) -> bool:
        return self._fails(
            point,
            {fault.kind for fault in self._faults}
            - {"full", "stall", "late", "answer", "short", "write back"},
        )

    def _fails(self, point: str, kinds: set[str]) -> bool:
        if fails := self._meets(point, kinds):
            self.meet()
        return fails

    def _meets(self, point: str, kinds: set[str]) -> bool:
        met = self._rots = False
        for kind, at in sorted({(fault.kind, fault.point) for fault in self._faults if fault.kind in kinds}):
            if (at != point) if at else (_PATTERNS[kind].fullmatch(point) is None):
                continue
            number = self._calls.get(kind + at, 0)
            self._calls[kind + at] = number + 1
            for fault in self._faults:
                same = fault.kind == kind and fault.point == at
                if same and fault.after <= number < fault.after + fault.times:
                    met, self._rots = True, self._rots or fault.rot
        return met

    def meet(self) -> None:
        self.is_broken = True
        self._meet_full()

    def _meet_full(self) -> None:
        self.met = self.has_failed = True
