"""Decodes one inner chunk, strictly, and detects from its first bytes how it was encoded.

The codec list of zarr.json is bytes -> (blosc | zstd | gzip | nothing) -> (crc32c | nothing), with a
transpose before them or not (``chain``; other lists are zarr-python's, ``zarr_chunks``). A chunk must
decode to exactly its known size: lengths in the data are compared with that size and never used to allocate.
Every failure is a ``ShardFormatError`` that names the check. Decompression runs without the GIL.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ShardFormatError
from shardwright.shard.index import CHECKSUM_BYTES

from . import native_library
from .parameters import BLOSC_HEADER_BYTES

if TYPE_CHECKING:
    from shardwright.array.codec_chain import CodecChain

HEAD_BYTES = 64  # the first bytes of a chunk that ``describe_chunk`` needs

_BLOSC_HEADER = struct.Struct("<BBBBIII")
_BLOSC_FORMAT_VERSION = 2
_BLOSC_SHUFFLE, _BLOSC_MEMCPYED, _BLOSC_BITSHUFFLE, _BLOSC_RESERVED = 0x01, 0x02, 0x04, 0x08
# by format number; lz4hc writes lz4's format
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "snappy", "zlib", "zstd")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b\x08"

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True)
class ChunkCodecs:
    """The codecs of one inner chunk. ``compressor`` is "blosc", "zstd", "gzip" or None; ``checksum``: a
    crc32c follows it. ``order``: the axes of the array, in the order in which they lie in the bytes; empty
    for that of the array."""

    compressor: str | None
    checksum: bool
    order: tuple[int, ...] = ()

    @classmethod
    def of(cls, chain: CodecChain) -> ChunkCodecs | None:
        """Returns the codecs of a chain; None if it is not one that we write."""
        order: tuple[int, ...] = ()
        rest = list(chain.codecs)
        if rest[0].name == "transpose":
            order = tuple(rest.pop(0).configuration["order"])
        middle = rest.pop(0)
        if middle.name != "bytes" or middle.configuration.get("endian", "little") != "little":
            return None
        compressor = rest.pop(0).name if rest and rest[0].name in ("blosc", "zstd", "gzip") else None
        checksum = bool(rest) and rest[0].name == "crc32c"
        return None if rest[checksum:] else cls(compressor, checksum, order)

    @property
    def name(self) -> str:
        return self.compressor or "none"

    def max_encoded_bytes(self, chunk_bytes: int) -> int:
        """Returns the most memory that one encoded chunk may use: no correct encoder makes a longer one.
        Exact without a compressor."""
        framing = 0 if self.compressor is None else 4096 + chunk_bytes // 8
        return chunk_bytes + framing + (CHECKSUM_BYTES if self.checksum else 0)


@dataclass(frozen=True)
class ChunkForm:
    """The encoding of one chunk. ``stored``: not compressed, in its codec's own framing; ``filter`` is
    Blosc's, else None."""

    compressor: str
    filter: str | None
    stored: bool

    def __str__(self) -> str:
        parts = [self.compressor, self.filter, "stored" if self.stored else None]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class _BloscHeader:
    flags: int
    typesize: int
    chunk_bytes: int
    block_bytes: int
    encoded_bytes: int

    @property
    def compressor(self) -> str:
        return _BLOSC_COMPRESSORS[self.flags >> 5]

    @property
    def filter(self) -> str:
        if self.flags & _BLOSC_BITSHUFFLE:
            return "bitshuffle"
        return "shuffle" if self.flags & _BLOSC_SHUFFLE and self.typesize > 1 else "noshuffle"

    @property
    def stored(self) -> bool:
        return bool(self.flags & _BLOSC_MEMCPYED)


def _check_bytes(what: str, expected: int, got: int) -> None:
    if got != expected:
        raise ShardFormatError(what, expected=f"{expected} bytes", got=got)


def _check_magic(what: str, magic: bytes, data: Bytes, least_bytes: int = 0) -> None:
    begin = bytes(data[: len(magic)])
    if begin != magic or len(data) < least_bytes:
        raise ShardFormatError(what, expected=f"magic {magic.hex()}", got=begin.hex() or "nothing")


def _blosc_header(data: Bytes, encoded_bytes: int, chunk_bytes: int) -> _BloscHeader:
    """Returns the header of a Blosc 1 chunk (c-blosc README_CHUNK_FORMAT); every field is checked."""
    if len(data) < BLOSC_HEADER_BYTES:
        raise ShardFormatError(
            "blosc chunk is shorter than its header",
            expected=f"{BLOSC_HEADER_BYTES} bytes",
            got=encoded_bytes,
        )
    version, _, flags, typesize, nbytes, block_bytes, cbytes = _BLOSC_HEADER.unpack_from(data)
    if version != _BLOSC_FORMAT_VERSION:
        raise ShardFormatError(
            "blosc chunk has another format version",
            expected=f"{_BLOSC_FORMAT_VERSION} (Blosc 1)",
            got=version,
        )
    both = _BLOSC_SHUFFLE | _BLOSC_BITSHUFFLE
    if flags & _BLOSC_RESERVED or flags & both == both or flags >> 5 >= len(_BLOSC_COMPRESSORS):
        raise ShardFormatError("blosc chunk has flags that Blosc 1 does not know", got=f"0x{flags:02x}")
    _check_bytes("blosc chunk decodes to another size", chunk_bytes, nbytes)
    if cbytes != encoded_bytes:
        raise ShardFormatError(
            "blosc chunk names another encoded size",
            expected=f"{encoded_bytes} bytes, as in the index",
            got=cbytes,
        )
    if typesize == 0 or not 0 < block_bytes <= max(nbytes, 1):
        raise ShardFormatError(
            "blosc chunk has an impossible element or block size",
            got=f"element {typesize}, block {block_bytes} bytes",
        )
    if flags & _BLOSC_MEMCPYED and cbytes != nbytes + BLOSC_HEADER_BYTES:
        raise ShardFormatError(
            "stored blosc chunk has the wrong length", expected=nbytes + BLOSC_HEADER_BYTES, got=cbytes
        )
    return _BloscHeader(flags, typesize, nbytes, block_bytes, cbytes)


def _decode_plain(data: memoryview, out: npt.NDArray[np.uint8]) -> None:
    _check_bytes("uncompressed chunk has the wrong length", out.nbytes, len(data))
    out[:] = np.frombuffer(data, np.uint8)


@cache
def _blosc() -> Any:
    """Returns blosc2, which runs without the GIL. Imported by the first chunk that needs it: it takes a tenth
    of a second, which a writer that opens a new store would wait for in vain."""
    import blosc2

    blosc2.set_releasegil(True)
    return blosc2


def _decode_blosc(data: memoryview, out: npt.NDArray[np.uint8]) -> None:
    header = _blosc_header(data, len(data), out.nbytes)
    if header.stored:
        out[:] = np.frombuffer(data, np.uint8)[BLOSC_HEADER_BYTES:]
        return
    blosc = _blosc()
    try:
        blosc.decompress2(data, dst=out, nthreads=1)
    except (RuntimeError, ValueError) as error:
        raise ShardFormatError(
            f"blosc chunk ({header.compressor}, {header.filter}) does not decode"
        ) from error


@cache
def _zstd() -> tuple[Any, Any]:
    library = native_library.library()
    decompress, is_error = library.ZSTD_decompress, library.ZSTD_isError
    decompress.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    decompress.restype = ctypes.c_size_t
    is_error.argtypes, is_error.restype = (ctypes.c_size_t,), ctypes.c_uint
    return decompress, is_error


def unzstd(data: Bytes, out: npt.NDArray[np.uint8]) -> int | None:
    """Decodes zstd frames into ``out``. Returns the bytes there, None if they do not decode, or not into so
    many."""
    decompress, is_error = _zstd()
    source = np.frombuffer(data, np.uint8)  # keeps the memory alive during the call
    written = int(decompress(out.ctypes.data, out.nbytes, source.ctypes.data, source.nbytes))
    return None if is_error(written) else written


def _decode_zstd(data: memoryview, out: npt.NDArray[np.uint8]) -> None:
    _check_magic("not a zstd frame", _ZSTD_MAGIC, data)
    written = unzstd(data, out)
    if written is None:
        raise ShardFormatError(f"zstd frame does not decode into {out.nbytes} bytes")
    _check_bytes("zstd frame decodes to another size", out.nbytes, written)


def _decode_gzip(data: memoryview, out: npt.NDArray[np.uint8]) -> None:
    decoded = gunzip(data, out.nbytes)
    _check_bytes("gzip member decodes to another size", out.nbytes, len(decoded))
    out[:] = np.frombuffer(decoded, np.uint8)


def gunzip(data: memoryview, most_bytes: int) -> bytes:
    """Returns the content of one gzip member. Raises ``ShardFormatError`` when it does not decode, or to more
    than ``most_bytes``."""
    stream = zlib.decompressobj(wbits=31)
    try:
        # at most one byte too many: that detects a longer chunk and bounds the memory
        decoded = stream.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise ShardFormatError(f"gzip member does not decode: {error}") from error
    if len(decoded) > most_bytes:
        raise ShardFormatError(
            "gzip member decodes to another size",
            expected=f"{most_bytes} bytes",
            got=f"more than {most_bytes}",
        )
    if not stream.eof:
        raise ShardFormatError("gzip member is cut short")
    if stream.unused_data:
        raise ShardFormatError("bytes after the gzip member", expected="none", got=len(stream.unused_data))
    return decoded


_DECODERS = {None: _decode_plain, "blosc": _decode_blosc, "zstd": _decode_zstd, "gzip": _decode_gzip}


def decode_chunk_into(data: Bytes, codecs: ChunkCodecs, out: npt.NDArray[np.uint8]) -> None:
    """Decodes one encoded chunk into ``out``: uint8[chunk_bytes], contiguous. Raises ``ShardFormatError``;
    the content of ``out`` is then undefined."""
    view = memoryview(data)
    _DECODERS[codecs.compressor](checked_content(view) if codecs.checksum else view, out)


def checked_content(data: memoryview) -> memoryview:
    """Returns what lies before the crc32c of a chunk. Raises ``ShardFormatError`` when it does not fit."""
    if len(data) < CHECKSUM_BYTES:
        raise ShardFormatError(
            "chunk is shorter than its crc32c", expected=f"{CHECKSUM_BYTES} bytes or more", got=len(data)
        )
    content, stored = data[:-CHECKSUM_BYTES], int.from_bytes(data[-CHECKSUM_BYTES:], "little")
    found = crc32c.crc32c(content)
    if found != stored:
        raise ShardFormatError(
            "crc32c of the chunk does not match", expected=f"{stored:08x}", got=f"{found:08x}"
        )
    return content


def decode_chunk(data: Bytes, codecs: ChunkCodecs, chunk_bytes: int) -> npt.NDArray[np.uint8]:
    """Decodes one encoded chunk; returns uint8[chunk_bytes]. Raises ``ShardFormatError``."""
    out = np.empty(chunk_bytes, np.uint8)
    decode_chunk_into(data, codecs, out)
    return out


def describe_chunk(head: Bytes, encoded_bytes: int, codecs: ChunkCodecs, chunk_bytes: int) -> ChunkForm:
    """Returns how a chunk of ``encoded_bytes`` was encoded, from its first ``HEAD_BYTES`` bytes. Raises
    ``ShardFormatError`` when these are invalid.

    A zstd or gzip chunk counts as stored when its first block is raw and the whole is no shorter than the
    decoded chunk.
    """
    encoded_bytes -= CHECKSUM_BYTES if codecs.checksum else 0
    if codecs.compressor is None:
        return ChunkForm("none", None, stored=True)
    if codecs.compressor == "blosc":
        header = _blosc_header(head, encoded_bytes, chunk_bytes)
        return ChunkForm(
            f"blosc {header.compressor}", None if header.stored else header.filter, header.stored
        )
    first_raw = _zstd_first_block_raw(head) if codecs.compressor == "zstd" else _gzip_first_block_raw(head)
    return ChunkForm(codecs.compressor, None, first_raw and encoded_bytes >= chunk_bytes)


def _zstd_first_block_raw(head: Bytes) -> bool:
    """Parses the frame header of RFC 8878, 3.1.1.1, to find the first block's header."""
    _check_magic("not a zstd frame", _ZSTD_MAGIC, head, least_bytes=5)
    descriptor = head[4]
    single_segment = descriptor >> 5 & 1
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    block = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + size_bytes
    return len(head) > block and head[block] >> 1 & 3 == 0


def _gzip_first_block_raw(head: Bytes) -> bool:
    """Parses the ten fixed bytes of RFC 1952, 2.3. Extra fields follow only if flags are set, as no array
    writer does."""
    _check_magic("not a gzip member", _GZIP_MAGIC, head, least_bytes=11)
    return head[3] == 0 and head[10] >> 1 & 3 == 0
