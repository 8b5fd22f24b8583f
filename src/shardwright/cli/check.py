"""``shardwright check``: the plan of a configuration, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING

import typer

from shardwright.model.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from shardwright.config.model import Compaction
    from shardwright.config.plan import Plan, StreamPlan


def command(
    config: Path = typer.Argument(..., help="The YAML file.", metavar="CONFIG"),
    frame_rate: float | None = typer.Option(
        None,
        "--frame-rate",
        min=0.000001,
        max=1e9,
        metavar="HZ",
        help="Frames per second, in place of each stream's frame_rate_hz.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the plan as JSON."),
) -> None:
    """Print what a configuration will need: slots, slabs, ring, memory, disk, files per hour, and what its
    promises cost.

    Exits with 2 and one line that names the field and its line when something is wrong.
    """
    from shardwright.config.load import load_config
    from shardwright.config.plan import make_plan

    try:
        plan = make_plan(load_config(config), frame_rate_hz=frame_rate)
    except ConfigError as error:
        if as_json:
            typer.echo(json.dumps({"ok": False, "error": error.to_dict()}))
        raise
    if as_json:
        typer.echo(json.dumps({"ok": True, **plan.to_dict()}))
    else:
        _print_plan(config, plan)


def _print_plan(config: Path, plan: Plan) -> None:
    from rich.console import Console

    from shardwright.config.quantities import format_bytes

    console = Console(highlight=False)
    for stream in plan.streams:
        _print_stream(console, stream)
    console.print(
        f"daemon: {plan.threads} worker threads, {len(plan.streams)} configured "
        f"stream{'' if len(plan.streams) == 1 else 's'}"
    )
    console.print(
        f"memory: {format_bytes(plan.memory_peak_bytes)} at most, of a budget of "
        f"{format_bytes(plan.memory_budget_bytes)};"
        f" this machine has {format_bytes(plan.machine_memory_bytes)}; page cache of open shards: "
        f"{format_bytes(plan.mapped_bytes)}",
        soft_wrap=True,
    )
    console.print(
        f"disk:   {format_bytes(plan.disk_reserved_bytes)} taken before the first frame in "
        f"{plan.output_root};"
        f" {format_bytes(plan.disk_free_bytes)} are free",
        soft_wrap=True,
    )
    console.print(f"compaction: {compaction_text(plan.compaction)}", soft_wrap=True)
    warnings = [
        *plan.warnings,
        *(f"{stream.name}: {warning}" for stream in plan.streams for warning in stream.warnings),
    ]
    for warning in warnings:
        console.print(f"[yellow]warning:[/yellow] {warning}", soft_wrap=True)
    console.print(f"[green]ok[/green] {config}", soft_wrap=True)


def compaction_text(compaction: Compaction) -> str:
    """What the daemon repacks by itself, for people."""
    from shardwright.config.quantities import format_bytes

    if not compaction.enabled:
        return "off; `shardwright compact` does it by hand"
    wanted = "as each array says" if compaction.recompress == "codec" else f"with {compaction.recompress}"
    recompress = f", recompressed {wanted}" if compaction.recompress else ""
    rate = f", at most {format_bytes(compaction.rate)}/s" if compaction.rate else ""
    workers = f"{compaction.workers} process{'' if compaction.workers == 1 else 'es'}"
    return (
        f"each store, {compaction.after_s:g} s after it was sealed, in {compaction.order} "
        f"order{recompress}; {workers} at idle priority{rate};"
        f" not while a ring is more than {compaction.pause_above:.0%} full"
    )


def _print_stream(console: Console, stream: StreamPlan) -> None:
    from rich.table import Table

    table = Table(title=f"stream {stream.name}", title_justify="left", show_header=False)
    for label, value, meaning in stream_rows(stream):
        table.add_row(label, value, meaning)
    console.print(table)


def stream_rows(stream: StreamPlan) -> list[tuple[str, str, str]]:
    """(what, how much, what that means) of one stream."""
    from shardwright.config.quantities import format_bytes as size

    limits, spec = stream.limits, stream.spec
    most_open = limits.open_groups * limits.shard_files_per_group
    axes = ", ".join(f"{d.name} {d.count or 'unlimited'}" for d in spec.stored_dimensions)
    rows = [
        ("array", spec.dtype, axes),
        ("frame", size(limits.frame_bytes), f"{spec.frame_shape[0]} x {spec.frame_shape[1]}"),
        (
            "inner chunk",
            size(limits.chunk_bytes),
            " x ".join(str(d.chunk_size) for d in spec.stored_dimensions),
        ),
        ("slot", size(limits.slot_bytes), "longest encoded chunk, whole pages"),
        ("slab", size(limits.slab_bytes), f"{limits.frames_per_slab} frames, compressed as one"),
        ("ring", size(limits.ring_bytes), f"{limits.ring_frames:,} frames{_bridged(stream)}"),
        (
            "open shards",
            f"{stream.open_shard_files:,}",
            f"at most {most_open:,} when frames come far out of order",
        ),
        (
            "shard file",
            size(limits.shard_file_bytes),
            f"{limits.chunks_per_shard:,} chunks; the most it can take, before gaps are given back",
        ),
        (
            "peak memory",
            size(limits.memory_bytes),
            f"ring, tables, buffers of {limits.threads} workers, interpreter",
        ),
        ("page cache", size(limits.mapped_bytes), "open shards, on top, where they are mapped (output.io)"),
        ("disk ahead", size(limits.disk_reserved_bytes), "shards, preallocated"),
        *_safety_rows(stream),
    ]
    if stream.frame_rate_hz is None:
        return [
            *rows,
            ("frame rate", "unknown", "give --frame-rate or frame_rate_hz for rates and files per hour"),
        ]
    return [
        *rows,
        (
            "data rate",
            f"{(stream.data_rate_bytes_per_s or 0) / 1e6:,.1f} MB/s",
            f"at {stream.frame_rate_hz:g} frames a second",
        ),
        ("raw data", f"{(stream.raw_bytes_per_hour or 0) / 1e12:,.2f} TB/hour", "before compression"),
        ("shard files", f"{stream.shard_files_per_hour or 0:,.0f} per hour", ""),
    ]


_PROMISES = {
    "stored": "a frame survives the daemon within {store_within_ms} ms, and a power cut once synced, every "
    "{sync_interval_ms} ms",
    "durable": "a frame stays in the ring until it is synced, every {sync_interval_ms} ms",
}
_OVERLOAD = {
    "block": "the camera waits",
    "degrade": "chunks are encoded {steps} while the ring fills; once it is full the camera waits",
    "drop": "the newest frames are dropped, counted and recorded",
    "fail": "the acquisition ends",
}
_ON_FULL = {
    "block": "the camera waits for room",
    "spill": "goes on in output.spill_root",
    "fail": "the acquisition ends",
}


def _safety_rows(stream: StreamPlan) -> list[tuple[str, str, str]]:
    from shardwright.config.quantities import format_bytes as size

    rules, safety = stream.reliability, stream.safety
    parts = (
        f"{safety.journals} journals of {size(safety.journal_bytes)}, ballast {size(safety.ballast_bytes)}"
    )
    return [
        ("durability", rules.durability, _PROMISES[rules.durability].format(**rules.model_dump())),
        (
            "crash safety",
            size(safety.disk_bytes),
            f"of disk: staging area {size(safety.staging_bytes)}, {parts}",
        ),
        ("overload", rules.overload, _OVERLOAD[rules.overload].format(steps=_degrade_steps(stream))),
        ("full disk", rules.on_full, _ON_FULL[rules.on_full]),
    ]


def _degrade_steps(stream: StreamPlan) -> str:
    """What the policy degrade does to this stream's chunks."""
    from shardwright.codecs.degrade import degrade_ladder
    from shardwright.codecs.parameters import CodecParameters
    from shardwright.model.degrade_level import DegradeLevel

    ladder = degrade_ladder(CodecParameters.of(stream.spec, stream.limits.chunk_bytes))
    steps = [level.label for level in ladder if level is not DegradeLevel.CONFIGURED]
    return ", then ".join(steps) or "no faster (they are not compressed anyway)"


def _bridged(stream: StreamPlan) -> str:
    return "" if stream.ring_seconds is None else f", {stream.ring_seconds:.2f} s"
