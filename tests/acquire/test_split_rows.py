"""Shards of a single slab: many of them are made, synced and sealed together, and each still gets its name
soon after its slab is stored."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import live_scheduler, seal
from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.limits import Limits
from shardwright.disk import failpoints
from shardwright.model.errors import StorageFullError
from shardwright.model.write_settings import CACHED_SLAB_BYTES, WriteSettings
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.resume import resume
from shardwright.shard.manifest import read_manifest

SLOW = WriteSettings(store_within_ms=20, sync_interval_ms=20)
STILL = WriteSettings(store_within_ms=600_000, sync_interval_ms=600_000)
EIO = OSError(errno.EIO, os.strerror(errno.EIO))


def shards_of(path):
    return sorted(int(file.parts[-3]) for file in (path / "0" / "c").rglob("*") if file.is_file())


@pytest.fixture
def syncs(monkeypatch):
    """How often each point before a sync is reached. Readers are told of what is stored once: twice a second
    costs more syncs the longer it takes."""
    monkeypatch.setattr(live_scheduler, "SHOW_INTERVAL_S", 600.0)
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


def test_no_shape_covers_a_frame_that_a_kill_took_and_that_is_sent_again(
    tmp_path, drive_of, spec_of, shared_pool
):
    """Nobody knows where the missing frame goes before it comes."""
    settings = WriteSettings(store_within_ms=600_000)
    drive = drive_of(tmp_path / "a", one_file(spec_of, chunk=2), shared_pool, settings)
    drive.submit(0, 2, 3)
    drive.until(lambda: shards_of(drive.path) == [1])
    left = crashed(drive, tmp_path)
    drive.acquisition = resume(left, shared_pool, lambda: None, settings, lambda _: drive.limits)
    drive.still()
    assert shape_of(left) == 0
    for sequence, position in ((0, 0), (3, 1)):
        assert shape_of(left) == 0
        drive.submitted = sequence
        drive.submit(position)
        drive.still()
    drive.until(lambda: shape_of(left) == 4)
    drive.acquisition.finish()
    drive.until(lambda: drive.acquisition.state is AcquisitionState.SEALED)
    drive.acquisition.close()
    assert np.array_equal(zarr.open_array(left / "0", mode="r")[...], drive.expected(range(4)))


def test_many_shards_cost_few_syncs(tmp_path, drive_of, spec_of, shared_pool, syncs):
    """One by one a shard of its own takes at least five."""
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, STILL)
    syncs.clear()
    drive.submit(*range(256))
    drive.until(lambda: drive.acquisition.receipt().shards == 256)
    assert sum(syncs.values()) < 256 / 4, syncs
    drive.finish()
    assert np.array_equal(drive.read(), drive.expected(range(256)))


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_the_syncs_of_many_images_are_those_of_a_few(tmp_path, syncs):
    """Each with a file of its own for each frame took 28 an image."""
    images, path = [f"p{i}" for i in range(100)], tmp_path / "a.ome.zarr"
    one = {"shape": (2, 8, 8), "dtype": "uint16", "axes": "tyx", "chunks": {"t": 1, "y": 8, "x": 8}}
    syncs.clear()
    with sw.create(path, images=images, shards=False, **one) as writer:
        for t in range(2):
            for number, image in enumerate(images):
                writer.append(np.full((8, 8), 1 + number + 100 * t, np.uint16), image=image, index=(t,))
    assert sum(syncs.values()) < 4 * len(images), syncs
    for number in (0, 57, 99):
        assert zarr.open_array(path / str(number) / "0", mode="r")[:, 0, 0].tolist() == [
            1 + number,
            101 + number,
        ]


def test_a_kernel_that_hides_errors_of_whole_filesystems_syncs_each_file(
    tmp_path, drive_of, spec_of, shared_pool, syncs, monkeypatch
):
    monkeypatch.setattr("shardwright.disk.filesystems.syncs_as_one", lambda path: False)
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
def test_rows_that_stay_open_while_other_images_come_have_fewer_shards(tmp_path, spec_of):
    array = one_file(spec_of)
    alone, several = sw.AcquisitionSpec(array=array), sw.AcquisitionSpec(array=array, images=("a", "b"))
    assert alone.grids.row_shards == 64
    assert (several.grids.row_shards, several.grids.most_across) == (64, 128), "a row of each stays open"
    many, most = (sw.AcquisitionSpec(array=array, images=tuple(map(str, range(n)))) for n in (100, 256))
    assert (many.grids.row_shards, most.grids.row_shards) == (2, 1)
    with sw.create(tmp_path / "a.ome.zarr", alone) as writer:
        assert read_manifest(writer.path / ".shardwright").row_shards == 64
        facts = json.loads((writer.path / ".shardwright/acquisition.1.json").read_text())
        assert (facts["format"], facts["row_shards"], facts["across_shards"]) == (8, 64, 256)
        writer.append(np.ones((4, 6), np.uint16))


def test_small_slabs_go_through_the_page_cache_unless_told_otherwise():
    assert WriteSettings().wanted_io(CACHED_SLAB_BYTES) == "pwrite"
    assert WriteSettings().wanted_io(CACHED_SLAB_BYTES + 1) == "auto"
    assert WriteSettings(io="direct").wanted_io(1) == "direct"


# ------------------------------------------------------------------ frames in another order


@pytest.mark.parametrize("chunk", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_frames_in_any_order_are_stored(tmp_path, spec_of, monkeypatch, chunk):
    """A frame is not late because its shard is made together with others: their row opens again."""
    monkeypatch.setattr("shardwright.acquire.limits.REORDER_DISK_BYTES", 0)
    count = 210 * chunk
    frames = np.random.default_rng(3).integers(1, 1000, (count, 4, 6)).astype(np.uint16)
    order = np.random.default_rng(4).permutation(count).tolist()
    with sw.create(tmp_path / "a.ome.zarr", one_file(spec_of, chunk=chunk), threads=2) as writer:
        assert writer._limits.open_shard_rows == 3, "of 64 slabs each: fewer than there are"
        for place in order:
            writer.append(frames[place], index=(place,))
    assert (writer.receipt.frames_stored, writer.receipt.frames_late) == (count, 0)
    assert np.array_equal(zarr.open_array(writer.path / "0", mode="r")[...], frames)


def test_as_many_rows_may_be_open_as_of_larger_shards(spec_of):
    """An axis that changes slowest although another was said to."""
    limits = [
        Limits.derive(spec_of(chunk=1, shard=shard, y=(4, 2, 2), x=(6, 3, 2)), threads=2) for shard in (1, 8)
    ]
    assert limits[0].open_shard_rows == limits[1].open_shard_rows


@pytest.mark.parametrize("order", [("p", "t"), ("t", "p")])
def test_images_of_which_one_has_shards_of_one_slab(tmp_path, order):
    def array(shard: int) -> sw.ArraySpec:
        axes = (("t", 20, 1, shard), ("y", 8, 8, 1), ("x", 8, 8, 1))
        return sw.ArraySpec(
            dtype="uint16",
            dimensions=[
                sw.Dimension(name=n, count=c, chunk_size=k, shard_size_chunks=s) for n, c, k, s in axes
            ],
        )

    path, images = tmp_path / "a.ome.zarr", {"split": array(1), "whole": array(20)}
    places = [(name, t) for name in images for t in range(20)]
    if order == ("t", "p"):
        places.sort(key=lambda place: place[1])
    with sw.create(path, images=images, order=order, threads=2) as writer:
        for name, t in places:
            writer.append(np.full((8, 8), t + 1, np.uint16), image=name)
            time.sleep(0.03)  # so that readers are told of what is stored more than once
    assert writer.receipt.frames_stored == 40
    for name in ("0", "1"):
        assert zarr.open_array(path / name / "0", mode="r")[:, 0, 0].tolist() == list(range(1, 21))


# ------------------------------------------------------------------ what fails while shards get their names


def failing(point: str, error: OSError, number: int = 1):
    def fail() -> None:
        raise error

    failpoints.set_hook(point, failpoints.at_time(number, fail))


def test_a_sync_that_fails_is_told_at_once(tmp_path, drive_of, spec_of, shared_pool):
    """The kernel tells of it once; if the writer is killed now, nobody may trust the pages in memory."""
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, STILL)
    assert (drive.path / ".shardwright/boot").exists()
    failing("shard.before_sync", EIO)
    try:
        drive.submit(0)
        events = {}
        drive.until(lambda: events.update(drive.acquisition.take_events()) or "shard_rewritten" in events)
    finally:
        failpoints.set_hook("shard.before_sync", None)
    assert "Input/output error" in events["io_error"]["reason"]
    assert not (drive.path / ".shardwright/boot").exists()
    drive.until(lambda: shards_of(drive.path) == [0])
    assert drive.finish().frames_stored == 1


def test_a_full_disk_delays_names(tmp_path, drive_of, spec_of, shared_pool):
    """The shards get them with the next ones."""
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, SLOW)
    full, reached = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), []

    def fail() -> None:
        reached.append(1)
        raise full

    failpoints.set_hook("shard.before_rename", fail)
    try:
        drive.submit(0, 1)
        drive.until(lambda: reached)
        drive.still()
    finally:
        failpoints.set_hook("shard.before_rename", None)
    assert shards_of(drive.path) == []
    assert shape_of(drive.path) <= 1, "no shape covers what readers lack"
    drive.submit(2)
    drive.until(lambda: shards_of(drive.path) == [0, 1, 2])
    drive.until(lambda: shape_of(drive.path) == 3)
    assert drive.finish().frames_lost == 0


def test_no_shape_covers_a_row_that_cannot_be_sealed(tmp_path, drive_of, spec_of, shared_pool, monkeypatch):
    """The slab that is stored last (workers finish in any order) would be shown by the seal, and the next row
    goes on meanwhile."""
    drive = drive_of(tmp_path / "a", one_file(spec_of), shared_pool, replace(SLOW, on_full="block"))
    name_shards = seal.name_shards

    def full(together: Any, *_: object) -> None:
        def refuse() -> None:
            raise StorageFullError("no room")

        together.at_once(refuse)

    monkeypatch.setattr(seal, "name_shards", full)
    drive.submit(*range(65))
    drive.until(lambda: 64 in shards_of(drive.path))
    drive.still()
    lacking = set(range(64)) - set(shards_of(drive.path))
    assert lacking
    assert shape_of(drive.path) <= min(lacking), "readers lack a frame"
    monkeypatch.setattr(seal, "name_shards", name_shards)
    drive.until(lambda: lacking <= set(shards_of(drive.path)))
    drive.until(lambda: shape_of(drive.path) == 65)
    assert drive.finish().frames_lost == 0


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
@pytest.mark.parametrize("order", [None, ("t", "p")])
def test_images_in_turn_cost_few_syncs(tmp_path, spec_of, syncs, order):
    """Each alone takes at least five for a shard, and the journal of its row."""
    images, frames = ("a", "b", "c", "d"), 64
    acquisition = sw.AcquisitionSpec(array=one_file(spec_of), images=images, order=order)
    with sw.create(
        tmp_path / "a.ome.zarr",
        acquisition,
        threads=2,
        **how(store_within_ms=600_000, sync_interval_ms=600_000),
    ) as writer:
        syncs.clear()
        for t in range(frames):
            for i, image in enumerate(images):
                writer.append(np.full((4, 6), 1 + 4 * t + i, np.uint16), image=image)
        writer.flush()
        assert sum(syncs.values()) < len(images) * frames / 2, syncs
    for i in range(len(images)):
        stored = zarr.open_array(writer.path / str(i) / "0", mode="r")[:, 0, 0]
        assert stored.tolist() == [1 + 4 * t + i for t in range(frames)]


def test_no_shape_covers_the_rest_of_a_step(tmp_path, drive_of, shared_pool, monkeypatch):
    """Of a faster axis: what is still to come would read as fill value."""
    monkeypatch.setattr(live_scheduler, "SHOW_INTERVAL_S", 0.0)  # else nothing is shown before the rest comes
    axes = (("t", None, 1), ("z", 3, 1), ("y", 4, 4), ("x", 6, 6))
    spec = sw.ArraySpec(
        dtype="uint16", dimensions=[sw.Dimension(name=n, count=c, chunk_size=k) for n, c, k in axes]
    )
    drive = drive_of(tmp_path / "a", spec, shared_pool, SLOW)

    def named() -> int:
        return sum(file.is_file() for file in (drive.path / "0" / "c").rglob("*"))

    drive.submit(0, 1)
    drive.until(lambda: named() == 2)
    drive.still()
    assert shape_of(drive.path) == 0
    drive.submit(2, 3)
    drive.until(lambda: named() == 4)
    drive.until(lambda: shape_of(drive.path) == 1)
    drive.finish()
    assert shape_of(drive.path) == 2
