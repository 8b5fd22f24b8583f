"""The control socket: a Unix stream socket for requests of other processes of this machine (CONTROL.md).

    round   received bytes ──▶ one request of each connection ──▶ replies, those to earlier requests that are
            there now, a line for each watch whose acquisition has changed
            ──▶ connections that took too long are closed ──▶ new connections ──▶ rest

    a request   ──▶ facts     the reply
                ──▶ Later     no reply yet: another thread settles a promise, and wakes this one
                ──▶ Watch     a reply now, and further ones until its last

One thread, non-blocking; without connections it only sleeps. After each round it rests nine times as long as
the round took, so that no number of requests takes more than a tenth of one processor (and of the
interpreter's lock) from the frames. A silent, slow or busy client delays no other: each connection has one
turn a round and its own time limits; when there are too many, one of the process that has most is closed. No
error here ends the daemon.

A line of a watch is made only once the one before is sent: what changed meanwhile is in the next. So a
watch has one line in memory, and a reader that does not take it is closed as any other.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardwright.ingest.transport.endpoints import bind_unix_listener
from shardwright.model.errors import (
    AccessError,
    BudgetError,
    ProtocolError,
    ShardwrightError,
    TimedOutError,
)

from .control_protocol import MAX_REQUEST_BYTES, SINCE, decode_request, encode_error, encode_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from shardwright.model.promise import Promise

# fewer than the connections, so that a request on its way is read before newer connections take its place
ACCEPTED_A_ROUND = 4
REST_RATIO = 9
_CREDENTIALS = struct.Struct("iII")  # of the peer: process, user, group
_PEER_GROUPS = 59  # SO_PEERGROUPS, which ``socket`` does not name
_MOST_GROUPS_BYTES = 1024  # 256 of them; Python reads no more
MAX_REST_S = 0.25
# Requests by which a program takes part in what cameras do.
OF_CAMERAS = frozenset({"arm", "set_metadata"})


@dataclass(frozen=True)
class Later:
    """A reply to come: ``facts`` makes it of what ``promise`` is kept with, in the control thread."""

    promise: Promise[Any]
    facts: Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Watch:
    """Replies without end: ``look`` returns the facts of the next one, and whether it is the last; it may
    raise ``ShardwrightError``, which is the last, too. It is called in the control thread, every ``every_s``
    at most, and waits for nothing."""

    look: Callable[[], tuple[dict[str, Any], bool]]
    every_s: float


if TYPE_CHECKING:
    Reply = dict[str, Any] | Later | Watch  # facts, or how they come
    Answer = Callable[[Mapping[str, Any]], Reply]  # may raise ShardwrightError


@dataclass(frozen=True)
class ControlLimits:
    """The limits of one connection."""

    connections: int = 16
    # for a request line to be complete once it has begun, and for a reply to be read
    transfer_s: float = 5.0
    idle_s: float = 60.0
    watches: int = 8
    silence_s: float = 5.0  # of a watch: then its line comes again, so that its reader knows of the daemon


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
        self._group_id = None if group is None else path.stat().st_gid  # to which it was given just now
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # not when ``run`` ends: another thread may still call ``close``
        weakref.finalize(self, os.close, self._wake_descriptor)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_descriptor, selectors.EVENT_READ)

    def close(self) -> None:
        """Makes ``run``, which must be running or about to, remove the socket and end."""
        self._closed.set()
        self._wake()

    def _wake(self) -> None:
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
        if self._wake_descriptor in ready:
            os.eventfd_read(self._wake_descriptor)
        for connection in self._connections:
            if connection.socket in ready:
                connection.transfer(begin_s)
            if connection.take_line():
                self._turn(connection, partial(self._answer, connection))
            self._go_on(connection)
        now_s = time.monotonic()
        for connection in list(self._connections):
            connection.look_at_the_clock(now_s)
            self._listen_to(connection)
        if self._listener in ready:
            self._accept(now_s)
        self._closed.wait(min(MAX_REST_S, REST_RATIO * (time.monotonic() - begin_s)))

    def _go_on(self, connection: _ControlConnection, *, ending: bool = False) -> None:
        """Sends what there is by now of a reply that did not come at once. ``ending``: for the last time."""
        if connection.begun is not None and not connection.is_busy:
            begin_s = time.monotonic()
            self._turn(connection, partial(connection.go_on, begin_s, ending=ending))
            # The rest between rounds has a limit, for the sake of other requests; that of watches has none.
            watching, end_s = sum(other.watches for other in self._connections), time.monotonic()
            connection.rest_until(end_s + REST_RATIO * watching * (end_s - begin_s))

    def _wait_s(self) -> float | None:
        if any(connection.has_line for connection in self._connections):
            return 0.0
        next_s = min((connection.next_s for connection in self._connections), default=math.inf)
        return None if next_s == math.inf else max(0.0, next_s - time.monotonic())

    def _turn(self, connection: _ControlConnection, made: Callable[[], Reply | None]) -> None:
        """Sends the reply that ``made`` returns, or its error; None: there is nothing to send yet."""
        try:
            reply = made()
            if isinstance(reply, Later | Watch):
                connection.begun = reply
                if isinstance(reply, Later):
                    reply.promise.when_settled(self._wake)
                return
            line = None if reply is None else encode_reply(reply, connection.version)
        except ShardwrightError as error:
            line, connection.begun = encode_error(error, connection.version), None
        except Exception as error:  # noqa: BLE001  (a defect in one answer costs that answer)
            why, request = f"{type(error).__name__}: {error}", connection.request[:160]
            self._emit(
                "control_request_failed",
                {"request": request.decode(errors="replace"), "error": why, "exc_info": error},
            )
            refusal = ShardwrightError("the daemon could not answer", got=why)
            line, connection.begun = encode_error(refusal, connection.version), None
        if line is not None:
            connection.reply(line, time.monotonic())

    def _answer(self, connection: _ControlConnection) -> Reply:
        connection.version = 1  # of the reply to what is no request
        request = decode_request(connection.request)
        do, version = request["do"], int(request["version"])
        connection.version = version
        if do not in self._answers or SINCE.get(do, 1) > version:
            known = [name for name in self._answers if SINCE.get(name, 1) <= version]
            raise ProtocolError(
                "not a control request", expected=f"one of {', '.join(known)}", got=repr(do)[:160]
            )
        if do in OF_CAMERAS and not connection.may_connect_cameras(self._group_id):
            raise AccessError(
                f"{do} is for those who may connect cameras",
                expected="the daemon's user, root, or a member of ingest.group",
                got=f"user {connection.user}",
                hint="Set ingest.group in the daemon's configuration to a group of this user",
            )
        reply = self._answers[do](request)
        watching = sum(other.watches for other in self._connections)
        if isinstance(reply, Watch) and watching >= self._limits.watches:
            raise BudgetError(
                "too many watches at once",
                expected=f"at most {self._limits.watches}",
                hint="End another one first, or ask for counts from time to time",
            )
        return reply

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
            self._go_on(connection, ending=True)
            connection.socket.close()
        self._selector.close()


class _ControlConnection:
    """One connection, with its received and unsent bytes. Owned by the control thread."""

    def __init__(self, connected: socket.socket, limits: ControlLimits, now_s: float) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.process, self.user, self._main_group = _CREDENTIALS.unpack(
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
        # The last request, and the version of its reply.
        self.request, self.version = b"", 1
        # What is to come of its reply. No other request is read meanwhile: a peer that has gone is noticed
        # by the reply, and costs its own process a connection at most (``_make_room``).
        self.begun: Later | Watch | None = None
        # Of a watch: the last facts, when they were sent, when to look again.
        self._told: dict[str, Any] | None = None
        self._told_s = self._look_s = 0.0

    @property
    def watches(self) -> bool:
        return isinstance(self.begun, Watch)

    @property
    def is_busy(self) -> bool:
        """True while no line can be sent."""
        return self.over or bool(self._outbox)

    @property
    def has_line(self) -> bool:
        return b"\n" in self._inbox and not self._outbox and self.begun is None

    @property
    def waits_for(self) -> int:
        if self.over:
            return 0
        if self._outbox:
            return selectors.EVENT_WRITE
        if self.begun is not None:
            return selectors.EVENT_READ if self.watches else 0
        return 0 if self.has_line or self._last_words else selectors.EVENT_READ

    @property
    def next_s(self) -> float:
        """The time at which the connection needs a turn, whatever comes."""
        if self.begun is None or self._outbox:
            return self.due_s
        return self._look_s if self.watches else math.inf

    def may_connect_cameras(self, group_id: int | None) -> bool:
        """Returns whether its process may connect to the local sockets of ingest as well. The modes of the
        control socket may have been opened further."""
        if self.user in (0, os.geteuid()):
            return True
        try:
            groups = self.socket.getsockopt(socket.SOL_SOCKET, _PEER_GROUPS, _MOST_GROUPS_BYTES)
        except OSError:  # it has more, or the kernel is older than 4.13: its main group alone counts
            groups = b""
        return group_id in {self._main_group, *(number for (number,) in struct.iter_unpack("I", groups))}

    def go_on(self, now_s: float, *, ending: bool) -> dict[str, Any] | None:
        """Returns the facts that are to be sent now, None if there are none. Raises what the reply has for an
        error."""
        begun = self.begun
        if isinstance(begun, Later):
            if not begun.promise.done():
                return None
            self.begun = None
            return begun.facts(begun.promise.result())
        assert begun is not None
        if now_s < self._look_s and not ending:
            return None
        self._look_s = now_s + begun.every_s
        facts, is_last = begun.look()
        if is_last:
            self.begun = None
        elif facts == self._told and now_s < self._told_s + self._limits.silence_s:
            return None
        self._told, self._told_s = facts, now_s
        return facts

    def rest_until(self, look_s: float) -> None:
        """Of a watch: does not look before that."""
        self._look_s = max(self._look_s, look_s)

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

    def take_line(self) -> bool:
        """Takes the next request, without its newline, once the last reply is sent. Returns False if there is
        none."""
        if self.over or not self.has_line:
            return False
        self.request, _, rest = bytes(self._inbox).partition(b"\n")
        self._inbox = bytearray(rest)
        self._told, self._look_s = None, 0.0
        return True

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
        waits = self.begun is not None and not self._outbox  # for the daemon
        if self.over or now_s < self.due_s or self.has_line or waits:
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
        if self.watches and piece:
            self.begun = None
            error = ProtocolError("a request in the middle of a watch", expected="none on its connection")
            self._end_with(error, now_s)
            return
        if self.watches or (not piece and not self._inbox):
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
        self.reply(encode_error(error, self.version), now_s)

    def _send(self, now_s: float) -> None:
        sent = self.socket.send(self._outbox)
        self._outbox = self._outbox[sent:]
        if not self._outbox:
            self.over = self._last_words
            self.due_s = now_s + (self._limits.transfer_s if self._inbox else self._limits.idle_s)
