"""The common parts of commands that run long jobs: options, interrupts, executor, progress bar, and the
report of ``rechunk`` and ``pyramid``."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.model.display_text import format_bytes
from shardwright.model.errors import ConfigError, InterruptedJobError

from .progress import show_progress, show_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardwright.rework.runtime.executors import Executor
    from shardwright.rework.runtime.job_report import BuildReport, OnProgress
    from shardwright.rework.runtime.throttle import Throttle

Rate = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="SIZE",
        help="Most bytes a second, e.g. 50MB, read, written and read back, all workers together.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="COUNT",
        help="Worker processes. Default: one for each core, at most 4.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        help="Run on the dask cluster of this scheduler, tcp://HOST:PORT; it must see the same storage.",
    ),
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Most memory of one worker.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")]
NoIdle = Annotated[
    bool,
    typer.Option(
        "--no-idle",
        help="Run at normal priority instead of the lowest. Workers of --scheduler keep their own.",
    ),
]

_FAILURES_PRINTED = 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def parse_rate(text: str | None) -> float | None:
    """The bytes per second of --rate. Raises ``ConfigError``."""
    from shardwright.config.quantities import parse_size_bytes

    if text is None:
        return None
    try:
        return float(parse_size_bytes(int(text) if text.isdecimal() else text.removesuffix("/s")))
    except ValueError as error:
        raise ConfigError(f"--rate: {error}", got=text) from None


def throttle_of(rate: str | None, workers: int, *, no_idle: bool) -> Throttle:
    """The throttle of a whole job. Raises ``ConfigError``."""
    from shardwright.rework.runtime.throttle import Throttle

    return Throttle(parse_rate(rate), idle=not no_idle, workers=workers)


def interrupt_on_signals() -> None:
    """Make the first SIGINT or SIGTERM raise ``KeyboardInterrupt``; later ones are ignored while the command
    clears up."""

    def interrupt(*_: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, interrupt)


@contextmanager
def reported_interrupts(name: str, kept: str) -> Iterator[None]:
    """Raises ``InterruptedJobError`` for an interrupt inside. ``kept``: the work that is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedJobError(
            f"{name} was interrupted; {kept}: run the same command again to continue"
        ) from None


@contextmanager
def job_steps(name: str, kept: str, doing: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that takes the number of things done, and of all, and shows them. An interrupt inside
    is reported. ``kept``: the work that is not lost; ``doing``: to what."""
    interrupt_on_signals()
    with reported_interrupts(name, kept), show_steps(name, doing) as show:
        yield show


@contextmanager
def job_executor(name: str, kept: str, workers: int | None, scheduler: str | None) -> Iterator[Executor]:
    """The executor of a job. ``kept``: the work that an interrupt does not lose. Raises
    ``InterruptedJobError``, ``ConfigError``, ``SessionLostError``."""
    from shardwright.rework.runtime.executors import open_executor

    interrupt_on_signals()
    with (
        reported_interrupts(name, kept),
        closing(open_executor(workers=workers, scheduler=scheduler)) as executor,
    ):
        yield executor


def job_note(pause_files: Sequence[str], *, idle: bool) -> Callable[[], str]:
    """Returns what tells in a line of progress why a job is slow: one of ``pause_files`` pauses it or, at
    ``idle`` priority, other programs have the processors."""
    from shardwright.rework.runtime.starvation import StarvationWatch
    from shardwright.rework.runtime.throttle import pause_note

    watch = StarvationWatch() if idle else None
    return lambda: pause_note(tuple(pause_files)) or ("" if watch is None else watch.note())


@contextmanager
def job_progress(
    label: str, verb: str, pause_files: Sequence[str] = (), *, idle: bool = False
) -> Iterator[OnProgress]:
    """Yields a function that takes the bytes done so far and the bytes in all. Its first call shows the
    progress bar, with ``job_note``."""
    note = job_note(pause_files, idle=idle)
    with ExitStack() as bar:
        add: Callable[[int], None] | None = None
        printed = 0

        def on_progress(done: int, total: int) -> None:
            nonlocal add, printed
            add = add or bar.enter_context(show_progress(label, verb, total, note))
            add(done - printed)
            printed = done

        yield on_progress


def finish(facts: dict[str, Any], as_json: bool, text: str) -> None:
    """Print a report, as JSON or as text; exit code 1 when it is not ``ok``."""
    typer.echo(json.dumps(facts) if as_json else text)
    if not facts.get("ok", True):
        raise typer.Exit(1)


def summary(report: BuildReport) -> str:
    """The report as text."""
    lines = []
    if report.already:
        lines.append(f"{report.path}: levels {', '.join(report.already)} were there already")
    if report.made or report.failures:
        what = (
            f"{report.path}: made {', '.join(report.made)}"
            if report.made
            else (f"{report.path}: NOT finished, nothing was published")
        )
        lines.append(
            f"{what}: {report.shards_made} shards made and {report.shards_found} found from an earlier run, "
            f"{format_bytes(report.bytes_read)} read, {format_bytes(report.bytes_written)} written and "
            f"verified, {report.seconds:.1f} s; at most {format_bytes(report.peak_bytes)} in one worker"
        )
        if report.bytes_sent:
            lines.append(f"  {format_bytes(report.bytes_sent)} sent and verified")
    lines += [
        f"  {failure['key']}: {' '.join(str(failure['error'].get('message')).split())}"
        for failure in report.failures[:_FAILURES_PRINTED]
    ]
    if len(report.failures) > _FAILURES_PRINTED:
        lines.append(f"  and {len(report.failures) - _FAILURES_PRINTED} more")
    if report.failures:
        lines.append("  The rest is kept: repair this, then run the same command again")
    return "\n".join(lines)
