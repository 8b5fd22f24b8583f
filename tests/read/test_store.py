"""Opening stores: what is supported is parsed, what is not is named."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.array.document import MAX_METADATA_BYTES
from shardwright.codecs.decode import ChunkCodecs
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read import store as store_module
from shardwright.read.store import open_store

from .stores import WRITERS, Layout, edit_json, wrap_in_group, write_with_zarr_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("writer", WRITERS)
def test_an_array(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "a", Layout("gzip", checksum=True, index_location="start"))
    store = open_store(tmp_path / "a")
    (array,) = store.arrays
    assert (store.group, store.shard) == (None, None)
    assert (array.shape, array.shard_shape, array.chunk_shape) == ((5, 7, 6), (4, 4, 8), (2, 4, 4))
    assert array.codecs == ChunkCodecs("gzip", checksum=True)
    assert (array.index_location, array.dtype.str, array.chunk_bytes, array.chunks_per_shard) == (
        "start",
        "<u2",
        64,
        4,
    )
    assert (array.grid_shape, array.shards_in_shape) == ((2, 2, 1), 4)


def test_grid_arithmetic(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    (array,) = open_store(tmp_path / "a").arrays
    assert [
        array.chunks_inside(shard) for shard in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0))
    ] == [4, 4, 2, 2, 0]
    assert array.chunk_coordinates((1, 0, 0), 3) == (3, 0, 1)
    assert [int(array.chunks_in_shape(shard).sum()) for shard in ((0, 0, 0), (1, 1, 0), (2, 0, 0))] == [
        4,
        2,
        0,
    ]
    assert array.coordinates_of("c/12/0/3") == (12, 0, 3)
    for key in (
        "c/01/0/0",
        "c/0/0",
        "c/0/0/0/0",
        "d/0/0/0",
        "c/0/0/x",
        "c/0/0/",
        "c.0.0.0",
        "c/0/0/" + "9" * 30,
    ):
        assert array.coordinates_of(key) is None, key


def test_a_group_leads_to_its_array(tmp_path: Path) -> None:
    wrap_in_group(tmp_path / "g")
    for path in (tmp_path / "g", tmp_path / "g" / "zarr.json"):
        store = open_store(path)
        assert store.group is not None
        assert [array.path for array in store.arrays] == [tmp_path / "g" / "0"]
        assert not store.work_in_progress


def test_a_shard_leads_to_its_array(tmp_path: Path) -> None:
    wrap_in_group(tmp_path / "g")
    store = open_store(tmp_path / "g/0/c/1/0/0")
    assert (store.root, store.shard) == (tmp_path / "g/0", (1, 0, 0))


def test_a_file_that_is_no_shard(tmp_path: Path) -> None:
    wrap_in_group(tmp_path / "g")
    (tmp_path / "g/0/c/notes").write_text("?")
    (tmp_path / "alone").write_text("?")
    with pytest.raises(ShardFormatError, match="is not a shard of"):
        open_store(tmp_path / "g/0/c/notes")
    with pytest.raises(ShardFormatError, match="in any folder above"):
        open_store(tmp_path / "alone")


def test_keys_with_dots(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    edit_json(
        tmp_path / "a/zarr.json",
        lambda d: d.update(chunk_key_encoding={"name": "default", "configuration": {"separator": "."}}),
    )
    for path in [p for p in (tmp_path / "a/c").rglob("*") if p.is_file()]:
        path.rename(tmp_path / "a" / ".".join(path.relative_to(tmp_path / "a").parts))
    (array,) = open_store(tmp_path / "a").arrays
    assert [(key, coordinates) for key, coordinates in array.shard_files() if coordinates] == [
        ("c.0.0.0", (0, 0, 0)),
        ("c.0.1.0", (0, 1, 0)),
        ("c.1.0.0", (1, 0, 0)),
        ("c.1.1.0", (1, 1, 0)),
    ]
    assert open_store(tmp_path / "a/c.1.1.0").shard == (1, 1, 0)


def sharding(document: dict[str, Any]) -> dict[str, Any]:
    return document["codecs"][0]["configuration"]


def rechunk(document: dict[str, Any], shard: list[int], chunk: list[int]) -> None:
    document["chunk_grid"]["configuration"]["chunk_shape"] = shard
    sharding(document)["chunk_shape"] = chunk


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda d: d.update(zarr_format=2), "no Zarr v3"),
        (lambda d: d.update(node_type="thing"), "no Zarr v3"),
        (lambda d: d.update(data_type="complex65"), "complex65"),
        (lambda d: d.update(data_type={"name": "uint16", "configuration": {"bits": 12}}), "data_type"),
        (lambda d: d.update(shape=[5, 7, -6]), "shape"),
        (lambda d: d.update(shape=[5, 7, True]), "shape"),
        (lambda d: d.update(shape="577"), "shape"),
        (lambda d: d.pop("shape"), "shape"),
        (lambda d: d.pop("fill_value"), "fill_value"),
        (lambda d: d["chunk_grid"].update(name="rectilinear"), "rectilinear"),
        (lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[4, 4]), "chunk_grid"),
        (lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[4, 4, 7]), "divide"),
        (lambda d: d["codecs"].insert(0, {"name": "crc32c"}), "sharding_indexed"),
        (lambda d: d.update(codecs=3), "lacks a field or has one of the wrong type"),
        (lambda d: sharding(d).update(chunk_shape=[0, 4, 4]), "chunk_shape"),
        (
            lambda d: sharding(d)["codecs"].append({"name": "sharding_indexed", "configuration": {}}),
            "codecs.0..configuration.codecs",
        ),
        (lambda d: sharding(d).update(index_codecs=sharding(d)["index_codecs"][1:]), "index_codecs"),
        (lambda d: sharding(d)["index_codecs"].append({"name": "zstd"}), "index_codecs.*fixed size"),
        (lambda d: sharding(d).update(index_location="middle"), "middle"),
        (lambda d: d.update(chunk_key_encoding={"name": "v4"}), "v4"),
        (lambda d: d.update(dimension_names=["y"]), "dimension_names"),
        (lambda d: rechunk(d, [2**20, 2**11, 2], [1, 1, 2]), "too many"),
        (lambda d: rechunk(d, [2**20, 2**11, 2], [2**20, 2**11, 2]), "too large"),
        (
            lambda d: d["codecs"].__setitem__(0, {"name": "sharding_indexed", "configuration": "none"}),
            "wrong type",
        ),
        (lambda d: d.update(chunk_key_encoding={"name": "default", "configuration": "/"}), "wrong type"),
        (lambda d: d.update(chunk_key_encoding=["default"]), "wrong type"),
        (lambda d: sharding(d).update(index_codecs=[1, 2]), "wrong type"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], names: str
) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    edit_json(tmp_path / "a/zarr.json", change)
    with pytest.raises(ShardFormatError, match=names) as error:
        open_store(tmp_path / "a")
    assert str(tmp_path / "a") in str(error.value)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (
            lambda d: d["codecs"].insert(1, {"name": "transpose", "configuration": {"order": [0, 2, 1]}}),
            "transpose",
        ),
        (lambda d: d["codecs"].append({"name": "numcodecs.none", "configuration": {}}), "numcodecs.none"),
        (lambda d: d["codecs"].append("cipher"), "cipher"),
        (lambda d: d["codecs"][0]["configuration"].update(endian="both"), "endian"),
        (
            lambda d: d["codecs"][1]["configuration"].update(dictionary="a"),
            "codecs.1..configuration.dictionary",
        ),
        (lambda d: d["codecs"].pop(0), "bytes"),
        (lambda d: d.update(codecs=[]), "codecs"),
        (lambda d: d.update(chunk_key_encoding={"name": "v4"}), "v4"),
        (lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[2**20, 2**11, 2]), "too large"),
    ],
)
def test_what_is_not_supported_of_an_array_without_shards_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], names: str
) -> None:
    write_with_zarr_python(tmp_path / "a", Layout(index_location="none"))
    assert not open_store(tmp_path / "a").arrays[0].is_sharded
    edit_json(tmp_path / "a/zarr.json", change)
    with pytest.raises(ShardFormatError, match=names) as error:
        open_store(tmp_path / "a")
    assert str(tmp_path / "a") in str(error.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b'"' * 100, b"[" * 100_000])
def test_metadata_that_is_no_json_object(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "zarr.json").write_bytes(text)
    with pytest.raises(ShardFormatError):
        open_store(tmp_path)


@pytest.mark.parametrize("node", ["", "0"])
def test_metadata_of_many_mib_are_read_and_those_without_end_are_not(tmp_path: Path, node: str) -> None:
    """Consolidated ones of a plate are so long."""
    wrap_in_group(tmp_path / "a")
    file = tmp_path / "a" / node / "zarr.json"
    edit_json(file, lambda document: document["attributes"].update(note="x" * (17 << 20)))
    assert len(open_store(tmp_path / "a").arrays) == 1
    os.truncate(file, MAX_METADATA_BYTES + 1)
    with pytest.raises(ShardFormatError, match="is too long; expected at most 67108864 bytes"):
        open_store(file.parent)


def test_metadata_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").mkdir()
    with pytest.raises(StorageError, match="cannot read"):
        open_store(tmp_path)


def test_a_group_without_an_image(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {"lab": 1}}')
    with pytest.raises(ShardFormatError, match="names no image"):
        open_store(tmp_path)


def _group(folder: Path, ome: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    attributes = {"ome": {"version": "0.5", **ome}}
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    (folder / "zarr.json").write_text(json.dumps(document))


def test_a_plate_that_names_a_well_again_and_again_is_refused_before_its_images_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    read = store_module.read_metadata
    monkeypatch.setattr(store_module, "read_metadata", lambda folder: looked.append(folder) or read(folder))
    _group(tmp_path, {"plate": {"wells": [{"path": "A/1"}] * 9}})
    (tmp_path / "A").mkdir()
    _group(tmp_path / "A/1", {"well": {"images": [{"path": str(field)} for field in range(10_000)]}})
    with pytest.raises(ShardFormatError, match="names too many images; expected at most 16384"):
        open_store(tmp_path)
    assert looked == [tmp_path, tmp_path / "A/1", tmp_path / "A/1"]


@pytest.mark.parametrize("name", [".", "./.", "inner"])
@pytest.mark.parametrize("kind", ["series", "plate"])
def test_a_collection_is_no_image_of_one(tmp_path: Path, kind: str, name: str) -> None:
    """That of itself would have no end."""
    for folder in (tmp_path, tmp_path / "inner"):
        if kind == "series":
            _group(folder, {"bioformats2raw.layout": 3})
            _group(folder / "OME", {"series": [name, name]})
        else:
            _group(folder, {"plate": {"wells": [{"path": "."}]}, "well": {"images": [{"path": name}]}})
    store = open_store(tmp_path)
    assert store.arrays == ()
    with pytest.raises(ShardFormatError, match="is a collection, named as an image of one"):
        store.check_references()
