"""Acquisitions of several images: positions, plates, cameras of other shapes, in any order of visit."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import yaozarrs
import zarr
from tests.harness.store_contents import snapshot
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.accounts import Accounts
from shardwright.acquire.commands import Grow
from shardwright.acquire.flushes import Flushes
from shardwright.acquire.limits import Limits
from shardwright.acquire.notifications import Notifications
from shardwright.disk import failpoints, system
from shardwright.model.frame_status import FrameStatus
from shardwright.read.verify_store import verify_store
from shardwright.store import store_metadata
from shardwright.wire.messages import IMAGE_SHIFT

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")


def array(axes: dict[str, tuple[int | None, int]], shape: tuple[int, int], dtype: str = "uint16", **more):
    """Frame axes by name as (count, chunk), shards of two chunks."""
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=2)
        for name, (count, chunk) in axes.items()
    ]
    dimensions += [
        sw.Dimension(name=n, count=c, chunk_size=max(1, c // 2)) for n, c in zip("yx", shape, strict=True)
    ]
    return sw.ArraySpec(dtype=dtype, dimensions=tuple(dimensions), **more)


def pixels(spec: sw.ArraySpec, number: int) -> np.ndarray:
    rng = np.random.default_rng(number)
    return rng.integers(1, 200, spec.frame_shape).astype(spec.dtype)


def read(store: Path, path: str) -> np.ndarray:
    """By zarr-python and by tensorstore, which must agree."""
    found = zarr.open_array(store / path, mode="r")[...]
    driver = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store / path)}}
    assert np.array_equal(found, tensorstore.open(driver, open=True).result().read().result())
    return found


POSITIONS = array({"t": (None, 1), "z": (4, 2)}, (12, 16))


def test_cameras_of_other_shapes_in_one_store(tmp_path):
    path, right = tmp_path / "a.ome.zarr", array({"t": (None, 3)}, (10, 30), "uint8")
    images, frames = {"left": POSITIONS, "right": right}, {}
    with sw.create(path, images=images) as writer:
        for t in range(5):
            for z in range(4):
                frames["0/0", t, z] = pixels(POSITIONS, 10 * t + z)
                writer.append(frames["0/0", t, z], image="left", index=(t, z))
            frames["1/0", t] = pixels(right, 100 + t)
            writer.append(frames["1/0", t], image="right")
    assert writer.receipt.frames_stored == 25
    assert writer.receipt.bytes_raw == 20 * POSITIONS.frame_bytes + 5 * right.frame_bytes
    assert writer.receipt.images == {
        "left": {"frames_received": 20, "frames_stored": 20, "frames_missing": 0},
        "right": {"frames_received": 5, "frames_stored": 5, "frames_missing": 0},
    }
    found = {name: read(path, name) for name in ("0/0", "1/0")}
    assert (found["0/0"].shape, found["1/0"].shape) == ((5, 4, 12, 16), (5, 10, 30))
    assert all(np.array_equal(found[name][tuple(index)], frame) for (name, *index), frame in frames.items())
    assert verify_store(path).ok
    table = sw.frame_table(path)
    assert list(table.columns[:5]) == ["image", "index_t", "index_z", "frame_id", "sequence"]
    assert table.image.tolist() == (["left"] * 4 + ["right"]) * 5
    assert table.index_z.tolist() == [0, 1, 2, 3, -1] * 5


def test_positions_are_series_that_other_programs_find(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, POSITIONS, images=["first", "second", "never"]) as writer:
        for image in ("second", "first"):
            writer.append_many([pixels(POSITIONS, i) for i in range(6)], image=image)
    yaozarrs.validate_zarr_store(str(path))
    assert json.loads((path / "OME/zarr.json").read_text())["attributes"]["ome"]["series"] == ["0", "1"]
    group = json.loads((path / "1/zarr.json").read_text())["attributes"]["ome"]
    assert group["multiscales"][0]["name"] == "second"
    assert not (path / "2").exists()
    assert read(path, "0/0").shape == (2, 4, 12, 16)
    missing = {name: account["frames_missing"] for name, account in writer.receipt.images.items()}
    assert missing == {"first": 2, "second": 2}


def test_a_plate_in_any_order_of_visit(tmp_path):
    path, plate = tmp_path / "plate.ome.zarr", sw.Plate(rows=2, columns=3, fields=2)
    with sw.create(path, array({"c": (2, 1)}, (8, 8)), plate=plate) as writer:
        for field in ("B/3/1", "A/1/0", "B/3/0"):
            for c in range(2):
                writer.append(pixels(writer.spec, c), image=field, index=(c,))
        with pytest.raises(sw.errors.UnknownImageError, match=r"there is no such image.*'A/1/0'.*got C/1/0"):
            writer.append(pixels(writer.spec, 0), image="C/1/0")
    yaozarrs.validate_zarr_store(str(path))
    plate_facts = json.loads((path / "zarr.json").read_text())["attributes"]["ome"]["plate"]
    assert [well["path"] for well in plate_facts["wells"]] == ["A/1", "B/3"]
    well = json.loads((path / "B/3/zarr.json").read_text())["attributes"]["ome"]["well"]
    assert [image["path"] for image in well["images"]] == ["0", "1"]
    assert not (path / "A/2").exists()
    assert np.array_equal(read(path, "B/3/1/0")[1], pixels(writer.spec, 1))
    assert verify_store(path).ok


def plate_of(path: Path) -> dict:
    yaozarrs.validate_zarr_store(str(path))
    return json.loads((path / "zarr.json").read_text())["attributes"]["ome"]["plate"]


def test_the_rows_and_wells_of_a_plate_share_their_syncs(tmp_path, monkeypatch):
    replace, together = store_metadata.replace_files, []

    def counted(root, folders, steps, *more, **by_name):
        names = [str(path.parent.relative_to(root)) for step in steps for path in step]
        together.append(sum(name in ("A", "B", "C", "D") or name in wells for name in names))
        replace(root, folders, steps, *more, **by_name)

    monkeypatch.setattr(store_metadata, "replace_files", counted)
    monkeypatch.setattr(store_metadata, "_COLLECT_S", 1e9)  # with the first fields, and at the end
    spec, plate = array({"t": (None, 1)}, (8, 8)), sw.Plate(rows=4, columns=6)
    wells = [f"{row}/{column}" for row, column in itertools.product("ABCD", range(1, 7))]
    with sw.create(tmp_path / "a.ome.zarr", spec, plate=plate) as writer:
        for well in wells:
            writer.append(pixels(spec, 0), image=f"{well}/0")
    assert sum(together) == 4 + 24
    assert sum(map(bool, together)) <= 2


def test_a_frame_of_a_plate_opens_few_paths(tmp_path, monkeypatch):
    """What is in a folder that is open anyway is asked there, and what a call tells is not looked at before:
    a frame in a file of its own takes 19 calls, and took 35."""
    opened = []
    given = system.calls.open
    monkeypatch.setattr(
        system.calls, "open", lambda *arguments: (opened.append(arguments[0]), given(*arguments))[1]
    )
    spec = {"shape": (2, 16, 16), "dtype": "uint16", "chunks": {"t": 1}, "shards": False, "axes": "tyx"}
    images = [f"{number}" for number in range(100)]
    with sw.create(tmp_path / "plate.zarr", images=images, **spec) as writer:
        for step, image in itertools.product(range(2), images):
            writer.append(np.full((16, 16), step, np.uint16), image=image, index=(step,))
    assert len(opened) / (2 * len(images)) < 26


@pytest.mark.parametrize("ends", ["closed", "resumed"])
def test_a_plate_says_which_acquisition_its_fields_are_of_and_when_it_was(tmp_path, ends):
    """Its end is not known where another process has ended it."""
    path, plate = tmp_path / "screen.ome.zarr", sw.Plate(name="screen", rows=2, columns=["1", "12"], fields=3)
    before_s = int(time.time())
    with sw.create(path, array({"c": (2, 1)}, (8, 8)), plate=plate) as writer:
        for field in ("B/12/2", "B/12/0", "A/1/1"):
            writer.append(pixels(writer.spec, 0), image=field, index=(0,))
        if ends == "resumed":
            writer.flush()
            snapshot(path, tmp_path / "left" / path.name)
    if ends == "resumed":
        path = tmp_path / "left" / path.name
        sw.resume(path).close()
    facts = plate_of(path)
    (acquisition,) = facts["acquisitions"]
    assert (acquisition["id"], acquisition["name"], acquisition["maximumfieldcount"]) == (0, "screen", 3)
    assert before_s <= acquisition["starttime"] <= int(time.time())
    assert ("endtime" in acquisition) == (ends == "closed")
    if ends == "closed":
        assert acquisition["starttime"] <= acquisition["endtime"] <= int(time.time())
    wells = {well["path"]: (well["rowIndex"], well["columnIndex"]) for well in facts["wells"]}
    assert wells == {"A/1": (0, 0), "B/12": (1, 1)}
    well = json.loads((path / "B/12/zarr.json").read_text())["attributes"]["ome"]["well"]
    assert well["images"] == [{"path": "0", "acquisition": 0}, {"path": "2", "acquisition": 0}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": ["a", "a"]}, "names must differ, got 'a' twice"),
        ({"images": ["Z/9/0"], "plate": sw.Plate(rows=1, columns=1)}, "'Z/9/0' is no field of the plate"),
        ({"images": ["a", "b"], "order": ("p",)}, "expected every frame axis of every image once"),
        ({"images": ["a", "b"], "order": ("t", "z")}, "'p' for the images, once"),
        ({"order": ("t", "p", "z")}, "there is one image without a name"),
        ({"order": ("z",)}, "every frame axis of every image once"),
        ({"order": 5}, "order"),
        ({"plate": {"rows": ["A", "a"], "columns": 2}}, "names must differ"),
        ({"plate": {"rows": ["../x"], "columns": 2}}, "not of letters and digits alone"),
    ],
)
def test_what_does_not_fit_together_is_a_typed_error(tmp_path, arguments, message):
    with pytest.raises(sw.errors.SpecError, match=message):
        sw.create(tmp_path / "a.ome.zarr", POSITIONS, **how(**arguments))
    assert list(tmp_path.iterdir()) == []


def test_a_frame_that_names_no_image_or_a_wrong_one_is_refused_and_the_rest_goes_on(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", POSITIONS, images=["a", "b"]) as writer:
        for image in (None, "c", ""):
            with pytest.raises(sw.errors.UnknownImageError):
                writer.append(pixels(POSITIONS, 0), image=image)
        with pytest.raises(sw.errors.FrameIndexError):
            writer.append(pixels(POSITIONS, 0), image="a", index=(0, 4))
        writer.append(pixels(POSITIONS, 0), image="b", index=(0, 3))
    assert writer.receipt.frames_stored == 1


def test_an_image_that_was_not_made_has_no_shape_that_grows(tmp_path):
    """It found no room, and its row was given up: a shape that was asked for before ended the acquisition."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, POSITIONS, images=["a", "b"]) as writer:
        writer._driver.acquisition._sealer.put(Grow(1, (1,)))
        writer.append(pixels(POSITIONS, 0), image="a", index=(0, 0))
        writer.flush()
        writer.append(pixels(POSITIONS, 0), image="b", index=(0, 3))
    assert writer.receipt.frames_stored == 2


BAD_FRAMES = {
    "an image that was not declared": ({"image": "C"}, "UnknownImageError", "there is no such image"),
    "no image": ({"index": (0, 0)}, "UnknownImageError", "names no image"),
    "a field that the well has not": ({"image": "A/1/2"}, "UnknownImageError", "there is no such image"),
    "a well outside the plate": ({"image": "C/1/0"}, "UnknownImageError", "expected one of 'A/1/0'"),
    "a well by number": ({"image": 0}, "UnknownImageError", "there is no such image"),
    "an image that no dict finds": ({"image": ["A/1/0"]}, "UnknownImageError", "there is no such image"),
    "an index past its axis": ({"image": "A/1/0", "index": (0, 4)}, "FrameIndexError", "expected 0 to 3"),
    "an index below": (
        {"image": "A/1/0", "index": (-1, 0)},
        "FrameIndexError",
        "along axis 0; expected 0 to",
    ),
    "an index of too few": (
        {"image": "A/1/0", "index": (1,)},
        "FrameIndexError",
        r"2 numbers|shape \(1, 2\)",
    ),
    "an id below": ({"image": "A/1/0", "frame_id": -1}, "FrameIndexError", "frame id"),
    "a frame of another shape": ({"image": "A/1/0", "pixels": (9, 9)}, "FrameShapeError", "shape"),
}


def append(writer, bad: np.ndarray, given: dict, *, many: bool) -> None:
    if many:
        plural = {"index": "indices", "frame_id": "frame_ids"}
        writer.append_many([bad], **{plural.get(k, k): [v] if k in plural else v for k, v in given.items()})
    else:
        writer.append(bad, **given)


@pytest.mark.parametrize("name", BAD_FRAMES)
@pytest.mark.parametrize("many", [False, True])
def test_a_bad_frame_is_a_typed_error_and_the_rest_goes_on(tmp_path, name, many):
    given, error, message = BAD_FRAMES[name]
    given = dict(given)
    bad = np.zeros(given.pop("pixels", POSITIONS.frame_shape), np.uint16)
    path = tmp_path / "plate.ome.zarr"
    with sw.create(path, POSITIONS, plate=sw.Plate(rows=2, columns=2, fields=2)) as writer:
        with pytest.raises(getattr(sw.errors, error), match=message):
            append(writer, bad, given, many=many)
        writer.append(pixels(POSITIONS, 7), image="B/2/1", index=(0, 3))
    assert (writer.receipt.frames_received, writer.receipt.frames_stored) == (1, 1)
    assert np.array_equal(read(path, "B/2/1/0")[0, 3], pixels(POSITIONS, 7))


def test_the_order_bounds_the_memory(tmp_path):
    """A slab of 16 frames for each of 100 images, or for the one that is being filled."""
    deep = array({"t": (9, 1), "z": (16, 16)}, (64, 64))
    images = tuple(sw.Image(name=f"{i}") for i in range(100))

    def held(order: tuple[str, ...] | None) -> int:
        spec = sw.AcquisitionSpec(array=deep, images=images, order=order)
        return Limits.derive(spec, threads=1).held_frames

    assert held(None) == 1600
    assert held(("t", "p", "z")) == held(("p", "t", "z")) == 16
    assert held(("t", "z", "p")) == 1600


def test_frames_that_name_nothing_are_placed_by_the_order(tmp_path):
    path = tmp_path / "a.ome.zarr"
    images, order = ["a", "b", "c"], ("t", "p", "z")
    sent = [pixels(POSITIONS, number) for number in range(30)]
    with sw.create(path, POSITIONS, images=images, order=order) as writer:
        for frame in sent[:7]:
            writer.append(frame)
        writer.append_many(sent[7:])
    assert writer.receipt.frames_stored == 30
    for number, frame in enumerate(sent):
        (t, image), z = divmod(number // 4, 3), number % 4
        assert np.array_equal(zarr.open_array(path / f"{image}/0", mode="r")[t, z], frame)


@pytest.mark.parametrize("order", ["tzc", "ztc", "czt", ("c", "t", "z")])
def test_axes_as_they_are_stored_and_frames_in_another_order(tmp_path, order):
    path, counts = tmp_path / "a.ome.zarr", {"t": 3, "c": 2, "z": 4}
    with sw.create(path, shape=(3, 2, 4, 6, 8), dtype="uint16", axes="tczyx", order=order) as writer:
        assert [d.name for d in writer.spec.dimensions] == [*order, "y", "x"]
        for number in range(24):
            writer.append(pixels(writer.spec, number))
        steps = [dict(zip(order, step, strict=True)) for step in np.ndindex(*(counts[a] for a in order))]
    found = read(path, "0")
    assert found.shape == (3, 2, 4, 6, 8)
    for number, at in enumerate(steps):
        assert np.array_equal(found[at["t"], at["c"], at["z"]], pixels(writer.spec, number))
    attributes = json.loads((path / "zarr.json").read_text())["attributes"]["ome"]
    assert [axis["name"] for axis in attributes["multiscales"][0]["axes"]] == list("tczyx")


def test_an_axis_without_a_count_needs_no_index_if_it_changes_slowest(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, shape=(2, None, 6, 8), dtype="uint8", axes="ctyx", order="tc") as writer:
        for number in range(6):
            writer.append(pixels(writer.spec, number))
    assert read(path, "0").shape == (2, 3, 6, 8)
    with sw.create(tmp_path / "b", shape=(2, None, 6, 8), dtype="uint8", axes="ctyx", order="ct") as writer:
        with pytest.raises(sw.errors.FrameIndexError, match="Give index"):
            writer.append(pixels(writer.spec, 0))
        for t, c in itertools.product(range(3), range(2)):
            writer.append(pixels(writer.spec, 2 * t + c), index=(c, t))
    assert np.array_equal(read(tmp_path / "b", "0"), read(path, "0"))


RAGGED = {"t": (3, 2, 3), "c": (2, 2, 1), "z": (2, 3, 1)}  # by image


@pytest.mark.parametrize("order", [o for o in itertools.permutations("ptcz") if o.index("p") < 3][::3])
def test_positions_of_their_own_counts_anywhere_in_the_order(tmp_path, order):
    """The arrays name their axes as they are stored. A position that has no such frame is left out."""
    path, names = tmp_path / "a.ome.zarr", ("a", "b", "c")
    images = {
        name: array({axis: (counts[i], 1) for axis, counts in RAGGED.items()}, (6, 8))
        for i, name in enumerate(names)
    }
    most = [3 if axis == "p" else max(RAGGED[axis]) for axis in order]
    places = [dict(zip(order, step, strict=True)) for step in np.ndindex(*most)]
    places = [at for at in places if all(at[axis] < RAGGED[axis][at["p"]] for axis in RAGGED)]
    with sw.create(path, images=images, order=order) as writer:
        for number in range(len(places)):
            writer.append(pixels(writer.spec, number))
        with pytest.raises(sw.errors.FrameIndexError, match="more frames than the acquisition has places"):
            writer.append(pixels(writer.spec, 0))
    found = [read(path, f"{i}/0") for i in range(3)]
    assert [each.shape[:3] for each in found] == [tuple(RAGGED[a][i] for a in "tcz") for i in range(3)]
    for number, at in enumerate(places):
        assert np.array_equal(found[at["p"]][at["t"], at["c"], at["z"]], pixels(writer.spec, number)), at


def test_lost_frames_are_listed_by_a_command_that_names_the_store():
    one = sw.AcquisitionSpec(array=POSITIONS)
    accounts = Accounts(one.grids)
    notifications = Notifications(Path("/data/a.ome.zarr"), one, Flushes(accounts), raises_duplicates=False)
    accounts.frames_by_status[FrameStatus.LOST] = 1
    ((event, facts),) = notifications.take_events(accounts)
    assert event == "frames_lost"
    assert facts["hint"].startswith("`shardwright inspect --missing /data/a.ome.zarr` lists")


def test_events_name_the_image_and_its_own_shard_row():
    path, two = Path("a.ome.zarr"), sw.AcquisitionSpec(array=POSITIONS, images=["a", "b"])
    one = sw.AcquisitionSpec(array=POSITIONS)
    notifications = Notifications(path, two, Flushes(Accounts(two.grids)), raises_duplicates=True)
    notifications.note("row_reopened", {"shard_row": (1 << IMAGE_SHIFT) + 3, "frames_taken_back": 2})
    alone = Notifications(path, one, Flushes(Accounts(one.grids)), raises_duplicates=True)
    alone.note("row_reopened", {"shard_row": 3})
    facts = {"image": "b", "shard_row": 3, "frames_taken_back": 2}
    assert notifications.take_events(Accounts(sw.AcquisitionSpec(array=POSITIONS).grids)) == [
        ("row_reopened", facts)
    ]
    assert alone.take_events(Accounts(sw.AcquisitionSpec(array=POSITIONS).grids)) == [
        ("row_reopened", {"shard_row": 3})
    ]


def test_an_image_that_found_no_room_is_made_with_the_next_try(tmp_path: Path) -> None:
    """Its array, too, of which only the folder above was made: its shards and their sums go below it."""
    path, made = tmp_path / "a.ome.zarr", []

    def full() -> None:
        made.append(1)
        if len(made) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with sw.create(path, images={"a": POSITIONS, "b": POSITIONS}, on_full="block") as writer:
        failpoints.set_hook("directory.before_create", full)
        try:
            writer.append(pixels(POSITIONS, 7), image="b", index=(0, 0))
            writer.close()
        finally:
            failpoints.set_hook("directory.before_create", None)
    assert writer.receipt.frames_lost == 0
    assert np.array_equal(read(path, "1/0")[0, 0], pixels(POSITIONS, 7))
    assert verify_store(path).ok


def test_no_image_is_made_in_a_store_that_is_gone(tmp_path: Path) -> None:
    """Its shard row is sealed all the same, and would make the folder of its image again, and those above."""
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, images={"a": POSITIONS, "b": POSITIONS}, on_full="block")
    for z in range(2):
        writer.append(pixels(POSITIONS, z), image="b", index=(0, z))
    writer.flush()
    shutil.rmtree(path)
    with pytest.raises(sw.errors.StoreGoneError):
        writer.close()
    assert not path.exists()
