"""The parts of a writer that goes past the page cache, all at once and nothing handed over: every frame
copied into a ring, the kernel over every slab, the bytes that it makes written with O_DIRECT.

The disk takes less beside processors that use the memory, and the kernel is slower beside the copies: each of
them alone promises more. Threads as those two floors have them, so that a writer with one pool for both may
do a little better.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.cases import Case, Frames
from benchmarks.peers import Contender
from shardwright.acquire.limits import Limits, default_threads
from shardwright.kernels.copy import copy_streaming

from .disk_floor import Direct
from .kernel_floor import Kernel


class Together(Contender):
    kind = "floor"

    def __init__(self, case: Case, frames: Frames) -> None:
        super().__init__(case, frames)
        self._kernel, self._disk = Kernel(case, frames), Direct(case, frames)

    def start(self, folder: Path) -> None:
        self._kernel.start(folder)
        self._disk.start(folder)
        slots = Limits.derive(self.case.spec(), threads=default_threads()).ring_frames
        self._ring = np.zeros((slots, *self.case.shape), self.frames.dtype)
        self._pool = ThreadPoolExecutor(3)

    def write(self, path: Path) -> int:
        written = self._pool.submit(self._disk.write, path)
        encoded = self._pool.submit(self._kernel.write, path)
        copied = self._pool.submit(self._copy)
        copied.result()
        encoded.result()
        return written.result()

    def _copy(self) -> None:
        for i in range(self.case.frames):
            frame = self.frame(i)
            copy_streaming(self._ring[i % len(self._ring)].ctypes.data, frame.ctypes.data, frame.nbytes)

    def verify(self, path: Path) -> None:
        self._disk.verify(path)
        self._kernel.verify(path)
        last = self.case.frames - 1
        assert np.array_equal(self._ring[last % len(self._ring)], self.frame(last))

    def stop(self) -> None:
        self._pool.shutdown()
        self._kernel.stop()
        self._disk.stop()
