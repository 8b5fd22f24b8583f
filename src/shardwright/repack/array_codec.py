"""The codec of a stored array as the encoding kernels take it. Shared by the jobs, and by ``unknown_bytes``,
which knows by it how long the slots of our writers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.codecs.parameters import CodecParameters, codec_of

if TYPE_CHECKING:
    from shardwright.array.spec import Blosc, Gzip, Zstd
    from shardwright.read.store import StoredArray


def codec_parameters(array: StoredArray, codec: Blosc | Zstd | Gzip | None) -> CodecParameters:
    """For chunks of the array that are encoded with ``codec``."""
    return CodecParameters.of_codec(
        codec, itemsize=array.dtype.itemsize, checksum=array.codecs.checksum, chunk_bytes=array.chunk_bytes
    )


def configured_codec(array: StoredArray) -> CodecParameters:
    """The codec that the array's metadata name. Raises ``SpecError`` for one that cannot be written."""
    return codec_parameters(array, codec_of(array.codec_metadata))
