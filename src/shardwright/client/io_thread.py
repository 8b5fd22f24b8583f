"""The client's one background thread.

It alone touches the DEALER socket (ZeroMQ sockets are not thread-safe): it sends batches, takes acks, and keeps heartbeats going while the user's
thread sleeps. Whatever ends it is told to every stream, so that nobody waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import zmq

from shardwright.array.grid import Grid
from shardwright.array.parse import parse_spec
from shardwright.model.errors import ClosedError, ConfigError, ProtocolError, SessionLostError, ShardwrightError, VersionError, error_from_dict
from shardwright.wire.controls import Hello, Open, Opened, Problem, Welcome
from shardwright.wire.messages import CONNECTION, Counter, Header, Kind, check_parts, decode_control, decode_header
from shardwright.wire.session import ClientEvent

from .link import Link
from .outbox import Outbox

FLUSH_S = 0.005  # the longest a frame waits for its batch to fill
BATCH_BYTES = 8 << 20  # of pixels: enough to make one message worth its while
GOODBYE_LINGER_MS = 500


class IoThread:
    """``start`` it, then ``open`` sessions. All methods are for the user's threads; everything with a leading underscore runs in the I/O thread."""

    def __init__(self, endpoint: str, software: str) -> None:
        self._endpoint = endpoint
        self._software = software
        self._commands: deque[Open] = deque()
        self._opens: dict[int, Future[Link]] = {}
        self._links: dict[int, Link] = {}
        self._welcome: Welcome | None = None
        self._welcomed: Future[Welcome] = Future()
        self._stopping = False
        self._lock = threading.Lock()  # guards _over against opens that come while the thread ends
        self._over: ShardwrightError | None = None
        self._last_heard_s = 0.0
        self._next_heartbeat_s = 0.0
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="shardwright-client", daemon=True)

    def start(self) -> Future[Welcome]:
        """The answer resolves when the daemon has welcomed us."""
        self._thread.start()
        return self._welcomed

    def open(self, request: Open) -> Future[Link]:
        """Asks for a session. The answer resolves, with a link or an error, at the latest when the connection is given up."""
        answer: Future[Link] = Future()
        with self._lock:
            if self._over is not None:
                raise error_from_dict(self._over.to_dict())
            self._opens[request.request] = answer
            self._commands.append(request)
        self.wake()
        return answer

    def stop(self) -> None:
        """Says goodbye and ends the thread. Sessions that still run are given up."""
        self._stopping = True
        self.wake()
        self._thread.join()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already; closed: the thread has ended and told everyone
            self._wake_sender.send(b"\0")

    # The thread -----------------------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        context = zmq.Context()
        reason: ShardwrightError = ClosedError("the connection was closed")
        try:
            self._connect(context)
            while not self._stopping:
                self._turn()
            self._send(self._channel.control(Kind.ERROR, Problem(ClosedError("the client leaves"), fatal=True).to_body()))
        except ShardwrightError as error:
            reason = error
        except Exception as error:  # noqa: BLE001 - a defect of ours: the user's threads must hear of it rather than wait for ever
            reason = SessionLostError("the client's I/O thread died", got=repr(error))
        finally:
            self._end(reason)
            context.destroy(linger=GOODBYE_LINGER_MS if self._stopping else 0)
            self._wake_sender.close()
            self._wake_receiver.close()

    def _end(self, reason: ShardwrightError) -> None:
        with self._lock:
            self._over = reason
        unanswered: list[Future[Any]] = [self._welcomed, *self._opens.values()]
        for answer in unanswered:
            if not answer.done() and answer.set_running_or_notify_cancel():
                answer.set_exception(reason)
        for link in self._links.values():
            if not link.over:
                link.end(ClientEvent.LOST, reason)

    def _connect(self, context: zmq.Context[Any]) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.sndhwm = 0  # what may wait here is bounded by credit
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            expected, got = "tcp://HOST:PORT or ipc://PATH", f"{self._endpoint!r} ({error})"
            raise ConfigError("not an endpoint to connect to", expected=expected, got=got) from None
        self._poller = zmq.Poller()
        for readable in (self._socket, self._monitor, self._wake_receiver):
            self._poller.register(readable, zmq.POLLIN)
        self._channel = Counter(CONNECTION)
        hello = Hello(self._software, socket.gethostname()[:255], os.getpid())
        self._send(self._channel.control(Kind.HELLO, hello.to_body()))

    def _turn(self) -> None:
        """One round: wait, receive everything, send everything, then judge the time."""
        ready = dict(self._poller.poll(self._wait_ms()))
        if self._wake_receiver.fileno() in ready:
            self._drain_wakes()
        self._receive_all()
        if self._monitor in ready:
            # ZeroMQ would reconnect under a new identity, which the daemon does not know: the sessions are gone either way.
            raise SessionLostError("the daemon closed the connection", got=self._endpoint)
        while self._commands:
            self._send(self._channel.control(Kind.OPEN, self._commands.popleft().to_body()))
        for link in self._links.values():
            for message in link.outgoing():
                self._send(message)
        self._let_go_of_ended_links()
        self._keep_alive(time.monotonic())

    def _let_go_of_ended_links(self) -> None:
        for link in [link for link in self._links.values() if link.over]:
            link.ring = None  # the user may keep the stream for its receipt, but not the ring's memory
            if link.outbox.receipt is not None:  # a failed session may still get one
                del self._links[link.session]

    def _wait_ms(self) -> int:
        """Until the next batch or heartbeat is due."""
        now_s = time.monotonic()
        dues = [now_s + 1.0 if self._welcome is None else self._next_heartbeat_s]
        batches = (link.outbox.seal_if_older(FLUSH_S, now_s) for link in self._links.values() if not link.over)
        dues.extend(due_s for due_s in batches if due_s is not None)
        return max(0, round((min(dues) - now_s) * 1000 + 0.5))

    def _keep_alive(self, now_s: float) -> None:
        if self._welcome is None:
            return
        if now_s >= self._next_heartbeat_s:
            self._next_heartbeat_s = now_s + self._welcome.heartbeat_ms / 1000
            self._send(self._channel.control(Kind.HEARTBEAT))
        silence_s = now_s - self._last_heard_s
        if silence_s * 1000 > self._welcome.session_timeout_ms:
            expected = f"a heartbeat every {self._welcome.heartbeat_ms} ms"
            raise SessionLostError("the daemon stopped answering", expected=expected, got=f"{silence_s:.1f} s of silence")

    def _drain_wakes(self) -> None:
        try:
            while self._wake_receiver.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _send(self, parts: list[Any]) -> None:
        self._socket.send_multipart(parts, flags=zmq.NOBLOCK, copy=False)

    # Messages -------------------------------------------------------------------------------------------------------------------------------

    def _receive_all(self) -> None:
        while True:
            try:
                parts = self._socket.recv_multipart(flags=zmq.NOBLOCK)
            except zmq.Again:
                return
            self._last_heard_s = time.monotonic()
            self._receive(parts)

    def _receive(self, parts: list[bytes]) -> None:
        try:
            header = decode_header(parts[0])
        except VersionError as error:
            raise _told_version_error(parts) or error from None
        check_parts(header, [len(part) for part in parts[1:]])
        body = parts[1] if len(parts) > 1 else b""
        if header.session == CONNECTION:
            self._channel.accept(header)
            self._receive_for_connection(header, body)
            return
        if header.kind is Kind.OPENED and header.session not in self._links:
            self._opened(header.session, Opened.from_body(decode_control(body)))
        link = self._links.get(header.session)
        if link is not None and (answer := link.receive(header, body)) is not None:
            self._send(answer)

    def _receive_for_connection(self, header: Header, body: bytes) -> None:
        if header.kind is Kind.HEARTBEAT:
            return
        facts = decode_control(body)
        if header.kind is Kind.WELCOME and self._welcome is None:
            self._welcome = Welcome.from_body(facts)
            self._welcomed.set_result(self._welcome)
            return
        if header.kind is not Kind.ERROR:
            raise ProtocolError(f"{header.kind.name} came out of turn", expected="HEARTBEAT or ERROR on session 0", got=header.kind.name)
        problem = Problem.from_body(facts)
        if problem.fatal:
            raise problem.error
        answer = self._opens.pop(-1 if problem.request is None else problem.request, None)
        if answer is not None and answer.set_running_or_notify_cancel():
            answer.set_exception(problem.error)

    def _opened(self, session: int, opened: Opened) -> None:
        assert self._welcome is not None
        answer = self._opens.get(opened.request)
        if answer is None:
            raise ProtocolError("OPENED for a request that was not made", expected=f"one of {sorted(self._opens)}", got=opened.request)
        spec = parse_spec(opened.spec)
        if opened.slot_bytes != spec.frame_bytes or opened.credit_bytes != opened.ring_slots * opened.slot_bytes:
            raise ProtocolError("OPENED whose sizes contradict each other", expected=f"slots of {spec.frame_bytes} bytes", got=opened)
        outbox = Outbox(
            slot_count=opened.ring_slots,
            batch_frames=batch_frames(opened, self._welcome),
            slots_are_shared=opened.transport == "shm",
            check_position=Grid.of(spec).check_position,
            wake=self.wake,
        )
        link = self._links[session] = Link(session, opened, spec, self._welcome, outbox)
        del self._opens[opened.request]  # only now: whatever was raised above is told to it
        if answer.set_running_or_notify_cancel():
            answer.set_result(link)
        else:
            outbox.finish()  # the user gave up waiting: nobody will send frames


def batch_frames(opened: Opened, welcome: Welcome) -> int:
    """Frames a batch: a few MiB of pixels, at most a quarter of the ring (so that filling, sending, storing and release overlap)."""
    by_bytes = max(1, BATCH_BYTES // opened.slot_bytes)
    by_ring = max(1, opened.ring_slots // 4)
    return min(by_bytes, by_ring, welcome.max_batch_frames, 1024)


def _told_version_error(parts: list[bytes]) -> ShardwrightError | None:
    """The daemon's own words about our version: ERROR keeps its place in every version."""
    if len(parts) < 2 or len(parts[0]) < 8 or parts[0][6] != Kind.ERROR:
        return None
    try:
        return Problem.from_body(decode_control(parts[1])).error
    except ProtocolError:
        return None
