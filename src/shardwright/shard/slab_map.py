"""The map from slabs to the index entries and slots of their group's shard files.

Pure arithmetic over ``ArrayLayout``. Slabs have the grid's numbers; slot layers number the slabs of one group
in the order in which their chunks are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from .layout import ArrayLayout


@dataclass(frozen=True)
class SlabPlaces:
    """One slab of a group. ``file``, ``slot``, ``entry``: int64[n], one element for each of its chunks."""

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


def slabs_of_group(layout: ArrayLayout, group: int) -> list[int]:
    """Returns every slab of a group that lies inside the array, in acquisition order."""
    grid = layout.grid
    corner = [h * s for h, s in zip(grid.group_coordinates(group), grid.shard_chunks, strict=True)]
    slabs = [0]
    for first, extent, count in zip(corner, grid.group_extent_chunks(group), grid.slab_counts, strict=True):
        slabs = [slab * count + first + i for slab in slabs for i in range(extent)]
    return slabs


def frames_of_group(layout: ArrayLayout, group: int) -> int:
    """Returns the number of places for frames in a group, inside the array."""
    return sum(map(layout.grid.frames_in_slab, slabs_of_group(layout, group)))


def slab_places(layout: ArrayLayout, slab: int) -> SlabPlaces:
    plane = layout.plane
    index_layer, slot_layer = layout.layer_of_slab(slab)
    slot = slot_layer * plane.layer_slots[plane.file] + plane.slot
    return SlabPlaces(slab, slot_layer, plane.file, slot, index_layer * plane.layer_entries + plane.entry)
