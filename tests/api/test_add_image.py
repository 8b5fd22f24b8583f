"""``add_image``: images of an acquisition that runs, in this process."""

from __future__ import annotations

import json
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright import errors
from shardwright.read.verify_store import verify_store
from shardwright.shard.manifest import read_manifest
from shardwright.store import store_folder
from shardwright.store.store_folder import StoreFolder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
ROWS, COLUMNS = 12, 16


def spec(
    count: int | None = None,
    chunk: int = 1,
    shape: tuple[int, int] = (ROWS, COLUMNS),
    shard: int = 2,
    **more: Any,
) -> sw.ArraySpec:
    frame = [{"name": n, "count": c, "chunk_size": c, "unit": "um"} for n, c in zip("yx", shape, strict=True)]
    axes = [{"name": "t", "count": count, "chunk_size": chunk, "shard_size_chunks": shard}, *frame]
    return sw.ArraySpec(dtype=more.pop("dtype", "uint16"), dimensions=axes, **more)


def frame(number: int, shape: tuple[int, int] = (ROWS, COLUMNS), dtype: str = "uint16") -> np.ndarray:
    return np.full(shape, number + 1, dtype)


def seen(store: Path, path: str) -> list[int]:
    """The first pixel of each frame, less one; by another library."""
    found: list[int] = (zarr.open_array(store / path, mode="r")[:, 0, 0].astype(int) - 1).tolist()
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "a.ome.zarr"


def test_an_image_that_comes_later_is_as_any_other(store):
    with sw.create(store, spec(chunk=2), images=["overview"]) as writer:
        writer.append(frame(0), image="overview")
        with pytest.raises(errors.UnknownImageError):
            writer.append(frame(1), image="cell")
        writer.add_image("cell", position={"x": 3.5, "y": 4}, path="cells/A", attributes={"found": "by hand"})
        for number in range(5):
            writer.append(frame(10 + number), image="cell")
        writer.append(frame(1), image="overview")
        assert writer.images.names == ("overview", "cell")
    assert (seen(store, "0/0"), seen(store, "cells/A/0")) == ([0, 1], [10, 11, 12, 13, 14])
    assert verify_store(store).ok
    group = json.loads((store / "cells/A/zarr.json").read_text())["attributes"]
    assert group["found"] == "by hand"
    moved = group["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"][1]
    assert moved == {"type": "translation", "translation": [0, 4.0, 3.5]}
    assert json.loads((store / "OME/zarr.json").read_text())["attributes"]["ome"]["series"] == [
        "0",
        "cells/A",
    ]
    assert writer.receipt.images["cell"]["frames_stored"] == 5
    assert sw.frame_table(store).image.tolist() == ["overview", *["cell"] * 5, "overview"]


def test_images_of_other_shapes_that_fit(store):
    small = spec(4, shape=(6, 8), dtype="uint8")
    with sw.create(store, spec(), images=["overview"]) as writer:
        writer.add_image("spot", array=small)
        writer.add_image("spot too", array=small.model_dump(mode="json"))
        writer.append(frame(7, (6, 8), "uint8"), image="spot", index=3)
        with pytest.raises(errors.FrameShapeError):
            writer.append(frame(7), image="spot")
        writer.append(frame(8, (6, 8), "uint8"), image="spot too")
        writer.append(frame(0), image="overview")
    assert seen(store, "1/0") == [-1, -1, -1, 7]
    assert seen(store, "2/0") == [8]
    assert verify_store(store).ok


def test_the_scene_of_newer_metadata_takes_images_of_its_axes(store):
    """Positions in one scene relate images of the same axes: one of others would turn it off for all."""
    images = [{"name": "overview", "position": {"x": 5}}]
    with sw.create(store, spec(), images=images, ome_version="0.6") as writer:
        writer.append(frame(0), image="overview")
        pixels = spec().model_copy(
            update={"dimensions": tuple(d.model_copy(update={"unit": None}) for d in spec().dimensions)}
        )
        with pytest.raises(errors.SpecError, match="other axes than the scene"):
            writer.add_image("other", array=pixels)
        writer.add_image("cell", position={"x": 7})
        writer.append(frame(1), image="cell")
    for image, x in (("overview", 5), ("cell", 7)):
        assert sw.open_xarray(store, image=image)["x"].values[0] == x


def test_the_same_call_twice_is_one_image(store):
    with sw.create(store, spec(), images=["a"]) as writer:
        for _ in range(2):
            writer.add_image("b", position={"x": 1.0})
            writer.add_image("a")
        assert writer.images.names == ("a", "b")
        for other in ({"position": {"x": 2.0}}, {"path": "elsewhere"}, {"array": spec(3)}, {}):
            with pytest.raises(errors.SpecError, match="another image 'b' already"):
                writer.add_image("b", **other)
        with pytest.raises(errors.SpecError, match="another image 'a' already"):
            writer.add_image("a", attributes={"x": 1})
        writer.append(frame(0), image="b")


@pytest.mark.parametrize(
    ("declared", "added", "says"),
    [
        ({}, {}, "an acquisition of one image without a name takes no other"),
        ({"images": ["a"], "order": "tp"}, {}, "the order of this acquisition returns to each image"),
        ({"images": ["a"]}, {"path": "0"}, "would have one folder"),
        ({"images": ["a"]}, {"path": "../b"}, "not a usable path"),
        ({"images": ["a"]}, {"path": "OME"}, "path"),
        ({"images": ["a"]}, {"path": "0/b"}, "inside the folder"),
        ({"images": ["a"]}, {"name": ""}, "name"),
        ({"images": ["a"]}, {"position": {"x": "far"}}, "position"),
        ({"images": ["a"]}, {"position": {"z": 1}, "attributes": {"ome": 1}}, "attributes"),
        ({"images": ["a"]}, {"attributes": None}, "attributes"),
        ({"images": ["a"]}, {"attributes": 5}, "attributes"),
        ({"images": ["a"]}, {"array": {"dtype": "uint16"}}, "dimensions"),
        ({"images": ["a"]}, {"array": spec(frame_fields=("n",))}, "frame_fields must be the same"),
        ({"images": ["a"]}, {"array": spec(frame_json_bytes=80)}, "frame_json_bytes must be the same"),
        ({"plate": {"rows": 2, "columns": 2}}, {}, "expected a field of a well such as 'A/1/0'"),
        ({"plate": {"rows": 2, "columns": 2}}, {"name": "a/3/0"}, "names must differ"),
        ({"plate": {"rows": 2, "columns": 2}}, {"name": "C/3/0", "path": "x"}, "lie in their wells"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_changes(store, declared, added, says):
    with sw.create(store, spec(), **declared) as writer:
        before = read_manifest(store / ".shardwright")
        with pytest.raises(errors.SpecError, match=says):
            writer.add_image(**{"name": "b", **added})
        assert read_manifest(store / ".shardwright") == before


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (spec(shape=(ROWS + 1, COLUMNS)), "bytes of a slot for any frame"),
        (spec(chunk=4), "frames of a chunk"),
        (spec(shard=64), "chunks of a shard"),
        (spec(shape=(ROWS, 8)), None),
    ],
)
def test_what_does_not_fit_the_plan_is_refused_by_its_reason(store, array, what):
    with sw.create(store, spec(chunk=2), images=["a"]) as writer:
        if what is None:
            writer.add_image("b", array=array)
            return
        with pytest.raises(errors.BudgetError, match="does not fit what the acquisition began") as refused:
            writer.add_image("b", array=array)
        assert what in str(refused.value)
        assert refused.value.hint
        writer.append(frame(0), image="a")


def add_many(writer: sw.Writer) -> None:
    for number in range(64):
        writer.add_image(f"b{number}")


def test_more_incomplete_chunks_than_the_ring_can_hold_are_refused(store):
    shape = (1024, 1024)
    with sw.create(store, spec(chunk=8, shape=shape), images=["a"]) as writer:
        with pytest.raises(errors.BudgetError, match="frames in the ring") as refused:
            add_many(writer)
        assert "partial_chunks" in refused.value.hint


def test_memory_is_within_the_budget_that_was_given(store):
    with sw.create(store, spec(), images=["a"]) as probe:
        needed = probe._acquisition.limits.memory_bytes
    memory = needed + (64 << 10)
    with sw.create(store, spec(), images=["a"], memory_bytes=memory, threads=probe._limits.threads) as writer:
        with pytest.raises(errors.BudgetError, match="the memory budget has no room for one more image"):
            add_many(writer)
        assert 1 < len(writer.images.names) < 64
        assert writer._acquisition.limits.memory_bytes <= memory


def test_in_an_order_the_next_places_are_those_of_the_new_image(store):
    with sw.create(store, spec(3), images=["a"], order=("p", "t")) as writer:
        for number in range(3):
            writer.append(frame(number))
        with pytest.raises(errors.FrameIndexError):
            writer.append(frame(3))
        writer.add_image("b")
        writer.append_many(np.stack([frame(3), frame(4)]))
        writer.add_image("c")
        for number in range(5, 9):
            writer.append(frame(number))
    assert [seen(store, f"{image}/0") for image in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("live", ["none", "index", "append"])
def test_readers_of_a_growing_store_see_it(store, live):
    settings = sw.WriteSettings(sync_interval_ms=1, io="pwrite" if live == "append" else "auto")
    with sw.create(store, spec(chunk=2), images=["a"], live=live, settings=settings) as writer:
        writer.append(frame(0), image="a")
        writer.flush()
        view = sw.open(store)
        assert sorted(zarr.open_group(view, mode="r").group_keys()) == ["0", "OME"]
        followed = sw.follow(store)
        assert next(followed).image == "a"
        writer.add_image("b", path="later")
        for number in (1, 2, 3):
            writer.append(frame(number), image="b")
        writer.flush()
        assert [(each.image, int(each.pixels[0, 0])) for each in islice(followed, 3)] == [
            ("b", 2),
            ("b", 3),
            ("b", 4),
        ]
        for path, pixels in (("later/0", [2, 3, 4]), ("0/0", [1])):
            assert zarr.open_array(view, path=path, mode="r")[:, 0, 0].tolist() == pixels
    assert verify_store(store).ok


def test_wells_that_were_not_declared(store):
    with sw.create(store, spec(), plate={"rows": 1, "columns": 2, "name": "screen"}) as writer:
        writer.append(frame(0), image="A/1/0")
        writer.add_image("H/12/hit")
        writer.add_image("A/2/1")
        writer.append(frame(1), image="H/12/hit")
        writer.append(frame(2), image="A/2/1")
    plate = json.loads((store / "zarr.json").read_text())["attributes"]["ome"]["plate"]
    assert [row["name"] for row in plate["rows"]] == ["A", "H"]
    assert [column["name"] for column in plate["columns"]] == ["1", "2", "12"]
    assert plate["wells"] == [
        {"path": "A/1", "rowIndex": 0, "columnIndex": 0},
        {"path": "H/12", "rowIndex": 1, "columnIndex": 2},
        {"path": "A/2", "rowIndex": 0, "columnIndex": 1},
    ]
    assert plate["field_count"] == 3
    assert seen(store, "H/12/hit/0") == [1]
    assert verify_store(store).ok


def test_it_is_there_for_whoever_resumes(store):
    writer = sw.create(store, spec(chunk=2), images=["a"])
    writer.add_image("b", path="B")
    writer.append(frame(0), image="b")
    writer.flush()
    again = sw.resume(store, take_over=True)
    assert again.images.names == ("a", "b")
    again.append(frame(1), image="b")
    again.add_image("b", path="B")
    again.add_image("c")
    again.append(frame(2), image="c")
    again.close()
    with pytest.raises(errors.ShardwrightError):
        writer.close()
    assert (seen(store, "B/0"), seen(store, "2/0")) == ([0, 1], [2])


def test_nobody_is_told_of_an_image_that_a_take_over_may_not_have_seen(store, monkeypatch):
    """Its manifest gets its name as another writer takes the lock."""
    writer, taken = sw.create(store, spec(chunk=2), images=["a"]), []
    writer.append(frame(0), image="a")
    writer.flush()
    write = store_folder.write_manifest

    def written_late(*args, **kwargs):
        write(*args, **kwargs)
        if not taken:
            taken.append(None)
            taken[0] = sw.resume(store, take_over=True)

    monkeypatch.setattr(store_folder, "write_manifest", written_late)
    with pytest.raises(errors.FencedError):
        writer.add_image("b")
    assert writer.images.names == ("a",)
    taken[0].close()
    with pytest.raises(errors.ShardwrightError):
        writer.close()
    assert seen(store, "0/0") == [0]


def test_a_client_that_is_counted_meanwhile_takes_no_image_out_of_the_manifest(store, monkeypatch):
    """Both replace the manifest, in threads of their own: whoever comes second adds to what the first one
    has written."""
    write, second = store_folder.write_manifest, []

    def slow(workspace, manifest, *args, **kwargs):
        if not second:
            second.append(threading.Thread(target=count))
            second[0].start()
            second[0].join(0.2)  # it waits; without the lock it is done by then
        write(workspace, manifest, *args, **kwargs)

    with sw.create(store, spec(), images=["a"]) as writer:
        folder = writer._acquisition.folder

        def count() -> None:
            folder.count_client(folder.manifest.opened_as)

        monkeypatch.setattr(store_folder, "write_manifest", slow)
        writer.add_image("b")
        second[0].join()
        found = read_manifest(store / ".shardwright")
        assert (found.client_epoch, found.added_images) == (2, ("b",))
        writer.append(frame(0), image="b")
    assert seen(store, "1/0") == [0]


def test_only_stores_that_use_it_have_the_new_format(store):
    with sw.create(store, spec(), images=["a"]) as writer:
        path = store / ".shardwright/acquisition.1.json"
        assert json.loads(path.read_text())["format"] == 8
        writer.add_image("b")
        assert json.loads(path.read_text())["format"] == 10
        assert json.loads(path.read_text())["added_images"] == ["b"]


def test_a_disk_that_refuses_is_the_callers_error_and_the_next_call_succeeds(store, monkeypatch):
    refused = []
    record = StoreFolder.record_images

    def refuses(folder, wanted):
        if not refused:
            refused.append(wanted)
            raise errors.StorageError("no such disk")
        record(folder, wanted)

    monkeypatch.setattr(StoreFolder, "record_images", refuses)
    with sw.create(store, spec(), images=["a"]) as writer:
        with pytest.raises(errors.StorageError, match="no such disk"):
            writer.add_image("b")
        with pytest.raises(errors.UnknownImageError):
            writer.append(frame(0), image="b")
        writer.add_image("c")
        writer.append(frame(0), image="c")
    assert seen(store, "1/0") == [0]


def test_nothing_is_added_to_what_has_ended(store):
    writer = sw.create(store, spec(), images=["a"])
    writer.append(frame(0), image="a")
    writer.close()
    with pytest.raises(errors.ClosedError):
        writer.add_image("b")
    assert not (store / "1").exists()


def test_hundreds_of_images_are_added_one_by_one(store):
    with sw.create(store, spec(), images=["a"]) as writer:
        for number in range(100):
            writer.add_image(f"p{number}")
        writer.append(frame(4), image="p99")
    assert seen(store, "100/0") == [4]


@pytest.mark.parametrize("path", ["x", "x/b"])
@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_another_program_has_put_in_the_store_is_not_taken_for_an_image(store, tmp_path, what, path):
    """Found only as the first shard of the image is sealed it would end all of them, or be overwritten."""
    with sw.create(store, spec(), images=["a"]) as writer:
        writer.append(frame(0), image="a")
        writer.flush()
        if what == "file":
            (store / "x").write_text("theirs")
        elif what == "folder":
            (store / path).mkdir(parents=True)
            (store / path / "zarr.json").write_text("theirs")
        else:
            (tmp_path / "elsewhere").mkdir()
            (store / "x").symlink_to(tmp_path / "elsewhere")
        with pytest.raises((errors.OutputExistsError, errors.LinkError), match="x"):
            writer.add_image("b", path=path)
        assert writer.images.names == ("a",)
        writer.add_image("b", path="y/b")
        writer.add_image("c", path="y/c")
        writer.append(frame(1), image="b")
        writer.flush()
        writer.add_image("d", path="y/d")  # beside one that is there
        writer.add_image("b", path="y/b")  # its own folder is no other's
        writer.append(frame(2), image="d")
    assert [seen(store, f"{path}/0") for path in ("0", "y/b", "y/d")] == [[0], [1], [2]]
    assert what != "folder" or (store / path / "zarr.json").read_text() == "theirs"


def test_images_that_are_asked_for_at_once_share_the_room(store):
    with sw.create(store, spec(), images=["a"]) as writer:
        acquisition = writer._acquisition
        before = acquisition.limits.memory_bytes
        writer.add_image("b")
        each = acquisition.limits.memory_bytes - before
        with writer._driver.lock.turn(), writer._driver.lock:
            asked = [acquisition.add_image(sw.Image(name=name), 5 * each // 2) for name in "cdef"]
        answers: dict[int, object] = {}
        while len(answers) < len(asked):
            with writer._driver.lock.turn(), writer._driver.lock:
                acquisition.poll()
                answers.update(acquisition.take_updates())
        codes = [None if (why := answers[request]) is None else why.code for request in asked]
        assert codes == [None, None, "budget", "budget"]
        assert acquisition.limits.memory_bytes == before + 3 * each
