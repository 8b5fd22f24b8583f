"""Gathers the bytes of one inner chunk from frames, rows at a time.

A chunk of a slab holds, for each of its frames in storage order, ``chunk_rows`` rows of ``row_bytes`` bytes.
Rows and columns past the frame's edge, and whole frames that never came (address 0), are fill value. Rows are
copied with memcpy block by block, so that the filter that follows reads a block that is still in L2; a pixel
loop here would take half of the total time.

``source`` describes one chunk to the kernels: (frames int64[P], the addresses of the frames; bytes of a
frame's row; the chunk's row of the plane table; chunk_rows; row_bytes; address of one row of fill; bytes of
the chunk).

``sample_pixels`` takes a few pixels of the whole field of some frames, from which a contrast window is found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from .cache import njit
from .native_calls import CACHE, as_pointer, memcmp, memcpy

# Columns of the int64 ``plane`` table: the offset of one chunk in the frame, in rows and bytes, and the size
# of its part inside.
PLANE_TOP, PLANE_LEFT_BYTES, PLANE_ROWS, PLANE_WIDTH_BYTES = range(4)

VECTOR_PIXELS = 32  # a cache line; measured best of 16 to 256
GOLDEN = 0x4F1BBCDCBFA53E0B  # of 2^63, odd
PIXEL_BITS = 27  # the finest steps: times the pixels of a frame, 2^36 at most, below 2^63


@njit(nogil=True, cache=CACHE)
def gather_range(source: Any, start: int, stop: int, to: int) -> None:
    """Copies bytes [start, stop) of a chunk to address ``to``."""
    frames, frame_row_bytes, chunk, chunk_rows, row_bytes, fill_row, _ = source
    top, left, rows, width = (
        chunk[PLANE_TOP],
        chunk[PLANE_LEFT_BYTES],
        chunk[PLANE_ROWS],
        chunk[PLANE_WIDTH_BYTES],
    )
    row = start // row_bytes
    column = start - row * row_bytes
    number = row // chunk_rows
    row -= number * chunk_rows
    position = start
    while position < stop:
        count = min(row_bytes - column, stop - position)
        frame = frames[number]
        inside = min(max(width - column, 0), count) if frame != 0 and row < rows else 0
        if inside > 0:
            memcpy(to, frame + (top + row) * frame_row_bytes + left + column, inside)
        if inside < count:
            memcpy(to + inside, fill_row + column + inside, count - inside)
        to += count
        position += count
        column = 0
        row += 1
        if row == chunk_rows:
            row = 0
            number += 1


@njit(nogil=True, cache=CACHE)
def is_in_range(source: Any, start: int, stop: int, at: int) -> bool:
    """Returns whether ``gather_range`` would put at address ``at`` what is there. Nothing is copied: a second
    gather would take the memory, and the time, of the first."""
    frames, frame_row_bytes, chunk, chunk_rows, row_bytes, fill_row, _ = source
    top, left, rows, width = (
        chunk[PLANE_TOP],
        chunk[PLANE_LEFT_BYTES],
        chunk[PLANE_ROWS],
        chunk[PLANE_WIDTH_BYTES],
    )
    row, column = start // row_bytes, start % row_bytes
    number, row = row // chunk_rows, row % chunk_rows
    position = start
    while position < stop:
        count = min(row_bytes - column, stop - position)
        frame = frames[number]
        inside = min(max(width - column, 0), count) if frame != 0 and row < rows else 0
        if inside > 0 and memcmp(at, frame + (top + row) * frame_row_bytes + left + column, inside) != 0:
            return False
        if inside < count and memcmp(at + inside, fill_row + column + inside, count - inside) != 0:
            return False
        at += count
        position += count
        column = 0
        row += 1
        if row == chunk_rows:
            row = 0
            number += 1
    return True


@njit(nogil=True, cache=CACHE)
def is_all_fill(frames: Any, frame_row_bytes: int, chunk: Any, fill_row: int) -> bool:
    """Returns whether every pixel of the chunk equals the fill value bit for bit; stops at the first row that
    does not."""
    top, left, rows, width = (
        chunk[PLANE_TOP],
        chunk[PLANE_LEFT_BYTES],
        chunk[PLANE_ROWS],
        chunk[PLANE_WIDTH_BYTES],
    )
    for number in range(frames.size):
        frame = frames[number]
        if frame == 0:
            continue
        for row in range(top, top + rows):
            if memcmp(frame + row * frame_row_bytes + left, fill_row, width) != 0:
                return False
    return True


@intrinsic
def _split_vector(typingctx: Any, source: Any, low: Any, high: Any) -> Any:
    """Splits ``VECTOR_PIXELS`` 16-bit pixels into their low and high bytes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pixels, plane = (ir.VectorType(ir.IntType(bits), VECTOR_PIXELS) for bits in (16, 8))
        loaded = builder.load(builder.inttoptr(arguments[0], pixels.as_pointer()), align=1)
        shift = ir.Constant(pixels, [ir.IntType(16)(8)] * VECTOR_PIXELS)
        for values, to in ((loaded, arguments[1]), (builder.lshr(loaded, shift), arguments[2])):
            split = builder.trunc(values, plane)
            builder.store(split, builder.inttoptr(to, plane.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@njit(nogil=True, cache=CACHE)
def _split_pixels(source: int, count: int, low: int, high: int) -> None:
    """Splits ``count`` 16-bit pixels into their low and high bytes.

    In vectors of a fixed length, and without a prefetch: the fewer instructions a row takes, the more rows
    the processor reads ahead. Rows of 256 pixels, each on another page: 24 GB/s, where a loop that the
    compiler turned into vectors made 14 with a prefetch and 15 without.
    """
    whole = count - count % VECTOR_PIXELS
    for i in range(0, whole, VECTOR_PIXELS):
        _split_vector(source + 2 * i, low + i, high + i)
    rest = count - whole
    pixels = carray(as_pointer(source + 2 * whole), (2 * rest,), np.uint8)
    low_bytes = carray(as_pointer(low + whole), (rest,), np.uint8)
    high_bytes = carray(as_pointer(high + whole), (rest,), np.uint8)
    for i in range(rest):
        low_bytes[i], high_bytes[i] = pixels[2 * i], pixels[2 * i + 1]


@njit(nogil=True, cache=CACHE)
def gather_shuffled_16(source: Any, start: int, stop: int, to: int) -> None:
    """Does ``gather_range`` and the shuffle filter in one pass, for 16-bit pixels: all low bytes of
    [start, stop) at ``to``, then all high bytes.

    This saves a write and a read of every pixel. ``start`` and ``stop`` must be even.
    """
    frames, frame_row_bytes, chunk, chunk_rows, row_bytes, fill_row, _ = source
    top, left, rows, width = (
        chunk[PLANE_TOP],
        chunk[PLANE_LEFT_BYTES],
        chunk[PLANE_ROWS],
        chunk[PLANE_WIDTH_BYTES],
    )
    row = start // row_bytes
    column = start - row * row_bytes
    number = row // chunk_rows
    row -= number * chunk_rows
    low, high = to, to + (stop - start) // 2
    position = start
    while position < stop:
        count = min(row_bytes - column, stop - position)
        frame = frames[number]
        inside = min(max(width - column, 0), count) if frame != 0 and row < rows else 0
        if inside > 0:
            _split_pixels(frame + (top + row) * frame_row_bytes + left + column, inside // 2, low, high)
        if inside < count:
            _split_pixels(
                fill_row + column + inside, (count - inside) // 2, low + inside // 2, high + inside // 2
            )
        low += count // 2
        high += count // 2
        position += count
        column = 0
        row += 1
        if row == chunk_rows:
            row = 0
            number += 1


@njit(nogil=True, cache=CACHE)
def sample_pixels(frames: Any, pixels: int, itemsize: int, first: int, sample: Any) -> None:
    """Fills ``sample``, uint8[m * itemsize], with m pixels of ``frames``: int64[n] addresses of ``pixels``
    pixels each, n >= 1. ``first``: number of the first pixel, 0 or more; samples that begin elsewhere hold
    other pixels.

    Pixel k of the sample comes from frame k mod n. The offsets follow the golden ratio: however few are
    taken, they lie evenly over the field, and on no grid that rows, columns or tiles of a camera could meet.
    """
    target = int(sample.ctypes.data)
    mask, shift = np.int64(2**63 - 1), np.int64(63 - PIXEL_BITS)
    for k in range(sample.size // itemsize):
        fraction = (((first + k) * GOLDEN) & mask) >> shift
        pixel = (fraction * pixels) >> PIXEL_BITS
        memcpy(target + k * itemsize, frames[k % frames.size] + pixel * itemsize, itemsize)
