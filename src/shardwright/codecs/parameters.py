"""The parameters of a codec for the kernels, as numbers; the worst-case size of each codec."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.array.spec import ArraySpec, Blosc, Gzip, Zstd
from shardwright.shard.index import CHECKSUM_BYTES

from . import native_library

# Kinds of framing, and compressors inside Blosc with the format number that goes into the chunk's header
# (c-blosc, README_CHUNK_FORMAT).
KIND_NONE, KIND_BLOSC, KIND_ZSTD, KIND_GZIP = range(4)
BLOSC_COMPRESSORS = {"lz4": 0, "lz4hc": 1, "zlib": 2, "zstd": 3}
BLOSC_LZ4, BLOSC_LZ4HC, BLOSC_ZLIB, BLOSC_ZSTD = range(4)
BLOSC_FORMATS = (1, 1, 3, 4)
SLOW_ZSTD_LEVEL = 6  # and above: less than about 0.1 GB/s a core
FILTERS = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
FILTER_NONE, FILTER_SHUFFLE, FILTER_BITSHUFFLE = range(3)
LEVEL_STORED = -1000  # this level skips the compressor: chunks go into the codec's stored form

BLOSC_HEADER_BYTES = 16
BLOSC_BLOCK_BYTES = 128 * 1024  # measured best: filter input and output stay in L2
ZSTD_RAW_BLOCK_BYTES = 128 * 1024  # the most a zstd block may hold (RFC 8878, 3.1.1.2.4)
ZSTD_RAW_HEADER_BYTES = 4 + 1 + 4  # magic, descriptor of a single segment, 4-byte content size
GZIP_HEADER_BYTES, GZIP_TRAILER_BYTES = 10, 8
DEFLATE_STORED_BLOCK_BYTES = 65535  # RFC 1951, 3.2.4
_NO_LIMIT = 2**62


@dataclass(frozen=True)
class CodecParameters:
    """One array's inner codec as the kernels take it. ``level`` is on the compressor's own scale, already
    translated from Blosc's. ``min_ratio``: the least ratio of compression that is worth the time of who
    reads: a chunk that gets no smaller than by it is stored."""

    kind: int
    compressor: int
    format: int
    level: int
    filter: int
    typesize: int
    checksum: bool
    chunk_bytes: int
    min_ratio: float = 1.0

    @classmethod
    def of(cls, spec: ArraySpec, chunk_bytes: int) -> CodecParameters:
        return cls.of_codec(
            spec.codec, itemsize=spec.itemsize, checksum=spec.chunk_checksum, chunk_bytes=chunk_bytes
        )

    @classmethod
    def of_codec(
        cls, codec: Blosc | Zstd | Gzip | None, *, itemsize: int, checksum: bool, chunk_bytes: int
    ) -> CodecParameters:
        kind, compressor, format_number, level, filter_number = KIND_NONE, 0, 0, 0, FILTER_NONE
        if isinstance(codec, Blosc):
            kind = KIND_BLOSC
            compressor = BLOSC_COMPRESSORS[codec.cname]
            format_number = BLOSC_FORMATS[compressor]
            level = _blosc_level(compressor, codec.clevel)
            filter_number = (
                FILTERS[codec.shuffle] if itemsize > 1 or codec.shuffle == "bitshuffle" else FILTER_NONE
            )
        elif isinstance(codec, Zstd):
            kind, level = KIND_ZSTD, codec.level
        elif isinstance(codec, Gzip):
            kind, level = KIND_GZIP, codec.level
        return cls(kind, compressor, format_number, level, filter_number, itemsize, checksum, chunk_bytes)

    @property
    def block_bytes(self) -> int:
        """The size of one Blosc block; the last of a chunk may be shorter. A multiple of 8 elements, as
        bitshuffle needs."""
        return min(BLOSC_BLOCK_BYTES, self.chunk_bytes)

    @property
    def max_encoded_bytes(self) -> int:
        """The largest size of one encoded chunk, checksum included: the stored form of its codec."""
        n = self.chunk_bytes
        stored = {
            KIND_NONE: n,
            KIND_BLOSC: n + BLOSC_HEADER_BYTES,
            KIND_ZSTD: n + ZSTD_RAW_HEADER_BYTES + 3 * max(1, -(-n // ZSTD_RAW_BLOCK_BYTES)),
            KIND_GZIP: n
            + GZIP_HEADER_BYTES
            + GZIP_TRAILER_BYTES
            + 5 * max(1, -(-n // DEFLATE_STORED_BLOCK_BYTES)),
        }[self.kind]
        return stored + (CHECKSUM_BYTES if self.checksum else 0)

    @property
    def most_compressed_bytes(self) -> int:
        """The most bytes of a compressed chunk, without its checksum; a larger one is stored. A compressor
        stops there, so that what is not worth its time takes less of it."""
        # with the least ratio 1 the slot alone is the limit, which the stored form fills
        return math.ceil(self.chunk_bytes / self.min_ratio) - 1 if self.min_ratio > 1 else _NO_LIMIT

    @property
    def scratch_bytes(self) -> int:
        """The working memory of one worker: gathered and filtered block for Blosc, the whole chunk for zstd
        and gzip."""
        return 2 * self.block_bytes if self.kind == KIND_BLOSC else self.chunk_bytes

    @property
    def context_bytes(self) -> int:
        """The memory of a worker's zstd context, which it makes larger and keeps; 0 for other compressors,
        whose states are small."""
        if not self._is_zstd or self.level == LEVEL_STORED:
            return 0
        at_once_bytes = self.block_bytes if self.kind == KIND_BLOSC else self.chunk_bytes
        return native_library.zstd_context_bytes(self.level, at_once_bytes)

    @property
    def is_slow(self) -> bool:
        """True if a core encodes less than about 0.1 GB/s of camera frames."""
        deflate = self.kind == KIND_GZIP or (self.kind == KIND_BLOSC and self.compressor == BLOSC_ZLIB)
        return (deflate and self.level != LEVEL_STORED) or (self._is_zstd and self.level >= SLOW_ZSTD_LEVEL)

    @property
    def _is_zstd(self) -> bool:
        return self.kind == KIND_ZSTD or (self.kind == KIND_BLOSC and self.compressor == BLOSC_ZSTD)

    def as_array(self) -> npt.NDArray[np.int64]:
        """Returns int64[10] in the order of the fields up to ``chunk_bytes``, then ``block_bytes`` and
        ``most_compressed_bytes``, as ``kernels.encode`` takes it."""
        values = (
            self.kind,
            self.compressor,
            self.format,
            self.level,
            self.filter,
            self.typesize,
            int(self.checksum),
            self.chunk_bytes,
            self.block_bytes,
            self.most_compressed_bytes,
        )
        return np.array(values, np.int64)


def _blosc_level(compressor: int, clevel: int) -> int:
    """Translates c-blosc's 0 to 9 into each compressor's scale, as c-blosc does."""
    if clevel == 0:
        return LEVEL_STORED
    if compressor == BLOSC_LZ4:
        return 10 - clevel  # LZ4's acceleration: more is faster
    if compressor == BLOSC_ZSTD:
        return {8: 20, 9: 22}.get(clevel, 2 * clevel - 1)
    return clevel
