"""The client's background thread: sends batches, receives acks, and sends heartbeats while the user's threads
sleep.

    connected    wait -> receive everything -> rings that are ready -> send everything -> heartbeats and
                 silence
    broken       every stream is detached and keeps its frames; a new connection is tried until it is made or
                 the time for it is over
    connected    every stream that is open is resumed: a new ring, then the frames that the daemon does not
                 have, then new ones. An OPEN without an answer is sent again

Rings are fetched and filled in one helper thread, so that heartbeats continue. An error that ends the thread
is passed to every stream, so that no thread of the user waits for ever.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import zmq

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    AccessError,
    BudgetError,
    ClosedError,
    ProtocolError,
    SessionLostError,
    ShardwrightError,
)
from shardwright.model.promise import Promise
from shardwright.wire.controls import Open, Opened, Problem
from shardwright.wire.messages import CONNECTION, Header, Kind, decode_control
from shardwright.wire.session_tables import ClientEvent

from .daemon_socket import DaemonSocket
from .link import new_link
from .rings import Rings

if TYPE_CHECKING:
    from shardwright.wire.controls import Welcome

    from .curve import Keys
    from .link import Link

FLUSH_S = 0.005  # the longest a frame waits for its batch to fill
GOODBYE_LINGER_MS = 500
BACKOFF_S, MAX_BACKOFF_S = 0.05, 1.0  # between connections
LAST_TRY_MS = 500  # for a connection that is begun when the time is nearly over
_FIRST_PATIENCE_MS = 365 * 24 * 3_600_000  # ``connect`` has its own clock


class _Over(Exception):  # noqa: N818 - no error: it carries one out of the loop
    """Ends the thread with this reason."""

    def __init__(self, reason: ErrorText) -> None:
        super().__init__()
        self.reason = reason


class IoThread:
    """The I/O thread: ``start`` it, then ``open`` sessions. Public methods are for the user's threads; those
    with a leading underscore run in the I/O thread."""

    def __init__(
        self, endpoint: str, software: str, reconnect_timeout_ms: int, keys: Keys | None = None
    ) -> None:
        self._endpoint = endpoint
        self._keys = keys
        self._software = software
        self._reconnect_timeout_ms = reconnect_timeout_ms
        self._requests = itertools.count()  # also taken by the user's threads: one step
        # What the user's threads and this one share: requests to open, and why there will be none any more.
        # ``_lock`` guards ``_over`` against a request that comes while the thread ends: either that request
        # is refused, or its answer fails with the others. Without it a caller could wait for ever.
        self._lock = threading.Lock()
        self._over: ErrorText | None = None
        self._commands: deque[Open] = deque()  # not sent yet
        self._opens: dict[int, tuple[Open, Promise[Link]]] = {}  # not answered, sent or not
        self._stopping = False  # set by any thread, never taken back
        # From here on the I/O thread's alone. Each link is in ``_links`` (by session, while it is attached)
        # or in ``_detached``, until it has ended.
        self._links: dict[int, Link] = {}
        self._detached: list[Link] = []
        self._resumptions: dict[int, Link] = {}  # of detached ones, by request, not answered
        self._answers: dict[Link, Promise[Link]] = {}  # of links whose first ring is being made
        # Requests to open that were sent, and to which daemon process. Its answer may have been lost with the
        # connection: the same one finds it by the request's token, another one knows nothing of it.
        self._sent: set[int] = set()
        self._sent_to: str | None = None
        self._rings = Rings(self.wake)
        self._welcome: Welcome | None = None  # the last one; None: never connected, ``connect`` still waits
        self._welcomed: Promise[Welcome] = Promise()
        self._socket: DaemonSocket | None = None  # None: between two connections
        # Since when there is no connection on which every stream is resumed. A connection that breaks before
        # that does not begin the time anew, or a daemon that dies at each resume were tried for ever.
        self._lost_since_s: float | None = None
        self._refusal: ErrorText | None = None  # the last one since then: a better reason than silence
        self._next_try_s = 0.0
        self._backoff_s = BACKOFF_S
        self._wake_up = WakeUp()
        self._thread = threading.Thread(target=self._run, name="shardwright-client", daemon=True)

    def start(self) -> Promise[Welcome]:
        """Starts the thread. The answer resolves when the daemon has sent WELCOME."""
        self._thread.start()
        return self._welcomed

    def open(self, request: Open) -> Promise[Link]:
        """Requests a session. The answer resolves, with an error or a link that has its ring, at the latest
        when the connection is given up."""
        answer: Promise[Link] = Promise()
        with self._lock:
            if self._over is not None:
                raise self._over.to_error()
            self._opens[request.request] = request, answer
            self._commands.append(request)
        self.wake()
        return answer

    def next_request(self) -> int:
        return next(self._requests)

    def stop(self, wait_s: float | None = None) -> None:
        """Says goodbye and ends the thread, for which it waits. Sessions that still run are given up."""
        self._stopping = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(wait_s)

    def wake(self) -> None:
        self._wake_up.send()

    # The thread
    # ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        context = zmq.Context()
        reason = ErrorText(ClosedError, "the connection was closed")
        try:
            self._connect(context)
            while not self._stopping:
                self._turn(context)
            if self._socket is not None:
                with contextlib.suppress(ShardwrightError):  # the peer may be gone
                    self._socket.control(
                        Kind.ERROR, Problem(ErrorText(ClosedError, "the client leaves"), fatal=True).to_body()
                    )
        except _Over as over:
            reason = over.reason
        except ShardwrightError as error:
            reason = ErrorText.of(error)
        except Exception as error:  # noqa: BLE001 - a defect of ours: the user's threads must get it and not wait for ever
            reason = ErrorText.of(error, SessionLostError("the client's I/O thread died", got=repr(error)))
        finally:
            self._end(reason)
            self._rings.close()
            if self._socket is not None:
                self._socket.close(GOODBYE_LINGER_MS if self._stopping else 0)
            context.term()
            self._wake_up.close()

    def _end(self, reason: ErrorText) -> None:
        with self._lock:
            self._over = reason
        answers: list[Promise[Any]] = [
            self._welcomed,
            *(answer for _, answer in self._opens.values()),
            *self._answers.values(),
        ]
        for answer in answers:
            answer.fail(reason)
        for link in [*self._links.values(), *self._detached]:
            if not link.over:
                link.end(ClientEvent.LOST, reason)
            link.outbox.drop_ring()

    def _connect(self, context: zmq.Context[Any]) -> None:
        self._socket = DaemonSocket(context, self._endpoint, self._software, self._keys)
        self._socket.poller.register(self._wake_up.receiver, zmq.POLLIN)

    def _turn(self, context: zmq.Context[Any]) -> None:
        if self._socket is None:
            self._wait_for_next_try(context)
            return
        try:
            self._round(self._socket)
        except (SessionLostError, BudgetError, AccessError) as error:
            # After a first success: earlier connections of ours may still be counted, and a list of keys may
            # be changing.
            if self._lost_since_s is None and not isinstance(error, SessionLostError):
                raise
            self._lose(ErrorText.of(error))

    def _round(self, daemon_socket: DaemonSocket) -> None:
        """Waits, receives everything, sends everything, then checks the time limits."""
        self._wait(daemon_socket)
        for header, body in daemon_socket.receive():
            self._receive(daemon_socket, header, body)
        daemon_socket.check_connected()
        if daemon_socket.welcome is not None:
            if daemon_socket.welcome is not self._welcome:
                self._be_welcomed(daemon_socket, daemon_socket.welcome)
            while self._commands:
                request = self._commands.popleft()
                self._sent.add(request.request)
                daemon_socket.control(Kind.OPEN, request.to_body())
        self._take_rings(daemon_socket)
        for link in self._links.values():
            for message in link.outgoing():
                daemon_socket.send(message)
        self._let_go_of_ended_links()
        daemon_socket.keep_alive(time.monotonic(), self._patience_ms(daemon_socket))

    def _patience_ms(self, daemon_socket: DaemonSocket) -> float:
        """The time that a connection may take until WELCOME."""
        if self._welcome is None or self._lost_since_s is None:
            return _FIRST_PATIENCE_MS
        left_ms = self._reconnect_timeout_ms - (daemon_socket.started_s - self._lost_since_s) * 1000
        return min(self._welcome.session_timeout_ms, max(left_ms, LAST_TRY_MS))

    def _wait(self, daemon_socket: DaemonSocket) -> None:
        """Waits until something comes, or the next batch or heartbeat is due."""
        now_s = time.monotonic()
        dues = [now_s + 1.0 if daemon_socket.welcome is None else daemon_socket.next_heartbeat_s]
        batches = (
            link.outbox.seal_if_older(FLUSH_S, now_s) for link in self._links.values() if not link.over
        )
        dues.extend(due_s for due_s in batches if due_s is not None)
        daemon_socket.poller.poll(max(0, round((min(dues) - now_s) * 1000 + 0.5)))
        self._wake_up.drain()

    def _let_go_of_ended_links(self) -> None:
        for link in [link for link in self._links.values() if link.over]:
            link.outbox.drop_ring()
            if link.outbox.receipt is not None:  # a failed session may still get one
                del self._links[link.session]

    # The connection breaks and is made again
    # ------------------------------------------------------------------------------------------------

    def _lose(self, why: ErrorText) -> None:
        """Drops the connection. Every stream keeps what was not released. Requests to open that were sent are
        sent again to the same daemon, which knows them; else they fail, since its progress is unknown."""
        now_s = time.monotonic()
        if self._welcome is not None:  # else ``connect`` waits for a daemon, and for the next one
            self._check_time_left(why, now_s)
        self._sent &= self._opens.keys()
        self._sent_to = None if self._welcome is None else self._welcome.instance
        if self._sent_to is None:
            self._fail_sent(why)
        for link in self._links.values():
            link.detach()
        self._detached += [link for link in self._links.values() if not link.over]
        self._links.clear()
        self._resumptions.clear()
        assert self._socket is not None
        self._socket.close(0)
        self._socket = None
        self._next_try_s, self._backoff_s = now_s + self._backoff_s, min(2 * self._backoff_s, MAX_BACKOFF_S)

    def _fail_sent(self, why: ErrorText) -> None:
        for request in self._sent:
            self._opens.pop(request)[1].fail(why)
        self._sent.clear()

    def _check_time_left(self, why: ErrorText, now_s: float) -> None:
        """Raises ``_Over`` once the time for a new connection is over."""
        if self._reconnect_timeout_ms == 0:
            raise _Over(why)
        if not why.is_a(SessionLostError):
            self._refusal = why
        if self._lost_since_s is None:
            self._lost_since_s = now_s
        elif (now_s - self._lost_since_s) * 1000 > self._reconnect_timeout_ms:
            # the last refusal is a better reason than "too late"
            raise _Over(self._refusal or why)

    def _wait_for_next_try(self, context: zmq.Context[Any]) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_up.receiver, zmq.POLLIN)
        now_s = time.monotonic()
        while now_s < self._next_try_s and not self._stopping:
            poller.poll(max(1, round((self._next_try_s - now_s) * 1000)))
            self._wake_up.drain()
            now_s = time.monotonic()
        if not self._stopping:
            self._connect(context)

    def _be_welcomed(self, daemon_socket: DaemonSocket, welcome: Welcome) -> None:
        """Handles WELCOME: the first, or the one with which streams are resumed."""
        first, self._welcome = self._welcome is None, welcome
        if first:
            self._welcomed.keep(welcome)
        for link in self._detached:
            if not link.over:
                request = link.resumption(self.next_request())
                self._resumptions[request.request] = link
                daemon_socket.control(Kind.OPEN, request.to_body())
        if welcome.instance != self._sent_to:
            why = "the daemon was replaced while it opened the acquisition"
            hint = "It may be there, without a frame: acquire(..., reopen=True) goes on with it"
            self._fail_sent(ErrorText(SessionLostError, why, hint=hint))
        for number in sorted(self._sent):
            daemon_socket.control(Kind.OPEN, self._opens[number][0].to_body())
        if not self._resumptions and not self._sent:
            self._be_whole()

    def _be_whole(self) -> None:
        """Ends the time without a connection: every stream is resumed."""
        self._lost_since_s, self._refusal, self._backoff_s = None, None, BACKOFF_S

    # Messages
    # ----------------------------------------------------------------------------------------------------

    def _receive(self, daemon_socket: DaemonSocket, header: Header, body: bytes) -> None:
        if header.session == CONNECTION:
            self._refused(Problem.from_body(decode_control(body)))
            return
        if header.kind is Kind.OPENED and header.session not in self._links:
            assert daemon_socket.welcome is not None
            self._opened(
                daemon_socket, header.session, Opened.from_body(decode_control(body)), daemon_socket.welcome
            )
        link = self._links.get(header.session)
        if link is not None and (answer := link.receive(header, body)) is not None:
            daemon_socket.send(answer)
        if link is not None and link in self._answers and (why := link.outbox.error) is not None:
            # it ended before its ring was made, which ``Rings.made`` no longer returns
            self._answers.pop(link).fail(why)

    def _refused(self, problem: Problem) -> None:
        """Handles an OPEN that was answered with an error."""
        request = -1 if problem.request is None else problem.request
        link = self._resumptions.pop(request, None)
        if link is not None:
            link.refused(problem)
            link.outbox.drop_ring()
            self._detached.remove(link)
        elif request in self._opens:
            _, answer = self._opens.pop(request)
            answer.fail(problem.error)
        if not self._resumptions:
            self._be_whole()

    def _opened(self, daemon_socket: DaemonSocket, session: int, opened: Opened, welcome: Welcome) -> None:
        link = self._resumptions.pop(opened.request, None)
        if link is not None:
            self._detached.remove(link)
            self._links[session] = link
            try:
                link.resumed(session, opened, welcome)
            except ShardwrightError as error:
                daemon_socket.send(link.give_up(ErrorText.of(error)))
        else:
            link = self._opened_first(session, opened, welcome)
        if not link.over:
            self._rings.make(link, session, opened, welcome)
        if not self._resumptions:
            self._be_whole()

    def _opened_first(self, session: int, opened: Opened, welcome: Welcome) -> Link:
        if opened.request not in self._opens:
            raise ProtocolError(
                "OPENED for a request that was not made",
                expected=f"one of {sorted(self._opens)}",
                got=opened.request,
            )
        request, answer = self._opens[opened.request]
        link = self._links[session] = new_link(
            request, session, opened, welcome, wake=self.wake, keep_ring=self._rings.keep
        )
        del self._opens[opened.request]  # only now: an error above goes to its answer
        self._answers[link] = answer
        return link

    def _take_rings(self, daemon_socket: DaemonSocket) -> None:
        """Starts or fails the links whose rings are made."""
        for link, why in self._rings.made():
            if why is None:
                if (answer := link.ready()) is not None:
                    daemon_socket.send(answer)
                self._answer(daemon_socket, link)
            elif link not in self._answers and self._rings.may_try_again(link, why):
                raise why.to_error()  # most likely the daemon is gone again
            else:
                daemon_socket.send(link.give_up(why))
                if link in self._answers:
                    self._answers.pop(link).fail(why)

    def _answer(self, daemon_socket: DaemonSocket, link: Link) -> None:
        answer = self._answers.pop(link, None)
        if answer is not None and not answer.keep(link):  # the user gave up waiting: no frames will come
            daemon_socket.send(link.give_up(ErrorText(ClosedError, "the caller of acquire has given up")))


class WakeUp:
    """The wake-up of the I/O thread. ``receiver`` is polled. ``send`` is for any thread and never blocks; the
    other methods are for the thread that is woken."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def send(self) -> None:
        # full: the thread wakes up anyway; closed: it has ended and failed every promise
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def drain(self) -> None:
        try:
            while self.receiver.recv(4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._sender.close()
        self.receiver.close()
