"""A disk that stops answering under a running daemon, and a camera that pushes as fast as it can.

Bounded memory, back-pressure in the camera's process, heartbeats that go on, nothing lost; with ``drop`` and
``fail`` an exact account.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.camera import CameraProcess, Script
from tests.harness.daemon import DaemonProcess
from tests.harness.daemon_config import write_config
from tests.harness.frames import in_order, pixels
from tests.harness.json_process import wait_for

from shardwright.daemon.control_client import ControlClient
from shardwright.model.frame_status import FrameStatus

from .disks import FaultyDisk
from .judge import read_rows
from .peers import MemoryWatch, Pulse
from .recovery import missing_by_command

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (512, 512)  # half a megabyte a frame: a ring that is full is seen in the memory
CYCLE = 16
DISK_BYTES = 2 << 30


def push(endpoint: str, frames: int) -> CameraProcess:
    return CameraProcess(Script(endpoint, "a", in_order(frames), stream="cam", shape=SHAPE, cycle=CYCLE))


def assert_reads_right(path: Path, rows: dict[int, dict[str, Any]]) -> None:
    """Each frame that the table calls stored is at its place; every other place of the array holds fill
    value."""
    array = zarr.open_group(path, mode="r")["0"]
    sent = [pixels(i, shape=SHAPE) for i in range(CYCLE)]
    stored = {row["frame_id"] for row in rows.values() if row["status"] == FrameStatus.STORED}
    for place in range(array.shape[0]):
        expected = sent[place % CYCLE] if place in stored else 0
        np.testing.assert_array_equal(array[place], expected, err_msg=f"place {place}")
    assert max(stored) < array.shape[0]


def status(folder: Path) -> dict[str, Any]:
    with ControlClient(folder / "control.sock", timeout_s=60) as control:
        return dict(control.ask("status")["status"])


def held_up(camera: CameraProcess, folder: Path) -> int:
    """How many frames the camera has sent once the daemon has all of them and needs each slot of its ring."""

    def is_held() -> bool:
        (running,) = status(folder)["acquisitions"]
        return running["ring_fill"] == 1 and running["frames_received"] == camera.facts["sent"]

    wait_for(is_held, lambda: (camera.facts, status(folder)["acquisitions"]))
    return int(camera.facts["sent"])


def stall(folder: Path, disk: FaultyDisk, *, seconds: float, frames: int) -> dict[str, Any]:
    """Policy ``block``. Returns what was measured; asserts everything that has no clock in it."""
    config = write_config(
        folder, disk.path, shape=SHAPE, slab_frames=4, slabs=8, heartbeat_ms=20, ballast="4MiB"
    )
    with DaemonProcess(config) as daemon:
        ready = daemon.wait_for("ready")
        endpoint = ready["endpoints"][0]
        with Pulse(endpoint) as pulse, MemoryWatch(ready["pid"]) as memory, push(endpoint, frames) as camera:
            camera.wait_until(lambda facts: facts["sent"] > frames // 8)
            with disk.stalled():
                started_s = time.monotonic()
                held_up(camera, folder)
                time.sleep(max(0.0, seconds - (time.monotonic() - started_s)))
                # Again: what was stored just before the stall may have given slots back since. Without a
                # stall all frames are sent by now.
                held_at = held_up(camera, folder)
                assert held_at < frames, "append waits for the disk"
            facts = camera.wait_for_end()
            heard = pulse.stop()
        assert "error" not in facts, facts
        assert daemon.stop() == 0
    path = disk.path / "a.ome.zarr"
    disk.remount()
    rows = read_rows(path)
    assert [rows[i]["status"] for i in range(frames)] == [FrameStatus.STORED] * frames
    assert_reads_right(path, rows)
    assert memory.peak_bytes < ready["memory_peak_bytes"], "a stalled disk costs no memory beyond the plan"
    assert heard["beats"] > seconds * 1000 / 20 / 4, heard
    return {
        **heard,
        "stall_s": seconds,
        "held_at_frame": held_at,
        "memory_peak_bytes": memory.peak_bytes,
        "plan_bytes": ready["memory_peak_bytes"],
    }


def test_a_stalled_disk_holds_the_camera_up_and_loses_nothing(folder):
    with FaultyDisk(nbytes=DISK_BYTES) as disk:
        stall(folder, disk, seconds=3, frames=600)


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["ext4", "xfs"])
def test_half_a_minute(record_property, folder, format_name):
    with FaultyDisk(format_name, nbytes=DISK_BYTES) as disk:
        measured = stall(folder, disk, seconds=30, frames=600)
    for name, value in measured.items():
        record_property(name, value)
    assert measured["longest_gap_ms"] < 100, measured


def is_overloaded(folder: Path) -> bool:
    """Frames were dropped, or the client has ended the acquisition."""
    now = status(folder)
    states = [running["state"] for running in now["acquisitions"]]
    return bool(now["streams"]["cam"]["frames_dropped"] > 0 or states != ["running"])


def overload(folder: Path, disk: FaultyDisk, policy: str) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """A stall under an overload policy: what the camera was told at the end, and the frame table's rows by
    sequence."""
    config = write_config(
        folder,
        disk.path,
        shape=SHAPE,
        slab_frames=4,
        slabs=8,
        ring_frames=32,
        ballast="4MiB",
        overload=policy,
    )
    with DaemonProcess(config) as daemon:
        endpoint = daemon.endpoint
        script = Script(endpoint, "a", in_order(500), stream="cam", shape=SHAPE, cycle=CYCLE, pause_s=0.01)
        with CameraProcess(script) as camera:
            camera.wait_until(lambda facts: facts["sent"] > 40)
            with disk.stalled():
                wait_for(lambda: is_overloaded(folder), lambda: status(folder))
            facts = camera.wait_for_end()
        assert daemon.stop() == 0
    path = disk.path / "a.ome.zarr"
    rows = read_rows(path)
    assert_reads_right(path, rows)
    assert missing_by_command(path) == sorted(
        row["frame_id"] for row in rows.values() if row["status"] != FrameStatus.STORED
    )
    return facts, rows


def test_drop_counts_and_records_every_frame_that_it_dropped(folder):
    with FaultyDisk(nbytes=DISK_BYTES) as disk:
        facts, rows = overload(folder, disk, "drop")
    receipt, statuses = facts["receipt"], [row["status"] for row in rows.values()]
    counts = {status: statuses.count(status) for status in FrameStatus}
    assert {status: receipt[status.counted_as] for status in FrameStatus} == counts
    assert receipt["frames_received"] == len(rows) == 500
    assert counts[FrameStatus.DROPPED] > 0
    assert counts[FrameStatus.STORED] + counts[FrameStatus.DROPPED] == 500
    assert all(row["reason"] == 3 for row in rows.values() if row["status"] == FrameStatus.DROPPED)


def test_fail_ends_with_an_overload_error_and_keeps_what_was_stored(folder):
    with FaultyDisk(nbytes=DISK_BYTES) as disk:
        facts, rows = overload(folder, disk, "fail")
    assert facts["error"]["code"] == "overload"
    stored = sum(row["status"] == FrameStatus.STORED for row in rows.values())
    assert stored >= facts["stored"], "what was acknowledged is there"
