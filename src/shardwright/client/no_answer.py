"""Finds why no daemon answered at an endpoint. ZeroMQ retries in silence, whatever the reason; a local socket
is therefore connected once more, for errno."""

from __future__ import annotations

import socket
from pathlib import Path

from shardwright.model.errors import AccessError, SessionLostError
from shardwright.model.permissions import how_to_connect, owners, refusing

_LOCAL = "ipc://"


def no_answer(endpoint: str, timeout_ms: int) -> AccessError | SessionLostError:
    """Returns the error. Call it only at the end of the wait: a starting daemon has its socket for itself
    until it gives it to its group."""
    got = None
    if endpoint.startswith(_LOCAL) and hasattr(socket, "AF_UNIX"):
        path = Path(endpoint.removeprefix(_LOCAL))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except PermissionError:
                return AccessError(
                    f"permission denied on {path}", got=owners(refusing(path)), hint=how_to_connect(path)
                )
            except OSError as error:
                got = error.strerror
    expected = f"an answer from {endpoint} within {timeout_ms} ms"
    return SessionLostError(
        "no daemon answered", expected=expected, got=got, hint="Is `shardwright serve` running there?"
    )
