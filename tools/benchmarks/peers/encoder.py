"""Our kernel by itself, for the floors: slabs of frames into encoded chunks in recycled memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numcodecs.blosc import Blosc

from benchmarks.case import Case, Frames
from shardwright.array.grid import Grid
from shardwright.codecs.parameters import CodecParameters
from shardwright.kernels.contexts import CompressorContexts
from shardwright.kernels.encode import NOT_PACKED, encode_chunks
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
        self._codec, self._block_bytes = codec.as_array(), codec.block_bytes
        self._contexts = CompressorContexts()
        self._scratch = np.zeros(codec.scratch_bytes, np.uint8)
        self.slots = np.zeros((self.chunks, self.layout.slot_bytes), np.uint8)
        self._addresses = self.slots.ctypes.data + self.layout.slot_bytes * np.arange(
            self.chunks, dtype=np.int64
        )
        self._fill_row = np.zeros(self.layout.plane.row_bytes, np.uint8)
        self.nbytes = np.zeros(self.chunks, np.int64)
        self._forms = np.zeros(self.chunks, np.uint8)
        self._crcs = np.zeros(self.chunks, np.uint32)

    def encode(self, first: int, stop: int) -> int:
        """Encode chunks [first, stop) of the slab into ``slots``; returns their encoded bytes."""
        plane, part = self.layout.plane, slice(first, stop)
        addresses = np.array([frame.ctypes.data for frame in self.frames], np.int64)
        encode_chunks(
            addresses,
            plane.frame_row_bytes,
            plane.geometry[part],
            self._addresses[part],
            NOT_PACKED,
            self.layout.slot_bytes,
            plane.chunk_rows,
            plane.row_bytes,
            self._codec,
            self._block_bytes,
            False,
            self._fill_row,
            self._contexts.addresses,
            self._scratch,
            self.nbytes[part],
            self._forms[part],
            self._crcs[part],
        )
        return int(self.nbytes[part].sum())

    def decoded(self, chunk: int) -> npt.NDArray[np.uint16]:
        """One encoded chunk of the slab as numcodecs reads it."""
        encoded = self.slots[chunk, : self.nbytes[chunk]]
        if not self._compressed:
            return encoded.view(np.uint16)
        return np.frombuffer(Blosc().decode(encoded.tobytes()), np.uint16)
