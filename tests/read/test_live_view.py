"""What a view shows of a store at every step of its life: a test for each line of the table in
``read.live_view``."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import zarr
from tests.compaction.jobs import Here
from tests.harness.full_disk import full_below
from tests.harness.plain_arrays import without_shards
from tests.harness.python import run_python, start_python
from tests.harness.writing import how

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.grid import image_of
from shardwright.disk import beneath, failpoints, slot_file
from shardwright.disk.read_file import ChangedError
from shardwright.model.errors import ShardFormatError, StorageError, StoreGoneError
from shardwright.read import live_staging
from shardwright.read.box_reader import BoxCuts, BoxPart, empty_box, read_boxes
from shardwright.read.live_row import LiveRow
from shardwright.read.live_staging import KeptPixels
from shardwright.read.live_view import LiveView
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.shard.frame_log import FrameLog
from shardwright.shard.manifest import manifest_path

from .live_judge import SHAPE, Judge, append_until_logged, frame, looking_at_every_step

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
ROOT = Path(__file__).parents[2]
QUICK: dict[str, Any] = {"store_within_ms": 20, "sync_interval_ms": 20, "threads": 2}


def spec(chunk: int = 4, shard: int = 2, shape: tuple[int, int] = SHAPE, **fields: Any) -> sw.ArraySpec:
    """Two shard files in a shard row, and chunks that reach over the frame's edge."""
    (height, width), halves = shape, (shape[0] + 1) // 2
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=chunk, shard_size_chunks=shard),
            sw.Dimension(name="y", count=height, chunk_size=halves, shard_size_chunks=1),
            sw.Dimension(name="x", count=width, chunk_size=20, shard_size_chunks=2),
        ],
        **fields,
    )


def pixels(path: Path) -> np.ndarray:
    return zarr.open_array(sw.open(path), path="0", mode="r")[...]


def expected(frames: int) -> np.ndarray:
    return np.stack([frame(i) for i in range(frames)])


class Died(BaseException):
    """A thread that ends as in a kill."""


def die() -> None:
    raise Died


def leave(writer: sw.Writer, point: str = "sealer.before_command") -> None:
    """Ends a writer as a kill does: its sealer dies at ``point``."""
    failpoints.set_hook(point, die)
    try:
        with pytest.raises(sw.errors.ShardwrightError):
            writer.close()
    finally:
        failpoints.set_hook(point, None)


# ---------------------------------------------------------------------- while it is written


@pytest.mark.parametrize(
    ("io", "fields", "chunk", "new_views"),
    [
        ("pwrite", {}, 4, False),
        pytest.param(
            "mmap",
            {"index_location": "start"},
            4,
            True,
            marks=pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning"),
        ),
        ("direct", {"codec": None}, 1, False),
        ("pwrite", {"codec": sw.Zstd(), "chunk_checksum": True}, 3, True),
        ("mmap", {"codec": sw.Gzip(level=1)}, 2, False),
    ],
)
def test_every_step_of_a_writer_shows_each_stored_frame(tmp_path, io, fields, chunk, new_views):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk, **fields), **how(io=io, **QUICK)) as writer:
        judge = Judge(path)
        with looking_at_every_step(judge, new_views=new_views):
            for i in range(2 * 2 * chunk + 1):
                judge.stored = writer.watermark.stored
                writer.append(frame(i))
                if i % 5 == 2:
                    writer.flush()
                    judge.stored = i + 1
                    assert judge.look() == i + 1
            writer.close()
        assert judge.looks > 20
    judge.stored = 2 * 2 * chunk + 1
    assert judge.look() == judge.stored
    np.testing.assert_array_equal(pixels(path), zarr.open_array(path / "0", mode="r")[...])


# of ``looking_at_every_step``: a file for each chunk makes many steps of each kind
@pytest.mark.parametrize("later", [24, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("io", "fields", "chunk"),
    [("pwrite", {}, 4), ("mmap", {"codec": sw.Gzip(level=1)}, 2), ("direct", {"codec": None}, 1)],
)
def test_every_step_without_shards_shows_each_stored_frame(tmp_path, io, fields, chunk, later):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, without_shards(spec(chunk, **fields)), **how(io=io, **QUICK)) as writer:
        judge = Judge(path)
        with looking_at_every_step(judge, new_views=io == "mmap", later=later):
            for i in range(2 * chunk + 1):
                judge.stored = writer.watermark.stored
                writer.append(frame(i))
                if i % 5 == 2:
                    writer.flush()
                    judge.stored = i + 1
                    assert judge.look() == i + 1
            writer.close()
        assert judge.looks > 10
    judge.stored = 2 * chunk + 1
    assert judge.look() == judge.stored
    files = zarr.open_array(path / "0", mode="r")
    assert files.shards is None
    np.testing.assert_array_equal(pixels(path), files[...])


def test_chunks_without_shards_that_were_spilled_are_found(tmp_path, monkeypatch):
    path, second = tmp_path / "a.ome.zarr", tmp_path / "second"
    settings = {"spill_root": second, "on_full": "spill", **QUICK}
    array = without_shards(spec(chunk=1))
    with sw.create(path, array, **how(**settings)) as writer:
        judge = Judge(path)
        row = parse_acquisition(array).grids.row_shards
        writer.append(frame(0))
        writer.flush()
        monkeypatch.setattr(slot_file, "preallocate", full_below(path))
        for i in range(1, 3 * row + 1):
            writer.append(frame(i))
            if i % 40 == 0:
                writer.flush()
                judge.stored = i + 1
                assert judge.look() == i + 1
    monkeypatch.undo()
    assert any(file.is_symlink() for file in path.rglob("c/*/0/0")), "it was really spilled"
    judge.look(again=True)
    report = verify_store(path)
    assert report.problems == []
    assert report.shards == report.shards_recorded == (3 * row + 1) * 4


def test_a_view_finds_the_newest_of_several_writers_that_came_between_two_looks(tmp_path):
    """Also if one died before it had deleted its predecessor's manifest."""
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(**QUICK))
    view = LiveView(path)
    for i in range(4):
        writer.append(frame(i))
        writer.flush()
        newest = manifest_path(path / ".shardwright", i + 1)
        if i in (0, 2):
            assert view.look()[0].store.manifest.writer_epoch == i + 1
            os.link(newest, tmp_path / f"kept {i}")
        leave(writer)
        writer = sw.resume(path, **how(**QUICK))
        if i == 2:
            (tmp_path / "kept 2").rename(newest)
            assert view.look()[0].store.manifest.writer_epoch == 4
            newest.unlink()
    assert view.look()[0].store.manifest.writer_epoch == 5
    assert view.document("0")["shape"][0] == 4
    writer.close()
    assert view.look()[0] is None


def test_frames_that_are_staged_are_shown_before_their_slab_is_full(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=8), **how(**QUICK)) as writer:
        for i in range(3):
            writer.append(frame(i))
        writer.flush()
        assert not list((path / "0" / "c").rglob("*"))
        np.testing.assert_array_equal(pixels(path), expected(3))


def test_frames_that_are_not_stored_are_not_shown(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=8), **how(store_within_ms=600_000)) as writer:
        writer.append(frame(0))
        assert len(pixels(path)) == writer.watermark.stored == 0


def test_a_place_that_no_frame_took_is_fill_until_one_comes(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=4), **how(**QUICK)) as writer:
        writer.append(frame(5), index=(5,))
        writer.flush()
        found = pixels(path)
        assert found.shape[0] == 6
        assert not found[:5].any()
        np.testing.assert_array_equal(found[5], frame(5))


def test_levels_follow_when_their_slab_is_stored(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=4, levels=1), **how(**QUICK)) as writer:
        for i in range(6):
            writer.append(frame(i))
        writer.flush()
        level = zarr.open_array(sw.open(path), path="1", mode="r")
        assert level.shape == (6, SHAPE[0] // 2, SHAPE[1] // 2)
        before = level[...]
        assert before[:4].all()
    np.testing.assert_array_equal(zarr.open_array(path / "1", mode="r")[:4], before[:4])


def test_images_of_a_collection_are_there_once_they_have_a_frame(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, images={"left": spec(), "right": spec(chunk=2)}, **how(**QUICK)) as writer:
        assert list(zarr.open_group(sw.open(path), mode="r").group_keys()) == ["OME"]
        for i in range(5):
            writer.append(frame(i), image="right")
        writer.flush()
        group = zarr.open_group(sw.open(path), mode="r")
        assert group["OME"].attrs["ome"]["series"] == ["1"]
        assert group["1"].attrs["ome"]["multiscales"][0]["name"] == "right"
        np.testing.assert_array_equal(group["1/0"][...], expected(5))
        assert "0" not in group
    ours, files = (zarr.open_group(store, mode="r") for store in (sw.open(path), path))
    assert dict(ours["1"].attrs) == dict(files["1"].attrs)


def newest(path: Path) -> tuple[int, int] | None:
    """The image and the sequence of the newest record, to a view that has not looked before."""
    record = LiveView(path).steady(lambda acquiring: acquiring and acquiring.newest_record())
    return None if record is None else (image_of(int(record["position"])), int(record["sequence"]))


def test_the_newest_record_is_of_the_frame_that_came_last_staged_or_sealed(tmp_path):
    path = tmp_path / "a.ome.zarr"
    # a slab has 4 frames, a shard row 8: staged, in a slab, sealed, and staged again
    with sw.create(
        path, images={"left": spec(), "right": spec()}, **how(**QUICK, on_duplicate="count")
    ) as writer:
        assert newest(path) is None
        for i in range(18):
            writer.append(frame(i), image="left")
            writer.flush()
            assert newest(path) == (0, i)
        writer.append(frame(0), image="right")
        writer.flush()
        assert newest(path) == (1, 18)
        writer.append(frame(3), image="left", index=[3])
        writer.flush()
        assert newest(path) == (1, 18), "a duplicate is stored nowhere"
    assert newest(path) is None, "finished"


def test_wells_of_a_plate_are_there_once_they_have_a_frame(tmp_path):
    path = tmp_path / "a.ome.zarr"
    plate = sw.Plate(rows=2, columns=2)
    with sw.create(
        path, {"array": spec().model_dump(), "plate": plate.model_dump()}, **how(**QUICK)
    ) as writer:
        writer.append(frame(0), image="B/2/0")
        writer.flush()
        group = zarr.open_group(sw.open(path), mode="r")
        assert [well["path"] for well in group.attrs["ome"]["plate"]["wells"]] == ["B/2"]
        assert [i["path"] for i in group["B/2"].attrs["ome"]["well"]["images"]] == ["0"]
        np.testing.assert_array_equal(group["B/2/0/0"][...], expected(1))


def test_axes_that_are_stored_in_another_order_are_found(tmp_path):
    path = tmp_path / "a.ome.zarr"
    array = sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=2),
            sw.Dimension(name="z", count=3, chunk_size=2, shard_size_chunks=1),
            sw.Dimension(name="c", count=2, chunk_size=1, shard_size_chunks=1),
            sw.Dimension(name="y", count=SHAPE[0], chunk_size=16, shard_size_chunks=1),
            sw.Dimension(name="x", count=SHAPE[1], chunk_size=16, shard_size_chunks=2),
        ],
        storage_order=["t", "c", "z", "y", "x"],
    )
    with sw.create(path, array, **how(**QUICK)) as writer:
        for i in range(4 * 6 + 4):
            writer.append(frame(i))
            if i in (3, 13, 27):
                writer.flush()
                found = pixels(path)
                for k in range(i + 1):
                    np.testing.assert_array_equal(found[k // 6, k % 2, k % 6 // 2], frame(k))


def test_several_axes_without_a_count_end_with_their_newest_stored_frame(tmp_path):
    path, depths = tmp_path / "a.ome.zarr", (5, 2, 7, 1)
    array = sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=1),
            sw.Dimension(name="z", count=None, chunk_size=3, shard_size_chunks=1),
            sw.Dimension(name="c", count=2, chunk_size=1, shard_size_chunks=2),
            sw.Dimension(name="y", count=SHAPE[0], chunk_size=16, shard_size_chunks=1),
            sw.Dimension(name="x", count=SHAPE[1], chunk_size=16, shard_size_chunks=2),
        ],
        storage_order=["t", "c", "z", "y", "x"],
        levels=1,
    )
    sent: list[tuple[int, int, int]] = []
    view = None
    with sw.create(path, array, **how(**QUICK)) as writer:
        view = LiveView(path)
        for t, depth in enumerate(depths):
            for z, c in np.ndindex(depth, 2):
                writer.append(frame(len(sent)), index=(t, z, c))
                sent.append((t, z, c))
            writer.flush()
            last_t, last_z, _ = np.max(sent, axis=0) + 1
            found = pixels(path)
            assert found.shape[:3] == (last_t, 2, last_z)
            assert view.document("0")["shape"] == list(found.shape)
            assert view.document("1")["shape"][:3] == [last_t, 2, last_z]
            for number, (at, az, ac) in enumerate(sent):
                np.testing.assert_array_equal(found[at, ac, az], frame(number))
            assert np.count_nonzero(found.any(axis=(-2, -1))) == len(sent)
        writer.close()
    np.testing.assert_array_equal(pixels(path), found)
    followed = {each.index: each.pixels for each in sw.follow(path)}
    assert sorted(followed) == sorted(sent)
    for number, index in enumerate(sent):
        np.testing.assert_array_equal(followed[index], frame(number))


def test_shards_in_a_second_root_are_found(tmp_path, monkeypatch):
    path, second = tmp_path / "a.ome.zarr", tmp_path / "second"
    with sw.create(path, spec(), on_full="spill", **how(spill_root=second, **QUICK)) as writer:
        judge = Judge(path)
        for i in range(2 * 8):
            writer.append(frame(i))
        writer.flush()
        monkeypatch.setattr(slot_file, "preallocate", full_below(path))
        with looking_at_every_step(judge, new_views=False):
            for i in range(16, 60):
                writer.append(frame(i))
            writer.flush()
            judge.stored = 60
            assert judge.look() == 60
    assert any(file.is_symlink() for file in path.rglob("c/*/0/0")), "it was really spilled"
    judge.look(again=True)


def test_a_second_root_that_is_not_mounted_is_an_error_and_no_fill_value(tmp_path, monkeypatch):
    path, second = tmp_path / "a.ome.zarr", tmp_path / "second"
    monkeypatch.setattr(slot_file, "preallocate", full_below(path))
    with sw.create(path, spec(), on_full="spill", **how(spill_root=second, **QUICK)) as writer:
        for i in range(8):
            writer.append(frame(i))
        writer.flush()
        before = sw.open_array(path)
        np.testing.assert_array_equal(before[5], frame(5))
        second.rename(tmp_path / "gone")
        for look in (lambda: before[5], lambda: next(sw.follow(path))):
            with pytest.raises(StorageError, match=r"another store's\. Mount the second root"):
                look()
        (tmp_path / "gone").rename(second)
        np.testing.assert_array_equal(before[5], frame(5))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EACCES])
@pytest.mark.parametrize("file", [".journal", ".shardwright", "zarr.json"])
def test_whatever_fails_at_a_look_is_a_typed_error(tmp_path, monkeypatch, file, number):
    with sw.create(tmp_path / "a.ome.zarr", spec(chunk=1), **how(**QUICK)) as writer:
        writer.append(frame(0))
        writer.flush()
        before, opened, told = sw.open_array(writer.path), beneath.open_file, []

        def fails(path, *args, **more):
            if str(path).endswith(file):
                raise OSError(number, os.strerror(number))
            return opened(path, *args, **more)

        with monkeypatch.context() as failing:
            failing.setattr(beneath, "open_file", fails)
            for look in (lambda: before[0], lambda: sw.open_array(writer.path)[0]):
                try:
                    look()
                except StorageError as error:
                    told.append(error)
        assert told
        np.testing.assert_array_equal(before[0], frame(0))


def many_images(tmp_path, count: int) -> sw.Writer:
    """Each with a frame that is stored, in a shard row of its own."""
    names = [f"p{i}" for i in range(count)]
    writer = sw.create(tmp_path / "a.ome.zarr", spec(chunk=1), images=names, **how(**QUICK))
    for i, name in enumerate(names):
        writer.append(frame(i), image=name)
    writer.flush()
    return writer


def test_of_very_many_shard_rows_few_journals_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwright.read.live_row.MOST_OPEN_JOURNALS", 4)
    with many_images(tmp_path, 20) as writer:
        view = LiveView(writer.path)
        for _ in range(3):
            view.look()
        open_files = []
        for link in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the writer's other threads open and close files
                open_files.append(link.readlink())
        mine = Counter(str(file) for file in open_files if file.name.endswith(".journal"))
        assert sum(count - 1 for count in mine.values()) == 4, "one of each is the writer's"
        for i in range(20):
            writer.append(frame(100 + i), image=f"p{i}")
        writer.flush()
        group = zarr.open_group(sw.open(writer.path), mode="r")
        for i in range(20):
            np.testing.assert_array_equal(group[f"{i}/0"][...], [frame(i), frame(100 + i)])
            assert view.document(f"{i}/0")["shape"][0] == 2


def test_opening_an_image_looks_at_its_own_shard_rows(tmp_path, monkeypatch):
    with many_images(tmp_path, 9) as writer:
        view = LiveView(writer.path)
        looked: list[int] = []
        look = LiveRow.look
        monkeypatch.setattr(LiveRow, "look", lambda row: looked.append(image_of(row.number)) or look(row))
        names: list[str] = []
        failpoints.hold_looks(names.append)
        view.document("3/0")
        view.document("3")
        assert set(looked) == {3}
        assert "look.document.name" not in names, "of no other image a file is looked for"
        view.document("OME")
        assert set(looked) == set(range(9))
        assert names.count("look.document.name") == 9
        failpoints.hold_looks(None)


@pytest.mark.parametrize("file", ["staging", ".journal"])
def test_what_cannot_be_opened_for_a_moment_is_an_error_and_nothing_is_missing_later(
    tmp_path, monkeypatch, file
):
    with sw.create(tmp_path / "a.ome.zarr", spec(chunk=4), **how(**QUICK)) as writer:
        for i in range(14):
            writer.append(frame(i))
        writer.flush()
        opened, left = beneath.open_file, [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

        def open_once(path, flags, *args, **more):
            if left and str(path).endswith(file):
                raise left.pop()
            return opened(path, flags, *args, **more)

        view = LiveView(writer.path)
        view._acquiring = None
        monkeypatch.setattr(beneath, "open_file", open_once)
        with pytest.raises(StorageError, match="Raise the limit of open files"):
            view.look()
        assert not left
        view.look()
        assert view.document("0")["shape"][0] == 14


# ---------------------------------------------------------------------- its life


def test_a_disk_error_takes_nothing_back(tmp_path):
    path, failed = tmp_path / "a.ome.zarr", []

    def fail_once() -> None:
        failpoints.set_hook("journal.before_sync", None)
        failed.append(True)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    judge = Judge(path)
    with sw.create(path, spec(chunk=2, shard=4), **how(**QUICK)) as writer:
        for i in range(7):
            writer.append(frame(i))
        writer.flush()
        judge.stored = 7
        judge.look()
        failpoints.set_hook("journal.before_sync", fail_once)
        with looking_at_every_step(judge, new_views=False):
            for i in range(7, 13):
                writer.append(frame(i))
            writer.flush()
        assert failed
        judge.stored = 13
        assert judge.look() == 13


@pytest.mark.parametrize("point", ["sealer.before_command", "shard.before_rename", "journal.before_delete"])
def test_a_dead_writer_leaves_what_recovery_finds(tmp_path, point):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(**QUICK))
    for i in range(11):
        writer.append(frame(i))
    writer.flush()
    judge = Judge(path)
    judge.stored = 11
    leave(writer, point)
    assert judge.look() == 11
    with sw.resume(path, **how(**QUICK)) as writer, looking_at_every_step(judge, new_views=False):
        for i in range(11, 22):
            writer.append(frame(i))
        writer.flush()
        judge.stored = 22
        assert judge.look() == 22
    assert judge.look() == 22


def test_a_shard_row_that_is_opened_again_shows_all_its_frames_all_the_time(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(chunk=4, shard=4), **how(**QUICK))
    for i in range(6):
        writer.append(frame(i))
    writer.flush()
    leave(writer, "workspace.before_manifest")
    judge = Judge(path)
    judge.stored = 6
    assert judge.look() == 6
    with sw.resume(path, **how(**QUICK)) as writer, looking_at_every_step(judge, new_views=False):
        for i in range(6, 19):
            writer.append(frame(i))
            judge.stored = max(judge.stored, writer.watermark.stored)
        writer.close()
    assert judge.look(again=True) == 19


def test_what_a_sealed_shard_has_is_not_looked_for_in_staging_slots_that_are_used_again(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(chunk=4, shard=4), **how(**QUICK))
    for i in range(6):
        writer.append(frame(i))
    writer.flush()
    leave(writer, "workspace.before_manifest")
    with sw.resume(path, **how(**QUICK)) as writer:
        writer.append(frame(6))
        writer.flush()
        (staging,) = path.glob("**/staging")
        data = staging.read_bytes()
        with staging.open("r+b") as file:
            for i in (4, 5):
                file.seek(data.index(frame(i).tobytes()))
                file.write(b"\xff\xff")
        np.testing.assert_array_equal(pixels(path), expected(7))


def test_a_stored_frame_of_fill_stays_readable_when_its_staging_slot_is_used_again(tmp_path):
    """Its shard is all fill, so that there is no file: the frame log says that the frame is stored."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=4, shard=1), **how(**QUICK)) as writer:
        for i in range(9):
            writer.append(np.zeros(SHAPE, np.uint16) if i < 4 else frame(i))
            writer.flush()
        while not (path / "0/c/1/0/0").exists():
            pass
        acquiring, _ = LiveView(path).look()
        area = acquiring.staging._area
        old = [each.slot for frames in acquiring.staging.look().values() for each in frames if each.slab == 0]
        assert old, "records stay until their slots are used again"
        (staging,) = path.glob("**/staging")
        with staging.open("r+b") as file:
            for slot in old:  # as a kill between its pixels and its record leaves a slot
                file.seek(area.data_offset(slot))
                file.write(b"\xff\xff")
        found = pixels(path)
    assert not found[:4].any()
    np.testing.assert_array_equal(found[4:], expected(9)[4:])


@pytest.mark.parametrize("taken_over", [True, False])
def test_a_frame_log_that_goes_with_its_writer_is_a_change_and_any_other_loss_an_error(tmp_path, taken_over):
    """A take-over deletes it, once it has a copy and its manifest says so."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=8), **how(**QUICK)) as writer:
        for i in range(3):
            writer.append(frame(i))
        writer.flush()
        view = LiveView(path)
        acquiring, _ = view.look()
        acquiring.read_again()  # as behind a recovery: it is opened anew
        (log,), (manifest,) = path.glob("**/frames.log"), path.glob("**/acquisition.*.json")

        def hold(name: str) -> None:
            if name == "look.log" and log.exists():
                log.rename(tmp_path / "copied")
                if taken_over:
                    shutil.copy(manifest, tmp_path / "manifest")
                    (tmp_path / "manifest").rename(manifest)

        failpoints.hold_looks(hold)
        try:
            with pytest.raises(ChangedError if taken_over else StorageError):
                view.locate_now("0", view.array("0"), [((0, 0, 0), np.arange(1))])
        finally:
            failpoints.hold_looks(None)
            (tmp_path / "copied").rename(log)
        np.testing.assert_array_equal(view.read_frames("0", [(2,)])[0], frame(2))


def test_a_manifest_that_is_renewed_while_it_is_searched_is_a_change(tmp_path):
    """As recovery renews it: also where a look within the search has found the new one."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        writer.append(frame(0))
        writer.flush()
        view = LiveView(path)
        (manifest,) = path.glob("**/acquisition.*.json")

        def search(_: Any) -> None:
            shutil.copy(manifest, tmp_path / "manifest")
            (tmp_path / "manifest").rename(manifest)
            view._find_state()

        with pytest.raises(ChangedError):
            view._in_one_state(search)


def test_rows_that_could_not_be_read_when_they_were_found_reach_as_far_later(tmp_path, monkeypatch):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=1, shard=2), **how(**QUICK)) as writer:
        append_until_logged(writer, 8, rows=4)
        with monkeypatch.context() as patched:
            patched.setattr(FrameLog, "shard_row_records", Mock(side_effect=StorageError("no")))
            acquiring, _ = LiveView(path).look()
            assert acquiring.extents_of(0) == (0,)
        acquiring.look()
        assert acquiring.extents_of(0) == (8,)


def test_a_row_that_cannot_be_read_keeps_no_other_from_the_shape(tmp_path, monkeypatch):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=1, shard=2), **how(**QUICK)) as writer:
        append_until_logged(writer, 8, rows=4)
        read = FrameLog.shard_row_records

        def all_but_the_newest(log: FrameLog, row: int) -> np.ndarray:
            if row == max(log.shard_rows):
                raise StorageError("no")
            return read(log, row)

        monkeypatch.setattr(FrameLog, "shard_row_records", all_but_the_newest)
        acquiring, _ = LiveView(path).look()
        assert acquiring.extents_of(0) == (6,)


def test_a_look_at_staged_frames_that_is_interrupted_is_made_again(tmp_path, monkeypatch):
    """By Ctrl-C, or in a child that is forked meanwhile."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        writer.append(frame(0))
        writer.flush()
        view = LiveView(path)
        with monkeypatch.context() as patched:
            patched.setattr(live_staging, "StagedFrame", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                view.read_frames("0", [(0,)])
        np.testing.assert_array_equal(view.read_frames("0", [(0,)])[0], frame(0))


def test_a_folder_that_cannot_be_read_is_a_storage_error(tmp_path, monkeypatch):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        writer.append(frame(0))
        writer.flush()
        acquiring, _ = LiveView(path).look()
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
            with pytest.raises(StorageError, match="Input/output error"):
                acquiring.look()


def test_a_view_goes_on_when_another_writer_takes_over(tmp_path):
    path = tmp_path / "a.ome.zarr"
    old = sw.create(path, spec(), **how(**QUICK))
    for i in range(10):
        old.append(frame(i))
    old.flush()
    judge = Judge(path)
    judge.stored = 10
    judge.look()
    with (
        looking_at_every_step(judge, new_views=False),
        sw.resume(path, take_over=True, **how(**QUICK)) as writer,
    ):
        for i in range(10, 20):
            writer.append(frame(i))
        writer.flush()
        judge.stored = 20
        assert judge.look() == 20
    with pytest.raises(sw.errors.ShardwrightError):
        old.close()
    assert judge.look() == 20


def test_a_read_that_has_begun_ends_in_the_shard_that_was_there(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(codec=None), **how(io="mmap", **QUICK)) as writer:
        for i in range(8):
            writer.append(frame(i))
    view, low, high = LiveView(path), (0, 0, 0), (8, 12, 32)
    array = view.array("0")
    boxes = BoxCuts.of(array.stored, [BoxPart((0, 0, 0), low, high, low)])
    located = view.locate("0", (0, 0, 0), boxes.numbers)
    before = (path / "0/c/0/0/0").stat().st_ino
    run(plan(open_store(path), Options(recompress={"cname": "codec"})), Here())
    assert (path / "0/c/0/0/0").stat().st_ino != before
    out = empty_box(high, array.stored.dtype)
    read_boxes(array.stored, boxes, located, out)
    np.testing.assert_array_equal(out, expected(8)[:, :12])
    np.testing.assert_array_equal(view.read_box("0", (0, 0, 0), low, high), expected(8)[:, :12])


def test_a_finished_store_is_read_as_its_files_lie(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        for i in range(9):
            writer.append(frame(i))
        view = LiveView(path)
        assert not view.is_finished
    assert view.is_finished
    assert view.document("0")["shape"] == [9, *SHAPE]


@pytest.mark.parametrize("what", ["deleted", "moved", "replaced", "overwritten"])
def test_what_has_the_name_now_is_never_mixed_in(tmp_path, what):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        for i in range(9):
            writer.append(frame(i))
    array = zarr.open_array(sw.open(path), path="0", mode="r")
    np.testing.assert_array_equal(array[...], expected(9))
    if what in ("deleted", "replaced"):
        shutil.rmtree(path)
    elif what == "moved":
        path.rename(tmp_path / "elsewhere.ome.zarr")
    if what in ("replaced", "overwritten"):
        with sw.create(path, spec(), overwrite=what == "overwritten", **how(**QUICK)) as writer:
            for i in range(9):
                writer.append(frame(100 + i))
    with pytest.raises(StoreGoneError, match="Open it again"):
        array[...]
    with pytest.raises(StoreGoneError):
        zarr.open_array(array.store, path="0", mode="r")


def test_no_store_and_a_part_of_one_are_refused(tmp_path):
    with pytest.raises(StorageError):
        sw.open(tmp_path / "nothing.ome.zarr")
    with pytest.raises(StorageError, match="is no store"):
        sw.open(tmp_path)
    path = tmp_path / "a.ome.zarr"
    with (
        sw.create(path, spec(), **how(**QUICK)),
        pytest.raises(StorageError, match="a part of an unfinished store"),
    ):
        sw.open(path / "0")
    with pytest.raises(StorageError):  # no frame came: the store is gone
        sw.open(path)


# ---------------------------------------------------------------------- damage


def test_views_share_one_memory_for_staged_pixels(tmp_path, monkeypatch):
    frame_bytes = frame(0).nbytes
    monkeypatch.setattr(live_staging, "MOST_KEPT_BYTES", 4 * frame_bytes)
    kept = KeptPixels()
    with (
        sw.create(tmp_path / "a.ome.zarr", spec(), **how(**QUICK)) as one,
        sw.create(tmp_path / "b.ome.zarr", spec(), **how(**QUICK)) as other,
    ):
        views = []
        for first, writer in enumerate((one, other)):
            for i in range(3):
                writer.append(frame(10 * first + i))
            writer.flush()
            views.append(LiveView(writer.path, kept_pixels=kept))
        for _ in range(2):
            for first, view in enumerate(views):
                found = view.read_frames("0", [(i,) for i in range(3)])
                np.testing.assert_array_equal(found, [frame(10 * first + i) for i in range(3)])
                held = [values.nbytes for values in kept._kept.values()]
                assert frame_bytes <= sum(held) == kept._nbytes <= 4 * frame_bytes


def test_a_chunk_that_does_not_fit_the_journal_is_an_error_and_no_pixels(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(codec=None), **how(**QUICK)) as writer:
        for i in range(4):
            writer.append(frame(i))
        writer.flush()
        (working,) = (path / ".shardwright").glob("c.0.0.0.partial")
        with working.open("r+b") as file:
            file.seek(10)
            file.write(b"\xff\xff")
        with pytest.raises(ShardFormatError, match="does not fit its checksum in the journal"):
            pixels(path)


def test_staged_pixels_that_do_not_fit_their_record_are_an_error(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=8), **how(**QUICK)) as writer:
        writer.append(frame(0))
        writer.flush()
        staging = path / ".shardwright" / "staging"
        at = staging.read_bytes().index(frame(0).tobytes())
        with staging.open("r+b") as file:
            file.seek(at)
            file.write(b"\xff\xff")
        with pytest.raises(StorageError, match="changes faster than it is read"):
            pixels(path)


# ---------------------------------------------------------------------- processes


_WRITER = """
import sys
import time
import shardwright as sw
from tests.read.live_judge import frame
from tests.read.test_live_view import QUICK, spec
with sw.create(sys.argv[1], spec(4), **QUICK) as writer:
    print("begun", flush=True)
    for i in range(100_000):
        writer.append(frame(i))
        if i % 7 == 6:
            writer.flush()
            print(i + 1, flush=True)
            time.sleep(0.03)
"""


class _Writer:
    """A writer in a process of its own, which says how many frames are stored."""

    def __init__(self, path: Path) -> None:
        self.process = start_python("-c", _WRITER, path, stdout=PIPE)
        assert self.process.stdout.readline().startswith("begun")
        self.said = 0
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            self.said = int(line)

    def kill(self) -> int:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._thread.join()
        self.process.stdout.close()
        return self.said


def test_a_reader_opens_nothing_for_writing(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = _Writer(path)
    while writer.said < 30:
        time.sleep(0.01)
    writer.kill()
    tree = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    code = f"""
import os, zarr, shardwright as sw
real = os.open
def watched(path, flags, *args, **kwargs):
    ours = str(path).startswith({str(path)!r}) or kwargs.get("dir_fd") is not None
    assert not (ours and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)), path
    return real(path, flags, *args, **kwargs)
os.open = watched
assert zarr.open_array(sw.open({str(path)!r}), path="0", mode="r")[...].all()
"""
    run_python("-c", code, check=True)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == tree


def test_frames_of_an_array_that_is_not_there_are_the_error_of_boxes(tmp_path):
    """An image that a follower saw has none once its store ends without a frame of it."""
    with sw.create(tmp_path / "a.ome.zarr", shape=(1, 8, 8), dtype="uint8", axes="tyx") as writer:
        writer.append(np.zeros((8, 8), np.uint8))
    view = sw.open(tmp_path / "a.ome.zarr").view
    assert view.read_frames("0", [(0,)])[0].shape == (8, 8)
    for read in (
        lambda: view.read_frames("1/0", [(0,)]),
        lambda: view.read_box("1/0", (0,) * 3, (0,) * 3, (1,) * 3),
    ):
        with pytest.raises(ShardFormatError, match=r"^1/0 is no array that is read here"):
            read()
