"""The ring handover: gives rings to clients on this machine over a Unix stream socket, one request and one
answer for each connection, the memfd as SCM_RIGHTS.

Non-blocking, served from the ingest loop. A connection that is silent for ``PATIENCE_S`` is dropped. Only a
few may wait at once: where more come, the one that has been silent for longest is dropped. A client sends
its request as soon as it has connected, so it is never that one.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

import zmq

from shardwright.model.errors import ProtocolError, VersionError
from shardwright.wire import handover

from .endpoints import MAX_WAITING, bind_unix_listener

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from shardwright.disk.ring import Ring

PATIENCE_S = 5.0
MAX_NEW = MAX_WAITING // 2  # in one round: each gets another round before others take its place


class RingHandover:
    """The socket from which clients on this machine fetch their rings. ``take(session, token)`` gives the
    ring that a token stands for, once. Registers its sockets with ``poller`` and answers in ``serve``."""

    def __init__(
        self, path: Path, take: Callable[[int, str], Ring | None], poller: zmq.Poller, group: str | None
    ) -> None:
        self._path = path
        self._take = take
        self._poller = poller
        # by descriptor: connection and when patience ends
        self._waiting: dict[int, tuple[socket.socket, float]] = {}
        self._listener = bind_unix_listener(path, group)
        poller.register(self._listener.fileno(), zmq.POLLIN)

    def serve(self, ready: Container[Any]) -> None:
        """Takes new connections and answers requests."""
        for descriptor in [d for d in self._waiting if d in ready]:
            self._answer(descriptor)
        now_s = time.monotonic()
        for descriptor in [d for d, (_, until_s) in self._waiting.items() if until_s < now_s]:
            self._drop(descriptor)
        if self._listener.fileno() in ready:
            self._accept(now_s)

    def _accept(self, now_s: float) -> None:
        for _ in range(MAX_NEW):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # no more, or out of descriptors: the client gets no answer and reports that
            if len(self._waiting) >= MAX_WAITING:
                self._drop(next(iter(self._waiting)))
            connection.setblocking(False)
            self._waiting[connection.fileno()] = (connection, now_s + PATIENCE_S)
            self._poller.register(connection.fileno(), zmq.POLLIN)

    def _answer(self, descriptor: int) -> None:
        connection, _ = self._waiting[descriptor]
        with contextlib.suppress(OSError, ProtocolError):  # a peer that sends nonsense or leaves is dropped
            request = connection.recv(handover.REQUEST.size + 1)
            try:
                ring = self._take(*handover.decode_request(request))
            except VersionError:
                ring = None  # the answer carries our version
            if ring is None:
                connection.send(handover.encode_answer(handover.REFUSED, 0))
            else:
                socket.send_fds(
                    connection, [handover.encode_answer(handover.GIVEN, ring.ring_bytes)], [ring.descriptor]
                )
        self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)
        self._waiting.pop(descriptor)[0].close()

    def close(self) -> None:
        for descriptor in list(self._waiting):
            self._drop(descriptor)
        self._poller.unregister(self._listener.fileno())
        self._listener.close()
        self._path.unlink(missing_ok=True)
