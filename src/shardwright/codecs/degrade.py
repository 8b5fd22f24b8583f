"""The levels of encoding under the overload policy ``degrade``, and the codec settings of each. Any reader of
the array's metadata can decode chunks of any level, and no level makes a chunk longer than
``max_encoded_bytes``: framing, chunk and checksum stay the same.

    blosc   lz4 with shuffle: a Blosc chunk names its compressor and filter itself
    zstd    level 1, and from there a negative one; a frame of any level is read alike
    gzip    level 1
    all     stored: a Blosc memcpy chunk, raw zstd blocks, stored deflate blocks

Measured on one core, camera noise of 16 bits, GB/s (ratio): blosc zstd 3 0.38 (2.18), blosc lz4 with shuffle
4.4 (1.92); zstd 3 0.11 (1.85), zstd 1 0.29 (1.67), zstd -5 0.91 (1.03); gzip 6 0.05 (1.84), gzip 1 0.13
(1.29); stored 4.0 (gzip, which has a checksum) to 7.8.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING

from .parameters import (
    BLOSC_FORMATS,
    BLOSC_LZ4,
    FILTER_NONE,
    FILTER_SHUFFLE,
    KIND_BLOSC,
    KIND_GZIP,
    KIND_NONE,
    KIND_ZSTD,
    LEVEL_STORED,
)

if TYPE_CHECKING:
    from .parameters import CodecParameters

LZ4_ACCELERATION = 9  # Blosc's level 1; more gains nothing on shuffled pixels
ZSTD_FAST, ZSTD_FASTEST = 1, -5


class DegradeLevel(IntEnum):
    """A level of encoding; higher is faster. A chunk of any level opens by the array's own metadata."""

    CONFIGURED = 0
    FASTER = 1  # a faster setting of the codec
    UNCOMPRESSED = 2  # stored, in the codec's own framing

    @property
    def label(self) -> str:
        return self.name.lower()


def degrade_ladder(codec: CodecParameters) -> dict[DegradeLevel, CodecParameters]:
    """Returns the codec at each of its levels, from the slowest to the fastest; only itself when it does not
    compress."""
    ladder = {DegradeLevel.CONFIGURED: codec}
    if codec.kind == KIND_NONE or codec.level == LEVEL_STORED:
        return ladder
    faster = _faster(codec)
    if faster is not None:
        ladder[DegradeLevel.FASTER] = faster
    ladder[DegradeLevel.UNCOMPRESSED] = replace(codec, level=LEVEL_STORED)
    return ladder


def _faster(codec: CodecParameters) -> CodecParameters | None:
    """Returns a faster codec that still compresses; None if there is none."""
    if codec.kind == KIND_BLOSC:
        filter_number = FILTER_SHUFFLE if codec.typesize > 1 else FILTER_NONE
        if (codec.compressor, codec.filter) == (BLOSC_LZ4, filter_number) and codec.level >= LZ4_ACCELERATION:
            return None
        return replace(
            codec,
            compressor=BLOSC_LZ4,
            format=BLOSC_FORMATS[BLOSC_LZ4],
            level=LZ4_ACCELERATION,
            filter=filter_number,
        )
    if codec.kind == KIND_ZSTD and codec.level > ZSTD_FASTEST:
        return replace(codec, level=ZSTD_FAST if codec.level > ZSTD_FAST else ZSTD_FASTEST)
    if codec.kind == KIND_GZIP and codec.level > 1:
        return replace(codec, level=1)
    return None
