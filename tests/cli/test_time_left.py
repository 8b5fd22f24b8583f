"""The time left of a long job, on a simulated clock: it is right, and a burst or a pause moves it no more
than the class says."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from shardwright.cli import progress
from shardwright.cli.progress import SMOOTHED_S, TimeLeft, show_progress, show_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOK_S, TOTAL, RATE = 2.0, 10_000.0, 10.0


class Job:
    """A job of ``TOTAL`` at ``RATE``, looked at every ``LOOK_S``. It progresses in steps of ``lump``."""

    def __init__(self, lump: float = 1.0, look_s: float = LOOK_S) -> None:
        self.left = TimeLeft()
        self.now_s = self.done = self._worked = 0.0
        self._lump, self._look_s = lump, look_s
        self.left.look(0, 0.0)

    def run(self, seconds: float, rate: float = RATE, burst: float = 0.0) -> list[float]:
        """Returns the estimates at each look, in work left over time left. ``burst``: done at once."""
        self.done += burst
        rates = []
        for _ in range(round(seconds / self._look_s)):
            self.now_s += self._look_s
            self._worked += rate * self._look_s
            self.done += self._worked // self._lump * self._lump
            self._worked %= self._lump
            self.left.look(self.done, self.now_s)
            left_s = self.left.seconds(TOTAL)
            if left_s is not None:
                rates.append((TOTAL - self.done) / left_s)
        return rates


def largest_step(rates: list[float]) -> float:
    return max(abs(later / earlier - 1) for earlier, later in pairwise(rates))


@pytest.mark.parametrize("lump", [1.0, 20.0])
def test_a_steady_job_has_a_steady_estimate(lump: float) -> None:
    rates = Job(lump).run(300)
    assert rates == pytest.approx([RATE] * len(rates))


def test_a_job_of_large_steps_has_a_steady_estimate() -> None:
    """One in 50 s: longer than the time over which the rate is a mean."""
    job = Job(lump=500)
    assert job.run(40) == [], "it is not known before the first"
    job.run(12)
    assert job.run(400) == pytest.approx([RATE] * 200, rel=0.05)


@pytest.mark.parametrize("burst", [50.0, 500.0, 5_000.0])
@pytest.mark.parametrize(("look_s", "step"), [(2.0, 0.07), (0.5, 0.02)])
def test_a_burst_of_any_size_moves_it_a_little(burst: float, look_s: float, step: float) -> None:
    job = Job(look_s=look_s)
    before = job.run(100)[-1]
    after = job.run(200, burst=burst)
    assert largest_step([before, *after]) <= step
    assert before <= max(after) <= 1.35 * before
    assert after[-1] == pytest.approx(RATE, rel=0.01), "it is over"


def test_what_an_earlier_run_had_done_says_nothing() -> None:
    left = TimeLeft()
    left.look(9_000, 0.0)
    left.look(9_000 + RATE * LOOK_S, LOOK_S)
    assert left.seconds(TOTAL) == pytest.approx(98)


@pytest.mark.parametrize("lump", [1.0, 5.0, 50.0])
@pytest.mark.parametrize("look_s", [0.5, 2.0])
@pytest.mark.parametrize("found_s", [0.5, 4.0, 10.0])
def test_a_resumed_job_soon_knows_its_own_rate(lump: float, look_s: float, found_s: float) -> None:
    """Most of it was found at once; the rest goes at another rate."""
    job = Job(lump, look_s)
    looks = max(1, round(found_s / look_s))
    for _ in range(looks):
        job.run(look_s, burst=6_000 / looks)
    assert 0.9 * RATE <= job.run(30 - found_s)[-1] <= 1.6 * RATE
    assert job.run(200)[-1] == pytest.approx(RATE, rel=0.05)


def test_a_pause_doubles_it_at_most() -> None:
    job = Job()
    before = job.run(100)[-1]
    assert job.run(600, rate=0)[-1] == before, "it stays"
    after = job.run(200)
    assert 0.5 * before <= min(after) < before
    assert after[-1] == pytest.approx(RATE, rel=0.05)


@pytest.mark.parametrize("factor", [0.1, 3.0])
def test_another_speed_is_learnt(factor: float) -> None:
    job = Job()
    job.run(100)
    assert job.run(4 * SMOOTHED_S, rate=factor * RATE)[-1] == pytest.approx(factor * RATE, rel=0.2)


def test_both_forms_show_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = 0.0
    lines: list[Callable[[], object]] = []

    def every(_interval_s: float, line: Callable[[], object]) -> Iterator[None]:
        lines.append(line)
        yield

    monkeypatch.setattr(progress, "_every", progress.contextmanager(every))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock))
    with show_steps("camera", "sending") as show, show_progress("verify", "checked", 100 << 20) as add:
        for clock in (0.0, 2.0):
            show(int(clock), 100)
            add(int(clock) << 20)
            for line in lines:
                line()
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "camera: sending 0/100"
    assert told[2:] == [
        "camera: sending 2/100, 1 min left",
        "verify: 2.0 MiB of 100.0 MiB checked, 1.0 MiB/s, 1 min left",
    ]
