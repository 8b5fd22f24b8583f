"""A part of the simulation: no promise is broken, and a seed is always the same story."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import shardwright
from shardwright.acquire.core import Core
from shardwright.acquire.sealer import Sealer
from shardwright.model.errors import StorageError
from shardwright.shard import shard_row_files

from . import world as world_module
from .__main__ import main
from .creation import Attempt, Naming, NamingWorld, draw_naming, play_naming
from .oracle import violation_of
from .points import KNOWN
from .story import (
    ADDED_FROM,
    COLOURS_FROM,
    FEW_FILES_FROM,
    FOREVER,
    GOES_ON_FROM,
    GROWING_FROM,
    IN_PLACE_FROM,
    LIVE_FROM,
    PLATES_FROM,
    READERS_FROM,
    SPLIT_FROM,
    WIDE_FROM,
    Fault,
    Frame,
    Life,
    Shape,
    Story,
    draw,
    seed_of,
)
from .world import play

SEEDS = 12
KINDS = {
    "plain": 0,
    "few files": FEW_FILES_FROM,
    "growing axes": GROWING_FROM,
    "live": LIVE_FROM,
    "split shard rows": SPLIT_FROM,
    "frames in place": IN_PLACE_FROM,
}


@pytest.mark.parametrize("first", KINDS.values(), ids=KINDS)
def test_every_promise_is_kept(first: int) -> None:
    violations = {seed: play(draw(seed))[1] for seed in range(first, first + SEEDS)}
    assert not any(violations.values()), "./tools/prove simulation --seed N tells what happened"


def test_every_promise_is_kept_with_shared_journals() -> None:
    """Which the stories do come to, and to what a batch of shard rows may meet."""
    counts: Counter[str] = Counter()
    for seed in range(PLATES_FROM, PLATES_FROM + SEEDS):
        world, violation = play(draw(seed))
        assert violation is None, f"seed {seed}: ./tools/prove simulation --seed N tells what happened"
        counts.update(world.crossings.counts)
    wanted = ("journals", "resumes", "rows ended durably", "journals of an acquisition with an order")
    assert all(counts[f"shared {what}"] for what in wanted)
    assert counts["shared rows"] > 2 * counts["shared journals"]


def test_every_promise_is_kept_while_stores_get_their_names() -> None:
    violations = {seed: play_naming(draw_naming(seed))[1] for seed in range(3 * SEEDS)}
    assert not any(violations.values()), "./tools/prove simulation --seed N tells what happened"


@pytest.mark.parametrize("schedule", range(3, 8))
def test_recovery_is_run_again_for_each_folder_whose_sync_had_failed(schedule: int) -> None:
    """The end of an acquisition syncs the whole filesystem, which fails for many folders at once. Each tells
    of it once, to one recovery each, which ends with that."""
    fault = Fault("point", 0, FOREVER, point="table.before_sync")
    attempt = Attempt(overwrite=False, ends="finish", at=0, beside=False, faults=(fault,))
    assert violation_of(NamingWorld(Naming((attempt,), schedule), None).play) is None


@pytest.mark.parametrize("options", [["--seeds", "6", "--processes", "1"], ["--seed", "3"]], ids=" ".join)
def test_the_command_plays_every_kind(options: list[str], monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *options])
    assert main() == 0
    told = capsys.readouterr().out
    assert "every promise was kept" in told or json.loads(told)["violations"] == []


def test_numbers_are_stories_of_every_kind_by_turns() -> None:
    later = [READERS_FROM, WIDE_FROM, COLOURS_FROM, ADDED_FROM, GOES_ON_FROM, PLATES_FROM]
    assert [seed_of(number) for number in range(13)] == [*KINDS.values(), *later, 1]
    assert seed_of(SPLIT_FROM + 5) == SPLIT_FROM + 5


def _traced(seed: int) -> tuple[list[str], str | None]:
    trace: list[str] = []
    return trace, play(draw(seed), trace.append)[1]


@pytest.mark.parametrize("seed", [3, 7, 12, 41])
def test_a_seed_is_always_the_same_story(seed: int) -> None:
    assert draw(seed) == draw(seed)
    first, again = _traced(seed), _traced(seed)
    assert first == again
    assert len(first[0]) > 5, "it tells something"


@pytest.mark.parametrize("first", KINDS.values(), ids=KINDS)
def test_telling_changes_nothing(first: int) -> None:
    for seed in range(first, first + 3):
        silent, told = play(draw(seed)), play(draw(seed), lambda _: None)
        assert (silent[0].steps, silent[1]) == (told[0].steps, told[1])


def test_a_defect_of_the_code_is_no_error_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(Sealer, "_sync", broken)
    told = [play(draw(seed))[1] for seed in range(4)]
    assert any(each and "an error that is not typed: KeyError('a defect')" in each for each in told)


@pytest.mark.parametrize("harmless", [Fault("journal", FOREVER), Fault("stall", 0)], ids=["not met", "slow"])
def test_a_fault_that_fails_no_call_excuses_nothing(monkeypatch: pytest.MonkeyPatch, harmless: Fault) -> None:
    def fails(*_: object) -> None:
        raise StorageError("cannot sync")

    monkeypatch.setattr(Sealer, "_sync", fails)
    told = []
    for seed in range(4):
        story = draw(seed)
        life = replace(story.lives[-1], client="resends", faults=(harmless,), opening=(), worker_dies=None)
        told.append(play(replace(story, lives=(life,)))[1])
    assert any(each and "the acquisition failed, though nothing did" in each for each in told), told


def test_a_finished_store_that_fails_its_verification_breaks_a_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pixels and its frame table are right, and only what is recorded of its shards is not."""
    monkeypatch.setattr(shard_row_files, "sum_of_journaled", lambda *_: 1)
    told = [play(draw(seed))[1] for seed in range(4)]
    assert any(each and "the finished store fails its verification" in each for each in told), told


def test_every_failpoint_is_chosen_by_some_story_or_left_out_for_a_reason() -> None:
    source = "\n".join(path.read_text() for path in Path(shardwright.__file__).parent.rglob("*.py"))
    named = set(re.findall(r'\breach\(\s*"([^"]+)"', source))
    assert named, "they are found"
    assert named - KNOWN == set()


def test_a_life_may_be_slow_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is chosen far more often than the sealer, and each frame has a shard of its own."""
    monkeypatch.setattr(world_module, "MOST_CALLS", most := 5_000)
    shape = Shape(axes=((None, 1, 1),), files=2, tasks=1)
    frames = tuple(map(Frame, range(12)))
    slow = Life("resends", "finish", 0, ending=False, frames=len(frames), pace=(1, 1, 16, 16))
    story = replace(draw(0), shape=shape, frames=frames, lives=(slow,), ring=12, rows=2, shard_rows=3)
    world, violation = play(story)
    assert violation is None
    assert world.steps > 2 * most, "more than it may take for one frame"


def _with_a_flush(*, faults: tuple[Fault, ...]) -> Story:
    """A writer waits until its first frames, of a shard that is not full, are durable."""
    shape = Shape(axes=((None, 1, 8),), files=1, tasks=1)
    frames = tuple(map(Frame, range(4)))
    life = Life("writer", "finish", 0, ending=False, frames=4, flushes=frozenset({3}), faults=faults)
    return replace(draw(0), shape=shape, frames=frames, lives=(life,), ring=4, rows=2, shard_rows=3)


@pytest.mark.parametrize("point", ["sealer.before_commit", "journal.before_sync", "slots.before_store"])
def test_a_flush_may_wait_for_a_call_that_stalls(point: str) -> None:
    assert play(_with_a_flush(faults=(Fault("stall", 0, point=point),)))[1] is None


def test_a_flush_that_has_no_answer_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "_commit", lambda _: None)
    violation = play(_with_a_flush(faults=()))[1]
    assert violation is not None
    assert "a flush to a level has no answer" in violation
