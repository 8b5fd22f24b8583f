"""Fair sharing of the workers: tasks wait in lines of their acquisitions, and the next task is from the line
that has used the least of the workers' time.

    line A   ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪   its start is at 812 ms of worker time; after a task of 9 ms at 821 ms
    line B   ▪                      was empty, and comes back at the start of the line served last, here 812
             ms: it is next

A line that needs less than its share never waits for the backlog of another, only for a worker to become
free. Lines that need more get equal parts of the workers' time, however long their tasks are. A line cannot
save up time while it is empty (start-time fair queueing). No I/O, no clock, no thread: the caller passes in
how long each task took.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
# so that one task of minutes, on a disk that hung, does not make its line wait for minutes
MOST_AHEAD_NS = 10_000_000_000


class Line(Generic[T]):
    """The tasks of one acquisition, oldest first. Only its ``FairScheduler`` uses its fields, except
    ``took_ns``."""

    __slots__ = ("scheduler", "task_ns", "tasks", "took_ns", "under_way", "used_ns")

    def __init__(self, scheduler: FairScheduler[T]) -> None:
        self.scheduler = scheduler
        self.tasks: deque[T] = deque()
        # durations of finished tasks that are not yet in ``used_ns``; any thread appends
        self.took_ns: deque[int] = deque()
        self.used_ns = 0  # by finished tasks
        self.task_ns = 0  # estimate for one task from the last ones: counted for each that is under way
        self.under_way = 0

    def next_start_ns(self, present_ns: int) -> int:
        """Returns its next start, at most ``MOST_AHEAD_NS`` after the present one."""
        while self.took_ns:
            took_ns = self.took_ns.popleft()
            self.used_ns += took_ns
            self.under_way -= 1
            self.task_ns = (3 * self.task_ns + took_ns) // 4 if self.task_ns else took_ns
        start_ns = self.used_ns + self.under_way * self.task_ns
        if start_ns > present_ns + MOST_AHEAD_NS:
            self.used_ns -= start_ns - present_ns - MOST_AHEAD_NS
            return present_ns + MOST_AHEAD_NS
        return start_ns


class FairScheduler(Generic[T]):
    """The order of lines of one kind, by their starts. Not thread-safe."""

    __slots__ = ("_came", "_present_ns", "_served", "waiting")

    def __init__(self) -> None:
        # a heap of (start, number, line): each line that has tasks, once
        self.waiting: list[tuple[int, int, Line[T]]] = []
        # numbers order lines with the same start: first those that came back, then those that wait longest
        self._came, self._served = 0, 1 << 62
        self._present_ns = 0  # the start of the line that was served last

    def put(self, line: Line[T], tasks: Iterable[T]) -> None:
        """Appends tasks, at least one, to a line."""
        if not line.tasks:
            first_ns = self.waiting[0][0] if self.waiting else self._present_ns
            start_ns = line.next_start_ns(self._present_ns)
            if start_ns < first_ns:
                line.used_ns += first_ns - start_ns
                start_ns = first_ns
            self._came += 1
            heappush(self.waiting, (start_ns, self._came, line))
        line.tasks.extend(tasks)

    def take(self) -> tuple[T, Line[T]]:
        """Removes and returns the next task and its line; the caller appends the task's duration to the
        line's ``took_ns``. A task must be waiting."""
        self._present_ns, _, line = self.waiting[0]
        task = line.tasks.popleft()
        line.under_way += 1
        if line.tasks:
            self._served += 1
            heapreplace(self.waiting, (line.next_start_ns(self._present_ns), self._served, line))
        else:
            heappop(self.waiting)
        return task, line


class Schedule(Generic[T]):
    """The order of all tasks: staging, which has a time limit, before encoding, but never twice in a row
    while there is something to encode. Within each of the two, lines share fairly. Not thread-safe."""

    __slots__ = ("_encoding", "_staged_last", "_staging")

    def __init__(self) -> None:
        self._staging: FairScheduler[T] = FairScheduler()
        self._encoding: FairScheduler[T] = FairScheduler()
        self._staged_last = False

    def line(self, *, staging: bool) -> Line[T]:
        return Line(self._staging if staging else self._encoding)

    def take(self) -> tuple[T, Line[T]]:
        """As ``FairScheduler.take``."""
        self._staged_last = bool(self._staging.waiting) and not (self._staged_last and self._encoding.waiting)
        return (self._staging if self._staged_last else self._encoding).take()
