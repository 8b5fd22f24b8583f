"""Growth of memory and descriptors is found, what only swings is not."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
from tests.harness.json_process import wait_for
from tests.soak import watch

MIB = 1 << 20


def life(count: int = 300, *, memory=lambda age_s: 200.0, descriptors=lambda age_s: 40.0) -> watch.Life:
    """Samples of every second; memory in MiB, with the swing that acquisitions give it."""
    swing = [0, 12, 25, 9]
    samples = [
        watch.Sample(i, int((memory(i) + swing[i % 4]) * MIB), int(descriptors(i) + swing[i % 4] // 8), 20)
        for i in range(count)
    ]
    return watch.Life(1, samples)


def growing(lives: list[watch.Life], warm_up_s: float = 30.0) -> set[tuple[str, str]]:
    levels = watch.judge({"daemon": lives}, warm_up_s)
    assert {level.quantity for level in levels} == set(watch.QUANTITIES)
    return {(level.quantity, level.scope.split()[0]) for level in levels if not level.flat}


def test_what_swings_falls_or_warms_up_is_flat():
    warming = life(
        memory=lambda age_s: min(200.0, 50 + 10 * age_s), descriptors=lambda age_s: 10 if age_s < 20 else 40
    )
    assert growing([life(), warming, life(memory=lambda age_s: 400 - age_s)]) == set()


def test_growth_within_one_life_of_many_is_found():
    lives = [life() for _ in range(4)]
    lives[2] = life(memory=lambda age_s: 200 + 0.5 * age_s)
    assert growing(lives) == {("memory_bytes", "within")}
    lives[2] = life(descriptors=lambda age_s: 40 + age_s / 5)
    assert growing(lives) == {("descriptors", "within")}


def test_growth_from_life_to_life_is_found():
    """Each life is flat; what grows is what every new one begins with."""
    assert growing([life(memory=lambda _, i=i: 200 + 15 * i) for i in range(9)]) == {
        ("memory_bytes", "across")
    }
    assert growing([life(descriptors=lambda _, i=i: 40 + 4 * i) for i in range(9)]) == {
        ("descriptors", "across")
    }


def test_lives_are_compared_at_the_same_age():
    """A short one has not grown into what it needs: that says nothing."""
    lives = [
        life(60 if i < 3 else 600, memory=lambda age_s: 200 + 200 * min(1.0, age_s / 400)) for i in range(9)
    ]
    assert ("memory_bytes", "across") not in growing(lives)


def test_a_sample_is_what_the_process_has():
    gc.collect()  # files that others have left open are closed whenever that comes
    before = watch.look_at(os.getpid())
    # the heap may have room that is resident already
    held, opened = mmap.mmap(-1, 64 * MIB), [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    np.frombuffer(held, np.uint8)[:] = 1
    after = watch.look_at(os.getpid())
    for descriptor in opened:
        os.close(descriptor)
    assert after.descriptors - before.descriptors == 20
    assert after.memory_bytes - before.memory_bytes > len(held) // 2
    with pytest.raises(OSError, match="No such"):
        watch.look_at(2**22 + 1)


def test_a_new_process_of_the_same_name_is_another_life():
    sleeper = [sys.executable, "-c", "input()"]
    pids = {}
    with watch.Watch(lambda: dict(pids), 0.01) as watching:
        for number in (1, 2):
            with subprocess.Popen(sleeper, stdin=subprocess.PIPE) as process:
                pids["daemon"] = process.pid
                wait_for(
                    lambda number=number: (
                        len(watching.lives.get("daemon", ())) == number and watching.newest("daemon")
                    ),
                    "samples",
                )
                del pids["daemon"]
    assert len(watching.lives["daemon"]) == 2
    assert watching.peak_bytes["daemon"] > 0
