"""``shardwright drain``: ends a running daemon in good order, as SIGTERM does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shardwright.disk import beneath
from shardwright.model.errors import SessionLostError, ShardwrightError, StorageError, TimedOutError
from shardwright.model.names import WORKSPACE

from .control_options import CONFIG, NO_WAIT, SOCKET, control_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardwright.daemon.control_client import ControlClient

LOOK_S = 0.2


def command(
    config: Path | None = CONFIG,
    socket: Path | None = SOCKET,
    no_wait: bool = NO_WAIT,
    as_json: bool = typer.Option(False, "--json", help="Print how it ended as JSON."),
) -> None:
    """End a running daemon: no new acquisitions are taken, open ones are sealed, the daemon exits. Waits
    until it has exited, and exits with 1 when an acquisition was not sealed."""
    say = _nothing if as_json else typer.echo
    not_known: list[str] = []
    with control_client(config, socket) as daemon:
        status = daemon.ask("status")["status"]
        daemon.ask("drain")
        count = len(status["acquisitions"])
        say(f"process {status['pid']} is draining; {count} acquisition{'' if count == 1 else 's'} to seal")
        if not no_wait:
            _wait(daemon, status["pid"])
            say(f"process {status['pid']} has ended")
            not_known = _check_sealed([Path(one["path"]) for one in status["acquisitions"]])
    if as_json:
        facts = {"pid": status["pid"], "acquisitions": count, "ended": not no_wait}
        typer.echo(json.dumps({**facts, "not_known": not_known}))


def _nothing(text: str) -> None:
    """Prints no text."""


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


def _check_sealed(stores: Sequence[Path]) -> list[str]:
    """Raises ``ShardwrightError`` if one is unfinished: the daemon may have been killed meanwhile, or the
    disk is full. Returns those at which this user cannot look, and says so."""
    states = {store: _is_sealed(store) for store in stores}
    not_known = [str(store) for store, is_sealed in states.items() if is_sealed is None]
    for store in not_known:
        typer.echo(f"{store}: not known whether it is sealed: this user cannot look there", err=True)
    if unfinished := [str(store) for store, is_sealed in states.items() if is_sealed is False]:
        raise ShardwrightError(
            f"not sealed: {', '.join(unfinished)}",
            hint="The next start of the daemon resumes them, `shardwright recover` seals them",
        )
    return not_known


def _is_sealed(store: Path) -> bool | None:
    """None where this user cannot look. A store that is gone is sealed: without a frame it is removed."""
    try:
        if beneath.exists(store / WORKSPACE):
            return False
        return True if beneath.is_dir(store.parent) else None
    except StorageError:
        return None
