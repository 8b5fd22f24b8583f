"""The values of an array that is made of another one: the same elements in other chunks, or a level of lower
resolution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.kernels.downsample import downsample, work_bytes

from .boxes import box_at, source_box
from .region_reader import RegionReader
from .runtime.throttle import UNHURRIED

if TYPE_CHECKING:
    import numpy.typing as npt

    from shardwright.array.spec import Method
    from shardwright.read.store import StoredArray

    from .runtime.throttle import Throttle


class MadeValues:
    """Reads boxes of a source, and makes the values of the new array from them. ``factors``: elements of the
    source for one, along each axis. ``method``: how they become one; None: all of them stay. One thread's."""

    def __init__(
        self,
        source: StoredArray,
        factors: tuple[int, ...],
        method: Method | None,
        throttle: Throttle = UNHURRIED,
    ) -> None:
        self._source, self._factors, self._method = source, factors, method
        self._reader = RegionReader(source, throttle)
        self._below = np.empty(0, source.dtype)  # one for all boxes: fresh memory is expensive

    @staticmethod
    def peak_bytes(
        source: StoredArray, factors: tuple[int, ...], method: Method | None, shape: tuple[int, ...]
    ) -> int:
        """Returns the most bytes that it holds, beside a box of this shape and those of ``RegionReader``."""
        if method is None:
            return 0
        below = tuple(min(n * f, m) for n, f, m in zip(shape, factors, source.shape, strict=True))
        return math.prod(below) * source.dtype.itemsize + work_bytes(below, factors, source.dtype, method)

    @property
    def bytes_read(self) -> int:
        return self._reader.bytes_read

    def read(self, start: tuple[int, ...], out: npt.NDArray[Any]) -> None:
        """Fill ``out`` (the source's dtype, C order) with the box that begins at ``start``. Raises as
        ``RegionReader.read`` does."""
        if self._method is None:
            self._reader.read(start, out)
            return
        box = source_box(box_at(start, out.shape), self._factors, self._source.shape)
        shape = [stop - first for first, stop in box]
        if self._below.size < math.prod(shape):
            self._below = np.empty(math.prod(shape), self._source.dtype)
        below = self._below[: math.prod(shape)].reshape(shape)
        self._reader.read(tuple(first for first, _ in box), below)
        downsample(below, out, self._factors, self._method)

    def close(self) -> None:
        self._reader.close()
