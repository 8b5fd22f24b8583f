"""Reads and writes files without the GIL: complete reads and writes that return an errno. One call for many
chunks, no Python per chunk.

Workers write a task's encoded chunks, into slots or packed, if shards are not mapped. Compaction reads ranges
and checksums each while it is in a near cache.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numba import carray

from .cache import njit
from .checksum import crc32c_from
from .native_calls import (
    CACHE,
    as_pointer,
    errno_location,
    fetch_add,
    memset,
    posix_fadvise,
    pread,
    pwrite,
    sync_file_range,
)

EINTR, EIO = 4, 5
SYNC_FILE_RANGE_WRITE = 2
POSIX_FADV_WILLNEED = int(os.POSIX_FADV_WILLNEED)
FILE_ENDED = -1
_STEP_BYTES = 256 * 1024  # read, then checksummed from L2


@njit(nogil=True, cache=CACHE)
def write_at(descriptor: int, address: int, count: int, offset: int) -> int:
    """Writes ``count`` bytes at ``address`` to ``offset`` of a file; continues after a signal or a short
    write. Returns 0 or errno."""
    done = 0
    while done < count:
        written = pwrite(descriptor, address + done, count - done, offset + done)
        if written > 0:
            done += written
            continue
        number = carray(as_pointer(errno_location()), (1,), np.int32)[0] if written < 0 else EIO
        if number != EINTR:
            return int(number)
    return 0


@njit(nogil=True, cache=CACHE)
def write_slots(descriptors: Any, offsets: Any, addresses: Any, nbytes: Any, alignment: int) -> int:
    """Writes ``nbytes[i]`` bytes at ``addresses[i]`` to ``offsets[i]`` of ``descriptors[i]`` (int64 arrays);
    empty chunks are skipped.

    Lengths are rounded up to ``alignment`` (1: not at all) and the added bytes are zeroed first: the slot and
    the buffer must have room for them. Returns 0 or the errno of the first failed write.
    """
    for i in range(nbytes.size):
        count = nbytes[i]
        if count == 0:
            continue
        rounded = (count + alignment - 1) // alignment * alignment
        memset(addresses[i] + count, 0, rounded - count)
        number = write_at(descriptors[i], addresses[i], rounded, offsets[i])
        if number != 0:
            return int(number)
    return 0


@njit(nogil=True, cache=CACHE)
def write_runs(
    descriptors: Any, cursors: Any, files: Any, addresses: Any, nbytes: Any, alignment: int, offsets: Any
) -> int:
    """Writes the chunks of each file, which follow each other in memory, as one run behind all earlier data
    of the file.

    descriptors  int64[F]  of each file; cursors int64[F], shared by all workers: the start of its next run.
                 Advanced atomically, so that runs of several workers never overlap; a run that fails leaves
                 its room unused
    files        int64[n]  the file of each chunk, those of one file together; addresses, nbytes int64[n]: as
                 ``encode_chunks`` packed them, 0 bytes for none
    offsets      int64[n]  out: the offset of each chunk in its file

    Lengths are rounded up to ``alignment`` and the added bytes are zeroed: the buffer must have room for
    them. Returns 0 or the errno of the first failure.
    """
    first = 0
    while first < files.size:
        file, start = files[first], addresses[first]
        stop, end = first, start
        while stop < files.size and files[stop] == file:
            end = addresses[stop] + nbytes[stop]
            stop += 1
        rounded = (end - start + alignment - 1) // alignment * alignment
        if rounded > 0:
            offset: int = fetch_add(int(cursors.ctypes.data) + 8 * file, rounded)
            for i in range(first, stop):
                offsets[i] = offset + addresses[i] - start
            memset(end, 0, start + rounded - end)
            number = write_at(descriptors[file], start, rounded, offset)
            if number != 0:
                return int(number)
        first = stop
    return 0


@njit(nogil=True, cache=CACHE)
def start_writeback(descriptors: Any, files: Any, offsets: Any, nbytes: Any) -> None:
    """Lets the kernel begin to write out chunks that are in the page cache, so that few dirty pages collect
    and the sync of a commit finds little to do. Waits only while the disk's queue is full. Neighbouring
    chunks are written together.

    descriptors  int64[F]  of each file; files int64[n]: the file of each chunk; offsets, nbytes int64[n]: its
                 range, 0 bytes for none

    An error is not reported here: the later sync reports it.
    """
    first = 0
    while first < files.size:
        end, stop = offsets[first] + nbytes[first], first + 1
        while stop < files.size and files[stop] == files[first] and nbytes[stop] > 0 and offsets[stop] == end:
            end += nbytes[stop]
            stop += 1
        if nbytes[first] > 0:
            sync_file_range(
                descriptors[files[first]], offsets[first], end - offsets[first], SYNC_FILE_RANGE_WRITE
            )
        first = stop


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


@njit(inline="always")
def _gap_behind(last: int, chunk: int, files: Any, offsets: Any, nbytes: Any, most_bytes: int) -> int:
    """Returns the bytes between two chunks that are read at once, -1 if they are not."""
    gap = int(offsets[chunk] - offsets[last] - nbytes[last])
    return gap if files[last] == files[chunk] and 0 <= gap <= most_bytes else -1


@njit(nogil=True, cache=CACHE)
def plan_pieces(
    order: Any, files: Any, offsets: Any, nbytes: Any, limits: Any, places: Any, pieces: Any, batches: Any
) -> int:
    """Divides chunks into batches, and these into pieces that are read at once.

    order    int64[n], chunks in the order of their bytes; files, offsets, nbytes int64: by chunk
    limits   (bytes between chunks of one piece, at most; bytes of a batch, about)
    places   int64[n], out: the offset of each chunk, in this order, in the memory of its batch
    pieces   int64[n, 4], out: as ``read_pieces`` takes them
    batches  int64[n + 1, 2], out: the first chunk, in this order, and the first piece of each batch, and
             the ends of all

    Batches are of about the same size. Chunks that share bytes are read one by one. Returns the number of
    batches.
    """
    total = np.int64(0)
    for k in range(order.size):
        gap = _gap_behind(order[k - 1], order[k], files, offsets, nbytes, limits[0]) if k else np.int64(0)
        total += nbytes[order[k]] + max(gap, np.int64(0))
    most = max(np.int64(1), limits[1])
    batch_bytes = -(-total // max(np.int64(1), -(-total // most)))
    count, batch, place = np.int64(0), np.int64(0), np.int64(0)
    for k in range(order.size):
        i = order[k]
        gap = _gap_behind(order[k - 1], i, files, offsets, nbytes, limits[0]) if k else np.int64(-1)
        place += max(gap, np.int64(0))
        if k == 0 or place >= batch_bytes:
            batches[batch] = k, count
            batch, place, gap = batch + 1, np.int64(0), np.int64(-1)
        if gap < 0:
            pieces[count] = files[i], offsets[i], 0, place
            count += 1
        places[k] = place
        place += nbytes[i]
        pieces[count - 1, 2] = offsets[i] + nbytes[i] - pieces[count - 1, 1]
    batches[batch] = order.size, count
    return int(batch)


@njit(nogil=True, cache=CACHE)
def announce_pieces(descriptors: Any, pieces: Any) -> None:
    """Lets the system fetch pieces of several files, as ``read_pieces`` takes them, into the page cache,
    without waiting for them."""
    for i in range(pieces.shape[0]):
        posix_fadvise(descriptors[pieces[i, 0]], pieces[i, 1], pieces[i, 2], POSIX_FADV_WILLNEED)


@njit(nogil=True, cache=CACHE)
def read_pieces(descriptors: Any, pieces: Any, address: int) -> Any:
    """Reads pieces of several files into one memory, at ``address``.

    descriptors  int64[F]   of each file
    pieces       int64[n,4] of each piece: the number of its file, its offset there, its bytes, its offset in
                 memory

    Returns (n, 0), or the number of the first piece that cannot be read and its errno or ``FILE_ENDED``.
    """
    for i in range(pieces.shape[0]):
        file, offset, count, target_offset = pieces[i]
        number = read_at(descriptors[file], address + target_offset, count, offset)
        if number != 0:
            return i, number
    return pieces.shape[0], 0


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
