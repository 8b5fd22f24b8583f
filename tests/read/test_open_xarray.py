"""``shardwright.open_xarray`` and xarray's engine ``shardwright``: dimensions, coordinates, times, values."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import xarray

import shardwright as sw
from shardwright.model.errors import ConfigError, UnknownImageError

PIXELS = np.random.default_rng(3).poisson(300, (6, 2, 64, 48)).astype(np.uint16)
LAYOUT = {
    "shape": (None, 2, 64, 48),
    "dtype": "uint16",
    "axes": "tcyx",
    "channels": ["GFP", "RFP"],
    "scales": {"t": 0.5, "y": 0.65, "x": 0.65},
    "units": {"t": "second", "y": "micrometer", "x": "micrometer"},
    "levels": 2,
}
REPOSITORY = Path(__file__).parents[2]


def write(path, frames=PIXELS):
    with sw.create(path, **LAYOUT) as writer:
        for t, c in np.ndindex(frames.shape[:2]):
            if (t, c) != (2, 0) and t != 4:  # t=4 has no frame, t=2 one
                writer.append(frames[t, c], index=(t, c))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write(tmp_path_factory.mktemp("rig") / "embryo.ome.zarr")


@pytest.fixture(scope="module")
def expected():
    values = PIXELS.copy()
    values[2, 0] = values[4] = 0
    return values


def test_names_coordinates_and_units(store, expected):
    image = sw.open_xarray(store)
    assert image.dims == ("t", "c", "y", "x")
    assert image.coords["c"].values.tolist() == ["GFP", "RFP"]
    np.testing.assert_allclose(image.t, np.arange(6) * 0.5)
    np.testing.assert_allclose(image.x, np.arange(48) * 0.65)
    assert {axis: image[axis].attrs for axis in image.dims} == {
        "t": {"units": "second"},
        "c": {},
        "y": {"units": "micrometer"},
        "x": {"units": "micrometer"},
    }
    assert image.attrs == {"image": "embryo", "level": 0, "store": str(store)}
    np.testing.assert_array_equal(image.values, expected)


def test_a_level_lies_in_the_middle_of_its_pixels(store):
    image = sw.open_xarray(store, level=1)
    assert image.shape == (6, 2, 32, 24)
    np.testing.assert_allclose(image.x[:2], [0.325, 1.625])
    assert "time" in image.coords, "it has the same frames"
    np.testing.assert_array_equal(image.values, sw.open_array(store, "1")[...])
    with pytest.raises(ConfigError, match=r"no such level; expected level=0 to 2; got 3"):
        sw.open_xarray(store, level=3)


def test_times_are_those_of_the_first_frame_of_each_place(store):
    table = sw.frame_table(store)
    table = table[table["status"] == "stored"]
    times = sw.open_xarray(store).time
    assert times.dims == ("t",)
    first = table.groupby("index_t")["camera_ns"].min()
    assert times.values.astype(np.int64)[[0, 1, 2, 3, 5]].tolist() == first.tolist()
    assert np.isnat(times.values[4])


def test_only_what_is_asked_for_is_read(store, expected, monkeypatch):
    image = sw.open_xarray(store)
    asked = []
    read = sw.ArrayView.__getitem__

    def noted(view, key):
        asked.append(key)
        return read(view, key)

    monkeypatch.setattr(sw.ArrayView, "__getitem__", noted)
    part = image.sel(c="RFP").isel(t=-1, y=slice(4, 20, 3))
    assert not asked
    np.testing.assert_array_equal(part.values, expected[-1, 1, 4:20:3])
    assert asked == [(slice(5, 6), slice(1, 2), slice(4, 20, 3), slice(None))]


SELECTIONS = [
    {"t": 2, "y": [5, 1]},
    {"y": [1, 3], "x": [0, 2, 5]},
    {"t": slice(None, None, -2), "c": 0},
    {"c": xarray.DataArray([0, 1, 1], dims="k"), "y": xarray.DataArray([3, 2, 9], dims="k")},
    {"t": []},
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
def test_selections_are_those_of_an_array_in_memory(store, expected, selection):
    in_memory = xarray.DataArray(expected, dims=("t", "c", "y", "x"))
    np.testing.assert_array_equal(sw.open_xarray(store).isel(selection).values, in_memory.isel(selection))


def test_dask_and_pickle(store, expected):
    image = sw.open_xarray(store, chunks={})
    assert image.chunks is not None
    assert tuple(max(each) for each in image.chunks) == (6, 1, 64, 48), "its inner chunks"
    np.testing.assert_array_equal(image.max("t").values, expected.max(0))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(sw.open_xarray(store)))[3].values, expected[3])


def test_the_image_of_several(tmp_path):
    path = tmp_path / "positions.ome.zarr"
    with sw.create(path, shape=(2, 16, 16), dtype="uint8", axes="tyx", images=["left", "right"]) as writer:
        for t in range(2):
            for value, image in enumerate(("left", "right")):
                writer.append(np.full((16, 16), 10 * t + value, np.uint8), image=image, index=(t,))
    right = sw.open_xarray(path, image="right")
    assert right.mean(("y", "x")).values.tolist() == [1, 11]
    assert right.attrs["image"] == "right"
    assert "time" in right.coords
    np.testing.assert_array_equal(sw.open_xarray(path, image="0").values, sw.open_xarray(path, image="left"))
    with pytest.raises(ConfigError, match=r"has several images; expected image= .*; got left, right"):
        sw.open_xarray(path)
    with pytest.raises(UnknownImageError, match="expected left, right; got middle"):
        sw.open_xarray(path, image="middle")


@pytest.mark.parametrize("omero", [None, [1], {"channels": 5}, {"channels": [3, 4]}, {"channels": [{}]}])
def test_images_of_others(tmp_path, omero):
    """None of them is taken for the one that was meant, and channels need no names."""
    path = tmp_path / "positions.ome.zarr"
    with sw.create(path, shape=(2, 16, 16), dtype="uint8", axes="cyx", images=["left", "right"]) as writer:
        for c, image in itertools.product(range(2), ("left", "right")):
            writer.append(np.zeros((16, 16), np.uint8), image=image, index=(c,))
    for file in (path / "0/zarr.json", path / "1/zarr.json"):
        document = json.loads(file.read_text())
        del document["attributes"]["ome"]["multiscales"][0]["name"]
        document["attributes"]["ome"]["omero"] = omero
        file.write_text(json.dumps(document))
    assert sw.open_xarray(path, image="1").coords["c"].values.tolist() == [0, 1]
    with pytest.raises(ConfigError, match="has several images"):
        sw.open_xarray(path)


def test_a_store_that_is_written(tmp_path):
    with sw.create(tmp_path / "run.ome.zarr", **LAYOUT) as writer:
        for frame in PIXELS[:2].reshape(-1, 64, 48):
            writer.append(frame)
        writer.flush()
        image = sw.open_xarray(tmp_path / "run.ome.zarr")
        assert "time" not in image.coords, "there is no frame table yet"
        np.testing.assert_array_equal(image.values, PIXELS[:2])


def test_an_array_alone(store, expected):
    image = sw.open_xarray(store / "0")
    assert image.dims == ("t", "c", "y", "x")
    assert not image.coords
    np.testing.assert_array_equal(image[1].values, expected[1])


def test_a_damaged_table_costs_the_times_alone(store, tmp_path):
    path = shutil.copytree(store, tmp_path / "a.ome.zarr")
    (path / "frames/camera_ns/c/0").write_bytes(b"no")
    with pytest.warns(UserWarning, match="no times: the frame table cannot be read"):
        image = sw.open_xarray(path)
    assert "time" not in image.coords
    assert image.t.size == 6


def test_xarray_finds_the_engine(store, tmp_path):
    """As it is installed: by the entry point of pyproject.toml."""
    points = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    (name, value), *others = points["xarray.backends"].items()
    assert (name, others) == ("shardwright", [])
    package = tmp_path / "site/shardwright_here-0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: shardwright-here\nVersion: 0\n")
    (package / "entry_points.txt").write_text(f"[xarray.backends]\n{name} = {value}\n")
    program = (
        "import sys, json, xarray\n"
        "found = xarray.open_dataset(sys.argv[1], engine='shardwright', level=1)\n"
        "print(json.dumps([list(found), dict(found.sizes), sorted(found.coords)]))"
    )
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", program, store],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [
        ["image"],
        {"t": 6, "c": 2, "y": 32, "x": 24},
        ["c", "t", "time", "x", "y"],
    ]


def test_without_xarray_the_extra_is_named(store):
    program = (
        "import sys; sys.modules['xarray'] = None; import shardwright as sw\n"
        "try: sw.open_xarray(sys.argv[1])\n"
        "except sw.errors.ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, store], capture_output=True, text=True, check=True)
    assert "needs shardwright[xarray]: xarray is not installed" in done.stdout
