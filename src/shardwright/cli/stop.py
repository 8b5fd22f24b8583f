"""``shardwright stop``: ends one acquisition of a running daemon, which continues."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shardwright.model.errors import SessionLostError, ShardwrightError, TimedOutError
from shardwright.model.names import store_name

from .control_options import CONFIG, NO_WAIT, SOCKET, control_client

if TYPE_CHECKING:
    from shardwright.daemon.control_client import ControlClient

LOOK_S = 0.1
LOOKS_FOR_EVENT = 10  # it is logged right after the acquisition has left the list
DISARMED = "acquisition_disarmed"
_ENDS = ("acquisition_ended", "acquisition_failed", DISARMED)


def command(
    name: str = typer.Argument(
        ..., help="The acquisition, as `shardwright list --daemon` lists it.", metavar="NAME"
    ),
    config: Path | None = CONFIG,
    socket: Path | None = SOCKET,
    no_wait: bool = NO_WAIT,
    as_json: bool = typer.Option(False, "--json", help="Print how it ended as JSON."),
) -> None:
    """End one acquisition: it takes no more frames, what has arrived is sealed, and its client is notified.
    One that is armed, and waits for its camera, is disarmed. The daemon and other acquisitions continue.

    Waits until it is sealed. Exits with 1 when it failed, when no acquisition of this name is open, or when
    no daemon answers.
    """
    with control_client(config, socket) as daemon:
        known = [event["number"] for event in daemon.ask("events")["events"]]
        pid = daemon.ask("status")["status"]["pid"]
        daemon.ask("stop", name=name)
        end = {} if no_wait else _end(daemon, pid, store_name(name), max(known, default=0))
    if end.get("event") == "acquisition_failed":
        raise ShardwrightError(
            f"{name} failed while it was being sealed", got=str(end.get("reason", "no reason"))
        )
    if as_json:
        typer.echo(json.dumps({"name": name, "ended": not no_wait, **end}))
    elif end.get("event") == DISARMED:
        typer.echo(f"{name} is disarmed")
    elif not no_wait:
        counts = f": {end['frames_stored']:,} frames are stored in {end['path']}" if end else ""
        typer.echo(f"{name} is sealed{counts}")


def _end(daemon: ControlClient, pid: int, folder: str, after: int) -> dict[str, Any]:
    """The event of its end; empty where the daemon's log level leaves such events out."""
    begin_s = time.monotonic()
    while _is_open(daemon, pid, folder, begin_s):
        time.sleep(LOOK_S)
    for _ in range(LOOKS_FOR_EVENT):
        events: list[dict[str, Any]] = []
        with suppress(TimedOutError):  # it is busy
            events = daemon.ask("events", after=after)["events"]
        for event in events:
            if event["event"] in _ENDS and Path(event.get("path", "")).name == folder:
                return event
        time.sleep(LOOK_S)
    return {}


def _is_open(daemon: ControlClient, pid: int, folder: str, begin_s: float) -> bool:
    """True while an acquisition is open that was so at ``begin_s``, and while the daemon is busy. A camera
    may have opened the same name again since: that one is younger. Raises ``SessionLostError`` if another
    daemon answers."""
    asked_s = time.monotonic()
    try:
        status = daemon.ask("status")["status"]
    except TimedOutError:
        return True
    if status["pid"] != pid:
        raise SessionLostError(
            f"the daemon ended while {folder} was being sealed, and another one has begun",
            expected=f"process {pid}",
            got=str(status["pid"]),
            hint="`shardwright list --daemon` shows whether that one has resumed it",
        )
    return any(
        Path(one["path"]).name == folder and one["since_s"] >= asked_s - begin_s
        for one in status["acquisitions"]
    )
