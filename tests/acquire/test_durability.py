"""Stored, durable, staged, flushed: what an acquisition says of its frames, and what it does when a disk
fails under them."""

from __future__ import annotations

import errno
import math
import os
import threading

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.encoding import SlabEncoder
from shardwright.acquire.workers import WorkerPool
from shardwright.disk import failpoints
from shardwright.model.errors import StorageError, StorageFullError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.model.write_settings import WriteSettings
from shardwright.recovery.recover_store import recover_store
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED, FRAME_NOT_HELD

pytestmark = pytest.mark.usefixtures("each_file_syncs_alone")

NEVER_MS = 3_600_000
EIO = OSError(errno.EIO, os.strerror(errno.EIO))
ENOSPC = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def settings(**changes) -> WriteSettings:
    """Nothing happens by itself, unless a test asks for it."""
    return WriteSettings(
        **{"store_within_ms": NEVER_MS, "sync_interval_ms": NEVER_MS, "ballast_bytes": 0, **changes}
    )


def event_names(drive) -> list[str]:
    return [name for name, _ in drive.acquisition.take_events()]


def table(drive) -> dict[str, list[int]]:
    table = zarr.open_group(drive.path / "frames", mode="r")
    return {name: table[name][:].tolist() for name in ("sequence", "status", "reason")}


@pytest.fixture
def failing_once():
    """``failing_once(point, error)``: the next time, and then no more."""
    points = []

    def fail(point: str, error: OSError) -> None:
        def hook() -> None:
            failpoints.set_hook(point, None)
            raise error

        points.append(point)
        failpoints.set_hook(point, hook)

    yield fail
    for point in points:
        failpoints.set_hook(point, None)


def test_a_frame_of_an_unfinished_slab_is_stored_in_time_and_then_durable(
    tmp_path, shared_pool, drive_of, spec_of
):
    drive = drive_of(
        tmp_path / "a.zarr", spec_of(chunk=4), shared_pool, settings(store_within_ms=20, sync_interval_ms=20)
    )
    drive.submit(0)
    drive.until(lambda: drive.acquisition.durable_watermark == 1)
    assert not drive.released, "its pixels are needed for its slab"
    drive.submit(2)
    drive.until(lambda: drive.acquisition.durable_watermark == 2)
    receipt = drive.finish()
    assert (receipt.frames_stored, receipt.frames_durable) == (2, 2)
    assert np.array_equal(drive.read(), drive.expected([0, 2], extent=3))


def test_nothing_is_durable_before_it_is_synced(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, settings())
    drive.submit(0, 1, 2)
    drive.until(lambda: drive.acquisition.stored_watermark == 2)
    assert drive.acquisition.durable_watermark == 0
    drive.finish()


def test_a_flush_makes_everything_durable_although_slabs_are_not_full(
    tmp_path, shared_pool, drive_of, spec_of
):
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4), shared_pool, settings())
    drive.submit(0, 1, 2, 3, 4, 9)
    drive.acquisition.flush()
    drive.until(lambda: drive.acquisition.durable_watermark == 6)
    assert drive.finish().frames_stored == 6
    assert np.array_equal(drive.read(), drive.expected([0, 1, 2, 3, 4, 9]))


def test_one_sync_makes_many_frames_durable(tmp_path, shared_pool, drive_of, spec_of):
    syncs = []
    failpoints.set_hook("journal.before_sync", lambda: syncs.append(1))
    try:
        drive = drive_of(
            tmp_path / "a.zarr", spec_of(chunk=2, shard=32), shared_pool, settings(sync_interval_ms=NEVER_MS)
        )
        made = len(syncs)  # each journal's header is synced when it is made
        for position in range(40):
            drive.submit(position)
            drive.poll()
        drive.until(lambda: drive.acquisition.stored_watermark == 40)
        drive.acquisition.flush()
        drive.until(lambda: drive.acquisition.durable_watermark == 40)
        assert len(syncs) - made <= 3, (
            "one of the shard row that was filled, and the header of the one prepared behind it"
        )
    finally:
        failpoints.set_hook("journal.before_sync", None)
    drive.finish()


@pytest.mark.parametrize("durability", ["stored", "durable"])
def test_pixels_come_back_at_the_level_that_was_asked_for(
    tmp_path, shared_pool, drive_of, spec_of, durability
):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, settings(durability=durability))
    drive.submit(0, 1)
    drive.until(lambda: drive.acquisition.stored_watermark == 2)
    assert sorted(drive.released) == ([0, 1] if durability == "stored" else [])
    drive.acquisition.flush()
    drive.until(lambda: drive.acquisition.durable_watermark == 2)
    assert sorted(drive.released) == [0, 1]
    drive.finish()


def test_with_durability_durable_a_ring_of_waiting_frames_asks_for_a_commit(
    tmp_path, shared_pool, drive_of, spec_of
):
    drive = drive_of(
        tmp_path / "a.zarr", spec_of(), shared_pool, settings(durability="durable"), ring_frames=13
    )
    for position in range(60):
        drive.until(lambda: drive.submitted - len(drive.released) < 13)
        drive.submit(position)
    assert drive.finish().frames_durable == 60
    assert np.array_equal(drive.read(), drive.expected(range(60)))


@pytest.mark.parametrize("durability", ["stored", "durable"])
@pytest.mark.parametrize(
    "point",
    [
        "shard.before_sync",
        "journal.before_sync",
        "slots.before_write",
        "shard.before_truncate",
        "journal.before_chunks",
    ],
)
def test_an_io_error_moves_the_shard_row_to_new_files(
    tmp_path, shared_pool, drive_of, spec_of, failing_once, durability, point
):
    drive = drive_of(tmp_path / "a.zarr", spec_of(shard=4), shared_pool, settings(durability=durability))
    drive.submit(0, 1)
    drive.until(lambda: drive.acquisition.stored_watermark == 2)
    drive.still()  # the next shard row is prepared: the error must not meet that one
    failing_once(point, EIO)
    drive.submit(2, 3, 4, 5)
    drive.acquisition.flush()
    drive.until(lambda: drive.acquisition.durable_watermark == 6)
    drive.submit(6, 7)
    receipt = drive.finish()
    assert drive.acquisition.error is None
    assert (receipt.frames_stored, receipt.frames_durable, receipt.frames_lost) == (8, 8, 0)
    assert np.array_equal(drive.read(), drive.expected(range(8)))
    # a mapped shard writes no slots
    if point != "slots.before_write" or drive.acquisition.folder.io != "mmap":
        assert event_names(drive) == ["io_error", "shard_rewritten"]
    assert table(drive)["status"] == [FrameStatus.STORED] * 8


@pytest.mark.parametrize("durability", ["stored", "durable"])
def test_what_cannot_be_read_back_is_written_again_if_it_is_held_and_reported_lost_if_not(
    tmp_path, shared_pool, drive_of, spec_of, failing_once, durability, rot
):
    drive = drive_of(
        tmp_path / "a.zarr", spec_of(shard=4, codec=None), shared_pool, settings(durability=durability)
    )
    drive.submit(0, 1)
    drive.submit(2, 3)
    drive.until(lambda: drive.acquisition.stored_watermark == 4)
    rot(drive.path, drive.spec, 0)
    failing_once("shard.before_sync", EIO)
    drive.acquisition.flush()
    drive.until(lambda: drive.acquisition.durable_watermark == 4)
    losses = drive.acquisition.take_losses()
    receipt = drive.finish()
    assert drive.acquisition.error is None
    if durability == "durable":
        assert (receipt.frames_stored, receipt.frames_lost, losses) == (4, 0, [])
        assert np.array_equal(drive.read(), drive.expected(range(4)))
        return
    assert [loss[:2] for loss in losses] == [(0, 1)]
    assert (
        receipt.frames_received,
        receipt.frames_stored,
        receipt.frames_durable,
        receipt.frames_lost,
        receipt.frames_missing,
    ) == (4, 2, 2, 2, 2)
    assert np.array_equal(drive.read(), drive.expected([2, 3], extent=4))
    found = table(drive)
    lost = [
        (s, r)
        for s, f, r in zip(found["sequence"], found["status"], found["reason"], strict=True)
        if f == FrameStatus.LOST
    ]
    assert sorted(lost) == [(0, Reason.IO_ERROR), (1, Reason.IO_ERROR)]


def test_a_disk_that_goes_on_failing_ends_the_acquisition(tmp_path, shared_pool, drive_of, spec_of, failing):
    drive = drive_of(tmp_path / "a.zarr", spec_of(shard=4), shared_pool, settings())
    drive.submit(0, 1)
    drive.until(lambda: drive.acquisition.stored_watermark == 2)
    failing("shard.before_sync", EIO)
    drive.acquisition.flush()
    drive.until(lambda: drive.acquisition.state is AcquisitionState.FAILED)
    drive.finish()
    assert isinstance(drive.acquisition.error, StorageError)
    assert sorted(path.name for path in drive.path.glob(".shardwright/*.partial")) == [
        "c.0.0.0.partial",
        "c.0.1.0.partial",
    ], "left for recovery"


def test_staging_that_fails_costs_time_but_no_frame(tmp_path, shared_pool, drive_of, spec_of, failing):
    failing("staging.before_write", EIO)
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4), shared_pool, settings(store_within_ms=20))
    drive.submit(0, 1, 2)
    seen: list[str] = []
    drive.until(lambda: "staging_failed" in (seen.extend(event_names(drive)) or seen))
    assert drive.acquisition.stored_watermark == 0
    drive.submit(3)
    drive.until(lambda: drive.acquisition.stored_watermark == 4)
    assert drive.finish().frames_durable == 4


def test_more_waiting_frames_than_staging_slots(tmp_path, shared_pool, drive_of, spec_of):
    """Every slot comes back once the slab that took its frame up is durable."""
    drive = drive_of(
        tmp_path / "a.zarr",
        spec_of(chunk=4, shard=8),
        shared_pool,
        settings(store_within_ms=4),
        ring_frames=13,
    )
    for slab in range(20):
        for place in range(4):
            drive.submit(4 * slab + place)
            drive.until(lambda: drive.acquisition.stored_watermark == drive.submitted)
    assert drive.finish().frames_stored == 80
    assert np.array_equal(drive.read(), drive.expected(range(80)))


def test_frames_that_are_only_told_of_are_counted_and_recorded(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, settings())
    drive.submit(0, 1)
    told = np.zeros(2, DESCRIPTOR)
    told["sequence"], told["position"], told["flags"] = [2, 3], [2, -1], [FRAME_DROPPED, FRAME_NOT_HELD]
    drive.acquisition.submit(told, np.zeros(2, np.int64))
    drive.until(lambda: drive.acquisition.stored_watermark == 4)
    assert sorted(drive.released) == [0, 1], "they have no pixels to give back"
    drive.acquisition.finish()
    drive.until(lambda: drive.acquisition.state is AcquisitionState.SEALED)
    drive.acquisition.close()
    receipt = drive.acquisition.receipt()
    assert (
        receipt.frames_received,
        receipt.frames_stored,
        receipt.frames_dropped,
        receipt.frames_lost,
        receipt.frames_missing,
    ) == (4, 2, 1, 1, 1)
    assert table(drive) == {
        "sequence": [2, 3, 0, 1],
        "status": [FrameStatus.DROPPED, FrameStatus.LOST, FrameStatus.STORED, FrameStatus.STORED],
        "reason": [Reason.OVERLOAD, Reason.NOT_HELD, 0, 0],
    }


def test_a_sequence_that_came_before_is_dropped(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, settings())
    drive.submit(0, 1)
    drive.until(lambda: sorted(drive.released) == [0, 1])
    again = np.zeros(1, DESCRIPTOR)
    again["position"] = 5  # wherever it says it belongs
    drive.acquisition.submit(again, np.full(1, 8, np.int64))
    assert drive.acquisition.poll().tolist() == [0]
    assert drive.finish().frames_received == 2
    assert drive.read().shape[0] == 2


class _Disk:
    """A disk that has room for shards only while ``room`` is set."""

    def __init__(self) -> None:
        self.room = threading.Event()

    def __call__(self) -> None:
        if not self.room.is_set():
            raise ENOSPC


@pytest.fixture
def full_disk():
    disk = _Disk()
    disk.room.set()
    failpoints.set_hook("shard.before_preallocate", disk)
    yield disk
    failpoints.set_hook("shard.before_preallocate", None)


def test_on_a_full_disk_frames_wait_for_room(
    tmp_path, shared_pool, drive_of, spec_of, full_disk, monkeypatch
):
    monkeypatch.setattr("shardwright.acquire.full_disk.RETRY_S", 0.02)
    drive = drive_of(
        tmp_path / "a.zarr", spec_of(), shared_pool, settings(on_full="block", store_within_ms=20)
    )
    full_disk.room.clear()
    drive.submit(*range(12))
    drive.until(lambda: drive.acquisition.stored_watermark == 12)  # what has no shard yet is staged
    drive.still()  # a busy sealer has not met the full disk yet, though all is staged
    assert sorted(drive.released) == [0, 1, 2, 3], "the first shard row was prepared before"
    full_disk.room.set()
    receipt = drive.finish()
    assert (receipt.frames_stored, receipt.frames_durable) == (12, 12)
    assert np.array_equal(drive.read(), drive.expected(range(12)))
    assert event_names(drive) == ["disk_full", "disk_has_room"]


@pytest.mark.usefixtures("full_first_root")
def test_on_a_full_disk_shards_spill_to_the_second_root(tmp_path, shared_pool, drive_of, spec_of):
    first = tmp_path / "first" / "a.zarr"
    spill = tmp_path / "second"
    drive = drive_of(first, spec_of(), shared_pool, settings(on_full="spill", spill_root=spill))
    drive.submit(*range(12))
    receipt = drive.finish()
    assert drive.acquisition.error is None
    assert (receipt.frames_stored, receipt.frames_durable) == (12, 12)
    assert np.array_equal(drive.read(), drive.expected(range(12))), "through the store's own name"
    links = sorted(path for path in (first / "0" / "c").rglob("*") if path.is_symlink())
    assert links
    assert all(spill in link.resolve().parents for link in links)
    assert not list(spill.rglob(".shardwright"))
    assert "spilling" in event_names(drive)


def test_a_full_disk_that_fails_the_acquisition_seals_everything_acknowledged(
    tmp_path, shared_pool, drive_of, spec_of, full_disk
):
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4), shared_pool, settings(store_within_ms=20))
    drive.submit(*range(6))
    drive.until(lambda: drive.acquisition.stored_watermark == 6)  # two of them in the staging area
    full_disk.room.clear()
    drive.submit(*range(8, 20))
    receipt = drive.finish()
    assert isinstance(drive.acquisition.error, StorageFullError)
    assert receipt.frames_durable >= 6
    assert np.array_equal(drive.read()[:6], drive.expected(range(6)))


def test_low_water_is_told_before_the_disk_is_full(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, settings(low_water_bytes=1 << 62))
    drive.submit(*range(12))
    drive.finish()
    events = [(name, facts) for name, facts in drive.acquisition.take_events() if name == "disk_low"]
    assert len(events) == 1, "once"
    assert events[0][1]["free_bytes"] < 1 << 62
    assert events[0][1]["shards_left"] > 0


def test_a_sync_of_the_staging_area_that_fails_is_told_once_and_costs_nothing(
    tmp_path, shared_pool, drive_of, spec_of
):
    drive = drive_of(
        tmp_path / "a.zarr", spec_of(chunk=4), shared_pool, settings(store_within_ms=20, sync_interval_ms=20)
    )
    drive.still()
    failpoints.set_hook("staging.before_sync", lambda: (_ for _ in ()).throw(EIO))
    try:
        drive.submit(0, 1, 2)
        seen: list[str] = []
        drive.until(lambda: "staging_failed" in (seen.extend(event_names(drive)) or seen))
        drive.submit(3, 4)
        drive.acquisition.flush()
        drive.until(lambda: drive.acquisition.durable_watermark == 4)
    finally:
        failpoints.set_hook("staging.before_sync", None)
    receipt = drive.finish()
    assert drive.acquisition.error is None
    assert (receipt.frames_stored, receipt.frames_durable) == (5, 5)
    assert (seen + event_names(drive)).count("staging_failed") == 1


@pytest.mark.parametrize("point", ["table.before_create", "log.before_append"])
def test_ending_and_recording_wait_for_room_as_well(
    tmp_path, shared_pool, drive_of, spec_of, monkeypatch, point
):
    monkeypatch.setattr("shardwright.acquire.full_disk.RETRY_S", 0.02)
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, settings(on_full="block"))
    drive.submit(0, 1, 1)
    drive.still()
    left = [6]

    def full() -> None:
        if left[0]:
            left[0] -= 1
            raise ENOSPC

    failpoints.set_hook(point, full)
    try:
        drive.submit(2, 2)
        receipt = drive.finish()
    finally:
        failpoints.set_hook(point, None)
    assert drive.acquisition.error is None
    assert left == [0], "the point is reached so often"
    told = [name for name in event_names(drive) if name.startswith("disk_")]
    assert told == ["disk_full", "disk_has_room"], "one of each, however often it was tried"
    assert not drive.acquisition.waits_for_disk
    assert (receipt.frames_stored, receipt.frames_duplicate) == (3, 2)
    assert table(drive)["status"].count(FrameStatus.DUPLICATE) == 2


@pytest.mark.parametrize(
    "point", ["shard.before_preallocate", "shard.before_index", "table.before_create", "log.before_append"]
)
@pytest.mark.parametrize("waits_already", [True, False])
def test_who_must_end_does_not_wait_for_room_and_leaves_what_is_stored_to_recovery(
    tmp_path, shared_pool, drive_of, spec_of, monkeypatch, point, waits_already
):
    monkeypatch.setattr("shardwright.acquire.full_disk.RETRY_S", math.inf)
    path = tmp_path / "a.zarr"
    drive = drive_of(path, spec_of(), shared_pool, settings(on_full="block", store_within_ms=20))
    acquisition = drive.acquisition
    drive.submit(0, 1, 1)
    drive.still()
    failpoints.set_hook(point, lambda: (_ for _ in ()).throw(ENOSPC))
    try:
        drive.submit(*range(2, 11), 2)
        if waits_already:
            acquisition.finish()
        drive.until(lambda: acquisition.accounts.frames_stored == 11)
        if waits_already:
            drive.still()
            assert acquisition.state is AcquisitionState.FINISHING, "it waits, with nobody at work"
        stored = acquisition.accounts.frames_stored
        acquisition.wait_for_room_no_longer()
        acquisition.finish()
        drive.until(lambda: acquisition.state is AcquisitionState.FAILED)
    finally:
        failpoints.set_hook(point, None)
    receipt = drive.finish()
    assert isinstance(acquisition.error, StorageFullError)
    assert "disk_has_room" not in event_names(drive), "it never had"
    assert stored == receipt.frames_stored == 11
    recover_store(path, shared_pool, threads=2)
    assert np.array_equal(drive.read(), drive.expected(range(11)))


def test_frames_that_were_staged_outlive_a_slab_that_cannot_be_encoded(
    tmp_path, pool, drive_of, spec_of, monkeypatch
):
    """They were acknowledged: their shard row is left to recovery, not sealed without them."""
    encode = SlabEncoder.encode

    def broken(self, frames, records, slab, *arguments):
        if slab == 1:
            raise MemoryError
        return encode(self, frames, records, slab, *arguments)

    monkeypatch.setattr(SlabEncoder, "encode", broken)
    drive = drive_of(
        tmp_path / "a.zarr", spec_of(chunk=4), pool, settings(store_within_ms=20, sync_interval_ms=20)
    )
    drive.submit(*range(6))
    drive.until(lambda: drive.acquisition.durable_watermark == 6)
    drive.submit(6, 7)
    drive.until(lambda: drive.acquisition.state is AcquisitionState.FAILED)
    drive.finish()
    monkeypatch.undo()
    recovery = recover_store(drive.path, pool, threads=2)
    assert recovery.frames_kept >= 6
    assert np.array_equal(drive.read()[:6], drive.expected(range(6)))


@pytest.mark.parametrize("frames", [1, 2])
def test_files_that_cannot_be_prepared_are_found_out_at_the_end_at_the_latest(
    tmp_path, shared_pool, drive_of, spec_of, frames
):
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=2, shard=2), shared_pool, settings())
    drive.submit(*range(4))
    drive.still()
    failpoints.set_hook("shard.before_preallocate", lambda: (_ for _ in ()).throw(EIO))
    try:
        for shard_row in range(2, 2 + frames):
            drive.submit(4 * shard_row)
        drive.finish()
    finally:
        failpoints.set_hook("shard.before_preallocate", None)
    assert isinstance(drive.acquisition.error, StorageError)
    assert np.array_equal(drive.read()[:4], drive.expected(range(4)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_that_dies_while_frames_are_staged_gives_each_pixel_back_once(tmp_path, drive_of, spec_of):
    pool = WorkerPool(1)
    pool.start()
    failpoints.set_hook("staging.before_write", lambda: (_ for _ in ()).throw(SystemExit("killed")))
    try:
        drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4), pool, settings(store_within_ms=4))
        drive.submit(0, 1, 2)
        drive.until(lambda: drive.acquisition.state is AcquisitionState.FAILED)
    finally:
        failpoints.set_hook("staging.before_write", None)
    assert drive.finish().frames_lost == 3, "and finish has counted every release"
    assert drive.acquisition._core.end.thread_died


def test_a_writer_s_flush_says_when_it_cannot_end(tmp_path, spec_of, failing):
    failing("staging.before_write", EIO)
    with sw.create(tmp_path / "a.zarr", spec_of(chunk=4), **how(store_within_ms=1000)) as writer:
        writer.append(np.zeros((4, 6), np.uint16))
        with pytest.raises(StorageError, match="no room"):
            writer.flush()
    assert writer.receipt.frames_durable == 1


def test_a_flush_waits_for_frames_that_are_written_to_other_files(
    tmp_path, shared_pool, drive_of, spec_of, failing_once
):
    """It was told that nothing could make them durable, while a rewrite was about to."""
    spec = spec_of(chunk=1, shard=8)
    drive = drive_of(tmp_path / "a.zarr", spec, shared_pool, settings(durability="durable"))
    drive.submit(0)
    drive.until(lambda: drive.acquisition.stored_watermark == 1)
    failing_once("shard.before_sync", EIO)
    begun, may_go_on = threading.Event(), threading.Event()

    def held() -> None:
        begun.set()
        assert may_go_on.wait(60)

    failpoints.set_hook("journal.before_read", held)
    try:
        drive.acquisition.flush()
        drive.until(begun.is_set)
        assert not drive.acquisition.flush_is_stuck
    finally:
        may_go_on.set()
        failpoints.set_hook("journal.before_read", None)
    drive.until(lambda: drive.acquisition.durable_watermark == 1)
    assert drive.finish().frames_lost == 0


@pytest.mark.parametrize("point", ["journal.before_delete", "shard.before_delete"])
def test_a_deletion_that_finds_no_room_ends_nothing(
    tmp_path, shared_pool, drive_of, spec_of, failing_once, point
):
    """Copy on write takes room for it: of the journal of a sealed row, or of a row that was prepared for
    frames that never came."""
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=1, shard=2), shared_pool, settings(on_full="block"))
    drive.submit(0)
    drive.still()
    failing_once(point, ENOSPC)
    drive.submit(1, 2)
    receipt = drive.finish()
    assert (drive.acquisition.state, receipt.frames_durable) == (AcquisitionState.SEALED, 3)
    assert failpoints._hooks.get(point) is None, "it was reached"
