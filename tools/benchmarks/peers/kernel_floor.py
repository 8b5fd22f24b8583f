"""The kernel alone: frames to encoded chunks in memory, on as many threads as the writers have. No file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.peers.contender import Contender

from .encoder import SlabKernel


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
