"""``shardwright rechunk``: writes the image of a store as a new store with other chunks."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from shardwright.disk import beneath
from shardwright.model.local_path import is_address

from . import job_command as job
from .array_options import (
    CODEC_HELP,
    FACTORS_HELP,
    parse_chain,
    parse_codec,
    parse_factors,
    parse_method,
    parse_size,
    parse_sizes,
)

if TYPE_CHECKING:
    from shardwright.array.spec import Blosc, Gzip, Zstd
    from shardwright.rework.jobs.rechunk_store import RechunkOptions, RechunkPlan
    from shardwright.rework.runtime.job_report import BuildReport

Chunks = Annotated[
    str | None,
    typer.Option(
        "--chunks",
        metavar="SIZES",
        help="Elements of a new chunk: z=64,y=64,x=64. Other axes keep their size. Default: as now.",
    ),
]
Shards = Annotated[
    str | None,
    typer.Option(
        "--shards",
        metavar="SIZES",
        help="Elements of a new shard. Default: as now; an array without shards gets none.",
    ),
]
Codec = Annotated[
    str | None,
    typer.Option(
        "--codec",
        metavar="CODEC",
        help=f"{CODEC_HELP} Or any codec chain of a chunk, as JSON in the form of zarr.json; "
        "sharding_indexed in it makes shards within shards. Default: as now, if shardwright writes it.",
    ),
]
Index = Annotated[
    str | None,
    typer.Option("--index", metavar="PLACE", help="The shards' index: start or end. Default: as now."),
]
IndexCodecs = Annotated[
    str | None,
    typer.Option(
        "--index-codecs",
        metavar="JSON",
        help="Codec chain of the index, in the form of zarr.json. Default: bytes and crc32c.",
    ),
]
Lossy = Annotated[
    bool,
    typer.Option(
        "--lossy",
        help="Take codecs that round (numcodecs' bitround, fixedscaleoffset, quantize, astype). Without it "
        "they are refused where a value changes.",
    ),
]
NewLevels = Annotated[
    int | None,
    typer.Option(
        "--levels",
        min=0,
        max=32,
        metavar="COUNT",
        help="Make this many new levels of the image. Default: rechunk the levels that exist.",
    ),
]
NewMethod = Annotated[
    str, typer.Option("--method", metavar="METHOD", help="For new levels: mean, min, max or nearest.")
]
NewFactors = Annotated[
    str | None, typer.Option("--factors", metavar="FACTORS", help=f"For new levels: {FACTORS_HELP}")
]
NewAxes = Annotated[
    str | None,
    typer.Option("--axes", metavar="AXES", help="Axes with a factor of 2, in place of --factors: y,x."),
]


def command(
    store: Path = typer.Argument(
        ..., help="A finished OME-Zarr store, or an array; also of Zarr v2.", metavar="STORE"
    ),
    destination: str = typer.Argument(
        ..., help="The new store, a folder or s3://BUCKET/PREFIX. It must not exist.", metavar="DEST"
    ),
    *,
    chunks: Chunks = None,
    shards: Shards = None,
    codec: Codec = None,
    index: Index = None,
    index_codecs: IndexCodecs = None,
    lossy: Lossy = False,
    levels: NewLevels = None,
    method: NewMethod = "mean",
    factors: NewFactors = None,
    axes: NewAxes = None,
    memory: job.Memory = "512MiB",
    rate: job.Rate = None,
    workers: job.Workers = None,
    scheduler: job.Scheduler = None,
    as_json: job.AsJson = False,
    no_idle: job.NoIdle = False,
) -> None:
    """Write the image of a store, or an array, as a new store with other chunks, for instance cubes instead
    of single frames. Frame table and attributes are copied.

    May be stopped and run again at any point: finished shards are kept in a hidden folder beside DEST, which
    appears when it is complete. For S3 that folder lies beside STORE, and needs room for the whole new store
    until all of it is sent and verified; it reads the same environment variables as `shardwright compact
    --to`. Exits with 1 when the new store could not be completed, and with 2 for wrong usage.
    """
    from shardwright.rework.jobs.pyramid_levels import PyramidOptions
    from shardwright.rework.jobs.rechunk_store import KEEP_CODEC, RechunkOptions, plan_new_store

    memory_bytes = parse_size("--memory", memory)
    options = RechunkOptions(
        chunks={} if chunks is None else parse_sizes("--chunks", chunks),
        shards=None if shards is None else parse_sizes("--shards", shards),
        codec=KEEP_CODEC if codec is None else _codec(codec),
        index_location=_index_location(index),
        index_codecs=None if index_codecs is None else parse_chain("--index-codecs", index_codecs),
        pyramid=None
        if levels is None
        else PyramidOptions(levels, parse_method(method), parse_factors(axes, factors), memory_bytes),
        lossy=lossy,
        memory_bytes=memory_bytes,
    )
    plan = plan_new_store(beneath.user_path(store), options)
    report = _make(plan, destination, options, workers, scheduler, rate, no_idle=no_idle)
    job.finish(report.to_dict(), as_json, job.summary(report))


def _codec(text: str) -> Blosc | Zstd | Gzip | list[Any] | None:
    return parse_chain("--codec", text) if text.lstrip().startswith("[") else parse_codec(text)


def _index_location(text: str | None) -> Literal["start", "end"] | None:
    if text not in (None, "start", "end"):
        raise typer.BadParameter(f"expected start or end, got {text!r}", param_hint="--index")
    return cast("Literal['start', 'end'] | None", text)


def _make(
    plan: RechunkPlan,
    destination: str,
    options: RechunkOptions,
    workers: int | None,
    scheduler: str | None,
    rate: str | None,
    *,
    no_idle: bool,
) -> BuildReport:
    """Makes the new store; one for an address lies here until it is sent."""
    from shardwright.rework.jobs.rechunk_store import write_new_store
    from shardwright.rework.jobs.rechunk_transfer import RechunkTransfer
    from shardwright.rework.runtime.job_report import run_with_progress
    from shardwright.rework.runtime.throttle import pause_files, sending_pause_files

    array, transfer = plan.store.arrays[0].path, None
    with ExitStack() as opened:
        if is_address(destination):
            transfer = opened.enter_context(closing(RechunkTransfer(plan, destination, options)))
            kept, make = "finished shards and what was sent are kept", transfer.make
            pause = pause_files(array)
        else:
            new = beneath.user_path(destination, is_new=True)
            kept, make = "finished shards are kept", partial(write_new_store, plan, new, options)
            pause = pause_files(array, new)
        executor = opened.enter_context(job.job_executor("rechunk", kept, workers, scheduler))
        throttle = job.throttle_of(rate, executor.workers, no_idle=no_idle)
        with job.job_progress("rechunk", "made", pause, idle=not no_idle) as on_progress:
            report = make(executor.run, throttle=throttle, on_progress=on_progress)
        if transfer is not None and report.ok:
            sizes, pause = transfer.bytes_to_send(), sending_pause_files(array)
            with job.job_progress("rechunk", "sent", pause, idle=not no_idle) as on_progress:
                run = run_with_progress(executor, sizes, on_progress)
                transfer.send(run, report, throttle.of_one_worker(len(sizes)))
    return report
