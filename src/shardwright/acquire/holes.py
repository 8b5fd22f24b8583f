"""What is remembered of places without a frame: holes of closed slabs, and how much of the array readers may
be shown."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from shardwright.kernels.place import DUPLICATE, LATE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardwright.array.grid import Grid

REMEMBERED_HOLES = 4096  # slabs; of older ones every further frame counts as duplicate


class HoleMemory:
    """For slabs that were closed with places empty: which places have a frame. Bounded; the oldest are
    forgotten first."""

    def __init__(self) -> None:
        self._filled: OrderedDict[int, np.ndarray | None] = OrderedDict()

    def remember(self, slab: int, filled: np.ndarray | None) -> None:
        """``filled`` bool[frames_per_slab], None when no frame came at all."""
        self._filled[slab] = None if filled is None else filled.copy()
        if len(self._filled) > REMEMBERED_HOLES:
            self._filled.popitem(last=False)

    def forget(self, slabs: Iterable[int]) -> None:
        """They take frames again."""
        for slab in slabs:
            self._filled.pop(slab, None)

    def fates(self, slab: int, places: np.ndarray) -> np.ndarray:
        """DUPLICATE or LATE, for each frame at int64[n] places of a closed slab."""
        if slab not in self._filled:
            return np.full(places.size, DUPLICATE)
        filled = self._filled[slab]
        return np.full(places.size, LATE) if filled is None else np.where(filled[places], DUPLICATE, LATE)


class VisibleExtent:
    """How much of the first frame axis is covered by sealed shards without a hole: what zarr.json may claim
    while frames still come."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._groups_per_step = math.prod(grid.group_counts[1:]) if grid.counts else 1
        self._sealed: dict[int, set[int]] = {}  # step along the first axis -> groups sealed there
        self._steps = 0

    def seal(self, group: int) -> None:
        """Again is nothing new: what is opened again stays visible."""
        step = group // self._groups_per_step
        if step < self._steps:
            return
        self._sealed.setdefault(step, set()).add(group)
        while len(self._sealed.get(self._steps, ())) == self._groups_per_step:
            del self._sealed[self._steps]
            self._steps += 1

    def end_of(self, group: int) -> int:
        """Where a group ends along the first frame axis."""
        if not self._grid.counts:
            return 1
        return (group // self._groups_per_step + 1) * self._grid.chunk[0] * self._grid.shard_chunks[0]

    def elements(self, received_extent: int) -> int:
        """Never more than ``received_extent``, the newest frame's index along the axis plus one."""
        if not self._grid.counts:
            return 0
        return min(self._steps * self._grid.chunk[0] * self._grid.shard_chunks[0], received_extent)
