"""A store is taken over from a writer that lives: whatever that one was about to do when it last looked at
the fence finds nothing to do it to."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import shardwright as sw
import shardwright.recovery.take_over as take_over_module
from shardwright.acquire.limits import Limits
from shardwright.disk import beneath, failpoints
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import (
    FencedError,
    ResumeError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StorageFullError,
)
from shardwright.model.write_settings import WriteSettings
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.resume import restore
from shardwright.recovery.take_over import begin_take_over, end_take_over, marks_in, with_manifest
from shardwright.rework.jobs.sealed_shards import _open_shards
from shardwright.shard import shard_row_files
from shardwright.store.ownership import Ownership

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = WriteSettings(store_within_ms=20, sync_interval_ms=20, ballast_bytes=0)
# slabs of two, shard rows of eight: a slab that collects in the first shard row, which may be below the
# second root; the next is prepared
FRAMES = 7
DOCUMENTS = ("zarr.json", "0/zarr.json")


def no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=["one root", "two roots"])
def old(request, tmp_path, shared_pool, drive_of, spec_of):
    """An acquisition that is open, and has all of its frames on disk."""
    spill = {"spill_root": tmp_path / "second", "on_full": "spill"} if request.param == "two roots" else {}
    settings = WriteSettings(store_within_ms=20, sync_interval_ms=20, ballast_bytes=0, **spill)
    full = failpoints.at_time(1 if spill else 0, no_room)
    failpoints.set_hook("shard.before_preallocate", full)
    try:
        drive = drive_of(tmp_path / "a.ome.zarr", spec_of(chunk=2, shard=4), shared_pool, settings)
    finally:
        failpoints.set_hook("shard.before_preallocate", None)
    drive.submit(*range(FRAMES))
    drive.until(lambda: drive.acquisition.durable_watermark == FRAMES)
    drive.still()
    assert bool(list(tmp_path.glob("second/**/0.journal"))) == bool(spill)
    yield drive
    drive.acquisition.close()


def known_names(store: Path) -> list[Path]:
    """What a writer may rename or delete, with what it may just have made to be renamed."""
    workspace, second = store / ".shardwright", store.parent / "second" / store.name / ".shardwright"
    for name in DOCUMENTS:
        (store / name).with_name(f".{(store / name).name}.1.new").write_text("{}")
    (workspace / "0.journal.rewrite").touch()
    there = [path for folder in (workspace, second) if folder.is_dir() for path in folder.iterdir()]
    found = [
        path
        for path in there
        if path.name.endswith((".partial", ".journal", ".rewrite", "frames.log", "staging"))
    ]
    return found + [(store / name).with_name(".zarr.json.1.new") for name in DOCUMENTS]


def take_over(store: Path):
    return restore(store, partial(Limits.derive, threads=2), SETTINGS, threads=1, take_over=True)[0]


def assert_whole(store: Path, drive) -> None:
    assert np.array_equal(zarr.open_array(store / "0", mode="r")[...], drive.expected(range(FRAMES)))
    assert not (store / ".shardwright").exists()


def test_no_name_that_the_old_writer_knows_is_left(old, shared_pool):
    unsealed, names = _open_shards(open_store(old.path)), known_names(old.path)
    assert len(names) >= 6
    take_over(old.path).close()
    assert _open_shards(open_store(old.path)) == unsealed, "a compaction leaves them alone"
    for name in names:
        with pytest.raises(FileNotFoundError):
            name.rename(old.path / "0" / "renamed at last")
    assert recover_store(old.path, shared_pool, threads=1).frames_kept == FRAMES
    assert_whole(old.path, old)


def test_again_and_again(old, shared_pool):
    for _ in range(3):
        take_over(old.path).close()
        restore(old.path, partial(Limits.derive, threads=2), SETTINGS, threads=1)[0].close()
    with sw.resume(old.path, take_over=True) as writer:
        assert writer.frames == FRAMES
        writer.append(old.pixels(FRAMES))
    expected = np.concatenate([old.expected(range(FRAMES)), old.pixels(FRAMES)[None]])
    assert np.array_equal(zarr.open_array(old.path / "0", mode="r")[...], expected)


def test_a_store_that_its_writer_finishes_meanwhile_is_finished(old):
    """Its manifest is the first file that goes."""
    (manifest,) = (old.path / ".shardwright").glob("acquisition.*.json")
    failpoints.set_hook("lock.before_take", failpoints.at_time(1, manifest.unlink))
    try:
        with pytest.raises(ResumeError, match="finished"):
            take_over(old.path)
    finally:
        failpoints.set_hook("lock.before_take", None)


class Died(BaseException):
    """Leaves what a kill leaves."""


@pytest.mark.parametrize("then", ["taken over", "resumed"])
@pytest.mark.parametrize(
    "point", ["take_over.before_copy", "take_over.before_delete", "replace.before_rename"]
)
def test_a_take_over_that_is_cut_short_is_begun_again(old, shared_pool, point, then):
    """At every call of this kind, one after the other."""

    def die() -> None:
        raise Died

    known_names(old.path)
    deaths = 0
    for number in range(1, 100):
        failpoints.set_hook(point, failpoints.at_time(number, die))
        try:
            take_over(old.path).close()
            break
        except Died:
            deaths += 1
        finally:
            failpoints.set_hook(point, None)
    assert deaths >= 1
    recovered = recover_store(old.path, shared_pool, threads=1, take_over=then == "taken over")
    assert (recovered.frames_kept, recovered.frames_lost) == (FRAMES, 0)
    assert_whole(old.path, old)


def test_each_take_over_has_a_mark_of_its_own_beside_that_of_earlier_releases(tmp_path):
    for _ in range(2):
        begin_take_over(tmp_path)
    marks = marks_in(tmp_path)
    assert len(marks) == 3
    assert (tmp_path / "taking-over").read_bytes() == b""
    end_take_over(marks[:2])
    assert marks_in(tmp_path) == marks[2:]


@pytest.mark.parametrize("marked_by", ["this release", "an earlier one"])
def test_whoever_finds_a_mark_takes_over(old, shared_pool, marked_by):
    begin_take_over(old.path / ".shardwright")
    if marked_by == "an earlier one":
        end_take_over(marks_in(old.path / ".shardwright")[1:])
    old.acquisition.close()
    assert recover_store(old.path, shared_pool, threads=1).frames_kept == FRAMES
    assert_whole(old.path, old)


def test_a_store_whose_writer_removes_it_meanwhile_is_gone(old):
    """The lock was made in a workspace that goes."""
    (manifest,) = (old.path / ".shardwright").glob("acquisition.*.json")
    gone = old.path.with_name("gone")
    failpoints.set_hook("lock.before_rename", failpoints.at_time(1, manifest.unlink))
    failpoints.set_hook("lock.before_delete", failpoints.at_time(1, lambda: old.path.rename(gone)))
    try:
        with pytest.raises(ResumeError, match="nothing to resume"):
            take_over(old.path)
    finally:
        failpoints.set_hook("lock.before_rename", None)
        failpoints.set_hook("lock.before_delete", None)


def test_a_store_that_goes_before_its_take_over_is_marked_is_gone(old):
    failpoints.set_hook(
        "replace.before_write", failpoints.at_time(1, lambda: old.path.rename(old.path.with_name("gone")))
    )
    try:
        with pytest.raises(ResumeError, match="nothing to resume"):
            take_over(old.path)
    finally:
        failpoints.set_hook("replace.before_write", None)


@pytest.mark.parametrize("point", ["replace.before_rename", "lock.before_rename", "take_over.before_delete"])
def test_of_two_take_overs_at_once_one_has_the_store_and_every_frame(old, shared_pool, point):
    """The first one stands between a look at the fence and the call that it allows, each in turn, while the
    second takes over, whole; then the first goes on."""
    for number in range(1, 40):
        store = old.path.with_name(f"{number}.ome.zarr")
        for root in (old.path.parent, old.path.parent / "second"):
            if (root / old.path.name).exists():
                shutil.copytree(root / old.path.name, root / store.name, symlinks=True)
        held, second = StoreLock.take(store / ".shardwright" / "lock"), []
        hook = failpoints.at_time(number, lambda: second.append(take_over(store)))  # noqa: B023 (at once)
        failpoints.set_hook(point, hook)
        try:
            first = take_over(store)
        except (FencedError, StorageError):
            pass  # it has found out
        else:
            first.close()
        finally:
            failpoints.set_hook(point, None)
            held.release()
        for restored in second:
            restored.close()
        recovered = recover_store(store, shared_pool, threads=1, take_over=True)
        assert (recovered.frames_kept, recovered.frames_lost) == (FRAMES, 0), number
        if not second:
            return
    raise AssertionError("there are not as many such calls")


def test_a_shard_that_the_old_writer_has_named_is_durable_before_the_copies_count(old, monkeypatch):
    """It was not copied. If a power cut took the name back, it would be in the old writer's folder again,
    which is cleared (the simulation found it)."""
    (working,) = old.path.parent.rglob("c.0.0.0.partial")
    final = working.parents[1] / "0/c/0/0/0"
    final.parent.mkdir(parents=True, exist_ok=True)
    working.rename(final)
    steps: list[Path | str] = []
    sync, write = take_over_module.sync_directory, with_manifest
    for module in (take_over_module, shard_row_files):
        monkeypatch.setattr(module, "sync_directory", lambda folder: (steps.append(folder), sync(folder)))
    monkeypatch.setattr(
        take_over_module,
        "with_manifest",
        lambda *told, **how: (steps.append("manifest"), write(*told, **how))[1],
    )
    with suppress(ShardwrightError):  # the shard is not complete
        take_over(old.path).close()
    copies_count = len(steps) - 1 - steps[::-1].index("manifest")
    assert {final.parent, *final.parents[1:4]} <= set(steps[:copies_count]), "and the folders above it"


def test_a_full_disk_at_any_sync_of_a_folder_takes_nothing(old, shared_pool):
    """Also right after the manifest has its name, when it is the copies that count."""
    for number in range(1, 100):
        failpoints.set_hook("directory.before_sync", failpoints.at_time(number, no_room))
        try:
            take_over(old.path).close()
            break
        except StorageFullError:
            continue
        finally:
            failpoints.set_hook("directory.before_sync", None)
    assert number > 5
    assert len(list((old.path / ".shardwright").glob("taken-*"))) == 1, "no try leaves its copies to the next"
    assert recover_store(old.path, shared_pool, threads=1).frames_kept == FRAMES
    assert_whole(old.path, old)


STAGED = WriteSettings(store_within_ms=20, sync_interval_ms=3_600_000, ballast_bytes=0, on_full="block")


def send(drive, positions: range | list[int], stop: int) -> None:
    """One by one, each stored before the next."""
    for number in range(drive.acquisition.next_sequence, stop):
        drive.submit(positions[number])
        drive.until(lambda stored=number + 1: drive.acquisition.stored_watermark >= stored)


def assert_kept(drive, positions) -> None:
    found = zarr.open_array(drive.path / "0", mode="r")[...]
    expected = drive.expected(positions)
    assert [
        position for position in positions if not np.array_equal(found[position], expected[position])
    ] == []


@pytest.mark.parametrize("number", range(1, 6))
def test_frames_that_the_old_writer_hands_on_meanwhile_are_not_missed(
    tmp_path, shared_pool, drive_of, spec_of, number
):
    """It does not hang at all: before each copy in turn it stores the slab of a staged frame, and uses every
    slot again."""
    drive = drive_of(tmp_path / "a.ome.zarr", spec_of(chunk=2, shard=64), shared_pool, STAGED, ring_frames=8)
    stop = 7 + 2 * drive.acquisition.limits.staging_frames
    send(drive, range(stop), 7)
    failpoints.set_hook(
        "take_over.before_copy", failpoints.at_time(number, lambda: send(drive, range(stop), stop))
    )
    try:
        take_over(drive.path).close()
    finally:
        failpoints.set_hook("take_over.before_copy", None)
    assert drive.acquisition.stored_watermark == stop
    recover_store(drive.path, shared_pool, threads=1)
    assert_kept(drive, range(7))


def test_a_shard_row_that_the_old_writer_finishes_making_meanwhile_is_not_missed(
    tmp_path, shared_pool, drive_of, spec_of
):
    """It has looked at the fence, and makes all of a shard row's files after that; a frame that was staged
    for it has its slot used again."""
    held, waits = threading.Event(), threading.Event()
    failpoints.set_hook("journal.before_create", failpoints.at_time(3, lambda: (waits.set(), held.wait(60))))
    # slots come back with a commit, and none is made while the sealer is held
    settings = replace(STAGED, sync_interval_ms=50)
    drive = drive_of(
        tmp_path / "a.ome.zarr", spec_of(count=384, chunk=2, shard=64), shared_pool, settings, ring_frames=8
    )
    positions = [
        *range(127),
        128,
        *range(256, 384),
    ]  # frame 127 never comes: the first shard row is not sealed
    stop = 131 + 2 * drive.acquisition.limits.staging_frames

    def go_on() -> None:
        held.set()
        send(drive, positions, stop)

    send(drive, positions, 127)
    drive.until(lambda: drive.acquisition.durable_watermark == 127)
    send(drive, positions, 128)
    assert waits.wait(60)
    send(drive, positions, 129)
    failpoints.set_hook("take_over.before_copy", failpoints.at_time(1, go_on))
    try:
        take_over(drive.path).close()
    finally:
        failpoints.set_hook("take_over.before_copy", None)
        failpoints.set_hook("journal.before_create", None)
    recover_store(drive.path, shared_pool, threads=1)
    assert_kept(drive, positions[:129])


def test_a_take_over_that_was_cut_short_is_one_for_whoever_comes_next(
    tmp_path, shared_pool, drive_of, spec_of
):
    """Its old writer may live: what a recovery without the flag had sealed, it would write into."""
    drive = drive_of(tmp_path / "a.ome.zarr", spec_of(chunk=2, shard=64), shared_pool, STAGED, ring_frames=8)
    send(drive, range(20), 8)
    failpoints.set_hook("take_over.before_copy", no_room)
    with pytest.raises(StorageFullError):
        take_over(drive.path)
    failpoints.set_hook("take_over.before_copy", None)
    assert recover_store(drive.path, shared_pool, threads=1).frames_kept == 8
    send(drive, range(20), 20)
    assert verify_store(drive.path, threads=1).problems == []
    assert_kept(drive, range(8))


@pytest.mark.parametrize("slow_one", ["resumed", "taken over"])
@pytest.mark.parametrize(
    "point", ["replace.before_rename", "workspace.before_manifest", "take_over.before_delete"]
)
def test_a_recovery_that_is_taken_over_itself_touches_nothing_of_its_successor(
    old, shared_pool, point, slow_one
):
    """It was stopped right before it asked for the last time whether the store is still its own."""
    old.acquisition.close()  # it is dead
    take_over(old.path).close()  # so that there are files of an older epoch
    heirs = []
    failpoints.set_hook(point, failpoints.at_time(1, lambda: heirs.append(take_over(old.path))))
    limits_of = partial(Limits.derive, threads=2)
    try:
        restore(old.path, limits_of, SETTINGS, threads=1, take_over=slow_one == "taken over")[0].close()
    except FencedError:
        assert heirs
    finally:
        failpoints.set_hook(point, None)
    for heir in heirs:
        assert all(shard_row.files.journal.path.exists() for shard_row in heir.shard_rows)
        heir.close()
    recovered = recover_store(old.path, shared_pool, threads=1)
    assert (recovered.frames_kept, recovered.frames_lost) == (FRAMES, 0)
    assert_whole(old.path, old)


@pytest.mark.parametrize("finishes", [True, False])
def test_a_store_without_a_frame_that_somebody_has_taken_over_is_not_withdrawn(tmp_path, spec_of, finishes):
    path, frame, heirs = tmp_path / "a.ome.zarr", np.ones((4, 6), np.uint16), []

    def take_over_now() -> None:
        heirs.append(sw.resume(path, take_over=True))
        heirs[0].append(frame)
        if finishes:
            heirs[0].close()

    writer = sw.create(path, spec_of())
    failpoints.set_hook("store.before_withdraw", failpoints.at_time(1, take_over_now))
    try:
        writer.close()
    except FencedError:
        pass
    finally:
        failpoints.set_hook("store.before_withdraw", None)
    heirs[0].close()
    assert np.array_equal(zarr.open_array(path / "0", mode="r")[...], frame[None])


def test_a_folder_that_the_manifest_names_and_that_is_not_there_stops_everything(old, shared_pool):
    take_over(old.path).close()
    (folder,) = (old.path / ".shardwright").glob("taken-*")
    shutil.move(folder, old.path.parent / "elsewhere")
    with pytest.raises(ShardFormatError, match=folder.name):
        recover_store(old.path, shared_pool, threads=1)
    shutil.move(old.path.parent / "elsewhere", folder)
    assert recover_store(old.path, shared_pool, threads=1).frames_kept == FRAMES


def test_a_document_of_images_that_the_old_writer_was_about_to_put_in_place_is_gone(
    tmp_path, spec_of, monkeypatch
):
    path, new_one = tmp_path / "a.ome.zarr", []
    frame = np.ones((4, 6), np.uint16)

    def look_at_the_fence_and_hang(folder) -> None:
        looked_at(folder)
        if (path / "OME" / ".METADATA.ome.xml.1.new").exists():
            monkeypatch.undo()
            with sw.resume(path, take_over=True) as successor:
                successor.append(frame, image="b", index=(0,))
            new_one.append((path / "OME" / "METADATA.ome.xml").read_text())

    looked_at = Ownership.may_rename
    writer = sw.create(path, spec_of(), images=["a", "b"])
    monkeypatch.setattr(Ownership, "may_rename", look_at_the_fence_and_hang)
    writer.append(frame, image="a")
    with suppress(ShardwrightError):
        writer.close()
    assert new_one == [(path / "OME" / "METADATA.ome.xml").read_text()]
    assert 'Name="b"' in new_one[0]
    assert not [file for file in (path / "OME").iterdir() if file.suffix == ".new"]
    assert verify_store(path).ok


@pytest.mark.parametrize("late_files", [2, 1000])
def test_a_folder_in_which_the_old_writer_just_makes_a_file_is_deleted_all_the_same(
    tmp_path, monkeypatch, late_files
):
    """Its last check of the fence came before. One that never ends is told."""
    folder, remove_tree, made = tmp_path / "taken-1", beneath.remove_tree, []
    folder.mkdir()

    def while_files_come(path):
        if len(made) < late_files:
            made.append(path)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        remove_tree(path)

    monkeypatch.setattr(beneath, "remove_tree", while_files_come)
    if late_files > 2:
        with pytest.raises(StorageError, match="cannot delete"):
            take_over_module._remove(folder)
    else:
        take_over_module._remove(folder)
        assert not folder.exists()
