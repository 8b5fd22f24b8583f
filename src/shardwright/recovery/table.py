"""The tables of recovery: the action for each shard file of a shard row that has a journal, and for each file
that belongs to no such shard row. ``scan`` finds the facts, ``decide`` looks up the actions, ``execute``
carries them out.

A journal is created after its shard files and deleted last, so that a shard in progress without a journal
holds nothing. Its header is written when the names of its shards are durable, and they are deleted when it is
gone for good: a journal with a header whose shards are missing is of a shard row that was sealed. Only a
complete shard ever gets a final name, so that a shard under its final name is always valid; in a live store
only one that has no other name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class JournalFact(Enum):
    VALID = "valid"
    REOPENED = "reopened"  # valid, of a shard row that was sealed before it was full and then reopened
    DAMAGED = "damaged"  # exists, but is no valid journal of this shard row


@dataclass(frozen=True)
class FileFacts:
    """``working``: the shard in progress is there; ``final``: a shard has the final name; ``holds``: the
    journal names a chunk in this file; ``live``: shards in progress of this store may have final names, too.
    """

    journal: JournalFact
    working: bool
    final: bool
    holds: bool
    live: bool = False


class Action(Enum):
    CONTINUE = "continue"  # check its chunks, then fill it further or seal it
    SEALED = "sealed"  # complete; a working file beside it (a second name, or a leftover) is deleted
    ALL_FILL = "all fill"  # sealing found nothing to keep and deleted it
    LOST = "lost"  # chunks were stored in a file that is missing
    DELETE = "delete"  # nothing was stored in it, or all of its content is elsewhere too
    # not usable without its journal; kept under another name for inspection
    SET_ASIDE = "set aside"
    NOTHING = "nothing"  # not begun, or finished


@dataclass(frozen=True)
class Case:
    """None: any value."""

    journal: JournalFact
    working: bool | None
    final: bool | None
    holds: bool | None
    action: Action
    why: str
    live: bool | None = None

    def matches(self, facts: FileFacts) -> bool:
        pairs = (
            (self.working, facts.working),
            (self.final, facts.final),
            (self.holds, facts.holds),
            (self.live, facts.live),
        )
        return self.journal is facts.journal and all(
            wanted is None or wanted == found for wanted, found in pairs
        )


_J = JournalFact
TABLE = (
    Case(_J.VALID, True, False, None, Action.CONTINUE, "the writer died before this shard was renamed"),
    Case(
        _J.VALID,
        False,
        True,
        None,
        Action.SEALED,
        "the writer died after this rename, before its shard row was sealed",
    ),
    Case(
        _J.VALID,
        True,
        True,
        None,
        Action.SEALED,
        "the rename was done in two steps, as on network filesystems",
        live=False,
    ),
    Case(
        _J.VALID,
        True,
        True,
        None,
        Action.CONTINUE,
        "readers see it grow; the final name is its second one, or still that of a file that it replaces",
        live=True,
    ),
    Case(
        _J.VALID,
        False,
        False,
        False,
        Action.ALL_FILL,
        "a shard without a chunk is deleted, not renamed, when its shard row is sealed",
    ),
    Case(_J.VALID, False, False, True, Action.LOST, "another program deleted it, or the disk lost it"),
    Case(
        _J.REOPENED,
        True,
        None,
        None,
        Action.CONTINUE,
        "the old shard keeps the final name until this one, which has all of its frames, replaces it",
    ),
    Case(
        _J.REOPENED,
        False,
        True,
        None,
        Action.SEALED,
        "this shard got the final name, and the writer died before its shard row was sealed",
    ),
    Case(
        _J.REOPENED,
        False,
        False,
        False,
        Action.ALL_FILL,
        "a shard without a chunk is deleted, not renamed, when its shard row is sealed again",
    ),
    Case(_J.REOPENED, False, False, True, Action.LOST, "another program deleted it, or the disk lost it"),
    Case(
        _J.DAMAGED,
        True,
        None,
        None,
        Action.SET_ASIDE,
        "the journal's header fails its checks: bit rot, another program, or a power cut while it was made",
    ),
    Case(
        _J.DAMAGED, False, None, None, Action.NOTHING, "the journal is damaged, and this file does not exist"
    ),
)


class Stray(Enum):
    """A file in progress that belongs to no shard row that was begun."""

    SHARD = "a shard that no journal names"
    JOURNAL = "a journal without a header"
    REWRITE = "a new file of a shard row that was being rewritten"


STRAYS = {
    Stray.SHARD: (
        Action.DELETE,
        "the writer died while it prepared the shard row, or after it had sealed it",
    ),
    Stray.JOURNAL: (
        Action.DELETE,
        "the writer died while it prepared the shard row: the header is written last",
    ),
    Stray.REWRITE: (
        Action.DELETE,
        "the shard row's old files keep their names until all new ones are durable",
    ),
}


def action_for(facts: FileFacts) -> Action:
    """Returns the action for one file."""
    (row,) = [row for row in TABLE if row.matches(facts)]
    return row.action
