"""The files of one shard row while it is in progress: which states they have, and what leads from one to the
next. A table, and nothing else.

PREPARING ──▶ READY ──▶ SEALING ──▶ GONE          the way of a row on a sound disk
  │  ▲          │ ▲        │ ▲
  ▼  │          ▼ │        ▼ │
REFUSED,     BROKEN,     NO_ROOM_TO_SEAL          without room, after an I/O error, without room to seal
NO_ROOM      REWRITING
REOPENING ──▶ READY                               a row that was sealed before it was full; NO_ROOM_TO_REOPEN
"""

from __future__ import annotations

from enum import Enum

from .steps import Table, step


class FilesState(Enum):
    PREPARING = "preparing"  # the keeper makes them
    REFUSED = "refused"  # they could not be made, and no slab has needed them yet
    NO_ROOM = "no room"  # a slab waits for them, and they for room on the disk
    READY = "ready"  # workers may write
    BROKEN = "broken"  # an I/O error: nothing more goes in, and new ones are made once nobody is at these
    REWRITING = "rewriting"  # the keeper makes new ones of what can be read back
    SEALING = "sealing"  # the keeper gives them their final names
    NO_ROOM_TO_SEAL = "no room to seal"
    REOPENING = "reopening"  # the keeper makes files that go on with sealed shards
    NO_ROOM_TO_REOPEN = "no room to reopen"
    GONE = "gone"  # sealed, discarded or given up


class FilesEvent(Enum):
    PREPARED = "prepared"
    REFUSED = "refused"
    WAIT = "wait"  # for room on the disk
    RETRY = "retry"  # there may be room
    BROKE = "broke"
    REWRITE = "rewrite"  # nobody is at the broken ones any more
    REWRITTEN = "rewritten"  # or not: then the old ones are all there is
    SEAL = "seal"
    SEALED = "sealed"
    SEAL_FAILED = "seal failed"
    REOPENED = "reopened"
    GIVE_UP = "give up"  # or discard; also what could not be reopened


_S, _E = FilesState, FilesEvent


TABLE = Table(
    (
        step(_S.PREPARING, _E.PREPARED, _S.READY),
        step(_S.PREPARING, _E.REFUSED, _S.REFUSED),
        step(_S.REFUSED, _E.WAIT, _S.NO_ROOM, "a slab is full and needs them, or the row is to be sealed"),
        step(_S.REFUSED, _E.RETRY, _S.PREPARING, "at once, below the second root"),
        step(_S.NO_ROOM, _E.RETRY, _S.PREPARING),
        step(_S.READY, _E.BROKE, _S.BROKEN),
        step(_S.BROKEN, _E.BROKE, _S.BROKEN, "another slab, or a commit, met the same disk"),
        step(
            _S.REWRITING,
            _E.BROKE,
            _S.REWRITING,
            "of the old files; what was asked for is answered before, so that this is only for safety",
        ),
        step(
            _S.SEALING,
            _E.BROKE,
            _S.SEALING,
            "a commit that was asked for before: sealing fails as well, and says so",
        ),
        step(_S.BROKEN, _E.REWRITE, _S.REWRITING),
        step(_S.REWRITING, _E.REWRITTEN, _S.READY),
        step(_S.READY, _E.SEAL, _S.SEALING),
        step(_S.SEALING, _E.SEALED, _S.GONE),
        step(_S.SEALING, _E.SEAL_FAILED, _S.READY, "to be rewritten, or given up"),
        step(_S.SEALING, _E.WAIT, _S.NO_ROOM_TO_SEAL),
        step(_S.NO_ROOM_TO_SEAL, _E.RETRY, _S.SEALING),
        step(_S.NO_ROOM_TO_SEAL, _E.SEAL, _S.SEALING, "for the last time: the acquisition fails"),
        step(_S.REOPENING, _E.REOPENED, _S.READY),
        step(_S.REOPENING, _E.WAIT, _S.NO_ROOM_TO_REOPEN),
        step(_S.NO_ROOM_TO_REOPEN, _E.RETRY, _S.REOPENING),
        step(frozenset(_S) - {_S.GONE, _S.SEALING, _S.REWRITING}, _E.GIVE_UP, _S.GONE),
    ),
    {
        _E.PREPARED: "only what is being prepared is answered so; of files that were discarded meanwhile "
        "nobody hears",
        _E.REFUSED: "likewise",
        _E.WAIT: "files that are there need no room, and what waits already does not wait twice",
        _E.RETRY: "only what waits for room is tried again",
        _E.BROKE: "nobody writes to files that are not there, and what is sealed or given up is out of reach",
        _E.REWRITE: "only broken files are rewritten, and once",
        _E.REWRITTEN: "only what is being rewritten is answered so",
        _E.SEAL: "slabs wait for files that are not ready, and a row is sealed once no slab waits",
        _E.SEALED: "only what is being sealed is answered so",
        _E.SEAL_FAILED: "likewise",
        _E.REOPENED: "only what is being opened again is answered so",
        _E.GIVE_UP: "the keeper is at them, and its answer is waited for",
    },
)
