"""Interrupts of long commands: after SIGINT or SIGTERM the command clears up, says that it may be run again,
and exits with 1."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def interrupt_on_signals() -> None:
    """Make the first SIGINT or SIGTERM raise ``KeyboardInterrupt``; later ones are ignored while the command
    clears up."""

    def interrupt(*_: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def reported_interrupts(name: str, kept: str) -> Iterator[None]:
    """An interrupt inside is reported in one line, with exit code 1. ``kept``: the work that is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            f"shardwright: {name} was interrupted; {kept}: run the same command again to continue", err=True
        )
        raise typer.Exit(1) from None
