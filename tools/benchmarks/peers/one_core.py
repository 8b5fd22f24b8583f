"""One core, no disk: our kernel and numcodecs' Blosc, from frames (the gather counted) and from chunks that
are gathered already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numcodecs import blosc

from benchmarks.peers.contender import Contender

from .encoder import SlabKernel


class OneCore(Contender):
    kind = "core"

    def slabs(self) -> range:
        return range(self.case.frames // self.case.chunk[0])

    def slab(self, number: int) -> np.ndarray:
        depth = self.case.chunk[0]
        start = number * depth % self.case.distinct
        return self.frames[start : start + depth]

    def cut(self) -> list[np.ndarray]:
        """The chunks of slab 0, each contiguous."""
        _, rows, columns = self.case.chunk
        tops, lefts = range(0, self.case.shape[0], rows), range(0, self.case.shape[1], columns)
        return [
            np.ascontiguousarray(self.slab(0)[:, y : y + rows, x : x + columns]) for y in tops for x in lefts
        ]


class KernelCore(OneCore):
    def start(self, folder: Path) -> None:
        self._kernel = SlabKernel(self.case, self.slab(0))

    def write(self, path: Path) -> int:
        total = 0
        for number in self.slabs():
            self._kernel.frames = self.slab(number)
            total += self._kernel.encode(0, self._kernel.chunks)
        return total

    def verify(self, path: Path) -> None:
        _, rows, columns = self.case.chunk
        chunk = self._kernel.decoded(0).reshape(self.case.chunk)
        assert np.array_equal(chunk, self._kernel.frames[:, :rows, :columns])


class KernelCoreGathered(OneCore):
    def start(self, folder: Path) -> None:
        self._kernels = [SlabKernel(self.case, chunk) for chunk in self.cut()]

    def write(self, path: Path) -> int:
        return sum(kernel.encode(0, 1) for _ in self.slabs() for kernel in self._kernels)

    def verify(self, path: Path) -> None:
        for kernel in self._kernels:
            assert np.array_equal(kernel.decoded(0), kernel.frames.ravel())


class NumcodecsCoreGathered(OneCore):
    def start(self, folder: Path) -> None:
        blosc.use_threads = False  # its own global lock aside: one thread, the contextual call
        case = self.case
        shuffle = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}[
            case.shuffle
        ]
        self._codec = blosc.Blosc(cname=case.cname, clevel=case.clevel, shuffle=shuffle)
        self._chunks = self.cut()

    def write(self, path: Path) -> int:
        return sum(len(self._codec.encode(chunk)) for _ in self.slabs() for chunk in self._chunks)

    def verify(self, path: Path) -> None:
        chunk = self._chunks[0]
        assert np.array_equal(
            np.frombuffer(self._codec.decode(self._codec.encode(chunk)), np.uint16), chunk.ravel()
        )


class NumcodecsCore(NumcodecsCoreGathered):
    def write(self, path: Path) -> int:
        _, rows, columns = self.case.chunk
        gathered = np.empty(self.case.chunk, np.uint16)
        total = 0
        for number in self.slabs():
            slab = self.slab(number)
            for y in range(0, self.case.shape[0], rows):
                for x in range(0, self.case.shape[1], columns):
                    np.copyto(gathered, slab[:, y : y + rows, x : x + columns])
                    total += len(self._codec.encode(gathered))
        return total
