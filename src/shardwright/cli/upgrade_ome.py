"""``shardwright upgrade-ome``: changes the metadata of a finished store to OME-Zarr 0.6."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads the annotation)

import typer

from .job_command import AsJson, finish, job_steps


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

    with job_steps("upgrade-ome", "groups that are changed stay so", "changes groups") as on_progress:
        report = upgrade_store(store, on_progress)
    changed = f"{report.changed} of {report.groups} groups changed"
    finish(report.to_dict(), as_json, f"{store} is of OME-Zarr {report.version}: {changed}")
