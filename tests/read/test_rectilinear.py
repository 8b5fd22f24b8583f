"""Arrays whose chunks differ in length along an axis: zarr-python 3.4 reads them, also through our store; our
commands refuse them by name, say so, and change nothing."""

from __future__ import annotations

import itertools
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.cli.app import main
from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ZARR = tuple(map(int, zarr.__version__.split(".")[:2]))
EDGES = ((2, 3, 4), (6, 4))
SHAPE = (9, 10)
VALUES = np.random.default_rng(5).integers(1, 60_000, SHAPE, np.uint16)
SHAPES = [[2, 3, 4], [6, [4, 1]]]


def write(path: Path, *, inner: tuple[int, int] | None = None) -> Path:
    """As zarr-python writes it: each chunk, or shard of chunks of ``inner``, is that of an array of its own.
    The shard 1/1 is absent."""
    borders = [np.cumsum((0, *along)) for along in EDGES]
    for i, j in itertools.product(range(3), range(2)):
        part = VALUES[borders[0][i] : borders[0][i + 1], borders[1][j] : borders[1][j + 1]]
        layout = {"chunks": part.shape} if inner is None else {"chunks": inner, "shards": part.shape}
        one = path.with_name(f"{path.name}-one")
        zarr.create_array(one, shape=part.shape, dtype="uint16", fill_value=7, **layout)[...] = part
        document = json.loads((one / "zarr.json").read_text())
        if (i, j) != (1, 1):
            (path / "c" / str(i)).mkdir(parents=True, exist_ok=True)
            (one / "c" / "0" / "0").rename(path / "c" / str(i) / str(j))
        shutil.rmtree(one)
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": SHAPES}}
    document |= {"shape": list(SHAPE), "chunk_grid": grid, "dimension_names": ["t", "y"]}
    (path / "zarr.json").write_text(json.dumps(document))
    return path


def expected() -> np.ndarray:
    values = VALUES.copy()
    values[2:5, 6:] = 7
    return values


@pytest.fixture(params=[None, (1, 2)], ids=["chunks", "shards"])
def array(request, tmp_path) -> Path:
    return write(tmp_path / "a.zarr", inner=request.param)


@pytest.mark.parametrize("read", [sw.open_array, sw.shard_regions])
def test_our_readers_name_the_one_that_can(array, read: Callable[[Path], Any]) -> None:
    with pytest.raises(ShardFormatError, match="rectilinear") as refused:
        read(array)
    assert "zarr-python 3.4" in str(refused.value.hint)


@pytest.mark.parametrize(
    "command",
    [
        "verify",
        "inspect",
        "compact --no-idle",
        "update --region 0=1 --value 3",
        "erase --region 0=1",
        "rechunk --no-idle",
    ],
)
def test_what_cannot_take_it_refuses_it_by_name(array, tmp_path, capsys, command) -> None:
    before = {path: path.read_bytes() for path in array.rglob("*") if path.is_file()}
    name, *options = command.split()
    arguments = [name, str(array), *([str(tmp_path / "b.zarr")] if name == "rechunk" else []), *options]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert ended.value.code
    assert "rectilinear" in said.out + said.err
    assert "shardwright.open" in said.out + said.err
    assert {path: path.read_bytes() for path in array.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(ZARR < (3, 4), reason="zarr-python writes and reads these grids from 3.4 on")
def test_zarr_python_reads_them_through_our_store(array, tmp_path) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        opened = zarr.open_array(sw.open(array), mode="r")
        np.testing.assert_array_equal(opened[...], expected())
        np.testing.assert_array_equal(opened[1:8, 5:7], expected()[1:8, 5:7])
        group = zarr.create_group(tmp_path / "image.zarr")
        image = group.create_array("0", shape=SHAPE, dtype="uint16", chunks=EDGES)
        image[...] = VALUES
        group.attrs["ome"] = {"version": "0.5", "multiscales": [{"datasets": [{"path": "0"}]}]}
        opened = zarr.open_group(sw.open(tmp_path / "image.zarr"), mode="r")["0"]
        np.testing.assert_array_equal(opened[1:, 3:], VALUES[1:, 3:])
