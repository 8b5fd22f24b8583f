"""The progress of a long command on standard error: a bar on a terminal, a plain line every two seconds in a
log. Both have the time left, from a steady rate."""

from __future__ import annotations

import math
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import typer

from shardwright.model.display_text import duration, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import ProgressColumn

PLAIN_INTERVAL_S = 2.0
_BAR_INTERVAL_S = 0.5  # how often the note is read; the bar draws itself


SMOOTHED_S = 30.0  # over which the rate is a mean; the plain one until then
MOST_FASTER = 2.0  # than the rate: how fast work may seem to come
BURST_S = 10.0  # of work, at the rate, are the most that a burst is worth


class TimeLeft:
    """The time left of a job, from a smoothed rate. For one thread, which looks again and again.

    Work counts the less the older it is, over the time since the last progress: some jobs progress in large
    steps, and between two of these the rate stays. A burst, such as shards that were found from an earlier
    run, is spread over the next looks, and what is beyond ``BURST_S`` of work is left out: at looks every two
    seconds it changes the rate by at most 7 % a look and 35 % in all. A pause at most halves the rate.

    In the first ``SMOOTHED_S`` there is no rate yet to measure a burst by. The rate at which half of the time
    was spent stands for it: a resumed job begins with a burst, of up to half of that time.
    """

    def __init__(self) -> None:
        self._begin_s: float | None = None  # the first look: what was done before says nothing of the rate
        self._last_s = 0.0  # progress
        self._done = 0.0  # as of the last look
        self._waiting = 0.0  # work that came faster than it may count
        self._rate = 0.0
        self._first: list[tuple[float, float]] = []  # rate and seconds of each progress at first

    def look(self, done: float, now_s: float) -> None:
        """Takes what is done by now."""
        if self._begin_s is None:
            self._begin_s = self._last_s = now_s
        else:
            self._waiting += done - self._done
        self._done = done
        elapsed_s, since_s = now_s - self._begin_s, now_s - self._last_s
        if self._waiting <= 0 or since_s <= 0:
            return
        counted = self._waiting
        if elapsed_s <= SMOOTHED_S or not self._rate:
            self._first.append((counted / since_s, since_s))
            most = MOST_FASTER * self._middle_rate()
            self._rate = sum(min(rate, most) * seconds for rate, seconds in self._first) / elapsed_s
            self._waiting = 0.0
        else:
            counted = min(counted, MOST_FASTER * self._rate * since_s)
            self._waiting = min(self._waiting - counted, self._rate * BURST_S)
            weight = min(0.5, 1 - math.exp(-since_s / SMOOTHED_S))
            self._rate += weight * (counted / since_s - self._rate)
        self._last_s = now_s

    def _middle_rate(self) -> float:
        spent = accumulate(seconds for _, seconds in sorted(self._first))
        half_s = sum(seconds for _, seconds in self._first) / 2
        return next(rate for (rate, _), by in zip(sorted(self._first), spent, strict=True) if by >= half_s)

    def seconds(self, total: float) -> float | None:
        """Returns the time left; None while it is not known."""
        return max(0.0, total - self._done) / self._rate if self._rate else None

    def text(self, done: float, total: float | None) -> str:
        """Takes what is done by now. Returns the time left in words, nothing while it is not known."""
        self.look(done, time.monotonic())
        left_s = None if total is None else self.seconds(total)
        return "" if left_s is None else f"{duration(left_s)} left"


def _nothing() -> str:
    return ""


@contextmanager
def show_progress(
    label: str, verb: str, total_bytes: int | None = None, note: Callable[[], str] = _nothing
) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the bytes newly done, from any thread.

    ``label`` begins each line, ``verb`` says what happens to the bytes (``checked``). With ``total_bytes``
    the time left is shown. ``note`` returns a remark for the line, such as that work is paused.
    """
    begin_s, lock, all_bytes = time.monotonic(), threading.Lock(), 0

    def text(done: int, total: int | None) -> str:
        rate = done / max(time.monotonic() - begin_s, 1e-9)
        of = "" if total is None else f" of {format_bytes(total)}"
        return f"{format_bytes(done)}{of} {verb}, {format_bytes(rate)}/s"

    def add(nbytes: int) -> None:
        nonlocal all_bytes
        with lock:
            all_bytes += nbytes
            show(all_bytes, total_bytes)

    with _shown(label, verb, total_bytes, note, text, in_bytes=True) as show:
        yield add


@contextmanager
def show_steps(
    label: str, doing: str, note: Callable[[], str] = _nothing
) -> Iterator[Callable[[int, int], None]]:
    """The same for steps: yields a function that takes the number of steps done and of all steps."""

    def text(done: int, total: int | None) -> str:
        return f"{doing} {done}/{'?' if total is None else total}"  # as the bar has it

    with _shown(label, doing, None, note, text) as show:
        yield show


@contextmanager
def _shown(
    label: str,
    doing: str,
    total: int | None,
    note: Callable[[], str],
    text: Callable[[int, int | None], str],
    *,
    in_bytes: bool = False,
) -> Iterator[Callable[[int, int | None], None]]:
    """Yields a function that takes how much is done, and of how much. A terminal gets a bar with counts,
    anything else lines with their ``text``."""
    left = TimeLeft()
    if sys.stderr.isatty():
        with _bar(label, doing, total, note, left, in_bytes=in_bytes) as show:
            yield show
        return
    state = 0, total

    def show_later(done: int, total: int | None) -> None:
        nonlocal state
        state = done, total

    def line() -> None:
        told = (text(*state), left.text(*state), note())
        typer.echo(f"{label}: {', '.join(filter(None, told))}", err=True)

    with _every(PLAIN_INTERVAL_S, line):
        yield show_later


@contextmanager
def _bar(
    label: str,
    doing: str,
    total: int | None,
    note: Callable[[], str],
    left: TimeLeft,
    *,
    in_bytes: bool,
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar with counts, the time left, and the note that there is now. Its label alone wraps on a narrow
    terminal: rich would shorten the counts too."""
    from rich import progress  # takes 30 ms, which scripts need not wait
    from rich.console import Console
    from rich.table import Column

    counts: tuple[Callable[..., ProgressColumn], ...] = (progress.MofNCompleteColumn,)
    if in_bytes:
        counts = partial(progress.DownloadColumn, binary_units=True), progress.TransferSpeedColumn
    words = progress.TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    bar_kind: Callable[..., ProgressColumn] = partial(progress.BarColumn, bar_width=20)
    left_kind: Callable[..., ProgressColumn] = partial(progress.TextColumn, "{task.fields[left]}")
    others = [kind(table_column=Column(no_wrap=True)) for kind in (bar_kind, *counts, left_kind)]

    def look() -> None:
        now = bar.tasks[0]
        bar.update(task, description=f"{label}, {note() or doing}", left=left.text(now.completed, now.total))

    with progress.Progress(words, *others, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{label}, {doing}", total=total, left="")
        with _every(_BAR_INTERVAL_S, look):
            yield lambda done, total: bar.update(task, completed=done, total=total)


class _Ticker:
    """A thread that calls actions now and then, until ``end``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # also while an action is called: none is after it was removed
        self._actions: dict[Callable[[], object], tuple[float, float]] = {}  # interval, when it is due
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    @contextmanager
    def calling(self, interval_s: float, action: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._actions[action] = interval_s, time.monotonic() + interval_s
        self._wake.set()
        try:
            yield
        finally:
            with self._lock:
                del self._actions[action]

    def end(self) -> None:
        self._over = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over:
            with self._lock:
                now_s = time.monotonic()
                for action, (interval_s, due_s) in self._actions.items():
                    if due_s <= now_s:
                        action()
                        self._actions[action] = interval_s, now_s + interval_s
                due = min((due_s for _, due_s in self._actions.values()), default=None)
            self._wake.wait(None if due is None else max(0.0, due - time.monotonic()))
            self._wake.clear()


_tickers: list[_Ticker] = []  # at most one: that of ``told_at_this_priority``


@contextmanager
def told_at_this_priority() -> Iterator[None]:
    """Shows all progress within from a thread that is started now. A command that makes itself idle begins
    this before: a thread that an idle one starts is idle, and would starve with what it reports."""
    ticker = _Ticker()
    _tickers.append(ticker)
    try:
        yield
    finally:
        _tickers.remove(ticker)
        ticker.end()


@contextmanager
def _every(interval_s: float, action: Callable[[], object]) -> Iterator[None]:
    """Call ``action`` from another thread as long as the block runs."""
    if _tickers:
        with _tickers[-1].calling(interval_s, action):
            yield
        return
    ticker = _Ticker()
    try:
        with ticker.calling(interval_s, action):
            yield
    finally:
        ticker.end()
