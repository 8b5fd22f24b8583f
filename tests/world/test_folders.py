"""A writer is killed when it has made the folder of a shard, whose name is not durable yet; the next one
finds it there, and power is lost later."""

from __future__ import annotations

import random

import pytest

from shardwright.model.write_settings import WriteSettings

from .story import Frame, Life, Shape, Story
from .world import play

FRAMES = tuple(Frame(position) for position in range(3))
SETTINGS = WriteSettings(durability="durable", store_within_ms=2, sync_interval_ms=1, ballast_bytes=1)


def _life(ends: str, at: int) -> Life:
    return Life("resends", ends, at, ending=False, frames=len(FRAMES))  # type: ignore[arg-type]


@pytest.mark.parametrize("killed_at", range(76, 96, 4))
def test_the_folder_of_a_shard_is_durable(killed_at: int) -> None:
    shape = Shape(((3, 1, 1),), files=1, tasks=1)
    wrong = set()
    for number in range(12):
        rng = random.Random(number)
        lives = (
            _life("kill", killed_at + number % 4),
            _life("power", rng.randint(20, 100)),
            _life("finish", 0),
        )
        story = Story(shape, SETTINGS, 4, 4, 4, 0, 1, FRAMES, lives, schedule=number)
        wrong.add(play(story)[1])
    assert wrong == {None}
