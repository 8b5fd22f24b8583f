"""The mistakes that people make first, and the exact text that each of them gets: what was expected, what
came, and the call that works. Those that became valid are in ``test_as_written``."""

from __future__ import annotations

import ast
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.full_disk import full_below

import shardwright as sw
from shardwright.acquire.limits import Limits
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.disk import files, slot_file
from shardwright.disk.lock import StoreLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FRAME = np.zeros((8, 6), np.uint16)
LINE: dict[str, Any] = {"shape": (None, 8, 6), "dtype": "uint16"}
Case = "tuple[Callable[[Path], object], type[Exception], str]"


def written(folder: Path) -> Path:
    """The path of a finished store of two frames."""
    sw.save(folder / "old.ome.zarr", np.stack([FRAME, FRAME]))
    return folder / "old.ome.zarr"


def appended(frame: Any) -> Callable[[Path], object]:
    def append(folder: Path) -> None:
        with sw.create(folder / "a.ome.zarr", **LINE) as writer:
            writer.append(frame)

    return append


def held(folder: Path) -> None:
    with sw.create(folder / "a.ome.zarr", **LINE) as writer:
        writer.append(FRAME)
        sw.resume(folder / "a.ome.zarr")


def of_a_generator(folder: Path) -> None:
    with sw.create(folder / "a.ome.zarr", **LINE) as writer:
        writer.append_many(FRAME for _ in range(3))


def indexed(index: Any) -> Callable[[Path], object]:
    def append(folder: Path) -> None:
        with sw.create(folder / "a.ome.zarr", shape=(None, 3, 8, 6), dtype="uint16") as writer:
            writer.append(FRAME, index=index)

    return append


def of_colours(folder: Path) -> None:
    with sw.create(folder / "a.ome.zarr", shape=(None, 3, 8, 6), dtype="uint16") as writer:
        writer.append(np.stack([FRAME] * 3, axis=-1))


def of_a_colour_camera(folder: Path) -> None:
    with sw.create(folder / "a.ome.zarr", shape=(None, 8, 6, 3), dtype="uint16", axes="tyxc") as writer:
        writer.append(FRAME)


def of_one_colour(folder: Path) -> None:
    with sw.create(folder / "a.ome.zarr", shape=(None, 8, 6, 3), dtype="uint16", axes="tyxc") as writer:
        writer.append(np.stack([FRAME] * 3, axis=-1), index=(0, 1))


def of_one_frame(folder: Path) -> None:
    with sw.create(folder / "a.ome.zarr", shape=(8, 6), dtype="uint16") as writer:
        writer.append(FRAME, index={"t": 0})


def of_ragged_indices(folder: Path) -> None:
    with sw.create(folder / "a.ome.zarr", **LINE) as writer:
        writer.append_many([FRAME, FRAME], indices=[7, (8,)])


def of_frames_that_differ(folder: Path) -> None:
    with sw.create(folder / "a.ome.zarr", **LINE) as writer:
        writer.append_many([FRAME, FRAME[:4]])


NO_FRAMES = "these are no frames to save; expected an array, or an iterable of frames (rows, columns); got "
NOT_TOLD = (
    "create() is not told what to store; expected shape and dtype, or a spec; got {}. "
    '`sw.create("run.ome.zarr", shape=(None, 512, 512), dtype="uint16")` takes as many as come'
)
CASES: dict[str, Case] = {
    "a path alone": (
        lambda folder: sw.create(folder / "a.ome.zarr"),
        sw.errors.SpecError,
        NOT_TOLD.format("a path alone"),
    ),
    "attributes alone": (
        lambda folder: sw.create(folder / "a.ome.zarr", attributes={"a": 1}),
        sw.errors.SpecError,
        NOT_TOLD.format("attributes").replace('"uint16"', '"uint16", attributes=...'),
    ),
    "images and their order alone": (
        lambda folder: sw.create(folder / "a.ome.zarr", images=["a", "b"], order=("t", "p")),
        sw.errors.SpecError,
        NOT_TOLD.format("images, order").replace('"uint16"', '"uint16", images=..., order=...'),
    ),
    "no dtype": (
        lambda folder: sw.create(folder / "a.ome.zarr", shape=(None, 8, 6), codec="zstd"),
        sw.errors.SpecError,
        NOT_TOLD.format("shape, codec"),
    ),
    "a path that is taken": (
        lambda folder: sw.create(written(folder), **LINE),
        sw.errors.OutputExistsError,
        (
            "the output exists already; got FOLDER/old.ome.zarr. Choose another name or move it "
            "away; sw.resume goes on with a finished store; if that may go, overwrite=True (name_taken: "
            "overwrite) replaces it; name_taken: increment gives the new one a number"
        ),
    ),
    "the path of a file": (
        lambda folder: sw.create(folder / "a.ome.TIF", **LINE),
        sw.errors.InvalidNameError,
        (
            "a store is a folder in the OME-Zarr format, no .tif file; expected a path such as "
            "a.ome.zarr; got "
            "'FOLDER/a.ome.TIF'"
        ),
    ),
    "axes of another number": (
        lambda folder: sw.create(folder / "a.ome.zarr", **LINE, axes="time"),
        sw.errors.SpecError,
        (
            "shape and axes must have the same length, with the frame's rows and columns last; "
            "expected for example "
            "shape=(None, 3, 2048, 2048), axes=\"tcyx\"; got shape=(None, 8, 6), axes='time'"
        ),
    ),
    "a number of images": (
        lambda folder: sw.create(folder / "a.ome.zarr", **LINE, images=3),
        sw.errors.SpecError,
        (
            "the acquisition's specification is wrong; got images: expected their names, such as "
            "images=['pos0', 'pos1', 'pos2'], got 3"
        ),
    ),
    "a number of images, of NumPy": (
        lambda folder: sw.create(folder / "a.ome.zarr", **LINE, images=np.int64(3)),
        sw.errors.SpecError,
        (
            "the acquisition's specification is wrong; got images: expected their names, such as "
            "images=['pos0', 'pos1', 'pos2'], got 3"
        ),
    ),
    "a length along time": (
        lambda folder: sw.create(folder / "a.ome.zarr", **LINE, units={"t": "um"}),
        sw.errors.SpecError,
        "units: 't' is an axis of time; expected such as second or ms; got micrometer",
    ),
    "a time along space, in a specification": (
        lambda folder: sw.create(
            folder / "a.ome.zarr",
            sw.ArraySpec(
                dtype="uint8",
                dimensions=[{"name": n, "count": 8, "chunk_size": 8, "unit": "msec"} for n in "yx"],
            ),
        ),
        sw.errors.SpecError,
        "units: 'y' is an axis of space; expected such as micrometer or nm; got millisecond",
    ),
    "progress that cannot be called": (
        lambda folder: sw.create(folder / "a.ome.zarr", **LINE, on_progress=5),
        sw.errors.SpecError,
        (
            "on_progress is called with two numbers; expected a function, such as lambda done, total: "
            "print(done, total); got 5"
        ),
    ),
    "a word that is no colour": (
        lambda folder: sw.create(
            folder / "a.ome.zarr", **LINE, channels=[{"name": "GFP", "color": "greenish"}]
        ),
        sw.errors.SpecError,
        (
            "the array specification is wrong; got channels.0.color: expected six hexadecimal "
            "digits, such as "
            "'00FF00', or one of red, green, blue, cyan, magenta, yellow, white, gray, grey; got 'greenish'"
        ),
    ),
    "no codec": (
        lambda folder: sw.create(folder / "a.ome.zarr", **LINE, codec=None),
        sw.errors.SpecError,
        (
            'codec=None could mean two things; expected codec="none" for chunks as they are, or '
            'codec="blosc", the default; got None'
        ),
    ),
    "append of a stack": (
        appended(np.stack([FRAME] * 3)),
        sw.errors.FrameShapeError,
        "wrong frame shape; expected (8, 6); got (3, 8, 6). `append_many` takes several frames at once",
    ),
    "colours without an axis of channels": (
        appended(np.stack([FRAME] * 3, axis=-1)),
        sw.errors.FrameShapeError,
        (
            "wrong frame shape; expected (8, 6); got (8, 6, 3). Frames of colours are taken as they come "
            'with shape=(None, 8, 6, 3) and axes="tyxc"'
        ),
    ),
    "colours with an axis of channels": (
        of_colours,
        sw.errors.FrameShapeError,
        (
            "wrong frame shape; expected (8, 6); got (8, 6, 3). Frames of colours are taken as they come "
            'with shape=(None, 8, 6, 3) and axes="tyxc", or append frame[:, :, c] of each channel'
        ),
    ),
    "frames without colours, of a colour camera": (
        of_a_colour_camera,
        sw.errors.FrameShapeError,
        "wrong frame shape; expected (8, 6, 3); got (8, 6)",
    ),
    "an index of one colour": (
        of_one_colour,
        sw.errors.FrameIndexError,
        (
            "the index of a frame of colours is that of all its channels; expected a number for each of t; "
            "got (0, 1)"
        ),
    ),
    "append_many of a generator": (
        of_a_generator,
        sw.errors.FrameShapeError,
        (
            "wrong shape of several frames; expected an array (count, 8, 6); got a generator. `for "
            "frame in frames: "
            "writer.append(frame)` takes one by one"
        ),
    ),
    "an index without an axis": (
        indexed({"t": 3}),
        sw.errors.FrameIndexError,
        "the index of a frame lacks the axis 'c'; expected a number for each of t, c; got {'t': 3}",
    ),
    "an index with another axis": (
        indexed({"t": 3, "z": 1}),
        sw.errors.FrameIndexError,
        "the index of a frame has no axis 'z'; expected some of t, c",
    ),
    "an index that is one number": (
        indexed(3),
        sw.errors.FrameIndexError,
        (
            "the index of a frame is one number, and there are 2 axes; expected a number for each of t, c; "
            "got 3. Name them: index={'t': 3, 'c': 0}"
        ),
    ),
    "an index of a single image": (
        of_one_frame,
        sw.errors.FrameIndexError,
        "the index of a frame has no axis 't'; expected no index: the image is a single frame",
    ),
    "an index that is a truth": (
        indexed({"t": True, "c": 0}),
        sw.errors.FrameIndexError,
        (
            "an index or frame id that is no whole number; expected an index of 2 whole numbers, an id of "
            "one; got {'t': True, 'c': 0}"
        ),
    ),
    "indices of several lengths": (
        of_ragged_indices,
        sw.errors.FrameIndexError,
        "indices that do not fit the frames; expected integers of shape (2, 1); got [7, (8,)]",
    ),
    "append_many of frames that differ": (
        of_frames_that_differ,
        sw.errors.FrameShapeError,
        (
            "wrong shape of several frames; expected an array (count, 8, 6); got a list. `for frame in "
            "frames: writer.append(frame)` takes one by one"
        ),
    ),
    "a store that another writer holds": (
        held,
        sw.errors.LockedError,
        (
            "another process holds FOLDER/a.ome.zarr/.shardwright/lock: process PID on HOST since "
            "TIME. Stop its writer first. "
            "If that hangs, take over, by take_over=True of `resume` or by `shardwright recover "
            "--take-over`: frames "
            "that it has not stored by then are lost"
        ),
    ),
    "a region of slices without names": (
        lambda folder: sw.update(written(folder), (slice(0, 2),), 1),
        sw.errors.FrameIndexError,
        (
            "a range of frames; expected a number, or start and stop without a step; got (slice(0, "
            "2, None),). "
            "Several axes are given by name: {'t': slice(0, 2), 'y': 7}"
        ),
    ),
    "a region of another axis": (
        lambda folder: sw.erase(written(folder), {"z": 1}),
        sw.errors.FrameIndexError,
        "FOLDER/old.ome.zarr/0 has no axis 'z'; expected some of t, y, x",
    ),
    "nothing to save": (
        lambda folder: sw.save(folder / "a.ome.zarr", []),
        sw.errors.FrameShapeError,
        "these are no frames to save; expected an array, or an iterable of frames (rows, columns); got none",
    ),
    "numbers to save": (
        lambda folder: sw.save(folder / "a.ome.zarr", [[1, 2], [3, 4]]),
        sw.errors.FrameShapeError,
        (
            "these are no frames to save; expected an array, or an iterable of frames (rows, "
            "columns); got the first "
            "one with the shape (2,)"
        ),
    ),
    "a number to save": (
        lambda folder: sw.save(folder / "a.ome.zarr", 5),
        sw.errors.FrameShapeError,
        NO_FRAMES + "5",
    ),
    "None to save": (
        lambda folder: sw.save(folder / "a.ome.zarr", None),
        sw.errors.FrameShapeError,
        NO_FRAMES + "None",
    ),
    "a ragged frame to save": (
        lambda folder: sw.save(folder / "a.ome.zarr", [[[1, 2], [3]]]),
        sw.errors.FrameShapeError,
        NO_FRAMES + "one whose rows differ in length, a list",
    ),
    "colours to save": (
        lambda folder: sw.save(folder / "a.ome.zarr", np.zeros((5, 8, 6, 3), "uint8")),
        sw.errors.SpecError,
        (
            "the last axis of this array may be its colours; expected axes, since frames have their rows "
            'and columns last; got the shape (5, 8, 6, 3). If so, give axes="tyxc". If it has 3 columns, '
            'give the axes that it has, such as axes="tyx"'
        ),
    ),
    "frames of colours to save": (
        lambda folder: sw.save(folder / "a.ome.zarr", [np.zeros((8, 6, 3), "uint8")]),
        sw.errors.FrameShapeError,
        NO_FRAMES
        + (
            "the first one with the shape (8, 6, 3). Frames of colours are taken as they come "
            'with shape=(None, 8, 6, 3) and axes="tyxc"'
        ),
    ),
    "an array to save in another shape": (
        lambda folder: sw.save(folder / "a.ome.zarr", FRAME, shape=(1, 8, 6)),
        sw.errors.SpecError,
        (
            "save() got shape; expected what the frames are, without it. Change them first, such as by "
            "frames.astype(...) or frames.reshape(...); `create` takes it"
        ),
    ),
    "frames to save as another dtype": (
        lambda folder: sw.save(folder / "a.ome.zarr", [FRAME], dtype="uint8"),
        sw.errors.SpecError,
        (
            "save() got dtype; expected what the frames are, without it. Change them first, such as by "
            "frames.astype(...) or frames.reshape(...); `create` takes it"
        ),
    ),
    "an array to save in another order": (
        lambda folder: sw.save(folder / "a.ome.zarr", FRAME, order=("t",)),
        sw.errors.SpecError,
        (
            "save() of an array got order; expected the axes alone, which are its order. `create` "
            "and `append` write "
            "several images, or frames in another order"
        ),
    ),
}


def told(error: Exception, folder: Path) -> str:
    text = str(error).replace(str(folder), "FOLDER")
    text = re.sub(r"c\.\d+\.0\.0\.partial", "c.0.0.0.partial", text)  # the first of several that fails
    return re.sub(r"process \d+ on '[^']*' since [-0-9T:+]+", "process PID on HOST since TIME", text)


@pytest.mark.parametrize("case", CASES)
def test_each_mistake_is_told_with_the_call_that_works(case, tmp_path):
    call, kind, text = CASES[case]
    with pytest.raises(kind) as raised:
        call(tmp_path)
    assert type(raised.value) is kind
    assert told(raised.value, tmp_path) == text
    assert not (tmp_path / "a.ome.zarr").exists() or case == "a store that another writer holds"


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A folder on a disk of 50 MiB; the file that is named is the shard's."""
    monkeypatch.setattr(slot_file, "preallocate", full_below(tmp_path))
    facts = os.statvfs_result((4096, 4096, 12800, 12800, 12800, 0, 0, 0, 0, 255))
    monkeypatch.setattr(files.beneath, "filesystem_of", lambda _: facts)
    return tmp_path


NO_ROOM = (
    "cannot preallocate FOLDER/a.ome.zarr/.shardwright/c.0.0.0.partial: No space left on device; "
    "expected {} for the "
    "first shards; got 50.0 MiB free. {}"
)


@pytest.mark.parametrize(
    ("layout", "needs", "hint"),
    [
        ({}, "513.0 MiB", "Free some space, or choose shards={'t': 64}: 32.1 MiB for the first ones"),
        (
            {"shards": {"t": 16}},
            "64.2 MiB",
            "Free some space on this filesystem, or choose another output root",
        ),
    ],
)
def test_a_disk_that_is_too_small_is_told_with_what_would_fit(small_disk, layout, needs, hint):
    with pytest.raises(sw.errors.StorageFullError) as raised:
        sw.create(small_disk / "a.ome.zarr", shape=(None, 512, 512), dtype="uint16", **layout)
    assert told(raised.value, small_disk) == NO_ROOM.format(needs, hint)
    assert not (small_disk / "a.ome.zarr").exists()


def test_shards_that_are_advised_fit_with_all_that_are_open_at_once(small_disk):
    """Of each image one shard is filled at a time."""
    for number, layout in enumerate(
        ({"shape": (None, 4, 512, 512)}, {"shape": (None, 512, 512), "images": list("abc")})
    ):
        with pytest.raises(sw.errors.StorageFullError) as raised:
            sw.create(small_disk / f"{number}.ome.zarr", dtype="uint16", **layout)
        shards = ast.literal_eval(raised.value.hint.split("shards=")[1].split("}")[0] + "}")
        array = sw.default_layout(layout["shape"], "uint16", shards=shards, images=3 if number else 1)
        spec = parse_acquisition({"array": array, "images": layout.get("images", ())})
        assert spec.grids.open_shard_rows == (3 if number else 1)
        needed = spec.grids.open_shard_rows * Limits.derive(spec, threads=1).shard_row_bytes
        assert needed <= 12800 * 4096


def test_where_one_shard_fits_and_those_of_all_channels_do_not_it_is_told(small_disk):
    with pytest.raises(sw.errors.StorageFullError) as raised:
        sw.create(
            small_disk / "a.ome.zarr", shape=(None, 4, 512, 512), dtype="uint16", shards={"t": 64, "c": 1}
        )
    assert raised.value.expected == "129.0 MiB for the first shards"


def test_who_gave_a_specification_is_told_of_no_shards(small_disk):
    with pytest.raises(sw.errors.StorageFullError) as raised:
        sw.create(small_disk / "a.ome.zarr", sw.default_layout((None, 512, 512), "uint16"))
    assert raised.value.expected == "513.0 MiB for the first shards"
    assert "shards=" not in raised.value.hint


def test_a_job_that_holds_a_store_is_not_taken_over(tmp_path):
    lock = StoreLock.take(tmp_path / "lock")
    with pytest.raises(sw.errors.LockedError) as raised:
        StoreLock.take(tmp_path / "lock")
    assert raised.value.hint == "Wait until it has ended, or stop it first"
    lock.release()


def test_of_a_disk_with_room_nothing_is_guessed(tmp_path, monkeypatch):
    """Such as one with a quota."""
    monkeypatch.setattr(slot_file, "preallocate", full_below(tmp_path))
    with pytest.raises(sw.errors.StorageFullError) as raised:
        sw.create(tmp_path / "a.ome.zarr", shape=(None, 8, 8), dtype="uint16")
    assert (raised.value.expected, raised.value.got) == (None, None)
