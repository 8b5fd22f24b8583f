"""What the server keeps of the last minutes: rates and times."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.web import history
from shardwright.web.history import History, quantile

BOUNDS_S = [0.001, 0.01, 0.1]


def snapshot(
    time_s: float, pid: int = 1, counts: tuple[int, ...] = (0, 0, 0, 0), **told: Any
) -> dict[str, Any]:
    """A daemon's status with two streams; ``counts``: of the histogram of each."""
    histograms = {"store_seconds": {"le": BOUNDS_S, "counts": list(counts)}}
    sums = {name: told.pop(name, 0) for name in ("bytes_stored", "ring_frames", "ring_used")}
    streams = {"cam0": {"histograms": histograms}, "client": {"histograms": histograms}}
    rates = {"rate_hz": 0.0, "bytes_per_s": 0.0}
    return {"uptime_s": time_s, "pid": pid, "streams": streams, "sums": sums, **rates, **told}


def test_the_newest_point_says_what_the_daemon_measured_and_how_fast_it_stores() -> None:
    kept = History()
    first = kept.added_to(snapshot(10.0, rate_hz=50.0, bytes_per_s=7.0, ring_frames=8, ring_used=2))
    assert (first["now"]["stored_bytes_per_s"], first["now"]["median_s"]) == (None, None), (
        "nothing to compare"
    )
    assert (first["now"]["frames_per_s"], first["now"]["received_bytes_per_s"]) == (50.0, 7.0)
    assert first["now"]["ring"] == 0.25
    for second in range(1, 6):
        told = kept.added_to(snapshot(10.0 + second, bytes_stored=3 * second))
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
        kept.added_to(snapshot(float(second), bytes_stored=5 * second))
    points = kept.points()
    assert points[-1]["time_s"] == 999
    assert 999 - history.SPAN_S - history.RATE_SPAN_S <= points[0]["time_s"] <= 999 - history.SPAN_S
    assert {point["stored_bytes_per_s"] for point in points} == {5.0}


def test_however_often_it_is_asked_it_keeps_little() -> None:
    kept = History()
    for step in range(30_000):
        kept.added_to(snapshot(step * 0.01))
    most = (history.SPAN_S + history.RATE_SPAN_S) / history.STEP_S + 2
    assert len(kept.points()) <= most
    assert len(kept._samples) <= most


@pytest.mark.parametrize(("time_s", "pid"), [(5.0, 1), (500.0, 2)])
def test_another_daemon_begins_anew(time_s: float, pid: int) -> None:
    kept = History()
    for second in range(100):
        kept.added_to(snapshot(float(second), bytes_stored=second))
    told = kept.added_to(snapshot(time_s, pid=pid))
    assert kept.points() == [told["now"]]
    assert told["now"]["stored_bytes_per_s"] is None
