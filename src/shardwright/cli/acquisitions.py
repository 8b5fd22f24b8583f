"""``shardwright acquisitions``: lists the open acquisitions of a running daemon."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads the annotation)

import typer

from .control_options import CONFIG, SOCKET, control_client


def command(
    config: Path | None = CONFIG,
    socket: Path | None = SOCKET,
    as_json: bool = typer.Option(False, "--json", help="Print them as JSON."),
) -> None:
    """List the open acquisitions of a running daemon, with their received, stored and missing frames.
    Exits with 1 when no daemon answers."""
    with control_client(config, socket) as daemon:
        status = daemon.ask("status")["status"]
    if as_json:
        typer.echo(json.dumps({"acquisitions": status["acquisitions"]}))
    elif not status["acquisitions"]:
        typer.echo("no acquisition is open")
    else:
        from .fitted_table import show
        from .status_view import acquisitions_view

        show(acquisitions_view(status))
