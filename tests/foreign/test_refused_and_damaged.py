"""Fields that are not understood are refused by name; damage is found; no older store is changed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.foreign.older_stores import ALL, IMAGE
from tests.read.test_spellings import run

from shardwright.model.errors import ShardFormatError
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Json = dict[str, Any]
URI = "https://purl.org/zarr/spec/"


def put(*keys: Any, value: Any) -> Callable[[Json], None]:
    """Returns a change of a document: the value of the field at ``keys``."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


def drop(key: str) -> Callable[[Json], None]:
    return lambda document: document.pop(key)


# fixture, change of its metadata, what the message names
REFUSED: dict[str, tuple[str, Callable[[Json], Any], str]] = {
    "v2 field": ("v2 zlib", put("units", value="m"), "field 'units' is not understood"),
    "v2 no order": ("v2 zlib", drop("order"), "field 'order' is missing"),
    "v2 format": ("v2 zlib", put("zarr_format", value=4), "zarr_format not supported"),
    "v2 shape": ("v2 zlib", put("shape", value=[7, -9]), "shape not supported"),
    "v2 chunks": ("v2 zlib", put("chunks", value=[3]), "chunks not supported"),
    "v2 chunk of nothing": ("v2 zlib", put("chunks", value=[3, 0]), "chunks not supported"),
    "v2 order": ("v2 zlib", put("order", value="A"), "order not supported"),
    "v2 dtype": ("v2 zlib", put("dtype", value=[["x", "<u2"]]), "dtype not supported"),
    "v2 unknown dtype": ("v2 zlib", put("dtype", value="<q9"), "dtype not supported"),
    "v2 long double": ("v2 zlib", put("dtype", value="<f16"), "dtype not supported"),
    "v2 objects": ("v2 zlib", put("dtype", value="|O"), "dtype '|O' not supported"),
    "v2 fill": ("v2 zlib", put("fill_value", value="many"), "fill_value not supported"),
    "v2 separator": ("v2 zlib", put("dimension_separator", value="-"), "dimension_separator not supported"),
    "v2 compressor": ("v2 zlib", put("compressor", "id", value="rar"), "compressor: codec not supported"),
    "v2 no id": ("v2 zlib", drop("compressor"), "field 'compressor' is missing"),
    "v2 setting": ("v2 zlib", put("compressor", "window", value=9), "compressor.window of 'zlib'"),
    "v2 shuffle": ("v2 blosc", put("compressor", "shuffle", value=7), "compressor.shuffle of 'blosc'"),
    "v2 level": ("v2 gzip", put("compressor", "level", value="high"), "level"),
    "v2 filter": ("v2 delta", put("filters", 0, "id", value="pickle"), "filters[0]: codec not supported"),
    "v2 filters": ("v2 delta", put("filters", value={}), "filters not supported"),
    "v2 filter of values last": (
        "v2 delta",
        lambda d: d["filters"].insert(0, {"id": "zlib", "level": 1}),
        "filters[1]: codec 'delta' is in the wrong place",
    ),
    "v2 filter's setting": ("v2 delta", put("filters", 0, "step", value=2), "filters[0].step of 'delta'"),
    "v2 filter's type": ("v2 delta", put("filters", 0, "astype", value="?!"), "filters[0].astype not supp"),
    "v2 filter without its type": (
        "v2 delta",
        lambda d: d["filters"][0].pop("dtype"),
        "filters[0].dtype of 'delta' is missing",
    ),
    "v2 filter of the other byte order": (
        "v2 delta",
        put("filters", 0, "dtype", value=">i4"),
        "filters[0].dtype not supported",
    ),
    "v2 quantized to another type": (
        "v2 quantized",
        put("filters", 0, "astype", value="<f2"),
        "filters[0].astype of 'quantize' not supported",
    ),
    "prototype format": ("prototype line", put("shard_format", value="morton"), "shard_format not supported"),
    "prototype no format": ("prototype line", drop("shard_format"), "shard_format not supported"),
    "prototype no shards": ("prototype line", drop("shards"), "shard_format not supported"),
    "prototype shards": ("prototype line", put("shards", value=[0]), "shards not supported"),
    "prototype rank": ("prototype line", put("shards", value=[2, 2]), "shards not supported"),
    "draft field": ("transformer plane", put("units", value="m"), "field 'units' is not understood"),
    "draft no layout": (
        "transformer plane",
        drop("chunk_memory_layout"),
        "field 'chunk_memory_layout' is missing",
    ),
    "draft layout": (
        "transformer plane",
        put("chunk_memory_layout", value="K"),
        "chunk_memory_layout not supported",
    ),
    "draft grid": ("transformer plane", put("chunk_grid", "type", value="round"), "chunk_grid.type not supp"),
    "draft grid's field": (
        "transformer plane",
        put("chunk_grid", "origin", value=1),
        "field 'chunk_grid.origin' is not understood",
    ),
    "draft separators": (
        "transformer plane",
        put("dimension_separator", value="."),
        "chunk_grid.separator not supported",
    ),
    "draft type": ("transformer plane", put("data_type", value="uint16"), "data_type not supported"),
    "draft extension": (
        "transformer plane",
        put("extensions", value=[{"extension": "x", "must_understand": True}]),
        "extensions are not understood",
    ),
    "draft codec": (
        "transformer plane",
        put("compressor", "codec", value=f"{URI}codec/rar/1.0"),
        "compressor: codec not supported",
    ),
    "draft version of a codec": (
        "transformer plane",
        put("compressor", "codec", value=f"{URI}codec/blosc/2.0"),
        "compressor not supported",
    ),
    "draft setting": (
        "transformer plane",
        put("compressor", "configuration", "threads", value=4),
        "compressor.threads of 'blosc'",
    ),
    "transformer": (
        "transformer plane",
        put("storage_transformers", 0, "extension", value=f"{URI}storage_transformers/mirror/1.0"),
        "storage_transformers[0].extension not supported",
    ),
    "transformer's type": (
        "transformer plane",
        put("storage_transformers", 0, "type", value="hashed"),
        "storage_transformers[0].type not supported",
    ),
    "transformer's field": (
        "transformer plane",
        put("storage_transformers", 0, "configuration", "order", value="morton"),
        "field 'storage_transformers[0].configuration.order' is not understood",
    ),
    "transformer's shards": (
        "transformer plane",
        put("storage_transformers", 0, "configuration", "chunks_per_shard", value=[2]),
        "storage_transformers[0].configuration.chunks_per_shard not supported",
    ),
    "two transformers": (
        "transformer plane",
        lambda d: d["storage_transformers"].append(d["storage_transformers"][0]),
        "storage_transformers not supported",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    key, change, message = REFUSED[name]
    fixture = ALL[key]
    shutil.copytree(fixture.store, tmp_path / "old")
    file = tmp_path / "old" / fixture.meta
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(ShardFormatError) as refused:
        open_store(tmp_path / "old" / fixture.path)
    assert message in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("zarr_format", value=f"{URI}protocol/core/9.0"), "zarr_format not supported"),
        (put("metadata_encoding", value="xml"), "metadata_encoding not supported"),
        (put("metadata_key_suffix", value="/../x"), "metadata_key_suffix not supported"),
        (put("extensions", value=[{"extension": "x", "must_understand": True}]), "extensions are not"),
        (put("more", value=1), "field 'more' is not understood"),
    ],
)
def test_an_entry_point_that_is_not_understood_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    fixture = ALL["transformer plane"]
    shutil.copytree(fixture.store, tmp_path / "old")
    document = json.loads((tmp_path / "old" / "zarr.json").read_text())
    change(document)
    (tmp_path / "old" / "zarr.json").write_text(json.dumps(document))
    for path in (fixture.path, fixture.folder, "."):
        with pytest.raises(ShardFormatError, match=message):
            open_store(tmp_path / "old" / path)


def test_another_version_of_ome_ngff_is_refused_but_its_arrays_are_read(tmp_path: Path) -> None:
    shutil.copytree(IMAGE, tmp_path / "old")
    attributes = json.loads((tmp_path / "old" / ".zattrs").read_text())
    attributes["multiscales"][0]["version"] = "0.3"
    (tmp_path / "old" / ".zattrs").write_text(json.dumps(attributes))
    with pytest.raises(ShardFormatError, match=r"multiscales\[0\].version of OME-NGFF not supported"):
        open_store(tmp_path / "old")
    assert open_store(tmp_path / "old" / "0").arrays[0].shape == (2, 3, 12, 14)


def test_an_older_version_of_what_did_not_change_is_read(tmp_path: Path) -> None:
    shutil.copytree(IMAGE, tmp_path / "old")
    attributes = json.loads((tmp_path / "old" / ".zattrs").read_text())
    attributes["omero"]["version"] = "0.1"
    (tmp_path / "old" / ".zattrs").write_text(json.dumps(attributes))
    group = open_store(tmp_path / "old").group
    assert group is not None
    assert "version" not in group["ome"]["omero"]


def test_a_number_that_json_does_not_have_is_read_but_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ALL["v2 zlib"].store, tmp_path / "old")
    (tmp_path / "old/.zattrs").write_text('{"offset": NaN}')
    assert run("verify", tmp_path / "old") == 0
    assert run("rechunk", tmp_path / "old", tmp_path / "new", "--no-idle", "--workers", "1") == 1
    assert "cannot hold NaN" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    shutil.copytree(ALL["v2 zlib"].store, tmp_path / "old")
    for file, text in ((".zattrs", "[]"), (".zattrs", "{"), (".zarray", "{"), (".zarray", "[]")):
        before = (tmp_path / "old" / file).read_text() if (tmp_path / "old" / file).exists() else "{}"
        (tmp_path / "old" / file).write_text(text)
        with pytest.raises(ShardFormatError, match=file.replace(".", r"\.")):
            open_store(tmp_path / "old")
        (tmp_path / "old" / file).write_text(before)


def cut(data: bytes) -> bytes:
    return data[:-5]


def far_entry(data: bytes) -> bytes:
    """The first chunk lies behind the end of the file."""
    index = data[-6 * 16 :]
    return data[: -6 * 16] + (1 << 40).to_bytes(8, "little") + index[8:]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("name", "key", "damage"),
    [
        ("v2 raw", "0.0", cut),
        ("v2 zlib", "0.1", flipped),
        ("v2 blosc", "0.0", cut),
        ("v2 checked", "0.0", flipped),
        ("prototype plane", "0.1", far_entry),
        ("prototype plane", "0.1", cut),
        ("transformer plane", "c1/0", far_entry),
        ("transformer plane", "c1/0", cut),
        ("transformer scalar", "c0", cut),
    ],
)
def test_damage_is_found(tmp_path: Path, name: str, key: str, damage: Callable[[bytes], bytes]) -> None:
    fixture = ALL[name]
    shutil.copytree(fixture.store, tmp_path / "old")
    file = tmp_path / "old" / fixture.folder / key
    file.write_bytes(damage(file.read_bytes()))
    report = verify_store(tmp_path / "old" / fixture.path, threads=1)
    assert [problem for problem in report.problems if key in problem.where]


@pytest.mark.parametrize(
    "command",
    [
        ["compact", "--no-idle"],
        ["compact", "--no-idle", "--to", "{elsewhere}", "--move"],
        ["pyramid", "--levels", "3", "--no-idle"],
        ["recover"],
        ["update", "--region", "c=0", "--value", "1"],
        ["erase", "--region", "c=0"],
    ],
)
def test_commands_that_change_a_store_refuse_an_older_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    shutil.copytree(IMAGE, tmp_path / "old.zarr")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    options = [part.format(elsewhere=tmp_path / "elsewhere") for part in command[1:]]
    assert run(command[0], tmp_path / "old.zarr", *options) != 0
    said = capsys.readouterr()
    assert "shardwright rechunk SOURCE DEST" in said.out + said.err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
