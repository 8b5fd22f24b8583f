"""``shardwright repair``: restores damaged and missing shards from their parity, and verifies the store."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path  # noqa: TC003  (typer reads it)
from typing import TYPE_CHECKING

import typer

from .job_command import (
    AsJson,
    NoIdle,
    Rate,
    interrupt_on_signals,
    job_progress,
    parse_rate,
    reported_interrupts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.rework.jobs.repair_store import RepairReport

_PRINTED = 20


def command(
    store: Path = typer.Argument(..., help="A finished store, or an array in it.", metavar="STORE"),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only report what is damaged and can be restored; change nothing."
    ),
    changed: bool = typer.Option(
        False,
        "--changed",
        help="Restore also shards that can be read, but were written to since, by another program perhaps.",
    ),
    rate: Rate = None,
    threads: int = typer.Option(
        1, "--threads", min=1, metavar="COUNT", help="Threads of par2 and of verify."
    ),
    as_json: AsJson = False,
    no_idle: NoIdle = False,
) -> None:
    """Restore shards that are damaged, missing, too short or too long, bit for bit, from the parity that
    `compact --parity` has made; then verify the whole store.

    A restored shard is compared before it takes the place of the damaged one at once. Where more of a shard
    row is lost than its parity restores, nothing of the row changes, and what is lost is named. A shard that
    another program has changed stays as it is, unless --changed is given. Exits with 0 when the store is
    sound afterwards, with 1 otherwise.
    """
    from shardwright.rework.jobs.repair_store import repair_store
    from shardwright.rework.runtime.throttle import Throttle, rig_pause_files

    throttle = Throttle(parse_rate(rate), tuple(rig_pause_files(store)), idle=not no_idle)
    interrupt_on_signals()
    throttle.be_idle()
    progress = job_progress(f"repair: {store.name}", "verified", throttle.pause_files, idle=throttle.idle)
    with (
        reported_interrupts("repair", "shards that were restored stay"),
        nullcontext() if as_json else progress as on_progress,
    ):
        further = {} if on_progress is None else {"on_progress": on_progress}
        report = repair_store(store, throttle, threads, dry_run=dry_run, changed=changed, **further)
    typer.echo(json.dumps(report.to_dict()) if as_json else "\n".join(repair_lines(report)))
    if not report.ok:
        raise typer.Exit(1)


def repair_lines(report: RepairReport) -> Iterator[str]:
    """The report as text."""
    could = "can be restored" if report.dry_run else "restored"
    for name in report.restored[:_PRINTED]:
        yield f"{could}: {name}"
    for name, error in list(report.failures.items())[:_PRINTED]:
        yield f"nothing changed: {name}: {error['message']}" + (
            f". {error['hint']}" if "hint" in error else ""
        )
    for problem in report.problems[:_PRINTED]:
        yield f"{problem['where']}: {problem['what']}"
    if not report.rows:
        yield "there is no parity to restore from: `shardwright compact --parity 10%` makes it"
    yield (
        f"{report.path}: parity of {report.rows} shard rows; {len(report.damaged)} shards were not as it has "
        f"them, {len(report.restored)} {could}; "
        + ("nothing is wrong now" if report.ok else f"{len(report.problems)} problems in the store")
    )
