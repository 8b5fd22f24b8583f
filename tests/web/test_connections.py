"""Clients that hang, trickle, flood or talk nonsense hold what they hold for a short while, and the others
are served all the same."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.json_process import wait_for

from .web_process import WebProcess, is_cut_off, read_to_the_end, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
MOST = 8
# No time runs out for those who are served, however slow this machine is.
FEW = f"LimitedConnection.max_connections = {MOST}; "
PATIENT = FEW + "LimitedConnection.head_s = LimitedConnection.stall_s = 300"
SHORT = FEW + "LimitedConnection.head_s = 0.3; LimitedConnection.stall_s = 2; connections.KEEP_ALIVE_S = 1"
BIG_BYTES = 64 << 20


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    (root / "big.ome.zarr").mkdir()
    (root / "big.ome.zarr" / "zarr.json").write_text("{}")
    with (root / "big.ome.zarr" / "shard").open("wb") as shard:
        shard.truncate(BIG_BYTES)
    return root


@contextmanager
def serving(root: Path, limits: str) -> Iterator[WebProcess]:
    with WebProcess(settings_for(root), sabotage=limits) as site:
        yield site
        assert site.errors() == "", "none of this is worth a line in the log"


@pytest.fixture(scope="module")
def site(root: Path) -> Iterator[WebProcess]:
    with serving(root, PATIENT) as site:
        yield site


@pytest.fixture(scope="module")
def hasty(root: Path) -> Iterator[WebProcess]:
    """Whoever talks to it does so while it is ``stopped``: its time may run out before a word is said."""
    with serving(root, SHORT) as site:
        yield site


@contextmanager
def stopped(site: WebProcess) -> Iterator[None]:
    """What is said to it meanwhile is there as soon as it looks."""
    site.process.send_signal(signal.SIGSTOP)
    try:
        stat = Path(f"/proc/{site.process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it to stop")
        yield
    finally:
        site.process.send_signal(signal.SIGCONT)


def assert_serves(site: WebProcess) -> None:
    with ExitStack() as held:
        with stopped(site):
            connection = held.enter_context(site.connect())
            connection.sendall(LAST)
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("begun", [b"", b"G", REQUEST[:-2]], ids=["silent", "first byte", "unfinished head"])
@pytest.mark.parametrize("earlier", [0, 2])
def test_who_does_not_finish_a_request_is_cut_off(hasty: WebProcess, begun: bytes, earlier: int) -> None:
    with ExitStack() as held:
        with stopped(hasty):
            connection = held.enter_context(hasty.connect())
            connection.sendall(earlier * (b"OPTIONS" + REQUEST[3:]) + begun)
        answer = read_to_the_end(connection)
        assert answer.count(b"HTTP/1.1") == answer.count(b"HTTP/1.1 204 ") == earlier
    assert_serves(hasty)


def test_a_head_that_trickles_in_is_cut_off(hasty: WebProcess) -> None:
    # each byte comes in time; the head as a whole does not
    with hasty.connect() as connection, pytest.raises(ConnectionError):  # noqa: PT012
        connection.sendall(REQUEST[:-2])
        for _ in range(10_000):
            connection.sendall(b"x")
            time.sleep(0.01)
    assert_serves(hasty)


def test_who_does_not_take_the_answer_is_cut_off(hasty: WebProcess) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with stopped(hasty):
            connection.connect(("127.0.0.1", hasty.port))
            connection.sendall(b"GET /stores/big.ome.zarr/shard HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1:  # established
            time.sleep(0.02)
        connection.settimeout(30)
        assert len(read_to_the_end(connection)) < BIG_BYTES
    assert_serves(hasty)


def test_who_takes_the_answer_gets_all_of_it(site: WebProcess) -> None:
    assert len(site.ask("/stores/big.ome.zarr/shard").body) == BIG_BYTES


def test_a_flood_of_silent_connections_keeps_nobody_out(hasty: WebProcess) -> None:
    with ExitStack() as held:
        flood = [held.enter_context(hasty.connect()) for _ in range(20 * MOST)]
        assert_serves(hasty)
        assert all(read_to_the_end(connection) == b"" for connection in flood)
    assert_serves(hasty)


def test_connections_that_are_answered_are_not_pushed_out(site: WebProcess) -> None:
    with ExitStack() as held:
        busy = [held.enter_context(site.connect()) for _ in range(3)]
        for connection in busy:
            connection.sendall(
                b"GET /stores/big.ome.zarr/shard HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            assert connection.recv(12) == b"HTTP/1.1 200"
        # at once: who waits for its turn would be cut off
        answers = held.enter_context(ThreadPoolExecutor()).map(read_to_the_end, busy)
        flood = [held.enter_context(site.connect()) for _ in range(3 * MOST)]
        assert all(len(answer) > BIG_BYTES for answer in answers)
        assert is_cut_off(flood[0])


def test_several_requests_at_once_are_answered_in_turn(site: WebProcess) -> None:
    assert site.say(REQUEST * 20 + LAST).count(b"HTTP/1.1 200 OK") == 21


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (64 << 10) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: x\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"x" * (64 << 10) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00\xff" * 20_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
    ],
    ids=[
        "long header",
        "many headers",
        "long address",
        "noise",
        "tls",
        "http2",
        "spaces",
        "two lengths",
        "folded",
    ],
)
def test_nonsense_ends_its_connection_and_nothing_else(site: WebProcess, data: bytes) -> None:
    with site.connect() as connection:
        try:
            connection.sendall(data)
            answer = read_to_the_end(connection)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert_serves(site)


def test_a_web_socket_is_not_opened(site: WebProcess) -> None:
    upgrade = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: "
        b"websocket\r\nSec-WebSocket-Key: eA==\r\n\r\n"
    )
    assert b"101" not in site.say(upgrade).split(b"\r\n")[0]
    assert_serves(site)
