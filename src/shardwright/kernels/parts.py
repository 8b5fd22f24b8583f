"""Puts a frame's parts at their offsets in the chunks of its slab, while others of its frames are still to
come, and keeps the checksums of chunks of which nobody has all bytes at once.

Without a codec a chunk is its frames' parts one behind the other, and crc32c is linear over GF(2): the crc of
a whole is the XOR of its parts' crcs, each shifted over the bytes behind it (as zlib's ``crc32_combine``,
Mark Adler). So parts may come in any order, and are in memory once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .cache import njit
from .checksum import byte_table, crc32c_at
from .gather import gather_range, is_all_fill
from .native_calls import CACHE, address_of

_BITS = np.arange(32, dtype=np.uint32)


def shifts_behind(parts: int, part_bytes: int) -> npt.NDArray[np.uint32]:
    """Returns uint32[parts, 32]: for each part of a chunk, how ``part_bytes`` for every part behind it
    change the crc of its part, by each bit of that."""
    one_byte, table = np.uint32(1) << _BITS, byte_table()
    one_byte = (one_byte >> np.uint32(8)) ^ table[one_byte & np.uint32(0xFF)]
    one_part, count = np.uint32(1) << _BITS, part_bytes
    while count:  # the map of 2^k bytes, squared again and again
        if count & 1:
            one_part = _after(one_byte, one_part)
        one_byte, count = _after(one_byte, one_byte), count >> 1
    shifts = np.empty((parts, 32), np.uint32)
    shifts[-1] = np.uint32(1) << _BITS
    for index_in_chunk in range(parts - 2, -1, -1):
        shifts[index_in_chunk] = _after(one_part, shifts[index_in_chunk + 1])
    return shifts


def _after(second: npt.NDArray[np.uint32], first: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Returns the map that is ``first``, then ``second``; each as the images of the 32 bits."""
    bits = (first[:, None] >> _BITS) & np.uint32(1)
    joined: npt.NDArray[np.uint32] = np.bitwise_xor.reduce(np.where(bits, second, np.uint32(0)), axis=1)
    return joined


@njit(nogil=True, cache=CACHE)
def place_parts(frames: Any, shifts: Any, plane: Any, cut: Any, targets: Any, joined: Any) -> None:
    """Copies each frame's part of every chunk to its target, and joins the checksums.

    frames      int64[n]     address of each frame's pixels; 0: no frame came, its parts are fill value
    shifts      uint32[n,32] of each frame's place: ``shifts_behind``
    plane, cut               as for ``encode_chunks``: m chunks
    targets     int64[n,m]   address for each part, with room for rows of a chunk times bytes of its row
    joined      in and out: (uint32[m], the XOR of the shifted crcs of each chunk's parts so far; bool[m],
                whether a pixel of them is not fill value)
    """
    frame_row_bytes, chunk_rows, row_bytes, fill_row, _ = cut
    crcs, not_fill = joined
    part_bytes, fill = chunk_rows * row_bytes, address_of(fill_row)
    for i in range(frames.size):
        frame = frames[i : i + 1]
        for k in range(plane.shape[0]):
            source = (frame, frame_row_bytes, plane[k], chunk_rows, row_bytes, fill, part_bytes)
            gather_range(source, 0, part_bytes, targets[i, k])
            if not not_fill[k]:
                not_fill[k] = not is_all_fill(frame, frame_row_bytes, plane[k], fill)
            crc = crc32c_at(targets[i, k], part_bytes)
            for bit in range(32):
                if (crc >> np.uint32(bit)) & np.uint32(1):
                    crcs[k] ^= shifts[i, bit]
