"""The daemon compacts what it has sealed: real daemons, cameras and child processes; stores are looked at by
``inspect``, read by zarr-python."""

from __future__ import annotations

import errno
import json
import os
import queue
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

import pytest
from tests.harness.daemon import DaemonProcess, camera, run_cli, start_cli
from tests.harness.json_process import TIMEOUT_S, wait_for
from tests.harness.store_contents import assert_holds
from tests.repack import degraded_store
from tests.repack import gappy_store as gappy

import shardwright as sw
from shardwright.codecs.degrade import DegradeLevel
from shardwright.config.model import Compaction, Output
from shardwright.daemon import camera_needs, compaction
from shardwright.daemon.camera_needs import CameraNeeds
from shardwright.daemon.compaction import CompactionService
from shardwright.disk import beneath
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import StorageFullError
from shardwright.read.inspect_shards import inspect_shard
from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options, plan
from shardwright.rework.runtime.compaction_queue import QueueEntry, queue_entries
from shardwright.rework.runtime.throttle import (
    RIG_PAUSE_NAME,
    ROOM_PAUSE_NAME,
    pause_files,
    pausing_file,
    sending_pause_files,
)
from shardwright.rework.runtime.work_folder import PAUSE_NAME
from shardwright.simulate.photons import PhotonFrames

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = PhotonFrames((48, 80), "uint16")
SLOW = "rate: 3kB"  # a store of test frames then takes minutes, far longer than what is judged meanwhile
LOW_WATER = 1 << 60  # more than any disk has free, whatever other tests free on it meanwhile


def configure(config: Path, *lines: str) -> None:
    """Add the section; all stores are due as soon as they are sealed."""
    config.write_text(
        "\n".join(
            [
                config.read_text(),
                "compaction:",
                "  enabled: true",
                "  after_s: 0",
                *(f"  {line}" for line in lines),
                "",
            ]
        )
    )


# Idle, it would wait for as long as this machine is busy.
NOT_IDLE = """
from shardwright.daemon import compaction
compaction.make_idle, idle = lambda pid: None, compaction.compact_command
compaction.compact_command = lambda store, options: [*idle(store, options), "--no-idle"]
"""


def unhurried(config: Path) -> DaemonProcess:
    """A daemon that compacts at the priority of the others."""
    return DaemonProcess(config, sabotage=NOT_IDLE)


@pytest.fixture(autouse=True)
def not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for services in this process."""
    idle = compaction.compact_command
    monkeypatch.setattr(compaction, "make_idle", lambda pid: None)
    monkeypatch.setattr(
        compaction, "compact_command", lambda store, options: [*idle(store, options), "--no-idle"]
    )


def acquire(endpoint: str, name: str, frames: int = 32) -> None:
    assert camera(endpoint, name, "--stream", "cam0", "--frames", str(frames))["frames_stored"] == frames


def gap_bytes(store: Path) -> int:
    """As ``inspect`` counts them."""
    result = run_cli("inspect", "--json", store)
    assert result.returncode == 0, result.stdout + result.stderr
    facts = json.loads(result.stdout)
    return sum(int(array["totals"]["gap_bytes"]) for array in facts["arrays"])


def is_gone(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def assert_packed(store: Path, frames: int = 32) -> None:
    assert gap_bytes(store) == 0
    assert not QueueEntry(store).folder.exists(), "nothing is left of the work"
    assert_holds(store, SOURCE, frames)


def test_a_sealed_acquisition_is_compacted_without_being_asked(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    configure(config, "order: morton", "recompress: zstd:5")
    with unhurried(config) as daemon:
        acquire(daemon.endpoint, "run")
        assert daemon.wait_for("compaction_begun")["path"] == str(store)
        done = daemon.wait_for("compaction_done")
        assert (done["path"], done["packed"], done["left"]) == (str(store), 8, 0)
        assert done["chunks_recoded"] > 0
        assert_packed(store)
        assert daemon.stop() == 0


def test_short_shards_are_merged_after_the_acquisition(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    configure(config, "shards: {t: 32}", "order: morton")
    with unhurried(config) as daemon:
        acquire(daemon.endpoint, "run")
        done = daemon.wait_for("compaction_done")
        assert (done["merged"], done["unmerged"]) == (["0"], {})
        assert daemon.stop() == 0
    (array,) = open_store(store).arrays
    assert array.shard_shape[0] == 32
    assert_packed(store)


def test_what_was_degraded_is_compressed_as_its_array_says(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    spec = sw.ArraySpec(
        dtype="uint16",
        codec=sw.Blosc(cname="zstd", clevel=3),
        dimensions=[
            sw.Dimension(name="t", chunk_size=4, shard_size_chunks=2),
            sw.Dimension(name="y", count=48, chunk_size=32, shard_size_chunks=1),
            sw.Dimension(name="x", count=80, chunk_size=32, shard_size_chunks=3),
        ],
    )
    slabs = [[SOURCE.frame(i + place) for place in range(4)] for i in range(0, 32, 4)]
    receipt = degraded_store.write(store, spec, slabs, list(DegradeLevel))
    degraded = receipt.chunks_faster + receipt.chunks_uncompressed
    assert degraded == 5 * 6
    QueueEntry(store).add()
    configure(config, "recompress: codec")
    with unhurried(config) as daemon:
        assert daemon.wait_for("compaction_done")["chunks_recoded"] == degraded
        assert_packed(store)
        assert daemon.stop() == 0
    (image,) = [array for array in open_store(store).arrays if array.path.name == "0"]
    forms = {
        form
        for key, shard in image.shard_files()
        if shard is not None
        for form in inspect_shard(image, shard).forms
    }
    assert forms == {"blosc zstd shuffle"}


def test_nothing_is_compacted_that_was_not_asked_for(config: Path, folder: Path) -> None:
    with unhurried(config) as daemon:
        acquire(daemon.endpoint, "run")
        assert daemon.stop() == 0
        assert not [name for name in daemon.rest() if name.startswith("compaction")]
    assert gap_bytes(folder / "data" / "run.ome.zarr") > 0


def test_it_works_at_idle_priority_and_all_jobs_wait_while_a_camera_fills_its_ring(
    config: Path, folder: Path
) -> None:
    store, by_hand = (
        folder / "data" / "run.ome.zarr",
        gappy.write(folder / "data" / "elsewhere" / "old.ome.zarr", shards=2),
    )
    configure(config, SLOW, "pause_above: 0.05")
    # a frame stays in the ring until its chunk is full
    text = config.read_text().replace("store_within_ms: 200", "store_within_ms: 600000")
    config.write_text(text.replace("name: cam0\n", "name: cam0\n    ring_frames: 40\n"))
    with DaemonProcess(config) as daemon:
        endpoint = daemon.endpoint
        acquire(endpoint, "run")
        pid = daemon.wait_for("compaction_begun")["pid"]
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        with sw.connect(endpoint) as connection:
            stream = connection.acquire("other", stream="cam0")
            for i in range(3):
                stream.append(SOURCE.frame(i))
            assert daemon.wait_for("compaction_paused")["ring_fill"] == 3 / 40
            with start_cli("compact", by_hand) as job:
                assert job.stderr is not None
                line = job.stderr.readline()
                stream.close()
                assert job.wait(TIMEOUT_S) == 0
            assert f"paused: the cameras of the daemon at {folder / 'data'} need the machine" in line
            assert daemon.wait_for("compaction_resumed")["path"] == str(store)
        assert not (folder / "data" / RIG_PAUSE_NAME).exists()
        begin_s = time.monotonic()
        assert daemon.stop() == 0
        assert "compaction_interrupted" in daemon.rest()
        assert is_gone(pid)
        assert time.monotonic() - begin_s < TIMEOUT_S
    assert_holds(store, SOURCE, 32)
    assert sorted(queued.root.name for queued in queue_entries(folder / "data")) == [
        "other.ome.zarr",
        "run.ome.zarr",
    ]


def test_what_was_interrupted_or_only_queued_is_done_after_a_restart(config: Path, folder: Path) -> None:
    text = config.read_text()
    configure(config, SLOW)
    with unhurried(config) as daemon:
        endpoint = daemon.endpoint
        acquire(endpoint, "first")
        daemon.wait_for("compaction_begun")
        acquire(endpoint, "second")
        assert daemon.stop() == 0
    config.write_text(text)
    configure(config)
    with unhurried(config) as daemon:
        daemon.wait_for("ready")
        names = [daemon.wait_for("compaction_done")["path"].rpartition("/")[2] for _ in range(2)]
        assert sorted(names) == ["first.ome.zarr", "second.ome.zarr"]
        assert daemon.stop() == 0
    for name in names:
        assert_packed(folder / "data" / name)


def test_a_killed_daemon_takes_its_child_along_and_the_next_goes_on(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    text = config.read_text()
    configure(config, SLOW)
    with unhurried(config) as daemon:
        acquire(daemon.endpoint, "run")
        pid = daemon.wait_for("compaction_begun")["pid"]
        wait_for(lambda: list(QueueEntry(store).folder.glob("*.packed")))
        daemon.kill()
        wait_for(lambda: is_gone(pid))
    config.write_text(text)
    configure(config)
    with unhurried(config) as daemon:
        daemon.wait_for("ready")
        assert daemon.wait_for("compaction_done")["path"] == str(store)
        assert daemon.stop() == 0
    assert_packed(store)


def test_a_pause_that_a_person_made_is_kept(config: Path, folder: Path) -> None:
    store = folder / "data" / "run.ome.zarr"
    configure(config)
    with unhurried(config) as daemon:
        acquire(daemon.endpoint, "run")
        daemon.wait_for("compaction_done")
        assert daemon.stop() == 0
    QueueEntry(store).add()
    pause_file = QueueEntry(store).folder / PAUSE_NAME
    pause_file.touch()
    with unhurried(config) as daemon:
        daemon.wait_for("compaction_begun")
        assert pause_file.exists()
        pause_file.unlink()
        daemon.wait_for("compaction_done")
        assert daemon.stop() == 0


def test_a_store_that_cannot_be_compacted_is_given_up_and_the_cameras_do_not_notice(
    config: Path, folder: Path
) -> None:
    store = folder / "data" / "bad.ome.zarr"
    with unhurried(config) as daemon:
        acquire(daemon.endpoint, "bad")
        assert daemon.stop() == 0
    shard = next(path for path in (store / "0" / "c").rglob("*") if path.is_file())
    os.truncate(shard, 10)
    QueueEntry(store).add()
    configure(config)
    with unhurried(config) as daemon:
        endpoint = daemon.endpoint
        failed = [daemon.wait_for("compaction_failed") for _ in range(3)]
        assert [(event["attempt"], event["again"]) for event in failed] == [(1, True), (2, True), (3, False)]
        assert shard.relative_to(store).as_posix() in failed[0]["error"]
        assert str(store) in failed[-1]["hint"]
        acquire(endpoint, "good")
        assert daemon.wait_for("compaction_done")["path"].endswith("good.ome.zarr")
        assert daemon.stop() == 0
    assert shard.stat().st_size == 10, "left as it is"
    assert queue_entries(folder / "data") == []


def test_a_codec_that_the_array_does_not_have_is_not_tried_for_ever(config: Path, folder: Path) -> None:
    configure(config, "recompress: gzip:5")
    with unhurried(config) as daemon:
        acquire(daemon.endpoint, "run")
        failed = daemon.wait_for("compaction_failed")
        assert (failed["again"], failed["attempt"]) == (False, 1), "the same command fails the next time, too"
        assert "codec" in failed["error"]
        assert daemon.stop() == 0
    assert queue_entries(folder / "data") == []
    assert_holds(folder / "data" / "run.ome.zarr", SOURCE, 32)


def test_the_open_shards_of_an_acquisition_are_not_touched(config: Path, folder: Path) -> None:
    """A store that is queued from before and written to once more: its daemon died, the next one compacts
    what is sealed while frames still come."""
    store = folder / "data" / "run.ome.zarr"
    configure(config)
    with ExitStack() as held:
        daemon = held.enter_context(unhurried(config))
        connection = held.enter_context(sw.connect(daemon.endpoint))
        stream = connection.acquire("run", stream="cam0")
        for i in range(12):  # a group of shards, and half of the next
            stream.append(SOURCE.frame(i))
        wait_for(lambda: stream.watermark.stored == 12 and len(plan(open_store(store), Options()).todo) == 2)
        daemon.kill()
        QueueEntry(store).add()
        daemon = held.enter_context(unhurried(config))
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
    (tmp_path / "0").mkdir()
    queued = QueueEntry(tmp_path)
    queued.add(2)
    assert queued.failures == 2
    queued.queued_file.write_bytes(failures)
    assert queued.failures == 0
    queued.remove()
    assert queue_entries(tmp_path.parent) == []


class ServiceThread:
    """What the compaction thread sees of a daemon; the thread is real, and so are the processes that it
    starts."""

    def __init__(self, root: Path, *, low_water: int = 1, **options: object) -> None:
        self.fill, self.acquiring, self.waits_for_room = 0.0, False, False
        self.events = queue.SimpleQueue[tuple[str, dict[str, Any]]]()
        chosen = Compaction.model_validate({"after_s": 0, **options})
        needs = CameraNeeds(
            Output(root=root, low_water=low_water),
            chosen.pause_above,
            lambda: self.fill,
            lambda: self.acquiring,
            lambda: self.waits_for_room,
        )
        self.service = CompactionService(
            chosen, root, needs, lambda name, facts: self.events.put((name, dict(facts)))
        )
        self._thread = threading.Thread(target=self.service.run, args=(threading.Event(),))

    def next_event(self) -> tuple[str, dict[str, Any]]:
        return self.events.get(timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.close()
        self._thread.join()


def test_a_daemon_that_compacts_nothing_holds_up_those_who_do(tmp_path: Path) -> None:
    files = pause_files(tmp_path / "a" / "run.ome.zarr" / "0")
    with ServiceThread(tmp_path) as thread:
        thread.fill = 0.3
        wait_for(lambda: pausing_file(files) == str(tmp_path / RIG_PAUSE_NAME))
        thread.fill = 0.2
        wait_for(lambda: pausing_file(files) is None)
        thread.fill = 0.3
        wait_for(lambda: pausing_file(files))
    assert pausing_file(files) is None, "nobody waits for a daemon that has ended"
    assert thread.events.empty()
    (tmp_path / RIG_PAUSE_NAME).touch()
    assert pausing_file(files) is None, "nor for one that was killed"
    with ServiceThread(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_short_disk_holds_up_those_who_take_room_there_and_not_those_who_make_some(tmp_path: Path) -> None:
    """With ``on_full: block`` the camera waits for room, and would wait for the job that waits for it."""
    array = tmp_path / "a" / "run.ome.zarr" / "0"
    packing, sending = pause_files(array), sending_pause_files(array)
    for short in ("below the low water", "no room for a shard"):
        low_water = LOW_WATER if short == "below the low water" else 1
        with ServiceThread(tmp_path, low_water=low_water) as thread:
            thread.acquiring = True
            thread.waits_for_room = low_water == 1
            wait_for(lambda: pausing_file(packing), short)
            assert pausing_file(packing) == str(tmp_path / ROOM_PAUSE_NAME)
            assert pausing_file(sending) is None
            assert pausing_file(sending_pause_files(array, tmp_path / "archive" / "run.ome.zarr"))
            thread.fill = 0.3
            wait_for(lambda: pausing_file(sending) == str(tmp_path / RIG_PAUSE_NAME))
        assert pausing_file(packing) is None
    assert thread.events.empty()
    assert list(tmp_path.iterdir()) == []


def test_a_pause_that_could_not_be_made_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, perhaps the one that is to be spared: told once, and made as soon as it can be."""
    refusals = iter([StorageFullError("no room")] * 3)
    take = StoreLock.take

    def refuse(path: Path) -> StoreLock:
        if error := next(refusals, None):
            raise error
        return take(path)

    monkeypatch.setattr(StoreLock, "take", refuse)
    needs = CameraNeeds(Output(root=tmp_path, low_water=1), 0.25, lambda: 0.5, lambda: True, lambda: False)
    with pytest.raises(StorageFullError):
        needs.look()
    for held in (False, False, True):
        needs.look()
        assert needs.jobs_wait is held
    needs.end()


def test_compaction_gives_disk_back_that_the_cameras_need_and_goes_on_later(tmp_path: Path) -> None:
    store = gappy.write(tmp_path / "run.ome.zarr")
    QueueEntry(store).add()
    with ServiceThread(tmp_path, low_water=LOW_WATER, enabled=True, rate=3_000) as thread:
        name, facts = thread.next_event()
        assert name == "compaction_begun", "low disk alone is a reason to compact"
        wait_for(lambda: list(store.rglob("*.packed")))
        thread.acquiring = True
        name, interrupted = thread.next_event()
        assert (name, interrupted["path"]) == ("compaction_interrupted", str(store))
        assert 0 < interrupted["free_bytes"] < LOW_WATER
        assert is_gone(facts["pid"])
        assert not list(store.rglob("*.packed"))
        assert pausing_file(pause_files(store / "0")), "others wait"
        assert queue_entries(tmp_path) == [QueueEntry(store)]
        thread.acquiring = False
        assert thread.next_event()[0] == "compaction_begun"
    assert thread.next_event()[0] == "compaction_interrupted"
    gappy.assert_pixels(store)


def test_a_store_that_was_moved_away_with_a_link_in_its_place_ends_no_other_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camera_needs, "CALM_S", 0.001)
    store, archived = tmp_path / "root" / "run.ome.zarr", tmp_path / "run.ome.zarr"
    (store / "0").mkdir(parents=True)
    with ServiceThread(tmp_path / "root", enabled=True) as thread:
        thread.fill = 0.5  # not begun before it is moved
        thread.service.notice("acquisition_ended", {"path": str(store), "frames_stored": 1})
        wait_for(lambda: QueueEntry(store).is_queued and thread.service.snapshot()["queued"])
        store.rename(archived)
        store.symlink_to(archived)
        thread.fill = 0.0
        name, facts = thread.next_event()
        assert (name, facts["path"], facts["again"]) == ("compaction_failed", str(store), False)
        assert "symbolic link" in facts["error"]
        thread.service.notice("acquisition_ended", {"path": str(tmp_path / "b.ome.zarr"), "frames_stored": 1})
        assert thread.next_event()[1]["path"] == str(tmp_path / "b.ome.zarr")
        assert (thread.service.snapshot()["enabled"], thread.service.snapshot()["died"]) == (True, False)
    assert QueueEntry(archived).is_queued


def test_an_error_of_the_disk_leaves_a_store_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if nothing can be looked at: this process has no descriptor left."""
    store = tmp_path / "run.ome.zarr"
    (store / "0").mkdir(parents=True)
    QueueEntry(store).add()
    work = CompactionService._work

    def without_descriptors(service: CompactionService) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(beneath, "open_file", refused)
            work(service)

    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(CompactionService, "_work", without_descriptors)
    with ServiceThread(tmp_path, enabled=True, after_s=0) as thread:
        for _ in range(2):
            name, facts = thread.next_event()
            assert (name, facts["again"]) == ("compaction_failed", True)
            assert "Too many open files" in facts["error"]
    assert QueueEntry(store).is_queued


def test_compaction_that_has_died_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompactionService, "_work", lambda _: 1 // 0)
    with ServiceThread(tmp_path, enabled=True) as thread:
        name, facts = thread.next_event()
        assert (name, facts["error"][:17]) == ("compaction_died", "ZeroDivisionError")
        stands = thread.service.snapshot()
        store = gappy.write(tmp_path / "a.ome.zarr")
        thread.service.notice("acquisition_ended", {"path": str(store), "frames_stored": 32})
    assert (stands["enabled"], stands["died"]) == (False, True)
    assert [entry.root for entry in queue_entries(tmp_path)] == [store], "for the next daemon"


def test_compaction_says_how_it_stands(tmp_path: Path) -> None:
    store = gappy.write(tmp_path / "a.ome.zarr")
    with ServiceThread(tmp_path, enabled=True) as thread:
        nothing_yet = thread.service.snapshot()
        assert {name: nothing_yet[name] for name in ("enabled", "running", "paused", "done", "failed")} == {
            "enabled": True,
            "running": None,
            "paused": False,
            "done": 0,
            "failed": 0,
        }
        entry = QueueEntry(store)
        entry.add()
        (entry.folder / PAUSE_NAME).touch()  # it runs until it was looked at
        thread.service.notice("acquisition_ended", {"path": str(store), "frames_stored": 32})
        assert thread.next_event()[0] == "compaction_begun"
        assert thread.service.snapshot()["running"] == str(store)
        (entry.folder / PAUSE_NAME).unlink()
        gone = {"path": str(tmp_path / "b.ome.zarr"), "frames_stored": 1}
        thread.service.notice("acquisition_ended", gone)
        told = {thread.next_event()[0], thread.next_event()[0]}
        wait_for(lambda: thread.service.snapshot()["running"] is None)
        ended = thread.service.snapshot()
    assert told == {"compaction_done", "compaction_failed"}
    assert (ended["queued"], ended["done"], ended["failed"]) == (0, 1, 1)
