"""The verdict on a frame whose slab does not collect, as a table: the state of its shard row and what is
stored at its place decide.

A slab that collects takes its frames itself: there a place that has a frame makes a duplicate, and nothing
else is asked. Every other frame comes here. The rule is that a frame is refused only where it must be: its
place has a frame (``DUPLICATE``), or newer frames that are kept had passed over its slab (``LATE``). An early
end of the acquisition, or a shard row that was closed for want of room, is no reason: the shard row is opened
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .states import ShardRowState


class Stored(IntEnum):
    """The state of a frame's place among the stored slabs."""

    NO_SLAB = 0  # no frame of its slab
    NOTHING = 1  # its slab is stored without it, and may take it
    CLOSED = 2  # its slab is stored without it, for good: newer frames had passed over it
    FRAME = 3  # a frame


class FrameVerdict(IntEnum):
    """The verdicts on a frame whose slab does not collect."""

    TAKEN = 0  # its slab gets a row of the slab table
    WAITS = 1  # until its shard row has been opened again
    SETS_ASIDE = 2  # its shard row is sealed first, then opened again for it
    REOPENS = 3  # its shard row is opened again
    DUPLICATE = 4
    LATE = 5


@dataclass(frozen=True)
class Row:
    """In any of these states of the shard row, with any of these at the place."""

    states: frozenset[ShardRowState]
    stored: frozenset[Stored]
    verdict: FrameVerdict

    def matches(self, state: ShardRowState, stored: Stored) -> bool:
        return state in self.states and stored in self.stored


_R, _S = ShardRowState, Stored
_ANY = frozenset(Stored)
_DECIDED = frozenset(ShardRowState) - {_R.NEW, _R.SET_ASIDE}
_FOR_GOOD = frozenset({_R.CLOSED, _R.SEALED})
_AGAIN = frozenset({_S.NO_SLAB, _S.NOTHING})

TABLE = (
    Row(frozenset({_R.NEW}), _ANY, FrameVerdict.TAKEN),
    Row(frozenset({_R.OPEN}), frozenset({_S.NO_SLAB}), FrameVerdict.TAKEN),
    Row(frozenset({_R.OPEN}), frozenset({_S.NOTHING}), FrameVerdict.SETS_ASIDE),
    # a frame whose place is taken waits as well: what is stored is known once the shard row is sealed
    Row(frozenset({_R.SET_ASIDE}), _ANY, FrameVerdict.WAITS),
    Row(frozenset({_R.EARLIER}), _AGAIN, FrameVerdict.REOPENS),
    Row(frozenset({_R.REOPENING}), _AGAIN, FrameVerdict.WAITS),
    Row(_FOR_GOOD, _AGAIN, FrameVerdict.LATE),
    Row(_DECIDED, frozenset({_S.CLOSED}), FrameVerdict.LATE),
    Row(_DECIDED, frozenset({_S.FRAME}), FrameVerdict.DUPLICATE),
)


def decide(state: ShardRowState, stored: Stored) -> FrameVerdict:
    return next(row.verdict for row in TABLE if row.matches(state, stored))


# int64[Stored] for each state: the verdicts on a batch are one look-up
VERDICTS = {state: np.array([decide(state, stored) for stored in Stored]) for state in ShardRowState}
REFUSALS = (FrameVerdict.DUPLICATE, FrameVerdict.LATE)
# in these a frame may be refused
REFUSING = frozenset(state for state in ShardRowState if np.isin(VERDICTS[state], REFUSALS).any())
