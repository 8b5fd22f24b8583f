"""``shardwright inspect`` and ``shardwright verify``, run as the command line runs them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardwright.cli.app import main

from .stores import Layout, wrap_in_group, write_with_zarr_python

if TYPE_CHECKING:
    from pathlib import Path


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
    out, err = capsys.readouterr()
    assert out.startswith("4 shards, 12 chunks: ")
    assert "nothing is wrong" in out
    assert err.splitlines()[-1].startswith("100 % of ")


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
