"""Folders that users name: of images, of the fields of wells; and the acquisitions of a plate. Checked before
a frame comes, found by every reader, kept by what a dead writer left."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaozarrs
import zarr
from tests.harness.python import commands
from tests.harness.store_contents import listed_images
from tests.properties.readers import READERS

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.model.errors import ShardFormatError, SpecError
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard.checked_json import encode_checked
from shardwright.shard.manifest import manifest_path
from shardwright.web import finished_stores

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 16
ARRAY = sw.default_layout((None, SIZE, SIZE), "uint16", "tyx", chunks={"t": 2}, shards={"t": 4})
PATHS = ["Pos0", "well.1/Pos-1_000", "well.1/a/b", "3"]
NAMES = [f"position {number}" for number in range(4)]
IMAGES = [{"name": name, "path": path} for name, path in zip(NAMES[:3], PATHS, strict=False)] + NAMES[3:]
FRAMES = 7  # of each image: a shard, and one in progress, whose last chunk is not full


def spec_of(images: Any = IMAGES, **more: Any) -> sw.AcquisitionSpec:
    return parse_acquisition({"array": ARRAY, "images": images, **more})


def frame(image: int, t: int) -> np.ndarray:
    return np.random.default_rng(100 * image + t).integers(1, 999, (SIZE, SIZE)).astype(np.uint16)


def send(writer: sw.Writer, first: int, stop: int) -> None:
    for t in range(first, stop):
        for number, name in enumerate(NAMES):
            writer.append(frame(number, t), image=name, index=(t,))


def check(path: Path) -> None:
    """Every reader finds all pixels in these folders, and the store is sound."""
    yaozarrs.validate_zarr_store(str(path))
    assert verify_store(path).ok
    assert listed_images(path) == PATHS
    for number, folder in enumerate(PATHS):
        expected = np.stack([frame(number, t) for t in range(FRAMES)])
        for reader, read in READERS.items():
            found = read(path / folder / "0")
            np.testing.assert_array_equal(found, expected, err_msg=f"{reader} of {folder}")
    table = sw.frame_table(path)
    assert set(table["image"]) == set(NAMES)
    assert not (path / ".shardwright").exists()


@pytest.fixture(scope="module")
def server():
    return commands()


def write_and_die(_: Any, path: str, settings: dict[str, Any]) -> None:
    writer = sw.create(path, spec_of(), **settings)
    send(writer, 0, 5)
    writer.flush()
    os._exit(0)


# ------------------------------------------------------------------ images


NO_PATHS = (
    *("/a", "../a", "a/../b", "a/..", "a//b", "a/", "", ".a", "a/.b", "a..b", "a.", "a b"),
    *("a\\b", "a:b", "\u00e4", "a\n", "a/b/c/d/e"),
)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        *(
            ([{"name": "a", "path": path}], "images.0.path: not a usable path in a store")
            for path in NO_PATHS
        ),
        ([{"name": "a", "path": "a" * 129}], "images.0.path: String should have at most 128 characters"),
        *(
            ([{"name": "a", "path": path}], "images.0.path: the path of other files of a store")
            for path in ("zarr.json", "OME", "ome/a", "frames", "Frames/a", "a/ZARR.json")
        ),
        ([{"name": "a", "path": "P"}, {"name": "b", "path": "p"}], "'a' and 'b' would have one folder, 'p'"),
        (
            ["a", {"name": "b", "path": "0"}],
            "'a' and 'b' would have one folder, '0'; that of an image without",
        ),
        ([{"name": "a", "path": "p"}, {"name": "b", "path": "P/q"}], "differ by upper and lower case alone"),
        (
            [{"name": "a", "path": "p/q"}, {"name": "b", "path": "p"}],
            "'a' would lie inside the folder of 'b'",
        ),
        ([{"name": "a", "path": "1/a"}, "b"], "'a' would lie inside the folder of 'b'"),
    ],
)
def test_a_path_that_cannot_be_is_refused_before_a_frame(tmp_path, images, words):
    with pytest.raises(SpecError) as caught:
        sw.create(tmp_path / "a.ome.zarr", ARRAY, images=images)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["a" * 128, "a.b-c_d/0/1/zarr.jso", "0", "1.2.3", "a/frames/ome"])
def test_a_path_that_can_be_is_taken(path):
    assert spec_of([{"name": "a", "path": path}]).paths == (f"{path}/0",)


def test_images_lie_where_they_are_told_to(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec_of()) as writer:
        send(writer, 0, FRAMES)
    check(path)
    assert sorted(p.name for p in path.iterdir()) == ["3", "OME", "Pos0", "frames", "well.1", "zarr.json"]
    above = zarr.open_group(path / "well.1", mode="r")
    assert dict(above.attrs) == {}
    assert np.array_equal(above["a/b/0"][6], frame(2, 6))
    assert np.array_equal(sw.open_array(path / "well.1/a/b")[3], frame(2, 3))
    assert sw.open_xarray(path, image="position 2").sizes["t"] == FRAMES
    assert sw.open_xarray(path, image="well.1/a/b").sizes["t"] == FRAMES
    xml = (path / "OME/METADATA.ome.xml").read_text()
    assert all(f'<Image ID="Image:{p}" Name="{n}">' in xml for p, n in zip(PATHS, NAMES, strict=True))


def test_an_image_without_a_frame_is_not_there_nor_the_folders_above_it(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec_of()) as writer:
        writer.append(frame(0, 0), image=NAMES[0])
    assert not (path / "well.1").exists()
    yaozarrs.validate_zarr_store(str(path))


@pytest.mark.parametrize(
    "settings", [{}, {"live": "index"}, {"live": "append"}], ids=["sealed", "live index", "live append"]
)
@pytest.mark.parametrize("ending", ["resumed", "recovered"])
def test_a_dead_writers_store_goes_on_in_its_folders(tmp_path, server, settings, ending):
    path = tmp_path / "a.ome.zarr"
    assert server.start(write_and_die, str(path), settings).wait() == 0
    working = {file.name for file in (path / ".shardwright").rglob("*.partial")}
    assert "Pos0.0.c.1.0.0.partial" in working
    assert "well+1.a.b.0.c.1.0.0.partial" in working, "one name for each path"
    manifest = json.loads(manifest_path(path / ".shardwright", 1).read_text())
    assert manifest["format"] > 1, "which is all that 0.2.0 takes: it refuses this store by its version"
    store = UnfinishedStore.read(path)
    assert store.open_shards() >= {f"{folder}/0/c/1/0/0" for folder in PATHS}
    live = sw.open(path)
    for number, folder in enumerate(PATHS):
        found = zarr.open_array(live, path=f"{folder}/0", mode="r")[:]
        np.testing.assert_array_equal(found, np.stack([frame(number, t) for t in range(5)]))
    live.close()
    if ending == "resumed":
        with sw.resume(path) as writer:
            send(writer, 5, FRAMES)
        check(path)
        return
    pool = WorkerPool(2)
    pool.start()
    try:
        report = recover_store(path, pool, threads=2)
    finally:
        pool.stop()
    assert report.shard_rows
    assert verify_store(path).ok
    assert np.array_equal(sw.open_array(path / PATHS[2])[4], frame(2, 4))


def test_levels_are_beside_the_array(tmp_path):
    path = tmp_path / "a.ome.zarr"
    array = ARRAY.model_copy(update={"levels": sw.Levels(count=2)})
    with sw.create(path, array, images=IMAGES) as writer:
        send(writer, 0, FRAMES)
    check(path)
    assert zarr.open_array(path / "well.1/a/b/2", mode="r").shape == (FRAMES, SIZE // 4, SIZE // 4)


@pytest.mark.parametrize("path", ["../out", "/out", "frames", "a/../../out"])
def test_a_manifest_with_a_path_that_leads_out_is_refused(tmp_path, server, path):
    """Also with a checksum that holds: nothing is created, written or deleted outside of the store."""
    store = tmp_path / "a.ome.zarr"
    assert server.start(write_and_die, str(store), {}).wait() == 0
    name = manifest_path(store / ".shardwright", 1)
    facts = json.loads(name.read_text())
    del facts["crc32c"]
    facts["spec"]["images"][0]["path"] = path
    name.write_bytes(encode_checked(facts))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((SpecError, ShardFormatError), match=r"not a usable path|path of other files"):
        sw.resume(store)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("series", ["../other.ome.zarr/0", "/etc", "a/../../b"])
def test_metadata_that_name_an_image_outside_of_the_store_are_refused(tmp_path, series):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec_of()) as writer:
        writer.append(frame(0, 0), image=NAMES[0])
    document = json.loads((path / "OME/zarr.json").read_text())
    document["attributes"]["ome"]["series"] = [series]
    (path / "OME/zarr.json").write_text(json.dumps(document))
    with pytest.raises(ShardFormatError, match="leads out of the group"):
        verify_store(path)


def test_a_specification_says_it_as_short_as_it_can():
    """It travels in one message, also of thousands of positions; without paths it is as before."""
    spec = spec_of()
    assert spec.to_json()["images"] == [
        {"name": "position 0", "path": "Pos0"},
        {"name": "position 1", "path": "well.1/Pos-1_000"},
        {"name": "position 2", "path": "well.1/a/b"},
        "position 3",
    ]
    assert parse_acquisition(spec.to_json()) == spec
    assert parse_acquisition(spec.to_json()).folders == tuple(PATHS)
    assert spec_of(["a", "b"]).to_json()["images"] == ["a", "b"]
    assert spec_of(["a", "b"]).folders == ("0", "1")
    assert parse_acquisition(ARRAY).folders == ("",)


# ------------------------------------------------------------------ plates


DAYS = [
    {"id": 3, "name": "day 1", "fields": ["before", "c"], "start": 1_772_700_000, "end": 1_772_703_600},
    {"id": 7, "fields": ["after"], "start": "2026-03-06T09:00:00+01:00"},
]
PLATE = {"rows": 2, "columns": 2, "fields": ["before", "after", "c"]}


@pytest.mark.parametrize(
    ("plate", "words"),
    [
        ({"fields": 0}, "plate.fields: expected 1 to 16384, or their names, got 0"),
        ({"fields": True}, "plate.fields: expected 1 to 16384, or their names, got True"),
        ({"fields": []}, "plate.fields: expected 1 to 16384, or their names, got []"),
        ({"fields": ["a", 1]}, "plate.fields: expected 1 to 16384, or their names, got ['a', 1]"),
        ({"fields": ["a", "A"]}, "plate.fields: names must differ, got ['a', 'A']"),
        *(
            ({"fields": [name]}, "is not of letters and digits alone, at most 16")
            for name in ("a/b", "..", "a.b", "a_b", "", "a" * 17)
        ),
        ({"fields": ["a", "b"], "acquisitions": [DAYS[0]]}, "each field of a well belongs to one of them"),
        ({"fields": 2, "acquisitions": [{"id": 0}, {"id": 1}]}, "'0' is in 0, and the plate has 1"),
        ({"fields": 1, "acquisitions": [{"id": 0}, {"id": 0}]}, "acquisitions: ids must differ, got [0, 0]"),
        (
            {"fields": 1, "acquisitions": [{"id": n, "fields": ["0"]} for n in range(2)]},
            "'0' is in 2, and the plate has 1",
        ),
        ({"acquisitions": [{"id": -1}]}, "greater than or equal to 0"),
        ({"acquisitions": [{"id": 0, "start": 5, "end": 3}]}, "end: is 2 s before start"),
        ({"acquisitions": [{"id": 0, "start": "2026-03-05"}]}, "expected seconds since 1970, or a time with"),
        (
            {"acquisitions": [{"id": 0, "start": "2026-13-05T09:00Z"}]},
            "expected seconds since 1970, or a time",
        ),
        ({"acquisitions": [{"id": 0, "start": datetime(2026, 3, 5)}]}, "with its zone"),  # noqa: DTZ001
    ],
)
def test_a_plate_that_cannot_be_is_refused(plate, words):
    with pytest.raises(SpecError) as caught:
        parse_acquisition({"array": ARRAY, "plate": {"rows": 1, "columns": 1, **plate}})
    assert words in str(caught.value)


def test_an_image_of_a_plate_lies_in_its_well(tmp_path):
    plate = {"rows": 1, "columns": 1}
    with pytest.raises(
        SpecError, match=r"the plate may name the fields of its wells, such as fields=\['x'\]"
    ):
        parse_acquisition({"array": ARRAY, "plate": plate, "images": [{"name": "A/1/0", "path": "x"}]})


def ome_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "zarr.json").read_text())["attributes"]["ome"]
    return found


def test_fields_have_their_names_and_acquisitions(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, ARRAY, plate={**PLATE, "acquisitions": DAYS}) as writer:
        for number, field in enumerate(("before", "after", "c")):
            writer.append(frame(number, 0), image=f"B/2/{field}")
    yaozarrs.validate_zarr_store(str(path))
    assert verify_store(path).ok
    assert listed_images(path) == ["B/2/before", "B/2/after", "B/2/c"]
    assert np.array_equal(zarr.open_array(path / "B/2/after/0", mode="r")[0], frame(1, 0))
    plate = ome_of(path)["plate"]
    assert plate["field_count"] == 3
    assert plate["acquisitions"] == [
        {
            "id": 3,
            "name": "day 1",
            "maximumfieldcount": 2,
            "starttime": 1_772_700_000,
            "endtime": 1_772_703_600,
        },
        {"id": 7, "maximumfieldcount": 1, "starttime": 1_772_784_000},
    ]
    assert ome_of(path / "B/2")["well"]["images"] == [
        {"path": "before", "acquisition": 3},
        {"path": "after", "acquisition": 7},
        {"path": "c", "acquisition": 3},
    ]


def test_the_only_acquisition_has_all_fields_and_the_times_that_nobody_said(tmp_path):
    path, before = tmp_path / "a.ome.zarr", datetime.now(UTC)
    with sw.create(path, ARRAY, plate={**PLATE, "acquisitions": [{"id": 5, "name": "all"}]}) as writer:
        writer.append(frame(0, 0), image="A/1/c")
    (acquisition,) = ome_of(path)["plate"]["acquisitions"]
    times = acquisition.pop("starttime"), acquisition.pop("endtime")
    assert acquisition == {"id": 5, "name": "all", "maximumfieldcount": 3}
    assert int(before.timestamp()) <= times[0] <= times[1] <= datetime.now(UTC).timestamp()
    assert ome_of(path / "A/1")["well"]["images"] == [{"path": "c", "acquisition": 5}]


def test_a_time_that_was_said_is_not_completed_by_ours(tmp_path):
    """An end years ago would come before the start of the writer."""
    path, plate = tmp_path / "a.ome.zarr", {**PLATE, "acquisitions": [{"id": 0, "end": 1_772_703_000}]}
    with sw.create(path, ARRAY, plate=plate) as writer:
        writer.append(frame(0, 0), image="A/1/c")
    assert ome_of(path)["plate"]["acquisitions"] == [
        {"id": 0, "endtime": 1_772_703_000, "maximumfieldcount": 3}
    ]


@pytest.mark.parametrize("more", [{"name": "a\nb"}, {"start": True}])
def test_an_acquisition_of_a_plate_that_cannot_be_is_refused(more):
    with pytest.raises(SpecError):
        parse_acquisition({"array": ARRAY, "plate": {**PLATE, "acquisitions": [{"id": 0, **more}]}})


def test_a_plate_is_the_same_through_json():
    spec = parse_acquisition({"array": ARRAY, "plate": {**PLATE, "acquisitions": DAYS}})
    assert parse_acquisition(json.loads(json.dumps(spec.to_json()))) == spec
    plain = parse_acquisition({"array": ARRAY, "plate": {"rows": 1, "columns": 1, "fields": 2}})
    assert plain.to_json()["plate"] == {"name": "plate", "rows": ["A"], "columns": ["1"], "fields": 2}


def test_a_running_plate_tells_readers_of_its_acquisitions(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", ARRAY, plate={**PLATE, "acquisitions": DAYS}) as writer:
        writer.append(frame(0, 0), image="A/1/after")
        writer.flush()
        live = sw.open(writer.path)
        assert live.view.document("A/1")["attributes"]["ome"]["well"]["images"] == [
            {"path": "after", "acquisition": 7}
        ]
        live.close()


def test_an_image_is_found_by_its_name_before_another_one_in_a_folder_of_that_name(tmp_path):
    path = tmp_path / "a.ome.zarr"
    images = [{"name": "Pos1", "path": "Pos0"}, {"name": "Pos0", "path": "Pos1"}, {"name": "c", "path": "d"}]
    with sw.create(path, ARRAY, images=images) as writer:
        for value, name in enumerate(("Pos1", "Pos0", "c")):
            writer.append(np.full((SIZE, SIZE), value, np.uint16), image=name)
    values = [int(sw.open_xarray(path, image=name)[0].max()) for name in ("Pos1", "Pos0", "c", "d")]
    assert values == [0, 1, 2, 2]

    read = finished_stores.FinishedStores(tmp_path).find("a.ome.zarr").reads.document
    for wanted, folders in ((["Pos0"], ["Pos1"]), (["d", "Pos1"], ["Pos0", "d"])):
        assert [at for _, at in finished_stores.find_images(read, wanted)] == folders
