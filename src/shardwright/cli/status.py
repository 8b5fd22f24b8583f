"""``shardwright status``: shows the state of a running daemon as tables or JSON, once or repeatedly."""

from __future__ import annotations

import json
import time
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING

import typer

from shardwright.model.errors import SessionLostError, TimedOutError

from .control_options import CONFIG, SOCKET, control_client

if TYPE_CHECKING:
    from rich.console import Group

    from shardwright.daemon.control_client import ControlClient


def command(
    config: Path | None = CONFIG,
    socket: Path | None = SOCKET,
    as_json: bool = typer.Option(
        False, "--json", help="Print everything as JSON; with --watch one line each time."
    ),
    watch: bool = typer.Option(False, "--watch", help="Repeat until Ctrl-C."),
    interval_s: float = typer.Option(
        1.0, "--interval", min=0.1, max=3600, help="With --watch: seconds between updates.", metavar="SECONDS"
    ),
) -> None:
    """Show what a running daemon does: its acquisitions, cameras, memory, disks and compaction, and its
    last warnings and errors.

    The daemon is that of CONFIG, of the given control socket, or the one in /run/shardwright. Exits with 1
    when no daemon answers.
    """
    with control_client(config, socket) as daemon:
        try:
            if watch:
                (_watch_json if as_json else _watch)(daemon, interval_s)
            elif as_json:
                typer.echo(json.dumps(daemon.ask("status")["status"]))
            else:
                from .fitted_table import show

                show(_view(daemon))
        except KeyboardInterrupt:
            pass  # how a watch ends


def _view(daemon: ControlClient) -> Group:
    from .status_view import status_view

    return status_view(daemon.ask("status")["status"], daemon.ask("events", least="warning")["events"])


def _watch_json(daemon: ControlClient, interval_s: float) -> None:
    """Print lines until the daemon is gone; its error ends the command, as a line cannot carry it."""
    while True:
        typer.echo(json.dumps(daemon.ask("status")["status"]))
        time.sleep(interval_s)


def _watch(daemon: ControlClient, interval_s: float) -> None:
    """Show the status until Ctrl-C, also across restarts of the daemon."""
    from rich.live import Live

    from .fitted_table import Screenful, console
    from .status_view import gone_view

    out, view = console(), _view(daemon)
    with Live(console=out, auto_refresh=False) as live:
        while True:
            if out.is_terminal:
                live.update(Screenful(view), refresh=True)
            else:
                out.print(view, "", soft_wrap=True)
            time.sleep(interval_s)
            try:
                view = _view(daemon)
            except (SessionLostError, TimedOutError) as error:
                view = gone_view(error)
