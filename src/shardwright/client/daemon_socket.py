"""One ZeroMQ connection to a daemon, from HELLO until it breaks. Used by the I/O thread alone: ZeroMQ sockets
are not thread-safe."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import zmq

from shardwright.model.errors import (
    AccessError,
    ConfigError,
    ProtocolError,
    SessionLostError,
    ShardwrightError,
    VersionError,
)
from shardwright.wire.controls import Hello, Problem, Welcome
from shardwright.wire.messages import (
    CONNECTION,
    Counter,
    Header,
    Kind,
    check_parts,
    decode_control,
    decode_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .curve import Keys

RETRY_MS, MAX_RETRY_MS = 50, 1000  # ZeroMQ's own, while nothing listens at the endpoint
# handshakes cut off: by a daemon that cannot read what our wrong key made, by a flooded one, by another
# program
MAX_CUTS = 5
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)


class DaemonSocket:
    """A connection that sends HELLO at once. Raises on every sign that it is unusable; a new one must then be
    made."""

    def __init__(
        self, context: zmq.Context[Any], endpoint: str, software: str, keys: Keys | None = None
    ) -> None:
        self._endpoint = endpoint
        self._keys = keys
        # Before the handshake nothing has left, so ZeroMQ may try a connection that is cut again. After it a
        # cut is the end: what was under way is lost, and ZeroMQ would go on without a word.
        self._handshake_done = False
        self._cuts = 0
        self._socket = context.socket(zmq.DEALER)
        # No limit of ZeroMQ's own: credit bounds what may wait here, and a send that had to wait would keep
        # heartbeats back.
        self._socket.sndhwm = 0
        self._socket.linger = 0
        self._socket.setsockopt(zmq.RECONNECT_IVL, RETRY_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, MAX_RETRY_MS)
        if keys is not None:
            self._socket.curve_publickey, self._socket.curve_secretkey = keys.public, keys.secret
            self._socket.curve_serverkey = keys.daemon
        self._monitor = self._socket.get_monitor_socket(_WATCHED)
        self.poller = zmq.Poller()  # the I/O thread adds its wake-up
        self.poller.register(self._socket, zmq.POLLIN)
        self.poller.register(self._monitor, zmq.POLLIN)
        self.welcome: Welcome | None = None  # nothing but HELLO may be sent before
        # Any message is a sign of life. Heartbeats alone would not do: one may wait behind many ACKs.
        self.started_s = self._last_heard_s = time.monotonic()
        self.next_heartbeat_s = 0.0
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close(0)
            expected, got = "tcp://HOST:PORT or ipc://PATH", f"{endpoint!r} ({error})"
            raise ConfigError("not an endpoint to connect to", expected=expected, got=got) from None
        self._counter = Counter(CONNECTION)
        hello = Hello(software, socket.gethostname()[:255], os.getpid())
        with contextlib.suppress(zmq.Again):  # refused already: check_connected raises the reason
            self._send(self._counter.control(Kind.HELLO, hello.to_body()))

    def close(self, linger_ms: int) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=linger_ms)

    # To the daemon
    # ----------------------------------------------------------------------------------------------------

    def send(self, parts: list[Any]) -> None:
        """Sends a message without waiting. Raises as ``check_connected`` where ZeroMQ has given the
        connection up, as it does when a handshake fails."""
        try:
            self._send(parts)
        except zmq.Again:
            self.check_connected()
            raise SessionLostError("the daemon closed the connection", got=self._endpoint) from None

    def _send(self, parts: list[Any]) -> None:
        self._socket.send_multipart(parts, flags=zmq.NOBLOCK, copy=False)

    def control(self, kind: Kind, body: dict[str, Any] | None = None) -> None:
        """Sends a message of the connection itself."""
        self.send(self._counter.control(kind, body))

    def keep_alive(self, now_s: float, patience_ms: float) -> None:
        """Sends heartbeats, once WELCOME has brought their interval. Raises ``SessionLostError`` when the
        daemon has been silent for too long; ``patience_ms`` is the limit for WELCOME."""
        if self.welcome is None:
            if (now_s - self.started_s) * 1000 > patience_ms:
                raise SessionLostError(
                    "no daemon answered",
                    expected=f"an answer from {self._endpoint} within {patience_ms:.0f} ms",
                )
            return
        if now_s >= self.next_heartbeat_s:
            self.next_heartbeat_s = now_s + self.welcome.heartbeat_ms / 1000
            self.control(Kind.HEARTBEAT)
        silence_s = now_s - self._last_heard_s
        if silence_s * 1000 > self.welcome.session_timeout_ms:
            expected = f"a heartbeat every {self.welcome.heartbeat_ms} ms"
            raise SessionLostError(
                "the daemon stopped answering", expected=expected, got=f"{silence_s:.1f} s of silence"
            )

    # From the daemon
    # ----------------------------------------------------------------------------------------------------

    def receive(self) -> Iterator[tuple[Header, bytes]]:
        """Yields every message that has come, its parts checked. Handles heartbeats and WELCOME itself.
        Raises a fatal ERROR of the connection."""
        while True:
            try:
                parts = self._socket.recv_multipart(flags=zmq.NOBLOCK)
            except zmq.Again:
                return
            self._last_heard_s = time.monotonic()
            try:
                header = decode_header(parts[0])
            except VersionError as error:
                raise _version_error_of(parts) or error from None
            check_parts(header, [len(part) for part in parts[1:]])
            body = parts[1] if len(parts) > 1 else b""
            if header.session != CONNECTION or self._is_for_others(header, body):
                yield header, body

    def _is_for_others(self, header: Header, body: bytes) -> bool:
        self._counter.accept(header)
        if header.kind is Kind.HEARTBEAT:
            return False
        if header.kind is Kind.WELCOME and self.welcome is None:
            self.welcome = Welcome.from_body(decode_control(body))
            return False
        if header.kind is not Kind.ERROR:
            raise ProtocolError(
                f"{header.kind.name} came out of turn",
                expected="HEARTBEAT or ERROR on session 0",
                got=header.kind.name,
            )
        problem = Problem.from_body(decode_control(body))
        if problem.fatal:
            raise problem.error.to_error()
        return True

    def check_connected(self) -> None:
        """Raises ``SessionLostError`` when the connection was cut, or ``AccessError`` where the keys do not
        fit. ZeroMQ would reconnect under a new identity, which the daemon does not know, so earlier messages
        are lost either way. Call it once everything that came was received."""
        while self._monitor.poll(0):
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], sys.byteorder)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._handshake_done = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                hint = "Put its public key into the folder that ingest.curve.clients of the daemon names"
                got = None if self._keys is None else self._keys.public.decode()
                raise AccessError(
                    "the daemon does not know this client's key",
                    expected="a key on its list",
                    got=got,
                    hint=hint,
                )
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                raise self._no_handshake()
            elif self._handshake_done:
                raise SessionLostError("the daemon closed the connection", got=self._endpoint)
            else:  # nothing was sent yet, and ZeroMQ tries again
                self._cuts += 1
                if self._cuts >= MAX_CUTS:
                    raise self._no_handshake()

    def _no_handshake(self) -> AccessError:
        if self._keys is None:
            expected, hint = (
                f"a daemon at {self._endpoint} that takes clients without keys",
                ("If it demands keys, give curve=Curve(...)"),
            )
        else:
            expected = f"a daemon at {self._endpoint} with the key {self._keys.daemon.decode()}"
            hint = "Check the daemon's public key; one with ingest.insecure takes no keys"
        return AccessError(
            "the handshake failed",
            expected=expected,
            got="a connection that is closed at once",
            hint=hint,
        )


def _version_error_of(parts: list[bytes]) -> ShardwrightError | None:
    """Returns the daemon's own error about our version: ERROR keeps its layout in every version."""
    if len(parts) < 2 or len(parts[0]) < 8 or parts[0][6] != Kind.ERROR:
        return None
    try:
        return Problem.from_body(decode_control(parts[1])).error.to_error()
    except ProtocolError:
        return None
