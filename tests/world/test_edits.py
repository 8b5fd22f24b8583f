"""A part of the simulation of edits: no promise is broken, and defects that it has found stay mended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from . import edits
from .edit_mutants import MUTANTS, find
from .edit_story import EditLife, EditStory, Layout, Step, draw
from .edited_shard import EditedShard, Pending

if TYPE_CHECKING:
    from shardwright.rework.edit.edit_plan import Strategy

SEEDS = 30
PLAIN = Layout(
    shards=1,
    chunks=2,
    width=32,
    codec="none",
    index="end",
    index_checksum=True,
    chunk_checksum=False,
    recorded=False,
    gaps=(0, 0),
)
FIRST, SECOND = ((0, 10), (1, 11)), ((2, 20), (3, 21))  # values of the rows of a chunk


def test_every_promise_is_kept() -> None:
    violations = {seed: edits.play(draw(seed)) for seed in range(SEEDS)}
    assert not any(violations.values()), "python -m tests.world --kind edits --seed N tells what happened"


@pytest.mark.parametrize("seed", [3, 7])
def test_a_seed_is_always_the_same_story(seed: int) -> None:
    first: list[str] = []
    again: list[str] = []
    assert edits.play(draw(seed), first.append) == edits.play(draw(seed), again.append)
    assert [line for line in first if "seconds=" not in line] == [
        line for line in again if "seconds=" not in line
    ]
    assert len(first) > 20, "it tells something"


def _played(layout: Layout, *lives: EditLife, values: tuple[int, ...] = (1, 2, 3, 4)) -> set[str]:
    """What is wrong in any of some orders of events."""
    stories = (EditStory(layout, values, lives, schedule) for schedule in range(6))
    return {violation for story in stories if (violation := edits.play(story)) is not None}


def _killed(step: Step, at: int) -> EditLife:
    return EditLife(((step,),), "kill", at, recovers=False, looks=False)


def _then_power(step: Step, at: int = 1000, *, inside: bool = False) -> EditLife:
    return EditLife(((step,),), "power", at, inside=inside, recovers=False, looks=False)


@pytest.mark.parametrize("at", range(15, 20))
def test_an_edit_within_a_file_makes_its_name_durable(at: int) -> None:
    """A pack is killed when its copy has the name, which is not durable yet."""
    gappy = replace(PLAIN, gaps=(100, 700))
    assert not _played(gappy, _killed(Step("pack"), at), _then_power(Step("edit", SECOND, "in_place")))


@pytest.mark.parametrize("at", range(12, 17))
def test_nothing_is_erased_durably_by_an_edit_that_finds_it_erased(at: int) -> None:
    """The one that has deleted the shard is killed before that is durable."""
    erases = Step("edit", ((0, 0), (1, 0), (2, 0), (3, 0)))
    assert not _played(PLAIN, _killed(erases, at), _then_power(erases))


@pytest.mark.parametrize("at", range(4, 9))
def test_the_folder_of_a_journal_is_durable(at: int) -> None:
    """Whoever has made it is killed before it is."""
    changes = Step("edit", (*FIRST, *SECOND), "in_place")
    assert not _played(replace(PLAIN, width=1200), _killed(changes, 3), _then_power(changes, at, inside=True))


@pytest.mark.parametrize(("strategy", "at"), [("in_place", 26), ("gap", 29), ("append", 25)])
def test_a_journal_has_a_durable_name_before_it_is_done_once_more(strategy: Strategy, at: int) -> None:
    """Whoever has given it its name is killed right then; the power fails while the next edit redoes it."""
    gaps = (20_000, 20_000) if strategy == "gap" else (0, 0)
    changes = Step("edit", (*FIRST, *SECOND), strategy)
    for cut in range(2, 6):
        power = replace(_then_power(changes, cut, inside=True), recovers=True)
        assert not _played(replace(PLAIN, width=1200, gaps=gaps), _killed(changes, at), power)


@pytest.mark.parametrize("at", range(5, 10))
def test_a_chunk_is_erased_or_is_there(at: int) -> None:
    """Its bytes become zeros when the index that does not name it any more is durable."""
    erased = Step("edit", ((0, 0), (1, 0)), "gap")
    assert not _played(replace(PLAIN, width=1200, codec="gzip"), _then_power(erased, at, inside=True))


@pytest.mark.parametrize("at", range(28, 33))
def test_a_journal_that_was_deleted_does_not_come_back_to_another_file(at: int) -> None:
    """Who has deleted it is killed before that is durable, and the next edit writes the shard anew."""
    changes, anew = Step("edit", FIRST, "in_place"), Step("edit", ((0, 30), (1, 31), *SECOND), "rewrite")
    lives = (_killed(changes, at), replace(_then_power(anew), recovers=True))
    assert not _played(PLAIN, *lives)


@pytest.mark.parametrize("at", range(14, 19))
def test_the_folders_of_a_new_shard_are_durable(at: int) -> None:
    """Whoever has made them is killed before they are."""
    made = Step("edit", FIRST)
    assert not _played(PLAIN, _killed(made, at), _then_power(made), values=(0, 0, 0, 0))


@pytest.mark.parametrize("at", range(27, 32))
def test_a_new_shard_that_is_killed_on_the_way_is_not_missing(at: int) -> None:
    """It is on record before it has its name."""
    recorded = replace(PLAIN, recorded=True)
    assert not _played(recorded, _killed(Step("edit", FIRST), at), values=(0, 0, 0, 0))


def test_the_simulation_finds_a_sync_that_is_taken_out() -> None:
    mutant = MUTANTS["no last sync"]
    assert find(mutant, mutant.within) is not None


def _half_written() -> EditedShard:
    """Of an edit of two chunks in place the first is new. One that would have erased the second's first row
    had failed before."""
    shard = EditedShard((1, 2, 0, 3))
    for number, rows in enumerate(({1: 20, 2: 21}, {2: 0})):
        chunks = frozenset(row // 2 * 2 + i for row in rows for i in range(2))
        shard.begin(number, Pending(rows, chunks, mixes=True, tears=False, within=True))
    for number in (1, 0):
        shard.end(number)
    assert shard.look([1, 20, 0, 3], recovered=False) is None
    shard.recovered()
    return shard


@pytest.mark.parametrize("found", [[1, 20, 21, 3], [1, 20, 0, 3]])
def test_a_mix_that_looks_like_both_edits_may_be_one_of_them(found: list[int | None]) -> None:
    assert _half_written().look(found, recovered=True) is None


@pytest.mark.parametrize("found", [[1, 2, 0, 3], [1, 2, 21, 3]])
def test_an_edit_that_was_found_half_written_is_done_by_recovery(found: list[int | None]) -> None:
    assert _half_written().look(found, recovered=True) is not None
