"""Our backend of ome-writers: what its settings become, in process and through a daemon, and what is refused.
Its own suite, which ``test_suite`` runs, knows nothing of daemons, receipts and frame tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import ome_writers as omew
import pytest
import tensorstore
from ome_writers import _stream
from tests.harness.daemon import serving
from tests.harness.documents import blocks, run_block
from tests.harness.json_process import wait_for

import shardwright as sw
from shardwright.integrations import ome_writers as door
from shardwright.integrations.ome_writers import register, writer_of
from shardwright.read.live_view import LiveView

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
UNITS = {"y": "micrometer", "x": "micrometer", "z": "micrometer", "t": "second"}
CONFIG = """
output: {root: data, create: true, in_memory: true}
ingest: {endpoints: ["ipc://ingest.sock"]}
workers: {threads: 2}
memory: {budget: 1GiB}
"""


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    register()
    for table in ("AVAILABLE_BACKENDS", "BACKENDS", "VALID_BACKEND_NAMES"):
        monkeypatch.setattr(_stream, table, getattr(_stream, table).copy())


def dimension(name, count, **more):
    return omew.Dimension(name=name, count=count, **({"unit": UNITS[name]} if name in UNITS else {}), **more)


def frame_dimensions(**more):
    return [dimension(name, 32, scale=0.5, **more) for name in "yx"]


def settings_of(path, *dimensions, format="shardwright", **more):  # noqa: A002  (its name there)
    return omew.AcquisitionSettings(
        root_path=str(path),
        dimensions=[*dimensions, *frame_dimensions()],
        dtype="uint16",
        format=format,
        **more,
    )


POSITIONS = [
    omew.Position(name="left side", x_coord=10.5, y_coord=0.0),
    omew.Position(name="tile", grid_row=1, grid_column=2),
]
FOLDERS = ["left_side", "tile_1_2"]


def positions_of(path, **more):
    """Times, positions, planes, channels, as they are acquired: 24 frames."""
    return settings_of(
        path,
        dimension("t", 2, scale=1.5),
        omew.Dimension(name="p", type="position", coords=POSITIONS),
        dimension("z", 3),
        omew.Dimension(name="c", coords=["DAPI", omew.Channel(name="GFP", color="lime")], type="channel"),
        **more,
    )


def write_all(settings, frames):
    with omew.create_stream(settings) as stream:
        for number in range(frames):
            stream.append(
                np.full((32, 32), number, np.uint16),
                frame_metadata={"exposure_time": 0.01, "delta_t": 0.5 * number, "laser": f"L{number}"},
            )
    return stream


def pixels_of(array):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(array)}}
    return tensorstore.open(spec).result().read().result()


def document(node):
    return json.loads((Path(node) / "zarr.json").read_text())


def check_positions(store):
    """As ``positions_of`` and ``write_all`` say."""
    numbers = np.arange(24, dtype=np.uint16).reshape(2, 2, 3, 2)  # t, p, z, c
    for position, folder in enumerate(FOLDERS):
        pixels = pixels_of(store / folder / "0")
        assert pixels.shape == (2, 2, 3, 32, 32)  # t, c, z
        assert (pixels == numbers[:, position].transpose(0, 2, 1)[..., None, None]).all()
        ome = document(store / folder)["attributes"]["ome"]
        assert [c["label"] for c in ome["omero"]["channels"]] == ["DAPI", "GFP"]
        assert [c["color"] for c in ome["omero"]["channels"]] == ["FFFFFF", "00FF00"]
        (multiscale,) = ome["multiscales"]
        assert [axis.get("unit") for axis in multiscale["axes"]] == ["second", None, *3 * ["micrometer"]]
        scale, *place = multiscale["datasets"][0]["coordinateTransformations"]
        assert scale["scale"] == [1.5, 1.0, 1.0, 0.5, 0.5]
        if position == 0:
            assert place == [{"type": "translation", "translation": [0.0, 0.0, 0.0, 0.0, 10.5]}]
    table = sw.frame_table(store)
    assert table["delta_t"].tolist() == [0.5 * number for number in range(24)]
    assert set(table["exposure_time"]) == {0.01}
    assert [json.loads(text)["laser"] for text in table["json"]] == [f"L{number}" for number in range(24)]
    told = document(store / FOLDERS[1])["attributes"]["ome_writers"]
    assert told["version"] == "0.3.2"
    assert told["frame_metadata"][0] == {
        "exposure_time": 0.01,
        "delta_t": 3.0,
        "laser": "L6",
        "storage_index": [0, 0, 0],
    }
    assert len(told["frame_metadata"]) == 12


def test_positions_of_all_axes_and_their_metadata(tmp_path):
    stream = write_all(positions_of(tmp_path / "a.ome.zarr"), 24)
    check_positions(tmp_path / "a.ome.zarr")
    receipt = writer_of(stream).receipt
    assert (receipt.frames_stored, receipt.frames_durable, receipt.trouble) == (24, 24, {})
    with pytest.raises(sw.errors.ClosedError):
        writer_of(stream).append(np.zeros((32, 32), np.uint16), image="tile_1_2", index=(0, 0, 0))


def test_the_same_through_a_daemon(tmp_path, folder):
    config = folder / "daemon.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    with serving(config) as daemon:
        register(name="rig", daemon=daemon.endpoint, transport="shm")
        settings = positions_of(tmp_path / "elsewhere" / "a.ome.zarr", format="rig")
        stream = write_all(settings, 24)
        writer = writer_of(stream)
        assert isinstance(writer, sw.Stream)
        assert writer.receipt.frames_durable == 24
        assert Path(writer.path) == folder / "data" / "a.ome.zarr"
        check_positions(Path(writer.path))
        metadata = stream.get_metadata()
        metadata[FOLDERS[0]]["sample"] = 3
        stream.update_metadata(metadata)
        assert document(Path(writer.path) / FOLDERS[0])["attributes"]["sample"] == 3
        assert (stream.view()[1, 0, 2, 1] == 17).all(), "the store is on this machine"
        for overwrite in (False, True):
            with pytest.raises(sw.errors.OutputExistsError):
                omew.create_stream(settings.model_copy(update={"overwrite": overwrite}))
        daemon.stop()
    assert not (tmp_path / "elsewhere").exists()


def test_a_daemon_decides_what_becomes_of_a_name_that_is_taken(tmp_path, folder):
    config = folder / "daemon.yaml"
    config.write_text(CONFIG.replace("{root: data,", "{root: data, name_taken: overwrite,"), encoding="utf-8")
    with serving(config) as daemon:
        register(name="rig", daemon=daemon.endpoint)
        for frames in (3, 1):
            stream = write_all(settings_of("a.ome.zarr", dimension("t", None), format="rig"), frames)
        assert pixels_of(Path(writer_of(stream).path) / "0").shape == (1, 32, 32)
        settings = settings_of("b.ome.zarr", dimension("t", 2, chunk_size=2), format="rig")
        with omew.create_stream(settings) as stream:
            stream.append(np.full((32, 32), 7, np.uint16))
            assert (stream.view()[0] == 7).all(), "also of a chunk that is not full"
        daemon.stop()


def test_the_default_layout_is_a_chunk_a_frame_and_no_shards(tmp_path):
    write_all(settings_of(tmp_path / "a.ome.zarr", dimension("t", 3)), 3)
    array = document(tmp_path / "a.ome.zarr" / "0")
    assert array["chunk_grid"]["configuration"]["chunk_shape"] == [1, 32, 32]
    assert [codec["name"] for codec in array["codecs"]] == ["bytes"]
    assert len(list((tmp_path / "a.ome.zarr" / "0" / "c").rglob("*/0"))) >= 3


def test_positions_whose_names_no_folder_can_have(tmp_path):
    def positions(*names):
        return omew.Dimension(name="p", type="position", coords=list(names))

    stream = write_all(
        settings_of(tmp_path / "a.ome.zarr", positions("..", "a/b", "\N{GREEK SMALL LETTER MU}")), 3
    )
    assert list(stream.get_metadata()) == ["0", "a_b", "2"]
    assert [pixels_of(tmp_path / f"a.ome.zarr/{name}/0").max() for name in ("0", "a_b", "2")] == [0, 1, 2]
    with pytest.raises(sw.errors.SpecError, match="'a b' and 'a_b' would have one folder"):
        omew.create_stream(settings_of(tmp_path / "b.ome.zarr", positions("a b", "a_b")))


def test_chunks_and_shards_are_as_they_are_given(tmp_path):
    """Axes of which no shard is said have shards of one chunk, as in other backends."""
    settings = omew.AcquisitionSettings(
        root_path=str(tmp_path / "a.ome.zarr"),
        dimensions=[
            dimension("t", 8, chunk_size=2, shard_size_chunks=2),
            dimension("y", 32, chunk_size=16),
            dimension("x", 32, chunk_size=16, shard_size_chunks=2),
        ],
        dtype="uint16",
        compression="blosc-zstd",
        format="shardwright",
    )
    write_all(settings, 8)
    array = document(tmp_path / "a.ome.zarr" / "0")
    assert array["chunk_grid"]["configuration"]["chunk_shape"] == [4, 16, 32]
    (sharding,) = array["codecs"]
    assert sharding["configuration"]["chunk_shape"] == [2, 16, 16]
    blosc = sharding["configuration"]["codecs"][-1]
    assert (blosc["name"], blosc["configuration"]["cname"], blosc["configuration"]["clevel"]) == (
        "blosc",
        "zstd",
        3,
    )


def test_a_frame_is_handed_on_as_it_is(tmp_path, monkeypatch):
    """The only copy is that of ``append``."""
    given, frame = [], np.zeros((32, 32), np.uint16)
    append = sw.Writer.append

    def hear(self, pixels, **more):
        given.append((pixels, more))
        append(self, pixels, **more)

    monkeypatch.setattr(sw.Writer, "append", hear)
    with omew.create_stream(settings_of(tmp_path / "a.ome.zarr", dimension("t", 1))) as stream:
        stream.append(frame)
    ((pixels, more),) = given
    assert pixels is frame
    assert more == {"image": None, "index": (0,), "metadata": None}


def test_errors_are_ours(tmp_path):
    settings = settings_of(tmp_path / "a.ome.zarr", dimension("t", 2))
    with omew.create_stream(settings) as stream:
        with pytest.raises(sw.errors.FrameDtypeError):
            stream.append(np.zeros((32, 32), np.float32))
        stream.append(np.zeros((32, 32), np.uint16))
        with pytest.raises(sw.errors.OutputExistsError):
            omew.create_stream(settings)
    with pytest.raises(sw.errors.OutputExistsError):
        omew.create_stream(settings)
    write_all(settings.model_copy(update={"overwrite": True}), 2)
    assert pixels_of(tmp_path / "a.ome.zarr" / "0").shape[0] == 2
    (tmp_path / "others.zarr" / "0").mkdir(parents=True)
    with pytest.raises(sw.errors.OutputExistsError, match="no store that was written here"):
        omew.create_stream(settings_of(tmp_path / "others.zarr", dimension("t", 2), overwrite=True))
    wrong = settings_of(tmp_path / "b.ome.zarr", dimension("t", 2, translation=3.0))
    with pytest.raises(sw.errors.SpecError, match="translation along x, y and z"):
        omew.create_stream(wrong)
    plate = omew.Plate(row_names=["A"], column_names=["1"])
    field = omew.Position(name="field_0", plate_row="A", plate_column="1")
    positions = omew.Dimension(name="p", type="position", coords=[field])
    with pytest.raises(sw.errors.SpecError, match="letters and digits"):
        omew.create_stream(settings_of(tmp_path / "c.ome.zarr", positions, plate=plate))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ome.zarr", "others.zarr"]


def stop():
    raise RuntimeError("the stage")


def test_an_exception_in_the_block_seals_what_came(tmp_path):
    stream = omew.create_stream(settings_of(tmp_path / "a.ome.zarr", dimension("t", 5)))
    with pytest.raises(RuntimeError, match="the stage"), stream:
        stream.append(np.ones((32, 32), np.uint16)) or stop()
    assert writer_of(stream).receipt.frames_durable == 1
    assert pixels_of(tmp_path / "a.ome.zarr" / "0")[0].all()


def test_a_plate_is_one_of_ours(tmp_path):
    """A field that only one well has is left out of the others."""
    places = (("fov0", "A", "1"), ("fov0", "B", "2"), ("fov1", "B", "2"))
    coords = [omew.Position(name=n, plate_row=r, plate_column=c) for n, r, c in places]
    plate = omew.Plate(name="screen", row_names=["A", "B"], column_names=["1", "2", "3"])
    positions = omew.Dimension(name="p", type="position", coords=coords)
    stream = write_all(settings_of(tmp_path / "a.ome.zarr", dimension("t", 2), positions, plate=plate), 6)
    ome = document(tmp_path / "a.ome.zarr")["attributes"]["ome"]["plate"]
    assert (ome["name"], [well["path"] for well in ome["wells"]]) == ("screen", ["A/1", "B/2"])
    assert [column["name"] for column in ome["columns"]] == ["1", "2", "3"]
    assert list(stream.get_metadata()) == ["A/1/fov0", "B/2/fov0", "B/2/fov1"]
    assert pixels_of(tmp_path / "a.ome.zarr/B/2/fov1/0")[:, 0, 0].tolist() == [2, 5]


def test_a_single_image_has_the_translation_of_its_axes(tmp_path):
    settings = omew.AcquisitionSettings(
        root_path=str(tmp_path / "a.ome.zarr"),
        dimensions=[dimension("z", 1, translation=2.0), *frame_dimensions(translation=7.5)],
        dtype="uint16",
        format="shardwright",
    )
    write_all(settings, 1)
    ome = document(tmp_path / "a.ome.zarr")["attributes"]["ome"]
    _, place = ome["multiscales"][0]["datasets"][0]["coordinateTransformations"]
    assert place["translation"] == [2.0, 7.5, 7.5]


def test_metadata_of_many_frames_are_in_the_frame_table_alone(tmp_path, monkeypatch):
    """What waits for the end is bounded."""
    monkeypatch.setattr(door, "MOST_TOLD_BYTES", 200)
    write_all(settings_of(tmp_path / "a.ome.zarr", dimension("t", None)), 9)
    assert document(tmp_path / "a.ome.zarr")["attributes"]["ome_writers"] == {"version": "0.3.2"}
    assert len(sw.frame_table(tmp_path / "a.ome.zarr")["json"].tolist()) == 9


def test_the_bound_is_that_of_what_they_take_in_the_document(tmp_path):
    """Of 160 lists of numbers 480 KB as they are given, and more than attributes may have once written."""
    register(frame_json_bytes=4096)
    for frames, expected in ((15, 15), (160, 0)):
        store = tmp_path / f"{frames}.ome.zarr"
        with omew.create_stream(settings_of(store, dimension("t", None))) as stream:
            for _ in range(frames):
                stream.append(np.ones((32, 32), np.uint16), frame_metadata={"v": [0] * 1000})
        assert writer_of(stream).receipt.trouble == {}
        told = document(store)["attributes"]["ome_writers"]
        assert len(told.get("frame_metadata", ())) == expected


def test_times_that_nobody_knows_are_null_where_json_has_no_number_for_them(tmp_path):
    settings = settings_of(tmp_path / "a.ome.zarr", dimension("t", 2))
    with omew.create_stream(settings) as stream:
        stream.append(np.ones((32, 32), np.uint16), frame_metadata={"delta_t": float("nan"), "laser": "NaN"})
        stream.append(np.ones((32, 32), np.uint16), frame_metadata={"delta_t": 0.5})
    told = document(tmp_path / "a.ome.zarr")["attributes"]["ome_writers"]["frame_metadata"]
    assert told == [
        {"delta_t": None, "laser": "NaN", "storage_index": [0]},
        {"delta_t": 0.5, "storage_index": [1]},
    ]
    assert np.isnan(sw.frame_table(tmp_path / "a.ome.zarr")["delta_t"].iloc[0])


@pytest.mark.parametrize("unit", [None, "micrometer"])
def test_coordinates_that_cannot_be_written_are_said(tmp_path, unit, recwarn):
    """Without planes there is no axis for a height; one that is written is not said."""
    where = omew.Position(name="a", x_coord=2.5, z_coord=7.0)
    settings = omew.AcquisitionSettings(
        root_path=str(tmp_path / "a.ome.zarr"),
        dimensions=[
            omew.Dimension(name="p", type="position", coords=[where, omew.Position(name="b")]),
            *(omew.Dimension(name=name, count=32, type="space", unit=unit) for name in "yx"),
        ],
        dtype="uint16",
        format="shardwright",
    )
    write_all(settings, 2)
    (said,) = [each for each in recwarn if "coordinates" in str(each.message)]
    assert f"along {'z' if unit else 'x, z'}: axes that the image lacks" in str(said.message)
    assert (said.category, said.filename) == (sw.errors.LayoutWarning, __file__)
    (multiscale,) = document(tmp_path / "a.ome.zarr" / "a")["attributes"]["ome"]["multiscales"]
    _, *place = multiscale["datasets"][0]["coordinateTransformations"]
    assert place == ([{"type": "translation", "translation": [0.0, 2.5]}] if unit else [])


def test_nothing_is_skipped_behind_the_end(tmp_path):
    with omew.create_stream(settings_of(tmp_path / "a.ome.zarr", dimension("t", None))) as stream:
        stream.append(np.ones((32, 32), np.uint16))
    with pytest.raises(sw.errors.ClosedError):
        stream.skip(frames=2)
    (array,) = stream._backend.get_arrays()
    assert array.shape == (1, 32, 32)


@pytest.mark.parametrize("is_last_skipped", [False, True])
def test_arrays_keep_the_declared_shape(tmp_path, is_last_skipped):
    """As those of other backends, also of a run that ends early."""
    positions = omew.Dimension(name="p", type="position", coords=["a", "b", "c"])
    settings = settings_of(tmp_path / "a.ome.zarr", dimension("t", 4), positions, dimension("z", 2))
    with omew.create_stream(settings) as stream:
        for _ in range(3):
            stream.append(np.ones((32, 32), np.uint16))
        if is_last_skipped:
            stream.skip(frames=21)
    receipt = writer_of(stream).receipt
    assert (receipt.frames_stored, receipt.frames_missing) == (3, 13), "of positions with a frame"
    for folder, there in (("a", [[1, 1], [0, 0], [0, 0], [0, 0]]), ("b", [[1, 0], [0, 0], [0, 0], [0, 0]])):
        assert pixels_of(tmp_path / "a.ome.zarr" / folder / "0")[..., 0, 0].tolist() == there
    assert not (tmp_path / "a.ome.zarr" / "c").exists()
    assert stream.view(dynamic_shape=False).shape == (4, 3, 2, 32, 32)


def test_a_run_without_a_frame_leaves_no_store(tmp_path):
    with omew.create_stream(settings_of(tmp_path / "a.ome.zarr", dimension("t", 2))) as stream:
        pass
    assert list(tmp_path.iterdir()) == []
    assert stream.get_metadata() == {}
    assert not stream.view(dynamic_shape=False)[0].any()


def test_a_view_reads_what_was_appended_and_grows(tmp_path):
    settings = settings_of(tmp_path / "a.ome.zarr", dimension("t", None), dimension("z", 2, chunk_size=2))
    with omew.create_stream(settings) as stream:
        (array,) = stream._backend.get_arrays()
        assert array.shape == (0, 2, 32, 32)
        for number in range(1, 4):
            stream.append(np.full((32, 32), number, np.uint16))
            assert (array[-1, (number - 1) % 2] == number).all(), "also of a chunk that is not full"
        assert array.shape == (2, 2, 32, 32)
        assert array[:, :, 0, 0].tolist() == [[1, 2], [3, 0]]
        assert array[1, ::2, 5:1:1].shape == (1, 0, 32)
        assert array[0].shape == (2, 32, 32)
        for key in ((slice(None, None, -1),), (2,), (0, 2)):
            with pytest.raises(IndexError):
                array[key]
        stream.skip(frames=3)
        assert array.shape == (3, 2, 32, 32)
        assert not array[2].any()
    assert array[0, :, 0, 0].tolist() == [1, 2]


@pytest.mark.parametrize("is_over", [False, True])
def test_metadata_are_added_changed_and_removed_also_after_the_end(tmp_path, is_over):
    channels = omew.Dimension(name="c", coords=["DAPI", "GFP"], type="channel")
    store = tmp_path / "a.ome.zarr"
    with omew.create_stream(settings_of(store, dimension("t", 2), channels)) as stream:
        for _ in range(4):
            stream.append(np.zeros((32, 32), np.uint16))
        stream.view()[0]  # stored
        if is_over:
            stream.close()
        stream.set_global_metadata("run", {"operator": "M"})
        stream.set_global_metadata("draft", {})
        metadata = stream.get_metadata()
        metadata["."]["sample"] = {"n": 3}
        metadata["."]["ome"]["omero"]["channels"][1]["label"] = "mCherry"
        del metadata["."]["draft"]
        stream.update_metadata(metadata)
        for wrong in ({"multiscales": []}, {"omero": metadata["."]["ome"]["omero"], "plate": {}}):
            with pytest.raises(sw.errors.MetadataError, match="'ome' is written by shardwright"):
                stream.update_metadata({".": {**metadata["."], "ome": wrong}})
        with pytest.raises(sw.errors.MetadataError, match="remove: this is written by shardwright"):
            stream.update_metadata({".": {"sample": 4}})
        with pytest.raises(KeyError, match="Unknown path: elsewhere"):
            stream.update_metadata({"elsewhere": {}})
    attributes = document(store)["attributes"]
    assert (attributes["run"], attributes["sample"]) == ({"operator": "M"}, {"n": 3})
    assert attributes["ome_writers"] == {"version": "0.3.2"}
    assert "draft" not in attributes
    assert [c["label"] for c in attributes["ome"]["omero"]["channels"]] == ["DAPI", "mCherry"]
    # a window that is not changed stays that of the pixels
    assert attributes.get("shardwright") is None


def test_what_the_store_itself_changes_meanwhile_is_no_change_of_metadata(tmp_path):
    store = tmp_path / "a.ome.zarr"
    with omew.create_stream(settings_of(store, dimension("t", 2))) as stream:
        metadata = stream.get_metadata()
        stream.set_global_metadata("run", {"operator": "M"})
        stream.append(np.full((32, 32), 9, np.uint16))
        view = LiveView(store)
        wait_for(lambda: view.document("")["attributes"]["ome"] != metadata["."]["ome"], "a channel's window")
        metadata["."]["sample"] = 1
        stream.update_metadata(metadata)
        metadata["."]["sample"] = 2
        stream.update_metadata(metadata)
        del metadata["."]["sample"]
        stream.update_metadata(metadata)
        stream.append(np.full((32, 32), 9, np.uint16))
    attributes = document(store)["attributes"]
    assert attributes["run"] == {"operator": "M"}
    assert "sample" not in attributes


def test_options_are_those_of_create(tmp_path):
    register(threads=1, settings=sw.WriteSettings(name_taken="increment"), frame_json_bytes=0)
    for _ in range(2):
        stream = omew.create_stream(settings_of(tmp_path / "a.ome.zarr", dimension("t", 1)))
        with stream, pytest.raises(sw.errors.MetadataError):
            stream.append(np.zeros((32, 32), np.uint16), frame_metadata={"laser": "L"})
        with omew.create_stream(settings_of(tmp_path / "a.ome.zarr", dimension("t", 1))) as stream:
            stream.append(np.zeros((32, 32), np.uint16), frame_metadata={"exposure_time": 0.5})
    assert writer_of(stream).path == tmp_path / "a_2.ome.zarr"


def test_a_backend_of_its_own_is_replaced_by_name_alone(tmp_path):
    register(replacing=["tensorstore"])
    stream = write_all(settings_of(tmp_path / "a.ome.zarr", dimension("t", 1), format="tensorstore"), 1)
    assert writer_of(stream).receipt.frames_stored == 1
    others = write_all(settings_of(tmp_path / "b.ome.zarr", dimension("t", 1), format="zarr-python"), 1)
    with pytest.raises(sw.errors.ConfigError, match="another backend"):
        writer_of(others)


def test_the_example_of_the_document(tmp_path):
    document = (Path(door.__file__).parent / "README.md").read_text(encoding="utf-8")
    (block,) = blocks(document.split("\n## ome-writers\n")[1].split("\n## ")[0])
    run_block(block)
    assert {"shardwright", "rig"} <= _stream.AVAILABLE_BACKENDS.keys()
    settings_of(tmp_path / "a.ome.zarr", format={"name": "ome-zarr", "backend": "rig"})
    stream = write_all(settings_of(tmp_path / "a.ome.zarr", dimension("t", 1), format="tensorstore"), 1)
    assert writer_of(stream).receipt.frames_stored == 1


def test_an_unknown_version_is_refused_unless_asked_for(monkeypatch):
    monkeypatch.setattr(door, "version", lambda _: "9.9")
    with pytest.raises(sw.errors.ConfigError, match=r"not tested.*expected 0\.3\.2; got 9\.9.*pip install"):
        register()
    register(any_version=True)


def test_names_that_cannot_be_are_refused():
    with pytest.raises(sw.errors.ConfigError, match=r"this name for its own.*replacing"):
        register(name="tensorstore")
    for name in ("auto", "ome-zarr", "zarr", "memory", "tifffile"):
        with pytest.raises(
            sw.errors.ConfigError, match=rf"this name for its own; got {name}\. Choose another"
        ):
            register(name=name)
    for name in ("Rig", "", "a b"):
        with pytest.raises(sw.errors.ConfigError, match="lower case"):
            register(name=name)
    with pytest.raises(sw.errors.ConfigError, match=r"no such Zarr backend.*got tifffile"):
        register(replacing=["tifffile"])
    assert settings_of("a.ome.zarr", format="ShardWright").format.backend == "shardwright", "as its own names"


def test_without_ome_writers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ome_writers", None)
    with pytest.raises(sw.errors.ConfigError, match=r"pip install 'shardwright\[ome-writers\]'"):
        register()
