"""Clients that hang, trickle, flood or talk nonsense hold what they hold for a short while, and the others
are served all the same."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from .web_process import WebProcess, is_cut_off, read_to_the_end, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
MOST = 8
SHORT = (
    f"LimitedConnection.head_s = 0.3; LimitedConnection.stall_s = 2; LimitedConnection.max_connections "
    f"= {MOST}; connections.KEEP_ALIVE_S = 1"
)
BIG_BYTES = 64 << 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    root = tmp_path_factory.mktemp("root")
    (root / "big.ome.zarr").mkdir()
    (root / "big.ome.zarr" / "zarr.json").write_text("{}")
    with (root / "big.ome.zarr" / "shard").open("wb") as shard:
        shard.truncate(BIG_BYTES)
    with WebProcess(settings_for(root), sabotage=SHORT) as site:
        yield site
        assert site.errors() == "", "none of this is worth a line in the log"


def assert_serves(site: WebProcess) -> None:
    assert site.ask("/").status == 200


@pytest.mark.parametrize("begun", [b"", b"G", REQUEST[:-2]], ids=["silent", "first byte", "unfinished head"])
@pytest.mark.parametrize("earlier", [0, 2])
def test_who_does_not_finish_a_request_is_cut_off(site: WebProcess, begun: bytes, earlier: int) -> None:
    with site.connect() as connection:
        for _ in range(earlier):
            connection.sendall(b"OPTIONS" + REQUEST[3:])  # whose answer comes in one piece
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 204 ")
        connection.sendall(begun)
        assert b"HTTP/1.1" not in read_to_the_end(connection)
    assert_serves(site)


def test_a_head_that_trickles_in_is_cut_off(site: WebProcess) -> None:
    with site.connect() as connection:
        connection.sendall(REQUEST[:-2])
        with pytest.raises(ConnectionError):  # noqa: PT012  (each byte comes in time; the head as a whole does not)
            for _ in range(10_000):
                connection.sendall(b"x")
                time.sleep(0.01)
    assert_serves(site)


def test_who_does_not_take_the_answer_is_cut_off(site: WebProcess) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", site.port))
        connection.sendall(b"GET /stores/big.ome.zarr/shard HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1:  # established
            time.sleep(0.02)
        connection.settimeout(30)
        assert len(read_to_the_end(connection)) < BIG_BYTES
    assert_serves(site)


def test_who_takes_the_answer_gets_all_of_it(site: WebProcess) -> None:
    assert len(site.ask("/stores/big.ome.zarr/shard").body) == BIG_BYTES


def test_a_flood_of_silent_connections_keeps_nobody_out(site: WebProcess) -> None:
    with ExitStack() as held:
        flood = [held.enter_context(site.connect()) for _ in range(20 * MOST)]
        assert_serves(site)
        assert all(read_to_the_end(connection) == b"" for connection in flood)
    assert_serves(site)


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
    last = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert site.say(REQUEST * 20 + last).count(b"HTTP/1.1 200 OK") == 21


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
