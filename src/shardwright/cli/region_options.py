"""The common parts of ``update`` and ``erase``: options, progress, and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shardwright.model.display_text import format_bytes

from .array_options import parse_range, parse_region
from .job_command import finish, job_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.rework.edit.region_changes import ArrayChanges, RegionReport

Region = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="RANGES",
        help="Elements by axis: t=0:10,y=5. Axes that are not named are taken whole.",
    ),
]
Frames = Annotated[
    str | None,
    typer.Option(
        "--frames",
        metavar="RANGE",
        help="Instead of --region, frames in the order of acquisition, as `inspect --missing` numbers them: "
        "10:20 or 7.",
    ),
]
Image = Annotated[
    str | None,
    typer.Option("--image", metavar="NAME", help="Name or folder of one image, in a store of several."),
]
StrategyName = Annotated[
    Literal["auto", "in_place", "gap", "append", "rewrite"],
    typer.Option(
        "--strategy", help="How new chunks get into a shard. auto: as few bytes as --max-unused lets."
    ),
]
MaxUnused = Annotated[
    float,
    typer.Option(
        "--max-unused",
        min=0,
        max=1,
        metavar="SHARE",
        help="A shard of which a larger share would be unused is rewritten.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what would be changed.")]


def parse_elements(region: str | None, frames: str | None) -> dict[str, int | slice] | int | slice:
    """Returns the elements that are to change, by the two options. Raises typer's usage error."""
    if frames is not None and region is None:
        return parse_range("--frames", frames)
    if region is None or frames is not None:
        raise typer.BadParameter("give either --frames or --region", param_hint="--frames")
    return parse_region("--region", region)


def make_changes(name: str, change: Callable[..., RegionReport], as_json: bool) -> None:
    """Calls ``change`` and prints its report; shows its progress and reports an interrupt meanwhile."""
    with job_steps(name, "shards that are changed stay so", "shards") as show:
        report = change(on_progress=show)
    finish(report.to_dict(), as_json, _summary(report))


def _summary(report: RegionReport) -> str:
    lines = [f"{report.path}: {'would change' if report.dry_run else 'changed'}"]
    lines += [_line(changes, report.dry_run) for changes in report.arrays]
    lines += [f"  warning: {warning}" for warning in report.warnings]
    return "\n".join(lines)


def _line(changes: ArrayChanges, dry_run: bool) -> str:
    text = (
        f"  {changes.name}: {changes.chunks} chunks in {changes.shards} shards, {changes.chunks_read} of "
        f"them in part"
    )
    if dry_run:
        return text
    used = ", ".join(f"{count} {strategy}" for strategy, count in changes.strategies.items())
    return (
        f"{text}; {changes.chunks_absent} chunks are all fill value, {changes.shards_removed} shards "
        f"removed; {format_bytes(changes.bytes_written)} written ({used})"
    )
