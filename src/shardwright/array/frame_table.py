"""The frame table: one row a frame, in order of arrival, as 1-D Zarr arrays in the group ``frames`` beside the image.

zarr-python and pandas make a table of it in one line:

    pandas.DataFrame({name: array[:] for name, array in zarr.open_group("embryo.ome.zarr/frames").arrays()})
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from .grid import Grid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .spec import ArraySpec

TABLE_PATH = "frames"
ROWS_PER_CHUNK = 1 << 16
CAMERA_COLUMNS = ("frame_id", "camera_ns", "monotonic_ns")


def column_names(spec: ArraySpec, metadata_fields: tuple[str, ...]) -> list[str]:
    """``index_<axis>`` for each frame axis in acquisition order, the camera's own numbers, then the metadata fields."""
    return [*(f"index_{d.name}" for d in spec.dimensions[:-2]), *CAMERA_COLUMNS, *metadata_fields]


def columns(records: np.ndarray, spec: ArraySpec, metadata_fields: tuple[str, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, values) of every column for some records (``wire.DESCRIPTOR``[n])."""
    grid = Grid.of(spec)
    rest = records["position"].astype(np.int64)
    indices: list[np.ndarray] = []
    for count in reversed(grid.counts[1:]):
        indices.append(rest % count)
        rest = rest // count
    if grid.counts:
        indices.append(rest)
    for d, index in zip(spec.dimensions[:-2], reversed(indices), strict=True):
        yield f"index_{d.name}", index
    for name in (*CAMERA_COLUMNS, *metadata_fields):
        yield name, records[name]


def column_metadata(rows: int, dtype: np.dtype) -> bytes:
    """zarr.json of one column."""
    fill: float | int | str = "NaN" if dtype.kind == "f" else 0
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [rows],
            "data_type": dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [ROWS_PER_CHUNK]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {"level": 1}}],
            "attributes": {},
            "dimension_names": ["frame"],
        },
        indent=2,
    ).encode()


def table_metadata(rows: int, names: list[str]) -> bytes:
    """zarr.json of the group."""
    attributes = {"shardwright": {"table": "frames", "version": 1, "rows": rows, "columns": names}}
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=2).encode()
