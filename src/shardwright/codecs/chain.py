"""The choice of who decodes the chunks of an array, and the index of its shards: our own decoders where the
chain is one that we write, else zarr-python.

    chunks   [transpose] -> bytes, little-endian -> [blosc | zstd | gzip] -> [crc32c]; of ``spec.DTYPES``
    index    bytes, little-endian -> [crc32c]
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.codec_chain import ARRAY_ARRAY
from shardwright.model.errors import ShardFormatError
from shardwright.model.write_options import DTYPES
from shardwright.shard.index import INDEX_ENTRY, LITTLE_ENDIAN, LITTLE_ENDIAN_CRC32C

from .decode import ChunkCodecs
from .parameters import transposed_order
from .zarr_chunks import ZarrChunks, fixed_encoded_bytes

if TYPE_CHECKING:
    from shardwright.array.codec_chain import CodecChain, ShardingCodec
    from shardwright.array.spec import ArraySpec
    from shardwright.shard.index import IndexCodec


_SAME_SIZE = ("numcodecs.shuffle",)  # bytes in another order
# by which a changed index does not decode
_CHECKSUMS = {"crc32c", *(f"numcodecs.{name}" for name in ("crc32", "crc32c", "adler32", "fletcher32"))}


def chunk_codecs(
    chain: CodecChain, shape: tuple[int, ...], data_type: Any, fill_value: Any
) -> ChunkCodecs | ZarrChunks:
    """Returns the codecs of chunks of ``shape``. Raises ``ShardFormatError``, ``ConfigError`` without
    zarr-python where it is needed."""
    ours = ChunkCodecs.of(chain) if isinstance(data_type, str) and data_type in DTYPES else None
    return ours or ZarrChunks(chain, shape, data_type, fill_value)


def written_codecs(spec: ArraySpec) -> ChunkCodecs:
    """Returns the codecs of the chunks that we write of an array."""
    return ChunkCodecs(spec.codec.name if spec.codec else None, spec.chunk_checksum, transposed_order(spec))


def index_codec(sharding: ShardingCodec) -> IndexCodec:
    """Returns the codec of the index of such shards. Raises as ``chunk_codecs``."""
    chain = sharding.index_codecs
    ours = ChunkCodecs.of(chain)
    if ours is not None and ours.compressor is None and not _is_transposed(chain):
        return LITTLE_ENDIAN_CRC32C if ours.checksum else LITTLE_ENDIAN
    return ZarrIndex(ZarrChunks(chain, (*sharding.shard_chunks, 2), "uint64", 0))


def _is_transposed(chain: CodecChain) -> bool:
    return any(codec.kind == ARRAY_ARRAY for codec in chain.codecs)


class ZarrIndex:
    """The codec of an index that zarr-python decodes and encodes. ``has_checksum``: a changed one does not
    decode."""

    def __init__(self, chunks: ZarrChunks) -> None:
        self._chunks = chunks
        self.has_checksum = chunks.chain.names[-1] in _CHECKSUMS
        index_bytes = math.prod(chunks.shape[:-1]) * INDEX_ENTRY.itemsize
        self._encoded_bytes = fixed_encoded_bytes(chunks.chain, index_bytes, _SAME_SIZE)

    def encoded_bytes(self, chunks: int) -> int:
        return self._encoded_bytes

    def encode(self, entries: np.ndarray) -> bytes:
        pairs = np.ascontiguousarray(entries, INDEX_ENTRY).view("<u8").reshape(self._chunks.shape)
        encoded = self._chunks.encode(pairs, lossy=False)
        assert encoded is not None, "no chunk begins at 0 and is empty, which would be its fill value"
        return encoded

    def decode(self, data: bytes, chunks: int) -> np.ndarray:
        try:
            pairs = self._chunks.decode(data)
        except ShardFormatError as error:
            raise ShardFormatError(f"shard index: {error.message}") from None
        return np.ascontiguousarray(pairs, "<u8").reshape(-1).view(INDEX_ENTRY)
