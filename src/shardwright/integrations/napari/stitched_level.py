"""A plate as one picture: its wells side by side, in the plate's rows and columns.

A/1 | A/2 | A/3        a well that was not visited, or not as often as others, is fill there
B/1 | B/2 | B/3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardwright.codecs.zarr_python import Array


class StitchedLevel:
    """One level of the images of a plate as one array, for dask. ``tiles``: arrays of as many axes, at least
    one, by row and column of the plate; ``grid``: how many rows and columns there are."""

    def __init__(self, tiles: Mapping[tuple[int, int], Array[Any]], grid: tuple[int, int]) -> None:
        self._tiles = tiles
        first = next(iter(tiles.values()))
        self._fill = first.fill_value
        self.dtype = first.dtype
        self.tile_shape = tuple(np.max([tile.shape for tile in tiles.values()], axis=0).tolist())
        self.shape = (
            *self.tile_shape[:-2],
            *(n * count for n, count in zip(self.tile_shape[-2:], grid, strict=True)),
        )
        self.ndim = len(self.shape)

    def __getitem__(self, selection: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """Returns what dask asks for: an index or a slice of positive step for each axis."""
        ranges = [
            range(n)[s] if isinstance(s, slice) else range(s, s + 1)
            for n, s in zip(self.shape, selection, strict=True)
        ]
        box = [(r.start, max(r.start, r[-1] + 1 if r else 0)) for r in ranges]
        within = tuple(slice(None, None, s.step) if isinstance(s, slice) else 0 for s in selection)
        return self._read(box)[within]

    def _read(self, box: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
        pixels = np.full([high - low for low, high in box], self._fill, self.dtype)
        (top, bottom), (left, right) = box[-2:]
        height, width = self.tile_shape[-2:]
        for (row, column), tile in self._tiles.items():
            corner = [0] * (self.ndim - 2) + [row * height, column * width]
            if not (row * height < bottom and (row + 1) * height > top):
                continue
            if not (column * width < right and (column + 1) * width > left):
                continue
            here, there = [], []
            for (low, high), at, n in zip(box, corner, tile.shape, strict=True):
                first, stop = max(low, at), min(high, at + n)
                here.append(slice(first - low, max(first, stop) - low))
                there.append(slice(first - at, max(first, stop) - at))
            pixels[tuple(here)] = tile[tuple(there)]
        return pixels
