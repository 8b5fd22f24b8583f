"""Makes a story that fails smaller, while it still fails in the same way: lives, faults, frames and whatever
else can go."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from .world import play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .story import Life, Story

SCHEDULES = 4  # orders of events that a smaller story gets to fail in
ROUNDS = 6
S = TypeVar("S", bound=Any)  # a story, of acquisitions or of edits


def kind_of(violation: str) -> str:
    """What is wrong, without its numbers."""
    return re.sub(r"[^a-z]+", " ", violation.split("{", maxsplit=1)[0].split("(", maxsplit=1)[0].lower())[
        :60
    ].strip()


def shrink(
    story: S,
    violation: str,
    tries: int = 1500,
    play_it: Callable[[S], str | None] | None = None,
    smaller: Callable[[S], Iterator[S]] | None = None,
) -> S:
    """The smallest that was found in so many tries."""
    fails_as = kind_of(violation)
    run = play_it or (lambda candidate: play(candidate)[1])
    candidates = smaller or _smaller
    for _ in range(ROUNDS):
        is_smaller = False
        for candidate in candidates(story):
            if tries <= 0:
                return story
            for schedule in range(SCHEDULES):
                tries -= 1
                tried = candidate if schedule == 0 else replace(candidate, schedule=schedule)
                found = run(tried)
                if found is not None and kind_of(found) == fails_as:
                    story, is_smaller = tried, True
                    break
            if is_smaller:
                break
        if not is_smaller:
            return story
    return story if tries <= 0 else shrink(story, violation, tries, play_it, smaller)


def _smaller(story: Story) -> Iterator[Story]:
    """Stories with one thing less, the largest things first."""
    for i in range(len(story.lives)):
        if len(story.lives) > 1:
            yield _as_last(replace(story, lives=(*story.lives[:i], *story.lives[i + 1 :])))
    count, places = len(story.frames), story.shape.colours
    for cut in (count // places // 2 * places, count - places):
        if 0 < cut < count:
            yield _with_frames(story, cut)
    for i, life in enumerate(story.lives):
        for changed in _simpler(life):
            yield replace(story, lives=(*story.lives[:i], changed, *story.lives[i + 1 :]))
    yield from (
        replace(story, readers=(*story.readers[:i], *story.readers[i + 1 :]))
        for i in range(len(story.readers))
    )
    yield from _with_less_chance(story)
    for i, frame in enumerate(story.frames):
        if frame.fill:
            yield replace(
                story, frames=(*story.frames[:i], replace(frame, fill=False), *story.frames[i + 1 :])
            )


def _with_less_chance(story: Story) -> Iterator[Story]:
    for i in range(len(story.last_deaths)):
        yield replace(story, last_deaths=(*story.last_deaths[:i], *story.last_deaths[i + 1 :]))
    for i, death in enumerate(story.last_deaths):
        if death.faults or death.flip is not None:
            simpler = replace(death, faults=(), flip=None)
            yield replace(story, last_deaths=(*story.last_deaths[:i], simpler, *story.last_deaths[i + 1 :]))
    if story.unread is not None:
        yield replace(story, unread=None)
    if story.torn or story.in_no_order:
        yield replace(story, torn=False, in_no_order=False)
    if story.workers > 1:
        yield replace(story, workers=1)


def _as_last(story: Story) -> Story:
    return replace(
        story, lives=(*story.lives[:-1], replace(story.lives[-1], ends="finish", faults=(), worker_dies=None))
    )


def _with_frames(story: Story, count: int) -> Story:
    lives = tuple(replace(life, frames=min(life.frames, count)) for life in story.lives)
    return replace(story, frames=story.frames[:count], lives=lives)


def _simpler(life: Life) -> Iterator[Life]:
    for i in range(len(life.faults)):
        yield replace(life, faults=(*life.faults[:i], *life.faults[i + 1 :]))
    for i in range(len(life.opening)):
        yield replace(life, opening=(*life.opening[:i], *life.opening[i + 1 :]))
    for i in range(len(life.deaths)):
        yield replace(life, deaths=(*life.deaths[:i], *life.deaths[i + 1 :]))
    if life.worker_dies is not None:
        yield replace(life, worker_dies=None)
    if life.flip is not None:
        yield replace(life, flip=None)
    if life.new_client_at is not None:
        yield replace(life, new_client_at=None)
    for flush in sorted(life.flushes):
        yield replace(life, flushes=life.flushes - {flush})
    for i in range(len(life.pauses_ms)):
        yield replace(life, pauses_ms=(*life.pauses_ms[:i], *life.pauses_ms[i + 1 :]))
    if life.ends == "power":
        yield replace(life, ends="kill")
    if life.at > 1 and life.ends != "finish":
        yield replace(life, at=life.at // 2)
        yield replace(life, at=life.at - 1)
