"""``shardwright pyramid``: adds levels of lower resolution to a store."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads the annotation)

import typer

from shardwright.disk import beneath

from . import job_command as job
from .array_options import FACTORS_HELP, parse_factors, parse_method, parse_size
from .existing_path import existing_path


def command(
    store: Path = typer.Argument(
        ..., help="A finished OME-Zarr store.", metavar="STORE", callback=existing_path
    ),
    levels: int = typer.Option(
        ...,
        "--levels",
        min=1,
        max=32,
        metavar="COUNT",
        help="Levels above the image, those that exist already included.",
    ),
    method: str = typer.Option(
        "mean",
        "--method",
        metavar="METHOD",
        help="mean, min, max or nearest (the first element of each window).",
    ),
    factors: str | None = typer.Option(None, "--factors", metavar="FACTORS", help=f"The {FACTORS_HELP}"),
    axes: str | None = typer.Option(
        None, "--axes", metavar="AXES", help="Axes with a factor of 2, in place of --factors: y,x."
    ),
    memory: job.Memory = "512MiB",
    rate: job.Rate = None,
    workers: job.Workers = None,
    scheduler: job.Scheduler = None,
    as_json: job.AsJson = False,
    no_idle: job.NoIdle = False,
) -> None:
    """Add levels of lower resolution to a store, as OME-Zarr multiscales: each element is the mean, minimum,
    maximum or first of a window, by default of two along rows and columns.

    May be stopped and run again at any point: finished shards are kept, and readers see the new levels only
    when all are complete. Exits with 1 when the levels could not be completed, and with 2 for wrong usage.
    """
    from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels, readable_image
    from shardwright.rework.runtime.throttle import pause_files

    options = PyramidOptions(
        levels, parse_method(method), parse_factors(axes, factors), parse_size("--memory", memory)
    )
    store = beneath.user_path(store)
    pause = pause_files(readable_image(store).arrays[0].path)
    with (
        job.job_executor("pyramid", "finished shards are kept", workers, scheduler) as executor,
        job.job_progress("pyramid", "made", pause, idle=not no_idle) as on_progress,
    ):
        throttle = job.throttle_of(rate, executor.workers, no_idle=no_idle)
        report = add_levels(store, options, executor.run, throttle=throttle, on_progress=on_progress)
    job.finish(report.to_dict(), as_json, job.summary(report))
