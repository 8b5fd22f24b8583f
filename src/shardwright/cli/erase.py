"""``shardwright erase``: gives frames or a region of a finished store the fill value."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import Annotated

import typer

from .array_options import parse_range, parse_region
from .existing_path import existing_path
from .job_command import AsJson  # noqa: TC001  (typer reads the annotation)
from .region_options import DryRun, Image, MaxUnused, Region, StrategyName, changes_shown, finish_region

Frames = Annotated[
    str | None,
    typer.Option(
        "--frames",
        metavar="RANGE",
        help="Frames in the order of acquisition, as `inspect --missing` numbers them: 10:20 or 7.",
    ),
]


def command(
    store: Path = typer.Argument(
        ..., help="A finished store, or an image in it.", metavar="STORE", callback=existing_path
    ),
    *,
    frames: Frames = None,
    region: Region = None,
    image: Image = None,
    strategy: StrategyName = "auto",
    max_unused: MaxUnused = 0.25,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give frames or a region of a finished store the fill value. Chunks of nothing else are removed, and
    shards without a chunk. Levels of lower resolution follow; the frame table stays.

    Each shard is changed whole or not at all, for readers that open it later. A run that was cut short may
    have changed some shards: run it again to complete it. Exits with 1 when something could not be changed,
    and with 2 for wrong usage.
    """
    from shardwright.edit.region_edit import erase

    if (frames is None) == (region is None):
        raise typer.BadParameter("give either --frames or --region", param_hint="--frames")
    with changes_shown("erase") as on_progress:
        report = erase(
            store,
            frames=None if frames is None else parse_range("--frames", frames),
            region=None if region is None else parse_region("--region", region),
            image=image,
            strategy=strategy,
            max_unused=max_unused,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    finish_region(report, as_json)
