"""The life of an acquisition: its states, and what leads from one to the next. A table, and nothing else.

OPEN ──▶ FINISHING ──▶ FINISHING_STORE ──▶ SEALED       an end was asked for: groups are sealed, then all
  │        │     ▲            │     ▲
  │        │     └── NO_ROOM_TO_FINISH ◀┘               on a full disk, if it may wait for room
  ▼        ▼
FAILING ──▶ LEAVING ──▶ LEAVING_STORE ──▶ FAILED        sound groups are sealed, the others left to recovery
"""

from __future__ import annotations

from enum import Enum

from .steps import Table, step


class AcquisitionState(Enum):
    """As everybody outside of the core sees it."""

    OPEN = "open"
    FINISHING = "finishing"
    SEALED = "sealed"
    FAILING = "failing"
    FAILED = "failed"


class Life(Enum):
    OPEN = "open"
    FINISHING = "finishing"  # what is incomplete is closed, every group sealed
    FINISHING_STORE = "finishing the store"  # the keeper is at it
    NO_ROOM_TO_FINISH = "no room to finish"  # tried again later
    SEALED = "sealed"
    # nothing more is taken in; workers may still read pixels, or the keeper copies a group
    FAILING = "failing"
    LEAVING = "leaving"  # nobody reads pixels: what is sound is being sealed, the rest is left
    LEAVING_STORE = "leaving the store"  # the keeper makes what readers see of it true
    FAILED = "failed"

    @property
    def state(self) -> AcquisitionState:
        return _STATE_OF[self]


class LifeEvent(Enum):
    CLOSE = "close"  # an end was asked for, and every frame that came has its place
    DONE = "done"  # no group, commit, slab or record is under way
    STORE_FINISHED = "store finished"
    WAIT = "wait"  # for room on the disk
    RETRY = "retry"
    FAIL = "fail"
    UNREAD = "unread"  # nobody reads pixels any more
    OVER = "over"  # the keeper has died, or has finished with the store


_STATE_OF = {
    Life.OPEN: AcquisitionState.OPEN,
    Life.FINISHING: AcquisitionState.FINISHING,
    Life.FINISHING_STORE: AcquisitionState.FINISHING,
    Life.NO_ROOM_TO_FINISH: AcquisitionState.FINISHING,
    Life.SEALED: AcquisitionState.SEALED,
    Life.FAILING: AcquisitionState.FAILING,
    Life.LEAVING: AcquisitionState.FAILING,
    Life.LEAVING_STORE: AcquisitionState.FAILING,
    Life.FAILED: AcquisitionState.FAILED,
}
_L, _E = Life, LifeEvent
_FAILED = frozenset({_L.FAILING, _L.LEAVING, _L.LEAVING_STORE})

TABLE = Table(
    (
        step(_L.OPEN, _E.CLOSE, _L.FINISHING),
        step(_L.FINISHING, _E.DONE, _L.FINISHING_STORE),
        step(_L.FINISHING_STORE, _E.STORE_FINISHED, _L.SEALED),
        step(_L.FINISHING_STORE, _E.WAIT, _L.NO_ROOM_TO_FINISH),
        step(_L.NO_ROOM_TO_FINISH, _E.RETRY, _L.FINISHING),
        step(frozenset({_L.OPEN, _L.FINISHING, _L.NO_ROOM_TO_FINISH}), _E.FAIL, _L.FAILING),
        step(
            _L.FINISHING_STORE,
            _E.FAIL,
            _L.LEAVING_STORE,
            "all groups are sealed, and the keeper's answer is still to come",
        ),
        step(_L.FAILING, _E.UNREAD, _L.LEAVING),
        step(_L.LEAVING, _E.DONE, _L.LEAVING_STORE),
        step(
            _FAILED,
            _E.OVER,
            _L.FAILED,
            "in the first two because the keeper has died: nothing more can be sealed",
        ),
    ),
    {
        _E.CLOSE: "an acquisition is closed once",
        _E.DONE: "that is asked while groups are being sealed",
        _E.STORE_FINISHED: "nobody has asked for it; after a failure it is over instead",
        _E.WAIT: "only the end of a store waits for room here, and none that has failed",
        _E.RETRY: "only what waits is tried again",
        _E.FAIL: "the first reason counts, and of one that is sealed nothing can be lost",
        _E.UNREAD: "only one that has just failed waits for that",
        _E.OVER: "it has not failed",
    },
)
