"""``shardwright erase``: gives frames or a region of a finished store the fill value."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003  (typer reads the annotation)

import typer

from . import region_options as options
from .existing_path import existing_path
from .job_command import AsJson  # noqa: TC001  (typer reads the annotation)


def command(
    store: Path = typer.Argument(
        ..., help="A finished store, or an image in it.", metavar="STORE", callback=existing_path
    ),
    *,
    frames: options.Frames = None,
    region: options.Region = None,
    image: options.Image = None,
    strategy: options.StrategyName = "auto",
    max_unused: options.MaxUnused = 0.25,
    dry_run: options.DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give frames or a region of a finished store the fill value. Chunks of nothing else are removed, and
    shards without a chunk. Levels of lower resolution follow; the frame table stays.

    Each shard is changed whole or not at all, for readers that open it later. A run that was cut short may
    have changed some shards: run it again to complete it. Exits with 1 when something could not be changed,
    and with 2 for wrong usage.
    """
    from shardwright.rework.edit.region_edit import erase

    chosen = options.parse_elements(region, frames)
    change = partial(
        erase, store, chosen, image=image, strategy=strategy, max_unused=max_unused, dry_run=dry_run
    )
    options.make_changes("erase", change, as_json)
