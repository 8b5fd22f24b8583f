"""Binding sockets: folders for this user alone, sockets of a dead daemon replaced, those of a live one refused with a clear error."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import zmq

from shardwright.model.errors import ConfigError

MAX_HANDSHAKE_MS = 5_000


def bind_router(context: zmq.Context[Any], endpoints: tuple[str, ...], max_message_bytes: int) -> zmq.Socket[bytes]:
    """One ROUTER on all endpoints. Raises ``ConfigError`` naming the endpoint that cannot be bound."""
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a client that is gone or does not read is an error here, not a silent drop
    router.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
    router.setsockopt(zmq.HANDSHAKE_IVL, MAX_HANDSHAKE_MS)
    router.setsockopt(zmq.RCVHWM, 256)  # messages a client; what is beyond waits in the client
    router.setsockopt(zmq.SNDHWM, 1000)
    try:
        for endpoint in endpoints:
            _bind(router, endpoint)
    except BaseException:
        router.close(linger=0)
        raise
    return router


def _bind(router: zmq.Socket[bytes], endpoint: str) -> None:
    if endpoint.startswith("ipc:///"):
        _make_way(Path(endpoint.removeprefix("ipc://")))
    try:
        router.bind(endpoint)
    except zmq.ZMQError as error:
        in_use = error.errno == zmq.EADDRINUSE
        hint = "Another program listens there; is a daemon already running?" if in_use else None
        raise ConfigError(f"cannot bind {endpoint}", expected="an endpoint that is free", got=str(error), hint=hint) from None


def bind_unix_listener(path: Path) -> socket.socket:
    """A non-blocking Unix stream listener at ``path``."""
    _make_way(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(64)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot bind {path}", expected="a Unix socket path of at most 107 bytes that is free", got=str(error)) from None
    return listener


def _make_way(path: Path) -> None:
    """Makes the folder, and removes a socket that nobody listens on. (ZeroMQ would take over a live one without a word.)"""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            return
        if not path.is_socket():
            hint = "Remove it or choose another path"
            raise ConfigError(f"cannot bind {path}", expected="a free path or a socket", got="another kind of file", hint=hint)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()  # its daemon is dead
                return
        raise ConfigError(f"{path} is in use", expected="a socket nobody listens on", got="a live one", hint="Is a daemon already running?")
    except OSError as error:
        raise ConfigError(f"cannot prepare {path}", got=str(error)) from None
