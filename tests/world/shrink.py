"""Makes a story that fails smaller, while it still fails in the same way: lives, faults, frames and whatever
else can go."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from .world import play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .story import Life, Story

SCHEDULES = 4  # orders of events that a smaller story gets to fail in
ROUNDS = 6


def kind_of(violation: str) -> str:
    """What is wrong, without its numbers."""
    return re.sub(r"[^a-z]+", " ", violation.split("{", maxsplit=1)[0].split("(", maxsplit=1)[0].lower())[
        :60
    ].strip()


def shrink(
    story: Story, violation: str, tries: int = 1500, play_it: Callable[[Story], str | None] | None = None
) -> Story:
    """The smallest that was found in so many tries."""
    fails_as = kind_of(violation)
    run = play_it or (lambda candidate: play(candidate)[1])
    for _ in range(ROUNDS):
        smaller = False
        for candidate in _smaller(story):
            if tries <= 0:
                return story
            for schedule in range(SCHEDULES):
                tries -= 1
                tried = candidate if schedule == 0 else replace(candidate, schedule=schedule)
                found = run(tried)
                if found is not None and kind_of(found) == fails_as:
                    story, smaller = tried, True
                    break
            if smaller:
                break
        if not smaller:
            return story
    return story if tries <= 0 else shrink(story, violation, tries, play_it)


def _smaller(story: Story) -> Iterator[Story]:
    """Stories with one thing less, the largest things first."""
    for i in range(len(story.lives)):
        if len(story.lives) > 1:
            yield _as_last(replace(story, lives=(*story.lives[:i], *story.lives[i + 1 :])))
    count = len(story.frames)
    for cut in (count // 2, count - 1):
        if 0 < cut < count:
            yield _with_frames(story, cut)
    for i, life in enumerate(story.lives):
        for changed in _simpler(life):
            yield replace(story, lives=(*story.lives[:i], changed, *story.lives[i + 1 :]))
    if story.workers > 1:
        yield replace(story, workers=1)
    for i, frame in enumerate(story.frames):
        if frame.fill:
            yield replace(
                story, frames=(*story.frames[:i], replace(frame, fill=False), *story.frames[i + 1 :])
            )


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
    for i in range(len(life.deaths)):
        yield replace(life, deaths=(*life.deaths[:i], *life.deaths[i + 1 :]))
    if life.worker_dies is not None:
        yield replace(life, worker_dies=None)
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
