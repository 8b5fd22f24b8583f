"""A part of the simulation: no promise is broken, and a seed is always the same story."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import shardwright
from shardwright.acquire.sealer import Sealer
from shardwright.shard import shard_row_files

from .__main__ import main
from .creation import play_naming
from .points import KNOWN
from .story import (
    FEW_FILES_FROM,
    GROWING_FROM,
    IN_PLACE_FROM,
    LIVE_FROM,
    READERS_FROM,
    SPLIT_FROM,
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


def test_every_promise_is_kept_while_stores_get_their_names() -> None:
    violations = {seed: play_naming(seed)[1] for seed in range(3 * SEEDS)}
    assert not any(violations.values()), "./tools/prove simulation --seed N tells what happened"


@pytest.mark.parametrize("options", [["--seeds", "6", "--processes", "1"], ["--seed", "3"]], ids=" ".join)
def test_the_command_plays_every_kind(options: list[str], monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *options])
    assert main() == 0
    told = capsys.readouterr().out
    assert "every promise was kept" in told or json.loads(told)["violations"] == []


def test_numbers_are_stories_of_every_kind_by_turns() -> None:
    assert [seed_of(number) for number in range(8)] == [*KINDS.values(), READERS_FROM, 1]
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


def test_a_finished_store_that_fails_its_verification_breaks_a_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pixels and its frame table are right, and only what is recorded of its shards is not."""
    monkeypatch.setattr(shard_row_files, "sum_of_journaled", lambda *_: 1)
    told = [play(draw(seed))[1] for seed in range(4)]
    assert any(each and "the finished store fails its verification" in each for each in told), told


def test_every_failpoint_is_chosen_by_some_story() -> None:
    rooms = [Path(shardwright.__file__).parent / room for room in ("storage", "shard", "acquire", "recovery")]
    source = "\n".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    named = set(re.findall(r'\breach\(\s*"([^"]+)"', source))
    assert named, "they are found"
    assert named - KNOWN == set()
