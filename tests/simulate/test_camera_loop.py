"""The loop of a simulated camera against a target that only takes notes, on a clock that only the test
moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardwright.simulate import camera_loop
from shardwright.simulate.camera_loop import run_camera
from shardwright.simulate.photons import PhotonFrames


class Clock:
    """Stands in for the ``time`` module."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.naps_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.naps_s.append(duration_s)
        self.now_s += duration_s


class Notes:
    def __init__(self, clock: Clock, hold_up_s: dict[int, float] | None = None) -> None:
        self.clock = clock
        self.frames: list[np.ndarray[Any, Any]] = []
        self.ids: list[int | None] = []
        self.metadata: list[Any] = []
        self.hold_up_s = hold_up_s or {}

    def append(
        self,
        frame: np.ndarray[Any, Any],
        *,
        index: Any = None,
        frame_id: int | None = None,
        metadata: Any = None,
    ) -> None:
        self.clock.now_s += self.hold_up_s.get(len(self.ids), 0)
        self.frames.append(frame.copy())
        self.ids.append(frame_id)
        self.metadata.append(metadata)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(camera_loop, "time", clock)
    return clock


def test_every_frame_is_sent_once_with_its_id(clock: Clock) -> None:
    source, notes, seen = PhotonFrames((8, 8), seed=1), Notes(clock), []
    run = run_camera(notes, source, 5, on_frame=seen.append)
    assert (run.frames, run.bytes_raw, run.frames_behind) == (5, 5 * 128, 0)
    assert notes.ids == [0, 1, 2, 3, 4]
    assert seen == [1, 2, 3, 4, 5]
    for i, frame in enumerate(notes.frames):
        np.testing.assert_array_equal(frame, source.frame(i))
    assert notes.metadata == [None] * 5
    assert clock.naps_s == [], "no rate, no waiting"


def test_a_rate_is_kept_and_told_in_the_metadata(clock: Clock) -> None:
    notes = Notes(clock)
    run = run_camera(notes, PhotonFrames((8, 8)), 6, fps=100)
    assert clock.naps_s == pytest.approx([0.01] * 5)
    assert run.seconds == pytest.approx(0.05)
    assert notes.metadata[3] == {"delta_t": 0.03, "exposure_time": 0.01}


def test_frames_that_the_target_held_up_are_counted_and_caught_up_on(clock: Clock) -> None:
    notes = Notes(clock, hold_up_s={2: 0.055})
    run = run_camera(notes, PhotonFrames((8, 8)), 12, fps=100)
    assert notes.ids == list(range(12))
    assert run.frames_behind == 4, (
        "frames 3 to 6 came 45, 35, 25 and 15 ms late, frame 7 less than a frame time"
    )
    assert run.seconds == pytest.approx(0.11), "the schedule is kept"
