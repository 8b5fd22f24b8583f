"""Where an image is on the stage: checked before a frame comes, written as readers of tiles look for it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaozarrs
from tests.harness.frames import array_spec
from tests.harness.json_process import wait_for
from tests.harness.writing import how

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.metadata import group_document
from shardwright.array.metadata_update import MetadataUpdate
from shardwright.array.ome import at_position
from shardwright.array.stage_position import StagePosition
from shardwright.model.errors import MetadataError, ShardFormatError, SpecError
from shardwright.shard.checked_json import encode_checked
from shardwright.shard.metadata_updates import read_updates
from shardwright.store import store_metadata

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 16
LAYOUT: dict[str, Any] = {
    "shape": (None, SIZE, SIZE),
    "dtype": "uint16",
    "axes": "tyx",
    "scales": {"y": 0.5, "x": 0.5},
    "units": {"y": "um", "x": "um"},
}
FRAME = np.full((SIZE, SIZE), 7, np.uint16)


def placed(**position: Any) -> dict[str, Any]:
    return {"name": "a", "position": position}


def group_of(store: Path, image: str = "0") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store / image / "zarr.json").read_text())["attributes"]
    return found


def translations(store: Path, image: str = "0") -> list[list[float] | None]:
    """Of each level of an image."""
    (multiscale,) = group_of(store, image)["ome"]["multiscales"]
    both = [dataset["coordinateTransformations"] for dataset in multiscale["datasets"]]
    return [each[1]["translation"] if len(each) > 1 else None for each in both]


@pytest.mark.parametrize(
    ("position", "problem"),
    [
        ({"unit": "s", "x": 1}, "expected a length such as micrometer or mm"),
        ({"unit": "mm"}, "expected x, y or z, or a place in the grid"),
        ({"x": float("nan")}, "finite"),
        ({"x": "far"}, "number"),
        ({"x": "5"}, "number"),
        ({"x": True}, "number"),
        ({"x": 1e305, "unit": "m"}, "x: expected at most 1000 m"),  # in micrometres it is infinite
        ({"y": -1.1e9}, "y: expected at most 1000 m"),
        ({"grid_row": True}, "integer"),
        ({"grid_row": 1 << 40}, "less than"),
        ({"c": 1}, "Extra inputs"),
        ({"grid_row": -1}, "greater than or equal to 0"),
    ],
)
def test_a_position_that_is_none_is_refused(tmp_path, position, problem):
    with pytest.raises(SpecError, match=problem):
        sw.create(tmp_path / "a.ome.zarr", images=[placed(**position)], **LAYOUT)
    assert list(tmp_path.iterdir()) == []


def test_pixels_without_a_unit_have_no_place(tmp_path):
    with pytest.raises(
        SpecError, match="'a' has a position along y, so these axes need a length as their unit"
    ):
        sw.create(tmp_path / "a.ome.zarr", images=[placed(y=1)], **{**LAYOUT, "units": {}})


def test_a_position_is_the_translation_of_all_levels(tmp_path):
    """A pixel of a level is the mean of two by two, and has its middle half a pixel further."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, images=[placed(x=0.25, y=-0.1, unit="mm")], levels=2, **LAYOUT) as writer:
        writer.append(FRAME, image="a")
    expected = [[0.0, -100.0, 250.0], [0.0, -99.75, 250.25], [0.0, -99.25, 250.75]]
    np.testing.assert_allclose(translations(path), expected)
    yaozarrs.validate_zarr_store(str(path))
    assert '<StageLabel Name="a" X="250.0" Y="-100.0" ' in (path / "OME/METADATA.ome.xml").read_text()
    np.testing.assert_allclose(sw.open_xarray(path, image="a")["x"][:2], [250.0, 250.5])


def test_a_position_that_no_stage_has_is_not_known(tmp_path):
    """Drivers have the largest number for what they do not know; JSON has no infinity."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, images=["a"], **{**LAYOUT, "units": {"y": "nm", "x": "nm"}}) as writer:
        huge = float(np.finfo(float).max)
        writer.append(FRAME, image="a", metadata={"position_x": huge, "position_y": 2})
    assert translations(path) == [[0.0, 2000.0, 0.0]]


def test_clients_of_earlier_releases_are_not_told_where_images_are():
    spec = sw.AcquisitionSpec(array=array_spec(), images=[placed(grid_row=2), "b"])
    assert spec.to_json(for_client=True)["images"] == [{"name": "a"}, "b"]


def test_a_place_in_a_grid_is_kept_beside_it(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, images=[placed(grid_row=1, grid_column=2)], **LAYOUT) as writer:
        writer.append(FRAME, image="a")
    assert group_of(path)["shardwright"] == {"grid": {"row": 1, "column": 2}}
    assert translations(path) == [None]


def test_a_running_store_has_the_position(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", images=[placed(x=8)], **LAYOUT) as writer:
        writer.append(FRAME, image="a")
        writer.flush()
        ome = sw.open(writer.path).view.document("0")["attributes"]["ome"]
        assert ome["multiscales"][0]["datasets"][0]["coordinateTransformations"][1] == {
            "type": "translation",
            "translation": [0.0, 0.0, 8.0],
        }


def test_an_image_without_one_has_that_of_its_first_frame(tmp_path):
    """Not of the frame that came first to the disk, nor of one that was not stored."""
    path = tmp_path / "a.ome.zarr"
    images = ["told", placed(x=1), "silent", "never"]
    with sw.create(path, images=images, **LAYOUT, **how(on_duplicate="count")) as writer:
        writer.append(FRAME, image="told", index=(3,), metadata={"position_x": 5, "position_y": 6})
        writer.append(FRAME, image="told", index=(0,), metadata={"position_x": 50, "position_y": 60})
        writer.append(FRAME, image="a", metadata={"position_x": 70})
        writer.append(FRAME, image="silent")
    assert translations(path, "0") == [[0.0, 6.0, 5.0]]
    assert translations(path, "1") == [[0.0, 0.0, 1.0]]
    assert translations(path, "2") == [None]
    labels = (path / "OME/METADATA.ome.xml").read_text()
    assert '<StageLabel Name="told" X="5.0" Y="6.0"' in labels
    assert '<StageLabel Name="silent"' not in labels


def test_it_is_taken_after_a_crash_as_well_and_once(tmp_path):
    path = tmp_path / "a.ome.zarr"
    pid = os.fork()
    if pid == 0:
        writer = sw.create(path, images=["told"], levels=1, **LAYOUT)
        writer.append(FRAME, image="told", metadata={"position_x": 5})
        writer.flush()
        os._exit(1)
    os.waitpid(pid, 0)
    with sw.resume(path) as writer:
        writer.append(FRAME, image="told", metadata={"position_x": 6})
    assert translations(path) == [[0.0, 0.0, 5.0], [0.0, 0.25, 5.25]]


def told_at_the_end(writer: sw.Writer) -> None:
    """After its frames, which say otherwise; then again, in part to an image with a declared position."""
    for image in ("told", "declared"):
        writer.append(FRAME, image=image, metadata={"position_x": 1000, "position_y": 1000})
    writer.flush()
    writer.update_metadata({"note": 1}, image="told", position={"x": 9, "y": 9})
    writer.update_metadata(position={"x": 5, "y": 6, "grid_row": 2}, image="told")
    writer.update_metadata({"note": 2}, image="told")
    writer.update_metadata(position={"x": -3, "unit": "mm"}, image="declared")


TOLD: dict[str, Any] = {"images": ["told", {"name": "declared", "position": {"x": 1, "y": 1}}], "levels": 1}


def check_told(path: Path) -> None:
    assert translations(path, "0") == [[0.0, 6.0, 5.0], [0.0, 6.25, 5.25]]
    assert translations(path, "1") == [[0.0, 1.0, -3000.0], [0.0, 1.25, -2999.75]]
    assert {name: value for name, value in group_of(path, "0").items() if name != "ome"} == {
        "note": 2,
        "shardwright": {"grid": {"row": 2}},
    }
    labels = (path / "OME/METADATA.ome.xml").read_text()
    assert '<StageLabel Name="told" X="5.0" Y="6.0"' in labels
    assert '<StageLabel Name="declared" X="-3000.0" Y="1.0"' in labels
    yaozarrs.validate_zarr_store(str(path))


def test_a_position_that_is_told_at_the_end_counts_more(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **TOLD, **LAYOUT) as writer:
        told_at_the_end(writer)
    check_told(path)


def test_a_kill_loses_no_position_that_was_told(tmp_path):
    path = tmp_path / "a.ome.zarr"
    pid = os.fork()
    if pid == 0:
        writer = sw.create(path, **TOLD, **LAYOUT)
        told_at_the_end(writer)
        os._exit(1)
    os.waitpid(pid, 0)
    live = sw.open(path)
    (multiscale,) = live.view.document("0")["attributes"]["ome"]["multiscales"]
    assert multiscale["datasets"][0]["coordinateTransformations"][1]["translation"] == [0.0, 6.0, 5.0]
    live.close()
    sw.resume(path).close()
    check_told(path)


@pytest.mark.parametrize("there", [True, False])
def test_what_a_told_position_does_not_name_stays(tmp_path, there):
    """Whether zarr.json of the image was there when it was told, or not; that of the first frame, too."""
    path = tmp_path / "a.ome.zarr"
    images = [placed(x=1, y=2, grid_row=3), "of the frame"]
    with sw.create(path, images=images, **LAYOUT) as writer:
        for told_now in (there, not there):
            if told_now:
                for image in ("a", "of the frame"):
                    writer.append(FRAME, image=image, metadata={"position_x": 7, "position_y": 8})
                writer.flush()
            else:
                writer.update_metadata(position={"x": 9}, image="a")
                writer.update_metadata(position={"grid_column": 4}, image="a")
                writer.update_metadata(position={"grid_row": 5}, image="of the frame")
    assert (translations(path, "0"), translations(path, "1")) == ([[0.0, 2.0, 9.0]], [[0.0, 8.0, 7.0]])
    grids = [group_of(path, image)["shardwright"]["grid"] for image in ("0", "1")]
    assert grids == [{"row": 3, "column": 4}, {"row": 5}]
    labels = (path / "OME/METADATA.ome.xml").read_text()
    assert '<StageLabel Name="of the frame" X="7.0" Y="8.0"' in labels


def test_images_that_came_at_once_are_listed_soon_after(tmp_path, monkeypatch):
    """And one whose position was told before its first frame."""
    path = tmp_path / "a.ome.zarr"
    array = array_spec(slab_frames=1, slabs=1, shape=(SIZE, SIZE))

    def listed() -> list[str]:
        found: list[str] = json.loads((path / "OME/zarr.json").read_text())["attributes"]["ome"]["series"]
        return found

    with sw.create(path, array, images=["a", "b"]) as writer:
        writer.update_metadata(position={"grid_row": 1}, image="a")
        writer.append(FRAME, image="a")
        wait_for(lambda: listed() == ["0"])
        monkeypatch.setattr(store_metadata, "_COLLECT_S", 1e9)
        writer.append(FRAME, image="b")
        wait_for((path / "1/0/c/0/1/0").exists)  # the last of its first shards
        assert listed() == ["0"], "once a second at most"
        monkeypatch.setattr(store_metadata, "_COLLECT_S", 0.0)
        writer.append(FRAME, image="b")
        wait_for(lambda: listed() == ["0", "1"])


@pytest.mark.parametrize("image", ["only", None])
def test_a_position_is_told_before_the_first_frame_too_and_of_the_only_image(tmp_path, image):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **({} if image is None else {"images": [image]}), **LAYOUT) as writer:
        writer.update_metadata(position={"y": 4}, image=image)
        writer.append(FRAME, image=image, metadata={"position_y": 5})
    assert translations(path, "" if image is None else "0") == [[0.0, 4.0, 0.0]]


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"position": {"x": 1}}, "the position is of one image"),
        (
            {"position": {"x": "far"}, "image": "a"},
            "a position that cannot be.*x: Input should be a valid number",
        ),
        ({"position": {}, "image": "a"}, "expected x, y or z, or a place in the grid"),
        ({"position": {"z": 1}, "image": "flat"}, "a position along axes without a unit.*of z"),
        ({"attributes": {"shardwright": {"position": {"x": 1}}}, "image": "a"}, "is written by shardwright"),
    ],
)
def test_a_position_that_cannot_be_told_changes_nothing(tmp_path, update, words):
    flat = sw.default_layout((4, 2, SIZE, SIZE), "uint16", "tzyx", units={"y": "um", "x": "um"})
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, images=["a", {"name": "flat", "array": flat}], **LAYOUT) as writer:
        writer.append(FRAME, image="a")
        with pytest.raises(MetadataError, match=words):
            writer.update_metadata(**update)
    assert translations(path) == [None]


@pytest.mark.parametrize("told", [{"x": 1}, {"position": {"x": "far"}}, {"position": {"x": 1}, "more": 1}])
def test_an_update_that_tells_no_position_is_none(tmp_path, told):
    """Of a client of another make, or of a damaged file whose checksum holds."""
    with pytest.raises(MetadataError, match=r"an update that is none|a position that cannot be"):
        MetadataUpdate.of_json({"shardwright": told})
    path = tmp_path / "metadata.0.json"
    path.write_bytes(encode_checked({"format": 1, "attributes": {"shardwright": told}}))
    with pytest.raises(
        ShardFormatError, match=r"metadata\.0\.json: (an update that is none|a position that)"
    ):
        read_updates(tmp_path, 0)


def test_what_is_known_already_or_others_have_described_stays():
    array = sw.default_layout((4, SIZE, SIZE), "uint16", "tyx", scales={"x": 0.5}, units={"x": "um"})
    group, position = group_document(array, "a"), StagePosition(x=3)
    told = at_position(group, array, position)
    assert told == group_document(array, "a", None, position) != group
    assert at_position(told, array, StagePosition(x=4)) == told
    moved = at_position(told, array, StagePosition(x=4), again=True)
    assert moved == group_document(array, "a", None, StagePosition(x=4))
    (dataset,) = group["attributes"]["ome"]["multiscales"][0]["datasets"]
    dataset["coordinateTransformations"][0]["scale"] = [1.0, 9.0, 9.0]
    assert at_position(group, array, position) == group
    assert at_position(group, array, position, again=True) == group
    for others in ({}, {"attributes": {}}, {"attributes": {"ome": {"multiscales": []}}}):
        assert at_position(others, array, position) == others
        assert at_position(others, array, position, again=True) == others


def test_fields_of_a_plate_have_positions(tmp_path):
    path = tmp_path / "a.ome.zarr"
    fields = [{"name": "A/1/1", "position": {"x": 100}}]
    with sw.create(path, images=fields, plate=sw.Plate(rows=1, columns=1, fields=2), **LAYOUT) as writer:
        for field in "01":
            writer.append(FRAME, image=f"A/1/{field}")
    assert translations(path, "A/1/0") == [None]
    assert translations(path, "A/1/1") == [[0.0, 0.0, 100.0]]
    yaozarrs.validate_zarr_store(str(path))


def test_earlier_releases_are_told_of_no_position_that_there_is_none():
    array = sw.default_layout((4, SIZE, SIZE), "uint16", "tyx")
    other = sw.default_layout((4, SIZE, 2 * SIZE), "uint16", "tyx")
    spec = sw.AcquisitionSpec(array=array, images=["a", {"name": "b", "array": other}])
    assert "position" not in json.dumps(spec.to_json())
    stack = sw.default_layout((4, 3, SIZE, SIZE), "uint16", "tzyx", units={"z": "um"})
    told = parse_acquisition({"array": stack, "images": [{"name": "b", "position": {"z": 3}}]})
    assert parse_acquisition(told.to_json()) == told
