"""``shardwright list``: lists the acquisitions in a folder, finished and running, or those that a running
daemon has open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shardwright.disk import beneath
from shardwright.model.display_text import format_bytes
from shardwright.model.errors import ConfigError

from .control_options import SOCKET, control_client
from .progress import show_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardwright.rework.catalog import ListedAcquisition

    from .fitted_table import FittedTable


def command(
    root: Path | None = typer.Argument(
        None,
        help="The folder in which the stores are, by default this one, or one store; with --daemon the YAML "
        "file that it runs with.",
        metavar="ROOT_OR_CONFIG",
    ),
    *,
    daemon: bool = typer.Option(False, "--daemon", help="List those that a running daemon has open."),
    socket: Path | None = SOCKET,
    as_json: bool = typer.Option(False, "--json", help="Print them as JSON."),
) -> None:
    """List the acquisitions in a folder: when each began, its size and frames, whether all are there, and
    where parts of it lie. Reads the stores themselves; one that cannot be read is named and hides no other.

    With --daemon those that a running daemon has open; exits with 1 when no daemon answers.
    """
    if daemon:
        _list_of_daemon(root, socket, as_json)
        return
    if socket is not None:
        raise ConfigError("--socket leads to a daemon", hint="Give --daemon as well")
    root = root or Path()
    from shardwright.rework.catalog import listed_acquisitions

    with show_steps("list", "looks at stores") as on_progress:
        found = list(listed_acquisitions(beneath.user_path(root), on_progress))
    if as_json:
        typer.echo(json.dumps({"acquisitions": [one.to_dict() for one in found]}))
    elif not found:
        typer.echo(f"no acquisition is in {root}")
    else:
        from .fitted_table import show  # with --json nothing of rich is needed

        show(_table(found))
        for one in found:
            if one.problem:
                show(f"{one.name}: {one.problem}")


def _list_of_daemon(config: Path | None, socket: Path | None, as_json: bool) -> None:
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


def _table(found: Sequence[ListedAcquisition]) -> FittedTable:
    from shardwright.rework.catalog import started_text

    from .fitted_table import FittedTable, TableColumn

    table = FittedTable(
        TableColumn("acquisition"),
        TableColumn("state"),
        TableColumn("began", rank=2),
        TableColumn("size", rank=1, is_number=True),
        TableColumn("frames", is_number=True),
        TableColumn("all there"),
        TableColumn("also in", rank=3),
    )
    for one in found:
        table.add_row(
            one.name,
            one.state,
            started_text(one),
            format_bytes(one.stored_bytes),
            "-" if one.frames is None else f"{one.frames:,}",
            verdict(one),
            ", ".join(one.elsewhere),
        )
    return table


def verdict(one: ListedAcquisition) -> str:
    """Returns the receipt's verdict on an acquisition, in words."""
    if one.frames is None or one.state != "finished":
        return "-"
    counts = (f"{n:,} {name.removeprefix('frames_')}" for name, n in one.trouble.items())
    return ", ".join(counts) or "yes"
