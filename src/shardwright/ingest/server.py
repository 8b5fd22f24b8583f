"""The ingest loop: one thread, one poller over the ROUTER, the ring socket and a wake-up descriptor.

    round    wait -> wake-ups -> new and closed connections -> keys -> ring handovers -> messages
             -> OPEN requests -> each session's pipeline -> heartbeats, silence and strangers

Nothing in a round waits for a disk: the blocking executor makes such calls. An exception in the loop leaves
``run``; its caller must end the process with an error.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import zmq

from shardwright.acquire.acquisition import Acquisition, AcquisitionState
from shardwright.acquire.limits import RUNTIME_BYTES
from shardwright.acquire.measures import BusyClock
from shardwright.disk.ring import Ring, SpareRing
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    ProtocolError,
    SessionLostError,
    ShardwrightError,
    StoreGoneError,
    UnknownAcquisitionError,
    UnknownStreamError,
)
from shardwright.model.names import store_name
from shardwright.model.promise import Promise
from shardwright.recovery.resume import resume
from shardwright.wire.controls import Open, Problem
from shardwright.wire.messages import CONNECTION, Counter, Header, Kind, check_parts, decode_header
from shardwright.wire.session_tables import DaemonEvent

from .blocking_executor import BlockingExecutor
from .open_admission import Admission
from .opening import Openings
from .registry import Sessions
from .totals import CLIENT_STREAM, SAMPLE_S
from .transport.allow_list import ZapHandler
from .transport.client_connections import Connections, is_first
from .transport.client_state import stranger
from .transport.connection_guard import ConnectionGuard
from .transport.endpoints import bind_router, make_context, make_router, remove_socket_files
from .transport.ring_handover import RingHandover

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool
    from shardwright.model.receipt import Watermark
    from shardwright.model.write_options import FlushLevel

    from .ingest_settings import IngestSettings
    from .session import Session

    # what another thread has asked for, how it is begun, and of which session, if of one
    _Asked = tuple[Promise[Any], Callable[[Promise[Any]], None], Session | None]
    from .transport.client_state import Client

T = TypeVar("T")
# at least; never fewer than clients, so that ZeroMQ's fair queueing gives each of them a turn before silence
# is judged
MESSAGES_A_ROUND = 256
MAX_WAIT_MS = 100  # how late a stop is noticed
LINGER_MS = 1000


class IngestServer:
    """The server to which clients send their frames. ``bind``, then ``run`` in one thread. Methods under *Any
    thread* may be called from any."""

    def __init__(
        self,
        settings: IngestSettings,
        pool: WorkerPool,
        *,
        open_acquisition: Callable[..., Acquisition] = Acquisition,
        resume_acquisition: Callable[..., Acquisition] = resume,
        on_event: Callable[[str, Mapping[str, Any]], None] = lambda event, facts: None,
    ) -> None:
        self._settings = settings
        self._on_event = on_event
        self._connections = Connections(settings, on_event, self._client_gone)
        self._sessions = Sessions()
        self._stream_names = (*(stream.name for stream in settings.streams), CLIENT_STREAM)
        self._pool = pool
        self._busy = BusyClock()  # of the ingest thread's rounds
        self._admission = Admission(settings, pool.threads)
        self._rings = SpareRing()
        self._executor = BlockingExecutor(
            pool, self._rings, self._admission, self.wake, open_acquisition, resume_acquisition
        )
        self._openings = Openings(
            self._admission,
            self._sessions,
            self._executor,
            send=self._connections.send,
            probe=self._connections.can_be_reached,
            on_event=on_event,
            resume_timeout_ms=settings.resume_timeout_ms,
        )
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # no earlier: a worker may still be about to wake us
        weakref.finalize(self, os.close, self._wake_descriptor)
        self._context: zmq.Context[Any] | None = None
        self._poller = zmq.Poller()
        self._router: zmq.Socket[bytes] | None = None
        self._endpoints = settings.endpoints
        self._bound: tuple[str, ...] = ()
        self._zap: ZapHandler | None = None
        self._guard: ConnectionGuard | None = None
        self._clients_reloaded = False
        self._low_water_changed = False
        self._handover: RingHandover | None = None
        # Any thread puts, this one takes.
        self._asked: SimpleQueue[_Asked] = SimpleQueue()
        self._stopping = False
        self.left_to_recovery: list[Path] = []  # stores that could not be sealed while it stopped
        self._foreign_messages = 0
        self._next_sample_s = 0.0

    # Any thread
    # ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wakes the loop: a worker has something for ``poll``."""
        os.eventfd_write(self._wake_descriptor, 1)

    def let_go(self) -> None:
        """Ends ``hold``."""
        self._openings.let_go()
        self.wake()

    def dead_threads(self) -> list[str]:
        """The names of helper threads that died, after which the daemon should stop."""
        return self._executor.dead_threads()

    def set_low_water(self, low_water_bytes: int) -> None:
        """Sets the free disk below which an event warns, for all acquisitions from now on."""
        self._admission.set_low_water(low_water_bytes)
        self._low_water_changed = True
        self.wake()

    def reload_clients(self) -> dict[str, list[str]]:
        """Reads the folder of client keys again (``ZapHandler.reload``), in the calling thread; the
        connections of keys that are gone are cut. Raises ``ConfigError``."""
        if self._zap is None:
            return {"added": [], "removed": []}
        try:
            return self._zap.reload()
        finally:
            self._clients_reloaded = True
            self.wake()

    def snapshot(self) -> dict[str, Any]:
        """Returns the part of ingest in the daemon's snapshot. Each number is current; together they are not
        one instant. Totals count from the start of this daemon."""
        totals, rate = self._sessions.totals, self._sessions.rate
        used_bytes = RUNTIME_BYTES + sum(session.memory_bytes for session in totals.running)
        stall_s = max(
            self._busy.busy_s(),
            self._pool.busy_s(),
            *(session.acquisition.sealer_busy_s for session in totals.running),
        )
        return {
            "clients": len(self._connections),
            "foreign_messages": self._foreign_messages,
            "memory": {"used_bytes": used_bytes, "budget_bytes": self._settings.memory_budget_bytes},
            "stall_s": stall_s,
            "rate_hz": rate.hz,
            "bytes_per_s": rate.bytes_per_s,
            **totals.to_dict(self._stream_names),
            "armed": self._openings.arms.to_dict(),
        }

    def bytes_stored(self) -> int:
        """Bytes of the encoded chunks and indexes of all acquisitions since the start."""
        return self._sessions.totals.bytes_stored

    def preview(self, *, stream: str | None = None, name: str | None = None) -> dict[str, Any] | None:
        """The newest frame that was taken of the acquisition ``name``, or of the one of ``stream`` that began
        last; None while there is none.

        This call makes the ingest thread copy its next frame, and costs it nothing else. Raises
        ``UnknownStreamError``, ``InvalidNameError``.
        """
        totals = self._sessions.totals
        names = totals.stream_names(self._stream_names)
        if name is not None:
            chosen = totals.running_named(store_name(name))
        elif stream is not None and stream in names:
            chosen = totals.running_of(stream)
        else:
            raise UnknownStreamError(
                "unknown stream", expected=f"one of {', '.join(names)}", got=repr(stream)
            )
        taken = chosen[-1].preview.ask() if chosen else None
        return None if taken is None else taken.to_dict()

    def stop_acquisition(self, name: str) -> None:
        """Requests the orderly end of an open acquisition; its client is notified when it is sealed. One that
        is armed is disarmed. Raises ``InvalidNameError``, ``UnknownAcquisitionError``."""
        folder = store_name(name)
        if (armed := self._openings.arms.get(folder)) is not None:
            armed.stop_asked = True
        # behind that: its camera may just have come
        running = self._sessions.totals.running_named(folder)
        for session in running if armed is not None else self._open_of(name):
            session.stop_asked = True
        self.wake()

    def arm(
        self, request: Open, waits_s: float, before_s: float = math.inf
    ) -> Promise[Callable[[], dict[str, Any]]]:
        """Requests that an acquisition is prepared for its camera, for ``waits_s`` from the answer on: the
        first OPEN of its name, or of its stream without a name, takes it up. The promise is kept with the
        function that makes its description, as ``describe``. ``before_s``: as of ``Arms.arm``. Raises
        ``InvalidNameError``."""
        store_name(request.name)
        return self._ask(lambda promise: self._openings.arm(request, waits_s, promise, before_s))

    def describe(self, name: str) -> dict[str, Any]:
        """Returns what the data of an armed or open acquisition are (``account.described``). Raises as
        ``flush``."""
        armed = self._openings.arms.get(store_name(name))
        return self._open_of(name)[0].description() if armed is None else armed.description()

    def account(self, name: str) -> dict[str, Any] | None:
        """Returns how far an armed or open acquisition has come, or one of the last that have ended
        (``account.account``); None for any other. Raises ``InvalidNameError``."""
        folder = store_name(name)
        # This first: a session is among the running ones before its acquisition is armed no more.
        if (armed := self._openings.arms.get(folder)) is not None:
            return armed.account()
        running = self._sessions.totals.running_named(folder)
        return running[-1].account() if running else self._sessions.account_of_ended(folder)

    def watched_account(self, name: str) -> dict[str, Any]:
        """As ``account``, of an acquisition that had one. Raises ``UnknownAcquisitionError``."""
        if (found := self.account(name)) is not None:
            return found
        if self._stopping:
            raise SessionLostError("the daemon is stopping")
        raise UnknownAcquisitionError("it is no longer armed, and no camera came", got=name)

    def stored_account(self, name: str) -> Promise[dict[str, Any]]:
        """Looks a finished acquisition up in its store. The promise fails with ``UnknownAcquisitionError``
        where there is none. Raises ``InvalidNameError``."""
        path = self._admission.path_of(name)
        return self._ask(lambda promise: self._executor.look_up(path, promise))

    def update_metadata(self, name: str, image: str | None, attributes: dict[str, Any]) -> Promise[Watermark]:
        """Requests a change of the metadata of an open acquisition, or of an image, as a client does by
        UPDATE. The promise is kept once it is durable. Raises as ``flush``."""
        (session, *_) = self._open_of(name)
        return self._ask(lambda promise: session.update_metadata(image, attributes, promise), session)

    def flush(self, name: str, level: FlushLevel = "durable") -> Promise[Watermark]:
        """Requests that the frames which have come to an open acquisition reach a level. The promise is kept,
        with the watermark as of then, once they have; it fails with what keeps them from it. Raises
        ``InvalidNameError``, ``UnknownAcquisitionError``."""
        (session, *_) = self._open_of(name)
        return self._ask(lambda promise: session.flush(level, promise), session)

    def _ask(self, begin: Callable[[Promise[T]], None], session: Session | None = None) -> Promise[T]:
        """Has the ingest thread begin something that settles the promise."""
        promise: Promise[T] = Promise()
        self._asked.put((promise, begin, session))
        self.wake()
        return promise

    def _open_of(self, name: str) -> list[Session]:
        chosen = self._sessions.totals.running_named(store_name(name))
        if not chosen:
            raise UnknownAcquisitionError(
                "no acquisition of this name is open",
                got=name,
                hint="`shardwright list --daemon` lists those that are",
            )
        return chosen

    def ring_fill(self) -> float:
        """The fill of the fullest ring, 0 to 1: frames that are still needed, including those of a chunk that
        is not full yet. Without those whose acquisition waits for room: only room empties them."""
        return max(
            (session.ring_fill for session in self._sessions if not session.acquisition.waits_for_disk),
            default=0.0,
        )

    def waits_for_room(self) -> bool:
        """True while any acquisition waits for room on a full disk."""
        return any(session.acquisition.waits_for_disk for session in self._sessions)

    def acquiring(self) -> bool:
        """True while any acquisition is open."""
        return len(self._sessions) > 0

    # The ingest thread
    # ----------------------------------------------------------------------------------------------------

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The bound endpoints; a ``*`` port is replaced by the real one."""
        return self._endpoints

    def bind(self) -> None:
        """Binds all sockets. Raises ``ConfigError`` naming the one that cannot be bound; the others are
        closed then, and their files removed."""
        self._context = context = make_context()
        try:
            if self._settings.access is not None:
                self._zap = ZapHandler(context, self._settings.access.clients, self._poller, self._on_event)
            self._router = make_router(context)
            self._guard = ConnectionGuard(context, self._router, self._poller)
            self._connections.use(self._router, self._guard, self._zap)
            self._endpoints = self._bound = bind_router(self._router, self._settings)
            self._poller.register(self._router, zmq.POLLIN)
            self._poller.register(self._wake_descriptor, zmq.POLLIN)
            if self._settings.ring_socket is not None:
                self._handover = RingHandover(
                    self._settings.ring_socket, self._take_ring, self._poller, self._settings.group
                )
        except BaseException:
            self.close()
            raise

    def adopt(self, paths: Iterable[Path]) -> None:
        """Recovers unfinished stores of an earlier process, one after another, while other clients are
        served; their clients may resume or reopen them. Before ``run``."""
        self._openings.adopt(paths)

    def hold(self) -> None:
        """Makes OPEN requests wait until ``let_go``, while clients are welcomed: this machine is not ready to
        take frames yet. Before ``run``."""
        self._openings.hold()

    def run(self, stop: threading.Event) -> None:
        """Serves until ``stop`` is set and every acquisition is sealed. Bind first."""
        linger_ms = 0
        try:
            while not (self._stopping and not self._sessions and not self._openings.busy):
                if stop.is_set() and not self._stopping:
                    self._begin_stop()
                self._round()
            for client in list(self._connections):
                self._connections.dismiss(client, ErrorText(SessionLostError, "the daemon is stopping"))
            linger_ms = LINGER_MS
        finally:
            self._close(linger_ms)

    def close(self) -> None:
        """Closes the sockets that were bound, in place of ``run``, and removes their files. A second call
        does nothing: by then they may be another server's."""
        bound, self._bound = self._bound, ()
        remove_socket_files(bound)
        self._close(linger_ms=0)

    def _begin_stop(self) -> None:
        self._stopping = self._connections.stopping = True
        self._on_event("draining", {"acquisitions": len(self._sessions) + self._openings.busy})
        self._openings.begin_stop()

    def _close(self, linger_ms: int) -> None:
        for promise, *_ in self._take_asked():
            promise.fail(ErrorText(SessionLostError, "the daemon is stopping"))
        self._executor.close()
        self._rings.release()
        handover, guard, context = self._handover, self._guard, self._context
        self._handover = self._guard = self._context = None
        if handover is not None:
            handover.close()
        if guard is not None:
            guard.close()
        if context is not None:
            context.destroy(linger=linger_ms)

    def _round(self) -> None:
        ready = dict(self._poller.poll(self._wait_ms()))
        with self._busy:
            self._serve(ready)

    def _serve(self, ready: Mapping[Any, int]) -> None:
        if self._wake_descriptor in ready:
            os.eventfd_read(self._wake_descriptor)
        assert self._guard is not None
        self._guard.serve(ready)
        if self._zap is not None:
            self._zap.serve(ready)
            if self._clients_reloaded:
                self._clients_reloaded = False
                self._connections.cut_unknown_keys(self._zap.allowed)
        if self._handover is not None:
            self._handover.serve(ready)
        begin_s = time.monotonic()
        drained = self._receive_some()
        self._openings.advance()
        if self._low_water_changed:
            # In this thread, which also adds sessions with the present value: none keeps an older one.
            self._low_water_changed = False
            for session in self._sessions:
                session.acquisition.warn_below(self._admission.low_water_bytes)
        self._begin_asked()
        for session in self._sessions:
            if not session.paused:
                self._advance(session)
        now_s = time.monotonic()
        self._connections.keep_alive(now_s, begin_s=begin_s, drained=drained, memory=self._openings)
        if now_s >= self._next_sample_s:
            self._next_sample_s = now_s + SAMPLE_S
            self._openings.give_back_idle_memory()
            self._sessions.sample_rates(now_s)

    def _begin_asked(self) -> None:
        """Begins what other threads have asked for, but of sessions that are handed over."""
        for promise, begin, session in self._take_asked():
            if session is not None and session.paused:
                self._asked.put((promise, begin, session))
                continue
            try:
                begin(promise)
            except Exception as error:  # noqa: BLE001  (it ends what was asked for, and no acquisition)
                promise.fail(ErrorText.of(error))

    def _take_asked(self) -> list[_Asked]:
        asked = []
        with suppress(Empty):
            while True:
                asked.append(self._asked.get_nowait())
        return asked

    def _advance(self, session: Session) -> None:
        if self._stopping:
            session.stop()
        elif session.stop_asked:
            session.stop(on_request=True)
        elif session.waited_ms > self._settings.resume_timeout_ms:
            session.time_out(self._settings.resume_timeout_ms)
        session.advance()
        if session.ended:
            self._forget(session)

    def _wait_ms(self) -> int:
        return max(0, min(MAX_WAIT_MS, round(self._connections.until_heartbeat_s * 1000 + 0.5)))

    # Messages
    # ----------------------------------------------------------------------------------------------------

    def _receive_some(self) -> bool:
        """Takes the messages that have come, up to a bound; returns True if those were all."""
        assert self._router is not None
        for _ in range(max(MESSAGES_A_ROUND, len(self._connections))):
            try:
                identity, *parts = self._router.recv_multipart(flags=zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return True
            self._receive(bytes(identity.buffer), [part.buffer for part in parts], identity)
        return False

    def _receive(self, identity: bytes, parts: list[memoryview], frame: zmq.Frame) -> None:
        """``frame``: one of the message, which knows its connection."""
        client = self._connections.get(identity)
        try:
            header = decode_header(parts[0] if parts else b"")
            check_parts(header, [len(part) for part in parts[1:]])
            body = parts[1] if len(parts) > 1 else memoryview(b"")
            if client is not None and is_first(header):
                # A client with an identity of its own is back before its broken link was noticed. ZeroMQ
                # keeps a second one with it away while the first is there.
                why = ErrorText(SessionLostError, "its link broke, and it has made another one")
                self._connections.lose(client, why, left=False)
                client = None
            if client is None:
                self._connections.welcome(identity, header, body, frame)
                return
            client.last_heard_s = time.monotonic()
            if header.session == CONNECTION:
                client.counter.accept(header)
                self._receive_for_connection(client, header, body)
                return
        except ShardwrightError as error:
            self._foreign_messages += 1
            self._connections.dismiss(client or stranger(identity), ErrorText.of(error))
            return
        session = self._sessions.of_token(header.session)
        if session is None or session.lease is None or session.lease.client is not client:
            self._refuse_token(client, header)
        else:
            session.receive(header, body, parts[2:])

    def _receive_for_connection(self, client: Client, header: Header, body: memoryview) -> None:
        if header.kind is Kind.OPEN:
            self._openings.open(client, Open.from_body(self._connections.control(body)))
        elif header.kind is Kind.ERROR:
            self._connections.lose(
                client, Problem.from_body(self._connections.control(body)).error, left=True
            )
        elif header.kind is not Kind.HEARTBEAT:
            raise ProtocolError(
                f"{header.kind.name} came out of turn", expected="OPEN, HEARTBEAT or ERROR on session 0"
            )

    def _refuse_token(self, client: Client, header: Header) -> None:
        """Refuses a message of a session that has ended or is another client's; the connection stays."""
        why = ErrorText(
            SessionLostError, "this session has ended or is not yours", got=f"session {header.session:#x}"
        )
        problem = Problem(why, fatal=True)
        self._connections.send(client, Counter(header.session).control(Kind.ERROR, problem.to_body()))

    def _take_ring(self, token: int, ring_token: str) -> Ring | None:
        session = self._sessions.of_token(token)
        return None if session is None else session.take_ring(ring_token)

    # Ends
    # ----------------------------------------------------------------------------------------------------

    def _forget(self, session: Session) -> None:
        self._sessions.forget(session)
        self._openings.acquisition_ended()
        failed, why = session.acquisition.state is AcquisitionState.FAILED, session.why_ended
        receipt = session.acquisition.receipt()
        if self._stopping and session.acquisition.left_to_recovery:
            self.left_to_recovery.append(session.acquisition.path)
        facts = {
            **receipt.counts,
            **({"reason": str(why)} if why else {}),
            **({"exception": why.trace} if why and why.trace else {}),
        }
        session.tell("acquisition_failed" if failed else "acquisition_ended", facts)
        is_there = why is None or not why.is_a(StoreGoneError)
        if incomplete := receipt.incomplete_facts(is_there=is_there):
            session.tell("acquisition_incomplete", incomplete)

    def _client_gone(self, client: Client, why: ErrorText, left: bool) -> None:
        self._rings.release(client)
        self._openings.client_gone(client)
        for session in self._sessions:
            if session.lease is not None and session.lease.client is client:
                if left:
                    session.end_early(DaemonEvent.CLIENT_LEFT, why)
                else:
                    session.lose_client(why)
