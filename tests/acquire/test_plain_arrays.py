"""Arrays without shards go on after a crash, a take-over, an early end, on another disk and after an I/O
error, as those with shards do: each file is one encoded chunk, and only the journal knows its length."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.limits import Limits
from shardwright.disk import failpoints
from shardwright.model.errors import ShardwrightError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.write_settings import WriteSettings
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.resume import restore

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
QUICK: dict[str, Any] = {"store_within_ms": 20, "sync_interval_ms": 20}
SETTINGS = WriteSettings(**QUICK, ballast_bytes=0)
CHUNKS = 4  # of a slab: 2 along y, 2 along x


class Died(BaseException):
    """Leaves what a kill leaves."""


def die() -> None:
    raise Died


@pytest.fixture
def plain(spec_of):
    def make(chunk: int = 4, **fields: Any) -> sw.ArraySpec:
        return spec_of(chunk=chunk, shard=None, y=(4, 2, None), x=(6, 4, None), **fields)

    return make


@pytest.fixture
def crash(tmp_path, shared_pool, drive_of, plain):
    """``crash(frames, chunk)``: returns (what wrote them until they were durable and the chunks of whole
    slabs had their names, the folder that a kill then leaves)."""

    def make(frames: int, chunk: int = 4, **spec: Any) -> tuple[Any, Path]:
        drive = drive_of(tmp_path / "living.zarr", plain(chunk, **spec), shared_pool, SETTINGS)
        drive.submit(*range(frames))
        drive.until(lambda: drive.acquisition.durable_watermark == frames)
        drive.until(lambda: len(chunk_files(drive.path)) == frames // chunk * CHUNKS)
        drive.still()
        left = tmp_path / "left.zarr"
        shutil.copytree(drive.path, left, symlinks=True)
        drive.finish()
        return drive, left

    return make


def chunk_files(path: Path) -> list[Path]:
    return [file for file in (path / "0/c").rglob("*") if file.is_file()]


def assert_finished(path: Path, expected: np.ndarray, chunk: int = 4) -> None:
    """Every place has its frame, every file is a chunk that is on record and nothing else."""
    array = zarr.open_array(path / "0", mode="r")
    assert array.shards is None
    np.testing.assert_array_equal(array[...], expected)
    report = verify_store(path)
    assert (report.problems, report.warnings) == ([], [])
    slabs = -(-len(expected) // chunk)
    assert report.shards == report.shards_recorded == report.chunks == slabs * CHUNKS
    assert report.encoded_bytes == sum(file.stat().st_size for file in chunk_files(path))
    table = zarr.open_group(path / "frames", mode="r")
    statuses = sorted(zip(table["sequence"][:].tolist(), table["status"][:].tolist(), strict=True))
    assert statuses == [(i, FrameStatus.STORED) for i in range(len(expected))]
    assert not (path / ".shardwright").exists()


@pytest.mark.parametrize("frames", [1, 4, 7, 9])
def test_recovery_completes_a_slab_from_the_staging_area(crash, shared_pool, frames):
    drive, left = crash(frames)
    recovery = recover_store(left, shared_pool, threads=2)
    assert (recovery.action, recovery.frames_kept, recovery.frames_lost) == ("sealed", frames, 0)
    assert recovery.frames_completed_from_staging == frames % 4
    assert_finished(left, drive.expected(range(frames)))


@pytest.mark.parametrize("frames", [3, 6, 8])
def test_a_writer_that_resumes_goes_on_in_the_same_slab(crash, frames):
    drive, left = crash(frames)
    with sw.resume(left, **how(**QUICK)) as writer:
        assert writer.frames == frames
        for position in range(frames, 15):
            writer.append(drive.pixels(position))
        writer.flush()
        assert (writer.watermark.stored, writer.watermark.durable) == (15, 15)
    assert writer.receipt.shards == 4 * CHUNKS
    assert_finished(left, drive.expected(range(15)))


def test_a_store_is_taken_over_from_a_writer_that_lives(tmp_path, shared_pool, drive_of, plain):
    drive = drive_of(tmp_path / "a.zarr", plain(), shared_pool, SETTINGS)
    drive.submit(*range(7))
    drive.until(lambda: drive.acquisition.durable_watermark == 7)
    drive.still()
    try:
        restore(drive.path, partial(Limits.derive, threads=2), SETTINGS, threads=1, take_over=True)[0].close()
        with sw.resume(drive.path, take_over=True, **how(**QUICK)) as writer:
            assert writer.frames == 7
            for position in range(7, 10):
                writer.append(drive.pixels(position))
        assert_finished(drive.path, drive.expected(range(10)))
    finally:
        drive.acquisition.close()
    assert_finished(drive.path, drive.expected(range(10)))


def test_a_chunk_that_an_early_end_had_sealed_takes_more_frames(tmp_path, plain):
    """Its file is replaced by a longer one."""
    chunk, frames, path = 4, 6, tmp_path / "a.zarr"
    pixels = np.random.default_rng(2).integers(1, 2**16, (11, 4, 6)).astype("u2")
    writer = sw.create(path, plain(chunk), **how(**QUICK))
    for i in range(frames):
        writer.append(pixels[i])
    writer.flush()
    failpoints.set_hook("workspace.before_manifest", die)
    try:
        with pytest.raises(sw.errors.ShardwrightError):
            writer.close()
    finally:
        failpoints.set_hook("workspace.before_manifest", None)
    assert len(chunk_files(path)) == -(-frames // chunk) * CHUNKS, "all is sealed"
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in range(frames, 11):
            writer.append(pixels[i])
    assert writer.receipt.shards == -(-11 // chunk) * CHUNKS, "a chunk that was replaced is one chunk"
    assert_finished(path, pixels, chunk)


def test_chunks_that_were_spoilt_under_their_names_do_not_stop_recovery(crash, shared_pool):
    drive, left = crash(7, chunk=2)
    short, empty = (left / f"0/c/{slab}/0/0" for slab in range(2))
    os.truncate(short, short.stat().st_size - 1)
    os.truncate(empty, 0)
    recovery = recover_store(left, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_completed_from_staging) == (7, 1)
    problems = [str(problem) for problem in verify_store(left).problems]
    assert len(problems) == 2
    assert min(problems).startswith("0/c/0/0/0 chunk 0/0/0: ")
    assert max(problems) == "0/c/1/0/0 chunk 1/0/0: chunk has a size of 0"
    for path in (short, empty):
        path.unlink()
    found = zarr.open_array(left / "0", mode="r")[...]
    np.testing.assert_array_equal(found[:, 2:], drive.expected(range(7))[:, 2:])
    np.testing.assert_array_equal(found[4:], drive.expected(range(7))[4:])


@pytest.mark.parametrize("frames", [6, 7])
def test_a_chunk_that_was_deleted_costs_the_frames_of_its_slab(crash, shared_pool, frames):
    """They are told. Its other chunks have their names, as when the whole shard row is being sealed; a frame
    that waits for the rest of another slab tells that it is not."""
    drive, left = crash(frames, chunk=2)
    (left / "0/c/1/0/0").unlink()
    recovery = recover_store(left, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_lost) == (frames - 2, 2)
    assert recovery.shard_rows[0].actions["c/1/0/0"] == "lost"
    found = zarr.open_array(left / "0", mode="r")[...]
    assert len(found) == frames
    for frame in {*range(frames)} - {2, 3}:
        np.testing.assert_array_equal(found[frame], drive.pixels(frame))


def test_frames_come_again_for_a_slab_whose_chunk_was_deleted(crash, shared_pool):
    """Their shard row is sealed and opened again for them."""
    drive, left = crash(7, chunk=2)
    (left / "0/c/1/0/0").unlink()
    writer = sw.resume(left, threads=2)
    for frame in (2, 3, 7):
        writer.append(drive.pixels(frame), index=(frame,))
    receipt = writer.close()
    assert (receipt.frames_stored, receipt.frames_lost) == (8, 2)
    np.testing.assert_array_equal(zarr.open_array(left / "0", mode="r")[...], drive.expected(range(8)))
    assert not verify_store(left).problems


def test_a_row_with_nothing_but_a_name_is_no_more_deleted(crash, shared_pool):
    """It is left to recovery when the acquisition fails before anything is stored in it: without its journal
    nobody could tell its shard from another program's."""

    def no_room() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    drive, left = crash(3, chunk=2)
    (left / "0/c/0/0/0").unlink()
    failpoints.set_hook("slots.before_store", no_room)
    try:
        with suppress(ShardwrightError), sw.resume(left, threads=2) as writer:
            writer.append(drive.pixels(3), index=(3,))
    finally:
        failpoints.set_hook("slots.before_store", None)
    recover_store(left, shared_pool, threads=2)
    assert not verify_store(left).problems


def test_files_move_after_an_io_error(tmp_path, shared_pool, drive_of, plain):
    """Chunks that have their names stay; others that were stored are copied as they are."""

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    drive = drive_of(tmp_path / "a.zarr", plain(), shared_pool, SETTINGS)
    drive.submit(*range(4))
    drive.until(lambda: len(chunk_files(drive.path)) == CHUNKS)
    named = {file: file.stat().st_ino for file in chunk_files(drive.path)}
    failpoints.set_hook("journal.before_frames", failpoints.at_time(1, fail))
    try:
        drive.submit(*range(4, 8))
        drive.until(lambda: drive.acquisition.stored_watermark == 8)
    finally:
        failpoints.set_hook("journal.before_frames", None)
    assert dict(drive.acquisition.take_events())["shard_rewritten"]["frames_lost"] == 0
    drive.submit(8, 9)
    assert drive.finish().frames_lost == 0
    assert {file: file.stat().st_ino for file in named} == named
    assert_finished(drive.path, drive.expected(range(10)))


def test_a_spilled_slab_is_recovered_where_it_lies(tmp_path, shared_pool, drive_of, plain):
    settings = WriteSettings(**QUICK, ballast_bytes=0, spill_root=tmp_path / "second", on_full="spill")

    def no_room() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failpoints.set_hook("shard.before_preallocate", failpoints.at_time(1, no_room))
    try:
        drive = drive_of(tmp_path / "a.ome.zarr", plain(), shared_pool, settings)
    finally:
        failpoints.set_hook("shard.before_preallocate", None)
    drive.submit(*range(7))
    drive.until(lambda: drive.acquisition.durable_watermark == 7)
    drive.still()
    drive.acquisition.close()
    assert list(tmp_path.glob("second/**/0.journal"))
    restore(drive.path, partial(Limits.derive, threads=2), settings, threads=1, take_over=True)[0].close()
    assert recover_store(drive.path, shared_pool, threads=1).frames_kept == 7
    assert any(file.is_symlink() for file in chunk_files(drive.path)), "it was really spilled"
    (array,) = open_store(drive.path).arrays
    assert not array.is_sharded
    assert_finished(drive.path, drive.expected(range(7)))
