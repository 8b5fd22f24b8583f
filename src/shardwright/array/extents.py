"""How far the frames of each image reach along the axes whose extent follows from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import ShardFormatError

from .grid import image_of, place_in_image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .grid import Grids


class Extents:
    """``newest``: int64[images], the largest place in acquisition order of a frame, -1 without one.
    ``along``: int64[images, axes], the newest index along each growing axis, plus one; 1 where an image has
    fewer of them."""

    def __init__(self, grids: Grids) -> None:
        self._grids = grids
        self._frames_per_step = np.array([math.prod(grid.counts[1:]) for grid in grids.grids], np.int64)
        self.newest = np.full(len(grids.grids), -1, np.int64)
        axes = max(1, *(len(grid.growing) for grid in grids.grids))
        self.along = np.array(
            [[axis >= len(grid.growing) for axis in range(axes)] for grid in grids.grids], np.int64
        )
        # of the growing axes behind the first: frames from one element to the next, and elements
        self._strides, self._counts = np.ones((2, len(grids.grids), axes), np.int64)
        for number, grid in enumerate(grids.grids):
            for column, axis in enumerate(grid.growing[1:], 1):
                self._strides[number, column] = math.prod(grid.counts[axis + 1 :])
                self._counts[number, column] = grid.counts[axis]

    def cover(self, along: Sequence[int]) -> None:
        """Lets them cover what a file says of ``along``: its rows, one after the other. Raises
        ``ShardFormatError`` unless these can be extents of these images."""
        most = self._counts.copy()
        last = [place_in_image(grid.last_position) for grid in self._grids.grids]
        most[:, 0] = np.array(last, np.int64) // self._frames_per_step + 1
        limits = most.ravel().tolist()
        if len(along) != len(limits) or not all(0 <= a <= b for a, b in zip(along, limits, strict=True)):
            raise ShardFormatError(
                "the manifest's seen_extents are not those of its images",
                expected=f"{len(limits)} numbers from 0 to {limits[:8]}",
                got=list(along[:8]),
            )
        np.maximum(self.along, np.reshape(along, self.along.shape), out=self.along)

    def reach(self, positions: np.ndarray) -> None:
        """Lets them cover frames at ``positions`` (int64[n]; a negative one is not known)."""
        known = positions[positions >= 0]
        if not known.size:
            return
        images, places = image_of(known), place_in_image(known)
        np.maximum.at(self.newest, images, places)
        np.maximum.at(self.along[:, 0], images, places // self._frames_per_step[images] + 1)
        for column in range(1, self.along.shape[1]):
            elements = places // self._strides[images, column] % self._counts[images, column]
            np.maximum.at(self.along[:, column], images, elements + 1)
