"""``shardwright inspect`` and ``shardwright verify``, run as the command line runs them."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardwright as sw
from shardwright.cli import progress as progress_lines
from shardwright.cli import verify as verify_command
from shardwright.cli.app import main
from shardwright.read import verify_store

from .stores import Layout, wrap_in_group, write_with_zarr_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 0xFF
    path.write_bytes(data)


def test_verify_a_sound_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrap_in_group(tmp_path / "g")
    assert run("verify", tmp_path / "g") == 0
    out = capsys.readouterr().out
    assert out.startswith("4 shards, 12 chunks: ")
    assert "nothing is wrong" in out


def test_verify_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first report is held until a line has come."""
    wrap_in_group(tmp_path / "g")
    verify, shown = verify_store.verify_store, [""]

    def held(store: Path, *, progress: Callable[..., None], **options: object) -> object:
        def report(*done: int) -> None:
            progress(*done)
            until = time.monotonic() + 60
            while not shown[0] and time.monotonic() < until:
                time.sleep(0.01)
                shown[0] = capsys.readouterr().err

        return verify(store, progress=report, **options)

    monkeypatch.setattr(verify_store, "verify_store", held)
    monkeypatch.setattr(progress_lines, "PLAIN_INTERVAL_S", 0.05)
    assert run("verify", tmp_path / "g") == 0
    assert shown[0].startswith("verify: ")
    assert "checked" in shown[0]


def test_verify_a_damaged_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrap_in_group(tmp_path / "g", Layout("zstd", checksum=True))
    damage(tmp_path / "g/0/c/1/0/0")
    assert run("verify", tmp_path / "g") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0/c/1/0/0 chunk 2/0/0: crc32c of the chunk does not match")
    assert lines[-1].endswith("1 problem")


def test_verify_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_with_zarr_python(tmp_path / "a", Layout("gzip"))
    assert run("verify", tmp_path / "a", "--json", "--threads", "2") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    damage(tmp_path / "a/c/0/0/0")
    assert run("verify", tmp_path / "a", "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["shards"], len(facts["problems"])) == (False, 4, 1)
    assert (facts["problems"][0]["where"], facts["problems"][0]["chunk"]) == ("c/0/0/0", [0, 0, 0])


def test_verify_a_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each store below it; not what a creation has begun, what is linked, or a folder without a store."""
    root = tmp_path / "root"
    root.mkdir()
    assert run("verify", root) == 1, "no store is here"
    assert "shardwright: " in capsys.readouterr().err
    wrap_in_group(root / "a", Layout("gzip"))
    wrap_in_group(root / "b", Layout("zstd", checksum=True))
    write_with_zarr_python(root / f".shardwright-{'0' * 16}.making", Layout("gzip"))
    (root / "elsewhere").mkdir()
    (root / "notes.txt").touch()
    (root / "link").symlink_to(root / "a")
    assert run("verify", root, "--threads", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == [f"{root}/a:", f"{root}/b:"]
    assert lines[-1] == "2 stores: nothing is wrong"

    damage(root / "b/0/c/1/0/0")
    (root / "c").mkdir()
    (root / "c/zarr.json").write_text("{")
    (root / "d/.shardwright").mkdir(parents=True)
    assert run("verify", root) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index(f"{root}/b:") + 1].startswith("0/c/1/0/0 chunk 2/0/0: crc32c")
    assert any(line.startswith(f"{root}/c: not verified: ") for line in lines)
    assert lines[-1] == f"4 stores: problems in 3: {root}/b, {root}/c, {root}/d"

    assert run("verify", root, "--json") == 1
    told = capsys.readouterr()
    facts = json.loads(told.out)
    assert told.err == ""
    assert (facts["ok"], facts["path"], facts["skipped"]) == (False, str(root), [])
    assert [(Path(one["path"]).name, one["ok"]) for one in facts["stores"]] == [
        ("a", True),
        *((name, False) for name in "bcd"),
    ]
    assert len(facts["stores"][1]["problems"]) == 1
    assert facts["stores"][2]["error"]["code"] == "shard_format"
    for name, code in (("b", 1), ("a", 0)):
        assert run("verify", root / name, "--json") == code
        assert json.loads(capsys.readouterr().out) == next(
            one for one in facts["stores"] if one["path"] == str(root / name)
        ), "as alone"


@pytest.mark.parametrize("name", ["a.ome.zarr", "renamed"])
def test_a_store_that_has_lost_its_zarr_json_is_no_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One image, whose arrays lie in it, or several, each of which looks like a store."""
    wrap_in_group(tmp_path / name)
    (tmp_path / name / "zarr.json").unlink()
    assert run("verify", tmp_path / name) == 1
    (tmp_path / "all.ome.zarr").mkdir()
    wrap_in_group(tmp_path / "all.ome.zarr/left")
    assert run("verify", tmp_path / "all.ome.zarr") == 1
    assert capsys.readouterr().err.count("no zarr.json in ") == 2


def test_verify_a_root_shows_how_far_each_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = []

    @contextmanager
    def progress(label: str, _verb: str) -> Iterator[None]:
        labels.append(label)
        yield

    monkeypatch.setattr(verify_command, "job_progress", progress)
    for name in ("b.ome.zarr", "a.ome.zarr"):
        wrap_in_group(tmp_path / name)
    assert run("verify", tmp_path) == 0
    assert labels == ["verify: a.ome.zarr", "verify: b.ome.zarr"]
    assert capsys.readouterr().out.count("nothing is wrong") == 3


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run(command, tmp_path / "nothing") == 1
    assert "no such file" in capsys.readouterr().err


def test_inspect_as_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrap_in_group(tmp_path / "g")
    damage(tmp_path / "g/0/c/0/1/0")
    (tmp_path / "g/.shardwright").mkdir()
    assert run("inspect", tmp_path / "g") == 0
    out = capsys.readouterr().out
    assert "shape  5x7x6 (t,y,x) uint16" in out
    for key in ("c/0/0/0", "c/0/1/0", "c/1/0/0", "c/1/1/0"):
        assert key in out
    assert "c/0/1/0: chunk 0: blosc chunk has another format version" in out
    assert "4 of 4 shards, 12 of 12 chunks in them" in out
    assert "chunks encoded as: 11 blosc zstd stored, 1 unreadable" in out
    assert "problems: 1" in out
    assert "work in progress" in out


def test_inspect_an_array_without_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrap_in_group(tmp_path / "g", Layout(index_location="none"))
    (tmp_path / "g/0/c/2/1/1").unlink()
    assert run("inspect", tmp_path / "g") == 0
    out = capsys.readouterr().out
    assert "shard  none: each chunk is a file\n" in out
    assert "\nchunk    file " in out
    row = next(line for line in out.splitlines() if line.startswith("c/1/1/0 "))
    assert " none " in row
    assert "index at the" not in out
    assert " ok " not in out
    assert "\n11 of 12 chunks; " in out
    assert run("inspect", tmp_path / "g", "--json") == 0
    (array,) = json.loads(capsys.readouterr().out)["arrays"]
    assert (array["index_location"], array["shard_shape"], array["chunk_shape"]) == (
        "none",
        [2, 4, 4],
        [2, 4, 4],
    )
    assert {(shard["index_location"], shard["index_bytes"]) for shard in array["shards"]} == {("none", 0)}
    assert (array["totals"]["shards"], array["totals"]["chunks_present"]) == (11, 11)


def test_inspect_one_shard_chunk_by_chunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_with_zarr_python(tmp_path / "a", Layout("zstd"))
    assert run("inspect", tmp_path / "a/c/1/0/0", "--chunks") == 0
    out = capsys.readouterr().out
    assert "gap after" in out
    assert "2/0/1" in out
    assert "c/0/0/0" not in out


def test_inspect_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrap_in_group(tmp_path / "g", Layout("zstd"))
    assert run("inspect", tmp_path / "g", "--json", "--chunks") == 0
    facts = json.loads(capsys.readouterr().out)
    (array,) = facts["arrays"]
    assert facts["work_in_progress"] is False
    assert (array["shape"], array["chunk_shape"], array["dtype"]) == ([5, 7, 6], [2, 4, 4], "uint16")
    assert (array["totals"]["shards"], array["totals"]["chunks_present"]) == (4, 12)
    assert [len(shard["chunk_reports"]) for shard in array["shards"]] == [4, 4, 2, 2]


def test_inspect_a_group_that_leads_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrap_in_group(tmp_path / "g")
    (tmp_path / "g/0/zarr.json").unlink()
    assert run("inspect", tmp_path / "g") == 1
    assert "dataset '0'" in capsys.readouterr().err


@pytest.fixture
def no_hang() -> Iterator[None]:
    """Only so that a command that waits for ever becomes a failure."""

    def give_up(*_: object) -> None:
        raise AssertionError("waited for somebody to write into a pipe")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("place", ["zarr.json", "0/zarr.json"])
@pytest.mark.parametrize(
    "command", [("verify",), ("inspect",), ("inspect", "--missing"), ("compact", "--no-idle")], ids=" ".join
)
def test_a_pipe_in_place_of_metadata_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_hang, place: str, command: tuple[str, ...]
) -> None:
    wrap_in_group(tmp_path / "g")
    (tmp_path / "g" / place).unlink()
    os.mkfifo(tmp_path / "g" / place)
    assert run(*command, tmp_path / "g") != 0
    out, err = capsys.readouterr()
    assert "it is no regular file" in " ".join((out + err).split())


@pytest.mark.parametrize("place", ["frames/zarr.json", "frames/frame_id/zarr.json", "frames/frame_id/c/0"])
def test_a_pipe_in_the_frame_table_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_hang, place: str
) -> None:
    store = tmp_path / "a.ome.zarr"
    plane = [sw.Dimension(name=name, count=8, chunk_size=8) for name in "yx"]
    with sw.create(store, sw.ArraySpec(dtype="uint8", dimensions=plane), threads=1) as writer:
        writer.append(np.ones((8, 8), np.uint8))
    assert run("verify", store) == 0
    (store / place).unlink()
    os.mkfifo(store / place)
    assert run("verify", store) == 1
    assert "it is no regular file" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [("verify",), ("inspect",), ("inspect", "--json"), ("compact", "--dry-run", "--no-idle")],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["0\0", "d" * 300, "d/" * 3000])
def test_a_dataset_path_that_no_folder_can_have_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, command: tuple[str, ...]
) -> None:
    wrap_in_group(tmp_path / "g", datasets=["0", name])
    assert run(*command, tmp_path / "g") == (0 if "inspect" in command else 1)
    out, err = capsys.readouterr()
    assert repr(name)[1:40] in out + err or json.dumps(name)[1:40] in out + err


@pytest.mark.parametrize("command", [("verify",), ("inspect",), ("compact", "--no-idle")], ids=" ".join)
def test_a_group_of_very_many_datasets_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    wrap_in_group(tmp_path / "g", datasets=[f"d{number}" for number in range(5000)])
    assert run(*command, tmp_path / "g") != 0
    out, err = capsys.readouterr()
    assert "names too many datasets; expected at most 256; got 5000" in out + err


def test_a_dataset_that_is_named_again_and_again_is_looked_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrap_in_group(tmp_path / "g", datasets=["0"] * 5000)
    assert run("inspect", "--json", tmp_path / "g") == 0
    assert len(json.loads(capsys.readouterr().out)["arrays"]) == 1


@pytest.mark.parametrize("plate", [False, True])
def test_inspect_names_the_images(tmp_path: Path, capsys: pytest.CaptureFixture[str], plate: bool) -> None:
    array = sw.default_layout((2, 8, 8), "uint8", "tyx")
    several = {"plate": sw.Plate(rows=2, columns=2)} if plate else {"images": ["never", "left", "right"]}
    names, arrays = (["A/2/0", "B/1/0"],) * 2 if plate else (["left", "right"], ["1", "2"])
    path = tmp_path / "all.ome.zarr"
    with sw.create(path, sw.AcquisitionSpec(array=array, **several)) as writer:
        for name in names:
            writer.append(np.ones((8, 8), np.uint8), image=name, index=(1,))
    assert run("inspect", path) == 0
    said = capsys.readouterr().out
    for name, folder in zip(names, arrays, strict=True):
        assert f"{path}/{folder}/0, image {name}\n" in said
    assert run("inspect", "--json", path) == 0
    assert [facts["image"] for facts in json.loads(capsys.readouterr().out)["arrays"]] == names
    assert run("inspect", "--missing", path) == 0
    said = capsys.readouterr().out
    for name, folder in zip(names, arrays, strict=True):
        assert f"{folder}/0, image {name}:\nframe 0 (t=0): never came\n" in said
    assert run("inspect", "--missing", "--json", path) == 0
    assert [facts["image"] for facts in json.loads(capsys.readouterr().out)] == names
