"""What a daemon says about itself (daemon/snapshot.py), laid out for a terminal. Numbers never wrap; what
clients brought is shown as plain text."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from shardwright.config.quantities import format_bytes
from shardwright.model.disk_full import DISK_FULL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from shardwright.model.errors import ShardwrightError

    Facts = Mapping[str, Any]

WIDTH_OF_FILES = 200  # where output goes to a file or another program, lines are as long as they need to be
STALL_WARNING_S = 2.0
_STREAM_TROUBLE = ("frames_skipped", "frames_late", "frames_duplicate", "frames_dropped", "frames_lost")
_STREAM_DEGRADED = ("frames_faster", "frames_uncompressed", "frame_json_dropped")


def console() -> Console:
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, markup=False, emoji=False, width=None if known else WIDTH_OF_FILES)


def status_view(status: Facts) -> RenderableType:
    """The whole status: daemon, acquisitions, streams."""
    parts: list[RenderableType] = [_daemon(status)]
    if status["acquisitions"]:
        parts += [Text(), acquisitions_view(status)]
    else:
        parts += [Text(), Text("no acquisition is open")]
    used = {name: stream for name, stream in status["streams"].items() if stream["acquisitions"]}
    if used:
        parts += [Text(), _streams(used)]
    return Group(*parts)


def acquisitions_view(status: Facts) -> RenderableType:
    """One line for each open acquisition. If one is overloaded, a column shows at which level chunks are
    encoded."""
    degraded = any(one.get("degrade_level", "configured") != "configured" for one in status["acquisitions"])
    level = ("chunks",) if degraded else ()
    table = _table(
        "acquisition",
        "stream",
        "state",
        "received",
        "of",
        "stored",
        "durable",
        "missing",
        "rate",
        "data",
        "ring",
        *level,
        "for",
        "client",
    )
    for one in status["acquisitions"]:
        client = one["client"]
        table.add_row(
            plain(one["name"]),
            plain(one["stream"]),
            Text(_words(one["state"]), style="red" if one["state"] == DISK_FULL else ""),
            f"{one['frames_received']:,}",
            "-" if one["frames_expected"] is None else f"{one['frames_expected']:,}",
            f"{one['frames_stored']:,}",
            f"{one['frames_durable']:,}",
            _trouble(one["frames_missing"]),
            f"{one['rate_hz']:,.1f} Hz",
            f"{format_bytes(one['bytes_per_s'])}/s",
            f"{one['ring_fill']:.0%}",
            *([_level(one)] if degraded else []),
            duration(one["since_s"]),
            plain("none" if client is None else f"{client['host']} {client['pid']}"),
        )
    return table


def gone_view(error: ShardwrightError) -> RenderableType:
    """Shown in place of a status while no daemon answers."""
    return Text(plain(str(error)), style="red")


def duration(seconds: float) -> str:
    """``48 s``, ``5 min``, ``3 h 20 min``, ``12 d 4 h``."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 1:
        return f"{seconds:.0f} s" if seconds < 59.5 else "1 min"
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def plain(text: object) -> str:
    """The text without control characters: names of hosts come from clients."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def _daemon(status: Facts) -> RenderableType:
    memory, compaction, events = status["memory"], status["compaction"], status["events"]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(
        "daemon",
        f"{plain(status['software'])} on {plain(status['host'])}, process "
        f"{status['pid']}, for {duration(status['uptime_s'])}",
    )
    grid.add_row("state", _state(status))
    if waiting := sum(one["state"] == DISK_FULL for one in status["acquisitions"]):
        who = "1 acquisition waits" if waiting == 1 else f"{waiting} acquisitions wait"
        grid.add_row("disk full", Text(f"{who} for room, and the camera with it: free some space", "red"))
    if status["stall_s"] >= STALL_WARNING_S:
        grid.add_row(
            "stalled",
            Text(f"for {duration(status['stall_s'])}: a disk answers slowly or not at all", style="red"),
        )
    grid.add_row("configuration", plain(status["config"]))
    grid.add_row("listens", ", ".join(map(plain, status["endpoints"])) or "not yet")
    grid.add_row(
        "clients", f"{status['clients']} connected, {_trouble(status['foreign_messages'])} messages refused"
    )
    grid.add_row("memory", f"{format_bytes(memory['used_bytes'])} of {format_bytes(memory['budget_bytes'])}")
    for disk in status["disks"]:
        grid.add_row("disk" if disk["role"] == "root" else plain(disk["role"]), _disk(disk))
    grid.add_row("compaction", _compaction(compaction))
    if events["lines_dropped"] or events["lines_unwritten"]:
        grid.add_row(
            "log",
            Text(
                f"{events['lines_dropped'] + events['lines_unwritten']:,} lines lost: its reader is too slow",
                style="yellow",
            ),
        )
    return grid


def _state(status: Facts) -> Text:
    """Red once any frame was not stored, as on the status page; the streams below show which."""
    gone = any(stream.get(name) for stream in status["streams"].values() for name in _STREAM_TROUBLE)
    waits_for = f": {plain(status['waits_for'])}" if status.get("waits_for") else ""
    colours = {"serving": "green", "draining": "yellow", DISK_FULL: "red"}
    return Text(
        f"{_words(status['state'])}{waits_for}", style="red" if gone else colours.get(status["state"], "")
    )


def _words(state: str) -> str:
    return plain(state).replace("_", " ")


def _disk(disk: Facts) -> Text:
    if disk["free_bytes"] is None:
        return Text(f"{plain(disk['path'])}: free space unknown", style="yellow")
    low = disk["free_bytes"] < disk["low_water_bytes"]
    room = f"{format_bytes(disk['free_bytes'])} free of {format_bytes(disk['total_bytes'])}"
    return Text(f"{plain(disk['path'])}: {room}", style="red" if low else "")


def _compaction(compaction: Facts) -> Text:
    if not compaction["enabled"]:
        return Text("off")
    works = (
        "idle"
        if compaction["running"] is None
        else f"{'paused at' if compaction['paused'] else 'works on'} {plain(compaction['running'])}"
    )
    counts = f"{compaction['queued']} queued, {compaction['done']} done, {compaction['failed']} failed"
    return Text(f"{works}; {counts}", style="yellow" if compaction["failed"] else "")


def _streams(streams: Facts) -> Table:
    """Since the daemon started; columns of trouble only where there was any."""
    trouble = [
        name
        for name in (*_STREAM_TROUBLE, *_STREAM_DEGRADED)
        if any(stream.get(name) for stream in streams.values())
    ]
    table = _table(
        "stream",
        "acquisitions",
        "failed",
        "received",
        "stored",
        "shards",
        "raw",
        "on disk",
        *(n.removeprefix("frames_") for n in trouble),
    )
    for name, stream in streams.items():
        raw, stored = stream["bytes_raw"], stream["bytes_stored"]
        table.add_row(
            plain(name),
            f"{stream['acquisitions']:,}",
            _trouble(stream["acquisitions_failed"]),
            f"{stream['frames_received']:,}",
            f"{stream['frames_stored']:,}",
            f"{stream['shards_sealed']:,}",
            format_bytes(raw),
            format_bytes(stored) + (f" ({raw / stored:.1f}:1)" if stored else ""),
            *(_trouble(stream.get(column, 0)) for column in trouble),
        )
    return table


def _level(acquisition: Facts) -> Text:
    level = acquisition.get("degrade_level", "configured")  # a daemon of an earlier release has none
    return Text(plain(level), style="" if level == "configured" else "yellow")


def _trouble(count: int) -> Text:
    return Text(f"{count:,}", style="red" if count else "")


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(
            name, justify="left" if i == 0 or name in ("stream", "state", "client") else "right", no_wrap=True
        )
    return table
