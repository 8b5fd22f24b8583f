"""The choice of who decodes the chunks of an array: our own decoders where the chain is one that we write,
else zarr-python.

    [transpose] -> bytes, little-endian -> [blosc | zstd | gzip] -> [crc32c]; of ``spec.DTYPES``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.array.metadata import transposed_order
from shardwright.model.write_options import DTYPES

from .decode import ChunkCodecs
from .zarr_chunks import ZarrChunks

if TYPE_CHECKING:
    from shardwright.array.codec_chain import CodecChain
    from shardwright.array.spec import ArraySpec


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
