"""Processes that are killed while they make a store: the writer in process, and the daemon under a client
that opens an acquisition.

The n-th victim dies at its n-th storage call, counted from the first one of a creation on. Whoever comes next
begins the experiment under that name.
"""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING

import numpy as np
from tests.harness.fork_server import GIVE_UP_S

import shardwright as sw

from .kills.processes import Created, Flushed, Sealed, kill_at
from .kills.scenes import pixels_of, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import Channel

    from shardwright.client.stream import Stream

NAME = "killed"
SPEC = spec_of(("t", None, 2, 2), ("y", 16, 16, 1), ("x", 24, 24, 1))
FRAMES = 3
OLD, OLD_FRAMES = 100, 5  # of a store that is overwritten
FIRST_CALLS = frozenset({"store.before_create"})
CONFIG = """\
output: {root: ./data, ballast: 1MiB, low_water: 1MiB, in_memory: true}
ingest: {endpoints: ["ipc://./in.sock"], heartbeat_ms: 20, session_timeout_ms: 1000}
workers: {threads: 1}
memory: {budget: 2GiB}
"""


def create(channel: Channel, path: Path, call: int) -> None:
    """Makes a store, dying at storage call ``call``; says the calls if it lives."""
    points = kill_at(call)
    writer = sw.create(path, SPEC, threads=1)
    channel.send(tuple(points))
    for n in range(FRAMES):
        writer.append(pixels_of(SPEC, n + 1))
    channel.send(Sealed(writer.close().to_dict(), ()))


def overwrite(channel: Channel, path: Path, call: int) -> None:
    """Makes a store in place of a finished one, of ``OLD_FRAMES`` frames, dying at storage call ``call``
    after that; says the calls and the frames that were stored."""
    with sw.create(path, SPEC, threads=1) as old:
        old.append_many(np.stack([pixels_of(SPEC, OLD + n) for n in range(OLD_FRAMES)]))
    points = kill_at(call)
    writer = sw.create(path, SPEC, threads=1, overwrite=True)
    channel.send(Created())
    for n in range(FRAMES):
        writer.append(pixels_of(SPEC, n + 1))
        writer.flush()
        channel.send(Flushed(n + 1))
    channel.send(Sealed(writer.close().to_dict(), tuple(points)))


def camera(channel: Channel, endpoint: str) -> None:
    """Opens one acquisition through whatever happens to the daemon, and fills it."""
    with sw.connect(endpoint, timeout_ms=30_000) as connection:
        stream = acquire(connection, NAME, SPEC)
        channel.send(Created())
        for n in range(FRAMES):
            stream.append(pixels_of(SPEC, n + 1))
        stream.close()
        channel.send(Sealed(stream.receipt.to_dict(), ()))


def acquire(connection: sw.Connection, name: str, spec: sw.ArraySpec) -> Stream:
    """Acquires as a client must that continues: its request may have been done when the daemon died."""
    reopen, give_up = False, monotonic() + GIVE_UP_S
    while True:
        try:
            return connection.acquire(name, spec, reopen=reopen)
        except sw.errors.SessionLostError:
            reopen = True
        except sw.errors.ResumeError:
            if not reopen:
                raise
            reopen = False
        assert monotonic() < give_up, "never got in"
        sleep(0.01)
