"""Encodes a batch of inner chunks in one call, from frames to bytes in their slots: gather -> filter ->
compress -> place, no Python in between.

Runs without the GIL on arrays and scalars only. Chunks of a batch share the slab's frames; slot addresses
never overlap, so that any number of workers may encode ranges of the same slab at once without
synchronization.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.codecs.parameters import (
    KIND_BLOSC,
    KIND_GZIP,
    KIND_ZSTD,
    LEVEL_STORED,
)
from shardwright.shard.index import CHECKSUM_BYTES

from .cache import njit
from .checksum import crc32c_at
from .compressed_forms import compress_blosc, compress_gzip, compress_zstd
from .encode_check import CHECK_NONE, decodes_to, is_due
from .gather import is_all_fill
from .native_calls import CACHE, NATIVE_AVAILABLE, address_of, bytes_at, put_u32
from .stored_forms import store_blosc, store_gzip, store_plain, store_zstd

# The form of a chunk, in ``forms``. REPLACED: stored, since it did not decode to its pixels before; UNSOUND:
# nor does the stored form, so that nothing may count as stored
ABSENT, COMPRESSED, STORED, REPLACED, UNSOUND = range(5)
UNCHECKED = (CHECK_NONE, 0)
NOT_PACKED = np.zeros(0, np.int64)
PAGE_BYTES = 4096  # direct writes begin and end at one


Encoded = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint32]]


def room_for(count: int) -> Encoded:
    """Returns arrays for the results of ``encode_chunks`` for n chunks."""
    return np.zeros(count, np.int64), np.zeros(count, np.uint8), np.zeros(count, np.uint32)


@njit(inline="always")
def _compress(
    out: Any, address: int, capacity: int, codec: Any, contexts: Any, scratch: int, source: Any
) -> int:
    kind, level = codec[0], codec[3]
    if level == LEVEL_STORED:
        return 0
    if kind == KIND_BLOSC:
        return compress_blosc(out, address, capacity, codec, contexts, scratch, source)
    if kind == KIND_ZSTD:
        return compress_zstd(address, capacity, level, contexts, scratch, source)
    if kind == KIND_GZIP:
        return compress_gzip(out, address, capacity, level, contexts, scratch, source)
    return 0


@njit(nogil=True, cache=CACHE)
def _store(out: Any, address: int, codec: Any, source: Any) -> int:
    kind = codec[0]
    if kind == KIND_BLOSC:
        return store_blosc(out, address, codec, source)
    if kind == KIND_ZSTD:
        return store_zstd(out, address, source)
    if kind == KIND_GZIP:
        return store_gzip(out, address, source)
    return store_plain(address, source)


@njit(nogil=True, cache=CACHE)
def encode_chunks(
    frames: Any,
    plane: Any,
    cut: Any,
    codec: Any,
    slots: Any,
    capacity: int,
    files: Any,
    tools: Any,
    check: Any,
    encoded: Any,
) -> None:
    """Encodes chunk i of ``plane`` into the memory at ``slots[i]``, for every i.

    frames      int64[P]    address of each frame of the slab, storage order; 0 where no frame came
    plane       int64[n,4]  top row, left byte, rows, width in bytes of each chunk inside the frame
                            (``gather.PLANE_*``)
    cut         how chunks are cut from frames: (bytes of a frame's row; rows of a chunk; bytes of a chunk's
                row; uint8 of as many, the fill outside of frames; whether chunks that are all fill are
                encoded as well)
    codec       int64[10]   ``CodecParameters.as_array()``
    slots       int64[n]    address of each slot, each with room for ``capacity`` bytes
    files       int64[n]    packed: the shard file of each chunk, those of one file together. The encoded
                            chunks follow each other without a gap from ``slots[0]`` on, those of each file
                            from a page on, and ``slots`` is set to their addresses. ``NOT_PACKED``: each in
                            its own slot
    tools       of the calling thread: (int64[CONTEXTS], its compressor states; uint8, the codec's
                scratch_bytes)
    check       which chunks are decoded again: (``encode_check.CHECK_*``; number of chunk 0 in its image)
    encoded     out, ``room_for(n)``: (int64[n], encoded bytes, 0 for a chunk that is all fill and left out;
                uint8[n], the form of each; uint32[n], crc32c of the encoded bytes without an
                inner checksum, so equal to that, 0 for a chunk that is left out)

    Plain tuples: named ones would cost a microsecond each at every call.
    """
    frame_row_bytes, chunk_rows, row_bytes, fill_row, keep_empty = cut
    (contexts, scratch), (nbytes, forms, crcs) = tools, encoded
    (check_mode, first_number), checksum, chunk_bytes = check, codec[6], codec[7]
    room = min(capacity - (CHECKSUM_BYTES if checksum else 0), codec[9])
    fill, work = address_of(fill_row), address_of(scratch)
    packed, end = files.size > 0, slots[0] if slots.size else 0
    for i in range(slots.size):
        if packed:
            if i > 0 and files[i] != files[i - 1]:
                end = (end + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
            slots[i] = end
        if not keep_empty and is_all_fill(frames, frame_row_bytes, plane[i], fill):
            nbytes[i], forms[i], crcs[i] = 0, ABSENT, 0
            continue
        source = (frames, frame_row_bytes, plane[i], chunk_rows, row_bytes, fill, chunk_bytes)
        address = slots[i]
        out = bytes_at(address, capacity)
        written, form = 0, COMPRESSED
        if NATIVE_AVAILABLE:
            written = _compress(out, address, room, codec, contexts, work, source)
        if written == 0:
            written, form = _store(out, address, codec, source), STORED
        due = NATIVE_AVAILABLE and is_due(check_mode, first_number + i)
        if due and not decodes_to(address, written, codec, contexts, work, source):
            written = _store(out, address, codec, source)
            sound = decodes_to(address, written, codec, contexts, work, source)
            form = REPLACED if sound else UNSOUND
        crc = np.int64(crc32c_at(address, written))  # uint64 here would become float64 below
        if checksum:
            put_u32(out, written, crc)
            written += CHECKSUM_BYTES
        nbytes[i] = written
        forms[i] = form
        crcs[i] = crc
        end = address + written
