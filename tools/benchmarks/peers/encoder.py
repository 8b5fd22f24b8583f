"""Our kernel by itself, for the floors: slabs of frames into encoded chunks in recycled memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numcodecs.blosc import Blosc

from benchmarks.cases import Case, Frames
from shardwright.array.grid import Grid
from shardwright.codecs.parameters import CodecParameters
from shardwright.kernels.contexts import CompressorContexts
from shardwright.kernels.encode import NOT_PACKED, encode_chunks, room_for
from shardwright.shard.layout import ArrayLayout


class SlabKernel:
    """Encodes chunks of one slab. Not shared between threads: it owns its compressor states and its slots."""

    def __init__(self, case: Case, frames: Frames) -> None:
        """``frames`` are those of the slab; smaller than the case's own if they are chunks already cut
        out."""
        spec = case.spec()
        rows, columns = frames.shape[1:]
        plane = (
            spec.dimensions[1].model_copy(update={"count": rows}),
            spec.dimensions[2].model_copy(update={"count": columns}),
        )
        grid = Grid.of(spec.model_copy(update={"dimensions": (spec.dimensions[0], *plane)}))
        codec = CodecParameters.of(spec, grid.chunk_bytes)
        self.frames = frames
        self._compressed = case.compressed
        self.layout = ArrayLayout.of(grid, codec.max_encoded_bytes, index_at_start=False)
        self.chunks = len(self.layout.plane.geometry)
        self._codec = codec.as_array()
        self._contexts = CompressorContexts()
        self._tools = (self._contexts.addresses, np.zeros(codec.scratch_bytes, np.uint8))
        self.slots = np.zeros((self.chunks, self.layout.slot_bytes), np.uint8)
        self._addresses = self.slots.ctypes.data + self.layout.slot_bytes * np.arange(
            self.chunks, dtype=np.int64
        )
        chunks = self.layout.plane
        fill_row = np.zeros(chunks.row_bytes, np.uint8)
        self._cut = (chunks.frame_row_bytes, chunks.chunk_rows, chunks.row_bytes, fill_row, False)
        self._encoded = room_for(self.chunks)
        self.nbytes = self._encoded[0]

    def encode(self, first: int, stop: int) -> int:
        """Encode chunks [first, stop) of the slab into ``slots``; returns their encoded bytes."""
        plane, part = self.layout.plane, slice(first, stop)
        nbytes, forms, crcs = (array[part] for array in self._encoded)
        addresses = np.array([frame.ctypes.data for frame in self.frames], np.int64)
        encode_chunks(
            addresses,
            plane.geometry[part],
            self._cut,
            self._codec,
            self._addresses[part],
            self.layout.slot_bytes,
            NOT_PACKED,
            self._tools,
            (nbytes, forms, crcs),
        )
        return int(nbytes.sum())

    def decoded(self, chunk: int) -> npt.NDArray[np.uint16]:
        """One encoded chunk of the slab as numcodecs reads it."""
        encoded = self.slots[chunk, : self.nbytes[chunk]]
        if not self._compressed:
            return encoded.view(np.uint16)
        return np.frombuffer(Blosc().decode(encoded.tobytes()), np.uint16)
