"""Lowers the resolution along chosen axes: each element of a level is the mean, minimum, maximum or first of
a window of as many elements as the factor of each axis says.

The last window of an axis has what is left, so windows differ in size. The exact results, also of the NumPy
twin in the tests:

    mean     integers: exact, half to even (numpy.rint of the exact mean; a bool counts as 0 or 1). Floats:
             summed in float64, row-major, then rounded once to the dtype; NaN where one element is NaN.
    min max  NaN where one element is NaN, as numpy.minimum and numpy.maximum.
    nearest  the window's first element, bit for bit.

Fill values are treated like all others. Pixels are processed as rows along their last axis. A table says
which source rows make each target row: int64[target rows, n] addresses, 0 behind the last. It is filled from
the shape of an array (``downsample``), or from the frames of a slab (``downsample_frames``). A window has at
most ``level_shapes.MAX_WINDOW`` elements, so that the sums below do not overflow.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numba import carray

from shardwright.array.level_shapes import table_entries

from .cache import njit
from .native_calls import CACHE, as_pointer, prefetch

if TYPE_CHECKING:
    from shardwright.array.spec import Method

_SIGN_BIT = -(2**63)
_LOW_BITS = 2**32 - 1
_CACHE_LINE_BYTES = 64
_MOST_PREFETCHED_BYTES = 5120  # of a row: longer ones gain nothing
_TABLE_ENTRIES = 4096  # of an array: so that its table does not grow with it

Array = npt.NDArray[Any]


def shape_above(shape: tuple[int, ...], factors: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the level above."""
    return tuple(-(-n // f) for n, f in zip(shape, factors, strict=True))


def _rows_at_once(factors: tuple[int, ...]) -> tuple[int, int]:
    """Returns the lines of the table of an array, and the entries of each."""
    source_rows = math.prod(factors[:-1])
    return max(1, _TABLE_ENTRIES // source_rows), source_rows


def work_bytes(shape: tuple[int, ...], factors: tuple[int, ...], dtype: np.dtype[Any], method: Method) -> int:
    """Returns the memory that ``downsample`` needs for a source of this shape, beside source and target."""
    if method == "nearest":
        return 0
    table = 8 * table_entries(*_rows_at_once(factors), shape[-1])
    values = math.prod(shape) + math.prod(shape_above(shape, factors))
    return 8 * values + table if dtype == np.float16 else table


def downsample(source: Array, target: Array, factors: tuple[int, ...], method: Method) -> None:
    """Fills ``target`` (shape ``shape_above(source.shape, factors)``, the source's dtype) from ``source``;
    both contiguous, native byte order."""
    assert target.shape == shape_above(source.shape, factors), "the level's shape"
    assert source.dtype == target.dtype, "a level has its image's dtype"
    if method == "nearest":
        target[...] = source[tuple(slice(None, None, f) for f in factors)]
        return
    # numba has no half floats on a CPU; all these steps are exact except the last, the only rounding
    if source.dtype == np.float16:
        wide = np.empty(target.shape, np.float64 if method == "mean" else np.float32)
        _downsample(source.astype(wide.dtype), wide, factors, method)
        target[...] = wide
        return
    _downsample(source, target, factors, method)


def _downsample(source: Array, target: Array, factors: tuple[int, ...], method: Method) -> None:
    width, out = source.shape[-1], target.reshape(-1, target.shape[-1])
    at_once, source_rows = _rows_at_once(factors)
    table = np.empty((min(len(out), at_once), source_rows), np.int64)
    sums = np.empty((4, width), np.int64)
    axes = (
        np.array(source.shape[:-1], np.int64),
        np.array(target.shape[:-1], np.int64),
        np.array(factors[:-1], np.int64),
    )
    for first in range(0, len(out), at_once):
        part = out[first : first + at_once]
        rows = table[: len(part)]
        rows_of_array(source.ctypes.data, width * source.itemsize, first, *axes, rows)
        reduce_rows(rows, width, factors[-1], method, sums, part)


def downsample_frames(
    frames: npt.NDArray[np.int64],
    windows: npt.NDArray[np.int64],
    frame_shape: tuple[int, int],
    factors: tuple[int, int],
    method: Method,
    fill_row: Array,
    out: Array,
    table: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Fills ``out`` (Q, rows, columns) from the frames of a slab, or of the level below it. Returns int64[Q]:
    the address of each frame in ``out``, 0 for one that is left out since none of its window came.

    ``frames`` int64[P]: their addresses, 0 where none came, which counts as ``fill_row``. ``windows``
    int64[Q, n]: numbers of the frames of each window, -1 behind the last. ``factors``: along rows and
    columns. ``table`` int64[``table_entries``]: working memory. Not for float16.
    """
    count, rows, columns = out.shape
    lines = table[: count * rows * factors[0] * windows.shape[1]].reshape(count * rows, -1)
    sums = table[lines.size : lines.size + 4 * frame_shape[1]].reshape(4, -1)
    came = ((frames[windows] != 0) & (windows >= 0)).any(axis=1)
    row_bytes, fill = frame_shape[1] * out.itemsize, int(fill_row.ctypes.data)
    rows_of_frames(frames, windows, came, frame_shape[0], row_bytes, factors[0], fill, lines)
    reduce_rows(lines, frame_shape[1], factors[1], method, sums, out.reshape(-1, columns))
    addresses: npt.NDArray[np.int64] = int(out.ctypes.data) + np.arange(count) * (
        rows * columns * out.itemsize
    )
    return np.where(came, addresses, 0)


@cache
def prepare(dtype: np.dtype[Any], method: Method) -> None:
    """Compiles the kernels of ``downsample_frames`` for this dtype and method, or loads them from numba's
    cache: not part of ``warm_up``, since an acquisition needs one or two of 44 pairs. Without it the
    first slab would wait a second for the compiler."""
    frame, out = np.zeros(1, dtype), np.zeros((1, 1, 1), dtype)
    one, table = np.zeros((1, 1), np.int64), np.zeros(8, np.int64)
    address = np.array([frame.ctypes.data], np.int64)
    downsample_frames(address, one, (1, 1), (1, 1), method, frame, out, table)


def reduce_rows(
    rows: npt.NDArray[np.int64],
    width: int,
    factor: int,
    method: Method,
    sums: npt.NDArray[np.int64],
    out: Array,
) -> None:
    """Reduces the source rows of ``width`` elements in each line of ``rows`` to a row of ``out``, along the
    row by ``factor``. ``sums`` int64[4, width]: working memory."""
    if out.dtype == np.bool_:
        out = out.view(np.uint8)
    if method == "nearest":
        nearest_rows(rows, width, factor, out)
    elif method in ("min", "max"):
        extreme_rows(rows, width, factor, method == "max", out)
    elif out.dtype.kind == "f":
        mean_float_rows(rows, width, factor, sums[0].view(np.float64), out)
    elif out.dtype.itemsize <= 4:
        mean_rows(rows, width, factor, sums.view(np.int32 if out.dtype.itemsize <= 2 else np.int64), out)
    else:
        bias = 0
        # as signed numbers with the middle at 0: an even shift, which changes no rounding
        if out.dtype == np.uint64:
            out, bias = out.view(np.int64), _SIGN_BIT
        mean_long_rows(rows, width, factor, bias, sums, out)


@njit(nogil=True, cache=CACHE)
def rows_of_array(
    source: int, row_bytes: int, first: int, shape: Any, out_shape: Any, factors: Any, rows: Any
) -> None:
    """Fills the table for the target rows from ``first`` on. The leading axes of the array at ``source`` have
    ``shape``, those of the target ``out_shape``; ``factors`` between them."""
    rows[:] = 0
    for line in range(rows.shape[0]):
        row, count, stride = first + line, 1, row_bytes
        window = rows[line]
        window[0] = source
        for axis in range(shape.size - 1, -1, -1):
            index = row % out_shape[axis]
            row //= out_shape[axis]
            begin = index * factors[axis]
            steps = min(factors[axis], shape[axis] - begin)
            for i in range(count):
                window[i] += begin * stride
            for i in range(count, count * steps):
                window[i] = window[i - count] + stride
            count *= steps
            stride *= shape[axis]


@njit(nogil=True, cache=CACHE)
def rows_of_frames(
    frames: Any, windows: Any, came: Any, height: int, row_bytes: int, factor: int, fill_row: int, rows: Any
) -> None:
    """Fills the table for frames of ``height`` rows. The lines of a target frame of which nothing ``came``
    stay empty."""
    rows[:] = 0
    line = 0
    for target in range(windows.shape[0]):
        for y in range(0, height, factor):
            count = 0
            for number in windows[target]:
                if number < 0 or not came[target]:
                    break
                for row in range(y, min(y + factor, height)):
                    rows[line, count] = frames[number] + row * row_bytes if frames[number] != 0 else fill_row
                    count += 1
            line += 1


@njit(nogil=True, cache=CACHE)
def _used(line: Any) -> int:
    """Returns the number of addresses in a line of the table."""
    count = 0
    while count < line.size and line[count] != 0:
        count += 1
    return count


@njit(nogil=True, cache=CACHE)
def _prefetch(line: Any, row_bytes: int) -> None:
    """Fetches the source rows of a line, a line before it is their turn: with rows of a page, a slab then
    takes an eighth less time."""
    for i in range(line.size if row_bytes <= _MOST_PREFETCHED_BYTES else 0):
        if line[i] == 0:
            break
        for offset in range(0, row_bytes, _CACHE_LINE_BYTES):
            prefetch(line[i] + offset)


@njit(nogil=True, cache=CACHE)
def nearest_rows(rows: Any, width: int, factor: int, out: Any) -> None:
    """Fills ``out`` from the table ``rows``; a line without an address is left as it is, here as below."""
    for number in range(rows.shape[0]):
        if rows[number, 0] != 0:
            line = carray(as_pointer(rows[number, 0]), (width,), out.dtype)
            for x in range(out.shape[1]):
                out[number, x] = line[x * factor]


@njit(nogil=True, cache=CACHE)
def extreme_rows(rows: Any, width: int, factor: int, largest: bool, out: Any) -> None:
    for number in range(rows.shape[0]):
        target = out[number]
        for i in range(_used(rows[number])):
            line = carray(as_pointer(rows[number, i]), (width,), out.dtype)
            if i == 0:
                for x in range(out.shape[1]):
                    target[x] = line[x * factor]
            for step in range(factor):
                for x in range((width - step + factor - 1) // factor):
                    value, best = line[x * factor + step], target[x]
                    better = value > best if largest else value < best
                    if better or value != value:  # NaN: it stays, since no comparison with it is true
                        target[x] = value


@njit(nogil=True, cache=CACHE)
def mean_float_rows(rows: Any, width: int, factor: int, sums: Any, out: Any) -> None:
    for number in range(rows.shape[0]):
        count = _used(rows[number])
        sums[: out.shape[1]] = -0.0  # adding it changes no number
        for i in range(count):
            line = carray(as_pointer(rows[number, i]), (width,), out.dtype)
            for step in range(factor):
                for x in range((width - step + factor - 1) // factor):
                    sums[x] += line[x * factor + step]
        for x in range(out.shape[1] if count else 0):
            out[number, x] = sums[x] / (count * min(factor, width - x * factor))


@njit(nogil=True, cache=CACHE, error_model="numpy")
def mean_rows(rows: Any, width: int, factor: int, sums: Any, out: Any) -> None:
    """Of integers of up to 32 bits. Rows are added first, then columns: that takes vector instructions. The
    usual window of 2 x 2 in one pass: 23 GB/s of one core for 16 bits, as fast as memory. Vectors of a fixed
    length, as ``gather`` has them, made it 2 to 15 % slower: they gain in the cache alone."""
    two, last, whole = np.int32(2), out.shape[1] - 1, width // factor
    for number in range(rows.shape[0]):
        count, target = _used(rows[number]), out[number]
        if count == 0:
            continue
        if count == 2 and factor == 2 and out.itemsize <= 2:
            upper = carray(as_pointer(rows[number, 0]), (width,), out.dtype)
            lower = carray(as_pointer(rows[number, 1]), (width,), out.dtype)
            if number + 1 < rows.shape[0]:
                _prefetch(rows[number + 1], width * out.itemsize)
            for x in range(whole):
                total = np.int32(upper[2 * x]) + np.int32(upper[2 * x + 1])
                total += np.int32(lower[2 * x]) + np.int32(lower[2 * x + 1])
                target[x] = (total + np.int32(1) + ((total >> two) & np.int32(1))) >> two  # half to even
            if whole == last:
                target[last] = np.rint((np.int64(upper[2 * last]) + np.int64(lower[2 * last])) / 2)
            continue
        down, across = sums[0], sums[1]
        down[:width] = 0
        for i in range(count):
            line = carray(as_pointer(rows[number, i]), (width,), out.dtype)
            for x in range(width):
                down[x] += line[x]
        _sum_across(down, width, factor, across)
        # exact: a quotient that is not half of something is further from it than float64 rounds
        for x in range(whole):
            target[x] = np.rint(across[x] / (count * factor))
        if whole == last:
            target[last] = np.rint(across[last] / (count * (width - last * factor)))


@njit(nogil=True, cache=CACHE)
def _sum_across(values: Any, width: int, factor: int, sums: Any) -> None:
    """Adds up each ``factor`` of ``width`` values, and what is left."""
    if factor == 2:  # in one pass
        for x in range(width // 2):
            sums[x] = values[2 * x] + values[2 * x + 1]
        if width % 2:
            sums[width // 2] = values[width - 1]
        return
    sums[: (width + factor - 1) // factor] = 0
    for step in range(factor):
        for x in range((width - step + factor - 1) // factor):
            sums[x] += values[x * factor + step]


@njit(nogil=True, cache=CACHE, error_model="numpy")
def mean_long_rows(rows: Any, width: int, factor: int, bias: int, sums: Any, out: Any) -> None:
    """Of integers of 64 bits: ``sums`` int64[4, width] holds the sums of their upper and of their lower 32
    bits. Never overflows."""
    for number in range(rows.shape[0]):
        count = _used(rows[number])
        sums[:2] = 0
        for i in range(count):
            line = carray(as_pointer(rows[number, i]), (width,), out.dtype)
            for x in range(width):
                value = line[x] ^ bias
                sums[0, x] += value >> 32
                sums[1, x] += value & _LOW_BITS
        _sum_across(sums[0], width, factor, sums[2])
        _sum_across(sums[1], width, factor, sums[3])
        for x in range(out.shape[1] if count else 0):
            size = count * min(factor, width - x * factor)
            # floor divisions, exact as in ``mean_rows``
            quotient = np.int64(np.floor(sums[2, x] / size))
            low = ((sums[2, x] - quotient * size) << 32) + sums[3, x]
            mean = np.int64(np.floor(low / size))
            rest = 2 * (low - mean * size)
            mean += quotient << 32
            if rest > size or (rest == size and mean & 1):
                mean += 1
            out[number, x] = mean ^ bias
