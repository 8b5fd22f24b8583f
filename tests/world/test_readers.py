"""Readers in the world are shown what was promised, change nothing, and find what would break a promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .reader_mutants import MUTANTS
from .story import READER_KINDS, READERS_FROM, WIDE_FROM, draw
from .world import play

SEEDS = 40


def test_every_promise_to_readers_is_kept() -> None:
    seeds = (first + number for first in (READERS_FROM, WIDE_FROM) for number in range(SEEDS // 2))
    worlds = {seed: play(draw(seed)) for seed in seeds}
    violations = {seed: violation for seed, (_, violation) in worlds.items()}
    assert not any(violations.values()), "python -m tests.world --seed N tells what happened"
    counts = {
        kind: sum(world.readers.judge.frames[kind] for world, _ in worlds.values()) for kind in READER_KINDS
    }
    assert min(counts.values()) > SEEDS, f"readers of each kind are shown frames: {counts}"


@pytest.mark.parametrize("seed", range(READERS_FROM + 100, READERS_FROM + 108))
def test_readers_change_nothing(seed: int) -> None:
    """They lock nothing and write nothing: all others do the same without them."""
    story, traces = draw(seed), []
    for told in (story, story, replace(story, readers=())):
        trace: list[str] = []
        assert play(told, trace.append)[1] is None
        traces.append(trace)
    with_readers, again, without = traces
    assert with_readers == again
    assert [line for line in with_readers if " reader " not in line] == without
    assert with_readers != without


QUICK = [name for name, mutant in MUTANTS.items() if mutant.seeds <= 50]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MUTANTS]
)
def test_readers_find_what_breaks_a_promise(name: str) -> None:
    assert MUTANTS[name].find() is not None, MUTANTS[name].removes
