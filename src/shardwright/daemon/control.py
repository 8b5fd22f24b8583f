"""The control socket: a Unix stream socket for requests of other processes of this machine (CONTROL.md), and
the answers to them (``Requests``).

    round   received bytes ──▶ one request of each connection ──▶ replies
            ──▶ connections that took too long are closed ──▶ new connections ──▶ rest

One thread, non-blocking; without connections it only sleeps. After each round it rests nine times as long as
the round took, so that no number of requests takes more than a tenth of one processor (and of the
interpreter's lock) from the frames. A silent, slow or busy client delays no other: each connection has one
turn a round and its own time limits; when there are too many, one of the process that has most is closed. No
error here ends the daemon.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.ingest.transport.endpoints import bind_unix_listener
from shardwright.model.errors import ProtocolError, ShardwrightError, TimedOutError

from .control_protocol import MAX_REQUEST_BYTES, decode_request, encode_error, encode_reply
from .events import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from shardwright.ingest import IngestServer

    from .events import RecentEvents

    # from a request to the facts of its reply; may raise ShardwrightError
    Answer = Callable[[Mapping[str, Any]], dict[str, Any]]

# fewer than the connections, so that a request on its way is read before newer connections take its place
ACCEPTED_A_ROUND = 4
REST_RATIO = 9
_CREDENTIALS = struct.Struct("3i")  # of the peer: process, user, group
MAX_REST_S = 0.25


@dataclass(frozen=True)
class ControlLimits:
    """The limits of one connection."""

    connections: int = 16
    # for a request line to be complete once it has begun, and for a reply to be read
    transfer_s: float = 5.0
    idle_s: float = 60.0


class ControlServer:
    """The server. The constructor binds the socket and raises ``ConfigError``; ``run`` is the control thread;
    ``close`` is for any other.

    ``answers`` are called in the control thread and must not wait for anything. ``group``: its members may
    connect; None: this user only.
    """

    def __init__(
        self,
        path: Path,
        answers: Mapping[str, Answer],
        emit: Callable[[str, Mapping[str, Any]], None],
        limits: ControlLimits = ControlLimits(),
        group: str | None = None,
    ) -> None:
        self.path = path
        self._answers = answers
        self._emit = emit
        self._limits = limits
        self._closed = threading.Event()
        self._connections: list[_ControlConnection] = []
        self._listener = bind_unix_listener(path, group)
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # not when ``run`` ends: another thread may still call ``close``
        weakref.finalize(self, os.close, self._wake_descriptor)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_descriptor, selectors.EVENT_READ)

    def close(self) -> None:
        """Makes ``run``, which must be running or about to, remove the socket and end."""
        self._closed.set()
        os.eventfd_write(self._wake_descriptor, 1)

    def run(self) -> None:
        """Serves until ``close``."""
        try:
            while not self._closed.is_set():
                self._round()
        except Exception as error:  # noqa: BLE001  (frames do not depend on it)
            self._emit(
                "control_died",
                {"path": str(self.path), "error": f"{type(error).__name__}: {error}", "exc_info": error},
            )
        finally:
            self._shut()

    def _round(self) -> None:
        ready = {key.fileobj for key, _ in self._selector.select(self._wait_s())}
        begin_s = time.monotonic()
        for connection in self._connections:
            if connection.socket in ready:
                connection.transfer(begin_s)
            if (line := connection.next_line()) is not None:
                connection.reply(self._reply_to(line), time.monotonic())
        now_s = time.monotonic()
        for connection in list(self._connections):
            connection.look_at_the_clock(now_s)
            self._listen_to(connection)
        if self._listener in ready:
            self._accept(now_s)
        self._closed.wait(min(MAX_REST_S, REST_RATIO * (time.monotonic() - begin_s)))

    def _wait_s(self) -> float | None:
        if any(connection.has_line for connection in self._connections):
            return 0.0
        due_s = min((connection.due_s for connection in self._connections), default=None)
        return None if due_s is None else max(0.0, due_s - time.monotonic())

    def _reply_to(self, line: bytes) -> bytes:
        try:
            request = decode_request(line)
            return encode_reply(self._answers.get(request["do"], self._refuse)(request))
        except ShardwrightError as error:
            return encode_error(error)
        except Exception as error:  # noqa: BLE001  (a defect in one answer costs that answer)
            why = f"{type(error).__name__}: {error}"
            self._emit(
                "control_request_failed",
                {"request": line[:160].decode(errors="replace"), "error": why, "exc_info": error},
            )
            return encode_error(ShardwrightError("the daemon could not answer", got=why))

    def _refuse(self, request: Mapping[str, Any]) -> dict[str, Any]:
        raise ProtocolError(
            "not a control request",
            expected=f"one of {', '.join(self._answers)}",
            got=repr(request["do"])[:160],
        )

    def _accept(self, now_s: float) -> None:
        for _ in range(ACCEPTED_A_ROUND):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gone again, or out of descriptors: waiting clients are accepted later
                self._closed.wait(MAX_REST_S)
                return
            if len(self._connections) >= self._limits.connections:
                self._make_room()
            connection = _ControlConnection(accepted, self._limits, now_s)
            self._connections.append(connection)
            self._listen_to(connection)

    def _make_room(self) -> None:
        """Closes one connection: of the process that has most, the one without a reply for longest. So no
        client's flood costs another its connection."""
        by_process = Counter(connection.process for connection in self._connections)
        most = max(by_process.values())
        greedy = [connection for connection in self._connections if by_process[connection.process] == most]
        useless = min(greedy, key=lambda connection: connection.useful_s)
        useless.over = True
        self._listen_to(useless)

    def _listen_to(self, connection: _ControlConnection) -> None:
        """Registers in the selector what the connection waits for now; removes it once it is over."""
        if connection.waits_for != connection.listened_for:
            if connection.listened_for:
                self._selector.unregister(connection.socket)
            if connection.waits_for and not connection.over:
                self._selector.register(connection.socket, connection.waits_for)
            connection.listened_for = connection.waits_for
        if connection.over:
            self._connections.remove(connection)
            connection.socket.close()

    def _shut(self) -> None:
        # before the listener is closed: until then no other process can have taken the path
        self.path.unlink(missing_ok=True)
        self._listener.close()
        for connection in self._connections:
            connection.socket.close()
        self._selector.close()


class _ControlConnection:
    """One connection, with its received and unsent bytes. Owned by the control thread."""

    def __init__(self, connected: socket.socket, limits: ControlLimits, now_s: float) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.process, _, _ = _CREDENTIALS.unpack(
            connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        self.useful_s = now_s  # time of the start, or of the last reply
        self.due_s = now_s + limits.idle_s
        self.listened_for = 0  # as registered in the selector
        self.over = False
        self._limits = limits
        # at most one request longer than allowed: no more is read while one waits
        self._inbox = bytearray()
        self._outbox = memoryview(b"")
        self._last_words = False  # the last reply: over once the outbox is empty

    @property
    def has_line(self) -> bool:
        return b"\n" in self._inbox and not self._outbox

    @property
    def waits_for(self) -> int:
        if self.over:
            return 0
        if self._outbox:
            return selectors.EVENT_WRITE
        return 0 if self.has_line or self._last_words else selectors.EVENT_READ

    def transfer(self, now_s: float) -> None:
        """Sends or receives; the socket is ready for it."""
        try:
            if self._outbox:
                self._send(now_s)
            else:
                self._receive(now_s)
        except BlockingIOError:
            pass
        except OSError:
            self.over = True

    def next_line(self) -> bytes | None:
        """Returns the next request, without its newline, once the last reply is sent."""
        if self.over or not self.has_line:
            return None
        line, _, rest = bytes(self._inbox).partition(b"\n")
        self._inbox = bytearray(rest)
        return line

    def reply(self, line: bytes, now_s: float) -> None:
        self._outbox = memoryview(line)
        self.useful_s, self.due_s = now_s, now_s + self._limits.transfer_s
        try:
            self._send(now_s)
        except BlockingIOError:
            pass
        except OSError:
            self.over = True

    def look_at_the_clock(self, now_s: float) -> None:
        """Ends the connection if its time is over."""
        if self.over or now_s < self.due_s or self.has_line:
            return
        if self._inbox and not self._outbox:
            expected = f"its end within {self._limits.transfer_s:g} s"
            self._end_with(
                TimedOutError("a control request did not end", expected=expected, hint="Each is one line"),
                now_s,
            )
        self.over = True  # also when that error could not be sent in full

    def _receive(self, now_s: float) -> None:
        piece = self.socket.recv(MAX_REQUEST_BYTES + 1 - len(self._inbox))
        if not piece and not self._inbox:
            self.over = True
            return
        if piece and not self._inbox:
            self.due_s = now_s + self._limits.transfer_s
        self._inbox += piece
        if self.has_line:
            return
        if not piece:
            self._end_with(
                ProtocolError("a control request that ends in the middle", expected="a newline after each"),
                now_s,
            )
        elif len(self._inbox) > MAX_REQUEST_BYTES:
            self._end_with(
                ProtocolError(
                    "a control request that is too long", expected=f"at most {MAX_REQUEST_BYTES} bytes"
                ),
                now_s,
            )

    def _end_with(self, error: ShardwrightError, now_s: float) -> None:
        self._inbox.clear()
        self._last_words = True
        self.reply(encode_error(error), now_s)

    def _send(self, now_s: float) -> None:
        sent = self.socket.send(self._outbox)
        self._outbox = self._outbox[sent:]
        if not self._outbox:
            self.over = self._last_words
            self.due_s = now_s + (self._limits.transfer_s if self._inbox else self._limits.idle_s)


class Requests:
    """The answers to requests. ``answers`` are called in the control thread. ``status`` takes the snapshot,
    ``drain`` ends the daemon as a signal would."""

    def __init__(
        self,
        server: IngestServer,
        events: RecentEvents,
        *,
        status: Callable[[], dict[str, Any]],
        drain: Callable[[], None],
    ) -> None:
        self._server = server
        self._events = events
        self._status = status
        self._drain = drain

    @property
    def answers(self) -> dict[str, Answer]:
        """The function that answers each request, by the request's name."""
        return {
            "status": self._reply_status,
            "events": self._reply_events,
            "preview": self._reply_preview,
            "stop": self._stop,
            "drain": self._end,
        }

    def _reply_status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": self._status()}

    def _reply_events(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": self._events.after(_count(request, "after"), _level(request, "least"))}

    def _reply_preview(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if ("stream" in request) == ("name" in request):
            raise ProtocolError(
                "a preview is of one stream or of one acquisition", expected='either "stream" or "name"'
            )
        which = "stream" if "stream" in request else "name"
        return {"preview": self._server.preview(**{which: _text(request, which)})}

    def _stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._server.stop_acquisition(_text(request, "name"))
        return {}

    def _end(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._drain()
        return {}


def _count(request: Mapping[str, Any], field: str) -> int:
    """Returns a whole number; 0 where the request has none."""
    value = request.get(field, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _invalid(field, value, "a whole number, 0 or more")
    return value


def _level(request: Mapping[str, Any], field: str) -> str:
    """Returns a level of events; the lowest where the request has none."""
    value = request.get(field, "debug")
    if not isinstance(value, str) or value not in LEVELS:
        raise _invalid(field, value, f"one of {', '.join(LEVELS)}")
    return value


def _text(request: Mapping[str, Any], field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str):
        raise _invalid(field, value, "text")
    return value


def _invalid(field: str, value: object, expected: str) -> ProtocolError:
    return ProtocolError(
        f"{field} of a control request is not valid", expected=expected, got=repr(value)[:160]
    )
