"""Reads from a file into memory without the GIL; each range is checksummed while it is in a near cache. One
call for many chunks, no Python per chunk."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numba import carray, njit

from .checksum import crc32c_from
from .native_calls import CACHE, as_pointer, errno_location, posix_fadvise, pread

EINTR = 4
POSIX_FADV_WILLNEED = int(os.POSIX_FADV_WILLNEED)
FILE_ENDED = -1
_STEP_BYTES = 256 * 1024  # read, then checksummed from L2


@njit(nogil=True, cache=CACHE)
def read_at(descriptor: int, address: int, count: int, offset: int) -> int:
    """Reads ``count`` bytes at ``offset`` of a file to ``address``; continues after a signal or a short read.
    Returns 0, errno or ``FILE_ENDED``."""
    done = 0
    while done < count:
        got = pread(descriptor, address + done, count - done, offset + done)
        if got > 0:
            done += got
            continue
        if got == 0:
            return FILE_ENDED
        number = carray(as_pointer(errno_location()), (1,), np.int32)[0]
        if number != EINTR:
            return int(number)
    return 0


@njit(nogil=True, cache=CACHE)
def read_ranges(descriptor: int, offsets: Any, addresses: Any, nbytes: Any, crcs: Any) -> int:
    """Reads ``nbytes[i]`` bytes at ``offsets[i]`` to ``addresses[i]`` (int64 arrays) and continues
    ``crcs[i]`` (uint32) over them.

    Returns 0, or the errno (or ``FILE_ENDED``) of the first failed read.
    """
    for i in range(nbytes.size):
        done = 0
        while done < nbytes[i]:
            step = min(_STEP_BYTES, nbytes[i] - done)
            number = read_at(descriptor, addresses[i] + done, step, offsets[i] + done)
            if number != 0:
                return int(number)
            crcs[i] = crc32c_from(crcs[i], addresses[i] + done, step)
            done += step
    return 0


@njit(nogil=True, cache=CACHE)
def will_need(descriptor: int, offsets: Any, nbytes: Any) -> None:
    """Lets the system fetch ``nbytes[i]`` bytes at ``offsets[i]`` of a file (int64 arrays) into the page
    cache, without waiting for them."""
    for i in range(nbytes.size):
        posix_fadvise(descriptor, offsets[i], nbytes[i], POSIX_FADV_WILLNEED)


@njit(nogil=True, cache=CACHE)
def checksum_ranges(addresses: Any, nbytes: Any, crcs: Any) -> None:
    """Continues ``crcs[i]`` (uint32) over ``nbytes[i]`` bytes at ``addresses[i]`` (int64 arrays)."""
    for i in range(nbytes.size):
        crcs[i] = crc32c_from(crcs[i], addresses[i], nbytes[i])
