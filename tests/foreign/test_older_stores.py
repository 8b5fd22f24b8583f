"""Every fixture of an older spelling is read equal, and becomes a store of today that the peers read."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from tests.foreign.older_stores import ALL, FIXTURES, IMAGE, PROTOTYPES, TRANSFORMERS, V2, OlderStore
from tests.read.test_spellings import ignored_warnings, run, same
from tests.repack.images import POLITE, run_here

from shardwright.model.errors import ShardFormatError
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store

if TYPE_CHECKING:
    from pathlib import Path


def rechunk(store: Path, new: Path, **options: Any) -> None:
    made = RechunkOptions(**{"chunks": {}, **options})
    assert write_new_store(plan_new_store(store, made), new, made, run_here, throttle=POLITE).ok
    report = verify_store(new, threads=1)
    assert report.problems == []


def read_by_peers(path: Path, dtype: np.dtype[Any]) -> list[np.ndarray]:
    """Returns the values as zarr-python, zarrs and tensorstore read them, those of them that know dtype."""
    with ignored_warnings():
        read = [np.asarray(zarr.open_array(path, mode="r")[...])]
        if dtype.kind in "biufc":
            with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
                read.append(np.asarray(zarr.open_array(path, mode="r")[...]))
            store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
            read.append(np.asarray(tensorstore.open(store).result().read().result()))
    return read


def native(values: np.ndarray) -> np.ndarray:
    return values.astype(values.dtype.newbyteorder("="))


def test_there_are_fixtures_of_each_spelling() -> None:
    spellings = {fixture.spelling for fixture in ALL.values()}
    assert len(spellings) == 4
    assert min(len(V2), len(PROTOTYPES), len(TRANSFORMERS)) > 6


@pytest.mark.parametrize("name", ALL)
def test_an_older_store_becomes_one_of_today(tmp_path: Path, name: str) -> None:
    fixture = ALL[name]
    source, values = fixture.store / fixture.path, native(fixture.read())
    report = verify_store(source, threads=1)
    assert (report.problems, report.arrays) == ([], 1)
    rechunk(source, tmp_path / "new")
    for read in read_by_peers(tmp_path / "new", values.dtype):
        assert same(read, values)
    (old,), (new,) = open_store(source).arrays, open_store(tmp_path / "new").arrays
    assert (old.spelling, new.spelling) == (fixture.spelling, None)
    assert old.path.samefile(fixture.store / fixture.folder) if old.path.exists() else not report.chunks
    assert (new.shape, new.chunk_shape) == (old.shape, tuple(map(min, old.chunk_shape, old.shape)))
    document = json.loads((tmp_path / "new" / "zarr.json").read_text())
    assert document["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}}
    assert "numcodecs" not in json.dumps(document["codecs"])


@pytest.mark.parametrize("name", ["v2 delta_big", "prototype columns", "transformer deep/er/volume"])
def test_shards_of_another_size_are_made_of_an_older_store(tmp_path: Path, name: str) -> None:
    fixture = ALL[name]
    rank = fixture.read().ndim
    sizes = {f"dim_{axis}": 4 for axis in range(rank)}
    rechunk(fixture.store / fixture.path, tmp_path / "new", chunks=dict.fromkeys(sizes, 2), shards=sizes)
    (new,) = open_store(tmp_path / "new").arrays
    assert (new.chunk_shape, new.is_sharded) == ((2,) * rank, True)
    for read in read_by_peers(tmp_path / "new", new.dtype):
        assert same(read, native(fixture.read()))


@pytest.mark.parametrize("name", V2)
def test_zarr_python_of_today_reads_zarr_v2_equal(name: str) -> None:
    with ignored_warnings():
        values = zarr.open_array(V2[name].store, mode="r", zarr_format=2)[...]
    assert same(native(np.asarray(values)), native(V2[name].read()))


@pytest.mark.parametrize("name", ["v2 gzip", "prototype nested", "transformer dots", "transformer all_fill"])
def test_the_commands_show_and_check_an_older_store(capsys: pytest.CaptureFixture[str], name: str) -> None:
    fixture = ALL[name]
    path = fixture.store / fixture.path
    assert run("inspect", path, "--json") == 0
    (array,) = json.loads(capsys.readouterr().out)["arrays"]
    assert array["spelling"] == fixture.spelling
    assert run("inspect", path) == 0
    assert fixture.spelling in capsys.readouterr().out
    assert run("verify", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_the_command_rechunks_an_array_by_its_name_below_the_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = TRANSFORMERS["transformer deep/er/volume"]
    chunks = "dim_0=2,dim_1=3,dim_2=7"
    source = fixture.store / fixture.path
    assert run("rechunk", source, tmp_path / "new", "--chunks", chunks, "--no-idle", "--workers", 1) == 0
    assert same(read_by_peers(tmp_path / "new", np.dtype("u2"))[0], fixture.read())


def test_attributes_are_kept(tmp_path: Path) -> None:
    for name, expected in (
        ("transformer deep/er/volume", {"unit": "photons", "offset": 100}),
        ("prototype line", {"name": "line"}),
        ("transformer filtered", {}),
    ):
        fixture = ALL[name]
        rechunk(fixture.store / fixture.path, tmp_path / name)
        attributes = json.loads((tmp_path / name / "zarr.json").read_text())["attributes"]
        attributes.pop("shardwright")
        assert attributes == expected


def test_an_ome_zarr_image_of_version_0_4_becomes_one_of_0_5(tmp_path: Path) -> None:
    store = open_store(IMAGE)
    assert (store.image_name, [array.path.name for array in store.arrays]) == ("cells", ["0", "1"])
    assert verify_store(IMAGE, threads=1).problems == []
    rechunk(IMAGE, tmp_path / "new", chunks={"z": 1}, shards={"z": 2, "y": 10})
    old = json.loads((IMAGE / ".zattrs").read_text())
    attributes = json.loads((tmp_path / "new" / "zarr.json").read_text())["attributes"]
    ome = attributes["ome"]
    assert (ome["version"], attributes["operator"]) == ("0.5", "a microscopist")
    (before,), (after,) = old["multiscales"], ome["multiscales"]
    assert before.pop("version") == old["omero"].pop("version") == "0.4"
    assert (after, ome["omero"]) == (before, old["omero"])
    assert sorted(attributes) == ["ome", "operator"]
    for level in ("0", "1"):
        document = json.loads((tmp_path / "new" / level / "zarr.json").read_text())
        assert document["dimension_names"] == ["c", "z", "y", "x"]
        for read in read_by_peers(tmp_path / "new" / level, np.dtype("u2")):
            assert same(read, np.load(FIXTURES / "v2" / f"image.{level}.npy"))


def test_attributes_of_an_image_that_are_common_words_stay_where_they_are(tmp_path: Path) -> None:
    shutil.copytree(IMAGE, tmp_path / "old")
    attributes = json.loads((tmp_path / "old/.zattrs").read_text())
    words = {"labels": ["treated"], "series": 7}
    (tmp_path / "old/.zattrs").write_text(json.dumps({**attributes, **words}))
    group = open_store(tmp_path / "old").group
    assert group is not None
    assert {word: group[word] for word in words} == words
    assert sorted(group["ome"]) == ["multiscales", "omero", "version"]


def write_v2(folder: Path, attributes: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    (folder / ".zattrs").write_text(json.dumps(attributes))


def test_the_images_of_older_collections_are_found(tmp_path: Path) -> None:
    wells = [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}]
    plate, images = tmp_path / "plate", [{"path": "0"}]
    write_v2(plate, {"plate": {"version": "0.4", "rows": [{"name": "A"}], "wells": wells}})
    write_v2(plate / "A", {})
    write_v2(plate / "A/1", {"well": {"version": "0.4", "images": images}})
    shutil.copytree(IMAGE, plate / "A/1/0")
    write_v2(tmp_path / "several", {"bioformats2raw.layout": 3})
    write_v2(tmp_path / "several/OME", {"series": ["0", "1"]})
    for name in ("0", "1"):
        shutil.copytree(IMAGE, tmp_path / "several" / name)
    for store, expected in ((plate, ["A/1/0"]), (tmp_path / "several", ["0", "1"])):
        found = open_store(store).images
        assert [image.root.relative_to(store).as_posix() for image in found] == expected
        assert verify_store(store, threads=1).problems == []


def test_axis_names_come_from_the_image_where_arrays_have_none(tmp_path: Path) -> None:
    shutil.copytree(IMAGE, tmp_path / "old")
    for file in (tmp_path / "old").glob("*/.zattrs"):
        file.unlink()
    assert verify_store(tmp_path / "old", threads=1).problems == []
    rechunk(tmp_path / "old", tmp_path / "new")
    (array, _) = open_store(tmp_path / "new").arrays
    assert array.dimension_names == ("c", "z", "y", "x")


def paths_of_a_transformer_array(fixture: OlderStore) -> list[Path]:
    return [fixture.store / path for path in (fixture.path, fixture.folder, fixture.meta)]


def test_an_array_has_several_paths() -> None:
    volume = TRANSFORMERS["transformer deep/er/volume"]
    for path in paths_of_a_transformer_array(volume):
        assert open_store(path).arrays[0].shape == (5, 6, 7)
    assert parse_array(volume.store / volume.folder).spelling == volume.spelling  # as workers do
    assert open_store(V2["v2 line"].store / ".zarray").arrays[0].shape == (23,)
    for path in (FIXTURES / "transformer" / "single", FIXTURES / "transformer" / "single" / "zarr.json"):
        (alone,) = open_store(path).arrays
        assert alone.shape == (13, 21)
    with pytest.raises(ShardFormatError, match=r"14 arrays; expected the path of one; got all_fill, big"):
        open_store(volume.store)


def test_an_array_is_looked_for_among_so_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.foreign.older_nodes._MOST_ENTRIES", 5)
    with pytest.raises(ShardFormatError, match=r"too many nodes") as caught:
        open_store(TRANSFORMERS["transformer deep/er/volume"].store)
    assert caught.value.hint == "Give the path of one array"


def test_an_array_of_the_prototype_may_have_no_shards(tmp_path: Path) -> None:
    shutil.copytree(ALL["v2 zlib"].store, tmp_path / "old")
    document = json.loads((tmp_path / "old/.zarray").read_text())
    (tmp_path / "old/.zarray").write_text(json.dumps({**document, "shards": None, "shard_format": "indexed"}))
    (array,) = open_store(tmp_path / "old").arrays
    assert not array.is_sharded
    assert verify_store(tmp_path / "old", threads=1).problems == []


def test_one_shard_is_opened_by_its_path() -> None:
    for path, shard in (
        (FIXTURES / "transformer/many/data/root/plane/c0/1", (0, 1)),
        (FIXTURES / "transformer/many/data/root/dots/c1.0", (1, 0)),
        (FIXTURES / "prototype/nested/0/1", (0, 1)),
        (FIXTURES / "v2/many/zlib/0.2", (0, 2)),
    ):
        assert open_store(path).shard == shard


def test_a_group_of_zarr_v3_with_a_folder_named_meta_is_no_older_store(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("x", shape=(4,), dtype="u2")[...] = 3
    (tmp_path / "a.zarr" / "meta").mkdir()
    assert open_store(tmp_path / "a.zarr" / "x").arrays[0].spelling is None


@pytest.mark.parametrize("dtype", ["S5", "U4", "V6", str, "m8[s]", "c16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_zarr_v2_of_today_is_read_equal(tmp_path: Path, dtype: Any, order: str) -> None:
    numbers = np.arange(35).reshape(5, 7) * 3
    made = np.dtype(object if dtype is str else dtype)
    values = numbers.astype("<u4").astype("V4").astype("V6") if made.kind == "V" else numbers.astype("U4")
    values = (
        values if made.kind == "V" else numbers.astype(made) if made.kind in "mc" else values.astype(made)
    )
    with ignored_warnings():
        array = zarr.create_array(
            tmp_path / "old", shape=(5, 7), chunks=(2, 3), dtype=dtype, zarr_format=2, order=order
        )
        array[:4] = values[:4]
        expected = np.asarray(array[...])
        assert verify_store(tmp_path / "old", threads=1).problems == []
    rechunk(tmp_path / "old", tmp_path / "new", chunks={"dim_0": 5})
    with ignored_warnings():
        read = np.asarray(zarr.open_array(tmp_path / "new", mode="r")[...])
    assert read.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("dtype", "filters"),
    [
        ("<f4", [numcodecs.FixedScaleOffset(offset=1, scale=2, dtype="<f4", astype="|u1")]),
        ("<u2", [numcodecs.AsType(encode_dtype="|u1", decode_dtype="<u2")]),
        ("|b1", [numcodecs.PackBits()]),
        # Zarr v3 core has no such data type: the new chain is not the one of our own stores
        ("<m8[s]", [numcodecs.AsType(encode_dtype="|i1", decode_dtype="<m8[s]")]),
    ],
)
def test_zarr_v2_of_filters_to_single_bytes_is_read_equal(
    tmp_path: Path, dtype: str, filters: list[Any]
) -> None:
    values = (np.arange(35).reshape(5, 7) * 3 + 1).astype(dtype)
    with ignored_warnings():
        array = zarr.create_array(
            tmp_path / "old",
            shape=(5, 7),
            chunks=(2, 3),
            dtype=dtype,
            zarr_format=2,
            filters=filters,
            compressors=numcodecs.Zlib(1),
        )
        array[:4] = values[:4]
        expected = np.asarray(array[...])
        assert verify_store(tmp_path / "old", threads=1).problems == []
    rechunk(tmp_path / "old", tmp_path / "new", chunks={"dim_0": 5})
    with ignored_warnings():
        assert same(np.asarray(zarr.open_array(tmp_path / "new", mode="r")[...]), expected)
    assert same(expected[:4], values[:4])
    codecs = json.loads((tmp_path / "new" / "zarr.json").read_text())["codecs"]
    (middle,) = (codec for codec in codecs if codec["name"] == "bytes")
    assert np.dtype(dtype).itemsize == 1 or middle["configuration"] == {"endian": "little"}


def test_a_plate_of_version_0_4_is_a_collection(tmp_path: Path) -> None:
    def group(folder: Path, attributes: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
        (folder / ".zattrs").write_text(json.dumps(attributes))

    wells = [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}]
    group(tmp_path / "plate", {"plate": {"version": "0.4", "wells": wells}})
    group(tmp_path / "plate" / "A", {})
    group(
        tmp_path / "plate" / "A" / "1", {"well": {"version": "0.4", "images": [{"path": "0"}, {"path": "1"}]}}
    )
    for name in ("0", "1"):
        shutil.copytree(IMAGE, tmp_path / "plate" / "A" / "1" / name)
    store = open_store(tmp_path / "plate")
    assert (len(store.images), len(store.arrays), store.broken_references) == (2, 4, {})
    assert verify_store(tmp_path / "plate", threads=1).problems == []
