"""Starvation of a job at idle priority: on a busy machine other programs take the processors, and the job
looks as if it were stuck.

The kernel counts for each thread how long it ran, and how long it was runnable and another one ran
(schedstat). Only this second time is starvation: a thread that waits for a disk, a pause file or its rate is
not runnable.

    RUN_NS WAITED_NS SLICES      /proc/PID/task/TID/schedstat
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Times = dict[str, tuple[int, int]]

LOOK_EVERY_S = 5.0
MOST_WAITING = 0.5  # of the time in which the threads of the job wanted to run, and of one processor
_PROC = Path("/proc")


class StarvationWatch:
    """Says whether the threads of this process and of its children wait for processors most of the time.
    Called from one thread. ``times``, ``clock``: for tests."""

    def __init__(
        self, times: Callable[[], Times] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._times = times or thread_times
        self._clock = clock
        self._before_s, self._before = clock(), self._times()
        self._note = ""

    def note(self) -> str:
        """One line about the last ``LOOK_EVERY_S`` seconds or a little more; empty if nothing starved."""
        now_s = self._clock()
        if now_s - self._before_s >= LOOK_EVERY_S:
            now = self._times()
            self._note = self._judged(now, now_s - self._before_s)
            self._before_s, self._before = now_s, now
        return self._note

    def _judged(self, now: Times, seconds: float) -> str:
        grown = [
            (ran - self._before[thread][0], waited - self._before[thread][1])
            for thread, (ran, waited) in now.items()
            if thread in self._before
        ]
        ran_s, waited_s = (sum(column) / 1e9 for column in zip(*grown, strict=True)) if grown else (0.0, 0.0)
        # a job that wants to run for moments only waits long for none of them
        if waited_s <= MOST_WAITING * seconds or waited_s <= MOST_WAITING * (ran_s + waited_s):
            return ""
        share = waited_s / (ran_s + waited_s)
        return (
            f"slowed down: at idle priority it waits for other programs {share:.0%} of the time that it can "
            "run; --no-idle runs it at normal priority"
        )


def thread_times() -> Times:
    """Returns for each thread of this process and of its children, by its path, how long it has run and how
    long it has waited for a processor, in ns. Empty where the kernel does not tell."""
    found = {}
    for process in (os.getpid(), *_children()):
        with suppress(OSError):  # it has ended meanwhile
            for thread in (_PROC / str(process) / "task").iterdir():
                with suppress(OSError, ValueError):
                    ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
                    found[str(thread)] = ran, waited
    return found


def _children() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                # behind the name of the program, in which anything may stand: state, parent
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    yield int(entry.name)
