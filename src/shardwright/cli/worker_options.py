"""Options that every command with workers has: who does the work, how fast, how quietly, and what is
printed."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.model.errors import ConfigError

Rate = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="SIZE",
        help="Bytes a second at most, e.g. 50MB: those read, written and "
        "read back again, all workers together.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="COUNT",
        help="Processes that work at the same time. One for each core, at most 4.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        help="Work on the dask cluster of this scheduler instead, "
        "tcp://HOST:PORT, that sees the same storage.",
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="The most that one worker holds at once.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")]
NoIdle = Annotated[
    bool,
    typer.Option(
        "--no-idle", help="Work at normal priority instead of the lowest. Workers of --scheduler keep theirs."
    ),
]


def parse_rate(text: str | None) -> float | None:
    """Bytes per second. Raises ``ConfigError``."""
    from shardwright.config.quantities import parse_size_bytes

    if text is None:
        return None
    try:
        return float(parse_size_bytes(int(text) if text.isdecimal() else text.removesuffix("/s")))
    except ValueError as error:
        raise ConfigError(f"--rate: {error}", got=text) from None
