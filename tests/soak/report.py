"""What a soak came to, as tables and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table

from .balance import Balance
from .faults import FAULTS
from .settings import FRAME_BYTES

if TYPE_CHECKING:
    from .settings import Settings
    from .soak import Result

_UNITS = {
    "memory_bytes": (1 << 20, "memory, MiB"),
    "descriptors": (1, "descriptors"),
    "threads": (1, "threads"),
}


def to_dict(result: Result, settings: Settings) -> dict[str, Any]:
    return {
        "ok": not result.violations,
        "interrupted": result.interrupted,
        "seconds": round(result.seconds, 1),
        "seed": settings.seed,
        "frames_of_an_acquisition": settings.frames,
        "sustainable_frames_per_second": round(result.rate_hz, 1),
        "sent_frames_per_second": round(result.sent_hz, 1),
        "balance": {
            name: {**asdict(balance), "difference": balance.difference}
            for name, balance in result.balances.items()
        },
        "faults": [
            {"at_s": round(at_s, 1), "name": name, "done": done} for at_s, name, done in result.faults_done
        ],
        "flat": [{**asdict(level), "flat": level.flat} for level in result.levels],
        "processes": {
            name: {"lives": lives, "peak_bytes": result.peaks.get(name)}
            for name, lives in result.lives.items()
        },
        "daemon_plan_bytes": result.plan_bytes,
        "opens_refused": result.refusals,
        "violations": result.violations,
    }


def print_tables(result: Result, console: Console) -> None:
    console.print(Group(_balance(result), _faults(result), _levels(result)))
    megabytes = result.sent_hz * FRAME_BYTES / 1e6
    console.print(
        f"{result.seconds / 60:.1f} minutes, {result.sent_hz:.0f} frames/s ({megabytes:.0f} MB/s) sent of "
        f"{result.rate_hz:.0f} that can be kept up; "
        f"the daemon's peak is {result.peaks.get('daemon', 0) >> 20} of the {result.plan_bytes >> 20} MiB "
        f"it planned for"
    )
    for fault in result.violations:
        console.print(f"VIOLATION: {fault}", style="bold red", markup=False, highlight=False)
    if not result.violations:
        console.print(
            f"Every frame is accounted for, {_flatness(result)}."
            + (" (Interrupted.)" if result.interrupted else "")
        )


def _flatness(result: Result) -> str:
    return (
        "memory and descriptors are flat"
        if result.levels
        else "whether memory is flat was NOT JUDGED: a soak of two minutes or more judges it"
    )


def _balance(result: Result) -> Table:
    table = Table("frames", *result.balances, title="balance", title_justify="left")
    for name in [field.name for field in fields(Balance)] + ["difference"]:
        table.add_row(name, *(f"{getattr(balance, name):,}" for balance in result.balances.values()))
    return table


def _faults(result: Result) -> Table:
    table = Table("fault", "times", "what", title="faults", title_justify="left")
    times = Counter(name for _, name, _ in result.faults_done)
    for name, fault in FAULTS.items():
        table.add_row(name, f"{times[name]:,}", fault.what)
    return table


def _levels(result: Result) -> Table:
    table = Table("process", "quantity", "compared", "early", "late", "", title="flat", title_justify="left")
    for level in result.levels:
        unit, what = _UNITS[level.quantity]
        table.add_row(
            level.process,
            what,
            level.scope,
            f"{level.early / unit:,.1f}",
            f"{level.late / unit:,.1f}",
            "flat" if level.flat else "GROWS",
        )
    return table
