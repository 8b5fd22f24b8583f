"""The state machines of an acquisition, of a shard row and of its files, as tables: which event leads from
which states to which, and why an event never comes in a state without a step for it.

The states of an acquisition:

OPEN ──▶ FINISHING ──▶ FINISHING_STORE ──▶ SEALED       at the end: shard rows, then the store
  │        │     ▲            │     ▲
  │        │     └── NO_ROOM_TO_FINISH ◀┘               on a full disk, if it may wait for room
  ▼        ▼
FAILING ──▶ LEAVING ──▶ LEAVING_STORE ──▶ FAILED        sound shard rows are sealed, others left to recovery

A shard row, as its frames see it (``verdicts``):

NEW ──▶ OPEN ──▶ CLOSED ──▶ SEALED                      it is full, or newer frames have passed it over
         │ ▲
         ▼ └── REOPENING ◀── EARLIER                    a frame comes: new files continue the sealed shards
     SET_ASIDE ──▶ EARLIER                              closed for want of room, or by an earlier process

The files of one shard row while it is in progress:

PREPARING ──▶ READY ──▶ SEALING ──▶ GONE          the way of a shard row on a sound disk
  │  ▲          │ ▲        │ ▲
  ▼  │          ▼ │        ▼ │
REFUSED,     BROKEN,     NO_ROOM_TO_SEAL          without room, after an I/O error, without room to seal
NO_ROOM      REWRITING
REOPENING ──▶ READY                               one that was sealed before it was full; NO_ROOM_TO_REOPEN
any but GONE ──▶ SPOILED ──▶ GONE                 in an acquisition that fails: left to recovery
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class Step(Generic[S, E]):
    """In any of these states this event leads to ``after``."""

    states: frozenset[S]
    event: E
    after: S
    why: str = ""


@dataclass(frozen=True)
class Table(Generic[S, E]):
    """A state machine: its steps, and the events that cannot come. ``never``: for each event the reason why
    it never comes in a state without a step for it."""

    steps: tuple[Step[S, E], ...]
    never: dict[E, str]

    def after(self, state: S, event: E) -> S:
        """Returns the next state. An event without a step is a defect (``AssertionError``)."""
        for each in self.steps:
            if event is each.event and state in each.states:
                return each.after
        raise AssertionError(f"{event.value} comes while it is {state.value}: {self.never[event]}")


def step(states: S | frozenset[S], event: E, after: S, why: str = "") -> Step[S, E]:
    """A step from one state, or from any of several."""
    return Step(states if isinstance(states, frozenset) else frozenset({states}), event, after, why)


# ---------------------------------------------------------------------- an acquisition


class AcquisitionState(Enum):
    """The state as seen outside of the core."""

    OPEN = "open"
    FINISHING = "finishing"
    SEALED = "sealed"
    FAILING = "failing"
    FAILED = "failed"


class Life(Enum):
    """The states of an acquisition within the core."""

    OPEN = "open"
    FINISHING = "finishing"  # incomplete slabs are closed, every shard row is sealed
    FINISHING_STORE = "finishing the store"  # by the sealer
    NO_ROOM_TO_FINISH = "no room to finish"  # tried again later
    SEALED = "sealed"
    # no more frames are taken; workers may still read pixels, or the sealer copies a shard row
    FAILING = "failing"
    # no worker reads pixels: sound shard rows are being sealed, the rest is left to recovery
    LEAVING = "leaving"
    LEAVING_STORE = "leaving the store"  # the sealer brings zarr.json and the frame table up to date
    FAILED = "failed"

    @property
    def state(self) -> AcquisitionState:
        return _STATE_OF[self]


class LifeEvent(Enum):
    """The events of an acquisition."""

    CLOSE = "close"  # the end was requested, and every frame that came has its place
    DONE = "done"  # no shard row, commit, slab or record is under way
    STORE_FINISHED = "store finished"
    WAIT = "wait"  # for room on the disk
    RETRY = "retry"
    FAIL = "fail"
    UNREAD = "unread"  # no worker reads pixels any more
    OVER = "over"  # the sealer has died, or has finished the store


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

LIFE = Table(
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
            "all shard rows are sealed, and the sealer's report is still to come",
        ),
        step(_L.FAILING, _E.UNREAD, _L.LEAVING),
        step(_L.LEAVING, _E.DONE, _L.LEAVING_STORE),
        step(
            _FAILED,
            _E.OVER,
            _L.FAILED,
            "from the first two only if the sealer has died: nothing more can be sealed",
        ),
    ),
    {
        _E.CLOSE: "an acquisition is closed only once, while it is open",
        _E.DONE: "it comes only while shard rows are being sealed, at the end or after a failure",
        _E.STORE_FINISHED: "the core has not commanded it; after a failure the event is OVER",
        _E.WAIT: "only an acquisition that finishes its store waits for room, and none that has failed",
        _E.RETRY: "only an acquisition that waits for room tries again",
        _E.FAIL: "only the first failure counts, and a sealed acquisition cannot fail any more",
        _E.UNREAD: "only an acquisition that has just failed waits for its workers",
        _E.OVER: "only an acquisition that fails ends this way",
    },
)


# ---------------------------------------------------------------------- a shard row


class ShardRowState(Enum):
    """The state that decides what happens to a frame of the shard row. ``FilesState`` is that of its
    files."""

    NEW = "new"  # no frame has come for it; its files may be prepared ahead
    OPEN = "open"  # takes frames
    CLOSED = "closed"  # takes no more frames; its last slabs are stored, then it is sealed
    SET_ASIDE = "set aside"  # likewise, but it is opened again once it is sealed: its frames wait
    SEALED = "sealed"  # for good
    EARLIER = "earlier"  # sealed before it was full: a frame opens it again
    REOPENING = "reopening"  # the sealer makes new files that continue its sealed shards


class ShardRowEvent(Enum):
    """The events of a shard row."""

    OPEN = "open"
    EMPTY = "empty"
    CLOSE = "close"
    SET_ASIDE = "set aside"
    SEALED = "sealed"
    FULL = "full"  # sealed, with a frame in every place
    REOPENED = "reopened"
    UNREADABLE = "unreadable"  # its sealed shards cannot be read


_R, _V = ShardRowState, ShardRowEvent

SHARD_ROW = Table(
    (
        step(_R.NEW, _V.OPEN, _R.OPEN),
        step(_R.OPEN, _V.EMPTY, _R.NEW, "it was found on disk without a frame: it is prepared, not open"),
        step(_R.OPEN, _V.CLOSE, _R.CLOSED),
        step(_R.OPEN, _V.SET_ASIDE, _R.SET_ASIDE),
        step(_R.CLOSED, _V.SEALED, _R.SEALED),
        step(_R.SET_ASIDE, _V.SEALED, _R.EARLIER),
        step(frozenset({_R.CLOSED, _R.SET_ASIDE}), _V.FULL, _R.SEALED),
        step(_R.REOPENING, _V.REOPENED, _R.OPEN),
        step(_R.REOPENING, _V.UNREADABLE, _R.SEALED, "further frames of it are refused"),
    ),
    {
        _V.OPEN: "a shard row is opened once, by its first frame",
        _V.EMPTY: "only those that were found on disk may turn out to be empty",
        _V.CLOSE: "only one that takes frames is closed",
        _V.SET_ASIDE: "as for CLOSE",
        _V.SEALED: "it is closed before it is sealed",
        _V.FULL: "as for SEALED",
        _V.REOPENED: "it answers only a command to reopen",
        _V.UNREADABLE: "as for REOPENED",
    },
)


# ---------------------------------------------------------------------- the files of a shard row


class FilesState(Enum):
    """The states of the files of a shard row."""

    PREPARING = "preparing"  # the sealer makes them
    REFUSED = "refused"  # they could not be made, and no slab has needed them yet
    NO_ROOM = "no room"  # a slab waits for them, and the disk has no room
    READY = "ready"  # workers may write
    BROKEN = "broken"  # an I/O error: nothing more is written; new ones are made once no worker uses these
    REWRITING = "rewriting"  # the sealer copies what can be read back to new ones
    SEALING = "sealing"  # the sealer gives them their final names
    NO_ROOM_TO_SEAL = "no room to seal"
    REOPENING = "reopening"  # the sealer makes files that continue sealed shards
    NO_ROOM_TO_REOPEN = "no room to reopen"
    # The acquisition fails, and they lack something that was acknowledged. Sealed without it the shard row
    # would be closed, and recovery would take for stored what is only in the staging area.
    SPOILED = "spoiled"
    GONE = "gone"  # sealed, discarded or given up


class FilesEvent(Enum):
    """The events of the files of a shard row."""

    PREPARED = "prepared"
    REFUSED = "refused"
    WAIT = "wait"  # for room on the disk
    RETRY = "retry"  # there may be room
    BROKE = "broke"
    REWRITE = "rewrite"  # no worker uses the broken ones any more
    REWRITTEN = "rewritten"  # or the rewrite failed: then only the old ones are left
    SEAL = "seal"
    SEALED = "sealed"
    SEAL_FAILED = "seal failed"
    REOPENED = "reopened"
    SPOIL = "spoil"  # a slab is half written, or frames stay in the staging area
    GIVE_UP = "give up"  # or discard; also after a failed reopening


_S, _F = FilesState, FilesEvent

FILES = Table(
    (
        step(_S.PREPARING, _F.PREPARED, _S.READY),
        step(_S.PREPARING, _F.REFUSED, _S.REFUSED),
        step(
            _S.REFUSED,
            _F.WAIT,
            _S.NO_ROOM,
            "a slab is full and needs them, or the shard row is to be sealed",
        ),
        step(_S.REFUSED, _F.RETRY, _S.PREPARING, "at once, in the second root"),
        step(_S.NO_ROOM, _F.RETRY, _S.PREPARING),
        step(_S.READY, _F.BROKE, _S.BROKEN),
        step(_S.BROKEN, _F.BROKE, _S.BROKEN, "another slab or a commit failed on the same disk"),
        step(
            _S.REWRITING,
            _F.BROKE,
            _S.REWRITING,
            "a late error of the old files: a precaution, since earlier commands are answered by then",
        ),
        step(
            _S.SEALING,
            _F.BROKE,
            _S.SEALING,
            "a commit that began before has failed: sealing fails as well and reports it",
        ),
        step(_S.BROKEN, _F.REWRITE, _S.REWRITING),
        step(_S.REWRITING, _F.REWRITTEN, _S.READY),
        step(_S.READY, _F.SEAL, _S.SEALING),
        step(_S.SEALING, _F.SEALED, _S.GONE),
        step(_S.SEALING, _F.SEAL_FAILED, _S.READY, "the files are then rewritten or given up"),
        step(_S.SEALING, _F.WAIT, _S.NO_ROOM_TO_SEAL),
        step(_S.NO_ROOM_TO_SEAL, _F.RETRY, _S.SEALING),
        step(_S.NO_ROOM_TO_SEAL, _F.SEAL, _S.SEALING, "the last attempt, since the acquisition fails"),
        step(_S.REOPENING, _F.REOPENED, _S.READY),
        step(_S.REOPENING, _F.WAIT, _S.NO_ROOM_TO_REOPEN),
        step(_S.NO_ROOM_TO_REOPEN, _F.RETRY, _S.REOPENING),
        step(frozenset(_S) - {_S.GONE, _S.SEALING, _S.REWRITING}, _F.SPOIL, _S.SPOILED),
        step(
            _S.REWRITING,
            _F.SPOIL,
            _S.REWRITING,
            "its report is awaited; frames that stay in the staging area spoil it again, after that",
        ),
        step(
            _S.SPOILED, _F.PREPARED, _S.SPOILED, "it answers an earlier command: the files stay as they are"
        ),
        step(_S.SPOILED, _F.REFUSED, _S.SPOILED, "as for PREPARED"),
        step(frozenset(_S) - {_S.GONE, _S.SEALING, _S.REWRITING}, _F.GIVE_UP, _S.GONE),
    ),
    {
        _F.PREPARED: "it answers only a command to prepare; answers for discarded files are ignored",
        _F.REFUSED: "as for PREPARED",
        _F.WAIT: "files that exist need no room, and files that wait already do not wait twice",
        _F.RETRY: "only files that wait for room are tried again",
        _F.BROKE: "no one writes to files that do not exist, or to files that are sealed or given up",
        _F.REWRITE: "only broken files are rewritten, and one rewrite at a time",
        _F.REWRITTEN: "it answers only a command to rewrite",
        _F.SEAL: "a shard row is sealed once no slab waits, and slabs wait while the files are not ready",
        _F.SEALED: "it answers only a command to seal",
        _F.SEAL_FAILED: "as for SEALED",
        _F.REOPENED: "it answers only a command to reopen",
        _F.SPOIL: "nothing is under way for files that are being sealed, or gone",
        _F.GIVE_UP: "the sealer works on the files, and the core waits for its report",
    },
)
