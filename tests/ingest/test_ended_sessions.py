"""What ended leaves nothing in memory: no session, no acquisition, no exception, no traceback that holds a
call's frame. Nothing waits for the collector, which is off here."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import types
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import zmq
from tests.harness.json_process import wait_for

import shardwright as sw
from shardwright.acquire.acquisition import Acquisition
from shardwright.acquire.sealer import Sealer
from shardwright.disk import failpoints
from shardwright.disk.ring import Ring
from shardwright.ingest.opening import Pending
from shardwright.ingest.session import Session
from shardwright.model.errors import ShardwrightError
from shardwright.model.write_settings import WriteSettings
from shardwright.shard.shard_row_files import ShardRowFiles
from shardwright.wire.messages import Kind

from .test_bad_messages import BAD_BATCHES, frames_message

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT = (Session, Pending, Acquisition, ShardRowFiles, Sealer, ShardwrightError, zmq.Frame, Ring)
SPARE_RINGS = 1  # for the next session of the same client


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    """How many there are of what an end should have let go."""
    counts: Counter[str] = Counter()
    for found in gc.get_objects():
        if isinstance(found, KEPT):
            counts[type(found).__name__] += 1
        elif isinstance(found, types.TracebackType) and "/shardwright/" in found.tb_frame.f_code.co_filename:
            counts["traceback"] += 1
    return counts


def nothing_left(before: Counter[str]) -> None:
    """Soon. Fails with what there is."""
    wait_for(lambda: not alive() - before, lambda: f"the end of {alive() - before}")


def test_requests_of_clients_that_left_before_the_daemon_was_ready_leave_nothing(
    start, raw, spec_of, wait
) -> None:
    """Nothing is answered while kernels are compiled; a client that comes and goes all the time fills no
    memory meanwhile."""
    daemon = start(held=True)
    before = alive()
    goodbye = {"code": "closed", "message": "bye", "fatal": True}
    for number in range(8):
        client = raw(daemon.ipc)
        client.ask_to_open(f"a{number}", spec_of())
        client.send(client.connection.control(Kind.ERROR, goodbye))
    wait(lambda: daemon.count("client_left") == 8)
    nothing_left(before)
    daemon.server.let_go()


@pytest.mark.parametrize("transport", ["message", "shm"])
def test_sessions_that_broke_the_protocol_leave_nothing(
    start, raw, spec_of, frames_of, wait, transport: str
) -> None:
    daemon = start()
    client, frames = raw(daemon.ipc), frames_of(4)
    before = alive()
    before["Ring"] += SPARE_RINGS
    for number, (changes, code) in enumerate(BAD_BATCHES):
        counter, _ = client.open(f"bad{number}", spec_of(count=10), transport)
        if transport == "message":
            client.send(frames_message(counter, frames[:2]))
            client.send(frames_message(counter, frames[2:], first=2, **changes))
        else:
            client.send(frames_message(counter, frames[2:]))  # before it has fetched the ring
        _, facts = client.receive_error(until=True)
        assert facts["code"] == (code if transport == "message" else "protocol")
        while client.receive()[0].kind is not Kind.RECEIPT:
            pass
    wait(lambda: daemon.count("acquisition_ended") == len(BAD_BATCHES))
    nothing_left(before)


def test_connections_that_broke_the_protocol_leave_nothing(start, raw, spec_of, wait) -> None:
    daemon = start()
    before = alive()
    for number in range(5):
        client = raw(daemon.ipc)
        client.open(f"bad{number}", spec_of(count=10))
        client.connection.control(Kind.HEARTBEAT)  # counted, never sent
        client.send(client.connection.control(Kind.HEARTBEAT))
        client.receive_error()
        client.close()
    wait(lambda: daemon.count("acquisition_ended") == 5)
    nothing_left(before)


def broken() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# Refused at the beginning, failed in a commit (and in the rewrites that follow), in sealing, in storing a
# slab, in ending the store.
@pytest.mark.parametrize(
    "point",
    [
        "shard.before_preallocate",
        "sealer.before_commit",
        "shard.before_index",
        "slots.before_write",
        "log.before_append",
    ],
)
def test_acquisitions_that_a_disk_broke_leave_nothing(start, spec_of, frames_of, wait, point: str) -> None:
    daemon = start(write=WriteSettings(io="pwrite", sync_interval_ms=10))
    with (
        sw.connect(daemon.ipc, transport="shm") as connection,
        connection.acquire("sound", spec_of()) as stream,
    ):
        stream.append(frames_of(1)[0])
    wait(lambda: daemon.count("acquisition_ended") == 1)
    before = alive()
    failpoints.set_hook(point, broken)
    try:
        with sw.connect(daemon.ipc, transport="shm") as connection, contextlib.suppress(ShardwrightError):
            stream = connection.acquire("broken", spec_of())
            for frame in frames_of(10):
                stream.append(frame)
            with contextlib.suppress(ShardwrightError):
                stream.flush()  # else an end that is quicker than the first commit makes none
            stream.close()
            del stream
    finally:
        failpoints.set_hook(point, None)
    wait(lambda: daemon.count("acquisition_refused") + daemon.count("acquisition_failed") == 1)
    nothing_left(before)
