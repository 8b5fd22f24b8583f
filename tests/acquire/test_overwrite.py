"""A new store takes the name of a finished one, which goes once the new one has a durable frame, and never
before: what a kill leaves, what is refused, and what comes back."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.disk import beneath, failpoints
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import LockedError, OutputExistsError, StorageError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.model.names import WORK_FOLDER
from shardwright.model.write_settings import WriteSettings
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.shard.frame_log import BlockKind, FrameLog
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.manifest import manifest_path, read_manifest
from shardwright.shard.shard_row_files import LOG_NAME
from shardwright.store import replaced_store
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = (np.full((4, 6), value, np.uint16) for value in (1, 2))


@pytest.fixture
def spec(spec_of):
    return spec_of()


@pytest.fixture
def old(tmp_path, spec) -> Path:
    """A finished store of three frames."""
    path = tmp_path / "root" / "a.ome.zarr"
    with sw.create(path, spec) as writer:
        writer.append_many(np.stack([OLD] * 3))
    return path


@pytest.fixture
def at_point():
    """``at_point(name, action)``: once, when the next one gets there."""
    names = []

    def set_action(name, action) -> None:
        names.append(name)
        failpoints.set_hook(name, failpoints.at_time(1, action))

    yield set_action
    for name in names:
        failpoints.set_hook(name, None)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pixels(path: Path) -> list[int]:
    """One pixel of each frame."""
    return zarr.open_array(path / "0", mode="r")[:, 0, 0].tolist()


def fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("options", [{"overwrite": True}, {"name_taken": "overwrite"}])
def test_the_old_store_goes_with_the_first_durable_frame(old, spec, options):
    with sw.create(old, spec, **how(**options)) as writer:
        (aside,) = [path for path in old.parent.iterdir() if path != old]
        assert pixels(aside / old.name) == [1, 1, 1], "no frame has come"
        writer.append(NEW)
        writer.flush()
        assert not aside.exists()
        writer.append(NEW)
    assert names(old.parent) == [old.name]
    assert pixels(old) == [2, 2]


def test_a_name_that_is_free_is_taken_as_ever(tmp_path, spec):
    with sw.create(tmp_path / "a.ome.zarr", spec, overwrite=True) as writer:
        writer.append(NEW)
    assert names(tmp_path) == ["a.ome.zarr"]


def test_a_frame_of_a_shard_row_that_ends_at_once_is_enough(old, spec):
    with sw.create(old, spec, overwrite=True, **how(sync_interval_ms=3_600_000)) as writer:
        writer.append(NEW)
    assert names(old.parent) == [old.name]
    assert pixels(old) == [2]


def test_without_a_frame_the_old_store_is_back(old, spec):
    sw.create(old, spec, overwrite=True).close()
    assert names(old.parent) == [old.name]
    assert pixels(old) == [1, 1, 1]


@pytest.mark.parametrize(
    "point",
    ["staging.before_create", "store.before_set_aside", "store.before_exchange", "journal.before_create"],
)
def test_a_creation_that_fails_leaves_the_old_store(old, spec, at_point, point):
    at_point(point, fail)
    with pytest.raises(StorageError):
        sw.create(old, spec, overwrite=True)
    assert names(old.parent) == [old.name]
    assert pixels(old) == [1, 1, 1]


def test_a_disk_that_fails_once_the_names_are_exchanged_leaves_the_old_store(old, spec, at_point):
    at_point("store.before_exchange", lambda: at_point("directory.before_sync", fail))
    with pytest.raises(StorageError):
        sw.create(old, spec, overwrite=True)
    assert names(old.parent) == [old.name]
    assert pixels(old) == [1, 1, 1]


def test_a_filesystem_without_exchange_refuses_and_changes_nothing(old, spec, monkeypatch):
    def unknown(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(beneath, "rename_with", unknown)
    with pytest.raises(StorageError, match=r"cannot exchange two names.*Delete or move the old store first"):
        sw.create(old, spec, overwrite=True)
    assert names(old.parent) == [old.name]
    assert pixels(old) == [1, 1, 1]


@pytest.mark.parametrize("kind", ["file", "folder", "foreign group", "link", "no frame table"])
def test_what_is_no_store_of_ours_is_never_overwritten(old, spec, kind, tmp_path):
    path = tmp_path / "b.ome.zarr"
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(old)
    elif kind == "no frame table":
        old.rename(path)
        (path / "frames").rename(tmp_path / "frames")
    else:
        path.mkdir()
        (path / "notes.txt").write_text("mine")
        if kind == "foreign group":
            zarr.create_group(path)
    before = names(tmp_path)
    with pytest.raises(OutputExistsError, match=r"no store that was written here.*Choose another name"):
        sw.create(path, spec, overwrite=True)
    assert names(tmp_path) == before


def test_a_store_that_is_being_written_is_never_overwritten(tmp_path, spec):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec) as writer:
        writer.append(OLD)
        with pytest.raises(OutputExistsError, match=r"unfinished.*shardwright recover"):
            sw.create(path, spec, overwrite=True)
    assert pixels(path) == [1]


def test_a_store_that_is_being_compacted_is_not_overwritten(old, spec):
    (old / "0" / WORK_FOLDER).mkdir()
    lock = StoreLock.take(old / "0" / WORK_FOLDER / "lock")
    with pytest.raises(LockedError, match=r"a job is at work.*Wait until"):
        sw.create(old, spec, overwrite=True)
    lock.release()
    with sw.create(old, spec, overwrite=True) as writer:
        writer.append(NEW)
    assert pixels(old) == [2]


def test_a_job_that_begins_at_the_last_moment_keeps_the_store(old, spec, at_point):
    locks = []

    def begin() -> None:
        (old / "0" / WORK_FOLDER).mkdir()
        locks.append(StoreLock.take(old / "0" / WORK_FOLDER / "lock"))

    at_point("store.before_exchange", begin)
    with pytest.raises(LockedError):
        sw.create(old, spec, overwrite=True)
    locks[0].release()
    assert names(old.parent) == [old.name]
    assert pixels(old) == [1, 1, 1]


def test_shards_that_lie_on_another_disk_are_not_left_behind(old, spec, tmp_path):
    shard = old / "0" / "c" / "0" / "0" / "0"
    elsewhere = shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(elsewhere)
    with pytest.raises(OutputExistsError, match="lies elsewhere"):
        sw.create(old, spec, overwrite=True)
    assert pixels(old) == [1, 1, 1]


def test_overwrite_and_increment_contradict_each_other(old, spec):
    with pytest.raises(TypeError, match="keeps the old store"):
        sw.create(old, spec, overwrite=True, **how(name_taken="increment"))


def test_a_second_creation_finds_the_first_one_s_store(old, spec):
    with sw.create(old, spec, overwrite=True) as writer:
        with pytest.raises(OutputExistsError, match="unfinished"):
            sw.create(old, spec, overwrite=True)
        with sw.create(old.with_name("b.ome.zarr"), spec) as other:  # tidies up what is nobody's
            other.append(NEW)
        assert len(names(old.parent)) == 3, "what is set aside is somebody's"
        writer.append(NEW)
    assert names(old.parent) == [old.name, "b.ome.zarr"]


def leave(writer) -> None:
    """As a kill leaves a store before the first frame."""
    held = writer._acquisition.folder
    held.remove_store = held.close
    writer.close()


@pytest.fixture
def left(old, spec, shared_pool) -> Path:
    """As a kill leaves it before the first frame: the new store under its name, the old one set aside."""
    leave(sw.create(old, spec, overwrite=True))
    (aside,) = [path for path in old.parent.iterdir() if path != old]
    assert pixels(aside / old.name) == [1, 1, 1]
    return old


def test_recovery_of_a_store_without_a_frame_gives_the_old_one_its_name(left, shared_pool):
    (found,) = unfinished_stores(left.parent)
    assert recover_store(found, shared_pool, threads=1).action == "removed, no frame ever came"
    assert names(left.parent) == [left.name]
    assert pixels(left) == [1, 1, 1]


def test_who_resumes_it_overwrites_it(left):
    with sw.resume(left) as writer:
        writer.append(NEW)
    assert names(left.parent) == [left.name]
    assert pixels(left) == [2]


def test_after_a_power_cut_the_old_store_is_back(left, shared_pool):
    """Frames may have come, but none that was durable: there is nothing to seal."""
    (left / ".shardwright" / "boot").write_text("00000000-0000-0000-0000-000000000000")
    would = recover_store(left, shared_pool, threads=1, dry_run=True)
    assert would.action == "would be removed, no frame was stored"
    assert recover_store(left, shared_pool, threads=1).action == "removed, no frame was stored"
    assert names(left.parent) == [left.name]
    assert pixels(left) == [1, 1, 1]


def test_after_a_power_cut_an_old_store_of_one_frame_is_back(tmp_path, shared_pool):
    """Its array has its whole shape from the beginning, whether a frame came or not."""
    path = tmp_path / "a.ome.zarr"
    frame = [Dimension(name="y", count=4, chunk_size=2), Dimension(name="x", count=6, chunk_size=2)]
    spec = ArraySpec(dtype="uint16", dimensions=frame)
    with sw.create(path, spec) as writer:
        writer.append(OLD)
    leave(sw.create(path, spec, overwrite=True))
    (path / ".shardwright" / "boot").unlink()
    recover_store(path, shared_pool, threads=1)
    assert names(tmp_path) == [path.name]
    assert zarr.open_array(path / "0", mode="r")[0, 0] == 1


def test_frames_that_came_and_were_not_stored_leave_the_old_store(old, spec):
    """It has no frame, but says what became of those that came."""
    dropped = np.zeros(1, DESCRIPTOR)
    dropped["flags"], dropped["frame_id"] = FRAME_DROPPED, -1
    writer = sw.create(old, spec, overwrite=True)
    writer._acquisition.submit(dropped, np.zeros(1, np.int64))
    writer.close()
    assert (writer.receipt.frames_stored, writer.receipt.frames_dropped) == (0, 1)
    assert names(old.parent) == ["a.ome.zarr", "a_2.ome.zarr"]
    assert pixels(old.with_name("a_2.ome.zarr")) == [1, 1, 1]


def test_a_power_cut_that_takes_the_only_frame_leaves_the_old_store(old, spec_of, drive_of, shared_pool):
    """The journal has it, its chunks have not reached the disk."""
    settings = WriteSettings(name_taken="overwrite", sync_interval_ms=3_600_000)
    left, drive = old, drive_of(old, spec_of(chunk=1, shard=2), shared_pool, settings)
    drive.submit(0)
    drive.until(lambda: drive.acquisition.stored_watermark == 1)
    drive.acquisition.close()
    (left / ".shardwright" / "boot").unlink()
    for shard in (left / ".shardwright").glob("*.partial"):
        shard.write_bytes(bytes(shard.stat().st_size))
    assert recover_store(left, shared_pool, threads=1).frames_lost == 1
    assert names(left.parent) == ["a.ome.zarr", "a_2.ome.zarr"]
    assert pixels(left.with_name("a_2.ome.zarr")) == [1, 1, 1]


def test_a_record_of_frames_that_were_lost_is_kept_and_so_is_the_old_store(left, shared_pool):
    (left / ".shardwright" / "boot").write_text("00000000-0000-0000-0000-000000000000")
    lost = np.zeros(1, record_dtype(0))
    lost["status"], lost["reason"], lost["position"] = FrameStatus.LOST, Reason.IO_ERROR, -1
    log = FrameLog.open(
        left / ".shardwright" / LOG_NAME, lost.dtype, read_manifest(left / ".shardwright").identity_bytes
    )
    log.append(BlockKind.EVENTS, -1, lost)
    log.close()
    recover_store(left, shared_pool, threads=1)
    assert names(left.parent) == ["a.ome.zarr", "a_2.ome.zarr"]
    assert pixels(left) == []
    assert pixels(left.with_name("a_2.ome.zarr")) == [1, 1, 1]


def test_of_two_creations_at_once_the_quicker_one_keeps_its_name_and_its_frames(old, spec, at_point):
    quicker = []

    def be_quicker() -> None:
        writer = sw.create(old, spec, overwrite=True)
        quicker.append(writer)
        writer.append_many(np.stack([NEW] * 5))
        writer.flush()

    at_point("store.before_set_aside", be_quicker)
    with pytest.raises(OutputExistsError, match="unfinished"):
        sw.create(old, spec, overwrite=True)
    (writer,) = quicker
    writer.append(NEW)
    assert writer.close().frames_stored == 6
    assert names(old.parent) == [old.name]
    assert pixels(old) == [2] * 6


def test_a_creation_waits_for_one_that_takes_the_name(old, spec, at_point):
    """If it exchanged the store that has just got the name, that one's writer would make its next files in
    the other store, which is then removed: a kill would cost frames that it had acknowledged."""
    waits, exchanged, refusals = threading.Event(), [], []

    def create() -> None:
        with pytest.raises(OutputExistsError, match="unfinished") as refused:
            sw.create(old, spec, overwrite=True)
        refusals.append(refused.value)

    def watch(point: str) -> None:
        if point == "store.before_lock" and threading.current_thread() is other:
            waits.set()
        if point == "store.before_exchange":
            exchanged.append(threading.current_thread())

    def begin_the_other() -> None:
        other.start()
        assert waits.wait(60), "it waits, or is refused, before it exchanges anything"

    other = threading.Thread(target=create)
    at_point("store.before_exchange", begin_the_other)
    failpoints.watch_all(watch)
    try:
        with sw.create(old, spec, overwrite=True) as writer:
            other.join()
            writer.append_many(np.stack([NEW] * 3))
    finally:
        failpoints.watch_all(None)
    assert exchanged == [threading.current_thread()]
    assert len(refusals) == 1
    assert pixels(old) == [2] * 3


def test_a_store_that_another_creation_puts_back_goes_on(tmp_path, spec):
    path, aside = tmp_path / "b.ome.zarr", tmp_path / f".shardwright-{'0' * 16}.replaced"
    with sw.create(path, spec) as writer:
        writer.append_many(np.stack([NEW] * 3))
        writer.flush()
        aside.mkdir()
        path.rename(aside / path.name)
        back = threading.Timer(0.1, lambda: (aside / path.name).rename(path))
        back.start()
        writer.append_many(np.stack([NEW] * 2))
        writer.flush()
        back.join()
    assert writer.receipt.frames_stored == 5
    assert pixels(path) == [2] * 5


@pytest.mark.parametrize("finder", ["creation", "recovery"])
def test_a_kill_of_the_slower_creation_costs_the_quicker_one_its_name_and_no_frame(
    left, spec, drive_of, shared_pool, finder
):
    """It died once it had exchanged the names, before it found that it had set aside what is written."""
    (aside,) = [path for path in left.parent.iterdir() if path != left]
    drive = drive_of(left.parent.parent / "b.ome.zarr", spec, shared_pool)
    drive.submit(*range(4))
    drive.until(lambda: drive.acquisition.durable_watermark == 4)
    drive.acquisition.close()
    shutil.rmtree(aside / left.name)
    drive.path.rename(aside / left.name)
    if finder == "creation":
        sw.create(left.with_name("c.ome.zarr"), spec).close()
    for _ in range(2):
        for found in unfinished_stores(left.parent):
            recover_store(found, shared_pool, threads=1)
    (kept,) = left.parent.iterdir()
    assert zarr.open_array(kept / "0", mode="r").shape[0] == 4


@pytest.mark.parametrize("when", ["before the exchange", "withdrawn"])
def test_a_new_store_that_was_killed_aside_goes(left, spec, when):
    (aside,) = [path for path in left.parent.iterdir() if path != left]
    replaced_store.exchange_stores(left, aside)
    if when == "withdrawn":
        manifest_path(aside / left.name / ".shardwright", 1).unlink()
    sw.create(left.with_name("b.ome.zarr"), spec).close()
    assert names(left.parent) == [left.name]
    assert pixels(left) == [1, 1, 1]


@pytest.mark.parametrize(
    "several", [{}, {"levels": 1}, {"images": ["a", "b"]}, {"plate": {"rows": 1, "columns": 1}}]
)
@pytest.mark.parametrize("overwrites", [False, True])
def test_a_removal_that_is_killed_before_the_name_goes_is_finished(
    tmp_path, shared_pool, overwrites, several, at_point
):
    path = tmp_path / "root" / "a.ome.zarr"
    one = {"shape": (None, 64, 64), "dtype": "uint16", "axes": "tyx"}
    if overwrites:
        with sw.create(path, **one) as writer:
            writer.append(np.ones((64, 64), np.uint16))
    writer = sw.create(path, **one, overwrite=overwrites, **how(**several))
    if several.keys() & {"images", "plate"}:
        writer._acquisition.folder.metadata.make_images([0])  # as before the first shard
    at_point("store.before_take_name", fail)
    writer.close()
    (left,) = [found for found in unfinished_stores(path.parent) if found == path]
    assert recover_store(left, shared_pool, threads=1).action == "leftovers removed"
    assert names(path.parent) == ([path.name] if overwrites else [])
    if overwrites:
        assert pixels(path) == [1]


@pytest.mark.parametrize("how", ["moved", "another"])
def test_the_old_store_gets_a_name_when_the_new_one_is_gone(left, spec, shared_pool, how):
    left.rename(left.parent.parent / "moved.ome.zarr")  # by hand
    if how == "another":
        (left / "notes").mkdir(parents=True)
    (found,) = unfinished_stores(left.parent)
    would = recover_store(found, shared_pool, threads=1, dry_run=True).action
    assert would == "the replaced store would get a name again"
    assert recover_store(found, shared_pool, threads=1).action == "the replaced store has a name again"
    again = left if how == "moved" else left.with_name("a_2.ome.zarr")
    assert pixels(again) == [1, 1, 1]
    assert len(names(left.parent)) == (1 if how == "moved" else 2)


def test_a_creation_beside_it_gives_it_its_name_too(left, spec):
    left.rename(left.parent.parent / "moved.ome.zarr")  # by hand
    with sw.create(left, spec, overwrite=True) as writer:
        writer.append(NEW)
    assert names(left.parent) == [left.name]
    assert pixels(left) == [2]


def test_the_attributes_of_the_old_store_do_not_reach_the_new_one(old, spec):
    document = json.loads((old / "zarr.json").read_text())
    document["attributes"]["mine"] = 1
    (old / "zarr.json").write_text(json.dumps(document))
    with sw.create(old, spec, overwrite=True) as writer:
        writer.append(NEW)
    assert "mine" not in json.loads((old / "zarr.json").read_text())["attributes"]


def test_in_place_a_record_without_its_pixels_is_no_durable_frame(old, spec_of):
    """The record's sync succeeded, that of its pixels did not, or was to come with the seal: the old store
    was given up."""
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    failpoints.set_hook("shard.before_sync", fail)
    try:
        in_place = how(sync_interval_ms=20, partial_chunks="in_place")
        writer = sw.create(old, spec_of(codec="none", chunk_checksum=False), overwrite=True, **in_place)
        writer.append(NEW)
        with pytest.raises(StorageError):
            writer.close()
    finally:
        failpoints.set_hook("shard.before_sync", None)
    assert failed.is_set()
    (aside,) = (path for path in old.parent.iterdir() if path.name.endswith(".replaced"))
    assert (zarr.open_array(aside / old.name / "0", mode="r")[:] == OLD).all()
