"""The progress of a long command on standard error: a bar on a terminal, a plain line every two seconds in a
log."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, ProgressColumn

PLAIN_INTERVAL_S = 2.0
_BAR_INTERVAL_S = 0.5  # how often the note is read; the bar draws itself


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
    with (_bar if sys.stderr.isatty() else _lines)(label, verb, total_bytes, note) as add:
        yield add


@contextmanager
def show_steps(
    label: str, doing: str, note: Callable[[], str] = _nothing
) -> Iterator[Callable[[int, int], None]]:
    """The same for steps: yields a function that takes the number of steps done and of all steps."""
    with (_step_bar if sys.stderr.isatty() else _step_lines)(label, doing, note) as show:
        yield show


def _bar_beside(*counts: Callable[..., ProgressColumn]) -> Progress:
    """A bar with counts. Its label alone wraps on a narrow terminal: rich would shorten the counts too."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    label = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    bar: Callable[..., ProgressColumn] = partial(BarColumn, bar_width=20)
    others = [kind(table_column=Column(no_wrap=True)) for kind in (bar, *counts)]
    return Progress(label, *others, console=Console(stderr=True), transient=True)


@contextmanager
def _step_bar(label: str, doing: str, note: Callable[[], str]) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    with _bar_beside(MofNCompleteColumn, TimeRemainingColumn) as bar:
        task = bar.add_task(f"{label}, {doing}", total=None)
        with _every(_BAR_INTERVAL_S, lambda: bar.update(task, description=f"{label}, {note() or doing}")):
            yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _step_lines(label: str, doing: str, note: Callable[[], str]) -> Iterator[Callable[[int, int], None]]:
    steps = (0, 0)

    def show(done: int, total: int) -> None:
        nonlocal steps
        steps = done, total

    def line() -> None:
        done, total = steps
        why = note()
        typer.echo(f"{label}: {doing} {done}/{total}{', ' if why else ''}{why}", err=True)

    with _every(PLAIN_INTERVAL_S, line):
        yield show


@contextmanager
def _bar(
    label: str, verb: str, total_bytes: int | None, note: Callable[[], str]
) -> Iterator[Callable[[int], None]]:
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    left = () if total_bytes is None else (TimeRemainingColumn,)
    with _bar_beside(partial(DownloadColumn, binary_units=True), TransferSpeedColumn, *left) as bar:
        task = bar.add_task(f"{label}, {verb}", total=total_bytes)
        with _every(_BAR_INTERVAL_S, lambda: bar.update(task, description=f"{label}, {note() or verb}")):
            yield lambda nbytes: bar.advance(task, nbytes)


@contextmanager
def _lines(
    label: str, verb: str, total_bytes: int | None, note: Callable[[], str]
) -> Iterator[Callable[[int], None]]:
    count = _Count(total_bytes)
    with _every(
        PLAIN_INTERVAL_S,
        lambda: typer.echo(f"{label}: {count.text(verb)}{', ' if note() else ''}{note()}", err=True),
    ):
        yield count.add


class _Count:
    """Bytes done since it was made."""

    def __init__(self, total_bytes: int | None) -> None:
        self._begin_s = time.monotonic()
        self._total = total_bytes
        self._done = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes

    def text(self, verb: str) -> str:
        from shardwright.model.display_text import format_bytes

        rate = self._done / max(time.monotonic() - self._begin_s, 1e-9)
        of = "" if self._total is None else f" of {format_bytes(self._total)}"
        left = "" if self._total is None or not rate else f", {(self._total - self._done) / rate:.0f} s left"
        return f"{format_bytes(self._done)}{of} {verb}, {format_bytes(rate)}/s{left}"


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
