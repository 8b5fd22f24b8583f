"""Finds the chunks that boxes of shards touch, decodes them, and lays what a box takes of each into the box.

A cut is the part of a chunk that a box takes: int64[3, axes], its first element in the chunk, its elements
along each axis, and its first element in the box. Of a Blosc chunk only the blocks that hold the cut are
decompressed; a cut that is contiguous on both sides is decoded into the box itself.

What is wrong with bytes is not said here: a chunk that does not decode, or is of a form that kernels do not
know, is left undone, and ``codecs.decode`` decodes it again or names the fault.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from shardwright.codecs.parameters import BLOSC_HEADER_BYTES
from shardwright.shard.index import CHECKSUM_BYTES

from .cache import njit
from .checksum import crc32c_at
from .native_calls import CACHE, as_pointer, blosc_getitem, memcpy, zstd_decompress

PLAIN, BLOSC, ZSTD, OTHER = 0, 1, 2, 3
_FIRST, _COUNT, _IN_BOX = 0, 1, 2  # rows of a cut
_LOW, _HIGH, _AT = 0, 1, 2  # rows of a box
_BLOSC_VERSION, _BLOSC_STORED, _BLOSC_RESERVED, _BLOSC_COMPRESSORS = 2, 0x02, 0x08, 5
_BLOSC_SHUFFLE, _BLOSC_BITSHUFFLE = 0x01, 0x04
_ZSTD_MAGIC = 0xFD2FB528
NOTHING, IN_PLACE = 0, -1  # no addresses


@njit(inline="always")
def _u32(address: int) -> int:
    data = carray(as_pointer(address), (4,), np.uint8)
    value = np.int64(0)
    for i in range(4):
        value |= np.int64(data[i]) << (8 * i)
    return value


@njit(nogil=True, cache=CACHE)
def cut_boxes(boxes: Any, shapes: Any, numbers: Any, cuts: Any) -> None:
    """Finds the chunks that boxes of shards touch, box by box, in C order.

    boxes    int64[m, 3, axes]: [low, high) of each in its shard, and its first element in the output
    shapes   int64[2, axes], of a chunk, and of a shard in chunks
    numbers  int64[n], out: of each chunk, as an index counts
    cuts     int64[n, 3, axes], out
    """
    found = 0
    for box in range(boxes.shape[0]):
        touched = np.int64(1)
        for axis in range(boxes.shape[2]):
            chunk = shapes[0, axis]
            touched *= (boxes[box, _HIGH, axis] + chunk - 1) // chunk - boxes[box, _LOW, axis] // chunk
        for i in range(touched):
            rest, number, step = i, np.int64(0), np.int64(1)
            for axis in range(boxes.shape[2] - 1, -1, -1):
                chunk, low, high = shapes[0, axis], boxes[box, _LOW, axis], boxes[box, _HIGH, axis]
                along = (high + chunk - 1) // chunk - low // chunk
                begin = (low // chunk + rest % along) * chunk
                rest //= along
                number += begin // chunk * step
                step *= shapes[1, axis]
                first = max(begin, low)
                cuts[found, _FIRST, axis] = first - begin
                cuts[found, _COUNT, axis] = min(begin + chunk, high) - first
                cuts[found, _IN_BOX, axis] = boxes[box, _AT, axis] + first - low
            numbers[found] = number
            found += 1


@njit(inline="always")
def _span(first: Any, count: Any, shape: Any) -> Any:
    """Returns the first element of a part of an array, as elements lie in memory, and the number of elements
    from there to its last."""
    start = last = np.int64(0)
    for axis in range(shape.size):
        start = start * shape[axis] + first[axis]
        last = last * shape[axis] + first[axis] + count[axis] - 1
    return start, last - start + 1


@njit(inline="always")
def _blosc_typesize(source: int, nbytes: int, chunk_bytes: int) -> int:
    """Returns the element size of a Blosc 1 chunk, 0 if it is stored, -1 if its header is not right."""
    if nbytes < BLOSC_HEADER_BYTES:
        return -1
    head = carray(as_pointer(source), (4,), np.uint8)
    flags, typesize, both = np.int64(head[2]), np.int64(head[3]), _BLOSC_SHUFFLE | _BLOSC_BITSHUFFLE
    block = _u32(source + 8)
    if (
        head[0] != _BLOSC_VERSION
        or head[1] != 1  # version of the compressor's format: c-blosc looks at it, c-blosc2 does not
        or flags & _BLOSC_RESERVED
        or flags & both == both
        or flags >> 5 >= _BLOSC_COMPRESSORS
        or _u32(source + 4) != chunk_bytes
        or _u32(source + 12) != nbytes
        or typesize == 0
        or block == 0
        or block > chunk_bytes
    ):
        return -1
    if flags & _BLOSC_STORED:
        return 0 if nbytes == chunk_bytes + BLOSC_HEADER_BYTES else -1
    return typesize


@njit(inline="always")
def _lay(content: int, itemsize: int, cut: Any, chunk_shape: Any, box_shape: Any, out: int) -> None:
    """Copies a cut, row by row, from a decoded chunk into the box."""
    axes = chunk_shape.size
    row = cut[_COUNT, axes - 1]
    rows = np.int64(1)
    for axis in range(axes - 1):
        rows *= cut[_COUNT, axis]
    for number in range(rows):
        rest, source, to = number, cut[_FIRST, axes - 1], cut[_IN_BOX, axes - 1]
        source_step, to_step = chunk_shape[axes - 1], box_shape[axes - 1]
        for axis in range(axes - 2, -1, -1):
            element = rest % cut[_COUNT, axis]
            rest //= cut[_COUNT, axis]
            source += (cut[_FIRST, axis] + element) * source_step
            to += (cut[_IN_BOX, axis] + element) * to_step
            source_step *= chunk_shape[axis]
            to_step *= box_shape[axis]
        memcpy(out + to * itemsize, content + source * itemsize, row * itemsize)


@njit(inline="always")
def _from_blosc(source: int, nbytes: int, part: Any, scratch: Any, target: int) -> Any:
    """As ``content_of``, of a Blosc chunk."""
    typesize = _blosc_typesize(source, nbytes, scratch.size)
    if typesize == 0:
        return source + BLOSC_HEADER_BYTES
    start, count = part
    if typesize < 0 or start % typesize or count % typesize:
        return NOTHING
    to = target or np.int64(scratch.ctypes.data) + start
    if blosc_getitem(source, nbytes, start // typesize, count // typesize, to, count) != count:
        return NOTHING
    return IN_PLACE if target else np.int64(scratch.ctypes.data)


@njit(inline="always")
def _from_zstd(source: int, nbytes: int, part: Any, scratch: Any, target: int) -> Any:
    """As ``content_of``, of a Zstandard frame."""
    if nbytes < 4 or _u32(source) != _ZSTD_MAGIC:
        return NOTHING
    in_place = target != 0 and part[1] == scratch.size
    to = target if in_place else np.int64(scratch.ctypes.data)
    if zstd_decompress(to, scratch.size, source, nbytes) != scratch.size:
        return NOTHING
    return IN_PLACE if in_place else to


@njit(inline="always")
def content_of(compressor: int, source: int, nbytes: int, part: Any, scratch: Any, target: int) -> Any:
    """Returns the address of the decoded chunk, of which at least ``part`` (first byte, bytes) is there;
    ``IN_PLACE`` if that was decoded to ``target`` (0: it must not), ``NOTHING`` if it does not decode."""
    if compressor == PLAIN:
        return source if nbytes == scratch.size else NOTHING
    if compressor == BLOSC:
        return _from_blosc(source, nbytes, part, scratch, target)
    if compressor == ZSTD:
        return _from_zstd(source, nbytes, part, scratch, target)
    return NOTHING


@njit(nogil=True, cache=CACHE)
def _decode_cut(source: int, nbytes: int, form: Any, cut: Any, shapes: Any, out: int, scratch: Any) -> bool:
    compressor, checksum, itemsize = form
    if checksum:
        nbytes -= CHECKSUM_BYTES
        if nbytes < 0 or np.int64(crc32c_at(source, nbytes)) != _u32(source + nbytes):
            return False
    first, span = _span(cut[_FIRST], cut[_COUNT], shapes[0])
    in_box, box_span = _span(cut[_IN_BOX], cut[_COUNT], shapes[1])
    volume = np.int64(1)
    for axis in range(cut.shape[1]):
        volume *= cut[_COUNT, axis]
    contiguous = span == volume and box_span == volume
    target: Any = out + in_box * itemsize if contiguous else np.int64(0)
    content = content_of(compressor, source, nbytes, (first * itemsize, span * itemsize), scratch, target)
    if content == NOTHING:
        return False
    if content != IN_PLACE:
        if contiguous:
            memcpy(target, content + first * itemsize, span * itemsize)
        else:
            _lay(content, itemsize, cut, shapes[0], shapes[1], out)
    return True


@njit(nogil=True, cache=CACHE)
def decode_cuts(
    sources: Any, nbytes: Any, form: Any, cuts: Any, shapes: Any, out: int, scratch: Any, done: Any
) -> None:
    """Lays the cuts of n chunks into the box at the address ``out``. ``sources``, ``nbytes``: int64[n],
    addresses and lengths of the encoded chunks; ``form``: (compressor, whether a crc32c follows, bytes of an
    element); ``cuts``: int64[n, 3, axes], none empty; ``shapes``: int64[2, axes], of a chunk and of the box;
    ``scratch``: uint8[chunk_bytes]. Sets ``done``, bool[n]; the box is undefined where a
    chunk is not done."""
    for i in range(sources.size):
        done[i] = _decode_cut(sources[i], nbytes[i], form, cuts[i], shapes, out, scratch)
