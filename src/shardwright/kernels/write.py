"""Encoded chunks from a worker's buffer to their slots in a file, for shards that are not mapped. One call a task, no Python per chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from .native_calls import CACHE, as_pointer, errno_location, memset, pwrite

EINTR, EIO = 4, 5


@njit(nogil=True, cache=CACHE)
def write_slots(descriptors: Any, offsets: Any, addresses: Any, nbytes: Any, alignment: int) -> int:
    """Write ``nbytes[i]`` bytes at ``addresses[i]`` to ``offsets[i]`` of ``descriptors[i]`` (int64 arrays); empty chunks are skipped.

    Lengths are rounded up to ``alignment`` (1: not at all) and the rounding is zeroed first: the slot and the buffer have room for it.
    Returns 0 or the errno of the first write that failed.
    """
    for i in range(nbytes.size):
        count = nbytes[i]
        if count == 0:
            continue
        rounded = (count + alignment - 1) // alignment * alignment
        memset(addresses[i] + count, 0, rounded - count)
        done = 0
        while done < rounded:
            written = pwrite(descriptors[i], addresses[i] + done, rounded - done, offsets[i] + done)
            if written > 0:
                done += written
                continue
            number = carray(as_pointer(errno_location()), (1,), np.int32)[0] if written < 0 else EIO
            if number != EINTR:
                return int(number)
    return 0
