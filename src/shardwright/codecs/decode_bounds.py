"""The end of a codec chain, undone with a bound on what each compressor may give: a check of chunks before
zarr-python decodes them, which allocates whatever the data ask for. A few kilobytes that were compressed
twice can ask for all memory of a machine.

Each codec is undone as zarr-python will do it (all members of a gzip file, a checksum at its start or end),
so that the next one gets here what it will get there. That holds for the bytes-to-bytes codecs of Zarr v3 and
of numcodecs. Any other codec ends the check without an error, since its chunks can be read. An array-to-bytes
codec that compresses (numcodecs' pcodec and zfpy) is not bounded. A bytes-to-bytes codec of another package
is not, and neither are the codecs that are undone after it.

Of shards within shards each chunk is looked at.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import zlib
from io import BufferedIOBase, BytesIO
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardwright.array.codec_chain import SHARDING
from shardwright.model.errors import ShardFormatError
from shardwright.shard.index import CHECKSUM_BYTES, EMPTY, ShardIndex

from .decode import unzstd

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.array.codec_chain import CodecChain, ShardingCodec
    from shardwright.shard.index import IndexCodec

    Settings = dict[str, Any]
    Decoder = Callable[[bytes, int, Settings], bytes]
    Shape = tuple[int, ...]

_PIECE_BYTES = 2**20


class Bounds(Protocol):
    """The bounds of decoding the chunks of one array. ``dtype``: of its elements."""

    dtype: np.dtype[Any]

    def most_bytes(self, shape: Shape) -> int:
        """Returns the most memory that one chunk of ``shape`` may use while it is decoded."""

    def index_codec(self, sharding: ShardingCodec) -> IndexCodec:
        """Returns the codec of the index of such shards."""


def check_bounded(data: bytes, chain: CodecChain, shape: Shape, bounds: Bounds) -> None:
    """Raises ``ShardFormatError`` if a codec of ``chain`` would give more than a chunk of ``shape`` can have,
    and whatever a decoder raises for data that do not decode."""
    most_bytes = bounds.most_bytes(shape)
    for codec in reversed(chain.codecs):
        if codec.name == SHARDING:
            assert chain.sharding is not None, "parsed with its codec"
            _check_shard(data, chain.sharding, bounds)
            return
        if codec.name not in _DECODERS:
            return
        settings = codec.configuration
        if codec.name == "numcodecs.shuffle" and settings.get("elementsize") is None:
            settings = {**settings, "elementsize": bounds.dtype.itemsize}  # as zarr-python completes it
        data = _DECODERS[codec.name](data, most_bytes, settings)
        if len(data) > most_bytes:
            raise _too_long(codec.name, most_bytes)


def _check_shard(data: bytes, sharding: ShardingCodec, bounds: Bounds) -> None:
    index = ShardIndex(
        math.prod(sharding.shard_chunks), sharding.index_location, bounds.index_codec(sharding)
    )
    entries = index.read(len(data), lambda offset, nbytes: data[offset : offset + nbytes])
    # each entry as zarr-python takes it, also one that ``ReadIndex`` would refuse: what it reads is looked at
    for offset, nbytes in entries[entries["offset"] != EMPTY].tolist():
        check_bounded(data[offset : offset + nbytes], sharding.codecs, sharding.chunk_shape, bounds)


def _too_long(name: str, most_bytes: int) -> ShardFormatError:
    return ShardFormatError(f"{name} decodes to another size", expected=f"at most {most_bytes} bytes")


def _read(file: BufferedIOBase, most_bytes: int) -> bytes:
    """Returns what all members of a file decode to, or one byte more than ``most_bytes`` of it. It is read in
    pieces: Python allocates as much as it is asked for, and few chunks are as long as they may be."""
    found = bytearray()
    while piece := file.read(min(_PIECE_BYTES, most_bytes + 1 - len(found))):
        found += piece
    return bytes(found)


def _gunzip(data: bytes, most_bytes: int, settings: Settings) -> bytes:
    return _read(gzip.GzipFile(fileobj=BytesIO(data)), most_bytes)


def _unbz2(data: bytes, most_bytes: int, settings: Settings) -> bytes:
    return _read(bz2.BZ2File(BytesIO(data)), most_bytes)


def _unlzma(data: bytes, most_bytes: int, settings: Settings) -> bytes:
    form, filters = settings.get("format", lzma.FORMAT_XZ), settings.get("filters")
    return _read(lzma.LZMAFile(BytesIO(data), format=form, filters=filters), most_bytes)


def _inflate(data: bytes, most_bytes: int, settings: Settings) -> bytes:
    """One stream: zlib.decompress does not look at what is behind it."""
    stream = zlib.decompressobj()
    found = stream.decompress(data, most_bytes + 1)
    if not stream.eof and len(found) <= most_bytes:
        raise ShardFormatError("numcodecs.zlib does not decode: it is cut short")
    return found


def _unzstd(data: bytes, most_bytes: int, settings: Settings) -> bytes:
    out = np.empty(most_bytes, np.uint8)
    count = unzstd(data, out)
    if count is None:
        raise ShardFormatError(f"zstd frame does not decode into at most {most_bytes} bytes")
    return out[:count].tobytes()


def _cut(data: bytes, most_bytes: int, settings: Settings) -> bytes:
    return data[:-CHECKSUM_BYTES]


def _by_numcodecs(name: str, length: slice | None = None) -> Decoder:
    """Returns the decoder of a codec of numcodecs, which zarr-python asks, too. ``length``: the bytes that
    tell the decoded length, and what is allocated; None for a codec whose data never get longer."""

    def decode(data: bytes, most_bytes: int, settings: Settings) -> bytes:
        from numcodecs import get_codec

        if length is not None:
            if int.from_bytes(data[length], "little") > most_bytes:
                raise _too_long(name, most_bytes)
            settings = {}  # they are of the encoder
        return bytes(get_codec({"id": name, **settings}).decode(data))

    return decode


_SAME_OR_SHORTER = ("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3", "shuffle")
_DECODERS: dict[str, Decoder] = {
    "crc32c": _cut,
    **{f"numcodecs.{name}": _by_numcodecs(name) for name in _SAME_OR_SHORTER},
    **dict.fromkeys(("gzip", "numcodecs.gzip"), _gunzip),
    "numcodecs.zlib": _inflate,
    "numcodecs.bz2": _unbz2,
    "numcodecs.lzma": _unlzma,
    "numcodecs.lz4": _by_numcodecs("lz4", slice(0, 4)),
    **dict.fromkeys(("blosc", "numcodecs.blosc"), _by_numcodecs("blosc", slice(4, 8))),
    **dict.fromkeys(("zstd", "numcodecs.zstd"), _unzstd),
}
