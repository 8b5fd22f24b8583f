"""What SIGINT and SIGTERM do to a long command: it clears up, says that it may be run again, and exits with
1."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def interrupt_on_signals() -> None:
    """The first of them is a ``KeyboardInterrupt``; what is cleared up after it is not disturbed by
    another."""

    def interrupt(*_: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def told_of_interrupts(name: str, kept: str) -> Iterator[None]:
    """One line and exit code 1 for an interrupt inside. ``kept``: what of the work is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            f"shardwright: {name} was interrupted; {kept}: run the same command again to go on", err=True
        )
        raise typer.Exit(1) from None
