"""OME-Zarr 0.6 beside 0.5: one setting for all that writes, and every reader of ours reads both."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.ome_forms import (
    add_labels,
    check_ome_forms,
    labels_of,
    ome_groups,
    places_of,
    versions_of,
)
from tests.harness.writing import how
from tests.repack.images import POLITE, run_here

import shardwright as sw
from shardwright.array import ome_version
from shardwright.array.acquisition_spec import in_ome_version, parse_acquisition
from shardwright.array.metadata import group_document
from shardwright.array.ome import at_position
from shardwright.array.stage_position import StagePosition
from shardwright.integrations.napari.layers import DisplayedStore
from shardwright.model.errors import ShardFormatError, ShardwrightError, SpecError
from shardwright.read.store import position_above, position_below
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store
from shardwright.shard.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

# zarr-python, of consolidated metadata
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
SIZE = 16
LAYOUT: dict[str, Any] = {
    "shape": (None, 2, SIZE, SIZE),
    "dtype": "uint16",
    "axes": "tcyx",
    "scales": {"y": 0.5, "x": 0.5},
    "units": {"y": "um", "x": "um"},
    "channels": ["DAPI", "FITC"],
}
FRAME = np.full((SIZE, SIZE), 7, np.uint16)
TILES = [sw.Image(name="left", position={"x": 100, "y": -8.3}), sw.Image(name="right", position={"x": 107.9})]
NESTED = [  # two in one group, one as deep as may be
    sw.Image(name="left", position={"x": 100, "y": -8.3}, path="well.1/Pos0"),
    sw.Image(name="right", position={"x": 107.9}, path="well.1/Pos1"),
    sw.Image(name="deep", position={"x": 200}, path="a/b/c/d"),
]
STORES: dict[str, dict[str, Any]] = {
    "one": {},
    "positions": {"images": TILES},
    "nested positions": {"images": NESTED},
    "without positions": {"images": ["a", "b"]},
    "a plate": {
        "plate": sw.Plate(rows=1, columns=2),
        "images": [sw.Image(name="A/2/0", position={"x": 5})],
    },
    "days of a plate": {
        "plate": sw.Plate(
            rows=1,
            columns=1,
            fields=["left", "right"],
            acquisitions=[{"id": 3, "fields": ["left"]}, {"id": 7, "fields": ["right"], "name": "later"}],
        ),
        "images": [sw.Image(name="A/1/right", position={"x": 5})],
    },
}


def write(path: Path, version: str = "0.6", **facts: Any) -> Path:
    with sw.create(path, **how(**{**LAYOUT, "ome_version": version, **facts})) as writer:
        for image in writer._acquisition.spec.names:
            for channel in range(2):
                named = {"image": image} if image else {}
                writer.append(FRAME, index=(0, channel), **named)
    return path


@pytest.mark.parametrize("kind", STORES)
def test_a_store_says_in_06_what_it_says_in_05(tmp_path, kind):
    """Whatever it is written with, see tests/covering."""
    old, new = (
        write(tmp_path / f"{version}.ome.zarr", version, levels=2, live="append", **STORES[kind])
        for version in ("0.5", "0.6")
    )
    check_ome_forms(old, "0.5")
    check_ome_forms(new, "0.6")
    for folder, levels_there in places_of(old).items():
        np.testing.assert_allclose(places_of(new)[folder], levels_there)
    assert ome_groups(old).keys() == ome_groups(new).keys()
    assert ("scene" in ome_groups(new)["."]) == (kind in ("positions", "nested positions"))
    assert verify_store(new).ok


def test_a_scene_has_the_positions_and_images_have_none(tmp_path):
    path = write(tmp_path / "a.ome.zarr", levels=1, images=[*TILES, "unknown"])
    scene = ome_groups(path)["."]["scene"]
    assert [axis["name"] for axis in scene["coordinateSystems"][0]["axes"]] == ["t", "c", "y", "x"]
    assert [each.get("translation") for each in scene["coordinateTransformations"]] == [
        [0, 0, -8.3, 100.0],
        [0, 0, 0, 107.9],
        None,
    ]
    (multiscale,) = ome_groups(path)["0"]["multiscales"]
    assert multiscale["datasets"][0]["coordinateTransformations"] == [
        {
            "type": "scale",
            "scale": [1.0, 1.0, 0.5, 0.5],
            "input": {"path": "0"},
            "output": {"name": "intrinsic"},
        }
    ]


def test_a_position_that_comes_with_the_first_frame_is_in_the_scene_at_the_end(tmp_path):
    path = tmp_path / "a.ome.zarr"
    pid = os.fork()
    if pid == 0:
        writer = sw.create(path, images=["told", TILES[1]], ome_version="0.6", **LAYOUT)
        writer.append(FRAME, image="told", metadata={"position_x": 5})
        writer.append(FRAME, image="right")
        writer.update_metadata(position={"x": 50}, image="right")
        writer.flush()
        os._exit(1)
    os.waitpid(pid, 0)
    with sw.resume(path) as writer:
        writer.append(FRAME, image="told", metadata={"position_x": 6})
    check_ome_forms(path, "0.6")
    relations = ome_groups(path)["."]["scene"]["coordinateTransformations"]
    assert [each["translation"][-1] for each in relations] == [5.0, 50.0]


def relations_of(ome: dict[str, Any]) -> dict[str, list[float] | None]:
    """Where the scene of a group has its images, by folder."""
    relations = ome["scene"]["coordinateTransformations"]
    return {each["input"]["path"]: each.get("translation") for each in relations}


def test_folders_of_images_are_named_in_series_and_scene(tmp_path):
    groups = ome_groups(write(tmp_path / "a.ome.zarr", images=NESTED))
    folders = ["well.1/Pos0", "well.1/Pos1", "a/b/c/d"]
    assert groups["OME"]["series"] == list(relations_of(groups["."])) == folders
    assert groups.keys() == {".", "OME", *folders}


def test_positions_that_are_told_later_are_in_the_scene_and_stay(tmp_path):
    """Also for those who watch; one that was declared is replaced."""
    path = tmp_path / "a.ome.zarr"
    images = [NESTED[0], sw.Image(name="told", path="well.1/Pos1"), sw.Image(name="of a frame", path="z")]
    with sw.create(path, images=images, ome_version="0.6", **LAYOUT) as writer:
        for image in ("left", "told"):
            writer.append(FRAME, image=image)
        writer.flush()
        view = sw.open(path).view
        assert relations_of(view.document("")["attributes"]["ome"])["well.1/Pos1"] is None
        writer.update_metadata(position={"x": 5, "grid_row": 3}, image="told")
        writer.update_metadata(position={"x": 60}, image="left")
        seen = relations_of(view.document("")["attributes"]["ome"])
        assert {folder: at[-1] for folder, at in seen.items()} == {"well.1/Pos0": 60.0, "well.1/Pos1": 5.0}
        writer.append(FRAME, image="of a frame", metadata={"position_x": 7})
        writer.update_metadata({"later": 1})
        writer.update_metadata({"later": 1}, image="of a frame")
    check_ome_forms(path, "0.6")
    found = {folder: at[-1] for folder, at in relations_of(ome_groups(path)["."]).items()}
    assert found == {"well.1/Pos0": 60.0, "well.1/Pos1": 5.0, "z": 7.0}
    for folder in found:
        attributes = json.loads((path / folder / "zarr.json").read_text())["attributes"]
        ((transformation,),) = (
            each["coordinateTransformations"]
            for multiscale in attributes["ome"]["multiscales"]
            for each in multiscale["datasets"]
        )
        assert transformation["type"] == "scale", "the scene has the position"
        assert attributes.get("shardwright") == ({"grid": {"row": 3}} if folder == "well.1/Pos1" else None)


@pytest.mark.parametrize("version", ["0.5", "0.6"])
def test_a_position_of_an_image_with_its_own_is_replaced(tmp_path, version):
    """A plate has no scene."""
    path = tmp_path / "a.ome.zarr"
    facts: dict[str, Any] = {"plate": sw.Plate(rows=1, columns=1), "levels": 1}
    with sw.create(path, ome_version=version, **LAYOUT, **facts) as writer:
        writer.append(FRAME)
        for x in (5, 6):
            writer.update_metadata(position={"x": x}, image="A/1/0")
    check_ome_forms(path, version)
    assert [translation[-1] for _, translation in places_of(path)["A/1/0"]] == [6.0, 6.25]


def test_images_with_other_axes_keep_their_positions(tmp_path):
    """No translation relates a stack to a plane."""
    arrays = [
        sw.default_layout((2, SIZE, SIZE), "uint8", "tyx", units={"x": "um", "y": "um"}),
        sw.default_layout((2, 2, SIZE, SIZE), "uint8", "tzyx", units={"x": "um", "y": "um"}),
    ]
    images = [{"name": n, "array": a, "position": {"x": 3}} for n, a in zip("ab", arrays, strict=True)]
    spec = {"images": images, "ome_version": "0.6"}
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        writer.append(FRAME.astype("uint8"), image="a")
        writer.append(FRAME.astype("uint8"), image="b")
    check_ome_forms(writer.path, "0.6")
    assert "scene" not in ome_groups(writer.path)["."]
    assert [levels[0][1][-1] for levels in places_of(writer.path).values()] == [3.0, 3.0]


def test_a_running_store_is_seen_in_its_version(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", images=TILES, ome_version="0.6", **LAYOUT) as writer:
        writer.append(FRAME, image="right")
        writer.flush()
        view = sw.open(writer.path).view
        assert view.document("1")["attributes"]["ome"]["version"] == "0.6"
        assert view.document("OME")["attributes"]["ome"]["version"] == "0.6"
        (relation,) = view.document("")["attributes"]["ome"]["scene"]["coordinateTransformations"]
        assert relation["input"]["path"] == "1"
        np.testing.assert_allclose(sw.open_xarray(writer.path, image="right")["x"][:2], [107.9, 108.4])


def test_a_specification_that_says_its_version_keeps_to_it(tmp_path):
    array = sw.default_layout((None, SIZE, SIZE), "uint16", "tyx")
    spec = sw.AcquisitionSpec(array=array, ome_version="0.6")
    assert parse_acquisition(spec.to_json()) == spec
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        writer.append(FRAME)
    assert versions_of(writer.path) == {"0.6"}
    with pytest.raises(SpecError, match="another ome_version than the specification"):
        sw.create(tmp_path / "b.ome.zarr", spec, ome_version="0.5")
    with pytest.raises(SpecError, match=r"unknown ome_version; expected one of 0\.5, 0\.6"):
        sw.create(tmp_path / "b.ome.zarr", ome_version="0.7", **LAYOUT)
    assert not (tmp_path / "b.ome.zarr").exists()


def test_nothing_tells_earlier_releases_of_a_version_that_they_write():
    array = sw.default_layout((None, SIZE, SIZE), "uint16", "tyx")
    spec = in_ome_version("0.5", sw.AcquisitionSpec(array=array, images=["a"], ome_version="0.5"))
    assert "ome_version" not in spec.to_json()
    told = in_ome_version("0.6", sw.AcquisitionSpec(array=array))
    assert told.to_json()["ome_version"] == "0.6"
    assert "ome_version" not in told.to_json(for_client=True)


def test_earlier_releases_refuse_an_unfinished_store_of_06(tmp_path):
    """They would end it with documents of 0.5. The number of the format says it, and for no other store."""
    for version, number in (("0.5", 8), ("0.6", 9)):
        writer = sw.create(tmp_path / f"{version}.ome.zarr", ome_version=version, **LAYOUT)
        workspace = writer.path / ".shardwright"
        (manifest,) = workspace.glob("acquisition.*.json")
        assert json.loads(manifest.read_text())["format"] == number
        assert (read_manifest(workspace).acquisition.ome_version or "0.5") == version
        writer.close()


def test_levels_that_are_made_later_are_of_the_version_of_their_image(tmp_path):
    """Also in the coordinate system of another program's name."""
    path = write(tmp_path / "a.ome.zarr")
    document = path / "zarr.json"
    document.write_text(document.read_text().replace("intrinsic", "physical"))
    assert add_levels(path, PyramidOptions(2), run_here, throttle=POLITE).ok
    check_ome_forms(path, "0.6")
    expected = write(tmp_path / "b.ome.zarr", levels=2)
    assert places_of(path) == places_of(expected)
    assert verify_store(path).ok


def test_an_image_that_is_made_of_one_of_a_scene_has_its_position(tmp_path):
    path = write(tmp_path / "a.ome.zarr", images=TILES, levels=1)
    options, new = RechunkOptions({"y": 8}), tmp_path / "b.ome.zarr"
    assert write_new_store(plan_new_store(path / "0", options), new, options, run_here, throttle=POLITE).ok
    check_ome_forms(tmp_path / "b.ome.zarr", "0.6")
    np.testing.assert_allclose(places_of(tmp_path / "b.ome.zarr")["."], places_of(path)["0"])


@pytest.mark.parametrize("folder", ["well.1/Pos1", "well.1", "."])
def test_an_image_in_folders_is_read_at_its_position(tmp_path, folder):
    """By whoever opens the store, or a group of it, or makes a store of the image."""
    path = write(tmp_path / "a.ome.zarr", images=NESTED, levels=1)
    view, multiscale = sw.open(path / folder).view, ome_groups(path)["well.1/Pos1"]["multiscales"][0]

    def scene_of(group: str) -> ome_version.Scene:
        return ome_version.Scene(ome_version.ome_in(view.document(group)))

    below = "well.1/Pos1".removeprefix(folder).removeprefix("/") if folder != "." else "well.1/Pos1"
    assert position_below(path / folder, below, scene_of, multiscale)["x"] == 107.9
    options, new = RechunkOptions({"y": 8}), tmp_path / "b.ome.zarr"
    plan = plan_new_store(path / "well.1/Pos1", options)
    assert write_new_store(plan, new, options, run_here, throttle=POLITE).ok
    np.testing.assert_allclose(places_of(new)["."], places_of(path)["well.1/Pos1"])
    np.testing.assert_allclose(sw.open_xarray(path, image="right")["x"][0], 107.9)
    np.testing.assert_allclose(sw.open_xarray(path / "well.1/Pos1")["x"][0], 107.9)


@pytest.mark.parametrize("name", ["b.ome.zarr", "b.ozx"])
@pytest.mark.parametrize("version", ["0.5", "0.6"])
def test_an_image_that_is_copied_out_of_its_store_keeps_its_position(tmp_path, name, version):
    """With its labels, also where their metadata are of the older version; and their copies."""
    path = write(tmp_path / "a.ome.zarr", images=NESTED, levels=1)
    image, target = path / "well.1/Pos0", tmp_path / "copies" / name
    target.parent.mkdir()
    add_labels(image, labels_of(version, 0, 1))
    zarr.consolidate_metadata(image)
    options = MoveOptions(str(target), throttle=POLITE)

    def stopped(tasks):
        yield from islice(run_here(tasks), 1)
        raise KeyboardInterrupt

    assert move_store(image, options, stopped).interrupted
    assert move_store(image, options, run_here).ok
    assert verify_store(target).ok
    for level in (0, 1):
        found, expected = (sw.open_xarray(where, level=level) for where in (target, image))
        for axis in "yx":
            np.testing.assert_allclose(found[axis], expected[axis])
    np.testing.assert_allclose(sw.open_xarray(target)["x"][0], 100)
    if name == "b.ome.zarr":
        check_ome_forms(target, None if version == "0.5" else "0.6")
        np.testing.assert_allclose(places_of(target)["labels/cells"][0][1], [-8.3, 101])
        np.testing.assert_allclose(sw.open_xarray(target / "labels/cells")["x"][0], 101)


def test_a_whole_store_in_one_file_says_what_it_said_in_a_folder(tmp_path):
    path, target = write(tmp_path / "a.ome.zarr", images=TILES, levels=1), tmp_path / "a.ozx"
    assert move_store(path, MoveOptions(str(target), throttle=POLITE), run_here).ok
    with zipfile.ZipFile(target) as archive:
        assert json.loads(archive.comment)["ome"]["version"] == "0.6"
    assert verify_store(target).ok
    for image, x in (("left", 100), ("right", 107.9)):
        np.testing.assert_allclose(sw.open_xarray(target, image=image)["x"][0], x)
    layers = DisplayedStore(target).layers()
    assert {layer.facts["translate"][-1] for layer in layers} == {100.0, 107.9}


@pytest.mark.parametrize(("image", "x"), [("left", 100.0), ("right", 107.9)])
def test_xarray_has_the_position_of_a_scene(tmp_path, image, x):
    path = write(tmp_path / "a.ome.zarr", images=TILES, levels=1)
    found = sw.open_xarray(path, image=image)
    assert found.dims == ("t", "c", "y", "x")
    np.testing.assert_allclose(found["x"][:2], [x, x + 0.5])
    assert found["x"].attrs["units"] == "micrometer"
    np.testing.assert_allclose(sw.open_xarray(path, image=image, level=1)["x"][0], x + 0.25)
    folder = path / ("0" if image == "left" else "1")
    np.testing.assert_allclose(sw.open_xarray(folder)["x"][:2], [x, x + 0.5])


@pytest.mark.parametrize(
    "relation",
    [
        {"type": "affine", "affine": [[1]]},
        {"type": "scale", "scale": [2.0, 2.0]},
        {"type": "translation", "translation": [1.0]},
        {"type": "translation", "translation": ["far", 0]},
    ],
)
def test_a_scene_of_others_that_is_not_understood_is_refused(relation):
    scene = {
        "coordinateSystems": [{"name": "world", "axes": [{"name": "y"}, {"name": "x"}]}],
        "coordinateTransformations": [
            {**relation, "input": {"path": "0", "name": "a"}, "output": {"name": "world"}}
        ],
    }
    with pytest.raises(ShardFormatError, match="not supported"):
        ome_version.Scene({"scene": scene}).position_of("0")
    assert ome_version.Scene({"scene": scene}).position_of("1") is None


@pytest.mark.parametrize(
    "scene",
    [
        7,
        {"coordinateSystems": 7},
        {"coordinateTransformations": [{"input": 7}]},
        {
            "coordinateSystems": [{"name": "world", "axes": [7]}],
            "coordinateTransformations": [{"input": {"path": "0"}, "output": {"name": "world"}}],
        },
    ],
)
def test_a_scene_that_is_none_is_refused(scene):
    with pytest.raises(ShardFormatError, match="is none"):
        ome_version.Scene({"scene": scene}).position_of("0")


SCALE, TRANSLATION = {"type": "scale", "scale": [3, 4]}, {"type": "translation", "translation": [1, 2]}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], ([1, 1], [0, 0])),
        ([{"type": "identity"}, SCALE, TRANSLATION], ([3, 4], [1, 2])),
        ([TRANSLATION, SCALE], ([3, 4], [3, 8])),
        ([SCALE, SCALE, TRANSLATION, TRANSLATION], ([9, 16], [2, 4])),
        ([TRANSLATION, SCALE, TRANSLATION], ([3, 4], [4, 10])),
    ],
)
def test_transformations_of_others_are_read_one_after_another(steps, expected):
    for given in (steps, [{"type": "sequence", "transformations": steps}]):
        assert ome_version.scale_and_translation({"coordinateTransformations": given}, 2) == expected


@pytest.mark.parametrize(
    "steps",
    [
        [{"type": "sequence", "transformations": [{"type": "sequence", "transformations": [SCALE]}]}],
        [{"type": "scale", "scale": [1e300, 1]}] * 2,
        [{"type": "rotation", "rotation": [[1, 0], [0, 1]]}],
        [{"type": "translation", "translation": [1]}],
        [7],
    ],
)
def test_transformations_that_are_not_understood_are_refused(steps):
    with pytest.raises(ShardFormatError, match="not supported"):
        ome_version.scale_and_translation({"coordinateTransformations": steps}, 2)


@pytest.mark.parametrize("version", ["0.5", "0.6"])
@pytest.mark.parametrize("images", [TILES, NESTED], ids=["beside", "nested"])
def test_labels_are_read_where_their_image_is(tmp_path, images, version):
    """They have fewer axes than it, and the scene names the image alone."""
    path = write(tmp_path / "a.ome.zarr", images=images)
    image = ome_groups(path)["OME"]["series"][0]
    cells = add_labels(path / image, labels_of(version, 0, 1))
    view = sw.open(path).view

    def scene_of(group: str) -> ome_version.Scene:
        return ome_version.Scene(ome_version.ome_in(view.document(group)))

    (multiscale,) = ome_groups(path)[f"{image}/labels/cells"]["multiscales"]
    assert position_below(path, f"{image}/labels/cells", scene_of, multiscale)["x"] == 100
    found = sw.open_xarray(cells)
    np.testing.assert_allclose((found["y"][0], found["x"][0]), (-8.3, 101))
    layers = DisplayedStore(cells).layers()
    np.testing.assert_allclose(layers[0].facts["translate"], [-8.3, 101])
    assert verify_store(path).ok


@pytest.mark.parametrize("name", ["zarr.json", "0/zarr.json"])
def test_attributes_that_are_none_end_in_an_error_that_says_so(tmp_path, name):
    path = write(tmp_path / "a.ome.zarr", images=TILES)
    multiscale = ome_groups(path)["0"]["multiscales"][0]
    document = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**document, "attributes": [1]}))
    with suppress(ShardwrightError):
        assert not verify_store(path).ok
    with suppress(ShardwrightError):
        assert position_above(path / "0", multiscale) in ({}, {"t": 0, "c": 0, "y": -8.3, "x": 100})
    for opened in (path, path / "0"):
        with suppress(ShardwrightError):
            sw.open_xarray(opened, image="left")
        with suppress(ShardwrightError):
            DisplayedStore(opened).layers()


def test_attributes_of_labels_that_are_none_do_not_hinder_the_check(tmp_path):
    path = write(tmp_path / "a.ome.zarr", images=TILES)
    cells = add_labels(path / "0", labels_of("0.6"))
    (cells / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": [1]}')
    assert verify_store(path).ok


@pytest.mark.parametrize(("version", "is_known"), [("0.5", True), ("0.4", False), ("0.6.1", False)])
def test_another_version_in_the_folder_of_an_image_is_a_warning(tmp_path, version, is_known):
    path = write(tmp_path / "a.ome.zarr", images=TILES)
    add_labels(path / "0", {"version": version, **({} if is_known else {"labels": []})})
    report = verify_store(path)
    assert report.ok
    (warning,) = report.warnings
    assert f"In folders of images: 2 of {version}, such as 0/labels" in warning.what


@pytest.mark.parametrize("version", ["0.5", "0.6"])
@pytest.mark.parametrize("levels", [0, 1])
def test_what_others_say_of_a_transformation_is_not_lost(version, levels):
    """A position that is told once more would make it anew."""
    array = sw.default_layout((4, SIZE, SIZE), "uint8", "tyx", units={"x": "um"}, levels=levels)
    group = group_document(array, "a", None, StagePosition(x=5), version)
    later = group_document(array, "a", None, StagePosition(x=6), version)
    assert at_position(group, array, StagePosition(x=6), again=True) == later
    dataset = group["attributes"]["ome"]["multiscales"][0]["datasets"][levels]
    dataset["coordinateTransformations"][0]["name"] = "theirs"
    assert at_position(group, array, StagePosition(x=6), again=True) == group
