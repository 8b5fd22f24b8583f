"""The options of the commands that talk to a running daemon, and the search for its control socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardwright.model.errors import ConfigError
from shardwright.model.extras import naming_missing_extra

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.daemon.control_client import ControlClient

CONFIG = typer.Argument(None, help="The YAML file that the daemon runs with.", metavar="CONFIG")
# Not checked here: the error of the connection says which permission is missing.
SOCKET = typer.Option(
    None, "--socket", help="The daemon's control socket, in place of CONFIG.", metavar="PATH", readable=False
)
NO_WAIT = typer.Option(False, "--no-wait", help="Return at once.")


def control_client(config: Path | None, socket: Path | None) -> ControlClient:
    """A client of the daemon that the user means. Raises ``ConfigError`` when that is not clear."""
    from shardwright.daemon.control_client import PATIENT_S, ControlClient

    if socket is not None:
        return ControlClient(socket, PATIENT_S)
    return ControlClient(_socket_of(config) if config is not None else _default_socket(), PATIENT_S)


def _socket_of(config: Path) -> str:
    with naming_missing_extra("CONFIG, in place of --socket PATH,"):
        from shardwright.config.load import load_config

    path = load_config(config).config.control_socket_path
    if path is None:
        raise ConfigError(
            f"the daemon of {config} has no control socket",
            hint="Set control.socket, and start the daemon again",
        )
    return path


def _default_socket() -> Path:
    """The default control socket of a single daemon; else the only socket in a folder below, where each of
    several daemons has its own."""
    from shardwright.daemon.control_client import RUN_FOLDER, SOCKET_NAME

    usual = RUN_FOLDER / SOCKET_NAME
    if _is_there(usual) is not False:
        return usual  # where it cannot be seen, the attempt to connect says why
    try:
        below = sorted(folder / SOCKET_NAME for folder in RUN_FOLDER.iterdir())
    except OSError:
        below = []
    others = [socket for socket in below if _is_there(socket)] or [
        socket for socket in below if _is_there(socket) is None
    ]
    if len(others) > 1:
        raise ConfigError(
            "several daemons run here", expected="CONFIG or --socket PATH", got=", ".join(map(str, others))
        )
    return others[0] if others else usual


def _is_there(socket: Path) -> bool | None:
    """None where this user cannot see it."""
    try:
        return socket.exists()
    except PermissionError:
        return None
