"""The connections of clients, from HELLO until each is dismissed or lost: heartbeats, silence, keys, and
every message that is sent.

Part of the ingest loop, in its thread. The loop decides about the acquisitions of a client that is gone.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Protocol

import zmq

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import AccessError, BudgetError, ProtocolError, SessionLostError
from shardwright.model.machine import boot_id
from shardwright.wire.controls import Hello, Problem, Welcome
from shardwright.wire.messages import CONNECTION, Counter, Header, Kind, decode_control

from .allow_list import public_key_of
from .client_state import Client
from .connection_guard import ConnectionGuard
from .inbound_byte_limit import BEYOND_PLAN_BYTES, FURTHER_BYTES, LOOK_S, InboundByteLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from shardwright.ingest.ingest_settings import IngestSettings

    from .allow_list import AllowList, ZapHandler

SOFTWARE = "shardwright-daemon"
LAST_MESSAGES_S = 1.0


class PlannedMemory(Protocol):
    """The memory of the process against its plan, as the loop's owner knows it."""

    @property
    def is_trimming(self) -> bool:
        """True while a trim is under way."""

    def beyond_plan(self) -> int:
        """Returns the bytes that are in no plan."""

    def trim(self) -> None:
        """Begins to give free memory back to the system."""


def is_first(header: Header) -> bool:
    """Returns whether a message can be the first of a connection."""
    return header.kind is Kind.HELLO and header.session == CONNECTION and header.sequence == 0


class Connections:
    """The connections of all clients. ``on_gone(client, why, left)`` is called for each client that is gone;
    ``left``: it said goodbye or broke the protocol, else it may come back."""

    def __init__(
        self,
        settings: IngestSettings,
        on_event: Callable[[str, Mapping[str, Any]], None],
        on_gone: Callable[[Client, ErrorText, bool], None],
    ) -> None:
        self.by_identity: dict[bytes, Client] = {}
        self.stopping = False
        self._settings = settings
        self._instance = secrets.token_hex(16)
        self._on_event = on_event
        self._on_gone = on_gone
        self._router: zmq.Socket[bytes] | None = None
        self._guard: ConnectionGuard | None = None
        self._zap: ZapHandler | None = None
        self._byte_limit = InboundByteLimit(ConnectionGuard.bytes_received, ConnectionGuard.waits)
        self._next_memory_look_s = 0.0
        self._tolerated_bytes = BEYOND_PLAN_BYTES
        self._trimmed = False  # since memory is short
        self._next_heartbeat_s = 0.0

    def use(self, router: zmq.Socket[bytes], guard: ConnectionGuard, zap: ZapHandler | None) -> None:
        """The sockets, once they are bound."""
        self._router, self._guard, self._zap = router, guard, zap

    def __len__(self) -> int:
        return len(self.by_identity)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.by_identity.values())

    def get(self, identity: bytes) -> Client | None:
        return self.by_identity.get(identity)

    @property
    def until_heartbeat_s(self) -> float:
        return self._next_heartbeat_s - time.monotonic()

    def control(self, body: memoryview) -> dict[str, Any]:
        """A control body, as long as this daemon takes them. Raises ``ProtocolError``."""
        if len(body) > self._settings.max_control_bytes:
            raise ProtocolError(
                "a control body that is too long",
                expected=f"at most {self._settings.max_control_bytes} bytes",
                got=len(body),
            )
        return decode_control(body)

    def welcome(self, identity: bytes, header: Header, body: memoryview, frame: zmq.Frame) -> None:
        """Takes the first message of a connection, which must be HELLO. ``frame``: a part of it, which knows
        its connection. Raises the error to dismiss it with."""
        if not is_first(header):
            raise SessionLostError(
                "this connection is not (or no longer) known here",
                expected="HELLO first",
                got=header.kind.name,
            )
        if self.stopping:
            raise SessionLostError("the daemon is stopping")
        if len(self.by_identity) >= self._settings.max_connections:
            raise BudgetError("too many connections", expected=f"at most {self._settings.max_connections}")
        client = Client(
            identity,
            Hello.from_body(self.control(body)),
            Counter(CONNECTION),
            time.monotonic(),
            public_key_of(frame),
        )
        client.counter.accept(header)
        if client.public_key is not None and self._zap is not None:
            client.key_name = self._zap.allowed.name_of(client.public_key)
            self._check_key(client)
        assert self._guard is not None
        client.connection = self._guard.welcome(frame.get(zmq.SRCFD))
        self.by_identity[identity] = client
        settings = self._settings
        welcome = Welcome(
            boot_id=boot_id() if settings.ring_socket is not None else None,
            ring_socket=None if settings.ring_socket is None else str(settings.ring_socket),
            heartbeat_ms=settings.heartbeat_ms,
            session_timeout_ms=settings.session_timeout_ms,
            max_message_bytes=settings.max_message_bytes,
            max_control_bytes=settings.max_control_bytes,
            max_batch_frames=settings.max_batch_frames,
            software=SOFTWARE,
            resume_timeout_ms=settings.resume_timeout_ms,
            updates=True,
            adds_images=True,
            flush_levels=True,
            declares=True,
            removes=True,
            instance=self._instance,
        )
        self.send(client, client.counter.control(Kind.WELCOME, welcome.to_body()))
        self._on_event("client_connected", {**client.facts, "software": client.hello.software})

    def _check_key(self, client: Client) -> None:
        if client.key_name is None:
            raise AccessError("the daemon no longer knows this client's key")
        connections = sum(other.is_same_user(client) for other in self.by_identity.values())
        if connections >= self._settings.max_sessions_per_client:
            raise BudgetError(
                "too many connections with one key",
                expected=f"at most {self._settings.max_sessions_per_client}",
                got=client.key_name,
            )

    def cut_unknown_keys(self, allowed: AllowList) -> None:
        """Cuts clients whose key is no longer on the list. Their acquisitions wait for them as after any lost
        connection."""
        for client in list(self.by_identity.values()):
            if client.public_key is not None and allowed.name_of(client.public_key) is None:
                self.lose(client, ErrorText(AccessError, "its key was taken off the list"), left=False)
                assert self._guard is not None
                if client.connection is not None:
                    self._guard.throw_out(client.connection)

    def dismiss(self, client: Client, why: ErrorText) -> None:
        """Ends a connection with an ERROR. The acquisitions of a client that broke the protocol are sealed;
        one that only fell silent may come back."""
        self.send(client, client.counter.control(Kind.ERROR, Problem(why, fatal=True).to_body()))
        self.lose(client, why, left=not why.is_a(SessionLostError))

    def lose(self, client: Client, why: ErrorText, *, left: bool) -> None:
        """Drops a client that is gone. If it ``left``, its acquisitions are sealed with what arrived; else
        they wait for it."""
        if self.by_identity.pop(client.identity, None) is None:
            return
        client.gone = True
        if self._guard is not None and client.connection is not None:
            self._guard.leave(client.connection)
        orderly = why.code == "closed" or self.stopping
        self._on_event("client_left" if orderly else "client_lost", {**client.facts, "reason": str(why)})
        self._on_gone(client, why, left)

    def can_be_reached(self, client: Client) -> bool:
        """True if a message can be sent to it, as far as ZeroMQ knows."""
        self.send(client, client.counter.control(Kind.HEARTBEAT))
        return not client.gone and client.unreachable is None

    def keep_alive(self, now_s: float, *, begin_s: float, drained: bool, memory: PlannedMemory) -> None:
        """Sends heartbeats and checks the clocks of all connections. Of what had come by ``begin_s`` a
        message of each client was taken; ``drained``: all of it. ``memory`` knows how much memory is beyond
        the plan."""
        assert self._guard is not None
        drained_since_s = begin_s if drained else 0.0
        if now_s >= self._next_memory_look_s:
            self._next_memory_look_s = now_s + LOOK_S
            self._relieve(begin_s, memory)
        self._guard.look(now_s, drained_since_s=drained_since_s)
        for client in self._byte_limit.look(now_s, self.by_identity.values()):
            expected = f"at most {self._byte_limit.most_bytes(client):,} bytes"
            self.dismiss(
                client,
                ErrorText(
                    ProtocolError,
                    "a message without an end",
                    expected,
                    hint="The daemon keeps a message until it is whole",
                ),
            )
        if now_s >= self._next_heartbeat_s:
            self._next_heartbeat_s = now_s + self._settings.heartbeat_ms / 1000
            for client in self.by_identity.values():
                self.send(client, client.counter.control(Kind.HEARTBEAT))
        for client in list(self.by_identity.values()):
            silence_s = now_s - client.last_heard_s
            if silence_s * 1000 > self._settings.session_timeout_ms:
                expected = f"a message within {self._settings.session_timeout_ms} ms"
                self.dismiss(
                    client,
                    ErrorText(
                        SessionLostError, "the client fell silent", expected, f"{silence_s:.1f} s of silence"
                    ),
                )
            elif client.unreachable is not None and (
                client.unreachable_since_s < drained_since_s
                or now_s - client.unreachable_since_s > LAST_MESSAGES_S
            ):
                # Its last messages (perhaps a goodbye) have been taken by now; a peer that keeps on sending
                # gets no more time than this.
                self.lose(
                    client,
                    ErrorText(SessionLostError, "the client is gone", got=client.unreachable),
                    left=False,
                )

    def _relieve(self, begin_s: float, memory: PlannedMemory) -> None:
        """Cuts a client that sends a message without an end: memory that is in no plan and that a trim does
        not give back belongs to incomplete messages. After each cut memory must grow further before the next,
        so that memory with another cause cuts no client for long. A client that was cut wrongly reconnects
        and resumes."""
        assert self._guard is not None
        beyond_bytes = memory.beyond_plan()
        if beyond_bytes <= self._tolerated_bytes:
            self._tolerated_bytes = (
                BEYOND_PLAN_BYTES if beyond_bytes < BEYOND_PLAN_BYTES else self._tolerated_bytes
            )
            self._trimmed = False
            return
        self._guard.turn_away_senders()
        if not self._trimmed:
            self._trimmed = True
            memory.trim()
            return
        surely_bytes = (
            0 if memory.is_trimming else beyond_bytes
        )  # while it is 0 only an overdue client is cut
        if (
            client := self._byte_limit.culprit(begin_s, surely_bytes, self.by_identity.values())
        ) is not None and client.connection is not None:
            expected, got = "an end of each message", f"{beyond_bytes >> 20:,} MiB more than the plan"
            self.lose(
                client, ErrorText(SessionLostError, "a message without an end", expected, got), left=False
            )
            self._guard.throw_out(client.connection)
            self._tolerated_bytes, self._trimmed = beyond_bytes + FURTHER_BYTES, False

    def send(self, client: Client, parts: list[bytes]) -> None:
        """Sends a message without waiting. One that cannot be sent shows that the client is gone."""
        if client.gone or client.unreachable is not None:
            return
        assert self._router is not None
        try:
            self._router.send_multipart([client.identity, *parts], flags=zmq.NOBLOCK)
        except zmq.Again:
            client.unreachable, client.unreachable_since_s = (
                "it does not read its messages",
                time.monotonic(),
            )
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            client.unreachable, client.unreachable_since_s = "its connection was closed", time.monotonic()
