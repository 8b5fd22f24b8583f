"""The connection guard: bounds the connections of the ROUTER that are no clients: their number, their time
and their bytes. Ingest thread only.

    stranger   accepted; has not said HELLO, or is no client any more    at most MAX_STRANGERS, each for
               MAX_STRANGER_S and MAX_STRANGER_BYTES
    client     said HELLO and was welcomed                               the server counts these

ZeroMQ itself only ends handshakes that take too long: it does not bound descriptors, and a peer that has
completed the handshake may stay silent forever. ZeroMQ reports the descriptor of each accepted connection and
of each message's connection; the guard ends a connection by shutting its socket down, as a network failure
would. When there are too many strangers the oldest is closed: an honest client is a stranger only for a
moment and so gets in during a flood.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import termios
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from collections.abc import Container

MAX_STRANGERS = 256
MAX_STRANGER_S = 10.0  # the longest handshake and a HELLO; also the time to read the reason of a dismissal
# a HELLO has a few hundred; ZeroMQ holds what is not a whole message yet, 32 times as much where its parts
# are empty
MAX_STRANGER_BYTES = 64 << 10
MAX_UNREAD_BYTES = 4096  # a HELLO that has just come is less
LOOK_S = 0.1
EVENTS_A_ROUND = 256
_ADDRESS = "inproc://shardwright.connections"
_EVENT = struct.Struct("=Hi")  # of a monitor: what happened, and to which descriptor
_BYTES_RECEIVED = struct.Struct("=128xQ")  # of Linux's struct tcp_info: tcpi_bytes_received


@dataclass(frozen=True)
class ConnectionId:
    """A client's connection. ``inode``: which socket the descriptor stood for; descriptors are used again."""

    descriptor: int
    inode: int


@dataclass(frozen=True)
class _Stranger:
    """A connection without a client: no HELLO has come yet, or the client has left."""

    inode: int
    since_s: float


class ConnectionGuard:
    """Registers with ``poller``; made before the ROUTER is bound."""

    def __init__(self, context: zmq.Context[Any], router: zmq.Socket[bytes], poller: zmq.Poller) -> None:
        self._strangers: OrderedDict[int, _Stranger] = OrderedDict()  # by descriptor, the oldest first
        self._clients: set[int] = set()  # inodes
        self.turned_away = 0
        self._next_look_s = 0.0
        self._router = router
        router.monitor(_ADDRESS, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._monitor.rcvhwm = 0  # else ZeroMQ's own thread would wait for us here
        self._monitor.linger = 0
        self._monitor.connect(_ADDRESS)
        poller.register(self._monitor, zmq.POLLIN)

    def serve(self, ready: Container[Any]) -> None:
        """Handles accepted and closed connections. An event may be late: its descriptor may belong to another
        connection by now, or to none."""
        if self._monitor not in ready:
            return
        now_s = time.monotonic()
        for _ in range(EVENTS_A_ROUND):
            try:
                event, descriptor = _EVENT.unpack(self._monitor.recv_multipart(flags=zmq.NOBLOCK)[0])
            except zmq.Again:
                break
            self._strangers.pop(descriptor, None)
            if event == zmq.EVENT_ACCEPTED and (inode := _socket_inode(descriptor)) not in self._clients:
                self._strangers[descriptor] = _Stranger(inode, now_s)
        while len(self._strangers) > MAX_STRANGERS:
            self._turn_away(next(iter(self._strangers)))

    def welcome(self, descriptor: int) -> ConnectionId:
        """Records that the HELLO of this connection was accepted."""
        self._strangers.pop(descriptor, None)
        connection = ConnectionId(descriptor, _socket_inode(descriptor))
        self._clients.add(connection.inode)
        return connection

    def leave(self, connection: ConnectionId) -> None:
        """Makes a client's connection a stranger again: it has ``MAX_STRANGER_S`` to close by itself."""
        self._clients.discard(connection.inode)
        if _is_open(connection):
            self._strangers[connection.descriptor] = _Stranger(connection.inode, time.monotonic())

    def throw_out(self, connection: ConnectionId) -> None:
        """Shuts a client's connection down now."""
        self.leave(connection)
        if connection.descriptor in self._strangers:
            self._turn_away(connection.descriptor)

    @staticmethod
    def bytes_received(connection: ConnectionId) -> int:
        """All bytes that came over a client's connection; 0 where that is not known."""
        return _bytes_received(connection.descriptor) if _is_open(connection) else 0

    @staticmethod
    def waits(connection: ConnectionId) -> bool:
        """True if bytes have come over a client's connection that ZeroMQ has not read yet."""
        return _is_open(connection) and _unread_bytes(connection.descriptor) > 0

    def turn_away_senders(self) -> None:
        """Closes strangers with many unread bytes, which send without a pause, at once. Called when memory is
        short."""
        for descriptor in [
            descriptor for descriptor in self._strangers if _unread_bytes(descriptor) > MAX_UNREAD_BYTES
        ]:
            self._turn_away(descriptor)

    def look(self, now_s: float, *, drained_since_s: float) -> None:
        """Closes strangers that stay too long or send too much. ``drained_since_s``: everything that had come
        before it was received."""
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        for descriptor, stranger in list(self._strangers.items()):
            overdue = now_s - stranger.since_s > MAX_STRANGER_S and stranger.since_s < drained_since_s
            if overdue or _bytes_received(descriptor) > MAX_STRANGER_BYTES:
                self._turn_away(descriptor)

    def _turn_away(self, descriptor: int) -> None:
        inode = self._strangers.pop(descriptor).inode
        self.turned_away += 1
        with contextlib.suppress(OSError), _handle(descriptor) as handle:
            if os.fstat(handle.fileno()).st_ino == inode:
                handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._router.disable_monitor()
        self._monitor.close()


def _is_open(connection: ConnectionId) -> bool:
    """True if the descriptor still belongs to this connection."""
    return _socket_inode(connection.descriptor) == connection.inode


def _socket_inode(descriptor: int) -> int:
    """The inode of the socket; 0 where the connection is gone already."""
    try:
        facts = os.fstat(descriptor)
    except OSError:
        return 0
    return facts.st_ino if stat.S_ISSOCK(facts.st_mode) else 0


def _handle(descriptor: int) -> socket.socket:
    """A duplicate of ZeroMQ's descriptor, which ZeroMQ may close meanwhile. Raises ``OSError`` where it is
    no socket any more."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _bytes_received(descriptor: int) -> int:
    """All bytes that came over TCP; 0 for a Unix socket, whose peers are users of this machine."""
    with contextlib.suppress(OSError, struct.error), _handle(descriptor) as handle:
        if handle.family != socket.AF_UNIX:
            (count,) = _BYTES_RECEIVED.unpack(
                handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
            )
            return int(count)
    return 0


def _unread_bytes(descriptor: int) -> int:
    """Bytes that ZeroMQ has not read yet; 0 where the connection is gone already."""
    with contextlib.suppress(OSError), _handle(descriptor) as handle:
        return int.from_bytes(fcntl.ioctl(handle, termios.FIONREAD, bytes(4)), "little")
    return 0
