"""What strangers do to a daemon: garbage on all of its sockets, browsers that reload without end, ask for
everything, and hang.

Each flood goes on for some seconds in a few threads and returns what it did. How the daemon answers strangers
is its own business; what the cameras notice of it is the soak's.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import zmq
from tests.fuzz.messages import damaged

from shardwright.wire.controls import Hello
from shardwright.wire.messages import CONNECTION, Kind
from shardwright.wire.messages import Counter as MessageCounter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .settings import Places

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)  # ZeroMQ's, so that what follows is parsed
PAUSE_S = 0.002  # between two pieces of one thread: a flood, and not a contest for the processors
HANGING = 24
TIMEOUT_S = 5.0


def bad_messages(places: Places, seconds: float, seed: int) -> Counter[str]:
    """On the sockets of ingest (as a stranger, and as a client that talks nonsense), of the rings, and of
    control."""
    ingest, rings, control = (places.sockets / name for name in ("in.sock", "in.sock.ring", "control.sock"))
    context = zmq.Context()
    try:
        return _all_at_once(
            [
                lambda random, done: _garbage(ingest, random, done, greeting=random.random() < 0.5),
                lambda random, done: _nonsense(context, places.endpoint, random, done),
                lambda random, done: _garbage(rings, random, done),
                lambda random, done: _garbage(control, random, done),
                lambda random, done: _requests(control, random, done),
            ],
            seconds,
            seed,
        )
    finally:
        context.destroy(linger=0)


def page_reload(url: str, seconds: float, seed: int) -> Counter[str]:
    """Several browsers; ``HANGING`` more that never end their request, or never read the answer."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    with contextlib.ExitStack() as open_ones:
        for number in range(HANGING):
            with contextlib.suppress(OSError):  # as many as it lets in
                hanging = open_ones.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
                hanging.sendall(
                    b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n"
                    + (b"\r\n" * 20 if number % 2 else b"X-Slow: ")
                )
        return _all_at_once([lambda random, done: _reload(url, random, done)] * 3, seconds, seed)


def _all_at_once(
    deeds: list[Callable[[Random, Counter[str]], None]], seconds: float, seed: int
) -> Counter[str]:
    end_s, counts = time.monotonic() + seconds, [Counter[str]() for _ in deeds]

    def go_on(number: int) -> None:
        random = Random(f"{seed} {number}")
        while time.monotonic() < end_s:
            try:
                deeds[number](random, counts[number])
            except OSError:
                counts[number]["refused"] += 1  # closed, or not let in
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(len(deeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts, Counter())


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _garbage(path: Path, random: Random, done: Counter[str], *, greeting: bool = False) -> None:
    with _connected(path) as connection:
        connection.sendall(
            (GREETING if greeting else b"") + random.randbytes(random.choice((1, 64, 300, 5000, 70_000)))
        )
    done["garbage"] += 1


def _nonsense(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, random: Random, done: Counter[str]
) -> None:
    """A client that says hello, more or less, and then sends damaged messages for sessions that it does not
    have."""
    client = context.socket(zmq.DEALER)
    try:
        client.connect(endpoint)
        channel, stranger = MessageCounter(CONNECTION), MessageCounter(random.getrandbits(48))
        hello = channel.control(Kind.HELLO, Hello("soak", "nowhere", 1).to_body())
        others = [
            channel.control(Kind.HEARTBEAT),
            stranger.message(Kind.FRAMES, [random.randbytes(200)], count=2),
            stranger.message(Kind.FLUSH, []),
        ]
        client.send_multipart(hello if random.random() < 0.7 else damaged(hello, random), zmq.NOBLOCK)
        for message in others:
            client.send_multipart(damaged(message, random), zmq.NOBLOCK)
        if client.poll(200):
            client.recv_multipart()
        done["nonsense"] += 1
    finally:
        client.close(linger=50)


def _requests(path: Path, random: Random, done: Counter[str]) -> None:
    """Lines that are no requests, or none that control knows; some are never ended."""
    lines = (
        b"{}",
        b"[" * 40_000,
        b'{"version": 1, "do": "status"',
        b'{"version": 99, "do": "status"}',
        b"\xff\xfe",
        b'{"version": 1, "do": "stop"}',
    )
    with _connected(path) as connection:
        for _ in range(random.randrange(1, 20)):
            connection.sendall(random.choice(lines) + random.choice((b"\n", b"\n", b"\n", b"")))
    done["requests"] += 1


def _reload(url: str, random: Random, done: Counter[str]) -> None:
    """All that the page asks for, and what a scraper asks."""
    # there at first, deleted later
    store = f"stores/{random.choice(('patient', 'live'))}-1.ome.zarr/zarr.json"
    for path in ("", "api/status", "api/events", "metrics", "api/stores", store, "nothing"):
        try:
            with urllib.request.urlopen(url + path, timeout=TIMEOUT_S) as answer:
                answer.read()
            done["answers"] += 1
        except urllib.error.HTTPError as error:
            error.close()
            done[f"answers {error.code}"] += 1


def answers(url: str) -> bool:
    """Whether the page is there for others again."""
    try:
        with urllib.request.urlopen(url + "api/status", timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())["version"] == 1
    except (OSError, ValueError):
        return False
