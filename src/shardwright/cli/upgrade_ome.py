"""``shardwright upgrade-ome``: changes the metadata of a finished store to OME-Zarr 0.6."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads the annotation)

import typer

from .job_command import AsJson, interrupt_on_signals, reported_interrupts
from .progress import show_steps


def command(
    store: Path = typer.Argument(..., help="A finished store.", metavar="STORE"),
    *,
    as_json: AsJson = False,
) -> None:
    """Change the metadata of a finished store from OME-Zarr 0.5 to 0.6: coordinate systems, one
    transformation for each array, and a scene with the positions of the images. Pixels stay as they are.

    May be stopped and run again at any point: each zarr.json is whole and of one version, and `shardwright
    verify` names a mixture. Exits with 1 for a store that is written, moved or edited just now, that lies
    elsewhere in part, or that another program wrote.
    """
    from shardwright.rework.jobs.ome_upgrade import upgrade_store

    interrupt_on_signals()
    with (
        reported_interrupts("upgrade-ome", "groups that are changed stay so"),
        show_steps("upgrade-ome", "changes groups") as on_progress,
    ):
        report = upgrade_store(store, on_progress)
    typer.echo(
        json.dumps(report.to_dict())
        if as_json
        else f"{store} is of OME-Zarr {report.version}: {report.changed} of {report.groups} groups changed"
    )
