"""Whose turn it is, with no thread and no clock: workers that are counted, tasks that take what the test
says."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from shardwright.acquire.fair_scheduler import MOST_AHEAD_NS, Line, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

MS = 1_000_000
WORKERS = 4


class Workers:
    """So many workers and a clock of their own. A task is (its line's name, how long it takes)."""

    def __init__(self, count: int = WORKERS) -> None:
        self.schedule: Schedule[tuple[str, int]] = Schedule()
        self.now_ns = 0
        self.began: list[str] = []  # in order
        self.spent_ns: Counter[str] = Counter()
        self._waiting = 0
        self._idle = count
        self._ends: list[tuple[int, int, str, int, Line[tuple[str, int]]]] = []

    def line(self, *, staging: bool = False) -> Line[tuple[str, int]]:
        return self.schedule.line(staging=staging)

    def put(self, line: Line[tuple[str, int]], name: str, count: int, took_ns: int) -> None:
        line.scheduler.put(line, [(name, took_ns)] * count)
        self._waiting += count
        self._begin()

    def step(self) -> None:
        """The next task to end does, and its worker takes another."""
        self.now_ns, _, name, took_ns, line = heapq.heappop(self._ends)
        self.spent_ns[name] += took_ns
        line.took_ns.append(took_ns)
        self._idle += 1
        self._begin()

    def _begin(self) -> None:
        while self._idle and self._waiting:
            (name, took_ns), line = self.schedule.take()
            self._idle, self._waiting = self._idle - 1, self._waiting - 1
            self.began.append(name)
            heapq.heappush(self._ends, (self.now_ns + took_ns, len(self.began), name, took_ns, line))


@pytest.fixture
def workers() -> Workers:
    return Workers()


def test_one_line_is_served_in_order(workers: Workers) -> None:
    line = workers.line()
    for number in range(5):
        line.scheduler.put(line, [(str(number), MS)])
    assert [workers.schedule.take()[0][0] for _ in range(5)] == list("01234")


@pytest.mark.parametrize("task_ms", [1, 100, 5000])
def test_one_task_beside_a_backlog_of_thousands_is_the_very_next(workers: Workers, task_ms: int) -> None:
    large, small = workers.line(), workers.line()
    workers.put(large, "large", 5000, task_ms * MS)
    for _ in range(50):
        for _ in range(20):
            workers.step()
        before = len(workers.began)
        workers.put(small, "small", 1, MS)
        workers.step()
        assert workers.began[before:] == ["small"]


@pytest.mark.parametrize("cameras", [2, 10])
def test_beside_many_backlogs_it_is_the_next_as_well(workers: Workers, cameras: int) -> None:
    small = workers.line()
    for number in range(cameras):
        workers.put(workers.line(), f"large {number}", 2000, (50 + 13 * number) * MS)
    for _ in range(30):
        for _ in range(40):
            workers.step()
        before = len(workers.began)
        workers.put(small, "small", 1, MS)
        workers.step()
        assert workers.began[before:] == ["small"]


def test_it_is_the_next_also_when_the_other_has_had_a_task_that_took_long(workers: Workers) -> None:
    """Such as its first one, which touches fresh memory: what was charged in advance for those that began
    beside it was too much."""
    large, small = workers.line(), workers.line()
    workers.put(large, "large", 1, 70 * MS)
    workers.step()
    workers.put(large, "large", 1000, 1 * MS)
    for _ in range(8):
        workers.step()
    before = len(workers.began)
    workers.put(small, "small", 1, MS)
    workers.step()
    assert workers.began[before:] == ["small"]


def test_a_line_with_a_backlog_goes_on_beside_one_that_always_has_a_task(workers: Workers) -> None:
    large, small = workers.line(), workers.line()
    workers.put(large, "large", 5000, 10 * MS)
    workers.put(small, "small", 1, 2 * MS)
    for _ in range(2000):
        before = workers.spent_ns["small"]
        workers.step()
        if workers.spent_ns["small"] > before:
            workers.put(small, "small", 1, 2 * MS)  # always the next
    longest = max(
        len(run) for run in "".join("s" if name == "small" else " " for name in workers.began).split()
    )
    assert longest <= 5, "not more in a row than make up for one long task of the other"
    assert workers.spent_ns["large"] > workers.spent_ns["small"] > 0


@pytest.mark.parametrize("long_ms", [1, 7, 400])
def test_backlogs_get_equal_parts_of_the_time_whatever_their_tasks_take(
    workers: Workers, long_ms: int
) -> None:
    for name, took_ms in (("a", 5), ("b", long_ms)):
        workers.put(workers.line(), name, 100_000, took_ms * MS)
    while workers.now_ns < 20_000 * MS:
        workers.step()
    assert abs(workers.spent_ns["a"] - workers.spent_ns["b"]) <= WORKERS * 2 * long_ms * MS + 10 * MS


def test_time_that_was_not_used_is_not_saved_up(workers: Workers) -> None:
    early, late = workers.line(), workers.line()
    workers.put(late, "late", 1, MS)
    workers.put(early, "early", 10_000, 10 * MS)
    for _ in range(5000):
        workers.step()
    workers.put(late, "late", 1000, 10 * MS)
    before = len(workers.began)
    for _ in range(200):
        workers.step()
    assert abs(workers.began[before:].count("late") - 100) <= WORKERS + 1, "half of them"


def test_one_task_that_hung_for_minutes_is_not_paid_for_with_minutes(workers: Workers) -> None:
    slow, other = workers.line(), workers.line()
    workers.put(slow, "slow", 1, 600_000 * MS)  # a disk that hung
    workers.step()
    workers.put(slow, "slow", 5, 10 * MS)
    workers.put(other, "other", 100_000, 10 * MS)
    while workers.began.count("slow") < 6:
        workers.step()
    assert workers.began.count("other") <= WORKERS + 6 * MOST_AHEAD_NS // (10 * MS)


def test_staging_goes_first_and_encoding_goes_on(workers: Workers) -> None:
    encoding, staging = workers.line(), workers.line(staging=True)
    workers.put(encoding, "encode", 1000, 100 * MS)
    workers.put(staging, "stage", 3, MS)
    workers.step()
    assert workers.began[WORKERS:] == ["stage"]
    for _ in range(6):
        workers.step()
    assert workers.began[WORKERS:] == ["stage", "encode", "stage", "encode", "stage", "encode", "encode"]


def test_staging_of_one_camera_does_not_wait_for_that_of_another(workers: Workers) -> None:
    large, small = workers.line(staging=True), workers.line(staging=True)
    workers.put(workers.line(), "encode", 1000, 30 * MS)
    workers.put(large, "stage large", 500, 20 * MS)  # a flush
    for _ in range(50):
        workers.step()
    before = len(workers.began)
    workers.put(small, "stage small", 1, MS)
    workers.step()
    workers.step()
    assert "stage small" in workers.began[before : before + 2]


def lines_that_come_and_go() -> Iterator[tuple[int, int, int]]:
    """(line, tasks, ms of each) that are put after each step."""
    for step in range(3000):
        if step % 7 == 0:
            yield step % 5, 1 + step % 11, 1 + step % 29
        else:
            yield 0, 0, 0


def test_each_task_is_taken_once_and_those_of_a_line_in_order(workers: Workers) -> None:
    lines = [workers.line(staging=number == 4) for number in range(5)]
    taken: dict[int, list[int]] = {number: [] for number in range(5)}
    put: Counter[int] = Counter()
    waiting = 0
    for number, tasks, took_ms in lines_that_come_and_go():
        if tasks:
            fresh = [(str(number), put[number] + i) for i in range(tasks)]
            lines[number].scheduler.put(lines[number], fresh)
            put[number] += tasks
            waiting += tasks
        if waiting:
            (name, order), line = workers.schedule.take()
            waiting -= 1
            taken[int(name)].append(order)
            line.took_ns.append(took_ms * MS)
    while waiting:
        (name, order), _ = workers.schedule.take()
        waiting -= 1
        taken[int(name)].append(order)
    assert {number: list(range(put[number])) for number in range(5)} == taken
