"""Arrays whose chunks differ in length along an axis: read as zarr-python 3.4 writes them, refused by name by
whatever would change them, and never written."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import dask.array
import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.cli.app import main
from shardwright.model.errors import ShardFormatError, ShardwrightError
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store

if TYPE_CHECKING:
    from pathlib import Path

ZARR = tuple(map(int, zarr.__version__.split(".")[:2]))
EDGES = ((2, 3, 4), (6, 4))
SHAPE = (9, 10)
VALUES = np.random.default_rng(5).integers(1, 60_000, SHAPE, np.uint16)
SHAPES = [[2, 3, 4], [6, [4, 1]]]


def write(path: Path, *, inner: tuple[int, int] | None = None, shapes: Any = SHAPES) -> Path:
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
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}}
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


KEYS = [
    (...,),
    (3,),
    (slice(1, 8), slice(5, 7)),
    (slice(None, None, -2), slice(None, None, 3)),
    ([8, 0, 4], slice(2, 9)),
    (np.array([1, 2, 7]), np.array([9, 0, 6])),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_any_part_is_read_as_numpy_takes_it(array, key) -> None:
    view = sw.open_array(array)
    np.testing.assert_array_equal(view[key], expected()[key])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(view))[key], expected()[key])
    np.testing.assert_array_equal(view.refresh()[key], expected()[key])


def test_it_is_an_array_for_dask_and_has_regions(array) -> None:
    view = sw.open_array(array)
    lazy = dask.array.from_array(view, chunks=EDGES)
    np.testing.assert_array_equal(lazy.compute(scheduler="threads"), expected())
    assert (view.shape, view.dimension_names, view.fill_value) == (SHAPE, ("t", "y"), 7)
    regions = list(sw.shard_regions(array))
    assert [tuple(s.stop - s.start for s in region) for region in regions] == list(itertools.product(*EDGES))
    out = np.zeros(SHAPE, int)
    for region in regions:
        out[region] += 1
    assert (out == 1).all()


def test_cropped_and_grown_ones(array) -> None:
    document = json.loads((array / "zarr.json").read_text())
    for shape, shapes in (((7, 6), SHAPES), ((12, 10), [[2, 3, 4, 3], [6, 4]])):
        document["shape"] = list(shape)
        document["chunk_grid"]["configuration"]["chunk_shapes"] = shapes
        (array / "zarr.json").write_text(json.dumps(document))
        rows, columns = (min(a, b) for a, b in zip(shape, SHAPE, strict=True))
        found = sw.open_array(array)[...]
        np.testing.assert_array_equal(found[:rows, :columns], expected()[:rows, :columns])
        assert (found[rows:] == 7).all()


def test_damage_and_changes_are_told(array) -> None:
    view = sw.open_array(array)
    chunk = array / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-3])
    with pytest.raises(ShardFormatError):
        view[...]
    np.testing.assert_array_equal(view[:5], expected()[:5])
    text = (array / "zarr.json").read_text()
    (array / "zarr.json").unlink()
    (array / "zarr.json").write_text(text + " ")
    with pytest.raises(ShardwrightError):
        view[:5]


@pytest.mark.parametrize(
    "shapes",
    [
        [[2, 3, 4]],
        [[2, 3], [6, 4]],
        [[2, 3, 4], 0],
        [[2, 3, 4], [[6, 0], 4]],
        [[2, 3, 4], "6"],
        [[1 << 62], 3, 3],
        [[[1, 1 << 40]], 10],
        [[2, 3, 4], [[6, 1, 1], 4]],
        None,
    ],
    ids=str,
)
def test_other_grids_of_this_name_are_refused(tmp_path, shapes) -> None:
    path = write(tmp_path / "a.zarr", shapes=shapes)
    with pytest.raises(ShardFormatError):
        sw.open_array(path)


def test_one_of_equal_chunks_is_a_regular_grid(tmp_path) -> None:
    path = tmp_path / "a.zarr"
    image = zarr.create_array(path, shape=SHAPE, dtype="uint16", chunks=(3, 5))
    image[...] = VALUES
    document = json.loads((path / "zarr.json").read_text())
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [3, [[5, 2]]]}}
    (path / "zarr.json").write_text(json.dumps({**document, "chunk_grid": grid}))
    assert open_store(path).arrays[0].chunk_shape == (3, 5)
    np.testing.assert_array_equal(zarr.open_array(sw.open(path), mode="r")[...], VALUES)
    sw.update(path, {"0": 4}, 3)
    assert (sw.open_array(path)[4] == 3).all()
    assert verify_store(path).problems == []


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
    assert "open_array" in said.out + said.err
    assert {path: path.read_bytes() for path in array.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(ZARR < (3, 4), reason="zarr-python writes and reads these grids from 3.4 on")
@pytest.mark.parametrize(
    "layout", [{"chunks": SHAPES}, {"chunks": (1, 2), "shards": SHAPES}], ids=["chunks", "shards"]
)
def test_what_zarr_python_writes_and_how_it_reads_ours(tmp_path, layout) -> None:
    """In an image, too; and by zarr-python through a store of ours."""
    with zarr.config.set({"array.rectilinear_chunks": True}):
        group = zarr.create_group(tmp_path / "a.zarr")
        layout = {name: EDGES if given is SHAPES else given for name, given in layout.items()}
        image = group.create_array("0", shape=SHAPE, dtype="uint16", **layout)
        image[...] = VALUES
        group.attrs["ome"] = {"version": "0.5", "multiscales": [{"datasets": [{"path": "0"}]}]}
        np.testing.assert_array_equal(sw.open_array(tmp_path / "a.zarr")[...], VALUES)
        opened = zarr.open_group(sw.open(tmp_path / "a.zarr"), mode="r")["0"]
        np.testing.assert_array_equal(opened[1:, 3:], VALUES[1:, 3:])
        image.resize((11, 10))
        image[9:] = 4
        np.testing.assert_array_equal(sw.open_array(tmp_path / "a.zarr")[9:], np.full((2, 10), 4))
        for inner in (None, (1, 2)):
            made = write(tmp_path / f"made-{inner is None}.zarr", inner=inner)
            np.testing.assert_array_equal(zarr.open_array(made, mode="r")[...], expected())
