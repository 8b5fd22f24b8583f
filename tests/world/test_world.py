"""A part of the simulation: no promise is broken, and a seed is always the same story."""

from __future__ import annotations

import pytest

from shardwright.acquire.sealer import Sealer

from .creation import play_naming
from .story import FEW_FILES_FROM, GROWING_FROM, IN_PLACE_FROM, LIVE_FROM, SPLIT_FROM, draw
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
    assert not any(violations.values()), "python -m tests.world --seed N tells what happened"


def test_every_promise_is_kept_while_stores_get_their_names() -> None:
    violations = {seed: play_naming(seed)[1] for seed in range(3 * SEEDS)}
    assert not any(violations.values()), "python -m tests.world --naming N tells what happened"


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
