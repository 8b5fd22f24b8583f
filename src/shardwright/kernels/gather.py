"""Gathers the bytes of one inner chunk from frames, rows at a time.

A chunk of a slab holds, for each of its frames in storage order, ``chunk_rows`` rows of ``row_bytes`` bytes.
Rows and columns past the frame's edge, and whole frames that never came (address 0), are fill value. Rows are
copied with memcpy block by block, so that the filter that follows reads a block that is still in L2; a pixel
loop here would take half of the total time.

``source`` describes one chunk to the kernels: (frames int64[P], the addresses of the frames; bytes of a
frame's row; the chunk's row of the plane table; chunk_rows; row_bytes; address of one row of fill; bytes of
the chunk).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from .native_calls import CACHE, as_pointer, memcmp, memcpy, prefetch

# Columns of the int64 ``plane`` table: the place of one chunk in the frame, in rows and bytes, and the size
# of its part inside.
PLANE_TOP, PLANE_LEFT_BYTES, PLANE_ROWS, PLANE_WIDTH_BYTES = range(4)

# each row of a chunk lies on another page, where the CPU's own prefetcher starts anew; measured best of 0 to
# 32
PREFETCHED_ROWS = 2
CACHE_LINE_BYTES = 64


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
    place = row // chunk_rows
    row -= place * chunk_rows
    position = start
    while position < stop:
        count = min(row_bytes - column, stop - position)
        frame = frames[place]
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
            place += 1


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
    for place in range(frames.size):
        frame = frames[place]
        if frame == 0:
            continue
        for row in range(top, top + rows):
            if memcmp(frame + row * frame_row_bytes + left, fill_row, width) != 0:
                return False
    return True


@njit(nogil=True, cache=CACHE)
def _split_pixels(source: int, count: int, low: int, high: int) -> None:
    """Splits ``count`` 16-bit pixels into their low and high bytes, in one pass that the compiler turns into
    vector instructions."""
    pixels = carray(as_pointer(source), (count,), np.uint16)
    low_bytes = carray(as_pointer(low), (count,), np.uint8)
    high_bytes = carray(as_pointer(high), (count,), np.uint8)
    for i in range(count):
        value = pixels[i]
        low_bytes[i] = value & 0xFF
        high_bytes[i] = value >> 8


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
    place = row // chunk_rows
    row -= place * chunk_rows
    low, high = to, to + (stop - start) // 2
    position = start
    while position < stop:
        count = min(row_bytes - column, stop - position)
        frame = frames[place]
        inside = min(max(width - column, 0), count) if frame != 0 and row < rows else 0
        if inside > 0:
            ahead = frame + (top + row + PREFETCHED_ROWS) * frame_row_bytes + left + column
            for line in range(0, inside if row + PREFETCHED_ROWS < rows else 0, CACHE_LINE_BYTES):
                prefetch(ahead + line)
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
            place += 1
