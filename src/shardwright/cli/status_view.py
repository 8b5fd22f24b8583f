"""The status of a daemon (daemon/snapshot.py), laid out for a terminal. Numbers never wrap; what clients
brought is shown as plain text."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from shardwright.model.disk_full import DISK_FULL
from shardwright.model.display_text import duration, format_bytes, plain
from shardwright.model.event_text import event_text

from .fitted_table import FittedTable, TableColumn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from shardwright.model.errors import ShardwrightError

    Facts = Mapping[str, Any]

STALL_WARNING_S = 2.0
MOST_EVENTS = 5
_LEVEL_STYLES = {"warning": "yellow", "error": "red"}
_STREAM_TROUBLE = ("frames_skipped", "frames_late", "frames_duplicate", "frames_dropped", "frames_lost")
_STREAM_DEGRADED = ("frames_faster", "frames_uncompressed", "frame_json_dropped")


def status_view(status: Facts, events: Sequence[Facts] = ()) -> Group:
    """The whole status: daemon, acquisitions, streams, and the last warnings and errors of ``events``, oldest
    first."""
    parts: list[RenderableType] = [_daemon(status)]
    if status["acquisitions"]:
        parts += [Text(), acquisitions_view(status)]
    else:
        parts += [Text(), Text("no acquisition is open")]
    used = {name: stream for name, stream in status["streams"].items() if stream["acquisitions"]}
    if used:
        parts += [Text(), _streams(used)]
    if trouble := [event for event in events if event["level"] in _LEVEL_STYLES]:
        parts += [Text(), _told(trouble[-MOST_EVENTS:])]
    return Group(*parts)


def acquisitions_view(status: Facts) -> RenderableType:
    """One line for each open acquisition. If one is overloaded, a column shows at which level chunks are
    encoded."""
    degraded = any(one.get("degrade_level", "configured") != "configured" for one in status["acquisitions"])
    table = FittedTable(
        TableColumn("acquisition"),
        TableColumn("stream", rank=6),
        TableColumn("state"),
        TableColumn("received", is_number=True),
        TableColumn("of", rank=2, is_number=True),
        TableColumn("stored", is_number=True),
        TableColumn("durable", rank=1, is_number=True),
        TableColumn("missing", is_number=True),
        TableColumn("rate", rank=4, is_number=True),
        TableColumn("data", rank=7, is_number=True),
        TableColumn("ring", rank=5, is_number=True),
        *([TableColumn("chunks", rank=3)] if degraded else []),
        TableColumn("for", rank=9, is_number=True),
        TableColumn("client", rank=8),
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


def gone_view(error: ShardwrightError) -> Group:
    """Shown in place of a status while no daemon answers."""
    return Group(Text(plain(str(error)), style="red"))


def _daemon(status: Facts) -> RenderableType:
    memory, compaction, events = status["memory"], status["compaction"], status["events"]
    grid = FittedTable(TableColumn(style="bold"), TableColumn(wraps=True))
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
    if armed := status.get("armed"):
        grid.add_row("armed", ", ".join(plain(f"{one['name']} for {one['stream']}") for one in armed))
    grid.add_row("memory", f"{format_bytes(memory['used_bytes'])} of {format_bytes(memory['budget_bytes'])}")
    for disk in status["disks"]:
        grid.add_row("disk" if disk["role"] == "root" else plain(disk["role"]), _disk(disk))
    grid.add_row("compaction", _compaction(compaction))
    if (told := status.get("notifications", {})).get("receivers"):  # a daemon of an earlier release has none
        counts = ", ".join(f"{told[name]:,} {name}" for name in ("waiting", "sent", "failed", "dropped"))
        grid.add_row("notifications", Text(counts, "yellow" if told["failed"] or told["dropped"] else ""))
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
    if (full_in_s := disk.get("full_in_s")) is not None:  # a daemon of an earlier release has none
        room += f", full in {duration(full_in_s)}"
    return Text(f"{plain(disk['path'])}: {room}", style="red" if low else "")


def _compaction(compaction: Facts) -> Text:
    if compaction.get("died"):  # a daemon of an earlier release has none
        return Text("ended by an error: see the log, and restart the daemon", style="red")
    if not compaction["enabled"]:
        return Text("off")
    works = (
        "idle"
        if compaction["running"] is None
        else f"{'paused at' if compaction['paused'] else 'works on'} {plain(compaction['running'])}"
    )
    counts = f"{compaction['queued']} queued, {compaction['done']} done, {compaction['failed']} failed"
    return Text(f"{works}; {counts}", style="yellow" if compaction["failed"] else "")


def _streams(streams: Facts) -> RenderableType:
    """Since the daemon started; columns of trouble only where there was any."""
    trouble = [
        name
        for name in (*_STREAM_TROUBLE, *_STREAM_DEGRADED)
        if any(stream.get(name) for stream in streams.values())
    ]
    table = FittedTable(
        TableColumn("stream"),
        TableColumn("acquisitions", rank=3, is_number=True),
        TableColumn("failed", rank=1, is_number=True),
        TableColumn("received", is_number=True),
        TableColumn("stored", is_number=True),
        TableColumn("shards", rank=4, is_number=True),
        TableColumn("raw", rank=5, is_number=True),
        TableColumn("on disk", rank=2, is_number=True),
        *(TableColumn(name.removeprefix("frames_"), is_number=True) for name in trouble),
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


def _told(events: Sequence[Facts]) -> RenderableType:
    """The sentence of each event, with its time here."""
    table = FittedTable(TableColumn("last warnings and errors"), TableColumn(wraps=True))
    for event in events:
        when = datetime.fromisoformat(event["timestamp"]).astimezone()
        sentence = Text(event_text(event["event"], event), style=_LEVEL_STYLES[event["level"]])
        table.add_row(f"{when:%Y-%m-%d %H:%M:%S}", sentence)
    return table


def _level(acquisition: Facts) -> Text:
    level = acquisition.get("degrade_level", "configured")  # a daemon of an earlier release has none
    return Text(plain(level), style="" if level == "configured" else "yellow")


def _trouble(count: int) -> Text:
    return Text(f"{count:,}", style="red" if count else "")
