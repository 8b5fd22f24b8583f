"""Hard ends (a second signal, a disk that dies under a mapping) leave the rest to the next start; a stuck
reader or a locked store stops nobody."""

from __future__ import annotations

import shutil
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.harness.daemon import DaemonProcess, bring_back, run_cli
from tests.harness.json_process import wait_for
from tests.harness.store_contents import assert_holds, stored

import shardwright as sw
from shardwright.simulate.photons import PhotonFrames

if TYPE_CHECKING:
    from pathlib import Path

# The disk hangs: no shard is synced any more until the process has ended.
SYNCS_HANG = """
import time
from shardwright.disk import failpoints
failpoints.set_hook("shard.before_sync", lambda: time.sleep(600))
"""

# The mapped file loses its blocks under the mapping: the next store to it is a SIGBUS, as with a disk that
# died.
MAPPING_BREAKS = """
import os, threading, time
from pathlib import Path
def cut(order=Path({order!r}), root=Path({root!r})):
    while not order.exists():
        time.sleep(0.01)
    for file in root.glob("*/.shardwright/*.partial"):
        os.truncate(file, 0)
    order.unlink()
threading.Thread(target=cut, daemon=True).start()
"""

# Many events at once, from a thread of their own.
CHATTER = """
import threading
from shardwright.daemon.events import EventLog
run = EventLog.run
def chatter(self):
    for i in range(40_000):
        self.emit("chatter", dict(number=i))
def run_with_chatter(self):
    threading.Thread(target=chatter, args=(self,), daemon=True).start()
    run(self)
EventLog.run = run_with_chatter
"""


@pytest.fixture
def source() -> PhotonFrames:
    return PhotonFrames((48, 80), seed=1)


def send(
    daemon: DaemonProcess, source: PhotonFrames, frames: int, endpoint: str
) -> tuple[sw.client.Connection, sw.client.Stream]:
    """Returns once all of them are stored."""
    connection = sw.connect(endpoint, reconnect_timeout_ms=0)
    stream = connection.acquire("run", stream="cam0")
    for i in range(frames):
        stream.append(source.frame(i))
    while stream.watermark.stored < frames:
        time.sleep(0.01)
    return connection, stream


def leave(connection: sw.client.Connection) -> None:
    with suppress(sw.errors.ShardwrightError):  # the daemon is gone
        connection.close()


def assert_starts_with(path: Path, source: PhotonFrames, frames: int) -> None:
    pixels = stored(path)
    assert len(pixels) >= frames
    for i in range(frames):
        assert (pixels[i] == source.frame(i)).all(), f"frame {i} was stored, and is not there"


def test_a_second_sigterm_leaves_a_drain_that_hangs_to_recovery(
    config: Path, folder: Path, source: PhotonFrames
) -> None:
    impatient = "from shardwright.daemon import lifecycle; lifecycle.FORCE_AFTER_S = 0\n"
    with DaemonProcess(config, sabotage=impatient + SYNCS_HANG) as daemon:
        connection, _ = send(daemon, source, 10, daemon.wait_for("ready")["endpoints"][0])
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("draining")
        time.sleep(0.5)
        assert daemon.process.poll() is None, "it drains, or tries to"
        daemon.signal(signal.SIGTERM)
        assert daemon.exit_code() == 128 + signal.SIGTERM
        assert daemon.rest()[-1] == "stopped_by_force_warning"
    leave(connection)
    store = folder / "data" / "run.ome.zarr"
    assert (store / ".shardwright").exists(), "unfinished"
    bring_back(config)
    assert_holds(store, source, 10)
    assert run_cli("verify", store).returncode == 0


def test_a_sigbus_ends_with_a_readable_trace_and_the_next_start_recovers(
    config: Path, folder: Path, source: PhotonFrames
) -> None:
    config.write_text(config.read_text().replace("output: {root: ./data", "output: {io: mmap, root: ./data"))
    order, root = folder / "order", folder / "data"
    with DaemonProcess(config, sabotage=MAPPING_BREAKS.format(order=str(order), root=str(root))) as daemon:
        # one shard of 8 frames, and one frame more
        connection, stream = send(daemon, source, 9, daemon.wait_for("ready")["endpoints"][0])
        shards = [root / "run.ome.zarr" / "0" / "c" / "0" / row / "0" for row in "01"]
        wait_for(lambda: all(shard.exists() for shard in shards))  # sealed: what follows cannot touch it
        order.touch()
        while order.exists():
            time.sleep(0.01)
        with suppress(sw.errors.ShardwrightError):
            for i in range(9, 400):
                stream.append(source.frame(i))
                time.sleep(0.002)
        assert daemon.exit_code() == -signal.SIGBUS
        errors = daemon.errors()
        assert "Fatal Python error: Bus error" in errors
        assert "encod" in errors, f"the trace says where:\n{errors}"
    leave(connection)
    bring_back(config)
    # The shard whose blocks are gone cannot be brought back by anybody; the sealed one and the staged frame
    # are there.
    assert_starts_with(root / "run.ome.zarr", source, 9)


def test_a_store_that_is_deleted_while_it_records_is_told_as_that_and_its_name_is_free(
    config: Path, folder: Path, source: PhotonFrames
) -> None:
    store = folder / "data" / "run.ome.zarr"
    with DaemonProcess(config) as daemon:
        connection, stream = send(daemon, source, 10, daemon.wait_for("ready")["endpoints"][0])
        stream.flush()  # nothing is made in it any more until the next frame comes
        shutil.rmtree(store)
        stream.append(source.frame(10))
        failed = daemon.wait_for("acquisition_failed")
        assert "was deleted while it was recorded. Its frames are gone" in failed["reason"]
        with pytest.raises(sw.errors.StoreGoneError, match="was deleted while it was recorded"):
            stream.close()
        assert stream.receipt is not None
        assert (stream.receipt.frames_stored, stream.receipt.frames_durable) == (0, 0)
        assert stream.receipt.frames_lost >= 10
        assert not store.exists()
        with connection.acquire("run", stream="cam0") as again:
            again.append(source.frame(0))
        connection.close()
        assert daemon.stop() == 0
    assert_holds(store, source, 1)


def test_a_reader_of_events_that_hangs_does_not_stop_the_frames(
    config: Path, folder: Path, source: PhotonFrames
) -> None:
    config.write_text(config.read_text() + "log: {repeat_lines: 0}\n")
    with DaemonProcess(config, sabotage=CHATTER, read=False) as daemon:
        endpoint = f"ipc://{folder}/in.sock"
        while not (folder / "in.sock").exists():
            time.sleep(0.01)
        connection, stream = send(daemon, source, 10, endpoint)
        stream.close()
        connection.close()
        assert stream.receipt.frames_durable == 10
        assert daemon.process.poll() is None
        assert daemon.stop() == 0, "nor does it stop the end"
    assert_holds(folder / "data" / "run.ome.zarr", source, 10)


def test_a_store_that_another_daemon_holds_is_refused_and_the_others_are_taken_up(
    config: Path, folder: Path, source: PhotonFrames
) -> None:
    with DaemonProcess(config) as holder:
        connection, _ = send(holder, source, 10, holder.wait_for("ready")["endpoints"][0])
        other = folder / "other.yaml"
        other.write_text(
            config.read_text().replace("./in.sock", "./other.sock") + "control: {socket: "
            "./other-control.sock}\n"
        )
        with DaemonProcess(other) as daemon:
            ready = daemon.wait_for("ready")
            assert ready["unfinished"] == [str(folder / "data" / "run.ome.zarr")]
            # it may come before `ready`
            early = [event for event in daemon.events if event["event"] == "acquisition_recovery_failed"]
            refused = early[0] if early else daemon.wait_for("acquisition_recovery_failed")
            assert refused["code"] == "locked"
            assert str(holder.process.pid) in str(refused)
            with (
                sw.connect(ready["endpoints"][0]) as second,
                second.acquire("second", stream="cam0") as stream,
            ):
                for i in range(5):
                    stream.append(source.frame(i))
            assert stream.receipt.frames_durable == 5
            assert daemon.stop() == 0
        assert holder.process.poll() is None
        assert holder.stop() == 0
        leave(connection)
    assert_holds(folder / "data" / "run.ome.zarr", source, 10)
    assert_holds(folder / "data" / "second.ome.zarr", source, 5)
