"""Daemons that speak another version, talk nonsense, fall silent or vanish: each a clear error, never a
hang."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import zmq

import shardwright as sw
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.client.daemon_socket import DaemonSocket
from shardwright.model import errors
from shardwright.model.error_text import ErrorText
from shardwright.wire.controls import Problem, Welcome
from shardwright.wire.messages import CONNECTION, Counter, Kind, encode_control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SPEC = ArraySpec(
    dtype="uint8",
    dimensions=[Dimension(name="y", count=4, chunk_size=4), Dimension(name="x", count=5, chunk_size=5)],
)

WHOSE = {
    "acquisition": "ab" * 16,
    "client_epoch": 1,
    "next_sequence": 0,
    "missing": [],
    "overload": "block",
    "durability": "stored",
}


def welcome(counter: Counter, session_timeout_ms: int = 20_000) -> list[bytes]:
    return counter.control(
        Kind.WELCOME,
        Welcome(None, None, 50, session_timeout_ms, 1 << 20, 1 << 18, 64, "test", 60_000).to_body(),
    )


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A daemon that gives one list of messages after each message of a client but heartbeats; None ends it.
    Returns the endpoint: the same for a further daemon, which begins once the earlier one is gone."""
    threads: list[threading.Thread] = []
    done = threading.Event()

    def start(*answers: list[list[bytes]] | None) -> str:
        for earlier in threads:
            earlier.join()  # it removes the socket's file as it ends
        endpoint = f"ipc://{tmp_path}/fake.sock"
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.bind(endpoint)

        def serve() -> None:
            for messages in answers:
                identity, header, *_ = router.recv_multipart()
                while header[6] == Kind.HEARTBEAT:
                    identity, header, *_ = router.recv_multipart()
                for message in messages or []:
                    router.send_multipart([identity, *message])
                if messages is None:
                    break
            else:
                done.wait()
            context.destroy(linger=0)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return endpoint

    yield start
    done.set()
    for thread in threads:
        thread.join()


def test_another_version_is_named_in_the_daemons_words(answering):
    body = encode_control(
        Problem(ErrorText(errors.VersionError, "another protocol version", "3", "2"), fatal=True).to_body()
    )
    header = b"SWR1" + b"\3\0" + bytes([Kind.ERROR]) + b"a header of the future"
    with pytest.raises(errors.VersionError, match="expected 3; got 2"):
        sw.connect(answering([[header, body]]))


@pytest.mark.parametrize(
    "nonsense",
    [[b"", b""], [b"SWR1"], [b"x" * 48, b"{}"], [Counter(CONNECTION).control(Kind.WELCOME, {})[0]]],
    ids=len,
)
def test_nonsense_is_a_protocol_error(answering, nonsense: list[bytes]):
    with pytest.raises(errors.ProtocolError):
        sw.connect(answering([nonsense]))


def test_a_welcome_without_its_fields_is_a_protocol_error(answering):
    with pytest.raises(errors.ProtocolError, match="heartbeat_ms"):
        sw.connect(
            answering([Counter(CONNECTION).control(Kind.WELCOME, {"boot_id": None, "ring_socket": None})])
        )


def test_a_daemon_that_falls_silent_is_given_up(answering, monkeypatch):
    control = DaemonSocket.control

    def send(self: DaemonSocket, kind: Kind, body: dict[str, Any] | None = None) -> None:
        control(self, kind, body)
        if kind == Kind.OPEN:  # only now: before, it would be another daemon that is waited for
            assert self.welcome is not None
            self.welcome = replace(self.welcome, session_timeout_ms=100)

    monkeypatch.setattr(DaemonSocket, "control", send)
    endpoint = answering([welcome(Counter(CONNECTION))])
    with (
        sw.connect(endpoint) as connection,
        pytest.raises(errors.SessionLostError, match="stopped answering"),
    ):
        connection.acquire("a", SPEC)


def test_a_daemon_that_vanishes_is_noticed_before_its_timeout(answering):
    counter = Counter(CONNECTION)
    endpoint = answering([welcome(counter, session_timeout_ms=3_600_000)], None)
    with (
        sw.connect(endpoint) as connection,
        pytest.raises(errors.SessionLostError, match="closed the connection"),
    ):
        connection.acquire("a", SPEC)


def test_a_daemon_that_dies_before_it_welcomes_is_waited_for(answering, monkeypatch):
    """As a service manager starts the next one, here once the client has noticed the death."""
    first = answering(None)
    again: list[str] = []
    close = DaemonSocket.close

    def closed(self: DaemonSocket, linger_ms: int) -> None:
        close(self, linger_ms)
        if not again:
            again.append(answering([welcome(Counter(CONNECTION))]))

    monkeypatch.setattr(DaemonSocket, "close", closed)
    with sw.connect(first, reconnect_timeout_ms=0) as connection:
        assert connection.daemon.session_timeout_ms == 20_000
    assert again == [first]


def test_daemons_that_all_die_before_they_welcome_are_given_up_in_the_end(answering):
    with pytest.raises(errors.SessionLostError, match="no daemon answered"):
        sw.connect(answering(None), timeout_ms=500)


def test_an_answer_to_a_request_nobody_made_ends_the_connection(answering):
    counter = Counter(CONNECTION)
    opened = {
        "request": 9,
        "path": "/a",
        "spec": {},
        "transport": "message",
        "credit_bytes": 20,
        "ring_slots": 1,
        "slot_bytes": 20,
        **WHOSE,
    }
    endpoint = answering([welcome(counter)], [Counter(5).control(Kind.OPENED, opened)])
    with (
        sw.connect(endpoint) as connection,
        pytest.raises(errors.ProtocolError, match="request that was not made"),
    ):
        connection.acquire("a", SPEC)


def test_an_opened_that_contradicts_its_spec_ends_the_connection(answering):
    counter = Counter(CONNECTION)
    facts = {
        "request": 0,
        "path": "/a",
        "spec": SPEC.model_dump(mode="json"),
        "transport": "message",
        "ring_slots": 1,
        **WHOSE,
    }
    opened = Counter(5).control(Kind.OPENED, {**facts, "credit_bytes": 20, "slot_bytes": 21})
    with (
        sw.connect(answering([welcome(counter)], [opened])) as connection,
        pytest.raises(errors.ProtocolError, match="contradict"),
    ):
        connection.acquire("a", SPEC)
