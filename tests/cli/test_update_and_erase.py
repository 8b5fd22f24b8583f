"""``shardwright update`` and ``shardwright erase`` as people meet them: what is changed and printed, exit
codes, what is refused."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.daemon import run_cli
from tests.repack.images import read_everywhere

import shardwright as sw
from shardwright.read.verify_store import verify_store

if TYPE_CHECKING:
    from pathlib import Path

PIXELS = np.random.default_rng(5).poisson(90, (6, 32, 48)).astype(np.uint16)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=2),
            *[
                sw.Dimension(name=name, count=count, chunk_size=16, shard_size_chunks=2)
                for name, count in (("y", 32), ("x", 48))
            ],
        ],
        levels=sw.Levels(count=1),
    )
    with sw.create("embryo.ome.zarr", spec) as writer:
        for frame in PIXELS:
            writer.append(frame)
    return tmp_path / "embryo.ome.zarr"


@pytest.fixture
def shardwright():
    """``shardwright(*arguments)``: exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        done = run_cli(*map(str, arguments))
        return done.returncode, done.stdout, done.stderr

    return run


def test_values_of_a_file_and_one_value(store: Path, shardwright) -> None:
    values = np.arange(3 * 4 * 48, dtype=np.int64).reshape(3, 4, 48)
    np.save("values.npy", values)
    code, out, _ = shardwright("update", store, "--region", "t=1:4,y=5:9", "values.npy")
    assert code == 0
    assert re.search(
        r"embryo.ome.zarr: changed\n  0: 9 chunks in 4 shards, 9 of them in part; 0 chunks are all fill "
        r"value, 0 shards removed; [0-9.]+ \w+ written \(.*\)\n  1: 6 chunks in 2 shards",
        out,
    )
    code, out, _ = shardwright("update", store, "--region", "t=5,x=:7", "--value", "3", "--json")
    report = json.loads(out)
    assert (code, report["warnings"], [array["name"] for array in report["arrays"]]) == (0, [], ["0", "1"])
    assert report["arrays"][0]["chunks"] == 2
    expected = PIXELS.copy()
    expected[1:4, 5:9] = values
    expected[5, :, :7] = 3
    assert shardwright("update", store, "--frames", ":2", "--value", "8")[0] == 0
    expected[:2] = 8
    np.testing.assert_array_equal(read_everywhere(store / "0"), expected)
    assert verify_store(store).problems == []


def test_frames_and_regions_are_erased(store: Path, shardwright) -> None:
    code, out, _ = shardwright("erase", store, "--frames", "2:5", "--dry-run")
    assert (code, "would change" in out) == (0, True)
    np.testing.assert_array_equal(read_everywhere(store / "0"), PIXELS)
    code, out, _ = shardwright("erase", store, "--frames", "2:5", "--json")
    changes = json.loads(out)["arrays"][0]
    assert (code, changes["chunks_absent"], changes["shards_removed"]) == (0, 18, 2)
    assert shardwright("erase", store, "--region", "y=0:16,x=16:", "--strategy", "rewrite")[0] == 0
    expected = PIXELS.copy()
    expected[2:5] = 0
    expected[:, :16, 16:] = 0
    np.testing.assert_array_equal(read_everywhere(store / "0"), expected)
    assert not (store / "0/c/1/0/0").exists()
    assert verify_store(store).problems == []


REFUSED = [
    (("update", "embryo.ome.zarr", "--region", "t=0", "no.npy"), 1, "cannot read values from no.npy"),
    (("update", "embryo.ome.zarr", "--region", "t=0", "text.npy"), 1, "Write such a file with `numpy.save`"),
    (("update", "embryo.ome.zarr", "--region", "t=0", "several.npz"), 1, "holds several arrays"),
    (("update", "embryo.ome.zarr", "--region", "t=0", "objects.npy"), 1, "cannot read values"),
    (("update", "embryo.ome.zarr", "--region", "t=0", "frame.npy"), 1, "expected (1, 32, 48) or (32, 48)"),
    (("update", "embryo.ome.zarr", "--value", "3"), 2, "either --frames or --region"),
    (("update", "embryo.ome.zarr", "--region", "t=0"), 2, "either a file of values or --value"),
    (("update", "embryo.ome.zarr", "--region", "t=0", "frame.npy", "--value", "3"), 2, "either a file"),
    (("update", "embryo.ome.zarr", "--region", "t=0", "--value", "many"), 2, "expected a number"),
    (("update", "embryo.ome.zarr", "--region", "t=0", "--value", "0.5"), 1, "without loss"),
    (("update", "embryo.ome.zarr", "--region", "t", "--value", "3"), 2, "such as t=0:10,y=5"),
    (("update", "embryo.ome.zarr", "--region", "t=0:9:2", "--value", "3"), 2, "a range such as 0:10"),
    (("update", "embryo.ome.zarr", "--region", "t=:-", "--value", "3"), 2, "a range such as 0:10"),
    (("erase", "embryo.ome.zarr", "--frames=-:5"), 2, "a range such as 0:10"),
    (("update", "embryo.ome.zarr", "--region", "t=0,t=1", "--value", "3"), 2, "each axis once"),
    (("update", "embryo.ome.zarr", "--region", "q=0", "--value", "3"), 1, "no axis 'q'"),
    (("update", "embryo.ome.zarr", "--region", "t=-2:", "--value", "3"), 1, "not counted from the end"),
    (
        ("update", "embryo.ome.zarr", "--region", "t=0:7", "--value", "3"),
        1,
        "expected 0 <= start < stop <= 6",
    ),
    (("erase", "embryo.ome.zarr"), 2, "either --frames or --region"),
    (("erase", "embryo.ome.zarr", "--frames", "1", "--region", "t=1"), 2, "either --frames or --region"),
    (("erase", "embryo.ome.zarr", "--frames", "6"), 1, "frames 6:7 is not within the array"),
    (("erase", "embryo.ome.zarr", "--frames", "1", "--image", "b"), 1, "has no one image 'b'"),
    (("erase", "embryo.ome.zarr", "--frames", "1", "--strategy", "best"), 2, "in_place"),
    (("erase", "nowhere.ome.zarr", "--frames", "1"), 2, "does not exist"),
]


@pytest.mark.parametrize(("command", "expected_code", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line_and_nothing_is_changed(
    store: Path, shardwright, command, expected_code, message
) -> None:
    (store.parent / "text.npy").write_text("1 2 3")
    np.savez(store.parent / "several.npz", a=1, b=2)
    np.save(store.parent / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(store.parent / "frame.npy", np.zeros((32, 47), np.uint16))
    code, out, err = shardwright(*command)
    assert (code, out) == (expected_code, "")
    assert message in " ".join(re.sub(r"[│╭╮╰╯─]", " ", err).split())
    np.testing.assert_array_equal(read_everywhere(store / "0"), PIXELS)


def test_a_store_that_is_acquired_is_refused(tmp_path: Path, shardwright) -> None:
    with sw.create(tmp_path / "a.ome.zarr", shape=(None, 32, 32), dtype="uint8", axes="tyx") as writer:
        writer.append(np.ones((32, 32), np.uint8))
        writer.flush()
        code, _, err = shardwright("erase", tmp_path / "a.ome.zarr", "--region", "y=0")
        assert (code, "still being written" in err) == (1, True)
