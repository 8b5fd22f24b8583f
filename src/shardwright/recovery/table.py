"""The tables of recovery: what is done with each shard file of a group that has a journal, and with each file
that belongs to none. ``scan`` finds the facts, ``decide`` looks them up, ``execute`` acts.

A group's files are created before its journal and lose it last, so that without a journal a shard in progress
holds nothing. A final name is only ever given to a complete shard, so that it is always believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product


class JournalFact(Enum):
    VALID = "valid"
    REOPENED = "reopened"  # valid, of a group that was sealed before it was full and takes frames again
    DAMAGED = "damaged"  # there, but not the journal of this group


@dataclass(frozen=True)
class FileFacts:
    """``working``: the shard in progress is there; ``final``: a shard has the final name; ``holds``: the
    journal names a chunk in this file."""

    journal: JournalFact
    working: bool
    final: bool
    holds: bool


class Action(Enum):
    CONTINUE = "continue"  # check its chunks, go on filling it or seal it
    SEALED = "sealed"  # complete; a working file beside it is another name of it, or a leftover, and goes
    ALL_FILL = "all fill"  # sealing found nothing to keep and deleted it
    LOST = "lost"  # chunks were stored in a file that is gone
    DELETE = "delete"  # nothing was stored in it, or all of that is elsewhere too
    # cannot be believed without its journal; kept under another name for whoever wants to look
    SET_ASIDE = "set aside"
    NOTHING = "nothing"  # not begun, or over


@dataclass(frozen=True)
class Row:
    """None: whatever it is."""

    journal: JournalFact
    working: bool | None
    final: bool | None
    holds: bool | None
    action: Action
    why: str

    def matches(self, facts: FileFacts) -> bool:
        pairs = ((self.working, facts.working), (self.final, facts.final), (self.holds, facts.holds))
        return self.journal is facts.journal and all(
            wanted is None or wanted == found for wanted, found in pairs
        )


_J = JournalFact
TABLE = (
    Row(_J.VALID, True, False, None, Action.CONTINUE, "the writer died before this shard was renamed"),
    Row(
        _J.VALID,
        None,
        True,
        None,
        Action.SEALED,
        "the writer died between this rename and the end of sealing its group",
    ),
    Row(
        _J.VALID,
        False,
        False,
        False,
        Action.ALL_FILL,
        "a shard without a chunk is deleted when its group is sealed",
    ),
    Row(_J.VALID, False, False, True, Action.LOST, "somebody else deleted the file, or the disk lost it"),
    Row(
        _J.REOPENED,
        True,
        None,
        None,
        Action.CONTINUE,
        "the old shard keeps the final name until this one, which has all that it has, takes it",
    ),
    Row(
        _J.REOPENED,
        False,
        True,
        None,
        Action.SEALED,
        "this shard took the final name, and the writer died before its group was sealed",
    ),
    Row(
        _J.REOPENED,
        False,
        False,
        False,
        Action.ALL_FILL,
        "a shard without a chunk is deleted when its group is sealed, again as well",
    ),
    Row(_J.REOPENED, False, False, True, Action.LOST, "somebody else deleted the file, or the disk lost it"),
    Row(
        _J.DAMAGED,
        True,
        None,
        None,
        Action.SET_ASIDE,
        "the journal's header does not check: bit rot, or another program",
    ),
    Row(_J.DAMAGED, False, None, None, Action.NOTHING, "a damaged journal without this file"),
)


class Stray(Enum):
    """A file in progress that belongs to no group that was begun."""

    SHARD = "a shard that no journal names"
    JOURNAL = "a journal without a header"
    REWRITE = "a new file of a row that is rewritten"


STRAYS = {
    Stray.SHARD: (Action.DELETE, "the writer died while it prepared the group, or after it had sealed it"),
    Stray.JOURNAL: (Action.DELETE, "the writer died while it prepared the group: the header is written last"),
    Stray.REWRITE: (Action.DELETE, "the row's old files have their names until all new ones are durable"),
}


def action_for(facts: FileFacts) -> Action:
    """What to do with one file."""
    (row,) = [row for row in TABLE if row.matches(facts)]
    return row.action


def all_facts() -> list[FileFacts]:
    """Every combination that a disk can show."""
    return [FileFacts(*facts) for facts in product(JournalFact, (False, True), (False, True), (False, True))]
