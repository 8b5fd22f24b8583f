"""Finds the shards that hold stored frames by the frame table, for stores whose shards are not on record."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.frame_status import FrameStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .frame_table import FrameTable
    from .store import StoredArray


def shards_of_stored_frames(table: FrameTable, array: StoredArray) -> Iterator[tuple[int, ...]]:
    """Yields the coordinates, each once, of the shards that hold places of stored frames inside the array's
    shape."""
    names = list(array.dimension_names or ())
    counts = table.frame_counts(array)
    axes = [names.index(axis) for axis in table.axes]  # of the array, in the order of the table's columns
    sizes = np.array([array.shard_shape[axis] for axis in axes], np.int64)
    seen: set[tuple[int, ...]] = set()
    for chunk in range(table.chunks):
        indices = table.read_indices(chunk)[table.read("fate", chunk) == FrameStatus.STORED]
        rows = np.unique(indices[((indices >= 0) & (indices < counts)).all(axis=1)] // sizes, axis=0)
        seen.update(map(tuple, rows.tolist()))
    plane = [range(n) for n in array.grid_shape[-2:]]
    for row in sorted(seen):
        places = dict(zip(axes, row, strict=True))
        for y, x in itertools.product(*plane):
            yield (*(places[axis] for axis in range(len(axes))), y, x)
