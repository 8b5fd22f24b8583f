"""``shardwright status``: what a running daemon does, as tables or JSON, once or again and again."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING, Any

import typer

from .control_options import CONFIG, SOCKET, control_client

if TYPE_CHECKING:
    from rich.console import RenderableType


def command(
    config: Path | None = CONFIG,
    socket: Path | None = SOCKET,
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Show what a running daemon does. Exits with 1 when none answers."""
    with control_client(config, socket) as daemon:
        status = daemon.ask("status")["status"]
    if as_json:
        typer.echo(json.dumps(status))
    else:
        from rich.console import Console

        Console(highlight=False, markup=False).print(_table(status))


def _table(status: dict[str, Any]) -> RenderableType:
    from rich.table import Table

    columns = ("name", "state", "frames_received", "frames_in_flight", "frames_stored", "frames_durable")
    table = Table(*(name.replace("_", " ") for name in columns), box=None, header_style="bold")
    for acquisition in status["acquisitions"]:
        table.add_row(*(str(acquisition[name]) for name in columns))
    return table
