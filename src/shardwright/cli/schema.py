"""``shardwright schema``: prints the JSON Schema of the configuration."""

from __future__ import annotations

import typer


def command() -> None:
    """Print the JSON Schema (draft 2020-12) of the configuration, for editors: it accepts what the daemon
    accepts."""
    from shardwright.config.json_schema import schema_text

    typer.echo(schema_text(), nl=False)
