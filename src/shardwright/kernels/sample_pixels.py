"""Takes a few pixels of the whole field of some frames, from which a contrast window is found.

Pixel k of the sample comes from frame k mod n. Its place follows the golden ratio: however few pixels are
taken, they lie evenly over the field, and on no grid that rows, columns or tiles of a camera could meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .native_calls import CACHE, memcpy

GOLDEN = 0x4F1BBCDCBFA53E0B  # of 2^63, odd
PLACE_BITS = 27  # the finest places: times the pixels of a frame, 2^36 at most, below 2^63


@njit(nogil=True, cache=CACHE)
def sample_pixels(frames: Any, pixels: int, itemsize: int, first: int, sample: Any) -> None:
    """Fills ``sample``, uint8[m * itemsize], with m pixels of ``frames``: int64[n] addresses of ``pixels``
    pixels each, n >= 1. ``first``: number of the first place, 0 or more; samples that begin elsewhere hold
    other pixels."""
    target = int(sample.ctypes.data)
    mask, shift = np.int64(2**63 - 1), np.int64(63 - PLACE_BITS)
    for k in range(sample.size // itemsize):
        fraction = (((first + k) * GOLDEN) & mask) >> shift
        place = (fraction * pixels) >> PLACE_BITS
        memcpy(target + k * itemsize, frames[k % frames.size] + place * itemsize, itemsize)
