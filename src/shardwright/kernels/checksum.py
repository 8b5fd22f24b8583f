"""The crc32c (Castagnoli, RFC 3720 B.4) without the GIL: for the crc32c inner codec and for all checks that
bytes are as written.

x86 and Arm have an instruction for 8 bytes with a latency of 3 cycles, so three independent lanes run side by
side and are joined by a table that shifts a crc over a lane's length (a linear map over GF(2), one 256-entry
table for each byte of the crc). Elsewhere: slicing by 8.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from .cache import njit
from .native_calls import CACHE, as_pointer, prefetch

POLYNOMIAL = 0x82F63B78  # reflected
LANE_BYTES = 1024
LINE_WORDS = 8  # of a cache line

_INSTRUCTIONS = {
    "x86_64": "llvm.x86.sse42.crc32.64.64",
    "AMD64": "llvm.x86.sse42.crc32.64.64",
    "aarch64": "llvm.aarch64.crc32cx",
}
_INSTRUCTION = _INSTRUCTIONS.get(platform.machine())


def byte_table() -> Any:
    """Returns uint32[256]: the crc after one more byte, by that byte; 8 bits of the crc are shifted out."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


def _slicing_tables() -> Any:
    tables = np.zeros((8, 256), np.uint32)
    tables[0] = byte_table()
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


def _shift_tables(length: int) -> Any:
    """Returns uint32[4, 256]: the crc after ``length`` zero bytes, by each byte of the crc before."""
    basis = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
    table = byte_table()
    for _ in range(length):
        basis = (basis >> 8) ^ table[basis & 0xFF]
    shifted = np.zeros((4, 256), np.uint32)
    for byte in range(4):
        for value in range(256):
            for bit in range(8):
                if value >> bit & 1:
                    shifted[byte, value] ^= basis[8 * byte + bit]
    return shifted


_SLICES = _slicing_tables()
_SHIFT_ONE_LANE = _shift_tables(LANE_BYTES)


@intrinsic
def _crc_of_word(typingctx: Any, crc: Any, word: Any) -> Any:
    """One hardware step: crc (uint64 holding 32 bits) and 8 bytes -> crc."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        narrow = platform.machine() == "aarch64"  # Arm's takes and returns 32 bits, x86's 64
        kind = ir.FunctionType(i32 if narrow else i64, [i32 if narrow else i64, i64])
        module = builder.module
        function = module.globals.get(_INSTRUCTION) or ir.Function(module, kind, _INSTRUCTION)
        first = builder.trunc(arguments[0], i32) if narrow else arguments[0]
        result = builder.call(function, [first, arguments[1]])
        return builder.zext(result, i64) if narrow else result

    return types.uint64(types.uint64, types.uint64), codegen


@njit(inline="always")
def _shift_lane(crc: Any, shift: Any) -> Any:
    return (
        shift[0, crc & 0xFF]
        ^ shift[1, (crc >> 8) & 0xFF]
        ^ shift[2, (crc >> 16) & 0xFF]
        ^ shift[3, (crc >> 24) & 0xFF]
    )


@njit(nogil=True, cache=CACHE)
def _update_hardware(crc: Any, address: int, count: int, slices: Any, shift: Any) -> Any:
    lane = LANE_BYTES // 8
    words = carray(as_pointer(address), (count // 8,), np.uint64)
    done = 0
    while words.size - done >= 3 * lane:
        a, b, c = np.uint64(crc), np.uint64(0), np.uint64(0)
        for line in range(done, done + lane, LINE_WORDS):
            # The next round's lines: just encoded bytes are mostly in memory again, not in a near cache.
            # 18.9 GB/s with it, 14.4 without.
            for k in range(3, 6):
                prefetch(address + 8 * (line + k * lane))
            for i in range(line, line + LINE_WORDS):
                a = _crc_of_word(a, words[i])
                b = _crc_of_word(b, words[i + lane])
                c = _crc_of_word(c, words[i + 2 * lane])
        joined = _shift_lane(np.uint32(a), shift) ^ np.uint32(b)
        crc = _shift_lane(joined, shift) ^ np.uint32(c)
        done += 3 * lane
    wide = np.uint64(crc)
    for i in range(done, words.size):
        wide = _crc_of_word(wide, words[i])
    return np.uint32(wide)


@njit(nogil=True, cache=CACHE)
def _update_tables(crc: Any, address: int, count: int, slices: Any, shift: Any) -> Any:
    words = carray(as_pointer(address), (count // 8,), np.uint64)
    for i in range(words.size):
        word = words[i] ^ np.uint64(crc)
        crc = np.uint32(0)
        for k in range(8):
            crc ^= slices[7 - k, (word >> np.uint64(8 * k)) & np.uint64(0xFF)]
    return crc


_update_words = _update_hardware if _INSTRUCTION else _update_tables


@njit(nogil=True, cache=CACHE)
def crc32c_from(seed: int, address: int, count: int) -> Any:
    """Returns the crc32c, as uint32, continued from ``seed``: of the bytes whose crc32c is ``seed``, then
    ``count`` bytes in memory."""
    slices, shift = _SLICES, _SHIFT_ONE_LANE
    crc = _update_words(np.uint32(np.uint32(seed) ^ np.uint32(0xFFFFFFFF)), address, count, slices, shift)
    tail = carray(as_pointer(address), (count,), np.uint8)
    for i in range(count - count % 8, count):
        crc = (crc >> np.uint32(8)) ^ slices[0, (crc ^ tail[i]) & np.uint32(0xFF)]
    return np.uint32(crc ^ np.uint32(0xFFFFFFFF))


@njit(nogil=True, cache=CACHE)
def crc32c_at(address: int, count: int) -> Any:
    """Returns the crc32c of ``count`` bytes in memory, as uint32."""
    return crc32c_from(int(np.int64(0)), address, count)  # a literal would be compiled once more
