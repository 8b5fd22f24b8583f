"""Stores of several images, for the tests of viewers and of their libraries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import yaozarrs
from tests.harness.plain_arrays import without_shards

import shardwright as sw

if TYPE_CHECKING:
    from pathlib import Path

CHANNELS = [
    {"name": "DAPI", "color": "0000FF", "window": (0, 300)},
    {"name": "FITC", "color": "00FF00", "window": (10, 200)},
]
FIVE_D = sw.default_layout((2, 2, 3, 24, 32), "uint16", "tczyx", channels=CHANNELS)
SMALL = sw.default_layout((4, 10, 30), "uint8", "tyx")
PLAIN = without_shards(FIVE_D)
STORES = {
    "positions": sw.AcquisitionSpec(array=FIVE_D, images=["left", "right", "never visited"]),
    "plate": sw.AcquisitionSpec(array=FIVE_D, plate=sw.Plate(rows=2, columns=2)),
    "cameras": sw.AcquisitionSpec(images={"large": FIVE_D, "small": SMALL}),
    "paths": sw.AcquisitionSpec(
        array=FIVE_D,
        images=[{"name": "left", "path": "dish.1/Pos0"}, {"name": "right", "path": "dish.1/b/Pos1"}],
    ),
    "without shards": sw.AcquisitionSpec(array=PLAIN, images=["left", "right"]),
}
VISITED = {
    "positions": ("right", "left"),
    "plate": ("B/2/0", "A/1/0"),
    "cameras": ("large", "small"),
    "paths": ("right", "left"),
    "without shards": ("right", "left"),
}


class Written(NamedTuple):
    path: Path
    name: str
    pixels: dict[str, np.ndarray]  # by the path of the array


def write_store(kind: str, folder: Path) -> Written:
    """Writes a store of a kind of ``STORES`` to a folder."""
    spec, pixels = STORES[kind], {}
    with sw.create(folder / f"{kind}.ome.zarr", spec) as writer:
        for name in VISITED[kind]:
            number = spec.number_of(name)
            array = spec.arrays[number]
            shape = [d.count for d in array.dimensions]
            values = np.random.default_rng(number).integers(1, 250, shape).astype(array.dtype)
            writer.append_many(values.reshape(-1, *shape[-2:]), image=name)
            pixels[spec.paths[number]] = values
    yaozarrs.validate_zarr_store(str(writer.path))
    return Written(writer.path, kind, dict(sorted(pixels.items())))


def stitched(store):
    """The wells side by side, those that were not visited empty."""
    first, last = store.pixels["A/1/0/0"], store.pixels["B/2/0/0"]
    empty = np.zeros_like(first)
    rows = [np.concatenate(row, axis=-1) for row in ((first, empty), (empty, last))]
    return np.concatenate(rows, axis=-2)


ENDS = [(100, 900), (200, 3000)]


def windows_of_pixels(path):
    """Writes two channels of a 12-bit camera, without a window of the user: a ramp from 100 to 900, one from
    200 to 3000. Returns the windows in the metadata."""
    spec = sw.default_layout((3, 2, 64, 96), "uint16", "tcyx", channels=[{"name": "DAPI"}, {"name": "FITC"}])
    ramps = [np.linspace(low, high, 64 * 96).reshape(64, 96) for low, high in ENDS]
    with sw.create(path, spec) as writer:
        for index in np.ndindex(3, 2):
            writer.append(ramps[index[1]].astype(np.uint16), index=index)
    channels = json.loads((path / "zarr.json").read_text())["attributes"]["ome"]["omero"]["channels"]
    return [[channel["window"]["start"], channel["window"]["end"]] for channel in channels]


def assert_near_the_percentiles(limits):
    assert len(limits) == len(ENDS)
    for (start, end), (low, high) in zip(limits, ENDS, strict=True):
        near = (high - low) / 50
        assert low <= start <= low + near, limits
        assert high - near <= end <= high, limits
