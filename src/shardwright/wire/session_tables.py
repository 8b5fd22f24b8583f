"""The session tables: for each side, the meaning of every event in every state. Pure data and one lookup; a
test checks that each pair has exactly one row.

Accept: act on the event. Ignore: the event is stale or repeated, drop it. Refuse: the peer broke the
protocol; answer ERROR and end its session.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Verdict(Enum):
    ACCEPT = "accept"
    IGNORE = "ignore"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Transition(Generic[S, E]):
    """In any of ``states``, ``event`` leads to ``then`` (None: the state stays)."""

    states: frozenset[S]
    event: E
    verdict: Verdict
    then: S | None


_row = Transition  # so that a row of a table is a line


def rows_for(table: tuple[Transition[S, E], ...], state: S, event: E) -> list[Transition[S, E]]:
    return [row for row in table if event is row.event and state in row.states]


def step(table: tuple[Transition[S, E], ...], state: S, event: E) -> tuple[Verdict, S]:
    """Returns the verdict for ``event`` in ``state``, and the next state."""
    (row,) = rows_for(table, state, event)
    return row.verdict, state if row.then is None else row.then


class DaemonState(Enum):
    AWAIT_RING = "await_ring"  # OPENED with shared memory, the client has not fetched the ring
    RUNNING = "running"
    FINISHING = "finishing"  # the client sent FINISH; the acquisition is being sealed, a receipt will follow
    # the client vanished, or the daemon found the acquisition on disk: open, waiting for a client
    DETACHED = "detached"
    # the daemon ended it (client left, protocol error, stop, failure); received frames are being sealed
    DRAINING = "draining"
    ENDED = "ended"


class DaemonEvent(Enum):
    RING_TAKEN = "ring_taken"  # or none is needed
    FRAMES = "frames"
    FLUSH = "flush"
    UPDATE = "update"
    FINISH = "finish"
    UNEXPECTED = "unexpected"  # a message of a kind that only the daemon sends
    VIOLATION = "violation"  # a message that is wrong in itself: sequence, lengths, descriptors
    CLIENT_LEFT = "client_left"  # it announced that, or broke the protocol of its connection
    LINK_LOST = "link_lost"  # the client vanished without a message
    ATTACHED = "attached"  # a client resumed or reopened it
    TIMED_OUT = "timed_out"  # no client did within the daemon's timeout
    STOPPING = "stopping"
    FAILED = "failed"  # the acquisition itself failed
    SETTLED = "settled"  # sealed or failed, and no pixel is needed any more


_D, _DE = DaemonState, DaemonEvent
_OPEN = frozenset({_D.AWAIT_RING, _D.RUNNING})
_LIVE = _OPEN | {_D.FINISHING}
_AWAY = frozenset({_D.DETACHED})
_OVER = frozenset({_D.DRAINING, _D.ENDED})


DAEMON_TABLE = (
    _row(frozenset({_D.AWAIT_RING}), _DE.RING_TAKEN, Verdict.ACCEPT, _D.RUNNING),
    _row(frozenset({_D.RUNNING, _D.FINISHING}) | _AWAY | _OVER, _DE.RING_TAKEN, Verdict.IGNORE, None),
    _row(frozenset({_D.RUNNING}), _DE.FRAMES, Verdict.ACCEPT, None),
    _row(frozenset({_D.AWAIT_RING, _D.FINISHING}), _DE.FRAMES, Verdict.REFUSE, _D.DRAINING),
    _row(_AWAY | _OVER, _DE.FRAMES, Verdict.IGNORE, None),
    _row(_OPEN, _DE.FLUSH, Verdict.ACCEPT, None),
    # everything will be durable anyway
    _row(frozenset({_D.FINISHING}) | _AWAY | _OVER, _DE.FLUSH, Verdict.IGNORE, None),
    _row(_OPEN, _DE.UPDATE, Verdict.ACCEPT, None),
    _row(frozenset({_D.FINISHING}), _DE.UPDATE, Verdict.REFUSE, _D.DRAINING),
    _row(_AWAY | _OVER, _DE.UPDATE, Verdict.IGNORE, None),
    _row(_OPEN, _DE.FINISH, Verdict.ACCEPT, _D.FINISHING),
    _row(frozenset({_D.FINISHING}), _DE.FINISH, Verdict.REFUSE, _D.DRAINING),
    _row(_AWAY | _OVER, _DE.FINISH, Verdict.IGNORE, None),
    _row(_LIVE, _DE.UNEXPECTED, Verdict.REFUSE, _D.DRAINING),
    _row(_AWAY | _OVER, _DE.UNEXPECTED, Verdict.IGNORE, None),
    _row(_LIVE, _DE.VIOLATION, Verdict.REFUSE, _D.DRAINING),
    _row(_AWAY | _OVER, _DE.VIOLATION, Verdict.IGNORE, None),
    _row(_LIVE, _DE.CLIENT_LEFT, Verdict.ACCEPT, _D.DRAINING),
    _row(_AWAY | _OVER, _DE.CLIENT_LEFT, Verdict.IGNORE, None),
    _row(_OPEN, _DE.LINK_LOST, Verdict.ACCEPT, _D.DETACHED),
    # the receipt is kept for a client that resumes
    _row(frozenset({_D.FINISHING}) | _AWAY | _OVER, _DE.LINK_LOST, Verdict.IGNORE, None),
    # while attached: the daemon has not noticed yet that the old connection is dead
    _row(_OPEN | _AWAY, _DE.ATTACHED, Verdict.ACCEPT, _D.AWAIT_RING),
    _row(frozenset({_D.FINISHING}) | _OVER, _DE.ATTACHED, Verdict.IGNORE, None),  # it will get the receipt
    _row(_AWAY, _DE.TIMED_OUT, Verdict.ACCEPT, _D.DRAINING),
    _row(_LIVE | _OVER, _DE.TIMED_OUT, Verdict.IGNORE, None),
    _row(_OPEN | _AWAY, _DE.STOPPING, Verdict.ACCEPT, _D.DRAINING),
    # a finishing client still gets its receipt
    _row(frozenset({_D.FINISHING}) | _OVER, _DE.STOPPING, Verdict.IGNORE, None),
    _row(_LIVE | _AWAY, _DE.FAILED, Verdict.ACCEPT, _D.DRAINING),
    _row(_OVER, _DE.FAILED, Verdict.IGNORE, None),
    _row(_LIVE | _AWAY | {_D.DRAINING}, _DE.SETTLED, Verdict.ACCEPT, _D.ENDED),
    _row(frozenset({_D.ENDED}), _DE.SETTLED, Verdict.IGNORE, None),
)


class ClientState(Enum):
    TAKING_RING = "taking_ring"  # OPENED came, the ring is being fetched
    RUNNING = "running"
    FINISHING = "finishing"  # FINISH sent, waiting for the receipt
    DETACHED = "detached"  # the link is down; frames are kept until the acquisition is resumed
    ENDED = "ended"  # the receipt came
    FAILED = "failed"  # a fatal error came, or reconnecting was given up


class ClientEvent(Enum):
    READY = "ready"  # the ring is mapped, or no ring is needed
    FINISH = "finish"  # the user closed the stream, and everything before was sent
    ACK = "ack"
    UPDATED = "updated"
    VISIBLE = "visible"
    LOSS = "loss"  # an error that is not fatal: frames could not be kept
    RECEIPT = "receipt"
    ERROR = "error"  # fatal, for this session or its connection
    UNEXPECTED = "unexpected"  # a message of a kind that only the client sends, or a second OPENED
    LINK_DOWN = "link_down"  # the connection broke, and another is being tried
    RESUMED = "resumed"  # OPENED came for the acquisition that was to be resumed
    LOST = "lost"  # the connection is lost for good


_C, _CE = ClientState, ClientEvent
_ATTACHED = frozenset({_C.TAKING_RING, _C.RUNNING, _C.FINISHING})
_DOWN = frozenset({_C.DETACHED})
_AT_END = frozenset({_C.ENDED, _C.FAILED})


CLIENT_TABLE = (
    _row(frozenset({_C.TAKING_RING}), _CE.READY, Verdict.ACCEPT, _C.RUNNING),
    _row(frozenset({_C.RUNNING, _C.FINISHING}) | _DOWN | _AT_END, _CE.READY, Verdict.IGNORE, None),
    _row(frozenset({_C.RUNNING}), _CE.FINISH, Verdict.ACCEPT, _C.FINISHING),
    _row(frozenset({_C.TAKING_RING, _C.FINISHING}) | _DOWN | _AT_END, _CE.FINISH, Verdict.IGNORE, None),
    _row(_ATTACHED, _CE.ACK, Verdict.ACCEPT, None),
    _row(_DOWN | _AT_END, _CE.ACK, Verdict.IGNORE, None),
    _row(_ATTACHED, _CE.UPDATED, Verdict.ACCEPT, None),
    _row(_DOWN | _AT_END, _CE.UPDATED, Verdict.IGNORE, None),
    _row(_ATTACHED, _CE.VISIBLE, Verdict.ACCEPT, None),
    _row(_DOWN | _AT_END, _CE.VISIBLE, Verdict.IGNORE, None),
    _row(_ATTACHED, _CE.LOSS, Verdict.ACCEPT, None),
    _row(_DOWN | _AT_END, _CE.LOSS, Verdict.IGNORE, None),
    # detached: it had been sealed before the client reconnected
    _row(frozenset({_C.FINISHING}) | _DOWN, _CE.RECEIPT, Verdict.ACCEPT, _C.ENDED),
    # frames that arrived before the failure were sealed
    _row(frozenset({_C.FAILED}), _CE.RECEIPT, Verdict.ACCEPT, None),
    _row(frozenset({_C.TAKING_RING, _C.RUNNING}), _CE.RECEIPT, Verdict.REFUSE, _C.FAILED),
    _row(frozenset({_C.ENDED}), _CE.RECEIPT, Verdict.IGNORE, None),
    _row(_ATTACHED | _DOWN, _CE.ERROR, Verdict.ACCEPT, _C.FAILED),
    _row(_AT_END, _CE.ERROR, Verdict.IGNORE, None),
    _row(_ATTACHED, _CE.UNEXPECTED, Verdict.REFUSE, _C.FAILED),
    _row(_DOWN | _AT_END, _CE.UNEXPECTED, Verdict.IGNORE, None),
    _row(_ATTACHED, _CE.LINK_DOWN, Verdict.ACCEPT, _C.DETACHED),
    _row(_DOWN | _AT_END, _CE.LINK_DOWN, Verdict.IGNORE, None),
    _row(_DOWN, _CE.RESUMED, Verdict.ACCEPT, _C.TAKING_RING),
    _row(_ATTACHED, _CE.RESUMED, Verdict.REFUSE, _C.FAILED),
    _row(_AT_END, _CE.RESUMED, Verdict.IGNORE, None),
    _row(_ATTACHED | _DOWN, _CE.LOST, Verdict.ACCEPT, _C.FAILED),
    _row(_AT_END, _CE.LOST, Verdict.IGNORE, None),
)
