"""Halves the resolution along chosen axes: each element of a level is the mean, minimum, maximum or first of
a window of two along each of them.

The last window of an odd axis has one element, so every window has 2^k elements. The exact results, also of
the twin in ``reference.py``:

    mean     integers: exact, half to even (numpy.rint of the exact mean; a bool counts as 0 or 1). Floats:
             summed in float64, row-major, then rounded once to the dtype; NaN where one element is NaN.
    min max  NaN where one element is NaN, as numpy.minimum and numpy.maximum.
    nearest  the window's first element, bit for bit.

Fill values are treated like all others. An array is processed as rows along its last axis; the rows of one
window are computed from the shape, so that no table grows with the array.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numba import njit

from .native_calls import CACHE

if TYPE_CHECKING:
    from shardwright.array.levels import Method

_SIGN_BIT = -(2**63)

Array = npt.NDArray[Any]


def halved(shape: tuple[int, ...], factors: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the level above; ``factors`` are 1 or 2 for each axis."""
    return tuple(-(-n // f) for n, f in zip(shape, factors, strict=True))


def work_bytes(shape: tuple[int, ...], factors: tuple[int, ...], dtype: np.dtype[Any], method: Method) -> int:
    """Returns the memory that ``downsample`` needs for a source of this shape, beside source and target."""
    out = halved(shape, factors)
    rows = 2 ** len(shape) * 8
    if method == "nearest":
        return 0
    if dtype == np.float16:
        return 4 * math.prod(shape) + 8 * math.prod(out) + 8 * out[-1] + rows
    return 16 * out[-1] + rows


def downsample(source: Array, target: Array, factors: tuple[int, ...], method: Method) -> None:
    """Fills ``target`` (shape ``halved(source.shape, factors)``, the source's dtype) from ``source``; both
    contiguous, native byte order."""
    assert target.shape == halved(source.shape, factors), "the level's shape"
    assert source.dtype == target.dtype, "a level has its image's dtype"
    if method == "nearest":
        target[...] = source[tuple(slice(None, None, f) for f in factors)]
        return
    if source.dtype == np.bool_:
        source, target = source.view(np.uint8), target.view(np.uint8)
    # numba has no half floats on a CPU; all these steps are exact except the last, the only rounding
    if source.dtype == np.float16:
        wide = np.empty(target.shape, np.float64 if method == "mean" else np.float32)
        _reduce(source.astype(np.float32), wide, factors, method)
        target[...] = wide
        return
    _reduce(source, target, factors, method)


def _reduce(source: Array, target: Array, factors: tuple[int, ...], method: Method) -> None:
    rows = np.empty(2 ** len(factors), np.int64)
    lines, out = source.reshape(-1, source.shape[-1]), target.reshape(-1, target.shape[-1])
    axes = (
        np.array(source.shape[:-1], np.int64),
        np.array(target.shape[:-1], np.int64),
        np.array(factors[:-1], np.int64),
    )
    if method in ("min", "max"):
        extreme_rows(lines, out, *axes, factors[-1], method == "max", rows)
    elif source.dtype.kind == "f":
        mean_float_rows(lines, out, *axes, factors[-1], np.empty(out.shape[1], np.float64), rows)
    else:
        bias = 0
        # as signed numbers with the middle at 0: an even shift, which changes no rounding
        if source.dtype == np.uint64:
            lines, out, bias = lines.view(np.int64), out.view(np.int64), _SIGN_BIT
        mean_integer_rows(lines, out, *axes, factors[-1], bias, np.empty((2, out.shape[1]), np.int64), rows)


@njit(nogil=True, cache=CACHE)
def window_rows(row: int, shape: Any, out_shape: Any, factors: Any, rows: Any) -> int:
    """Writes the source rows in the window of target row ``row``, row-major, into ``rows``; returns their
    number."""
    count, stride = 1, 1
    rows[0] = 0
    for axis in range(shape.size - 1, -1, -1):
        index = row % out_shape[axis]
        row //= out_shape[axis]
        first = index * factors[axis] * stride
        for i in range(count):
            rows[i] += first
        if factors[axis] == 2 and 2 * index + 1 < shape[axis]:
            for i in range(count):
                rows[count + i] = rows[i] + stride
            count *= 2
        stride *= shape[axis]
    return count


@njit(nogil=True, cache=CACHE)
def extreme_rows(
    lines: Any, out: Any, shape: Any, out_shape: Any, factors: Any, last: int, largest: bool, rows: Any
) -> None:
    """Reduces ``lines`` (rows, width) to ``out``; the leading axes have ``shape``, ``out_shape`` and
    ``factors``, the last one factor ``last``."""
    width = lines.shape[1]
    for row in range(out.shape[0]):
        count = window_rows(row, shape, out_shape, factors, rows)
        target = out[row]
        for x in range(out.shape[1]):
            target[x] = lines[rows[0], x * last]
        for i in range(count):
            line = lines[rows[i]]
            for step in range(last):
                for x in range((width - step + last - 1) // last):
                    value, best = line[x * last + step], target[x]
                    better = value > best if largest else value < best
                    if better or value != value:  # NaN: it stays, since no comparison with it is true
                        target[x] = value


@njit(nogil=True, cache=CACHE)
def mean_float_rows(
    lines: Any, out: Any, shape: Any, out_shape: Any, factors: Any, last: int, sums: Any, rows: Any
) -> None:
    """As ``extreme_rows``; ``sums`` float64[width of out]."""
    width = lines.shape[1]
    for row in range(out.shape[0]):
        count = window_rows(row, shape, out_shape, factors, rows)
        sums[:] = -0.0  # adding it changes no number
        for i in range(count):
            line = lines[rows[i]]
            for x in range(out.shape[1]):
                sums[x] += line[x * last]
                if last == 2 and 2 * x + 1 < width:
                    sums[x] += line[2 * x + 1]
        for x in range(out.shape[1]):
            here = min(last, width - x * last)
            out[row, x] = sums[x] / (count * here)


@njit(nogil=True, cache=CACHE)
def mean_integer_rows(
    lines: Any, out: Any, shape: Any, out_shape: Any, factors: Any, last: int, bias: int, sums: Any, rows: Any
) -> None:
    """As ``extreme_rows``; ``sums`` int64[2, width of out]: sums of the elements' quotients by the window's
    size, and of their remainders. Never overflows."""
    width = lines.shape[1]
    quotients, remainders = sums[0], sums[1]
    for row in range(out.shape[0]):
        count = window_rows(row, shape, out_shape, factors, rows)
        bits = 0
        while 1 << bits < count:
            bits += 1
        pairs = width // 2 if last == 2 else 0
        sums[:] = 0
        for i in range(count):
            line = lines[rows[i]]
            shift = np.int64(bits + 1)
            mask = (np.int64(1) << shift) - np.int64(1)
            for x in range(pairs):
                a, b = np.int64(line[2 * x]) ^ bias, np.int64(line[2 * x + 1]) ^ bias
                quotients[x] += (a >> shift) + (b >> shift)
                remainders[x] += (a & mask) + (b & mask)
            shift = np.int64(bits)
            mask = (np.int64(1) << shift) - np.int64(1)
            # windows of one element: all of an axis with factor 1, or the last of an odd one
            for x in range(pairs, out.shape[1]):
                a = np.int64(line[x * last]) ^ bias
                quotients[x] += a >> shift
                remainders[x] += a & mask
        for x in range(out.shape[1]):
            shift = np.int64(bits + 1 if x < pairs else bits)
            mask = (np.int64(1) << shift) - np.int64(1)
            mean, rest = quotients[x] + (remainders[x] >> shift), 2 * (remainders[x] & mask)
            if rest > mask + 1 or (rest == mask + 1 and mean & 1):
                mean += 1
            out[row, x] = mean ^ bias
