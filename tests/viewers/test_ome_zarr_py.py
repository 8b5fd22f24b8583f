"""The Python libraries of OME-Zarr read our stores: ome-zarr their pixels, ome-zarr-models their metadata."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from ome_zarr.io import parse_url
from ome_zarr.reader import Reader
from ome_zarr_models import open_ome_zarr

from .image_stores import assert_near_the_percentiles, stitched, windows_of_pixels

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")


def test_ome_zarr_py(store):
    """Which lists no series of a collection: each image is opened by its own path, a plate as one."""
    for path, values in store.pixels.items():
        (node,) = Reader(parse_url(store.path / path.removesuffix("/0")))()
        np.testing.assert_array_equal(np.asarray(node.data[0]), values)
        if values.ndim == 5:
            assert node.metadata["channel_names"] == ["DAPI", "FITC"]
            assert node.metadata["contrast_limits"] == [[0, 300], [10, 200]]
    if store.name == "plate":
        plate, *_ = Reader(parse_url(store.path))()
        np.testing.assert_array_equal(np.asarray(plate.data[0]), stitched(store))


def test_ome_zarr_py_opens_with_the_windows_of_the_pixels(tmp_path):
    windows = windows_of_pixels(tmp_path / "a.ome.zarr")
    (node,) = Reader(parse_url(tmp_path / "a.ome.zarr"))()
    assert_near_the_percentiles(node.metadata["contrast_limits"])
    assert node.metadata["contrast_limits"] == windows


# of plates, though OME-Zarr 0.5 has it once, beside them
@pytest.mark.filterwarnings("ignore:'version' field not specified")
def test_ome_zarr_models(store):
    """Of each image, of a plate as well."""
    for path, values in store.pixels.items():
        image = open_ome_zarr(zarr.open_group(store.path / path.removesuffix("/0"), mode="r"))
        (multiscale,) = image.ome_attributes.multiscales
        assert len(multiscale.axes) == values.ndim
    if store.name == "plate":
        plate = open_ome_zarr(zarr.open_group(store.path, mode="r"))
        assert {well.path for well in plate.ome_attributes.plate.wells} == {"A/1", "B/2"}
