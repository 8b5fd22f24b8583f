"""``shardwright repair``: restores damaged and missing shards from their parity, and verifies the store."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path  # noqa: TC003  (typer reads it)
from typing import TYPE_CHECKING

import typer

from . import job_command as job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.rework.jobs.repair_store import RepairReport

_PRINTED = 20


def command(
    store: Path = typer.Argument(..., help="A finished store, or an array in it.", metavar="STORE"),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only verify the store and its parity; change nothing."
    ),
    rate: job.Rate = None,
    as_json: job.AsJson = False,
    no_idle: job.NoIdle = False,
) -> None:
    """Restore shards that are damaged, missing, too short or too long, bit for bit, from the parity that
    `compact --parity` has made; then verify the whole store.

    A restored shard is compared before it takes the place of the damaged one at once. Where more of a shard
    row is lost than its parity restores, nothing of the row changes, and what is lost is named. A shard that
    another program has changed stays as it is. Exits with 0 when the store is sound afterwards, with 1
    otherwise.
    """
    from shardwright.rework.jobs.repair_store import repair_store
    from shardwright.rework.runtime.job_report import no_progress

    throttle = job.throttle_of(rate, 1, no_idle=no_idle)
    job.interrupt_on_signals()
    throttle.be_idle()
    with (
        job.reported_interrupts("repair", "shards that were restored stay"),
        nullcontext() if as_json else job.job_progress(f"repair: {store.name}", "verified") as on_progress,
    ):
        report = repair_store(store, throttle, dry_run=dry_run, on_progress=on_progress or no_progress)
    job.finish(report.to_dict(), as_json, summary(report))


def summary(report: RepairReport) -> str:
    """The report as text."""
    return "\n".join(_lines(report))


def _lines(report: RepairReport) -> Iterator[str]:
    for name in report.restored[:_PRINTED]:
        yield f"restored: {name}"
    for name, error in list(report.failures.items())[:_PRINTED]:
        yield f"nothing changed: {name}: {error['message']}. {error.get('hint', '')}"
    for problem in [*report.problems, *report.warnings][:_PRINTED]:
        yield f"{problem['where']}: {problem['what']}"
    if not report.rows:
        yield "there is no parity to restore from: `shardwright compact --parity 10%` makes it"
    yield (
        f"{report.path}: parity of {report.rows} shard rows; {len(report.restored)} shards restored; "
        + ("nothing is wrong now" if report.ok else f"{len(report.problems)} problems in the store")
    )
