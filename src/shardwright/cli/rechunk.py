"""``shardwright rechunk``: the image of a store as a new store with other chunks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .array_options import CODEC_HELP, parse_axes, parse_codec, parse_method, parse_size, parse_sizes
from .compact_to import counted
from .interrupt import told_of_interrupts
from .making import finish, making, throttle_of
from .progress import show_progress
from .worker_options import AsJson, Memory, NoIdle, Rate, Scheduler, Workers  # noqa: TC001  (as above)

if TYPE_CHECKING:
    from shardwright.repack.jobs.new_arrays import BuildReport
    from shardwright.repack.jobs.rechunk_store import RechunkOptions, RechunkPlan


def command(
    store: Path = typer.Argument(..., help="A finished OME-Zarr store.", metavar="STORE", exists=True),
    destination: str = typer.Argument(
        ..., help="The new store, a folder or s3://BUCKET/PREFIX. It must not exist.", metavar="DEST"
    ),
    chunks: str = typer.Option(
        ...,
        "--chunks",
        metavar="SIZES",
        help="Elements of a new chunk: z=64,y=64,x=64. Other axes keep theirs.",
    ),
    shards: str | None = typer.Option(
        None,
        "--shards",
        metavar="SIZES",
        help="Elements of a new shard. As long as they are now unless given.",
    ),
    codec: str | None = typer.Option(
        None, "--codec", metavar="CODEC", help=f"{CODEC_HELP} The same as now unless given."
    ),
    levels: int | None = typer.Option(
        None,
        "--levels",
        min=0,
        max=32,
        metavar="COUNT",
        help="Make so many new levels of the image. Those that are there are taken over unless given.",
    ),
    method: str = typer.Option(
        "mean", "--method", metavar="METHOD", help="For new levels: mean, min, max or nearest."
    ),
    axes: str = typer.Option(
        "y,x",
        "--axes",
        metavar="AXES",
        help="For new levels: axes along which each has half the elements of the one below.",
    ),
    memory: Memory = "512MiB",
    rate: Rate = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
    no_idle: NoIdle = False,
) -> None:
    """Write the image of a store as a new store with other chunks: for instance from one frame a chunk to
    cubes. Frame table and attributes go along.

    May be stopped and run again at any point: finished shards are kept in a hidden folder beside DEST, which
    appears when it is complete. For S3 that folder lies beside STORE, and needs room for the whole new store
    until all of it is sent and verified; the environment is that of `shardwright compact --to`. Exits with 1
    when something could not be made, and 2 for usage.
    """
    from shardwright.repack.jobs.pyramid_levels import PyramidOptions
    from shardwright.repack.jobs.rechunk_store import (
        KEEP_CODEC,
        RechunkOptions,
        plan_new_store,
        write_new_store,
    )

    memory_bytes = parse_size("--memory", memory)
    options = RechunkOptions(
        chunks=parse_sizes("--chunks", chunks),
        shards=None if shards is None else parse_sizes("--shards", shards),
        codec=KEEP_CODEC if codec is None else parse_codec(codec),
        pyramid=None
        if levels is None
        else PyramidOptions(levels, parse_method(method), parse_axes(axes), memory_bytes),
        memory_bytes=memory_bytes,
    )
    plan = plan_new_store(store.absolute(), options)
    if "://" in destination:
        report = _make_and_send(plan, destination, options, workers, scheduler, rate, no_idle=no_idle)
    else:
        new, image = Path(destination).absolute(), plan.store.arrays[0].path
        with making("rechunk", workers, scheduler, image, new) as (executor, on_progress):
            throttle = throttle_of(rate, executor.workers, no_idle=no_idle, image=image, folders=[new])
            report = write_new_store(
                plan, new, options, executor.run, throttle=throttle, on_progress=on_progress
            )
    finish(report, as_json)


def _make_and_send(
    plan: RechunkPlan,
    url: str,
    options: RechunkOptions,
    workers: int | None,
    scheduler: str | None,
    rate: str | None,
    *,
    no_idle: bool,
) -> BuildReport:
    from shardwright.repack.jobs.new_arrays import of_one_worker
    from shardwright.repack.jobs.rechunk_transfer import RechunkTo
    from shardwright.repack.runtime.executors import open_executor
    from shardwright.repack.runtime.pause import pause_files, pause_note
    from shardwright.repack.runtime.throttle import Throttle

    image = plan.store.arrays[0].path
    heeded = pause_files(image)
    with closing(RechunkTo(plan, url, options)) as job:
        with making("rechunk", workers, scheduler, image) as (executor, on_progress):
            throttle = throttle_of(rate, executor.workers, no_idle=no_idle, image=image)
            report = job.make(executor.run, throttle=throttle, on_progress=on_progress)
        if report.ok:
            sizes = job.bytes_to_send()
            with (
                told_of_interrupts("rechunk", "what was made and sent is kept"),
                closing(open_executor(workers=workers, scheduler=scheduler)) as executor,
                show_progress("rechunk", "sent", sum(sizes.values()), lambda: pause_note(heeded)) as on_bytes,
            ):
                throttle = throttle_of(rate, executor.workers, no_idle=no_idle, image=image)
                job.send(
                    counted(executor, sizes, on_bytes),
                    report,
                    Throttle.from_dict(of_one_worker(throttle, max(1, len(sizes)))),
                )
    return report
