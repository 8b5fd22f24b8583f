"""The stored forms: each codec's own framing of uncompressed bytes, so that every reader can open a chunk
that does not shrink or whose compressor failed. Each function writes the framing around chunk bytes that
``gather_range`` puts in place, and returns the encoded size.

Sources: c-blosc README_CHUNK_FORMAT (memcpyed flag), RFC 8878 3.1.1 (zstd raw blocks), RFC 1952 and RFC 1951
3.2.4 (gzip, stored blocks).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.codecs.parameters import (
    BLOSC_HEADER_BYTES,
    DEFLATE_STORED_BLOCK_BYTES,
    GZIP_HEADER_BYTES,
    ZSTD_RAW_BLOCK_BYTES,
)

from .cache import njit
from .gather import gather_range
from .native_calls import CACHE, put_u32, zlib_crc32

BLOSC_FORMAT_VERSION = 2
BLOSC_MEMCPYED, BLOSC_DO_NOT_SPLIT = 0x02, 0x10


@njit(nogil=True, cache=CACHE)
def put_blosc_header(
    out: Any, flags: int, typesize: int, chunk_bytes: int, block_bytes: int, encoded_bytes: int
) -> None:
    out[0] = BLOSC_FORMAT_VERSION
    out[1] = 1  # version of the compressor's format
    out[2] = flags
    out[3] = typesize
    put_u32(out, 4, chunk_bytes)
    put_u32(out, 8, block_bytes)
    put_u32(out, 12, encoded_bytes)


@njit(inline="always")
def store_blosc(out: Any, address: int, codec: Any, source: Any) -> int:
    format_number, typesize, block_bytes, chunk_bytes = codec[2], codec[5], codec[8], source[6]
    put_blosc_header(
        out,
        BLOSC_MEMCPYED | (format_number << 5),
        typesize,
        chunk_bytes,
        block_bytes,
        chunk_bytes + BLOSC_HEADER_BYTES,
    )
    gather_range(source, int(np.int64(0)), chunk_bytes, address + BLOSC_HEADER_BYTES)
    return int(chunk_bytes + BLOSC_HEADER_BYTES)


@njit(inline="always")
def store_zstd(out: Any, address: int, source: Any) -> int:
    chunk_bytes = source[6]
    put_u32(out, 0, 0xFD2FB528)
    out[4] = 0xA0  # single segment, content size in 4 bytes
    put_u32(out, 5, chunk_bytes)
    position = 9
    for start in range(0, chunk_bytes, ZSTD_RAW_BLOCK_BYTES):
        stop = min(start + ZSTD_RAW_BLOCK_BYTES, chunk_bytes)
        header = ((stop - start) << 3) | (1 if stop == chunk_bytes else 0)  # block type 0: raw
        for i in range(3):
            out[position + i] = (header >> (8 * i)) & 0xFF
        gather_range(source, start, stop, address + position + 3)
        position += 3 + stop - start
    return position


@njit(nogil=True, cache=CACHE)
def put_gzip_header(out: Any) -> None:
    out[0], out[1], out[2] = 0x1F, 0x8B, 8
    for i in range(3, 9):
        out[i] = 0  # no flags, no time: equal frames give equal bytes
    out[9] = 255  # operating system: unknown


@njit(inline="always")
def store_gzip(out: Any, address: int, source: Any) -> int:
    chunk_bytes = source[6]
    put_gzip_header(out)
    position = GZIP_HEADER_BYTES
    crc = 0
    for start in range(0, chunk_bytes, DEFLATE_STORED_BLOCK_BYTES):
        stop = min(start + DEFLATE_STORED_BLOCK_BYTES, chunk_bytes)
        length = stop - start
        out[position] = 1 if stop == chunk_bytes else 0
        put_u32(out, position + 1, length | ((length ^ 0xFFFF) << 16))
        gather_range(source, start, stop, address + position + 5)
        crc = zlib_crc32(crc, address + position + 5, length)
        position += 5 + length
    put_u32(out, position, crc)
    put_u32(out, position + 4, chunk_bytes)
    return position + 8


@njit(inline="always")
def store_plain(address: int, source: Any) -> int:
    chunk_bytes = source[6]
    gather_range(source, int(np.int64(0)), chunk_bytes, address)
    return int(chunk_bytes)
