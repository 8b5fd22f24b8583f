"""A camera that sends its pixels in messages: the daemon has memory for them before the first comes, keeps it
for the camera's next acquisitions, and gives it back once the camera has left."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
from tests.harness.daemon import DaemonProcess
from tests.harness.json_process import wait_for

import shardwright as sw
from shardwright.ingest.totals import SAMPLE_S

SPEC = sw.ArraySpec(
    dtype="uint16",
    dimensions=(
        sw.Dimension(name="t", chunk_size=8, shard_size_chunks=1),
        sw.Dimension(name="y", count=1024, chunk_size=256, shard_size_chunks=4),
        sw.Dimension(name="x", count=1024, chunk_size=256, shard_size_chunks=4),
    ),
)


def heap_bytes(pid: int) -> int:
    """What the process has of its C heap, which is several mappings once a part of it has large pages."""
    found = re.findall(r"\[heap\]\n(?:\w+: .*\n)*?Rss: +(\d+) kB", Path(f"/proc/{pid}/smaps").read_text())
    assert found
    return 1024 * sum(map(int, found))


def test_a_message_camera_finds_memory_ready_and_leaves_none_behind(config: Path) -> None:
    in_flight = 2 * 8 * 2**21  # at least: two slabs of eight frames of 2 MiB
    with DaemonProcess(config, fresh=True) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        pid = daemon.process.pid
        before = heap_bytes(pid)
        with sw.connect(endpoint, transport="message") as connection:
            for name in ("many", "again"):
                with connection.acquire(name, SPEC) as stream:
                    opened = heap_bytes(pid)
                    for i in range(40):
                        stream.append(np.full((1024, 1024), i, np.uint16))
                assert stream.receipt.frames_durable == 40
                assert opened - before > in_flight, "before a frame was sent"
                time.sleep(2 * SAMPLE_S)  # the daemon has looked at what nobody uses
                assert heap_bytes(pid) - before > in_flight, "kept for the next"
        # the rest are buffers that the next acquisition has
        wait_for(lambda: opened - heap_bytes(pid) > in_flight // 2, "less memory")
        assert daemon.stop() == 0
