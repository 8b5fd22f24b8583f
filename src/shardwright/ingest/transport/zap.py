"""The ZAP handler (RFC 27): answers ZeroMQ at each CURVE handshake whether the key may connect, in the ingest
thread between its messages.

A thread of its own (pyzmq's ThreadAuthenticator) could die or fall behind unseen. Here an answer is one look
into a dictionary, at most ``ANSWERS_A_ROUND`` in a round, and established connections do not wait for it.
Without an answer ZeroMQ refuses the connection, and ends the handshake after its timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils import z85

from shardwright.model.errors import ConfigError

from .allow_list import AllowList

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

ENDPOINT = "inproc://zeromq.zap.01"  # the one place where ZeroMQ asks, once a context
DOMAIN = b"shardwright"
RAW_KEY_BYTES = 32
ANSWERS_A_ROUND = 64
_USER = "User-Id"


class ZapHandler:
    """Registers with ``poller`` and answers in ``serve``; before the first TCP endpoint is bound. ``allowed``
    may be replaced by any thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        allowed: AllowList,
        poller: zmq.Poller,
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self.allowed = allowed
        self._on_event = on_event
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ENDPOINT)
        poller.register(self._socket, zmq.POLLIN)

    def serve(self, ready: Container[Any]) -> None:
        if self._socket not in ready:
            return
        for _ in range(ANSWERS_A_ROUND):
            try:
                request = self._socket.recv_multipart(flags=zmq.NOBLOCK)
            except zmq.Again:
                return
            self._socket.send_multipart(self._answer(request))

    def reload(self) -> dict[str, list[str]]:
        """Reads the folder again, in the calling thread. Returns the names that were added and removed.
        Raises ``ConfigError`` where a file cannot be used: then no client is added, and those whose keys are
        gone are removed all the same."""
        before = self.allowed
        try:
            after = self.allowed = AllowList.read(before.folder)
        except ConfigError:
            self.allowed = before.without_removed()
            raise
        return {"added": after.names_beyond(before), "removed": before.names_beyond(after)}

    def _answer(self, request: list[bytes]) -> list[bytes]:
        """[version, request, status, text, user, metadata]; the user becomes the ``User-Id`` of every message
        of the connection."""
        version, number, domain, address, _, mechanism, *credentials = request
        raw = credentials[0] if mechanism == b"CURVE" and len(credentials) == 1 else b""
        public_key = z85.encode(raw).decode() if len(raw) == RAW_KEY_BYTES else ""
        if domain == DOMAIN and self.allowed.name_of(public_key) is not None:
            return [version, number, b"200", b"OK", public_key.encode(), b""]
        facts = {
            "address": address.decode("ascii", "replace"),
            "reason": "its key is not on the list",
            "public_key": public_key,
        }
        self._on_event("client_refused", facts)
        return [version, number, b"400", b"key not known", b"", b""]


def public_key_of(frame: zmq.Frame) -> str | None:
    """The public key of the connection that a message came over; None for one without keys."""
    try:
        user = frame.get(_USER)
    except zmq.ZMQError:
        return None
    assert isinstance(user, str)
    return user
