"""The C functions that kernels call, declared once for numba, and the few raw-memory reads and writes that
they need.

The functions are resolved by name from libblosc2 (loaded here, process-wide) and from libc. They are declared
as ``ExternalFunction`` rather than ctypes objects, because numba can then cache the kernels on disk. All
pointers are passed as int64: uint64 + int64 would become float64 inside a kernel.

If the library or a symbol is missing, replacements report "did not compress": every chunk then gets its
codec's stored form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import carray, types
from numba.extending import intrinsic

from shardwright.codecs import native_library

from . import CACHE_FOLDER
from .cache import njit

NATIVE_AVAILABLE = native_library.available()
CACHE = CACHE_FOLDER is not None

_I32, _I64, _U32 = types.int32, types.int64, types.uint32


def _declare(name: str, result: Any, *arguments: Any) -> Any:
    return types.ExternalFunction(name, result(*arguments))


memcpy = _declare("memcpy", _I64, _I64, _I64, _I64)  # to, from, bytes
memcmp = _declare("memcmp", _I32, _I64, _I64, _I64)
memset = _declare("memset", _I64, _I64, _I32, _I64)  # to, byte, bytes
pwrite = _declare("pwrite", _I64, _I32, _I64, _I64, _I64)  # descriptor, from, bytes, offset
pread = _declare("pread", _I64, _I32, _I64, _I64, _I64)  # descriptor, to, bytes, offset
# descriptor, offset, bytes, flags
sync_file_range = _declare("sync_file_range", _I32, _I32, _I64, _I64, _U32)
posix_fadvise = _declare("posix_fadvise", _I32, _I32, _I64, _I64, _I32)  # descriptor, offset, bytes, advice
errno_location = _declare("__errno_location", _I64)


@intrinsic
def as_pointer(typingctx: Any, address: Any) -> Any:
    """Converts an int64 address to a pointer for ``carray``."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Prefetches the cache line at an address; never faults."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        function = builder.module.globals.get("llvm.prefetch.p0i8") or ir.Function(
            builder.module, kind, "llvm.prefetch.p0i8"
        )
        # read, keep close, data
        builder.call(function, [builder.inttoptr(arguments[0], pointer), i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def fetch_add(typingctx: Any, address: Any, amount: Any) -> Any:
    """Adds to the int64 at an address, atomically among threads; returns its value before."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@njit(inline="always")
def address_of(array: Any) -> int:
    """Returns the address of an array as int64: as numba gives it, unsigned, every kernel that takes an
    address would be compiled once more."""
    return int(np.int64(array.ctypes.data))


@njit(inline="always")
def bytes_at(address: int, count: int) -> Any:
    """Returns a uint8[count] view of memory; with bounds checking on, writes past ``count`` raise."""
    return carray(as_pointer(address), (count,), np.uint8)


@njit(inline="always")
def put_u32(out: Any, offset: int, value: Any) -> None:
    """Writes the low 32 bits of ``value``, little-endian."""
    for i in range(4):
        out[offset + i] = (value >> (8 * i)) & 0xFF


@njit(inline="always")
def put_u64(out: Any, offset: int, value: Any) -> None:
    """Writes a 64-bit ``value``, little-endian."""
    for i in range(8):
        out[offset + i] = (value >> (8 * i)) & 0xFF


if NATIVE_AVAILABLE:
    binding.load_library_permanently(str(native_library.library_path()))
    shuffle = _declare("blosc2_shuffle", _I32, _I32, _I32, _I64, _I64)  # typesize, bytes, from, to
    bitshuffle = _declare("blosc2_bitshuffle", _I32, _I32, _I32, _I64, _I64)
    # state, from, to, bytes, capacity, acceleration or level
    lz4_compress_fast = _declare("LZ4_compress_fast_extState", _I32, _I64, _I64, _I64, _I32, _I32, _I32)
    lz4_compress_hc = _declare("LZ4_compress_HC_extStateHC", _I32, _I64, _I64, _I64, _I32, _I32, _I32)
    # context, to, capacity, from, bytes, level
    zstd_compress = _declare("ZSTD_compressCCtx", _I64, _I64, _I64, _I64, _I64, _I64, _I32)
    zstd_decompress = _declare("ZSTD_decompress", _I64, _I64, _I64, _I64, _I64)  # to, capacity, from, bytes
    # from, bytes, first element, elements, to, capacity
    blosc_getitem = _declare("blosc2_getitem", _I32, _I64, _I32, _I32, _I32, _I64, _I32)
    zstd_is_error = _declare("ZSTD_isError", _U32, _I64)
    # to, address of capacity and result, from, bytes, level
    zlib_compress = _declare("zng_compress2", _I32, _I64, _I64, _I64, _I64, _I32)
    zlib_crc32 = _declare("zng_crc32", _U32, _U32, _I64, _U32)
    # address of a zng_stream, bits of the window; of the stream, flush; of the stream
    zlib_inflate_init = _declare("zng_inflateInit2", _I32, _I64, _I32)
    zlib_inflate = _declare("zng_inflate", _I32, _I64, _I32)
    zlib_inflate_end = _declare("zng_inflateEnd", _I32, _I64)
else:

    @njit
    def shuffle(typesize: int, count: int, source: int, to: int) -> int:
        return int(memcpy(to, source, count))

    bitshuffle = shuffle

    @njit
    def lz4_compress_fast(
        state: int, source: int, to: int, count: int, capacity: int, acceleration: int
    ) -> int:
        return 0

    lz4_compress_hc = lz4_compress_fast

    @njit
    def zstd_compress(context: int, to: int, capacity: int, source: int, count: int, level: int) -> int:
        return -1

    @njit
    def zstd_is_error(code: int) -> int:
        return 1

    @njit
    def zstd_decompress(to: int, capacity: int, source: int, count: int) -> int:
        return -1

    @njit
    def blosc_getitem(source: int, nbytes: int, first: int, count: int, to: int, capacity: int) -> int:
        return -1

    @njit
    def zlib_compress(to: int, length_address: int, source: int, count: int, level: int) -> int:
        return -1

    @njit
    def zlib_inflate(stream: int, number: int) -> int:
        return -1

    @njit
    def zlib_inflate_end(stream: int) -> int:
        return -1

    zlib_inflate_init = zlib_inflate

    @njit
    def zlib_crc32(crc: int, source: int, count: int) -> Any:
        """Returns the CRC-32 of RFC 1952, bit by bit: slow, and used only for gzip's stored form without the
        library."""
        data = bytes_at(source, count)
        value = np.uint32(crc) ^ np.uint32(0xFFFFFFFF)
        for i in range(count):
            value ^= np.uint32(data[i])
            for _ in range(8):
                value = np.uint32(value >> np.uint32(1)) ^ (
                    np.uint32(0xEDB88320) if value & np.uint32(1) else np.uint32(0)
                )
        return np.uint32(value ^ np.uint32(0xFFFFFFFF))  # uint64 here would make the caller's crc a float64
