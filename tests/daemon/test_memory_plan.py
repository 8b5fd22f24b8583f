"""The memory budget is a promise: what a daemon has, measured from outside, while clients come and go, and
while one abuses it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess
from tests.harness.json_process import wait_for
from tests.harness.process_status import ProcessPeak, process_status
from tests.ingest.test_access import Speaker

import shardwright as sw
from shardwright.acquire.limits import OWN_DESCRIPTORS, RUNTIME_BYTES, Limits
from shardwright.ingest.transport.inbound_byte_limit import BEYOND_PLAN_BYTES

if TYPE_CHECKING:
    from pathlib import Path

FRAME = np.ones((8, 8), np.uint8)
SPEC = sw.ArraySpec(
    dtype="uint8",
    dimensions=(
        sw.Dimension(name="t", chunk_size=64, shard_size_chunks=1),
        sw.Dimension(name="y", count=8, chunk_size=8, shard_size_chunks=1),
        sw.Dimension(name="x", count=8, chunk_size=8, shard_size_chunks=1),
    ),
)
AT_ONCE = 4
ALLOCATOR_BYTES = 8 << 20  # what Python and the C library have and do not use


def come_and_go(endpoint: str, transport: str, root: Path, sessions: int) -> None:
    """So many clients, a few at once, each with one short acquisition of tiny frames."""
    failed: list[str] = []

    def clients(first: int) -> None:
        try:
            for number in range(first, sessions, AT_ONCE):
                with (
                    sw.connect(endpoint, transport=transport) as connection,
                    connection.acquire(f"a{number}", SPEC) as stream,
                ):
                    for _ in range(20):
                        stream.append(FRAME)
                assert stream.receipt.frames_durable == 20
                shutil.rmtree(stream.receipt.path)
        except BaseException as error:
            failed.append(repr(error))

    threads = [threading.Thread(target=clients, args=(first,)) for first in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("transport", ["message", "shm"])
@pytest.mark.parametrize("sessions", [20, pytest.param(3000, marks=pytest.mark.slow)])
def test_clients_that_come_and_go_leave_the_daemon_as_it_was(
    config: Path, folder: Path, transport: str, sessions: int
) -> None:
    with DaemonProcess(config, fresh=True) as daemon:
        endpoint, pid = daemon.wait_for("ready")["endpoints"][0], daemon.process.pid
        come_and_go(endpoint, transport, folder / "data", 6)  # threads of the first, buffers that are kept
        wait_for(lambda: process_status(pid).descriptors <= 40, lambda: process_status(pid))
        before = process_status(pid)
        come_and_go(endpoint, transport, folder / "data", sessions)
        # each session has 13 MiB, four are at once; twenty that wait for a collector would be 260
        more_bytes = 48 << 20
        wait_for(
            lambda: process_status(pid).own_bytes <= before.own_bytes + more_bytes,
            lambda: (before, process_status(pid)),
        )
        wait_for(
            lambda: process_status(pid).descriptors <= before.descriptors,
            lambda: (before, process_status(pid)),
        )
        # one that ends is counted until it has; a pool may grow to what is used at once, not with a session
        wait_for(
            lambda: process_status(pid).threads <= before.threads + 2,
            lambda: (before, process_status(pid)),
        )
        assert process_status(pid).own_bytes < RUNTIME_BYTES
        assert daemon.stop() == 0


def test_a_message_of_parts_without_end_or_content_costs_its_sender_the_connection(config: Path) -> None:
    """Two bytes on the wire are 64 in memory, and a Unix socket does not tell how much came."""
    with DaemonProcess(config, fresh=True) as daemon:
        endpoint, pid = daemon.wait_for("ready")["endpoints"][0], daemon.process.pid
        with sw.connect(endpoint) as bystander, bystander.acquire("good", SPEC) as stream:

            def let_it_look() -> None:
                """The thread that takes messages may be held up while others receive parts."""
                stream.append(FRAME)
                wait_for(lambda: stream.watermark.stored == stream.frames, lambda: stream.watermark)

            let_it_look()
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(endpoint.removeprefix("ipc://"))
            flood = Speaker(connected)
            flood.hello()
            empty, sent = b"\1\0" * (1 << 15), 0
            with contextlib.closing(flood), contextlib.suppress(OSError):
                while sent < 65 << 20:
                    connected.sendall(empty)
                    sent += len(empty)
                    if sent % (4 << 20) == 0:
                        let_it_look()
            assert sent < 65 << 20, "it was cut"
            let_it_look()
        assert stream.receipt.frames_durable == stream.frames
        assert stream.reconnects == 0
        assert process_status(pid).most_bytes < 2 * (RUNTIME_BYTES + BEYOND_PLAN_BYTES), (
            "65 MiB of them would take 2.2 GB"
        )
        wait_for(lambda: process_status(pid).own_bytes < RUNTIME_BYTES, lambda: process_status(pid))
        assert daemon.stop() == 0


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
@pytest.mark.parametrize(("images", "visited", "frames"), [(400, 400, 2), (10_000, 20, 6)])
def test_an_acquisition_of_many_images_takes_what_is_planned(
    config: Path, images: int, visited: int, frames: int
) -> None:
    """Frames go from image to image; nothing stays open once all have theirs."""
    t = sw.Dimension(name="t", count=frames, chunk_size=1, shard_size_chunks=2)
    array = SPEC.model_copy(update={"dimensions": (t, *SPEC.dimensions[1:])})
    spec = sw.AcquisitionSpec(array=array, images=[f"p{i}" for i in range(images)])
    planned = Limits.derive(spec, threads=2)
    with DaemonProcess(config, fresh=True) as daemon:
        endpoint, pid = daemon.wait_for("ready")["endpoints"][0], daemon.process.pid
        with sw.connect(endpoint) as connection:
            with connection.acquire("first", spec) as stream:  # what it loads is the daemon's own
                stream.append_many([FRAME] * frames, image="p1")
            before = process_status(pid)
            with ProcessPeak(pid) as peak, connection.acquire("second", spec) as stream:
                for number in range(frames * visited):
                    stream.append(FRAME, image=f"p{number % visited}", index=(number // visited,))
                stream.flush()
                wait_for(
                    lambda: process_status(pid).descriptors <= before.descriptors + OWN_DESCRIPTORS,
                    lambda: (before, process_status(pid)),
                )
            assert stream.receipt.frames_durable == frames * visited
        assert peak.descriptors <= before.descriptors + planned.descriptors
        assert peak.own_bytes <= before.own_bytes + planned.acquisition_bytes + ALLOCATOR_BYTES
        assert process_status(pid).most_bytes < RUNTIME_BYTES + planned.acquisition_bytes
        assert daemon.stop() == 0
