"""``shardwright plan``: can this machine hold the cameras of a configuration, which floor binds, how long
does the disk last, what to change."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING

import typer

from shardwright.model.errors import ConfigError, ShardwrightError

from .interrupt import interrupt_on_signals

if TYPE_CHECKING:
    from rich.console import Console

    from shardwright.config.load import LoadedConfig
    from shardwright.config.plan import Plan
    from shardwright.diagnose.verdict import Measured, StreamVerdict, Verdict

DEFAULT_SECONDS = 20.0
_STYLES = {"yes": "green", "barely": "yellow", "no": "bold red", "unknown": "dim"}
_SAYS = {
    "yes": "can be held",
    "barely": "can be held, barely",
    "no": "cannot be held",
    "unknown": "not known whether it can be held",
}


def command(
    config: Path = typer.Argument(..., help="The YAML file.", metavar="CONFIG"),
    measured: bool = typer.Option(
        False, "--measure", help="Measure this machine, in output.root; without it there is only arithmetic."
    ),
    frames: Path | None = typer.Option(
        None, "--frames", help="With --measure: your own frames, a .npy file or a store.", metavar="FILE"
    ),
    seconds: float = typer.Option(
        DEFAULT_SECONDS,
        "--seconds",
        min=2,
        max=600,
        metavar="SECONDS",
        help="With --measure: about how long.",
    ),
    frame_rate: float | None = typer.Option(
        None,
        "--frame-rate",
        min=0.000001,
        metavar="HZ",
        help="Frames per second, in place of each stream's frame_rate_hz.",
    ),
    beside: bool = typer.Option(
        False,
        "--beside",
        help="Measure although this configuration's daemon is acquiring: it takes from the cameras.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
) -> None:
    """Say for each camera whether this machine can hold its rate, which floor binds, how many hours fit on
    the disk, and what to change.

    --measure runs each stage alone, then short real acquisitions in this process and through a daemon of its
    own, with your layout, codec and limits, in a hidden folder below output.root that is gone afterwards. Run
    it as the daemon's user, and with no camera acquiring. Exits with 1 when a camera cannot be held, 2 when
    the configuration cannot work.
    """
    from shardwright.config.load import load_config
    from shardwright.config.plan import make_plan
    from shardwright.diagnose.verdict import judge

    if frames is not None and not measured:
        raise typer.BadParameter("says nothing without --measure", param_hint="--frames")
    try:
        loaded = load_config(config)
        plan = make_plan(loaded, frame_rate_hz=frame_rate)
        if not plan.streams:
            raise ConfigError(
                f"{config}: there is no stream to plan",
                expected="streams with their arrays",
                hint="Describe the cameras under streams.",
            )
        found = _measure(loaded, plan, frames, seconds, beside=beside) if measured else None
        verdict = judge(plan, loaded.config.output.low_water, found)
    except ShardwrightError as error:
        if as_json:
            typer.echo(json.dumps({"ok": False, "error": error.to_dict()}))
        raise
    if as_json:
        typer.echo(
            json.dumps({"ok": verdict.held != "no", **verdict.to_dict(), "warnings": list(plan.warnings)})
        )
    else:
        _print_verdict(verdict, plan)
    if verdict.held == "no":
        raise typer.Exit(1)


def _measure(
    loaded: LoadedConfig, plan: Plan, frames: Path | None, seconds: float, *, beside: bool
) -> Measured:
    from shardwright.diagnose.measure import OwnFrames, measure

    from .progress import show_steps

    if not beside:
        _refuse_to_disturb(loaded)
    interrupt_on_signals()
    doing = "measuring"

    def now() -> str:
        return doing

    try:
        with show_steps("plan", "measuring", now) as tell:

            def step(what: str, done: int, total: int) -> None:
                nonlocal doing
                doing = what
                tell(done, total)

            return measure(loaded, plan, None if frames is None else OwnFrames(frames), seconds, step)
    except KeyboardInterrupt:
        typer.echo("shardwright: plan was interrupted; what it had written is deleted", err=True)
        raise typer.Exit(1) from None


def _refuse_to_disturb(loaded: LoadedConfig) -> None:
    """Raises ``ConfigError`` while the configuration's own daemon has acquisitions open."""
    from shardwright.daemon.control_client import ControlClient
    from shardwright.model.errors import SessionLostError

    path = loaded.config.control_socket_path
    if path is None:
        return
    try:
        with ControlClient(path) as daemon:
            names = [acquisition["name"] for acquisition in daemon.ask("status")["status"]["acquisitions"]]
    except SessionLostError:
        return  # none is running, or none that this user may ask
    if names:
        raise ConfigError(
            "cameras are acquiring; measuring would take from them what they need",
            got=", ".join(names[:5]),
            hint="Wait until they have ended, or say --beside.",
        )


def _print_verdict(verdict: Verdict, plan: Plan) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for stream in verdict.streams:
        _print_stream(console, stream, verdict)
    _print_whole(console, verdict, plan)


def _print_stream(console: Console, stream: StreamVerdict, verdict: Verdict) -> None:
    from rich.markup import escape
    from rich.table import Table

    rate = (
        "rate unknown"
        if stream.needed_bytes_per_s is None
        else (f"{_rate(stream.needed_bytes_per_s)} at {stream.frame_rate_hz:g} frames a second")
    )
    load = "" if stream.load is None else f", takes {stream.load:.0%} of what this machine can do"
    says = (
        "rates were not measured"
        if verdict.measured is None
        else f"[{_STYLES[stream.held]}]{_SAYS[stream.held]}[/]{load}"
    )
    console.print(f"[bold]stream {escape(stream.name)}[/]: {rate}; {says}", soft_wrap=True)
    if verdict.measured is not None and stream.predicted_bytes_per_s is not None:
        runs = verdict.measured.streams[stream.name].acquisitions[verdict.measured.daemon_transport]
        least, most = runs.spread_bytes_per_s
        console.print(
            f"predicted: {_rate(stream.predicted_bytes_per_s)}, {stream.predicted_frame_rate_hz:,.0f} "
            f"frames a second"
            f" ({least / 1e9:.2f} to {most / 1e9:.2f} GB/s in {len(runs.runs)} rounds)",
            soft_wrap=True,
        )
        table = Table("floor", "GB/s", "from", box=None, header_style="bold")
        for floor in stream.floors:
            mark = " binds" if floor.name == stream.binds else ""
            table.add_row(floor.name + mark, f"{floor.bytes_per_s / 1e9:.2f}", escape(floor.basis))
        if stream.binds == "pipeline":
            table.add_row(
                "pipeline binds",
                f"{stream.predicted_bytes_per_s / 1e9:.2f}",
                "stages that wait for each other, and not for a floor",
            )
        console.print(table)
    if stream.hours is not None:
        console.print(
            f"the disk lasts {_hours(stream.hours)} for this camera alone, "
            f"{_compressed(stream.ratio, verdict)}",
            soft_wrap=True,
        )
    for line in stream.advice:
        console.print(f"  - {escape(line)}", soft_wrap=True)


def _print_whole(console: Console, verdict: Verdict, plan: Plan) -> None:
    if len(verdict.streams) > 1 and verdict.load is not None:
        console.print(
            f"all cameras at once: [{_STYLES[verdict.held]}]{_SAYS[verdict.held]}[/], "
            f"{verdict.load:.0%} of what this machine can do"
        )
    if verdict.hours is not None:
        console.print(f"all cameras at once: the disk lasts {_hours(verdict.hours)}", soft_wrap=True)
    if verdict.measured is None:
        console.print("only arithmetic: --measure says what this machine can hold", soft_wrap=True)
    else:
        copy = verdict.measured.memory_copy.bytes_per_s
        console.print(
            f"measured in {verdict.measured.seconds:.0f} s on {verdict.measured.cores} cores; memory copies "
            f"{copy / 1e9:.1f} GB/s",
            soft_wrap=True,
        )
    for warning in plan.warnings:
        console.print(f"[yellow]warning:[/yellow] {warning}", soft_wrap=True)
    sys.stdout.flush()


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:,.1f} MB/s"


def _hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return f"{hours * 60:,.0f} minutes" if hours >= 1 / 30 else f"{hours * 3600:,.0f} seconds"


def _compressed(ratio: float, verdict: Verdict) -> str:
    return "without compression" if verdict.measured is None else f"at {ratio:.2f} : 1"
