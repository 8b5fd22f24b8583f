"""The table of recovery: the action for each shard file of a shard row, by the facts of it. A row has a name,
by which code and FORMAT.md cite it.

A journal is created after its shard files and deleted last, so that a shard in progress without a journal
holds nothing. Its header is written when the names of its shards are durable, and they are deleted when it is
gone for good: a journal with a header whose shards are missing is of a shard row that was sealed. Only a
complete shard ever gets a final name, so that a shard under its final name is always valid; in a live store
only one that has no other name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from .facts import FileFacts, JournalFact


class Action(Enum):
    """The actions of recovery for one shard file."""

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
    """A row. None: any value."""

    name: str
    journal: JournalFact
    working: bool | None
    final: bool | None
    holds: bool | None
    action: Action
    live: bool | None = None


def has_facts(row: Any, facts: Any) -> bool:
    """Returns whether a row of a table has each field of a dataclass of facts; None in a row: any value."""
    return all(getattr(row, fact.name) in (None, getattr(facts, fact.name)) for fact in fields(facts))


_J, _A = JournalFact, Action
TABLE = (
    # the writer died before this shard was renamed
    Case("unnamed", _J.VALID, True, False, None, _A.CONTINUE),
    # the writer died after this rename, before its shard row was sealed
    Case("named", _J.VALID, False, True, None, _A.SEALED),
    # the rename was done in two steps, as on network filesystems
    Case("named-twice", _J.VALID, True, True, None, _A.SEALED, live=False),
    # readers see it grow; the final name is its second one, or still that of a file that it replaces
    Case("shown", _J.VALID, True, True, None, _A.CONTINUE, live=True),
    # a shard without a chunk is deleted, not renamed, when its shard row is sealed
    Case("all-fill", _J.VALID, False, False, False, _A.ALL_FILL),
    # another program deleted it, or the disk lost it
    Case("lost", _J.VALID, False, False, True, _A.LOST),
    # the old shard keeps the final name until this one, which has all of its frames, replaces it
    Case("replacing", _J.REOPENED, True, None, None, _A.CONTINUE),
    # this shard got the final name, and the writer died before its shard row was sealed
    Case("replaced", _J.REOPENED, False, True, None, _A.SEALED),
    Case("all-fill-again", _J.REOPENED, False, False, False, _A.ALL_FILL),
    Case("lost-again", _J.REOPENED, False, False, True, _A.LOST),
    # the journal's header fails its checks: bit rot, another program, or a power cut while it was made
    Case("unexplained", _J.DAMAGED, True, None, None, _A.SET_ASIDE),
    Case("damaged-alone", _J.DAMAGED, False, None, None, _A.NOTHING),
    # the writer died while it prepared the shard row, or after it had sealed it
    Case("unclaimed", _J.NONE, True, None, None, _A.DELETE),
    Case("absent", _J.NONE, False, None, None, _A.NOTHING),
)


def action_for(facts: FileFacts) -> Action:
    """Returns the action for one file."""
    (row,) = [row for row in TABLE if has_facts(row, facts)]
    return row.action
