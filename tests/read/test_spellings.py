"""Every legal spelling of an array is read equal to its writer's own reading; every illegal one is refused by
each command, with a message that names the part."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import crc32c
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec

import shardwright as sw
from shardwright.cli.app import main
from shardwright.codecs.zarr_chunks import ZarrChunks
from shardwright.model.errors import ShardFormatError
from shardwright.read.live_view import LiveView
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.region_reader import RegionReader
from shardwright.rework.runtime.throttle import Throttle

from .spellings import ILLEGAL, LEGAL, LITTLE, blosc, shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal values, NaN too."""
    if a.shape != b.shape:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_spelling_is_read_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    values = LEGAL[name].write(tmp_path / "a.zarr")
    (array,) = open_store(tmp_path / "a.zarr").arrays
    out = np.zeros(array.shape, array.dtype)
    reader = RegionReader(array, Throttle())
    reader.read((0,) * len(array.shape), out)
    reader.close()
    assert same(out, values)
    report = verify_store(tmp_path / "a.zarr", threads=1)
    assert report.problems == []
    assert report.chunks > 0 or 0 in values.shape
    assert run("inspect", tmp_path / "a.zarr", "--json") == 0
    (facts,) = json.loads(capsys.readouterr().out)["arrays"]
    assert facts["totals"]["chunks_present"] == report.chunks
    assert facts["totals"]["problems"] == 0
    assert run("inspect", tmp_path / "a.zarr", "--chunks") == 0


def test_an_index_of_shuffled_bytes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer writes one: the index of a shard is shuffled here."""
    path = tmp_path / "a.zarr"
    values = shards([LITTLE]).write(path)
    document = json.loads((path / "zarr.json").read_text())
    inner = document["codecs"][0]["configuration"]
    inner["index_codecs"].insert(1, {"name": "numcodecs.shuffle", "configuration": {"elementsize": 8}})
    (path / "zarr.json").write_text(json.dumps(document))
    (array,) = open_store(path).arrays
    nbytes = 16 * array.chunks_per_shard
    for file in (path / "c").rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            index = bytes(numcodecs.Shuffle(8).encode(data[-nbytes - 4 : -4]))
            file.write_bytes(data[: -nbytes - 4] + index + crc32c.crc32c(index).to_bytes(4, "little"))
    # its size is computed: an index of millions of chunks is not encoded to open an array
    monkeypatch.setattr(ZarrChunks, "encode", lambda *_: pytest.fail("encoded"))
    (array,) = open_store(path).arrays
    out = np.zeros(array.shape, array.dtype)
    reader = RegionReader(array, Throttle())
    reader.read((0,) * len(array.shape), out)
    reader.close()
    assert same(out, values)
    assert verify_store(path, threads=1).problems == []


def test_bools_that_zarr_python_decodes_are_told_from_the_chunk_before(tmp_path: Path) -> None:
    values = {"0": np.full((4, 8), 255, "u1"), "1": np.ones((4, 8), bool)}
    datasets = [{"path": level} for level in values]
    axes = [{"name": "y"}, {"name": "x"}]
    group = zarr.create_group(
        tmp_path / "a.zarr", attributes={"ome": {"multiscales": [{"axes": axes, "datasets": datasets}]}}
    )
    for level, pixels in values.items():
        gzips = [GzipCodec(level=1)] * (2 if level == "1" else 0)  # two: no chain of ours
        group.create_array(
            level, data=pixels, chunks=(4, 8), compressors=gzips or None, dimension_names=("y", "x")
        )
    assert verify_store(tmp_path / "a.zarr", threads=1).problems == []


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_spelling_is_opened_by_a_live_view(tmp_path: Path, name: str) -> None:
    values = LEGAL[name].write(tmp_path / "a.zarr")
    spelled = LEGAL[name].respelled is None  # else zarr-python itself does not read it
    if spelled:
        with ignored_warnings():
            assert same(np.asarray(zarr.open_array(sw.open(tmp_path / "a.zarr"), mode="r")[...]), values)
    (array,) = open_store(tmp_path / "a.zarr").arrays
    view = LiveView(tmp_path / "a.zarr")
    for shard in np.ndindex(*array.grid_shape):
        first = [i * n for i, n in zip(shard, array.shard_shape, strict=True)]
        high = tuple(min(n, s - a) for n, s, a in zip(array.shard_shape, array.shape, first, strict=True))
        box = view.read_box("", shard, (0,) * len(high), high)
        part = values[tuple(slice(a, a + n) for a, n in zip(first, high, strict=True))]
        assert same(np.broadcast_to(array.fill_element, high) if box is None else box, part)


@pytest.fixture(scope="module")
def legal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("legal") / "a.zarr"
    shards([LITTLE, blosc()]).write(path)
    return path


COMMANDS = {
    "inspect": ["inspect", "STORE"],
    "verify": ["verify", "STORE"],
    "compact": ["compact", "STORE", "--no-idle"],
    "move": ["compact", "STORE", "--to", "ELSEWHERE", "--no-idle"],
    "rechunk": ["rechunk", "STORE", "ELSEWHERE", "--chunks", "x=4", "--no-idle"],
    "pyramid": ["pyramid", "STORE", "--levels", "1", "--no-idle"],
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_spelling_is_refused_by_each_command(
    legal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    change, part = ILLEGAL[name]
    shutil.copytree(legal, tmp_path / "a.zarr")
    document = json.loads((tmp_path / "a.zarr/zarr.json").read_text())
    change(document)
    (tmp_path / "a.zarr/zarr.json").write_text(json.dumps(document))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ShardFormatError) as error:
        open_store(tmp_path / "a.zarr")
    assert part in str(error.value)
    places = {"STORE": tmp_path / "a.zarr", "ELSEWHERE": tmp_path / "b.zarr"}
    for command in COMMANDS.values():
        assert run(*(places.get(word, word) for word in command)) == 1
        told = " ".join("".join(capsys.readouterr()).split())
        assert part in told
        assert "zarr.json" in told
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_peers_read_what_is_legal_and_refuse_most_of_what_is_not(legal: Path, tmp_path: Path) -> None:
    """The matrix itself is held to zarr-python: what it calls illegal is not read there, but for what this
    version of zarr-python takes without a look."""
    read = set()
    for name, (change, _) in ILLEGAL.items():
        shutil.copytree(legal, tmp_path / "a.zarr")
        document = json.loads((tmp_path / "a.zarr/zarr.json").read_text())
        change(document)
        (tmp_path / "a.zarr/zarr.json").write_text(json.dumps(document))
        with ignored_warnings(), suppress(Exception):
            zarr.open_array(tmp_path / "a.zarr", mode="r")[...]
            read.add(name)
        shutil.rmtree(tmp_path / "a.zarr")
    version = tuple(map(int, zarr.__version__.split(".")[:2]))
    assert read == LENIENT | next(more for since, more in LENIENT_SINCE.items() if version >= since)


LENIENT = {
    "blosc blocksize",
    "blosc clevel",
    "blosc without typesize",
    "codec member",
    "fill value as text",
    "fill value with a fraction",
    "no index codecs",
}
# the newest first, each until the one before it
LENIENT_SINCE = {(3, 4): {"grid of 0"}, (3, 0): {"no endian"}}


@pytest.mark.parametrize("name", ["big", "numcodecs zlib", "type complex64", "index big"])
def test_without_zarr_python_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    LEGAL[name].write(tmp_path / "a.zarr")
    for module in [module for module in sys.modules if module.partition(".")[0] == "zarr"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "zarr", None)
    monkeypatch.delitem(sys.modules, "shardwright.codecs.zarr_python", raising=False)
    assert run("verify", tmp_path / "a.zarr") == 2
    assert "pip install 'shardwright[zarr]'" in " ".join(capsys.readouterr().err.split())


@contextmanager
def ignored_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
