"""``shardwright drain``: ends a running daemon in good order, as SIGTERM does."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING

import typer

from shardwright.model.errors import SessionLostError, TimedOutError

from .control_options import CONFIG, NO_WAIT, SOCKET, control_client

if TYPE_CHECKING:
    from shardwright.daemon.control_client import ControlClient

LOOK_S = 0.2


def command(config: Path | None = CONFIG, socket: Path | None = SOCKET, no_wait: bool = NO_WAIT) -> None:
    """End a running daemon: no new acquisitions are taken, open ones are sealed, the daemon exits. Waits
    until it has exited."""
    with control_client(config, socket) as daemon:
        status = daemon.ask("status")["status"]
        daemon.ask("drain")
        count = len(status["acquisitions"])
        typer.echo(
            f"process {status['pid']} is draining; {count} acquisition{'' if count == 1 else 's'} to seal"
        )
        if not no_wait:
            _wait(daemon, status["pid"])
            typer.echo(f"process {status['pid']} has ended")


def _wait(daemon: ControlClient, pid: int) -> None:
    """Wait until no daemon answers, or another one that was started in its place."""
    while True:
        time.sleep(LOOK_S)
        try:
            if daemon.ask("status")["status"]["pid"] != pid:
                return
        except TimedOutError:
            continue  # it is busy
        except SessionLostError:
            return
