"""The end of a codec chain, undone with a bound on what each compressor may give: a check of chunks before
zarr-python decodes them, which allocates whatever the data ask for. A few kilobytes that were compressed
twice can ask for all memory of a machine.

Compressors of Zarr v3 and of numcodecs are known here; behind any other one, bytes are not looked at. Of
shards within shards each chunk is looked at.
"""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shardwright.array.codec_chain import SHARDING
from shardwright.model.errors import ShardFormatError
from shardwright.shard.index import CHECKSUM_BYTES, EMPTY, ShardIndex

from .decode import unzstd

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.array.codec_chain import CodecChain, ShardingCodec
    from shardwright.shard.index import IndexCodec

    Decoder = Callable[[bytes, int], bytes | None]
    Shape = tuple[int, ...]


class Bounds(Protocol):
    """The bounds of decoding the chunks of one array."""

    def most_bytes(self, shape: Shape) -> int:
        """Returns the most memory that one chunk of ``shape`` may use while it is decoded."""

    def index_codec(self, sharding: ShardingCodec) -> IndexCodec:
        """Returns the codec of the index of such shards."""


def check_bounded(data: bytes, chain: CodecChain, shape: Shape, bounds: Bounds) -> None:
    """Raises ``ShardFormatError`` if a compressor of ``chain`` would give more than a chunk of ``shape`` can
    have. Data that do not decode pass: who decodes them says why."""
    most_bytes = bounds.most_bytes(shape)
    left: bytes | None = data
    for codec in reversed(chain.codecs):
        if codec.name == SHARDING and left is not None:
            assert chain.sharding is not None, "parsed with its codec"
            _check_shard(left, chain.sharding, bounds)
            return
        if codec.name not in _DECODERS or left is None:
            return
        try:
            left = _DECODERS[codec.name](left, most_bytes)
        except (zlib.error, OSError, EOFError, lzma.LZMAError):
            return
        if left is not None and len(left) > most_bytes:
            raise _too_long(codec.name, most_bytes)


def _check_shard(data: bytes, sharding: ShardingCodec, bounds: Bounds) -> None:
    index = ShardIndex(
        math.prod(sharding.shard_chunks), sharding.index_location, bounds.index_codec(sharding)
    )
    try:
        entries = index.read(len(data), lambda offset, nbytes: data[offset : offset + nbytes])
    except ShardFormatError:
        return
    # each entry as zarr-python takes it, also one that ``ReadIndex`` would refuse: what it reads is looked at
    for offset, nbytes in entries[entries["offset"] != EMPTY].tolist():
        check_bounded(data[offset : offset + nbytes], sharding.codecs, sharding.chunk_shape, bounds)


def _too_long(name: str, most_bytes: int) -> ShardFormatError:
    return ShardFormatError(f"{name} decodes to another size", expected=f"at most {most_bytes} bytes")


def _cut(data: bytes, most_bytes: int) -> bytes:
    return data[:-CHECKSUM_BYTES]


def _cut_front(data: bytes, most_bytes: int) -> bytes:
    return data[CHECKSUM_BYTES:]


def _inflate(wbits: int) -> Decoder:
    return lambda data, most_bytes: zlib.decompressobj(wbits).decompress(data, most_bytes + 1)


def _unbz2(data: bytes, most_bytes: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, most_bytes + 1)


def _unlzma(data: bytes, most_bytes: int) -> bytes:
    return lzma.LZMADecompressor().decompress(data, most_bytes + 1)


def _unblosc(data: bytes, most_bytes: int) -> bytes | None:
    """Only its header says how long it is: that is what it is decoded to."""
    if int.from_bytes(data[4:8], "little") > most_bytes:
        raise _too_long("blosc", most_bytes)
    return None


def _unlz4(data: bytes, most_bytes: int) -> bytes | None:
    """As ``_unblosc``: the first four bytes say how long it is."""
    if int.from_bytes(data[:4], "little") > most_bytes:
        raise _too_long("numcodecs.lz4", most_bytes)
    return None


def _unzstd(data: bytes, most_bytes: int) -> bytes | None:
    out = np.empty(most_bytes, np.uint8)
    count = unzstd(data, out)
    if count is None:
        raise ShardFormatError(f"zstd frame does not decode into at most {most_bytes} bytes")
    return out[:count].tobytes()


_DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("crc32c", "numcodecs.fletcher32"), _cut),
    **dict.fromkeys(("numcodecs.crc32", "numcodecs.adler32"), _cut_front),
    "gzip": _inflate(zlib.MAX_WBITS | 16),
    "numcodecs.gzip": _inflate(zlib.MAX_WBITS | 16),
    "numcodecs.zlib": _inflate(zlib.MAX_WBITS),
    "numcodecs.bz2": _unbz2,
    "numcodecs.lzma": _unlzma,
    "numcodecs.lz4": _unlz4,
    **dict.fromkeys(("blosc", "numcodecs.blosc"), _unblosc),
    **dict.fromkeys(("zstd", "numcodecs.zstd"), _unzstd),
}
