"""The tables of recovery: every combination of facts on disk meets exactly one row, and no row is there for
nothing."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

import shardwright
from shardwright.recovery.leftovers import FOLDER_TABLE, FolderAction, FolderFacts, row_for
from shardwright.scan.facts import FileFacts, JournalFact
from shardwright.scan.table import TABLE, Action, action_for, has_facts
from shardwright.scan.unfinished_store import is_shown
from shardwright.shard.shard_row_files import Placement

SHARD = "0/c/0"
SOURCE = Path(shardwright.__file__).parent

# every combination of facts that a disk can have
ALL_FACTS = [FileFacts(*facts) for facts in product(JournalFact, *[(False, True)] * 4)]


@pytest.mark.parametrize("facts", ALL_FACTS, ids=str)
def test_every_combination_matches_exactly_one_row(facts):
    assert len([row for row in TABLE if has_facts(row, facts)]) == 1
    assert isinstance(action_for(facts), Action)


def test_every_row_is_needed():
    for row in TABLE:
        assert any(has_facts(row, facts) for facts in ALL_FACTS), row


def test_nothing_that_was_stored_is_ever_deleted():
    for facts in ALL_FACTS:
        if facts.journal is JournalFact.VALID and facts.working and not facts.final:
            assert action_for(facts) is Action.CONTINUE
        assert (action_for(facts) is Action.DELETE) == (facts.journal is JournalFact.NONE and facts.working)


def test_a_final_name_is_always_believed():
    """Of a live store, once it is the only one."""
    for facts in ALL_FACTS:
        if facts.final and facts.journal is JournalFact.VALID:
            grows = facts.live and facts.working
            assert action_for(facts) is (Action.CONTINUE if grows else Action.SEALED)


def test_a_row_that_takes_frames_again_goes_on_whatever_has_its_final_names():
    """Its old shards keep them, and have less than the files in progress."""
    for facts in ALL_FACTS:
        if facts.journal is JournalFact.REOPENED and facts.working:
            assert action_for(facts) is Action.CONTINUE
        if facts.journal is JournalFact.REOPENED and facts.final and not facts.working:
            assert action_for(facts) is Action.SEALED, "the rename was the last thing that happened to it"


def shard_of(store: Path) -> tuple[Placement, Path, Path]:
    """Where a shard lies that has its final name, and both of its names."""
    placement = Placement(store)
    working, final = placement.working(SHARD), placement.final(SHARD)
    for path in (working, final):
        path.parent.mkdir(parents=True)
    final.write_bytes(b"shard")
    return placement, working, final


@pytest.mark.parametrize("live", ["none", "index", "append"])
@pytest.mark.parametrize("journal", [JournalFact.VALID, JournalFact.REOPENED])
@pytest.mark.parametrize("is_working", [False, True])
def test_who_looks_at_one_shard_alone_finds_the_row_of_what_is_shown(tmp_path, live, journal, is_working):
    placement, working, final = shard_of(tmp_path)
    if is_working:
        working.hardlink_to(final)
    facts = FileFacts(journal, working=is_working, final=True, holds=True, live=live != "none")
    (row,) = [row for row in TABLE if has_facts(row, facts)]
    assert is_shown(live, journal, placement, SHARD) == (row.name == "shown")


@pytest.mark.parametrize(("live", "is_one"), [("none", False), ("index", False), ("append", True)])
def test_with_a_damaged_journal_only_the_files_tell_what_is_shown(tmp_path, live, is_one):
    """Another file is an older shard, or a copy."""
    placement, working, final = shard_of(tmp_path)
    assert not is_shown(live, JournalFact.DAMAGED, placement, SHARD)
    working.write_bytes(b"shard")
    assert is_shown(live, JournalFact.DAMAGED, placement, SHARD) == is_one
    working.unlink()
    working.hardlink_to(final)
    assert is_shown(live, JournalFact.DAMAGED, placement, SHARD) == (live != "none")


def test_the_rows_of_the_format_are_those_of_the_table():
    """By name and in order, each with the facts that it matches."""
    section = (SOURCE / "shard" / "FORMAT.md").read_text(encoding="utf-8").partition("\n## Recovery\n")[2]
    (table,) = [block for block in section.split("\n\n") if block.startswith("| row |")]
    words = {None: "", True: "yes", False: "no"}
    assert [tuple(map(str.strip, line.split("|")[1:6])) for line in table.splitlines()[2:]] == [
        (f"`{row.name}`", row.journal.value, words[row.working], words[row.final], words[row.holds])
        for row in TABLE
    ]


def test_the_names_of_the_rows_are_unique():
    assert len({row.name for row in TABLE}) == len(TABLE)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", row.name) for row in TABLE)


def test_code_cites_only_rows_that_are_there():
    texts = (path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py")))
    lists = (found[1] for text in texts for found in re.finditer(r"\brows?\s+((?:``[a-z-]+``[,\s]*)+)", text))
    cited = {name for names in lists for name in re.findall("[a-z-]+", names)}
    assert cited
    assert cited <= {row.name for row in TABLE}


ALL_FOLDERS = [FolderFacts(*facts) for facts in product((False, True), repeat=6)]


@pytest.mark.parametrize("facts", ALL_FOLDERS, ids=str)
def test_every_folder_matches_exactly_one_row(facts):
    assert row_for(facts).action in FolderAction


def test_every_row_of_the_folders_is_needed():
    for row in FOLDER_TABLE:
        assert any(has_facts(row, facts) for facts in ALL_FOLDERS), row


def test_a_store_whose_frames_may_have_come_is_never_removed():
    for facts in ALL_FOLDERS:
        if facts.manifest and not facts.making and not facts.unbegun:
            assert row_for(facts).action is FolderAction.TAKE_UP
