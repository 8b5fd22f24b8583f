"""A store that another program has cropped: legal, so verified with a warning; its chunks stay, or go when
that is asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.cli.app import main
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pack_shard import pack_shard
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import Throttle
from shardwright.shard.index import LITTLE_ENDIAN_CRC32C
from shardwright.shard.sealed_shard import SealedShard

from .images import die_at_every_point, read_everywhere
from .stores import frame, spec, task

if TYPE_CHECKING:
    from pathlib import Path

HERE = ("--workers", "1", "--no-idle")
GROWN = (6, 30, 52)
CROPPED = (2, 30, 30)  # the second shards of t and x are outside, and so are chunks of the first


@pytest.fixture
def cropped(tmp_path: Path) -> Path:
    """As ``Array.resize`` of zarr-python leaves it when its store cannot delete: with every shard."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(io="mmap")) as writer:
        for number in range(GROWN[0]):
            writer.append(frame(number))
    resize(path, CROPPED)
    return path


def resize(store: Path, shape: tuple[int, ...]) -> None:
    document = json.loads((store / "0/zarr.json").read_text())
    document["shape"] = list(shape)
    (store / "0/zarr.json").write_text(json.dumps(document))


def pixels(shape: tuple[int, ...]) -> np.ndarray:
    return np.stack([frame(number) for number in range(GROWN[0])])[tuple(map(slice, shape))]


def keys(store: Path) -> list[str]:
    return [key for key, _ in open_store(store).arrays[0].shard_files()]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def test_verify_warns_and_exits_with_0(cropped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", cropped) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[1].strip() for line in lines[:5]] == [
        "0/c/0/0/0",
        "0/c/0/0/1",
        "0/c/1/0/0",
        "0/c/1/0/1",
        "frames",
    ]
    assert lines[4] == (
        "warning: frames: 4 stored frames have places outside the shape (2, 30, 30): it was cropped"
    )
    assert "nothing is wrong" in lines[5]
    assert run("verify", cropped, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], len(facts["warnings"]), facts["chunks_absent"]) == (True, 5, 1)


def test_zarr_python_resizes_and_grows_again(cropped: Path) -> None:
    """It deletes what lies wholly outside the grid."""
    resize(cropped, GROWN)
    zarr.open_array(cropped / "0", mode="r+").resize(CROPPED)
    assert keys(cropped) == ["c/0/0/0"]
    report = verify_store(cropped)
    assert report.problems == []
    assert len(report.warnings) == 2
    assert [
        shard.chunks_empty for shard in inspect_shards(open_store(cropped), open_store(cropped).arrays[0])
    ] == [1]


def test_compaction_keeps_them(cropped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compact", cropped, *HERE) == 0
    assert "4 shards packed" in capsys.readouterr().out
    assert [
        shard.gap_bytes for shard in inspect_shards(open_store(cropped), open_store(cropped).arrays[0])
    ] == [0, 0, 0, 0]
    assert np.array_equal(read_everywhere(cropped / "0"), pixels(CROPPED))
    resize(cropped, GROWN)
    assert np.array_equal(read_everywhere(cropped / "0"), pixels(GROWN))
    assert verify_store(cropped).warnings == []


@pytest.mark.parametrize("options", [(), ("--recompress", "zstd:5")])
def test_trim_drops_them(cropped: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    assert run("compact", cropped, "--trim", "--dry-run", *HERE) == 0
    assert "4 of 4 shards to do" in capsys.readouterr().out
    assert run("compact", cropped, "--trim", *HERE, *options) == 0
    assert "3 shards outside the shape deleted" in capsys.readouterr().out
    assert keys(cropped) == ["c/0/0/0"]
    assert np.array_equal(read_everywhere(cropped / "0"), pixels(CROPPED))
    report = verify_store(cropped)
    assert (report.problems, report.chunks) == ([], 3)
    assert [warning.where for warning in report.warnings] == ["frames"]
    assert run("compact", cropped, "--trim", *HERE) == 0
    assert "0 shards packed, 1 were already" in capsys.readouterr().out
    resize(cropped, GROWN)
    assert not read_everywhere(cropped / "0")[2:].any()


def test_a_file_outside_the_grid_that_is_no_shard_is_named_and_stays(
    cropped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cropped / "0/c/1/0/0").write_bytes(b"a note")
    assert run("compact", cropped, "--trim", *HERE) == 0
    assert "no shard: 0/c/1/0/0: outside the grid" in capsys.readouterr().out
    assert (cropped / "0/c/1/0/0").read_bytes() == b"a note"


def test_nothing_is_trimmed_while_an_acquisition_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sw.create(tmp_path / "a.ome.zarr", spec()) as writer:
        writer.append(frame(0))
        writer.flush()
        assert run("compact", tmp_path / "a.ome.zarr", "--trim", *HERE) == 1
        assert "so it is not trimmed" in capsys.readouterr().out


def test_trim_does_not_go_with_to(cropped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compact", cropped, "--trim", "--to", cropped.parent / "b.ome.zarr", *HERE) == 2
    assert "--trim and --to do not go together" in capsys.readouterr().err


def test_a_trim_that_is_killed_at_any_point_goes_on(cropped: Path) -> None:
    (array,) = open_store(cropped).arrays

    def job() -> None:
        for _, shard in list(open_store(cropped).arrays[0].shard_files()):
            assert shard is not None
            assert run_task(task(array, *shard, trim=True))["ok"]

    for _ in die_at_every_point(job):
        assert np.array_equal(read_everywhere(cropped / "0"), pixels(CROPPED))
    assert keys(cropped) == ["c/0/0/0"]


def test_chunks_that_share_bytes_are_packed_with_the_same_values(cropped: Path) -> None:
    """As a writer leaves them that stores chunks of the same content but once."""
    resize(cropped, GROWN)
    (array,) = open_store(cropped).arrays
    shard = array.path / "c/0/0/0"
    with SealedShard.open(shard, array.index) as file:
        entries, data = file.entries.copy(), shard.read_bytes()[: file.index_offset]
    start, stop = int(entries["offset"][1]), int(entries["offset"][1] + entries["nbytes"][1])
    entries[1] = entries[0]
    shard.write_bytes(data[:start] + bytes(stop - start) + data[stop:] + LITTLE_ENDIAN_CRC32C.encode(entries))
    before = read_everywhere(array.path)
    report = next(inspect_shards(open_store(cropped), array))
    assert report.problems == []
    assert pack_shard(task(array, 0, 0, 0), Throttle(idle=False))["ok"]
    assert np.array_equal(read_everywhere(array.path), before)
    assert next(inspect_shards(open_store(cropped), array)).gap_bytes == 0
