"""``shardwright check``: reports whether a configuration will run on this machine and keep up, and what it
takes."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from shardwright.model.display_text import duration
from shardwright.model.display_text import format_bytes as size
from shardwright.model.errors import ConfigError, InterruptedJobError, error_from_dict

from .fitted_table import FittedTable, TableColumn, show
from .job_command import interrupt_on_signals
from .progress import show_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from shardwright.config.load import LoadedConfig
    from shardwright.config.model import Compaction
    from shardwright.config.plan import Plan, StreamPlan
    from shardwright.diagnose.check_report import CheckReport
    from shardwright.diagnose.start import Finding
    from shardwright.diagnose.verdict import CamerasVerdict, Measured, StreamVerdict

DEFAULT_SECONDS = 10.0
_ANSWERS = {
    "start": ("will run here", "will not run here"),
    "reload": ("a running daemon would accept it", "a running daemon would refuse it"),
    "notify": ("all receivers were told", "not all receivers could be told"),
}
_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}


AlsoMeasure = Annotated[
    bool,
    typer.Option("--measure", help="Also try, in output.root, whether this machine keeps up."),
]
SampleFile = Annotated[
    Path | None,
    typer.Option("--frames", metavar="FILE", help="With --measure: your own frames, a .npy file or a store."),
]
Seconds = Annotated[
    float,
    typer.Option(
        "--seconds",
        min=2,
        max=600,
        metavar="SECONDS",
        help="With --measure: how long the cameras send.",
    ),
]
Beside = Annotated[
    bool,
    typer.Option(
        "--beside",
        help="With --measure: measure although this configuration's daemon is acquiring. This slows the "
        "cameras.",
    ),
]
FrameRate = Annotated[
    float | None,
    typer.Option(
        "--frame-rate",
        min=0.000001,
        max=1e9,
        metavar="HZ",
        help="Frames per second, in place of each stream's frame_rate_hz.",
    ),
]
Reload = Annotated[
    bool,
    typer.Option("--reload", help="Only check whether a running daemon would accept CONFIG at a reload."),
]
Tell = Annotated[
    bool,
    typer.Option(
        "--notify", help="Only send a test to each receiver of notifications, also beside a daemon."
    ),
]


def command(
    config: Annotated[Path, typer.Argument(help="The YAML file.", metavar="CONFIG")],
    measured: AlsoMeasure = False,
    frames: SampleFile = None,
    seconds: Seconds = DEFAULT_SECONDS,
    beside: Beside = False,
    frame_rate: FrameRate = None,
    reload: Reload = False,
    tell: Tell = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Check whether this configuration will run here: try and undo each step by which `serve` starts, and
    look at the output folders. Then print what it takes: memory, disk, files an hour, and for how long the
    disk lasts.

    Run it as the daemon's user, while the daemon is not running. It leaves nothing behind.

    --measure also tries whether this machine keeps up: all cameras at once send as fast as they can, in
    proportion to their frame rates, through a daemon of its own, with your layout, codec and limits, into a
    hidden folder below output.root that is deleted afterwards.

    Exits with 0 when it will run (there may be warnings), with 1 when it will not, or when --measure finds a
    camera that is too fast, or --notify a receiver that cannot be told, and with 2 when the command line is
    wrong.
    """
    from shardwright.config.load import load_config
    from shardwright.diagnose.check_report import CheckReport, check_notify, check_reload, check_start
    from shardwright.diagnose.start import refusal

    if not measured and (frames is not None or beside):
        option = "--beside" if frames is None else "--frames"
        raise typer.BadParameter("has no effect without --measure", param_hint=option)
    alone = [
        f"--{name}" for name, given in (("measure", measured), ("reload", reload), ("notify", tell)) if given
    ]
    if len(alone) > 1:
        raise typer.BadParameter(f"cannot be combined with {alone[0]}", param_hint=alone[1])
    try:
        loaded = load_config(config)
    except ConfigError as error:
        errors = (error, *map(error_from_dict, error.others))
        report = CheckReport(tuple(refusal("configuration", each) for each in errors))
    else:
        if tell:
            report = check_notify(loaded)
        elif reload:
            report = check_reload(loaded, frame_rate)
        else:
            measure = _measuring(frames, seconds) if measured else None
            interrupt_on_signals()
            try:
                report = check_start(loaded, frame_rate, measure, beside=beside)
            except KeyboardInterrupt:
                raise InterruptedJobError("check was interrupted; what it had written is deleted") from None
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        _print_report(config, report, "notify" if tell else "reload" if reload else "start")
    if not report.ok:
        raise typer.Exit(1)


def _measuring(frames: Path | None, seconds: float) -> Callable[[LoadedConfig, Plan], Measured]:
    """``measure`` with these options, showing its progress."""
    from shardwright.diagnose.sample import OwnFrames
    from shardwright.diagnose.trial import measure

    def run(loaded: LoadedConfig, plan: Plan) -> Measured:
        doing = "measuring"
        own_frames = None if frames is None else OwnFrames(frames)
        with show_steps("check", "measuring", lambda: doing) as show:

            def step(what: str, done: int, total: int) -> None:
                nonlocal doing
                doing = what
                show(done, total)

            return measure(loaded, plan, own_frames, seconds, step)

    return run


def _print_report(config: Path, report: CheckReport, asked: str) -> None:
    show(_findings(report.findings))
    if report.plan is not None:
        show("", *_plan_view(report.plan))
    if report.verdict is not None:
        show(*_verdict_view(report.verdict))
    answer, style = _answer(report, asked)
    bad = dict.fromkeys(finding.check for finding in report.findings if finding.result == "bad")
    warnings = sum(finding.result == "warn" for finding in report.findings)
    warned = f"; warnings: {warnings}" if warnings else ""
    reasons = f": {', '.join(bad)}" if bad else ""
    show("", Text.assemble((answer, style), f"{reasons}{warned}  {config}"))


def _answer(report: CheckReport, asked: str) -> tuple[str, str]:
    """The answer in words, and its colour."""
    bad = [finding.check for finding in report.findings if finding.result == "bad"]
    if not bad:
        return _ANSWERS[asked][0], _STYLES["ok"]
    if all(check.endswith(": rate") for check in bad):
        answer = "will not keep up here"
    elif all(check == "measurement" or check.endswith(": rate") for check in bad):
        answer = "could not be measured"
    else:
        answer = _ANSWERS[asked][1]
    return answer, _STYLES["bad"]


def _findings(findings: tuple[Finding, ...]) -> RenderableType:
    """One finding below the other, each with its advice, unless the next one has the same."""
    table = FittedTable(TableColumn(), TableColumn(), TableColumn(wraps=True))
    for finding, after in zip_longest(findings, findings[1:]):
        again = after is not None and (finding.check, finding.advice) == (after.check, after.advice)
        found, advice = (" ".join(text.split()) for text in (finding.found, finding.advice or ""))
        advice = "" if again else advice
        what = Text.assemble(found, (f"\n{advice}" if advice else "", "italic"))
        table.add_row(Text(finding.result, _STYLES[finding.result]), finding.check, what)
    return table


def _plan_view(plan: Plan) -> Iterator[RenderableType]:
    for stream in plan.streams:
        yield from _stream_view(stream)
    yield (
        f"daemon: {plan.threads} worker threads, {len(plan.streams)} configured "
        f"stream{'' if len(plan.streams) == 1 else 's'}, at most {plan.descriptors:,} open files of "
        f"{max(0, plan.descriptors_for_acquisitions):,}"
    )
    yield (
        f"memory: {size(plan.memory_peak_bytes)} at most, of a budget of "
        f"{size(plan.memory_budget_bytes)};"
        f" this machine has {size(plan.machine_memory_bytes)}; page cache of open shards: "
        f"{size(plan.mapped_bytes)}"
    )
    yield (
        f"disk:   {size(plan.disk_reserved_bytes)} taken before the first frame in "
        f"{plan.output_root}; {size(plan.disk_free_bytes)} are free"
    )
    yield f"compaction: {compaction_text(plan.compaction)}"


def compaction_text(compaction: Compaction) -> str:
    """Returns a sentence about the daemon's own compaction."""
    if not compaction.enabled:
        return "off; run `shardwright compact` by hand"
    wanted = "as each array says" if compaction.recompress == "codec" else f"with {compaction.recompress}"
    recompress = f", recompressed {wanted}" if compaction.recompress else ""
    rate = f", at most {size(compaction.rate)}/s" if compaction.rate else ""
    parity = f", with parity of {compaction.parity}%" if compaction.parity else ""
    scrub = "" if compaction.scrub == "none" else f"; each is verified every 30 days ({compaction.scrub})"
    workers = f"{compaction.workers} process{'' if compaction.workers == 1 else 'es'}"
    return (
        f"each store, {compaction.after_s:g} s after it was sealed, in {compaction.order} "
        f"order{recompress}{parity}; {workers} at idle priority{rate};"
        f" not while a ring is more than {compaction.pause_above:.0%} full{scrub}"
    )


def _stream_view(stream: StreamPlan) -> Iterator[RenderableType]:
    table = FittedTable(TableColumn(), TableColumn(), TableColumn(wraps=True))
    for row in stream_rows(stream):
        table.add_row(*row)
    yield Text(f"stream {stream.name}", "bold")
    yield table
    yield ""


def stream_rows(stream: StreamPlan) -> list[tuple[str, str, str]]:
    """Rows (label, value, meaning) of the table for one stream: of its largest image, if there are
    several."""
    limits, spec = stream.limits, stream.spec
    most_open = limits.open_shard_rows * limits.shard_files_per_shard_row
    file = "chunk" if spec.actual_index_location == "none" else "shard"
    codec = "none" if spec.codec is None else spec.codec.name
    chunks = "1 chunk" if limits.chunks_per_shard == 1 else f"{limits.chunks_per_shard:,} chunks"
    rows = [
        *_image_rows(stream),
        *_array_rows(stream),
        ("frame", size(stream.frame_bytes), " x ".join(map(str, spec.given_shape))),
        *_level_rows(stream),
        (
            "inner chunk",
            size(limits.chunk_bytes),
            " x ".join(str(d.chunk_size) for d in spec.stored_dimensions),
        ),
        ("codec", codec, _ON_GPUS[codec]),
        ("slot", size(limits.slot_bytes), "longest encoded chunk, whole pages"),
        ("slab", size(limits.slab_bytes), f"{limits.frames_per_slab} frames, compressed as one"),
        ("ring", size(limits.ring_bytes), f"{limits.ring_frames:,} frames{_bridged(stream)}"),
        (
            f"open {file}s",
            f"{stream.open_shard_files:,}",
            f"at most {most_open:,} when frames come far out of order",
        ),
        (
            f"{file} file",
            size(limits.shard_file_bytes),
            f"{chunks}; the most it can take, before gaps are given back",
        ),
        (
            "peak memory",
            size(limits.memory_bytes),
            f"ring, tables, buffers of {limits.threads} workers, interpreter",
        ),
        ("page cache", size(limits.mapped_bytes), f"open {file}s, on top, where they are mapped (output.io)"),
        ("disk ahead", size(limits.disk_reserved_bytes), f"{file}s, preallocated"),
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
        ("raw data", f"{(stream.raw_bytes_per_hour or 0) / 1e12:,.2f} TB/hour", _before_compression(stream)),
        (f"{file} files", f"{stream.shard_files_per_hour or 0:,.0f} per hour", ""),
    ]


MOST_NAMES_PRINTED = 4


def _image_rows(stream: StreamPlan) -> list[tuple[str, str, str]]:
    """The row of an acquisition of several images."""
    spec = stream.acquisition
    if spec.is_single:
        return []
    if spec.plate is not None:
        rows, columns, fields = len(spec.plate.rows), len(spec.plate.columns), len(spec.plate.field_names)
        found = (
            f"plate {spec.plate.name}: {rows} x {columns} wells, {fields} field{'s' * (fields > 1)} in each"
        )
    else:
        more = ", ..." if len(spec.names) > MOST_NAMES_PRINTED else ""
        found = ", ".join(spec.names[:MOST_NAMES_PRINTED]) + more
    if (kinds := len(spec.distinct_arrays)) > 1:
        found += f"; {kinds} arrays, that with the largest frames is shown below"
    changes = f"; order {', '.join(spec.order)}" if spec.order else "; they may change at any frame"
    return [("images", f"{len(spec.names):,}", found + changes)]


def _array_rows(stream: StreamPlan) -> list[tuple[str, str, str]]:
    """A row for each array that the images have."""
    several = stream.acquisition.distinct_arrays
    rows = []
    for spec in several[:MOST_NAMES_PRINTED]:
        axes = ", ".join(f"{d.name} {d.count or 'unlimited'}" for d in spec.stored_dimensions)
        names = zip(stream.acquisition.names, stream.acquisition.arrays, strict=True)
        mine = [name for name, array in names if array is spec]
        more = ", ..." if len(mine) > MOST_NAMES_PRINTED else ""
        images = f" ({', '.join(mine[:MOST_NAMES_PRINTED])}{more})" if len(several) > 1 else ""
        rows.append(("array", spec.dtype, axes + images))
    return rows


def _level_rows(stream: StreamPlan) -> list[tuple[str, str, str]]:
    levels, shapes = stream.spec.levels, stream.spec.level_shapes
    if levels is None:
        return []
    names = [d.name for d in stream.spec.dimensions]
    counts = dict(zip(names, shapes[-1].counts, strict=True))
    smallest = ", ".join(f"{d.name} {counts[d.name] or 'unlimited'}" for d in stream.spec.stored_dimensions)
    factors = ", ".join(f"{name} by {factor}" for name, factor in levels.factors.items())
    return [("levels", str(levels.count), f"{levels.method} along {factors}; smallest: {smallest}")]


def _before_compression(stream: StreamPlan) -> str:
    if stream.disk_rate_bytes_per_s == stream.data_rate_bytes_per_s:
        return "before compression"
    return f"before compression; {(stream.disk_rate_bytes_per_s or 0) * 3600 / 1e12:,.2f} TB/hour with levels"


_PROMISES = {
    "stored": "a frame survives the daemon within {store_within_ms} ms, and a power cut once synced, every "
    "{sync_interval_ms} ms",
    "durable": "a frame stays in the ring until it is synced, every {sync_interval_ms} ms",
}
_ON_GPUS = {
    "blosc": "a GPU's nvCOMP does not decode it (zstd and gzip, it does)",
    "zstd": "a GPU's nvCOMP decodes it too",
    "gzip": "a GPU's nvCOMP decodes it too",
    "none": "chunks are stored as they are",
}
_OVERLOAD = {
    "block": "the camera waits",
    "degrade": "chunks are encoded {steps} while the ring fills; once it is full the camera waits",
    "drop": "the newest frames are dropped, counted and recorded",
    "fail": "the acquisition ends",
}
_ON_FULL = {
    "block": "the camera waits for room",
    "spill": "continues in output.spill_root",
    "fail": "the acquisition ends",
}


def _safety_rows(stream: StreamPlan) -> list[tuple[str, str, str]]:
    rules, safety = stream.reliability, stream.safety
    shared = f" and {safety.shared_rows} in shared ones" if safety.shared_rows else ""
    journals = f"{safety.journals} journals of {size(safety.journal_bytes)}{shared}"
    parts = f"{journals}, ballast {size(safety.ballast_bytes)}"
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
    """The steps by which the policy ``degrade`` encodes this stream's chunks."""
    from shardwright.codecs.degrade import DegradeLevel
    from shardwright.config.durability import longest_degrade_ladder

    ladder = longest_degrade_ladder(stream.acquisition)
    steps = [level.label for level in ladder if level is not DegradeLevel.CONFIGURED]
    return ", then ".join(steps) or "no faster (they are not compressed anyway)"


def _bridged(stream: StreamPlan) -> str:
    return "" if stream.ring_seconds is None else f", {stream.ring_seconds:.2f} s"


def _verdict_view(verdict: CamerasVerdict) -> Iterator[RenderableType]:
    """Yields what each camera reached, and how long the disk lasts."""
    for stream in verdict.streams:
        yield from _rates(stream, verdict.measured)
    if len(verdict.streams) > 1 and verdict.load is not None:
        yield f"all cameras at once: {verdict.load:.0%} of what this machine can do"
    if len(verdict.streams) > 1 and verdict.hours is not None:
        yield f"all cameras at once: the disk lasts {duration(3600 * verdict.hours)}"
    if verdict.measured is None:
        yield "nothing was measured: --measure finds out whether this machine keeps up"


def _rates(stream: StreamVerdict, measured: Measured | None) -> Iterator[RenderableType]:
    name = f"stream {stream.name}"
    if measured is not None and stream.sustained_bytes_per_s is not None:
        needed = "" if stream.needed_bytes_per_s is None else f"; it needs {_rate(stream.needed_bytes_per_s)}"
        yield (
            f"{name}: reached {_rate(stream.sustained_bytes_per_s)}, {stream.sustained_frame_rate_hz:,.1f} "
            f"frames a second of {measured.streams[stream.name].sample}{needed}"
        )
    if stream.hours is not None:
        ratio = "without compression" if measured is None else f"at {stream.ratio:.2f} : 1"
        yield f"{name}: the disk lasts {duration(3600 * stream.hours)} for this camera alone, {ratio}"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:,.1f} MB/s"
