"""The check of an argument that must name what is there: ``typer.Argument(callback=existing_path)``.

Not typer's own ``exists=True``: it would say of an address that this path does not exist.
"""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003  (typer reads the annotation)

import typer

from shardwright.model.local_path import local_path


def existing_path(path: Path) -> Path:
    """Returns the path itself. Raises ``ConfigError`` for an address, ``BadParameter`` where nothing is."""
    if not os.path.exists(local_path(path)):  # noqa: PTH110  (False also where it may not be looked at)
        raise typer.BadParameter(f"Path '{path}' does not exist.")
    return path
