"""The level at which chunks are encoded under the overload policy ``degrade``, decided from the backlog of
the encoders.

    faster      frames that wait for encoders take HIGH of the ring, and enough tasks were encoded at the
                present level: one level up
    hold        in between
    slower      they take no more than LOW of it, and the level has lasted for DWELL_S: one level down

The two marks and the dwell time prevent flapping. A worker reads the level when it begins a task, so that
queued tasks get faster too. If even the highest level is not enough the ring fills up, and the camera waits
as with ``block``. The disk may be too slow then, and larger chunks make that worse: every STUCK_S the level
below is tried for TRIAL_S.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardwright.codecs.degrade import DegradeLevel

LOW, HIGH = 0.25, 0.6
DWELL_S = 1.0
STUCK_S, TRIAL_S = 10.0, 3.0


class Backlog(Enum):
    """The part of the ring that waits for encoders, compared with the two marks."""

    LOW = "low"
    BETWEEN = "between"
    HIGH = "high"

    @classmethod
    def of(cls, part: float) -> Backlog:
        return cls.HIGH if part >= HIGH else cls.LOW if part <= LOW else cls.BETWEEN


class LevelRank(Enum):
    """Where the present level stands among those of the codec."""

    ONLY = "only"
    LOWEST = "lowest"
    INNER = "inner"
    HIGHEST = "highest"


class LevelMove(Enum):
    """The direction in which the level changes."""

    UP = 1
    HOLD = 0
    DOWN = -1


@dataclass(frozen=True)
class LevelStep:
    """A row of the table: in this situation the level makes this move. ``tried``: enough tasks were encoded
    at this level; ``rested``: it has lasted long enough to be left for a slower one; ``stuck``: it has lasted
    so long that it does not help. None: either."""

    backlog: Backlog
    ranks: frozenset[LevelRank]
    tried: bool | None
    rested: bool | None
    move: LevelMove
    stuck: bool | None = None

    def matches(self, backlog: Backlog, rank: LevelRank, tried: bool, rested: bool, stuck: bool) -> bool:
        here = backlog is self.backlog and rank in self.ranks
        return (
            here
            and self.tried in (None, tried)
            and self.rested in (None, rested)
            and self.stuck in (None, stuck)
        )


_CAN_RISE, _CAN_FALL, _ALL = (
    frozenset({LevelRank.LOWEST, LevelRank.INNER}),
    frozenset({LevelRank.INNER, LevelRank.HIGHEST}),
    frozenset(LevelRank),
)
TABLE = (
    LevelStep(Backlog.HIGH, _CAN_RISE, tried=True, rested=None, move=LevelMove.UP),
    LevelStep(Backlog.HIGH, _CAN_RISE, tried=False, rested=None, move=LevelMove.HOLD),
    LevelStep(
        Backlog.HIGH,
        frozenset({LevelRank.HIGHEST}),
        tried=None,
        rested=None,
        move=LevelMove.HOLD,
        stuck=False,
    ),
    LevelStep(
        Backlog.HIGH, frozenset({LevelRank.HIGHEST}), tried=None, rested=None, move=LevelMove.DOWN, stuck=True
    ),
    LevelStep(Backlog.HIGH, frozenset({LevelRank.ONLY}), tried=None, rested=None, move=LevelMove.HOLD),
    LevelStep(Backlog.BETWEEN, _ALL, tried=None, rested=None, move=LevelMove.HOLD),
    LevelStep(Backlog.LOW, _CAN_FALL, tried=None, rested=True, move=LevelMove.DOWN),
    LevelStep(Backlog.LOW, _CAN_FALL, tried=None, rested=False, move=LevelMove.HOLD),
    LevelStep(Backlog.LOW, _ALL - _CAN_FALL, tried=None, rested=None, move=LevelMove.HOLD),
)


def decide(backlog: Backlog, rank: LevelRank, tried: bool, rested: bool, stuck: bool) -> LevelMove:
    return next(row.move for row in TABLE if row.matches(backlog, rank, tried, rested, stuck))


def backlog_part(
    *, ring_frames: int, used_frames: int, collecting_frames: int, held_frames: int, unsynced_frames: int
) -> float:
    """The part of the ring's room for frames that wait for encoders that is taken, 0 to 1.

    ``used_frames`` of ``ring_frames`` are in use. Of these, ``collecting_frames`` wait for the rest of their
    slab (``held_frames`` when all come in order), which faster encoding cannot change. ``unsynced_frames``
    are encoded and wait for a sync, which may take up to half of the room.
    """
    room = max(1, ring_frames - max(held_frames, collecting_frames))
    waiting = used_frames - collecting_frames - unsynced_frames
    return min(1.0, max(0, waiting) / max(1, room - min(unsynced_frames, room // 2)))


class OverloadLevel:
    """The present level. Owned by the acquisition's thread; ``level`` may be read by any. ``tasks_to_try``:
    the number of tasks that must be encoded at a level before a faster one is tried."""

    def __init__(self, levels: Sequence[DegradeLevel], tasks_to_try: int) -> None:
        self._levels = tuple(levels)
        self._at = 0
        self._tasks_to_try = tasks_to_try
        self._tasks = tasks_to_try  # the first level needs no trial
        self._since_s: float | None = None
        self._trial_s = 0.0  # the least time at the present level before a faster one is tried
        self.level = self._levels[0]

    @property
    def can_change(self) -> bool:
        return len(self._levels) > 1

    @property
    def _rank(self) -> LevelRank:
        if not self.can_change:
            return LevelRank.ONLY
        return {0: LevelRank.LOWEST, len(self._levels) - 1: LevelRank.HIGHEST}.get(self._at, LevelRank.INNER)

    def task_done(self, level: DegradeLevel) -> None:
        if level is self.level:
            self._tasks += 1

    def look(self, part: float, now_s: float) -> DegradeLevel | None:
        """Adapts the level to ``part`` (``backlog_part``). Returns the level before if it changed, else
        None."""
        lasted_s = float("inf") if self._since_s is None else now_s - self._since_s
        tried = self._tasks >= self._tasks_to_try and lasted_s >= self._trial_s
        backlog = Backlog.of(part)
        move = decide(backlog, self._rank, tried, lasted_s >= DWELL_S, lasted_s >= STUCK_S)
        if move is LevelMove.HOLD:
            return None
        before = self.level
        self._trial_s = TRIAL_S if move is LevelMove.DOWN and backlog is Backlog.HIGH else 0.0
        self._at += move.value
        self.level, self._tasks, self._since_s = self._levels[self._at], 0, now_s
        return before
