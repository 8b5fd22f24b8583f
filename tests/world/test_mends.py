"""The simulation finds what it should, finds it again, and makes it smaller."""

from __future__ import annotations

import pytest

from .creation import draw_naming, play_naming, smaller_naming
from .found import FOUND
from .mends import MENDS, find
from .shrink import kind_of, shrink
from .story import draw
from .world import play

MEND_SEEDS, QUICK_SEEDS = 10_000, 200
QUICK_MENDS = (
    "released-at-workers",
    "commit-of-sealed",
    "slots-never",
    "staged-not-taken-up",
    "settled-before-recorded",
    "shard-in-progress-lost",
    "parts-and-records",
    "names-before-bytes",
    "holes-forgotten",
    "durable-when-asked",
    "final-name-ignored",
    "name-burned",
    "images-in-memory",
)


def _violation(name: str, seed: int) -> str | None:
    return play_naming(draw_naming(seed))[1] if MENDS[name].creates else play(draw(seed))[1]


def _fits_the_code(violation: str) -> bool:
    """Whether what was met is no mistake of the patch, which fits the code as it was once."""
    return not any(name in violation for name in ("AttributeError", "NameError", "TypeError"))


@pytest.mark.parametrize("name", QUICK_MENDS)
def test_a_mend_that_is_taken_out_is_found(name: str) -> None:
    found = find(MENDS[name], QUICK_SEEDS)
    assert found is not None
    seed, violation = found
    assert _fits_the_code(violation)
    with MENDS[name].taken_out():
        assert _violation(name, seed) == violation, "and found again"
    assert _violation(name, seed) is None, "with the mend it is well"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        mend.name
        for mend in MENDS.values()
        if not mend.unseen and mend.name not in {each.mend for each in FOUND}
    ],
)
def test_each_mend_that_is_taken_out_is_found(name: str) -> None:
    found = find(MENDS[name], MEND_SEEDS)
    assert found is not None
    assert _fits_the_code(found[1])
    assert _violation(name, found[0]) is None, "with the mend it is well"


def test_a_failure_is_made_smaller() -> None:
    with MENDS["holes-forgotten"].taken_out():
        found = find(MENDS["holes-forgotten"], QUICK_SEEDS)
        assert found is not None
        story = draw(found[0])
        smaller = shrink(story, found[1], tries=200)
        violation = play(smaller)[1]
    assert violation is not None
    assert kind_of(violation) == kind_of(found[1])
    assert len(str(smaller)) < len(str(story))


def test_creations_that_fail_are_made_smaller() -> None:
    mend = MENDS["name-burned"]
    with mend.taken_out():
        found = find(mend, QUICK_SEEDS)
        assert found is not None
        naming = draw_naming(found[0])
        smaller = shrink(naming, found[1], 200, lambda each: play_naming(each)[1], smaller_naming)
        violation = play_naming(smaller)[1]
    assert violation is not None
    assert kind_of(violation) == kind_of(found[1])
    assert len(str(smaller)) < len(str(naming))
