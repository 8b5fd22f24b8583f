"""What the server keeps of the last minutes: rates, times, and how long a disk lasts, whatever its free room
does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.web import history
from shardwright.web.history import History, quantile

BOUNDS_S = [0.001, 0.01, 0.1]


def snapshot(
    time_s: float, *free_bytes: int | None, pid: int = 1, counts: tuple[int, ...] = (), **sums: int
) -> dict[str, Any]:
    """A daemon's status with two streams that share ``sums``; ``counts``: of the histogram."""
    first = {name: value // 2 for name, value in sums.items()}
    streams: dict[str, dict[str, Any]] = {
        "cam0": first,
        "client": {name: value - first[name] for name, value in sums.items()},
    }
    if counts:
        for stream in streams.values():
            stream["histograms"] = {"store_seconds": {"le": BOUNDS_S, "counts": list(counts)}}
    disks = [{"free_bytes": free} for free in free_bytes]
    return {"uptime_s": time_s, "pid": pid, "streams": streams, "disks": disks}


def test_sums_and_rates_are_those_of_all_streams() -> None:
    kept = History()
    first = kept.added_to(
        snapshot(10.0, frames_received=100, bytes_received=1000, ring_frames=8, ring_used=2)
    )
    assert (first["now"]["frames_per_s"], first["now"]["median_s"]) == (None, None), "nothing to compare with"
    assert first["now"]["ring"] == 0.25
    for second in range(1, 6):
        sums = {"frames_received": 100 + 50 * second, "bytes_received": 1000 + 7 * second}
        told = kept.added_to(snapshot(10.0 + second, **sums, bytes_stored=3 * second))
    assert told["sums"]["frames_received"] == 350
    assert told["now"]["frames_per_s"] == 50
    assert told["now"]["received_bytes_per_s"] == 7
    assert told["now"]["stored_bytes_per_s"] == 3
    assert told["uptime_s"] == 15.0


def test_times_are_those_of_the_last_seconds() -> None:
    kept = History()
    kept.added_to(snapshot(0.0))
    kept.added_to(snapshot(1.0, counts=(0, 0, 50, 0)))
    told = kept.added_to(snapshot(20.0, counts=(50, 0, 50, 0)))
    assert told["now"]["median_s"] == pytest.approx(0.0005), "the slow ones are longer ago"
    assert told["now"]["most_s"] == pytest.approx(0.00099)
    assert kept.added_to(snapshot(40.0, counts=(50, 0, 50, 0)))["now"]["median_s"] is None


def test_quantiles_lie_within_their_buckets() -> None:
    assert quantile(BOUNDS_S, [0, 10, 0, 0], 0.5) == pytest.approx(0.0055)
    assert quantile(BOUNDS_S, [10, 0, 0, 10], 0.99) == BOUNDS_S[-1]
    assert quantile(BOUNDS_S, [0, 0, 0, 0], 0.5) is None
    assert quantile([], [], 0.5) is None


def test_a_page_that_is_opened_late_has_its_three_minutes_and_no_more() -> None:
    kept = History()
    for second in range(1000):
        kept.added_to(snapshot(float(second), frames_received=5 * second))
    points = kept.points()
    assert points[-1]["time_s"] == 999
    assert 999 - history.SPAN_S - history.RATE_SPAN_S <= points[0]["time_s"] <= 999 - history.SPAN_S
    assert {point["frames_per_s"] for point in points} == {5.0}


def test_however_often_it_is_asked_it_keeps_little() -> None:
    kept = History()
    for step in range(30_000):
        kept.added_to(snapshot(step * 0.01, 1))
    most = (history.SPAN_S + history.RATE_SPAN_S) / history.STEP_S + 2
    assert len(kept.points()) <= most
    assert len(kept._samples) <= most


@pytest.mark.parametrize(("time_s", "pid"), [(5.0, 1), (500.0, 2)])
def test_another_daemon_begins_anew(time_s: float, pid: int) -> None:
    kept = History()
    for second in range(100):
        kept.added_to(snapshot(float(second), frames_received=second))
    told = kept.added_to(snapshot(time_s, pid=pid, frames_received=0))
    assert kept.points() == [told["now"]]
    assert told["now"]["frames_per_s"] is None


def test_nothing_is_known_of_a_disk_at_first_and_nothing_is_told_while_nothing_is_stored() -> None:
    kept = History()
    for second in range(100):
        told = kept.added_to(snapshot(float(second), 10**12, bytes_stored=10**9))
        assert told["disks"] == [{"free_bytes": 10**12, "full_in_s": None}]


def test_the_room_over_the_rate() -> None:
    kept = History()
    for second in range(300):
        room = 10**12 - 10**9 * (second % 7)
        told = kept.added_to(snapshot(float(second), room, None, bytes_stored=10**8 * second))
    assert told["disks"] == [
        {"free_bytes": 10**12 - 10**9 * 5, "full_in_s": pytest.approx((10**12 - 10**9 * 5) / 1e8)},
        {"free_bytes": None, "full_in_s": None},
    ]


@pytest.mark.parametrize("asked_every_s", [0.05, 1, 15, 60, 600])
def test_a_rate_that_was_is_forgotten_after_the_span(asked_every_s: float) -> None:
    kept = History()
    kept.added_to(snapshot(0.0, 10**12))
    told = kept.added_to(snapshot(30.0, 10**12, bytes_stored=3 * 10**9))
    assert told["disks"][0]["full_in_s"] == pytest.approx(10**4)
    now_s = 30.0
    while now_s < 30.0 + history.DISK_SPAN_S + asked_every_s + 1:
        now_s += asked_every_s
        told = kept.added_to(snapshot(now_s, 10**12, bytes_stored=3 * 10**9))
    assert told["disks"][0]["full_in_s"] is None
