"""``shardwright rename``: gives a finished store another name."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads the annotation)

import typer

from .existing_path import existing_path
from .job_command import AsJson, finish


def command(
    store: Path = typer.Argument(..., help="A finished store.", metavar="STORE", callback=existing_path),
    name: str = typer.Argument(..., help="Its new name, in the same folder.", metavar="NAME"),
    *,
    as_json: AsJson = False,
) -> None:
    """Give a finished store another name, in one step. Who has it open reads on; what its metadata call it
    stays. Exits with 1 for a store that is written, moved or edited just now, or that lies elsewhere in part.
    """
    from shardwright.rework.name_changes import rename_store

    path = rename_store(store, name)
    finish({"ok": True, "path": str(path)}, as_json, f"{store} is now {path}")
