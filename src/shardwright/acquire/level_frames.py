"""The frames of a slab at each level above the image, made by the worker that encodes them.

Their memory is that worker's scratch: one level behind the other, then the table of the kernel. A level is
made from the frames of the level below, so that it equals what `shardwright pyramid` makes of the image
later. It is made of whole frames, row after row, although a chunk would still be in the cache when it is
encoded: pieces of rows, each on another page, take a third longer to read, more than the cache saves.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from shardwright.kernels.downsample import downsample_frames, prepare

from .limits import level_frames_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from shardwright.array.grid import Grid
    from shardwright.array.spec import ArraySpec

LevelWindows = tuple["npt.NDArray[np.int64]", ...]


class LevelFrames:
    """Of an array with levels. Frozen after construction; shared by all workers without a lock."""

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        assert spec.levels is not None, "made only for an array with levels"
        self._method = spec.levels.method
        self._grids = (grid, *grid.levels)
        self._factors = [level.factors for level in spec.level_shapes]
        self._dtype = np.dtype(spec.dtype)
        prepare(self._dtype, self._method)
        self._fill_row = np.frombuffer(spec.fill_bytes() * grid.frame_shape[1], self._dtype)
        self._edges = list(itertools.accumulate(map(level_frames_bytes, grid.levels), initial=0))
        self.windows = cache(self._windows)  # few: of slabs inside the array, and at each of its edges

    def make(
        self,
        level: int,
        frames: npt.NDArray[np.int64],
        windows: LevelWindows,
        memory: npt.NDArray[np.uint8],
    ) -> npt.NDArray[np.int64]:
        """Makes the frames of ``level``, which is 1 or more, from ``frames``, those of the level below.
        Returns their addresses as ``frames`` has them: int64[P], 0 where none of a window came. ``memory``
        uint8[``levels_bytes``]: holds the frames of all levels, the same at each call for a slab."""
        grid, (*_, rows, columns) = self._grids[level], self._factors[level - 1]
        made = memory[self._edges[level - 1] : self._edges[level]]
        used = grid.frames_per_slab * grid.frame_bytes
        return downsample_frames(
            frames,
            windows[level - 1],
            self._grids[level - 1].frame_shape,
            (rows, columns),
            self._method,
            self._fill_row,
            made[:used].view(self._dtype).reshape(-1, *grid.frame_shape),
            memory[self._edges[-1] :].view(np.int64),
        )

    def _windows(self, live: tuple[int, ...]) -> LevelWindows:
        """Returns, for each level, int64[P, n]: the indices in the slab of the level below that make each
        index of the level, row-major as they are stored, then -1. ``live``: the frames of the slab inside the
        array, along each frame axis."""
        tables = []
        for below, level, factors in zip(self._grids, self._grids[1:], self._factors, strict=False):
            axes = below.stored_axes
            table = np.full((level.frames_per_slab, math.prod(factors[:-2])), -1, np.int64)
            for index_in_slab, index in enumerate(np.ndindex(*level.stored(level.chunk))):
                members = [
                    [
                        j * below.slab_strides[a]
                        for j in range(i * factors[a], (i + 1) * factors[a])
                        if j < live[a]
                    ]
                    for a, i in zip(axes, index, strict=True)
                ]
                window = [sum(parts) for parts in itertools.product(*members)]
                table[index_in_slab, : len(window)] = window
            tables.append(table)
            live = tuple(-(-n // f) for n, f in zip(live, factors, strict=False))
        return tuple(tables)
