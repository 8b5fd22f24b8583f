"""How long a disk lasts: the rate of the last minutes, whatever its free room does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.web import daemon_link
from shardwright.web.daemon_link import Forecast


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(daemon_link.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def snapshot(stored_bytes: int, *free_bytes: int | None) -> dict[str, Any]:
    streams = {
        "cam0": {"bytes_stored": stored_bytes // 2},
        "client": {"bytes_stored": stored_bytes - stored_bytes // 2},
    }
    return {"streams": streams, "disks": [{"free_bytes": free} for free in free_bytes], "pid": 1}


def test_nothing_is_known_at_first_and_nothing_is_told_while_nothing_is_stored(clock: Clock) -> None:
    disks = Forecast()
    for _ in range(100):
        assert disks.added_to(snapshot(10**9, 10**12))["disks"] == [{"free_bytes": 10**12, "full_in_s": None}]
        clock.now_s += 1


def test_the_room_over_the_rate(clock: Clock) -> None:
    disks = Forecast()
    for second in range(300):
        told = disks.added_to(snapshot(10**8 * second, 10**12 - 10**9 * (second % 7), None))
        clock.now_s += 1
    assert told["disks"] == [
        {"free_bytes": 10**12 - 10**9 * 5, "full_in_s": pytest.approx((10**12 - 10**9 * 5) / 1e8)},
        {"free_bytes": None, "full_in_s": None},
    ]
    assert told["pid"] == 1


@pytest.mark.parametrize("asked_every_s", [0.05, 1, 15, 60, 600])
def test_a_rate_that_was_is_forgotten_after_the_window(clock: Clock, asked_every_s: float) -> None:
    disks = Forecast()
    disks.added_to(snapshot(0, 10**12))
    clock.now_s += 30
    assert disks.added_to(snapshot(3 * 10**9, 10**12))["disks"][0]["full_in_s"] == pytest.approx(10**4)
    until_s = clock.now_s + daemon_link.WINDOW_S + asked_every_s + 1
    while clock.now_s < until_s:
        clock.now_s += asked_every_s
        told = disks.added_to(snapshot(3 * 10**9, 10**12))
    assert told["disks"][0]["full_in_s"] is None


def test_however_often_it_is_asked_it_keeps_little(clock: Clock) -> None:
    disks = Forecast()
    for _ in range(20_000):
        disks.added_to(snapshot(0, 1))
        clock.now_s += 0.01
    assert len(disks._stored) <= daemon_link.WINDOW_S / daemon_link.STEP_S + 2
