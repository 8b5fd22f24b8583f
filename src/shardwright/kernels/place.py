"""Slab assembly: puts a batch of frame descriptors into their places in open slabs, in one call, without
Python for each frame.

It stops at a frame whose slab has no open row, since the caller opens rows (or decides that the frame is
late), once per slab.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.wire.messages import IMAGE_SHIFT

from .cache import njit
from .native_calls import CACHE

PLACED, DUPLICATE, LATE = 0, 1, 2  # status of a frame


@njit(nogil=True, cache=CACHE)
def slab_and_index(position: int, counts: Any, chunk: Any, slab_counts: Any, slab_strides: Any) -> Any:
    """Returns (slab number, index within the slab in storage order) of a frame position. Tables:
    int64[images, axes], one element per frame axis (``Grids.tables``)."""
    image = position >> IMAGE_SHIFT
    first = image << IMAGE_SHIFT
    slab, index_in_slab, scale, rest = first, 0, 1, position - first
    for axis in range(counts.shape[1] - 1, -1, -1):
        if axis == 0:
            index = rest
        else:
            index = rest % counts[image, axis]
            rest //= counts[image, axis]
        coordinate = index // chunk[image, axis]
        slab += coordinate * scale
        index_in_slab += (index - coordinate * chunk[image, axis]) * slab_strides[image, axis]
        scale *= slab_counts[image, axis]
    return slab, index_in_slab


@njit(nogil=True, cache=CACHE)
def slabs_and_indices(positions: Any, counts: Any, chunk: Any, slab_counts: Any, slab_strides: Any) -> Any:
    """Returns ``slab_and_index`` of each position: (slabs int64[n], indices int64[n])."""
    slabs, indices = np.empty(positions.size, np.int64), np.empty(positions.size, np.int64)
    for i in range(positions.size):
        slabs[i], indices[i] = slab_and_index(positions[i], counts, chunk, slab_counts, slab_strides)
    return slabs, indices


@njit(nogil=True, cache=CACHE)
def place_frames(first: int, batch: Any, grid: Any, table: Any, statuses: Any, completed: Any) -> Any:
    """Places frames first, first+1, ... of a batch.

    batch      (positions, sequences, addresses: int64[n]; records int64[n,w]: each frame's record as w words)
    grid       (counts, chunk, slab counts, slab strides), as ``slab_and_index`` takes them
    table      (int64[R]: the slab that a row collects, -1 when free; addresses int64[R,P]: 0 where no frame
               has come; sequences int64[R,P]; records int64[R,P,w]; frames, expected int64[R])
    statuses   uint8[n]    out: PLACED or DUPLICATE
    completed  int64[R]    out: rows whose last frame came, in order
    Returns (frames done, rows completed, slab that has no row or -1).
    """
    positions, sequences, addresses, records = batch
    counts, chunk, slab_counts, slab_strides = grid
    row_slab, row_addresses, row_sequences, row_records, row_frames, row_expected = table
    done_rows, row = 0, 0
    for i in range(first, positions.size):
        slab, index_in_slab = slab_and_index(positions[i], counts, chunk, slab_counts, slab_strides)
        if row_slab[row] != slab:
            row = -1
            for r in range(row_slab.size):
                if row_slab[r] == slab:
                    row = r
                    break
            if row < 0:
                return i, done_rows, slab
        if row_addresses[row, index_in_slab] != 0:
            statuses[i] = DUPLICATE
            continue
        row_addresses[row, index_in_slab] = addresses[i]
        row_sequences[row, index_in_slab] = sequences[i]
        for word in range(records.shape[1]):  # assigning the row at once would compile numba's strings: 1.3 s
            row_records[row, index_in_slab, word] = records[i, word]
        row_frames[row] += 1
        statuses[i] = PLACED
        if row_frames[row] == row_expected[row]:
            completed[done_rows] = row
            done_rows += 1
    return positions.size, done_rows, -1
