"""The native codec library: libblosc2, which the ``blosc2`` wheel ships, and the functions in it that the
kernels call by name.

The functions are exported but not part of blosc2's documented interface, so every symbol is looked up at
start. If one is missing, ``available`` is False and the kernels store chunks uncompressed inside the codec's
own framing: only compression is lost.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import metadata
from pathlib import Path

from shardwright.model.errors import CodecError

SYMBOLS = (
    "blosc2_shuffle",
    "blosc2_bitshuffle",
    "LZ4_sizeofState",
    "LZ4_compress_fast_extState",
    "LZ4_sizeofStateHC",
    "LZ4_compress_HC_extStateHC",
    "ZSTD_createCCtx",
    "ZSTD_freeCCtx",
    "ZSTD_compressCCtx",
    "ZSTD_decompress",
    "ZSTD_isError",
    "ZSTD_getCParams",
    "ZSTD_estimateCCtxSize_usingCParams",
    "blosc2_getitem",
    "zng_compress2",
    "zng_crc32",
    "zng_inflateInit2",
    "zng_inflate",
    "zng_inflateEnd",
)


class _ZstdSettings(ctypes.Structure):
    """ZSTD_compressionParameters: seven numbers, of the size of the window and of each table among them."""

    _fields_ = tuple((f"field_{i}", ctypes.c_uint) for i in range(7))


def library_path() -> Path:
    """Returns the path of the shared library in the installed ``blosc2`` package. Raises ``CodecError`` when
    it is missing."""
    files = metadata.files("blosc2") or []
    for suffix in ("libblosc2.so", "libblosc2.dylib", "libblosc2.dll"):
        for file in files:
            if file.name == suffix:
                return Path(str(file.locate()))
    raise CodecError(
        "the blosc2 package carries no shared library", hint="Install the blosc2 wheel from the package index"
    )


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CodecError(f"cannot load the codec library: {error}", got=path) from error


@cache
def library() -> ctypes.CDLL:
    """Returns the loaded library, its symbols checked. Raises ``CodecError`` naming what is missing."""
    loaded = _load()
    if missing := [name for name in SYMBOLS if not hasattr(loaded, name)]:
        raise CodecError(
            "the codec library lacks functions",
            expected=", ".join(SYMBOLS),
            got=f"none of {', '.join(missing)} in blosc2 {metadata.version('blosc2')}",
            hint="Chunks are stored uncompressed until a blosc2 version in the supported range is installed",
        )
    return loaded


@cache
def available() -> bool:
    """Returns whether every native function was found."""
    try:
        library()
    except CodecError:
        return False
    return True


def zstd_context_bytes(level: int, source_bytes: int) -> int:
    """Returns the most memory that a context holds once it has compressed ``source_bytes`` in one call; 0
    without the library, where nothing is compressed. zstd itself says it (zstd.h, "Memory management")."""
    if not available():
        return 0
    settings_of, bytes_of = library().ZSTD_getCParams, library().ZSTD_estimateCCtxSize_usingCParams
    settings_of.argtypes = (ctypes.c_int, ctypes.c_ulonglong, ctypes.c_size_t)
    settings_of.restype = _ZstdSettings
    bytes_of.argtypes, bytes_of.restype = (_ZstdSettings,), ctypes.c_size_t
    return int(bytes_of(settings_of(level, source_bytes, 0)))
