"""The daemon compacts what it has sealed: real daemons, cameras and child processes; stores are looked at by ``inspect``, read by zarr-python."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

import shardwright as sw
from shardwright.compact.job import Options, plan
from shardwright.compact.queued import QueuedStore, queued_stores
from shardwright.config.model import Compaction
from shardwright.read.store import open_store
from shardwright.service.compaction import CompactionService
from shardwright.testing.photons import PhotonFrames

from .daemon_process import TIMEOUT_S, DaemonProcess, run_cli
from .test_serve import assert_holds, camera

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCE = PhotonFrames((48, 80), "uint16")
SLOW = "rate: 20kB"  # a store of test frames then takes many seconds


def configure(config: Path, *lines: str) -> None:
    """Add the section; all stores are due as soon as they are sealed."""
    config.write_text("\n".join([config.read_text(), "compaction:", "  enabled: true", "  after_s: 0", *(f"  {line}" for line in lines), ""]))


def acquire(endpoint: str, name: str, frames: int = 32) -> None:
    assert camera(endpoint, name, "--stream", "cam0", "--frames", str(frames))["frames_stored"] == frames


def gap_bytes(store: Path) -> int:
    """As ``inspect`` counts them."""
    result = run_cli("inspect", "--json", store)
    assert result.returncode == 0, result.stdout + result.stderr
    facts = json.loads(result.stdout)
    return sum(int(array["totals"]["gap_bytes"]) for array in facts["arrays"])


def until(happened: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def assert_packed(store: Path, frames: int = 32) -> None:
    assert gap_bytes(store) == 0
    assert not QueuedStore(store).folder.exists(), "nothing is left of the work"
    assert_holds(store, SOURCE, frames)


def test_a_sealed_acquisition_is_compacted_without_being_asked(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    configure(config, "order: morton", "recompress: zstd:5")
    with DaemonProcess(config) as daemon:
        acquire(daemon.wait_for("ready")["endpoints"][0], "run")
        assert daemon.wait_for("compaction_begun")["path"] == str(store)
        done = daemon.wait_for("compaction_done")
        assert (done["path"], done["packed"], done["left"]) == (str(store), 8, 0)
        assert done["chunks_recoded"] > 0
        assert_packed(store)
        assert daemon.stop() == 0


@pytest.mark.slow
def test_nothing_is_compacted_that_was_not_asked_for(config: Path, folder: Path) -> None:
    with DaemonProcess(config) as daemon:
        acquire(daemon.wait_for("ready")["endpoints"][0], "run")
        assert daemon.stop() == 0
        assert not [name for name in daemon.rest() if name.startswith("compaction")]
    assert gap_bytes(folder / "data" / "run.ome.zarr") > 0


def test_it_works_at_idle_priority_and_waits_while_a_camera_fills_its_ring(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    configure(config, SLOW, "pause_above: 0.05")
    text = config.read_text().replace("store_within_ms: 200", "store_within_ms: 600000")  # a frame stays in the ring until its chunk is full
    config.write_text(text.replace("name: cam0\n", "name: cam0\n    ring_frames: 40\n"))
    with DaemonProcess(config) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        acquire(endpoint, "run")
        pid = daemon.wait_for("compaction_begun")["pid"]
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        with sw.connect(endpoint) as connection:
            stream = connection.acquire("other", stream="cam0")
            for i in range(3):
                stream.append(SOURCE.frame(i))
            assert daemon.wait_for("compaction_paused")["ring_fill"] == 3 / 40
            assert QueuedStore(store).pause_file.exists()
            stream.close()
            assert daemon.wait_for("compaction_resumed")["path"] == str(store)
        assert not QueuedStore(store).pause_file.exists()
        begin_s = time.monotonic()
        assert daemon.stop() == 0
        assert "compaction_interrupted" in daemon.rest()
        assert is_gone(pid)
        assert time.monotonic() - begin_s < TIMEOUT_S
    assert_holds(store, SOURCE, 32)
    assert sorted(queued.root.name for queued in queued_stores(folder / "data")) == ["other.ome.zarr", "run.ome.zarr"]


@pytest.mark.slow
def test_what_was_interrupted_or_only_queued_is_done_after_a_restart(config: Path, folder: Path) -> None:
    text = config.read_text()
    configure(config, SLOW)
    with DaemonProcess(config) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        acquire(endpoint, "first")
        daemon.wait_for("compaction_begun")
        acquire(endpoint, "second")
        assert daemon.stop() == 0
    config.write_text(text)
    configure(config)
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        names = [daemon.wait_for("compaction_done")["path"].rpartition("/")[2] for _ in range(2)]
        assert sorted(names) == ["first.ome.zarr", "second.ome.zarr"]
        assert daemon.stop() == 0
    for name in names:
        assert_packed(folder / "data" / name)


@pytest.mark.slow
def test_a_killed_daemon_takes_its_child_along_and_the_next_goes_on(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    text = config.read_text()
    configure(config, SLOW)
    with DaemonProcess(config) as daemon:
        acquire(daemon.wait_for("ready")["endpoints"][0], "run")
        pid = daemon.wait_for("compaction_begun")["pid"]
        until(lambda: list(QueuedStore(store).folder.glob("*.packed")))
        daemon.process.kill()
        assert daemon.exit_code() == -signal.SIGKILL
        until(lambda: is_gone(pid))
    QueuedStore(store).pause()  # as if it had died in a pause
    config.write_text(text)
    configure(config)
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        assert daemon.wait_for("compaction_done")["path"] == str(store)
        assert daemon.stop() == 0
    assert_packed(store)


@pytest.mark.slow
def test_a_pause_that_a_person_made_is_kept(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    configure(config)
    with DaemonProcess(config) as daemon:
        acquire(daemon.wait_for("ready")["endpoints"][0], "run")
        daemon.wait_for("compaction_done")
        assert daemon.stop() == 0
    queued = QueuedStore(store)
    queued.add()
    queued.pause_file.touch()
    with DaemonProcess(config) as daemon:
        daemon.wait_for("compaction_begun")
        assert queued.pause_file.exists()
        queued.pause_file.unlink()
        daemon.wait_for("compaction_done")
        assert daemon.stop() == 0


@pytest.mark.slow
def test_a_store_that_cannot_be_compacted_is_given_up_and_the_cameras_do_not_notice(config: Path, folder: Path) -> None:
    store = folder / "data" / "bad.ome.zarr"
    with DaemonProcess(config) as daemon:
        acquire(daemon.wait_for("ready")["endpoints"][0], "bad")
        assert daemon.stop() == 0
    shard = next(path for path in (store / "0" / "c").rglob("*") if path.is_file())
    os.truncate(shard, 10)
    QueuedStore(store).add()
    configure(config)
    with DaemonProcess(config) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        failed = [daemon.wait_for("compaction_failed") for _ in range(3)]
        assert [(event["attempt"], event["again"]) for event in failed] == [(1, True), (2, True), (3, False)]
        assert shard.relative_to(store).as_posix() in failed[0]["error"]
        assert str(store) in failed[-1]["hint"]
        acquire(endpoint, "good")
        assert daemon.wait_for("compaction_done")["path"].endswith("good.ome.zarr")
        assert daemon.stop() == 0
    assert shard.stat().st_size == 10, "left as it is"
    assert queued_stores(folder / "data") == []


@pytest.mark.slow
def test_a_codec_that_the_array_does_not_have_is_not_tried_for_ever(config: Path, folder: Path) -> None:
    configure(config, "recompress: gzip:5")
    with DaemonProcess(config) as daemon:
        acquire(daemon.wait_for("ready")["endpoints"][0], "run")
        while (failed := daemon.wait_for("compaction_failed"))["again"]:
            pass
        assert "codec" in failed["error"]
        assert daemon.stop() == 0
    assert queued_stores(folder / "data") == []
    assert_holds(folder / "data" / "run.ome.zarr", SOURCE, 32)


@pytest.mark.slow
def test_the_open_shards_of_an_acquisition_are_not_touched(config: Path, folder: Path) -> None:
    """A store that is queued from before and written to once more: its daemon died, the next one compacts what is sealed while frames still come."""
    store = folder / "data" / "run.ome.zarr"
    configure(config)
    with ExitStack() as held:
        daemon = held.enter_context(DaemonProcess(config))
        connection = held.enter_context(sw.connect(daemon.wait_for("ready")["endpoints"][0]))
        stream = connection.acquire("run", stream="cam0")
        for i in range(12):  # a group of shards, and half of the next
            stream.append(SOURCE.frame(i))
        until(lambda: stream.frames_stored == 12 and len(plan(open_store(store), Options()).todo) == 2)
        daemon.process.kill()
        daemon.exit_code()
        QueuedStore(store).add()
        daemon = held.enter_context(DaemonProcess(config))
        done = daemon.wait_for("compaction_done")
        assert (done["path"], done["packed"], done["left"]) == (str(store), 2, 0)
        assert list((store / ".shardwright").glob("*.partial")), "these are written to"
        for i in range(12, 32):
            stream.append(SOURCE.frame(i))
        stream.close()
        assert daemon.wait_for("compaction_done")["path"] == str(store)
        assert daemon.stop() == 0
    assert_packed(store)


@pytest.mark.parametrize("failures", [b"", b"{}", b"\xff", b'{"failures": "x"}'])
def test_a_damaged_record_of_failures_says_none(tmp_path: Path, failures: bytes) -> None:
    queued = QueuedStore(tmp_path)
    queued.folder.parent.mkdir()
    queued.add(2)
    assert queued.failures == 2
    queued.queued_file.write_bytes(failures)
    assert queued.failures == 0
    queued.remove()
    assert queued_stores(tmp_path.parent) == []


def test_a_queued_store_that_cannot_be_resumed_keeps_no_other_from_it(tmp_path: Path) -> None:
    """Its pause file is a folder; the store after it waits for a daemon that died."""
    bad, good = (QueuedStore(tmp_path / name) for name in ("a.ome.zarr", "b.ome.zarr"))
    for store in (bad, good):
        (store.root / "0").mkdir(parents=True)
        store.add()
    bad.pause_file.mkdir()
    good.pause()
    events: list[tuple[str, object]] = []
    options = Compaction(enabled=True, after_s=3600)
    service = CompactionService(options, tmp_path, lambda: 0.0, lambda name, facts: events.append((name, facts["path"])))
    service.close()
    service.run(threading.Event())
    assert events == [("compaction_take_up_failed", str(bad.root))]
    assert not good.pause_file.exists()
    assert list(service._due_s) == [bad, good]
