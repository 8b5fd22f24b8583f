"""The recovery table: every combination of facts on disk meets exactly one row, and no row is there for nothing."""

from __future__ import annotations

import pytest

from shardwright.shard.recover import TABLE, Action, FileFacts, JournalFact, all_facts, decide


@pytest.mark.parametrize("facts", all_facts(), ids=str)
def test_every_combination_matches_exactly_one_row(facts):
    assert len([row for row in TABLE if row.matches(facts)]) == 1
    assert isinstance(decide(facts), Action)


def test_every_row_is_needed():
    for row in TABLE:
        assert any(row.matches(facts) for facts in all_facts()), row


def test_nothing_that_was_stored_is_ever_deleted():
    for facts in all_facts():
        if facts.journal is JournalFact.VALID and facts.working and not facts.final:
            assert decide(facts) is Action.CONTINUE
        if decide(facts) is Action.DELETE:
            assert facts.journal is JournalFact.NONE


def test_a_final_name_is_always_believed():
    for facts in all_facts():
        if facts.final and facts.journal is JournalFact.VALID:
            assert decide(facts) is Action.SEALED


def test_a_row_that_takes_frames_again_goes_on_whatever_has_its_final_names():
    """Its old shards keep them, and have less than the files in progress."""
    for facts in all_facts():
        if facts.journal is JournalFact.REOPENED and facts.working:
            assert decide(facts) is Action.CONTINUE
        if facts.journal is JournalFact.REOPENED and facts.final and not facts.working:
            assert decide(facts) is Action.SEALED, "the rename was the last thing that happened to it"


def test_all_facts_are_all():
    assert len(set(all_facts())) == len(JournalFact) * 2**3
    assert FileFacts(JournalFact.NONE, working=False, final=False, holds=False) in all_facts()
