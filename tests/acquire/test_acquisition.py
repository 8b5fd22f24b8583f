"""The state machine between frames and shards: arrival in any order, duplicates, holes, failures; exact
counts, every pixel."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.core import Core
from shardwright.acquire.encoding import SlabEncoder
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.disk.failpoints import set_hook
from shardwright.model.errors import OutputExistsError, StorageError, StorageFullError, WorkerError
from shardwright.model.names import WORKSPACE
from shardwright.recovery.recover_store import recover_store

pytestmark = pytest.mark.usefixtures("each_file_syncs_alone")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def counts(receipt):
    return (
        receipt.frames_received, receipt.frames_stored, receipt.frames_durable, receipt.frames_missing, receipt.frames_duplicate, receipt.frames_late  # noqa: E501
    )  # fmt: skip


def check_store(drive, receipt, positions, **expected):
    assert np.array_equal(drive.read(), drive.expected(positions, **expected))
    assert not (drive.path / ".shardwright").exists()
    files = (
        [p for p in (drive.path / "0" / "c").rglob("*") if p.is_file()]
        if (drive.path / "0" / "c").exists()
        else []
    )
    assert len(files) == receipt.shards
    assert receipt.bytes_raw == receipt.frames_stored * drive.spec.frame_bytes


def test_an_append_handles_the_reports_that_are_there_in_its_own_step(
    tmp_path, pool, drive_of, spec_of, monkeypatch
):
    drive, steps, advance = drive_of(tmp_path / "a.zarr", spec_of(chunk=1), pool), [], Core._advance
    drive.submit(0)
    end = time.monotonic() + 60  # only so that a hang becomes a failure
    while drive.acquisition._reports.qsize() < 2:  # of its slab, and of the next files
        assert time.monotonic() < end, "not both have come"
        time.sleep(0.001)
    monkeypatch.setattr(Core, "_advance", lambda core: steps.append(core) or advance(core))
    drive.submit(1)
    assert (len(steps), drive.acquisition.stored_watermark) == (1, 1)
    monkeypatch.undo()
    drive.finish()


def test_frames_in_order(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    for position in range(11):
        drive.submit(position)
        drive.poll()
    receipt = drive.finish()
    assert drive.acquisition.state is AcquisitionState.SEALED
    assert counts(receipt) == (11, 11, 11, 0, 0, 0)
    assert receipt.shards == 3 * 2
    check_store(drive, receipt, range(11))
    assert drive.acquisition.stored_watermark == drive.acquisition.durable_watermark == 11


@st.composite
def arrivals(draw):
    """(spec, batches of positions): any axes, chunking and order, with duplicates and holes."""
    axes = draw(st.integers(0, 3))
    dims = [
        Dimension(
            name="tzc"[i],
            count=draw(st.integers(1, 4)) if i or draw(st.booleans()) else None,
            chunk_size=draw(st.integers(1, 3)),
            shard_size_chunks=draw(st.integers(1, 2)),
        )
        for i in range(axes)
    ]
    dims += [
        Dimension(
            name=n,
            count=draw(st.integers(1, 7)),
            chunk_size=draw(st.integers(1, 4)),
            shard_size_chunks=draw(st.integers(1, 2)),
        )
        for n in "yx"
    ]
    order = (*draw(st.permutations([d.name for d in dims[:-2]])), "y", "x")
    spec = ArraySpec(
        dtype=draw(st.sampled_from(["uint8", "uint16", "float32", "int64"])),
        dimensions=dims,
        storage_order=order,
        index_location=draw(st.sampled_from(["start", "end"])),
        fill_value=draw(st.sampled_from([0, 7])),
        write_empty_chunks=draw(st.booleans()),
    )
    most = int(np.prod([d.count or 9 for d in dims[:-2]], dtype=int))
    in_order = draw(st.booleans())
    positions = (
        list(range(draw(st.integers(0, most))))
        if in_order
        else draw(st.lists(st.integers(0, most - 1), max_size=2 * most))
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(positions)), max_size=4)))
    return spec, [positions[a:b] for a, b in zip([0, *cuts], [*cuts, len(positions)], strict=True)]


@settings(max_examples=50)
@given(arrival=arrivals())
def test_any_array_in_any_order(tmp_path_factory, shared_pool, drive_of, arrival):
    """Room for every frame to wait, so nothing is late: each position is stored once, the rest are
    duplicates."""
    spec, batches = arrival
    drive = drive_of(tmp_path_factory.mktemp("store") / "a.zarr", spec, shared_pool)
    for batch in batches:
        drive.submit(*batch)
        drive.poll()
    positions = {p for batch in batches for p in batch}
    receipt = drive.finish()
    assert drive.acquisition.state is AcquisitionState.SEALED
    places = drive.expected(positions).size // int(np.prod(spec.frame_shape))
    assert counts(receipt) == (
        drive.submitted,
        len(positions),
        len(positions),
        places - len(positions),
        drive.submitted - len(positions),
        0,
    )
    assert drive.acquisition.durable_watermark == drive.submitted
    check_store(drive, receipt, positions)


def test_duplicates_whenever_they_come(tmp_path, shared_pool, drive_of, spec_of):
    """In the same batch, while the slab waits, after the slab was stored, after the shard was sealed: the
    first frame stays."""
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    drive.submit(0, 0)
    drive.submit(0, seed=1)
    drive.until(lambda: sorted(drive.released) == [1, 2])
    drive.submit(1)
    drive.quiet()
    drive.submit(1, seed=2)
    drive.submit(2, 3)
    drive.until(lambda: drive.acquisition.receipt().frames_durable == 4)
    drive.submit(3, seed=3)
    drive.submit(0, seed=3)
    receipt = drive.finish()
    assert counts(receipt) == (9, 4, 4, 0, 5, 0)
    check_store(drive, receipt, range(4))


def test_a_hole_closed_by_ring_pressure_makes_its_frame_late(tmp_path, shared_pool, drive_of, spec_of):
    spec = spec_of(chunk=4, shard=4)
    drive = drive_of(tmp_path / "a.zarr", spec, shared_pool, ring_frames=13)
    drive.submit(0, 1, 3)
    late, first = 2, 4
    while drive.acquisition.in_flight == 0 and drive.acquisition.receipt().frames_stored == 0:
        drive.submit(first)  # of every following slab one frame, so that all of them wait
        first += 4
        drive.poll()
    drive.quiet()
    assert drive.acquisition.receipt().frames_stored == 3, "the oldest slab was closed with its hole"
    (sequence,) = drive.submit(late)
    drive.until(lambda: drive.released[sequence] == 1)  # as soon as the frame log has it
    drive.submit(0, seed=1)
    stored = {0, 1, 3, *range(4, first, 4)}
    receipt = drive.finish()
    assert counts(receipt) == (len(stored) + 2, len(stored), len(stored), first - 4 + 1 - len(stored), 1, 1)
    check_store(drive, receipt, stored)


def test_a_late_frame_for_a_slab_that_is_being_compressed(tmp_path, pool, drive_of, spec_of, monkeypatch):
    """The workers have the slab's row: the frame must not slip into it, whether its slab would be complete
    with it or not."""
    go = threading.Event()
    encode = SlabEncoder.encode

    def slow(self, *arguments):
        assert go.wait(60)
        return encode(self, *arguments)

    monkeypatch.setattr(SlabEncoder, "encode", slow)
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4, shard=4), pool, ring_frames=13)
    try:
        drive.submit(0, 1, 3)
        first = 4
        while drive.acquisition.in_flight == 0:
            drive.submit(first)
            first += 4
        late = drive.submit(2)
        again = drive.submit(3, seed=1)
        drive.until(lambda: all(drive.released[sequence] == 1 for sequence in late + again))
    finally:
        go.set()
    stored = {0, 1, 3, *range(4, first, 4)}
    receipt = drive.finish()
    assert (receipt.frames_late, receipt.frames_duplicate, receipt.frames_stored) == (1, 1, len(stored))
    check_store(drive, receipt, stored)


def test_whole_slabs_and_shards_that_never_come(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(fill_value=9), shared_pool)
    stored = [0, 1, 14, 15, 17]  # 2 and 3: a slab; 4 to 11: two shards; 12, 13: a slab; 16: a frame
    drive.submit(*stored)
    receipt = drive.finish()
    assert counts(receipt) == (5, 5, 5, 13, 0, 0)
    check_store(drive, receipt, stored)


def test_an_array_without_frames(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    receipt = drive.finish()
    assert counts(receipt) == (0, 0, 0, 0, 0, 0)
    assert drive.read().shape == (0, 4, 6)
    assert receipt.shards == 0


@pytest.mark.parametrize("came", [True, False])
def test_a_single_image(tmp_path, shared_pool, drive_of, came):
    spec = ArraySpec(
        dtype="uint16",
        dimensions=[Dimension(name=n, count=5, chunk_size=2, shard_size_chunks=2) for n in "yx"],
    )
    drive = drive_of(tmp_path / "a.zarr", spec, shared_pool)
    if came:
        drive.submit(0)
        drive.submit(0, seed=1)
    receipt = drive.finish()
    assert counts(receipt) == ((2, 1, 1, 0, 1, 0) if came else (0, 0, 0, 1, 0, 0))
    check_store(drive, receipt, [0] if came else [])


def test_frames_after_finish_are_given_back_and_not_counted(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    drive.submit(0)
    drive.acquisition.finish()
    after = drive.submit(1)
    assert set(after) <= set(drive.poll())
    assert counts(drive.finish()) == (1, 1, 1, 0, 0, 0)


def test_all_fill_shards_leave_no_file(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    drive.pixels = lambda seed: np.zeros(drive.spec.frame_shape, np.uint16)
    drive.submit(*range(4))
    receipt = drive.finish()
    assert (receipt.shards, receipt.bytes_stored, receipt.frames_durable) == (0, 0, 4)
    check_store(drive, receipt, range(4))


def test_the_shape_on_disk_never_covers_what_is_not_sealed(tmp_path, shared_pool, drive_of, spec_of):
    """Out of order, so that later shards are sealed before earlier ones: whatever zarr-python sees at any
    moment is what was sent."""
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    order = [*range(4, 8), *range(4), *range(12, 16), *range(8, 12), 16]
    truth = drive.expected(range(17))
    extents = []
    for position in order:
        drive.submit(position)
        drive.poll(0.01)
        seen = drive.read()
        extents.append(len(seen))
        assert np.array_equal(seen, truth[: len(seen)])
        assert len(seen) % 4 == 0
    drive.until(lambda: len(drive.read()) == 16)
    assert extents == sorted(extents)
    receipt = drive.finish()
    check_store(drive, receipt, range(17))


def test_bytes_stored_are_the_live_bytes_on_disk(tmp_path, shared_pool, drive_of, spec_of):
    spec = spec_of(y=(4, 4, 1), x=(6, 6, 1), chunk=1, shard=1, codec=None)  # one chunk a shard: no gaps
    drive = drive_of(tmp_path / "a.zarr", spec, shared_pool)
    drive.submit(*range(5))
    receipt = drive.finish()
    assert receipt.bytes_stored == sum(
        p.stat().st_size for p in (drive.path / "0" / "c").rglob("*") if p.is_file()
    )


# ------------------------------------------------------------------ failures


def test_an_existing_output_is_not_touched(tmp_path, shared_pool, drive_of, spec_of):
    path = tmp_path / "a.zarr"
    path.mkdir()
    (path / "mine").write_bytes(b"x")
    with pytest.raises(OutputExistsError, match="exists already"):
        drive_of(path, spec_of(), shared_pool)
    assert [p.name for p in path.iterdir()] == ["mine"]


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path, shared_pool, drive_of, spec_of, failing):
    failing("shard.before_preallocate", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    threads = threading.active_count()
    with pytest.raises(StorageFullError):
        drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == threads


def test_a_full_disk_later_fails_and_keeps_what_is_sealed(tmp_path, shared_pool, drive_of, spec_of, failing):
    # two shard rows of two files fit
    failing("shard.before_preallocate", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), after=4)
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    for position in range(20):
        drive.submit(position)
        drive.poll()
        if position == 7:
            drive.until(lambda: drive.acquisition.receipt().frames_durable == 8)
    receipt = drive.finish()
    assert drive.acquisition.state is AcquisitionState.FAILED
    assert isinstance(drive.acquisition.error, StorageFullError)
    assert (receipt.frames_durable, receipt.shards) == (8, 4)
    assert not drive.acquisition.left_to_recovery, "all that was stored is sealed"
    assert np.array_equal(drive.read(), drive.expected(range(8)))


def test_a_failure_seals_what_was_stored_before_it(tmp_path, shared_pool, drive_of, spec_of, failing):
    """The second shard row's files cannot be made. The first is not full, but its frames were told to be
    stored: they end up in sealed shards."""
    failing("shard.before_preallocate", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), after=2)
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    drive.submit(0, 1, 2)
    drive.until(lambda: drive.acquisition.stored_watermark == 2)
    drive.submit(4, 5)
    receipt = drive.finish()
    assert drive.acquisition.state is AcquisitionState.FAILED
    assert isinstance(drive.acquisition.error, StorageFullError)
    assert (receipt.frames_received, receipt.frames_stored, receipt.frames_durable, receipt.frames_lost) == (
        5,
        3,
        3,
        2,
    )
    assert np.array_equal(drive.read()[:3], drive.expected(range(3))), (
        "the slab that was not full was closed with a hole"
    )
    assert not list((tmp_path / "a.zarr").glob(".shardwright/*"))


def test_zarr_json_that_cannot_grow_for_a_while_costs_nothing(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    left = [2]

    def full() -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    set_hook("replace.before_rename", full)
    try:
        for position in range(24):
            drive.submit(position)
            drive.poll()
        receipt = drive.finish()
    finally:
        set_hook("replace.before_rename", None)
    assert left == [0]
    assert drive.acquisition.state is AcquisitionState.SEALED
    assert receipt.frames_durable == 24
    assert np.array_equal(drive.read(), drive.expected(range(24)))


def test_workers_never_wait_for_another_acquisition_s_disk(tmp_path, shared_pool, drive_of, spec_of):
    """The next shard of one acquisition hangs while it is prepared; its frames wait, the workers of the
    shared pool serve the other one."""
    slow = drive_of(tmp_path / "slow.zarr", spec_of(), shared_pool)
    other = drive_of(tmp_path / "other.zarr", spec_of(), shared_pool)
    hanging, go = threading.Event(), threading.Event()

    def hang() -> None:
        if "slow.zarr" in threading.current_thread().name:
            hanging.set()
            assert go.wait(60)

    set_hook("shard.before_preallocate", hang)
    try:
        slow.submit(*range(16))  # fills the first shard row; the second is what hangs
        assert hanging.wait(60)
        slow.poll()
        other.submit(*range(8))
        other.until(lambda: other.acquisition.stored_watermark == 8)
        assert slow.acquisition.stored_watermark < 16
    finally:
        go.set()
        set_hook("shard.before_preallocate", None)
    assert slow.finish().frames_durable == 16
    assert other.finish().frames_durable == 8


FAILURES = {"an exception": ValueError("broken pixel"), "a death": SystemExit("killed")}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failure", FAILURES)
def test_a_worker_that_fails_is_seen_and_everything_released(
    tmp_path, pool, shared_pool, drive_of, spec_of, monkeypatch, failure
):
    """A slab that is whole beside the broken one, in the same shard, is sealed by recovery alone."""
    encode = SlabEncoder.encode

    def broken(self, frames, records, slab, *arguments):
        if slab == 2:
            raise FAILURES[failure]
        return encode(self, frames, records, slab, *arguments)

    monkeypatch.setattr(SlabEncoder, "encode", broken)
    drive = drive_of(tmp_path / "a.zarr", spec_of(), pool)
    for position in range(24):
        drive.submit(position)
        drive.poll()
    receipt = drive.finish()
    assert drive.acquisition.state is AcquisitionState.FAILED
    assert isinstance(drive.acquisition.error, WorkerError)
    assert ("broken pixel" if failure == "an exception" else "killed") in str(drive.acquisition.error)
    assert receipt.frames_received <= 24
    if is_left := (tmp_path / "a.zarr" / WORKSPACE).exists():
        monkeypatch.undo()
        recover_store(tmp_path / "a.zarr", shared_pool, threads=1)
    seen = drive.read()
    right = [
        np.array_equal(frame, expected)
        for frame, expected in zip(seen, drive.expected(range(24)), strict=False)
    ]
    assert sum(right) >= receipt.frames_durable > 0
    assert is_left or sum(right) == receipt.frames_durable, "recovery may find what was given up"
    assert not seen[np.logical_not(right)].any(), "what was not stored reads as fill"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_pixels_stay_owned_while_a_surviving_worker_reads_them(
    tmp_path, pool, drive_of, spec_of, monkeypatch
):
    """One worker dies, the other is in the middle of a slab: that slab's frames must not be given back before
    it is done."""
    go, reading = threading.Event(), threading.Event()
    encode = SlabEncoder.encode

    def uneven(self, frames, records, slab, *arguments):
        if slab == 0:
            reading.set()
            assert go.wait(60)
            return encode(self, frames, records, slab, *arguments)
        assert reading.wait(60)
        raise SystemExit("killed")

    monkeypatch.setattr(SlabEncoder, "encode", uneven)
    drive = drive_of(tmp_path / "a.zarr", spec_of(), pool)
    try:
        held = drive.submit(0, 1)
        drive.submit(2, 3)
        drive.until(lambda: drive.acquisition.error is not None)
        assert drive.acquisition.state is AcquisitionState.FAILING
        assert drive.acquisition.in_flight > 0
        assert not set(drive.released) & set(held)
    finally:
        go.set()
    drive.finish()


@pytest.mark.parametrize(
    ("point", "after"),
    [
        ("shard.before_sync", 0),
        ("shard.before_rename", 2),
        ("shard.before_truncate", 1),
        ("replace.before_rename", 0),
        ("directory.before_sync", 1),
    ],
)
def test_storage_that_fails_later_is_a_typed_failure(
    tmp_path, shared_pool, drive_of, spec_of, failing, point, after
):
    descriptors = open_descriptors()
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    failing(point, OSError(errno.EIO, os.strerror(errno.EIO)), after)
    for position in range(16):
        drive.submit(position)
        drive.poll()
    drive.finish()
    assert drive.acquisition.state is AcquisitionState.FAILED
    assert isinstance(drive.acquisition.error, StorageError)
    assert "Input/output error" in str(drive.acquisition.error)
    # before the first reading of a process, for which zarr-python opens some for good
    assert open_descriptors() == descriptors, "files of unsealed shards are closed"
    for frame, expected in zip(drive.read(), drive.expected(range(16)), strict=False):
        assert np.array_equal(frame, expected) or not frame.any(), (
            "right, or left to recovery and fill until then"
        )


def test_the_workspace_holds_no_name_that_a_reader_takes_for_a_chunk(
    tmp_path, shared_pool, drive_of, spec_of
):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    drive.submit(0)
    assert sorted(p.name for p in (drive.path / ".shardwright").iterdir() if p.suffix == ".partial")[:2] == [
        "c.0.0.0.partial",
        "c.0.1.0.partial",
    ]
    assert not (drive.path / "0" / "c").exists()
    # a warning is all that a reader makes of it
    with pytest.warns(zarr.errors.ZarrUserWarning, match=r"\.shardwright is not recognized"):
        assert set(dict(zarr.open_group(drive.path, mode="r").members())) == {"0"}
    assert json.loads((drive.path / "0" / "zarr.json").read_bytes())["shape"] == [0, 4, 6]
    drive.finish()
