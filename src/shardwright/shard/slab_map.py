"""The map from slabs to the index entries and slots of their shard row's shard files.

Pure arithmetic over ``ArrayLayout``. Slabs have the grid's numbers; slot layers number the slabs of one shard
row in the order in which their chunks are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from .layout import ArrayLayout


@dataclass(frozen=True)
class SlabPlaces:
    """One slab of a shard row. ``file``, ``slot``, ``entry``: int64[n], one element for each of its
    chunks."""

    slab: int
    slot_layer: int
    file: np.ndarray
    slot: np.ndarray
    entry: np.ndarray

    def only(self, chunks: np.ndarray) -> SlabPlaces:
        """Returns the places of some of its chunks, given by their numbers."""
        return SlabPlaces(
            self.slab, self.slot_layer, self.file[chunks], self.slot[chunks], self.entry[chunks]
        )


def slabs_of_shard_row(layout: ArrayLayout, shard_row: int) -> list[int]:
    """Returns every slab of a shard row that lies inside the array, in acquisition order."""
    grid = layout.grid
    corner = [h * s for h, s in zip(grid.shard_row_coordinates(shard_row), grid.shard_chunks, strict=True)]
    slabs = [0]
    for first, extent, count in zip(
        corner, grid.shard_row_extent_chunks(shard_row), grid.slab_counts, strict=True
    ):
        slabs = [slab * count + first + i for slab in slabs for i in range(extent)]
    return slabs


def frames_of_shard_row(layout: ArrayLayout, shard_row: int) -> int:
    """Returns the number of places for frames in a shard row, inside the array."""
    return sum(map(layout.grid.frames_in_slab, slabs_of_shard_row(layout, shard_row)))


def slab_places(layout: ArrayLayout, slab: int) -> SlabPlaces:
    plane = layout.plane
    index_layer, slot_layer = layout.layer_of_slab(slab)
    slot = slot_layer * plane.layer_slots[plane.file] + plane.slot
    return SlabPlaces(slab, slot_layer, plane.file, slot, index_layer * plane.layer_entries + plane.entry)
