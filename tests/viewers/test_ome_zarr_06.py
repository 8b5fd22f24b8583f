"""The Python libraries of OME-Zarr read our stores of version 0.6, and those that were upgraded to it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.rework.jobs.ome_upgrade import upgrade_store

from .image_stores import CHANNELS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(
        sys.version_info < (3, 12),
        reason="NOT TESTED: ome-zarr-models 1.8 and ome-zarr 0.21, which know 0.6; they need Python 3.12",
    ),
    # theirs, of each other and of dask
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
UNITS = {"z": "um", "y": "um", "x": "um", "t": "s"}
LAYOUT: dict[str, Any] = {
    "shape": (None, 2, 3, 24, 32),
    "dtype": "uint16",
    "axes": "tczyx",
    "scales": {"z": 2, "y": 0.5, "x": 0.5},
    "units": UNITS,
    "channels": CHANNELS,
    "levels": 2,
}
STORES: dict[str, dict[str, Any]] = {
    "one": {},
    "positions": {
        "images": [
            sw.Image(name="left", position={"x": 100, "y": -8}),
            sw.Image(name="right", position={"x": 116}),
            "unknown",
        ]
    },
    "without positions": {"images": ["a", "b"]},
    "a plate": {
        "plate": sw.Plate(rows=1, columns=2),
        "images": [sw.Image(name="A/2/0", position={"x": 5})],
    },
    "days of a plate": {
        "plate": sw.Plate(
            rows=1,
            columns=1,
            fields=["left", "right"],
            acquisitions=[{"id": 3, "fields": ["left"]}, {"id": 7, "fields": ["right"]}],
        ),
        "images": [sw.Image(name="A/1/right", position={"x": 5})],
    },
    "paths": {
        "images": [
            sw.Image(name="left", path="well.1/Pos0", position={"x": 100, "y": -8}),
            sw.Image(name="right", path="a/b", position={"x": 116}),
        ]
    },
}
PIXELS = np.random.default_rng(1).integers(1, 200, (2, 2, 3, 24, 32)).astype(np.uint16)


@pytest.fixture(scope="module", params=[(kind, way) for kind in STORES for way in ("written", "upgraded")])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("stores") / "a.ome.zarr", *request.param)


def make_store(path: Path, kind: str, way: str) -> Path:
    version = "0.6" if way == "written" else "0.5"
    with sw.create(path, **LAYOUT, **STORES[kind], ome_version=version) as writer:
        for image in writer._acquisition.spec.names:
            writer.append_many(PIXELS.reshape(-1, 24, 32), **({"image": image} if image else {}))
    if way == "upgraded":
        upgrade_store(path)
    return path


def groups_of(store: Path) -> list[tuple[str, dict[str, Any]]]:
    """(path, ``ome``) of each group, the store's own first."""
    root = zarr.open_group(store, mode="r")
    below = [(path, group) for path, group in root.members(max_depth=None) if isinstance(group, zarr.Group)]
    both = [(path, group.attrs.asdict().get("ome", {})) for path, group in [("", root), *sorted(below)]]
    return [(path, ome) for path, ome in both if ome]


def test_ome_zarr_models(store):
    """Every group is one of 0.6, by what it holds."""
    from ome_zarr_models import open_ome_zarr, v06

    kinds = {"multiscales": v06.Image, "well": v06.Well, "plate": v06.HCS, "scene": v06.Scene}
    found = []
    for path, ome in groups_of(store):
        kind = next((kinds[key] for key in kinds if key in ome), None)
        if kind is not None:
            opened = open_ome_zarr(zarr.open_group(store / path, mode="r"))
            assert isinstance(opened, kind), (path, opened)
            found.append(kind)
    assert v06.Image in found
    (layout,) = [ome for path, ome in groups_of(store) if not path]
    if "bioformats2raw.layout" in layout:
        from ome_zarr_models.v06.bioformats2raw import BioFormats2Raw

        BioFormats2Raw.from_zarr(zarr.open_group(store, mode="r"))


def test_ome_zarr_py(store):
    """The pixels of each image, and its channels."""
    from ome_zarr.classes.image import OMEZarrMultiscale

    images = [path for path, ome in groups_of(store) if "multiscales" in ome]
    assert images
    for path in images:
        image = OMEZarrMultiscale.from_ome_zarr(str(store / path))
        assert len(image.images) == 3
        np.testing.assert_array_equal(np.asarray(image.images[0].data), PIXELS)
        assert [channel.label for channel in image.omero.channels] == ["DAPI", "FITC"]


@pytest.mark.parametrize("way", ["written", "upgraded"])
def test_a_scene_of_ome_zarr_py(tmp_path, way):
    """With the positions; it makes a graph of the coordinate systems, which fails if one is not connected."""
    from ome_zarr.classes.scene import OMEZarrScene

    scene = OMEZarrScene.from_ome_zarr(str(make_store(tmp_path / "a.ome.zarr", "positions", way)))
    assert [system.name for system in scene.coordinate_systems] == ["stage"]
    found = {
        each.input.path: list(getattr(each, "translation", ())) for each in scene.coordinate_transformations
    }
    assert found == {"0": [0, 0, 0, -8, 100], "1": [0, 0, 0, 0, 116], "2": []}
