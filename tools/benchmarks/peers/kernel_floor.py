"""The kernel alone: frames to encoded chunks in memory, on as many threads as the writers have. No file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numcodecs.blosc import Blosc

from benchmarks.cases import Case, Frames
from benchmarks.peers import Contender
from shardwright.array.grid import Grid
from shardwright.codecs.parameters import CodecParameters
from shardwright.kernels.compressed_forms import CompressorContexts
from shardwright.kernels.encode import NOT_PACKED, UNCHECKED, encode_chunks, room_for
from shardwright.shard.layout import ArrayLayout


class SlabKernel:
    """Encodes chunks of one slab. Not shared between threads: it owns its compressor states and its slots."""

    def __init__(self, case: Case, frames: Frames) -> None:
        """``frames``: those of the slab."""
        spec = case.spec()
        grid = Grid.of(spec)
        codec = CodecParameters.of(spec, grid.chunk_bytes)
        self.frames = frames
        self._compressed = case.compressed
        self.layout = ArrayLayout.of(grid, codec.max_encoded_bytes, "end")
        self.chunks = len(self.layout.plane.geometry)
        self._codec = codec.as_array()
        self._contexts = CompressorContexts()
        self._tools = (self._contexts.addresses, np.zeros(codec.scratch_bytes, np.uint8))
        self.slots = np.zeros((self.chunks, self.layout.slot_bytes), np.uint8)
        self._addresses = self.slots.ctypes.data + self.layout.slot_bytes * np.arange(
            self.chunks, dtype=np.int64
        )
        plane = self.layout.plane
        image = plane.levels[0]
        fill_row = np.zeros(image.row_bytes, np.uint8)
        self._cut = (image.frame_row_bytes, image.chunk_rows, image.row_bytes, fill_row, False)
        self._encoded = room_for(self.chunks)
        self.nbytes = self._encoded[0]

    def encode(self, first: int, stop: int, check: tuple[int, int] = UNCHECKED) -> int:
        """Encode chunks [first, stop) of the slab into ``slots``; returns their encoded bytes. ``check``: as
        for ``encode_chunks``."""
        plane, part = self.layout.plane, slice(first, stop)
        addresses = np.array([frame.ctypes.data for frame in self.frames], np.int64)
        nbytes, forms, crcs = (array[part] for array in self._encoded)
        encode_chunks(
            addresses,
            plane.geometry[part],
            self._cut,
            self._codec,
            self._addresses[part],
            self.layout.slot_bytes,
            NOT_PACKED,
            self._tools,
            check,
            (nbytes, forms, crcs),
        )
        return int(nbytes.sum())

    def decoded(self, chunk: int) -> npt.NDArray[np.uint16]:
        """One encoded chunk of the slab as numcodecs reads it."""
        encoded = self.slots[chunk, : self.nbytes[chunk]]
        if not self._compressed:
            return encoded.view(np.uint16)
        return np.frombuffer(Blosc().decode(encoded.tobytes()), np.uint16)


class Kernel(Contender):
    kind = "floor"

    def start(self, folder: Path) -> None:
        depth = self.case.chunk[0]
        self._kernels = [SlabKernel(self.case, self.frames[:depth]) for _ in range(self.case.threads)]
        self._pool = ThreadPoolExecutor(self.case.threads)

    def write(self, path: Path) -> int:
        return sum(self._pool.map(self._share, self._kernels, range(len(self._kernels))))

    def _share(self, kernel: SlabKernel, number: int) -> int:
        first, stop = (kernel.chunks * (number + edge) // len(self._kernels) for edge in (0, 1))
        depth, total = self.case.chunk[0], 0
        for slab in range(self.case.frames // depth):
            start = slab * depth % self.case.distinct
            kernel.frames = self.frames[start : start + depth]
            total += kernel.encode(first, stop)
        return total

    def verify(self, path: Path) -> None:
        depth, rows, columns = self.case.chunk
        chunk = self._kernels[0].decoded(0).reshape(depth, rows, columns)
        assert np.array_equal(chunk, self._kernels[0].frames[:, :rows, :columns])

    def stop(self) -> None:
        self._pool.shutdown()
