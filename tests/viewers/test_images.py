"""Stores of several images, as viewers and their libraries open them: positions, a plate, two cameras."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from tests.daemon.browser import Browser
from tests.harness.cached_environment import CACHE, installing
from tests.properties.readers import READERS
from tests.web.web_process import WebProcess, settings_for

import shardwright as sw

from .image_stores import CHANNELS, assert_near_the_percentiles, stitched, windows_of_pixels

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
HERE = Path(__file__).parent
MODULES = CACHE / "zarrita" / "node_modules"


@pytest.mark.parametrize("reader", READERS)
def test_array_libraries(store, reader):
    for path, values in store.pixels.items():
        np.testing.assert_array_equal(READERS[reader](store.path / path), values)


@pytest.fixture(scope="module")
def zarrita():
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NOT TESTED: zarrita; apt-get install npm")
    with installing():
        if not (MODULES / "zarrita").exists():
            MODULES.parent.mkdir(parents=True, exist_ok=True)
            (MODULES.parent / "package.json").write_text('{"private": true}')
            command = [npm, "install", "--no-audit", "--no-fund", "zarrita@0.7"]
            if subprocess.run(command, cwd=MODULES.parent, capture_output=True, timeout=120).returncode:
                pytest.skip("NOT TESTED: zarrita; npm cannot install it here")
    return MODULES


def test_zarrita(store, zarrita):
    command = ["node", HERE / "zarrita.mjs", zarrita, store.path, *(f"/{path}" for path in store.pixels)]
    said = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    for line, values in zip(said.splitlines(), store.pixels.values(), strict=True):
        found = json.loads(line)
        pixels = np.frombuffer(base64.b64decode(found["data"]), found["dtype"]).reshape(found["shape"])
        np.testing.assert_array_equal(pixels, values)


def test_napari_opens_with_the_windows_of_the_pixels(tmp_path, napari):
    windows = windows_of_pixels(tmp_path / "a.ome.zarr")
    command = [napari, HERE / "napari_layers.py", tmp_path / "a.ome.zarr", tmp_path]
    said = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
    limits = [limits for _, limits in said] if len(said) > 1 else said[0][1]
    assert_near_the_percentiles(limits)
    assert limits == windows


def test_neuroglancer_opens_with_the_windows_of_the_pixels(tmp_path):
    """By the state in its address, which the status page makes."""
    windows = windows_of_pixels(tmp_path / "a.ome.zarr")
    with WebProcess(settings_for(tmp_path)) as web:
        address = web.ask("/view/a.ome.zarr").headers["Location"]
    layers = json.loads(unquote(address.partition("#!")[2]))["layers"]
    assert [layer["name"] for layer in layers] == ["DAPI", "FITC"]
    assert [layer["shaderControls"]["normalized"]["range"] for layer in layers] == windows
    assert_near_the_percentiles(windows)


@pytest.mark.parametrize("shards", [None, False])
def test_neuroglancer_shows_all_channels_in_their_colours(tmp_path, shards):
    """In a real browser: a red channel that grows brighter to the right, a green one downwards."""
    channels = [{"name": "to the right", "color": "FF0000"}, {"name": "downwards", "color": "00FF00"}]
    down, right = np.mgrid[:64, :64].astype(np.uint16)
    spec = sw.default_layout((2, 2, 64, 64), "uint16", "tcyx", channels=channels, shards=shards)
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        for t, c in np.ndindex(2, 2):
            writer.append(100 + 20 * (down if c else right), index=(t, c))
    with WebProcess(settings_for(tmp_path)) as web, Browser() as browser:
        browser.open(f"http://127.0.0.1:{web.port}/view/a.ome.zarr")
        find = (
            "const panel = document.querySelector('.neuroglancer-rendered-data-panel');"
            "const box = panel?.getBoundingClientRect();"
            "return box && [box.x, box.y, box.width, box.height]"
        )

        def seen():
            if (box := browser.run(find)) is None:
                return None
            x, y, width, height = box
            rows, columns = (
                slice(int(first + size / 2) - 150, int(first + size / 2) + 150)
                for first, size in ((y, height), (x, width))
            )
            shown = browser.screenshot()[rows, columns].astype(float)
            return (shown,) if min(shown[..., 0].std(), shown[..., 1].std()) > 10 else None

        (shown,) = browser.wait(seen, "both channels")
    red, green, blue = np.moveaxis(shown, -1, 0)
    below, beside = np.mgrid[: red.shape[0], : red.shape[1]]
    for shown, along, across in ((red, beside, below), (green, below, beside)):
        assert np.corrcoef(shown.ravel(), along.ravel())[0, 1] > 0.95
        assert abs(np.corrcoef(shown.ravel(), across.ravel())[0, 1]) < 0.1
    assert blue.max() < 60


def test_napari(store, tmp_path, napari):
    """Each channel of every image is shown, with its name and contrast; the plate is one image."""
    command = [napari, HERE / "napari_layers.py", store.path, tmp_path]
    said = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
    images = [stitched(store)] if store.name == "plate" else list(store.pixels.values())
    names = {"plate": ["0"], "cameras": ["large", "small"]}.get(store.name, ["left", "right"])
    expected = [
        (f"{name}: {channel['name']}", channel["window"], pixels)
        for name, values in zip(names, images, strict=True)
        if values.ndim == 5
        for channel, pixels in zip(CHANNELS, np.moveaxis(values, 1, 0), strict=True)
    ]
    if store.name == "cameras":  # without channels of their own: their names and windows are the reader's
        expected.append((*said[-1], images[-1]))
    assert len(said) == len(expected)
    for number, ((label, limits), (name, window, pixels)) in enumerate(zip(said, expected, strict=True)):
        np.testing.assert_array_equal(np.load(tmp_path / f"{number}.npy"), pixels)
        # of a plate the path of its first field, from release 0.11 of the reader on
        assert (label.removeprefix("A/1/"), tuple(limits)) == (name, tuple(window))
