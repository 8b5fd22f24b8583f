"""What the simulation found once it finds no more: each written story fails without its mend, and passes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from .found import FOUND
from .mends import MENDS
from .world import play

if TYPE_CHECKING:
    from .found import Found
    from .story import Story

# orders of events that a story gets to fail in: another call of the disk anywhere makes others of all
SCHEDULES = 240
# a life dies at a counted call: with one call more or fewer before it, the same moment has another number
SHIFTS = (0, -1, 1, -2, 2, -3, 3, -4, 4)


def _died_later(story: Story, calls: int) -> Story:
    """The story whose lives die so many calls later."""
    lives = (replace(life, deaths=tuple(max(0, at + calls) for at in life.deaths)) for life in story.lives)
    return replace(story, lives=tuple(lives))


def _fails(found: Found) -> Story | None:
    """The story in the order of events, and with the moment of death, in which it fails as it did."""
    dies = any(life.deaths for life in found.story.lives)
    for shift in SHIFTS if dies else (0,):
        for schedule in (found.story.schedule, *range(SCHEDULES)):
            story = replace(_died_later(found.story, shift), schedule=schedule)
            violation = play(story)[1]
            if violation is not None and found.fails_as in violation:
                return story
    return None


@pytest.mark.parametrize("found", FOUND, ids=[found.name for found in FOUND])
def test_what_was_found_once_is_found_no_more(found: Found) -> None:
    with MENDS[found.mend].taken_out():
        story = _fails(found)
    assert story is not None, "without its mend it fails in some order of events, at some moment of death"
    assert play(story)[1] is None
