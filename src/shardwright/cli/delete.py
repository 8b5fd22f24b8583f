"""``shardwright delete``: deletes a finished store."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING

import typer

from shardwright.disk import beneath
from shardwright.model.display_text import format_bytes
from shardwright.model.errors import ConfigError

from .job_command import AsJson, finish
from .progress import show_steps

if TYPE_CHECKING:
    from shardwright.rework.catalog import ListedAcquisition


def command(
    store: Path = typer.Argument(..., help="A finished store.", metavar="STORE"),
    *,
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
    as_json: AsJson = False,
) -> None:
    """Delete a finished store, with all its frames. Its name goes in one step; a run that was cut short has
    deleted a part of what nothing leads to, and the same command deletes the rest.

    Never deletes through a link, what is mounted, what another program wrote, or what is written, moved or
    edited just now. Exits with 1 then, and with 2 for wrong usage.
    """
    from shardwright.rework.name_changes import delete_store

    if not yes and not _agreed(store, can_ask=sys.stdin.isatty() and not as_json):
        typer.echo("nothing was deleted", err=True)
        raise typer.Exit(1)
    with show_steps("delete", "deletes files") as on_progress:
        deleted = delete_store(store, on_progress)
    facts = {"ok": True, "path": str(store), "files": deleted}
    finish(facts, as_json, f"{store} is deleted: {deleted:,} files")


def _agreed(store: Path, *, can_ask: bool) -> bool:
    if not can_ask:
        raise ConfigError("nobody can be asked here whether to delete it", hint="Give --yes")
    from shardwright.rework.catalog import listed_acquisitions

    found = list(listed_acquisitions(beneath.user_path(store))) if store.is_dir() else []
    return typer.confirm(f"Delete {store}{_facts(found)}?")


def _facts(found: list[ListedAcquisition]) -> str:
    if len(found) != 1:
        return ""
    frames = "" if found[0].frames is None else f"{found[0].frames:,} frames, "
    return f" ({frames}{format_bytes(found[0].stored_bytes)})"
