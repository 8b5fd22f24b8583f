"""What ``rechunk`` and ``pyramid`` share: who runs the tasks, how they behave, and what is said at the
end."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import typer

from .interrupt import interrupt_on_signals, told_of_interrupts
from .progress import show_progress
from .worker_options import parse_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from shardwright.repack.jobs.new_arrays import BuildReport, Progress
    from shardwright.repack.runtime.executors import Executor

_FAILURES_SHOWN = 20


@contextlib.contextmanager
def making(
    name: str, workers: int | None, scheduler: str | None, image: Path, *folders: Path
) -> Iterator[tuple[Executor, Progress]]:
    """An executor, and where to tell how far it is. ``image``, ``folders``: see ``throttle_of``."""
    from shardwright.repack.runtime.executors import open_executor
    from shardwright.repack.runtime.pause import pause_files, pause_note

    files = pause_files(image, *folders)
    interrupt_on_signals()
    with told_of_interrupts(name, "finished shards are kept"), contextlib.ExitStack() as open_until_end:
        executor = open_until_end.enter_context(
            contextlib.closing(open_executor(workers=workers, scheduler=scheduler))
        )
        add: Callable[[int], None] | None = None
        told = 0

        def on_progress(done: int, total: int) -> None:
            nonlocal add, told
            add = add or open_until_end.enter_context(
                show_progress(name, "made", total, lambda: pause_note(files))
            )
            add(done - told)
            told = done

        yield executor, on_progress


def throttle_of(
    rate: str | None, workers: int, *, no_idle: bool, image: Path, folders: Sequence[Path] = ()
) -> dict[str, Any]:
    """Of a whole job: its workers share the rate (see ``new_array.of_one_worker``). It waits while somebody
    holds up jobs on the array ``image``, or in one of the ``folders``."""
    from shardwright.repack.runtime.pause import pause_files

    return {
        "bytes_per_s": parse_rate(rate),
        "workers": workers,
        "pause_files": pause_files(image, *folders),
        "idle": not no_idle,
    }


def finish(report: BuildReport, as_json: bool) -> None:
    """Print what was done; exit code 1 when something is left undone."""
    typer.echo(json.dumps(report.to_dict()) if as_json else summary(report))
    if not report.ok:
        raise typer.Exit(1)


def summary(report: BuildReport) -> str:
    """For people."""
    from shardwright.config.quantities import format_bytes

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
            f"{what}: {report.shards_made} shards made and {report.shards_found} found from an earlier run,"
            f" {format_bytes(report.bytes_read)} read, {format_bytes(report.bytes_written)} written and "
            f"verified, {report.seconds:.1f} s;"
            f" at most {format_bytes(report.peak_bytes)} in one worker"
        )
        if report.bytes_sent:
            lines.append(f"  {format_bytes(report.bytes_sent)} sent and verified")
    lines += [
        f"  {failure['key']}: {' '.join(str(failure['error'].get('message')).split())}"
        for failure in report.failures[:_FAILURES_SHOWN]
    ]
    if len(report.failures) > _FAILURES_SHOWN:
        lines.append(f"  and {len(report.failures) - _FAILURES_SHOWN} more")
    if report.failures:
        lines.append("  The rest is kept: run the same command again when this is mended")
    return "\n".join(lines)
