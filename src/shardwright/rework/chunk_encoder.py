"""Encodes boxes of values as chunks of a new shard: many in one call of the kernel that also encodes camera
frames, or, of a codec chain or data type that the kernel does not have, one by one by zarr-python. Either
decodes each chunk again: what a job makes may replace the only other copy.

The kernel takes frames, 2-D planes at some address. Here the planes of a box along its leading axes are the
frames, and the chunks that lie side by side in the last two axes are the chunks of one slab. The part of a
chunk that lies outside the box is fill value.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwright.codecs.decode import ChunkCodecs
from shardwright.kernels.compressed_forms import CompressorContexts
from shardwright.kernels.encode import REPLACED
from shardwright.kernels.encode_check import CHECK_ALL
from shardwright.kernels.encode_planes import encode_planes
from shardwright.model.errors import CodecError, SpecError, ValuesChangedError
from shardwright.shard.shard_sums import data_crc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.codecs.parameters import CodecParameters
    from shardwright.read.store import StoredArray

_BATCH_BYTES = 8 << 20  # of room for encoded chunks: enough for one call to be long

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EncodedChunks:
    """Chunks of one call. ``numbers``: row-major within the shard; ``nbytes``: 0 for a chunk that is all fill
    and stays absent; ``crcs``: of the encoded bytes (without a crc32c of the chunk's own at their end). The
    bytes at ``addresses`` are valid until the next batch is asked for."""

    numbers: Int64s
    addresses: Int64s
    nbytes: Int64s
    crcs: npt.NDArray[np.uint32]

    def live(self) -> EncodedChunks:
        """Those that do not stay absent."""
        here = self.nbytes > 0
        return EncodedChunks(self.numbers[here], self.addresses[here], self.nbytes[here], self.crcs[here])

    def bytes_of(self, i: int) -> bytes | None:
        """Returns a copy of chunk i, None for one that stays absent."""
        return ctypes.string_at(int(self.addresses[i]), int(self.nbytes[i])) or None


def _batch_chunks(array: StoredArray, codec: CodecParameters) -> int:
    """No more than lie side by side in a shard."""
    return min(
        max(1, _BATCH_BYTES // codec.max_encoded_bytes), array.shard_chunks[-2] * array.shard_chunks[-1]
    )


class ChunkEncoder(Protocol):
    """Encodes for one new array; one thread's. ``close`` frees its memory."""

    def encode(self, values: npt.NDArray[Any], first_chunk: tuple[int, ...]) -> Iterator[EncodedChunks]:
        """The chunks of a box that begins at the edge of chunk ``first_chunk`` (coordinates within the
        shard); C order, inside the array's shape. Raises ``ValuesChangedError`` or another ``CodecError``,
        naming the chunk."""

    def close(self) -> None: ...


def chunk_encoder(array: StoredArray, *, lossy: bool) -> ChunkEncoder:
    """The encoder for an array. ``lossy``: its codecs may round values; those of the kernels never do."""
    return _KernelEncoder(array) if _is_for_kernels(array) else _ZarrEncoder(array, lossy=lossy)


def encoder_peak_bytes(array: StoredArray) -> int:
    """The memory that it holds beside the box."""
    if _is_for_kernels(array):
        return _KernelEncoder.peak_bytes(array)
    # the box cut to a chunk, what zarr-python makes of it on the way, and the values that are found again
    return 8 * array.chunk_bytes + array.codecs.max_encoded_bytes(array.chunk_bytes)


def _is_for_kernels(array: StoredArray) -> bool:
    if not isinstance(array.codecs, ChunkCodecs) or array.codecs.order or len(array.shape) < 2:
        return False
    try:
        array.configured_codec()
    except SpecError:  # Blosc's own compressor and Snappy are only read
        return False
    return True


class _ZarrEncoder:
    def __init__(self, array: StoredArray, *, lossy: bool) -> None:
        self.array = array
        self._lossy = lossy
        self._chunks = array.zarr_chunks()

    def encode(self, values: npt.NDArray[Any], first_chunk: tuple[int, ...]) -> Iterator[EncodedChunks]:
        shape = self.array.chunk_shape
        for coordinates in itertools.product(
            *(range(-(-n // c)) for n, c in zip(values.shape, shape, strict=True))
        ):
            part = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(coordinates, shape, strict=True))]
            chunk = np.full(shape, self.array.fill_element, self.array.dtype)
            inside: tuple[Any, ...] = tuple(map(slice, part.shape))
            chunk[(*inside, ...)] = part
            within = tuple(a + i for a, i in zip(first_chunk, coordinates, strict=True))
            number = int(np.ravel_multi_index(within, self.array.shard_chunks)) if within else 0
            try:
                data = self._chunks.encode(chunk, lossy=self._lossy) or b""
            except CodecError as error:
                error.message = f"chunk {number} of a shard of {self.array.path}: {error.message}"
                raise
            room = np.frombuffer(data, np.uint8)
            yield EncodedChunks(
                np.array([number], np.int64),
                np.array([room.ctypes.data], np.int64),
                np.array([room.size], np.int64),
                np.array([data_crc(data, has_inner=self.array.codecs.checksum)], np.uint32),
            )

    def close(self) -> None:
        pass


class _KernelEncoder:
    def __init__(self, array: StoredArray) -> None:
        codec = array.configured_codec()
        self.array = array
        self._codec = codec.as_array()
        self._capacity = codec.max_encoded_bytes
        self._slots = np.empty(_batch_chunks(array, codec) * self._capacity, np.uint8)
        self._scratch = np.empty(codec.scratch_bytes, np.uint8)
        self._fill_row = np.frombuffer(array.fill_element.tobytes() * array.chunk_shape[-1], np.uint8).copy()
        self._contexts = CompressorContexts()

    @staticmethod
    def peak_bytes(array: StoredArray) -> int:
        """The memory that it holds beside the box: room for a batch, working memory, tables of chunks and
        planes."""
        codec = array.configured_codec()
        tables = (
            16 * 8 * _batch_chunks(array, codec)
            + 64 * math.prod(array.chunk_shape[:-2])
            + 64 * array.chunks_per_shard
        )
        return (
            _batch_chunks(array, codec) * codec.max_encoded_bytes
            + codec.scratch_bytes
            + codec.context_bytes
            + tables
            + (1 << 20)  # the states of other compressors
        )

    def encode(self, values: npt.NDArray[Any], first_chunk: tuple[int, ...]) -> Iterator[EncodedChunks]:
        """The chunks of a box that begins at the edge of chunk ``first_chunk`` (coordinates within the
        shard); C order, inside the array's shape."""
        assert values.flags.c_contiguous, "rows are copied as they lie"
        chunk, counts = self.array.chunk_shape, self.array.shard_chunks
        geometry, plane_numbers = self._plane(values.shape[-2:], first_chunk[-2:])
        leading = [range(-(-n // c)) for n, c in zip(values.shape[:-2], chunk[:-2], strict=True)]
        step = self._slots.size // self._capacity
        for coordinates in itertools.product(*leading):
            frames = self._frames(values, coordinates)
            layer = 0
            for i, first, count in zip(coordinates, first_chunk[:-2], counts[:-2], strict=True):
                layer = layer * count + first + i
            for begin in range(0, len(geometry), step):
                part = slice(begin, begin + step)
                yield self._encode(
                    values, frames, geometry[part], layer * counts[-2] * counts[-1] + plane_numbers[part]
                )

    def _plane(self, shape: tuple[int, ...], first_chunk: tuple[int, ...]) -> tuple[Int64s, Int64s]:
        """int64[n,4] as ``kernels.gather`` reads it, and each chunk's number within a layer, of the chunks
        that cover a plane of this shape."""
        (rows, columns), (cy, cx), itemsize = shape, self.array.chunk_shape[-2:], self.array.dtype.itemsize
        gy, gx = (axis.ravel() for axis in np.mgrid[0 : -(-rows // cy), 0 : -(-columns // cx)])
        coordinates = [
            gy * cy,
            gx * cx * itemsize,
            np.minimum(cy, rows - gy * cy),
            np.minimum(cx, columns - gx * cx) * itemsize,
        ]
        return np.stack(coordinates, axis=1).astype(np.int64), (
            first_chunk[0] + gy
        ) * self.array.shard_chunks[-1] + first_chunk[1] + gx

    def _frames(self, values: npt.NDArray[Any], coordinates: tuple[int, ...]) -> Int64s:
        """Address of each plane of the chunks at ``coordinates`` (along the leading axes), 0 for those
        outside the box."""
        addresses, inside = np.array(int(values.ctypes.data), np.int64), np.array(True)
        for i, c, n, stride in zip(
            coordinates, self.array.chunk_shape[:-2], values.shape[:-2], values.strides[:-2], strict=True
        ):
            index = i * c + np.arange(c, dtype=np.int64)
            addresses, inside = (
                np.add.outer(addresses, index * stride),
                np.logical_and.outer(inside, index < n),
            )
        return np.where(inside, addresses, 0).ravel()

    def _encode(
        self, values: npt.NDArray[Any], frames: Int64s, geometry: Int64s, numbers: Int64s
    ) -> EncodedChunks:
        count, itemsize = len(numbers), self.array.dtype.itemsize
        addresses = int(self._slots.ctypes.data) + self._capacity * np.arange(count, dtype=np.int64)
        chunk_rows, chunk_columns = self.array.chunk_shape[-2:]
        frame_row_bytes, row_bytes = values.shape[-1] * itemsize, chunk_columns * itemsize
        cut = (frame_row_bytes, chunk_rows, row_bytes, self._fill_row, False)
        tools = self._contexts.addresses, self._scratch
        nbytes, forms, crcs = encode_planes(
            frames, geometry, cut, self._codec, addresses, self._capacity, tools, check=(CHECK_ALL, 0)
        )
        # No frame waits here, so nothing is stored in another form: the job ends before it replaces anything.
        if (wrong := np.flatnonzero(forms >= REPLACED)).size:
            raise ValuesChangedError(
                f"chunk {numbers[wrong[0]]} of a shard of {self.array.path} does not decode to its values",
                hint="The compressor or the memory of this machine makes errors: test the memory first",
            )
        return EncodedChunks(numbers, addresses, nbytes, crcs)

    def close(self) -> None:
        self._contexts.close()
