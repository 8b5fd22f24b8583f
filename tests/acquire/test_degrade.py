"""Encoders that cannot follow, under the policy ``degrade``: chunks are written faster, then uncompressed;
every one opens and is right, the level comes back, and the counts are those of the chunks on disk."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter

import numpy as np
import pytest

import shardwright as sw
from shardwright.acquire import overload_level
from shardwright.acquire.workers import WorkerPool
from shardwright.array.spec import Blosc, Gzip, Zstd
from shardwright.codecs.degrade import DegradeLevel
from shardwright.disk import failpoints
from shardwright.model.errors import SpecError
from shardwright.model.write_settings import WriteSettings
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store

DEGRADE = WriteSettings(overload="degrade")
AXES = {"y": (64, 32, 2), "x": (64, 32, 2)}  # chunks that shrink
ALL_LEVELS = [
    ("configured", "faster"),
    ("faster", "uncompressed"),
    ("uncompressed", "faster"),
    ("faster", "configured"),
]


class Throttle:
    """Lets so many tasks begin to encode, and no more, until it is opened. ``came``: how many there were, the
    one that waits included."""

    def __init__(self) -> None:
        self.came = 0
        self._go = threading.Semaphore(0)
        self._open = False
        failpoints.set_hook("slots.before_store", self._wait)

    def _wait(self) -> None:
        self.came += 1
        if not self._open:
            assert self._go.acquire(timeout=60)

    def let(self, tasks: int) -> None:
        self._go.release(tasks)

    def open(self) -> None:
        self._open = True
        self._go.release(1000)

    def close(self) -> None:
        self.open()
        failpoints.set_hook("slots.before_store", None)


@pytest.fixture
def throttle(monkeypatch):
    monkeypatch.setattr(overload_level, "DWELL_S", 0.01)
    made = Throttle()
    yield made
    made.close()


def levels_told(events) -> list[tuple[str, str]]:
    return [(facts["before"], facts["degrade_level"]) for name, facts in events if name == "overload_level"]


def forms(path) -> Counter[str]:
    store = open_store(path)
    return sum((Counter(report.forms) for report in inspect_shards(store, store.arrays[0])), Counter())


def overload(drive, throttle) -> list[tuple[str, dict]]:
    """More frames than may be encoded, until chunks are stored uncompressed; then all of them, and the level
    comes back."""
    acquisition, next_frame = drive.acquisition, 0
    events: list[tuple[str, dict]] = []
    while acquisition.degrade_level is not DegradeLevel.UNCOMPRESSED:
        if len(drive._pixels) < drive.limits.ring_frames:
            drive.submit(next_frame)
            next_frame += 1
            drive.poll()
        else:
            throttle.let(1)
            drive.poll(0.05)
        assert next_frame < 400, "the level does not rise"
    throttle.open()
    drive.quiet()
    drive.submit(*range(next_frame, next_frame + 8))
    drive.until(lambda: acquisition.degrade_level is DegradeLevel.CONFIGURED)
    drive.submit(*range(next_frame + 8, next_frame + 12))
    events += acquisition.take_events()
    return events


CODECS = {
    "blosc zstd": Blosc(cname="zstd", clevel=3),
    "blosc lz4 bitshuffle": Blosc(cname="lz4", clevel=5, shuffle="bitshuffle"),
    "zstd": Zstd(level=3),
    "gzip": Gzip(level=6),
}


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("name", CODECS)
def test_levels_go_up_and_come_back_and_every_frame_is_right(
    tmp_path, drive_of, spec_of, throttle, name, checksum
):
    pool = WorkerPool(2)
    pool.start()
    try:
        spec = spec_of(codec=CODECS[name], chunk_checksum=checksum, **AXES)
        drive = drive_of(tmp_path / "a.zarr", spec, pool, DEGRADE, ring_frames=24)
        events = overload(drive, throttle)
        receipt = drive.finish()
    finally:
        pool.stop()
    assert levels_told(events) == ALL_LEVELS
    assert np.array_equal(drive.read(), drive.expected(range(drive.submitted)))
    assert (receipt.frames_stored, receipt.frames_lost, receipt.frames_missing) == (drive.submitted, 0, 0)
    assert receipt.frames_faster >= 2
    assert receipt.frames_uncompressed >= 2
    assert receipt.frames_faster + receipt.frames_uncompressed < receipt.frames_stored
    assert receipt.chunks_faster + receipt.chunks_uncompressed < 4 * drive.submitted // 2, (
        "four chunks cover two frames"
    )
    found = forms(drive.path)
    assert sum(count for form, count in found.items() if "stored" in form) == receipt.chunks_uncompressed
    if name == "blosc zstd":  # the compressor of each chunk tells its level
        assert found["blosc lz4 shuffle"] == receipt.chunks_faster
    if name == "blosc lz4 bitshuffle":  # its filter does
        assert found["blosc lz4 shuffle"] == receipt.chunks_faster


def test_a_slab_counts_at_the_fastest_level_of_its_chunks(tmp_path, drive_of, spec_of, throttle, monkeypatch):
    """A slab of four tasks, of which the last begins after the level has changed."""
    monkeypatch.setattr(overload_level, "DWELL_S", math.inf)  # the level that is reached stays
    pool = WorkerPool(1)
    pool.start()
    try:
        drive = drive_of(
            tmp_path / "a.zarr", spec_of(codec=Zstd(level=3), **AXES), pool, DEGRADE, ring_frames=24
        )
        acquisition = drive.acquisition
        # a range that could hold all of it is cut into four
        acquisition._task_ranges = [[(0, 1), (1, 2), (2, 3), (3, 4)]]
        drive.submit(0, 1)
        throttle.let(3)
        drive.until(lambda: throttle.came == 4)  # the fourth has begun, and waits
        drive.submit(2, 3)
        time.sleep(0.002)  # a tick within a millisecond of the last one does nothing
        acquisition.see_ring(24, 24)
        acquisition.poll()
        assert acquisition.degrade_level is DegradeLevel.FASTER
        throttle.let(2)  # the fourth, and the first one of the second slab: begun as configured, and faster
        drive.until(lambda: throttle.came == 6)
        throttle.open()
        receipt = drive.finish()
    finally:
        pool.stop()
    assert (receipt.chunks_faster, receipt.frames_faster) == (4, 2)
    assert (receipt.chunks_uncompressed, receipt.frames_uncompressed) == (0, 0)


@pytest.mark.parametrize(
    ("point", "at", "durability"),
    [("journal.before_chunks", 2, "stored"), ("shard.before_sync", 1, "durable")],
)
def test_a_slab_that_is_written_again_counts_once(
    tmp_path, drive_of, spec_of, monkeypatch, point, at, durability
):
    """After an I/O error in one of its tasks, or in a sync of what was stored: whatever was counted is taken
    back."""
    monkeypatch.setattr(overload_level, "DWELL_S", math.inf)
    pool = WorkerPool(1)
    pool.start()
    failpoints.set_hook(point, failpoints.at_time(at, lambda: (_ for _ in ()).throw(OSError(5, "I/O"))))
    try:
        settings = WriteSettings(overload="degrade", durability=durability, sync_interval_ms=10)
        drive = drive_of(
            tmp_path / "a.zarr", spec_of(codec=Zstd(level=3), **AXES), pool, settings, ring_frames=24
        )
        acquisition = drive.acquisition
        acquisition._task_ranges = [[(0, 2), (2, 4)]]
        acquisition._core.encoders.overload.look(1.0, 0.0)
        assert acquisition.degrade_level is DegradeLevel.FASTER
        drive.submit(0, 1)
        drive.until(lambda: drive.released.total() == 2)
        receipt = drive.finish()
        events = [name for name, _ in acquisition.take_events()]
    finally:
        failpoints.set_hook(point, None)
        pool.stop()
    assert acquisition.error is None
    assert "shard_rewritten" in events
    assert (receipt.chunks_faster, receipt.frames_faster, receipt.chunks_uncompressed) == (4, 2, 0)
    assert np.array_equal(drive.read(), drive.expected(range(2)))


def test_without_a_compressor_there_is_nothing_to_change(tmp_path, pool, drive_of, spec_of, throttle):
    drive = drive_of(tmp_path / "a.zarr", spec_of(codec=None, **AXES), pool, DEGRADE, ring_frames=12)
    drive.submit(*range(12))
    drive.poll()
    drive.poll()
    assert drive.acquisition.degrade_level is DegradeLevel.CONFIGURED
    throttle.open()
    assert drive.finish().frames_stored == 12


@pytest.mark.parametrize("policy", ["block", "drop", "fail"])
def test_other_policies_never_change_the_level(tmp_path, pool, drive_of, spec_of, throttle, policy):
    drive = drive_of(
        tmp_path / "a.zarr",
        spec_of(codec=Zstd(level=3), **AXES),
        pool,
        WriteSettings(overload=policy),
        ring_frames=12,
    )
    drive.submit(*range(12))
    drive.poll()
    drive.poll()
    assert drive.acquisition.degrade_level is DegradeLevel.CONFIGURED
    throttle.open()
    receipt = drive.finish()
    assert (receipt.frames_faster, receipt.frames_uncompressed) == (0, 0)


def test_the_writer_in_process(tmp_path, spec_of, throttle):
    """A camera that waits where its ring is full all the same: nothing is lost, and the receipt tells what
    was degraded."""
    spec = spec_of(shard=256, codec=Zstd(level=3), **AXES)
    images = np.random.default_rng(5).integers(0, 200, (4000, 64, 64), np.uint16)
    with sw.create(tmp_path / "a.zarr", spec, threads=2, overload="degrade") as writer:
        sent = 0
        while writer._acquisition.degrade_level is not DegradeLevel.UNCOMPRESSED:
            writer.append(images[sent])  # IndexError: the level does not rise
            sent += 1
            if writer._acquisition.degrade_level is not DegradeLevel.CONFIGURED and sent % 4 == 0:
                throttle.let(1)  # which gives two frames of the ring back
                time.sleep(0.001)
        throttle.open()
        for image in images[sent : sent + 100]:
            writer.append(image)
        sent += 100
    receipt = writer.receipt
    assert (receipt.frames_received, receipt.frames_stored, receipt.frames_missing, receipt.frames_lost) == (
        sent,
        sent,
        0,
        0,
    )
    assert receipt.chunks_faster > 0
    store = open_store(tmp_path / "a.zarr")
    assert np.array_equal(_read(store.arrays[0].path), images[:sent])
    assert forms(tmp_path / "a.zarr")["zstd stored"] == receipt.chunks_uncompressed


def _read(path) -> np.ndarray:
    import zarr

    return zarr.open_array(path, mode="r")[...]


def test_a_policy_that_does_not_exist_is_refused(tmp_path, spec_of):
    with pytest.raises(SpecError, match="block, degrade, drop, fail"):
        sw.create(tmp_path / "a.zarr", spec_of(), overload="slower")
