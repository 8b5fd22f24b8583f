"""Metadata that are not understood stop every command, with the file and the field, and nothing is
changed."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.store_contents import snapshot
from zarr.errors import UnknownCodecError

import shardwright as sw
from shardwright.cli.app import main
from shardwright.codecs import zarr_python
from shardwright.model.errors import ShardFormatError
from shardwright.read.store import open_store
from shardwright.web.finished_stores import FinishedStores, NotViewableError

from .stores import Layout, edit_json, write_with_zarr_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Change = Callable[[dict[str, Any]], Any]


def inner(document: dict[str, Any]) -> dict[str, Any]:
    configuration: dict[str, Any] = document["codecs"][0]["configuration"]
    return configuration


UNKNOWN: list[tuple[str, Change, str]] = [
    (
        "0",
        lambda d: d.update(storage_transformers=[{"name": "indirection", "configuration": {}}]),
        "storage_transformers",
    ),
    (
        "0",
        lambda d: d.update(storage_transformers=[{"name": "indirection", "must_understand": False}]),
        "storage_transformers",
    ),
    ("0", lambda d: d.update(flipped=True), "'flipped'"),
    ("0", lambda d: d.update(flipped={"axes": ["x"]}), "'flipped'"),
    ("0", lambda d: d.update(flipped={"must_understand": True}), "'flipped'"),
    ("0", lambda d: d.update(attributes=[]), "attributes"),
    (
        "0",
        lambda d: d["chunk_grid"]["configuration"].update(offset=[1, 0, 0]),
        "chunk_grid.configuration.offset",
    ),
    ("0", lambda d: d["chunk_grid"].update(origin=[1, 0, 0]), "chunk_grid.origin"),
    ("0", lambda d: d["chunk_key_encoding"].update(name="reversed"), "chunk_key_encoding"),
    (
        "0",
        lambda d: d["chunk_key_encoding"]["configuration"].update(prefix="d"),
        "chunk_key_encoding.configuration.prefix",
    ),
    ("0", lambda d: d.pop("chunk_key_encoding"), "chunk_key_encoding"),
    ("0", lambda d: d.update(data_type={"name": "uint16", "configuration": {"bits": 12}}), "data_type"),
    ("0", lambda d: d["codecs"].append({"name": "cipher", "must_understand": False}), "codecs[1]"),
    ("0", lambda d: d["codecs"].append("cipher"), "codecs[1]"),
    ("0", lambda d: inner(d).update(key="8"), "codecs[0].configuration.key"),
    (
        "0",
        lambda d: inner(d)["codecs"].insert(0, {"name": "delta", "configuration": {}}),
        "codecs[0].configuration.codecs[0]",
    ),
    (
        "0",
        lambda d: inner(d)["codecs"][1]["configuration"].update(dictionary="a"),
        "codecs[0].configuration.codecs[1].configuration.dictionary",
    ),
    (
        "0",
        lambda d: inner(d)["index_codecs"][0]["configuration"].update(width=4),
        "codecs[0].configuration.index_codecs[0].configuration.width",
    ),
    ("0", lambda d: d.update(fill_value=70000), "fill_value"),
    ("0", lambda d: d.update(fill_value=0.5), "fill_value"),
    ("0", lambda d: d.update(fill_value=False), "fill_value"),
    ("0", lambda d: d.update(fill_value=None), "fill_value"),
    ("0", lambda d: d.update(dimension_names=["t", "y", 7]), "dimension_names"),
    (".", lambda d: d.update(links={"0": "elsewhere"}), "'links'"),
]


@pytest.fixture(scope="module")
def acquired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was finished, and one (.left) that a writer has left."""
    path = tmp_path_factory.mktemp("acquired") / "a.ome.zarr"
    plane = [sw.Dimension(name=axis, count=16, chunk_size=8, shard_size_chunks=2) for axis in "yx"]
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=2), *plane],
    )
    with sw.create(path, spec) as writer:
        for number in range(3):
            writer.append(np.full((16, 16), 5 + number, np.uint16))
        writer.flush()
        snapshot(path, path.with_suffix(".left"))
    return path


@pytest.fixture(scope="module")
def two_levels(acquired: Path) -> Path:
    path = acquired.with_name("levels.ome.zarr")
    shutil.copytree(acquired, path)
    assert run("pyramid", path, "--levels", "1", "--no-idle") == 0
    return path


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


COMMANDS = {
    "inspect": ["inspect", "STORE"],
    "missing": ["inspect", "STORE", "--missing"],
    "verify": ["verify", "STORE"],
    "compact": ["compact", "STORE", "--no-idle"],
    "dry": ["compact", "STORE", "--dry-run", "--no-idle"],
    "to": ["compact", "STORE", "--to", "ELSEWHERE", "--no-idle"],
    "rechunk": ["rechunk", "STORE", "ELSEWHERE", "--chunks", "t=2", "--no-idle"],
    "pyramid": ["pyramid", "STORE", "--levels", "1", "--no-idle"],
}


@pytest.mark.parametrize(("node", "change", "field"), UNKNOWN)
def test_it_is_named_with_its_file(
    acquired: Path, tmp_path: Path, node: str, change: Change, field: str
) -> None:
    store = tmp_path / "a.ome.zarr"
    shutil.copytree(acquired, store)
    edit_json(store / node / "zarr.json", change)
    with pytest.raises(ShardFormatError) as error:
        open_store(store / node)
    assert str(store / node / "zarr.json") in str(error.value)
    assert field in str(error.value)


@pytest.mark.parametrize(
    "raised", [KeyError("cipher"), UnknownCodecError("cipher"), ImportError("no module of that name")]
)
def test_whatever_the_look_at_an_unknown_codec_raises(
    acquired: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    """zarr-python raises another error in each version, and that of a registered package which does not
    load."""

    def get_codec_class(name: str) -> type:
        raise raised

    store = tmp_path / "a.ome.zarr"
    shutil.copytree(acquired, store)
    edit_json(store / "0/zarr.json", lambda d: inner(d)["codecs"].append({"name": "cipher"}))
    monkeypatch.setattr(zarr_python, "get_codec_class", get_codec_class)
    with pytest.raises(ShardFormatError, match=r"codec not supported.* got 'cipher'") as error:
        open_store(store / "0")
    assert str(store / "0/zarr.json") in str(error.value)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("node", "field"), [("0", "flipped"), (".", "flipped"), ("0", "storage_transformers")]
)
def test_every_command_refuses_and_changes_nothing(
    acquired: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, node: str, field: str
) -> None:
    store = tmp_path / "a.ome.zarr"
    shutil.copytree(acquired, store)
    edit_json(store / node / "zarr.json", lambda document: document.update({field: [{"name": "x"}]}))
    before = files(tmp_path)
    places = {"STORE": store, "ELSEWHERE": tmp_path / "b.ome.zarr"}
    assert run(*(places.get(word, word) for word in COMMANDS[command])) == 1
    told = " ".join("".join(capsys.readouterr()).split())
    assert field in told
    assert "zarr.json" in told
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "options"),
    [(command, ()) for command in ("compact", "dry", "to", "rechunk", "pyramid")]
    + [("compact", ("--recompress", "zstd:5"))],
)
def test_a_second_array_that_is_not_understood_stops_them_before_the_first_is_changed(
    two_levels: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    options: tuple[str, ...],
) -> None:
    store = tmp_path / "a.ome.zarr"
    shutil.copytree(two_levels, store)
    edit_json(store / "1/zarr.json", lambda document: document.update(flipped=True))
    before = files(tmp_path)
    places = {"STORE": store, "ELSEWHERE": tmp_path / "b.ome.zarr"}
    assert run(*(places.get(word, word) for word in COMMANDS[command]), *options) == 1
    told = " ".join("".join(capsys.readouterr()).split())
    assert "dataset '1' leads to no readable array" in told
    assert "'flipped'" in told
    assert files(tmp_path) == before


@pytest.mark.parametrize("node", ["0", "."])
def test_a_writer_does_not_go_on_with_it(
    acquired: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], node: str
) -> None:
    store = tmp_path / "a.ome.zarr"
    shutil.copytree(acquired.with_suffix(".left"), store)
    edit_json(store / node / "zarr.json", lambda document: document.update(storage="elsewhere"))
    with pytest.raises(ShardFormatError, match="'storage' is not understood"):
        sw.resume(store)
    assert run("recover", store) == 1
    assert "'storage' is not understood" in capsys.readouterr().out
    edit_json(store / node / "zarr.json", lambda document: document.pop("storage"))
    assert run("recover", store) == 0


@pytest.mark.parametrize("node", ["0", "."])
def test_the_page_does_not_show_it(acquired: Path, tmp_path: Path, node: str) -> None:
    store = tmp_path / "a.ome.zarr"
    shutil.copytree(acquired, store)
    stores = FinishedStores(tmp_path)
    assert stores.find(store.name).image.shape == (3, 16, 16)
    edit_json(store / node / "zarr.json", lambda document: document.update(storage="elsewhere"))
    with pytest.raises(NotViewableError):
        stores.find(store.name)


def test_a_column_of_the_frame_table_is_held_to_it_too(
    acquired: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "a.ome.zarr"
    shutil.copytree(acquired, store)
    edit_json(
        store / "frames/status/zarr.json",
        lambda document: document.update(storage_transformers=[{"name": "x"}]),
    )
    assert run("verify", store) == 1
    assert "frames/status/zarr.json: storage_transformers" in capsys.readouterr().out


def test_what_need_not_be_understood_is_passed_over(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    edit_json(
        tmp_path / "a/zarr.json",
        lambda document: document.update(note={"must_understand": False}, storage_transformers=[]),
    )
    assert open_store(tmp_path / "a").arrays[0].shape == (5, 7, 6)
