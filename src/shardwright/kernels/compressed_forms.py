"""The compressed forms of one inner chunk. Each function returns the encoded size, or 0 when the chunk did
not shrink or the compressor failed; the caller then writes the stored form over it. No function writes past
``capacity``.

    Blosc 1 chunk:  16-byte header | u32 start of each block | for each block its streams: u32 size, bytes
                    (c-blosc README_CHUNK_FORMAT)

A stream that does not shrink is stored with its size equal to its own length. Shuffled LZ4 blocks are split
into one stream per byte plane (flag 0x10 not set): the low bytes of a camera are noise, its high bytes mostly
runs. Samples of some blocks tell which planes are stored, which are written as runs, and which LZ4 searches.
Other blocks are one stream: zstd's entropy coder gains from noise too, and long streams are smaller.

Some functions with one caller are inlined (``inline="always"``): what a compiled function calls is compiled
once more with it, and with each of its callers. Which ones: as the encoding compiles fastest.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from shardwright.codecs import native_library
from shardwright.codecs.parameters import (
    BLOSC_HEADER_BYTES,
    BLOSC_LZ4,
    BLOSC_LZ4HC,
    BLOSC_ZSTD,
    FILTER_BITSHUFFLE,
    FILTER_NONE,
    FILTER_SHUFFLE,
    GZIP_HEADER_BYTES,
    GZIP_TRAILER_BYTES,
)

from .cache import njit
from .gather import gather_range, gather_shuffled_16
from .native_calls import (
    CACHE,
    bitshuffle,
    lz4_compress_fast,
    lz4_compress_hc,
    memcpy,
    put_u32,
    shuffle,
    zlib_compress,
    zlib_crc32,
    zstd_compress,
    zstd_is_error,
)
from .runs import WORK_WORDS, compress_runs, has_constant_part
from .stored_forms import BLOSC_DO_NOT_SPLIT, put_blosc_header, put_gzip_header

SAMPLE_BYTES = 4096
SAMPLED_BLOCKS = 8  # the first of so many blocks is sampled
SEARCH, RUNS, STORE = range(3)  # how a byte plane is written; in ``plans``, PLAN_BITS for each plane
PLAN_BITS = 2
BLOSC_MIN_SPLIT_BYTES = 128  # c-blosc does not split blocks with shorter planes; decoders rely on it

# Indices in the int64 ``contexts`` array of a worker: addresses of compressor states that live as long as the
# worker.
CONTEXT_LZ4, CONTEXT_LZ4HC, CONTEXT_ZSTD, CONTEXT_LENGTH, CONTEXT_RUNS, CONTEXT_STREAM = range(6)
CONTEXTS = CONTEXT_STREAM + 13  # the last is no address, but the zng_stream itself by which a check inflates


class CompressorContexts:
    """The compressor states of one worker: made once, used by every call. Owns the native states whose
    addresses are in ``addresses`` (int64[CONTEXTS]). Belongs to one thread; ``close`` frees the zstd
    context."""

    def __init__(self) -> None:
        self.addresses = np.zeros(CONTEXTS, np.int64)
        self._states = [np.zeros(WORK_WORDS, np.int64)]
        self.addresses[CONTEXT_RUNS] = self._states[0].ctypes.data
        if not native_library.available():
            return
        library = native_library.library()
        for index, size_of in (
            (CONTEXT_LZ4, library.LZ4_sizeofState),
            (CONTEXT_LZ4HC, library.LZ4_sizeofStateHC),
        ):
            state = np.zeros(size_of() // 8 + 1, np.int64)
            self._states.append(state)
            self.addresses[index] = state.ctypes.data
        library.ZSTD_createCCtx.restype = ctypes.c_void_p
        self.addresses[CONTEXT_ZSTD] = library.ZSTD_createCCtx() or 0

    def close(self) -> None:
        context = int(self.addresses[CONTEXT_ZSTD])
        if context:
            native_library.library().ZSTD_freeCCtx(ctypes.c_void_p(context))
            self.addresses[CONTEXT_ZSTD] = 0


@njit(nogil=True, cache=CACHE)
def compress_block(
    compressor: int, level: int, contexts: Any, source: int, count: int, to: int, capacity: int
) -> int:
    """Compresses one block; returns its size, 0 when it did not fit into ``capacity``."""
    if capacity <= 0:
        return 0
    if compressor == BLOSC_LZ4:
        return max(0, int(lz4_compress_fast(contexts[CONTEXT_LZ4], source, to, count, capacity, level)))
    if compressor == BLOSC_LZ4HC:
        return max(0, int(lz4_compress_hc(contexts[CONTEXT_LZ4HC], source, to, count, capacity, level)))
    if compressor == BLOSC_ZSTD:
        written = zstd_compress(contexts[CONTEXT_ZSTD], to, capacity, source, count, level)
        return 0 if zstd_is_error(written) else int(written)
    return compress_zlib(contexts, source, count, to, capacity, level)


@njit(nogil=True, cache=CACHE)
def compress_zlib(contexts: Any, source: int, count: int, to: int, capacity: int, level: int) -> int:
    contexts[CONTEXT_LENGTH] = capacity  # in: room; out: written. Only this worker has the array.
    status = zlib_compress(to, contexts.ctypes.data + 8 * CONTEXT_LENGTH, source, count, level)
    return int(contexts[CONTEXT_LENGTH]) if status == 0 else 0


@njit(inline="always")
def filter_block(kind: int, typesize: int, count: int, source: int, to: int) -> int:
    """Filters a block; returns the address of the result: ``to``, or ``source`` when there is no filter."""
    if kind == FILTER_SHUFFLE:
        shuffle(typesize, count, source, to)
        return to
    if kind == FILTER_BITSHUFFLE:
        # Blosc 1 does not filter a block whose number of elements is no multiple of 8.
        if (count // typesize) % 8 == 0:
            bitshuffle(typesize, count, source, to)
        else:
            memcpy(to, source, count)
        return to
    return source


@njit(inline="always")
def gather_filtered(codec: Any, scratch: int, source: Any, start: int, count: int) -> int:
    """Gathers and filters bytes [start, start + count) of the chunk; returns the address of the result within
    ``scratch``."""
    kind, typesize = codec[4], codec[5]
    if kind == FILTER_SHUFFLE and typesize == 2:
        gather_shuffled_16(source, start, start + count, scratch)
        return scratch
    gather_range(source, start, start + count, scratch)
    return int(filter_block(kind, typesize, count, scratch, scratch + codec[8]))


@njit(inline="always")
def plan_of(level: int, contexts: Any, plane: int, count: int, to: int, capacity: int) -> int:
    """Returns how a byte plane is best written, by two samples: stored, if LZ4 finds nothing in either (the
    low bytes of camera noise); as runs, if these take about as few bytes as LZ4's search finds.

    ``to`` has room for ``capacity`` bytes that may be overwritten. Small planes are not sampled: a search of
    them costs no more.
    """
    if count < 4 * SAMPLE_BYTES or capacity < 2 * SAMPLE_BYTES:
        return SEARCH
    sample = int(np.int64(SAMPLE_BYTES))  # a literal would be compiled once more
    store, searched, runs = True, 0, 0
    for start in (0, count // 2):
        written = lz4_compress_fast(contexts[CONTEXT_LZ4], plane + start, to, sample, 2 * sample, level)
        store = store and written >= sample - sample // 64
        searched += written
        runs += compress_runs(plane + start, sample, to, 2 * sample, contexts[CONTEXT_RUNS])
    if store:
        return STORE
    return RUNS if runs <= searched + searched // 8 else SEARCH


@njit(inline="always")
def compress_stream(
    plan: int, codec: Any, contexts: Any, source: int, count: int, to: int, capacity: int
) -> int:
    """Compresses one stream; returns its size, 0 when it is to be stored."""
    if plan == STORE and not has_constant_part(source, count):
        return 0
    written = 0
    if plan == RUNS and capacity > 0:
        written = compress_runs(source, count, to, capacity, contexts[CONTEXT_RUNS])
    return written or int(compress_block(codec[1], codec[3], contexts, source, count, to, capacity))


@njit(inline="always")
def put_stream(
    out: Any,
    address: int,
    position: int,
    limit: int,
    codec: Any,
    contexts: Any,
    source: int,
    count: int,
    plan: int,
) -> int:
    """Writes one stream (u32 size, bytes) at ``position``; returns the position after it, or 0 when the chunk
    has become larger than its stored form."""
    if position + 4 >= limit:
        return 0
    to, room = address + position + 4, limit - position - 4
    written = compress_stream(plan, codec, contexts, source, count, to, min(count - 1, room))
    if written == 0:
        if count >= room:
            return 0
        memcpy(to, source, count)
        written = count
    put_u32(out, position, written)
    return int(position + 4 + written)


# kernels alone call it
@njit(nogil=True, cache=CACHE, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def compress_blosc(
    out: Any, address: int, capacity: int, codec: Any, contexts: Any, scratch: int, source: Any
) -> int:
    chunk_bytes = source[6]
    compressor, format_number, kind, typesize, block_bytes = codec[1], codec[2], codec[4], codec[5], codec[8]
    blocks = (chunk_bytes + block_bytes - 1) // block_bytes
    # at most the stored form's size: beyond it compression gains nothing
    limit = min(chunk_bytes + BLOSC_HEADER_BYTES, capacity)
    split = (
        compressor == BLOSC_LZ4
        and kind == FILTER_SHUFFLE
        and block_bytes // typesize >= BLOSC_MIN_SPLIT_BYTES
    )
    position = BLOSC_HEADER_BYTES + 4 * blocks
    plans = 0
    for block in range(blocks):
        start = block * block_bytes
        count = min(block_bytes, chunk_bytes - start)
        filtered = gather_filtered(codec, scratch, source, start, count)
        put_u32(out, BLOSC_HEADER_BYTES + 4 * block, position)
        streams = typesize if split and count == block_bytes else 1  # a shorter last block is never split
        stream = count // streams
        for number in range(streams):
            plane, shift = filtered + number * stream, PLAN_BITS * number
            if streams > 1 and block % SAMPLED_BLOCKS == 0:
                plan = plan_of(codec[3], contexts, plane, stream, address + position, limit - position)
                plans = plans & ~(3 << shift) | plan << shift
            plan = plans >> shift & 3 if streams > 1 else SEARCH
            position = put_stream(out, address, position, limit, codec, contexts, plane, stream, plan)
            if position == 0:
                return 0
    flags = (0 if split else BLOSC_DO_NOT_SPLIT) | (format_number << 5)
    if kind != FILTER_NONE:
        flags |= 0x01 if kind == FILTER_SHUFFLE else 0x04
    put_blosc_header(out, flags, typesize, chunk_bytes, block_bytes, position)
    return int(position)


@njit(inline="always")
def compress_zstd(address: int, capacity: int, level: int, contexts: Any, scratch: int, source: Any) -> int:
    chunk_bytes = source[6]
    gather_range(source, int(np.int64(0)), chunk_bytes, scratch)
    written = zstd_compress(contexts[CONTEXT_ZSTD], address, capacity, scratch, chunk_bytes, level)
    return 0 if zstd_is_error(written) else int(written)


@njit(inline="always")
def compress_gzip(
    out: Any, address: int, capacity: int, level: int, contexts: Any, scratch: int, source: Any
) -> int:
    """Writes a zlib stream (2-byte header, deflate, 4-byte Adler) so that its deflate part starts right
    behind the gzip header, then overwrites header and Adler with gzip's header and trailer."""
    chunk_bytes = source[6]
    gather_range(source, int(np.int64(0)), chunk_bytes, scratch)
    zlib_start = GZIP_HEADER_BYTES - 2
    room = capacity - zlib_start - (GZIP_TRAILER_BYTES - 4)
    if room <= 0:  # to zlib it would be a large number
        return 0
    written = compress_zlib(contexts, scratch, chunk_bytes, address + zlib_start, room, level)
    if written == 0:
        return 0
    put_gzip_header(out)
    trailer = zlib_start + written - 4
    put_u32(out, trailer, int(zlib_crc32(0, scratch, chunk_bytes)))
    put_u32(out, trailer + 4, chunk_bytes)
    return int(trailer + GZIP_TRAILER_BYTES)
