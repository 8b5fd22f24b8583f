"""Shards of a single slab: many of them are made, synced and sealed together, and each still gets its name
soon after its slab is stored."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import Counter

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.acquire.settings import CACHED_SLAB_BYTES, WriteSettings
from shardwright.recovery.recover_store import recover_store
from shardwright.shard.manifest import read_manifest
from shardwright.storage import failpoints

SLOW = WriteSettings(store_within_ms=20, sync_interval_ms=20)
STILL = WriteSettings(store_within_ms=600_000, sync_interval_ms=600_000)
EIO = OSError(errno.EIO, os.strerror(errno.EIO))


def shards_of(path):
    return sorted(int(file.parts[-3]) for file in (path / "0" / "c").rglob("*") if file.is_file())


@pytest.fixture
def syncs():
    """How often each point before a sync is reached."""
    counted: Counter[str] = Counter()

    def watch(point: str) -> None:
        if point.endswith("before_sync"):
            counted[point] += 1

    failpoints.watch_all(watch)
    yield counted
    failpoints.watch_all(None)


def one_file(spec_of, chunk=1):
    return spec_of(chunk=chunk, shard=1, y=(4, 2, 2), x=(6, 3, 2))


def shape_of(path) -> int:
    return json.loads((path / "0/zarr.json").read_text())["shape"][0]


def test_a_shard_gets_its_name_before_its_row_is_full(tmp_path, drive_of, spec_of, shared_pool):
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, SLOW)
    for position in range(3):
        drive.submit(position)
        drive.until(lambda position=position: shards_of(drive.path) == list(range(position + 1)))
        drive.until(lambda position=position: shape_of(drive.path) == position + 1)
        assert np.array_equal(drive.read(), drive.expected(range(position + 1)))
    assert (drive.path / ".shardwright" / "0.journal").exists(), "the shard row is not sealed"
    receipt = drive.finish()
    assert (receipt.shards, receipt.frames_durable) == (3, 3)
    assert np.array_equal(drive.read(), drive.expected(range(3)))


def test_no_shape_covers_a_frame_that_is_still_to_come(tmp_path, drive_of, spec_of, shared_pool):
    """A later frame is stored while a slab before it waits for its last one."""
    spec = one_file(spec_of, chunk=2)
    drive = drive_of(tmp_path / "a", spec, shared_pool, WriteSettings(store_within_ms=600_000))
    drive.submit(0, 1, 2, 4, 5)
    drive.until(lambda: shards_of(drive.path) == [0, 2])
    drive.still()
    assert shape_of(drive.path) <= 2
    drive.submit(3)
    drive.until(lambda: shards_of(drive.path) == [0, 1, 2])
    drive.until(lambda: shape_of(drive.path) == 6)
    drive.finish()
    assert np.array_equal(drive.read(), drive.expected(range(6)))


def test_many_shards_cost_few_syncs(tmp_path, drive_of, spec_of, shared_pool, syncs):
    """One by one a shard of its own takes at least five."""
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, STILL)
    syncs.clear()
    drive.submit(*range(256))
    drive.until(lambda: drive.acquisition.receipt().shards == 256)
    assert sum(syncs.values()) < 256 / 4, syncs
    drive.finish()
    assert np.array_equal(drive.read(), drive.expected(range(256)))


def test_a_kernel_that_hides_errors_of_whole_filesystems_syncs_each_file(
    tmp_path, drive_of, spec_of, shared_pool, syncs, monkeypatch
):
    for module in ("shard.shard_row_files", "storage.files"):
        monkeypatch.setattr(f"shardwright.{module}.syncs_whole_filesystems", lambda: False)
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, STILL)
    syncs.clear()
    drive.submit(*range(16))
    drive.finish()
    assert syncs["shard.before_sync"] >= 16, "every shard by itself"
    assert np.array_equal(drive.read(), drive.expected(range(16)))


def crashed(drive, tmp_path):
    """What a kill now would leave."""
    drive.still()
    left = tmp_path / "left"
    shutil.copytree(drive.path, left, symlinks=True)
    drive.finish()
    return left


def test_a_row_with_named_shards_goes_on_after_a_crash(tmp_path, drive_of, spec_of, shared_pool):
    drive = drive_of(tmp_path / "a", one_file(spec_of, chunk=2), shared_pool, SLOW)
    drive.submit(*range(7))
    drive.until(lambda: shards_of(drive.path) == [0, 1, 2])
    drive.until(lambda: drive.acquisition.durable_watermark == 7)
    left = crashed(drive, tmp_path)
    named = {file: file.stat().st_ino for file in (left / "0" / "c").rglob("*") if file.is_file()}
    with sw.resume(left, threads=2) as writer:
        assert writer.frames == 7, "the last one is in the staging area"
        for position in range(7, 11):
            writer.append(drive.pixels(position))
    assert writer.receipt.frames_stored == 11
    assert np.array_equal(zarr.open_array(left / "0", mode="r")[...], drive.expected(range(11)))
    assert {file: file.stat().st_ino for file in named} == named, "shards that have their names stay"


def test_recovery_seals_the_rest(tmp_path, drive_of, spec_of, shared_pool):
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, SLOW)
    drive.submit(*range(3))
    drive.until(lambda: shards_of(drive.path) == [0, 1, 2])
    failpoints.set_hook("shard.before_rename", lambda: (_ for _ in ()).throw(EIO))
    try:
        drive.submit(3, 4)
        drive.until(lambda: drive.acquisition.stored_watermark == 5)
        left = tmp_path / "left"
        shutil.copytree(drive.path, left, symlinks=True)
    finally:
        failpoints.set_hook("shard.before_rename", None)
    recovered = recover_store(left, shared_pool, threads=2)
    assert (recovered.frames_kept, recovered.frames_lost) == (5, 0)
    assert np.array_equal(zarr.open_array(left / "0", mode="r")[...], drive.expected(range(5)))


@pytest.mark.parametrize("io", ["pwrite", "mmap"])
def test_after_an_io_error_only_shards_without_a_name_are_rewritten(
    tmp_path, drive_of, spec_of, shared_pool, io
):
    settings = WriteSettings(store_within_ms=20, sync_interval_ms=20, io=io)
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, settings)
    drive.submit(*range(3))
    drive.until(lambda: shards_of(drive.path) == [0, 1, 2])
    named = {file: file.stat().st_ino for file in (drive.path / "0" / "c").rglob("*") if file.is_file()}
    failures = [EIO]
    failpoints.set_hook("journal.before_frames", lambda: failures and (_ for _ in ()).throw(failures.pop()))
    try:
        drive.submit(3)
        drive.until(lambda: drive.acquisition.stored_watermark == 4)
    finally:
        failpoints.set_hook("journal.before_frames", None)
    events = dict(drive.acquisition.take_events())
    assert events["shard_rewritten"]["frames_lost"] == 0
    drive.submit(*range(4, 9))
    receipt = drive.finish()
    assert (receipt.shards, receipt.frames_stored, receipt.frames_lost) == (9, 9, 0)
    assert {file: file.stat().st_ino for file in named} == named
    assert np.array_equal(drive.read(), drive.expected(range(9)))


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_images_that_change_at_every_frame_have_rows_of_one_shard(tmp_path, spec_of):
    array = one_file(spec_of)
    alone, several = sw.AcquisitionSpec(array=array), sw.AcquisitionSpec(array=array, images=("a", "b"))
    assert alone.grids.row_shards == 64
    assert several.grids.row_shards == 1, "else a row of each would stay open"
    with sw.create(tmp_path / "a.ome.zarr", alone) as writer:
        assert read_manifest(writer.path / ".shardwright").row_shards == 64
        facts = json.loads((writer.path / ".shardwright/acquisition.1.json").read_text())
        assert (facts["format"], facts["row_shards"]) == (6, 64)
        writer.append(np.ones((4, 6), np.uint16))


def test_small_slabs_go_through_the_page_cache_unless_told_otherwise():
    assert WriteSettings().wanted_io(CACHED_SLAB_BYTES) == "pwrite"
    assert WriteSettings().wanted_io(CACHED_SLAB_BYTES + 1) == "auto"
    assert WriteSettings(io="direct").wanted_io(1) == "direct"
