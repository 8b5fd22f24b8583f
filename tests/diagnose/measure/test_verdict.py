"""The verdict on numbers that are given: who can be held, how long the disk lasts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.config.load import load_config
from shardwright.config.plan import make_plan
from shardwright.diagnose.verdict import ACCURACY, CameraRate, Measured, judge

GB = 1e9
RATE = CameraRate("a sample", 1000, 4.0, 1.8 * GB, 2.0)


def measured(*names: str) -> Measured:
    return Measured("shm", dict.fromkeys(names or ("cam0",), RATE), 6.0)


@pytest.fixture
def plan(config):
    return make_plan(load_config(config))


def cameras(plan, *needed_bytes_per_s: float | None):
    """The plan with a camera like its own for each of these."""
    stream = plan.streams[0]
    frame_bytes = stream.limits.frame_bytes
    return replace(
        plan,
        streams=tuple(
            replace(stream, name=f"cam{i}", frame_rate_hz=None if rate is None else rate / frame_bytes)
            for i, rate in enumerate(needed_bytes_per_s)
        ),
    )


def test_what_is_held_leaves_room_for_the_error_of_a_trial(plan):
    parts = 0.5, 1 / (1.001 + ACCURACY), 1 / (0.999 + ACCURACY), 0.999, 1.001
    held = [judge(cameras(plan, part * 1.8 * GB), 0, measured()).held for part in parts]
    assert held == ["yes", "yes", "barely", "barely", "no"]


def test_cameras_share_the_machine(plan):
    """What they reached, they reached together: all of them can be held, or none."""
    found = judge(cameras(plan, 0.9 * GB, 0.9 * GB), 0, measured("cam0", "cam1"))
    assert (found.held, found.load) == ("yes", pytest.approx(0.5))
    assert [(stream.held, stream.load) for stream in found.streams] == [("yes", pytest.approx(0.5))] * 2
    found = judge(cameras(plan, 3.2 * GB, 0.1 * GB), 0, measured("cam0", "cam1"))
    assert (found.held, [stream.held for stream in found.streams]) == ("barely", ["barely", "barely"])
    found = judge(cameras(plan, 3.6 * GB, 0.1 * GB), 0, measured("cam0", "cam1"))
    assert (found.held, [stream.held for stream in found.streams]) == ("no", ["no", "no"])


def test_beside_a_camera_of_unknown_rate_only_what_was_reached_is_promised(plan):
    """It took what it could: a camera that reached its rate beside it can be held, another one perhaps."""
    for needed, held in ((1.0 * GB, "yes"), (1.7 * GB, "barely"), (9 * GB, "unknown")):
        found = judge(cameras(plan, needed, None), 0, measured("cam0", "cam1"))
        assert (found.held, found.load, found.hours) == ("unknown", None, None)
        assert [stream.held for stream in found.streams] == [held, "unknown"]


def test_the_disk_lasts_for_what_is_stored_down_to_low_water(plan):
    roomy = replace(cameras(plan, 1e8), disk_free_bytes=10**12 + plan.disk_reserved_bytes)
    unmeasured, with_ratio = judge(roomy, 10**11, None), judge(roomy, 10**11, measured())
    assert unmeasured.hours == unmeasured.streams[0].hours == pytest.approx(9e11 / 1e8 / 3600)
    assert with_ratio.hours == pytest.approx(2 * unmeasured.hours)
    assert judge(replace(roomy, disk_free_bytes=0), 0, None).hours == 0


def test_without_a_trial_nothing_is_claimed(plan):
    found = judge(cameras(plan, GB), 0, None)
    (only,) = found.streams
    assert (found.held, only.held, only.load) == ("unknown", "unknown", None)
    assert (only.sustained_bytes_per_s, only.sustained_frame_rate_hz) == (None, None)
