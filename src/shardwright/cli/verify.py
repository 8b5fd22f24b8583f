"""``shardwright verify``: decodes and checks every chunk; lists the faults and exits with 1 if there are
any."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING

import typer

from .job_command import job_progress

if TYPE_CHECKING:
    from shardwright.read.verify_store import VerifyReport


def command(
    store: Path = typer.Argument(..., help="A store, an array in it, or one shard file.", metavar="STORE"),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    threads: int | None = typer.Option(
        None, "--threads", min=1, metavar="COUNT", help="Decoding threads. One for each core unless given."
    ),
) -> None:
    """Decode and check every chunk of a store. Lists the faults and exits with 1 if there are any."""
    from shardwright.read.verify_store import verify_store

    if as_json:
        report = verify_store(store, threads=threads)
        typer.echo(json.dumps(report.to_dict()))
    else:
        with job_progress("verify", "checked") as on_progress:
            report = verify_store(store, threads=threads, progress=on_progress)
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


def _print_report(report: VerifyReport) -> None:
    from shardwright.model.display_text import format_bytes

    for problem in report.problems:
        typer.echo(str(problem))
    if report.problems_not_kept:
        typer.echo(f"and {report.problems_not_kept} more")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}")
    if report.warnings_not_kept:
        typer.echo(f"and {report.warnings_not_kept} warnings more")
    found = len(report.problems) + report.problems_not_kept
    typer.echo(
        f"{report.shards} shards, {report.chunks} chunks: {format_bytes(report.encoded_bytes)} decoded to "
        f"{format_bytes(report.decoded_bytes)}; reading as fill value: {report.shards_absent} shards and "
        f"{report.chunks_absent} chunks; frame table: {report.frame_rows} rows; "
        + ("nothing is wrong" if report.ok else f"{found} problem{'s' if found > 1 else ''}")
    )
    if report.ok and report.shards_recorded < report.shards:
        typer.echo(
            f"{report.shards - report.shards_recorded} shards are not on record: they were made by an "
            "earlier release or another program, and verify cannot find out whether they were swapped or "
            "replaced"
        )
    if report.ok and not report.checksums and report.shards_recorded < report.shards:
        typer.echo(
            "the chunks carry no checksum (chunk_checksum: true adds one), so verify has shown that they "
            "decode, not that no bit was flipped"
        )
    if report.shards_absent_unrecorded:
        typer.echo(
            "an absent shard is legal where every pixel is the fill value; verify cannot distinguish it from "
            "one that was deleted"
        )
