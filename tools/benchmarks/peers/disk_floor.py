"""The disk alone: the bytes that the kernel would have produced, written chunk by chunk to their slots in
preallocated shard files.

With as many threads as our own writer has: more requests in flight are a faster disk, and a floor must not be
lower than the writer above it.
"""

from __future__ import annotations

import mmap
import os
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.peers import Contender
from shardwright.acquire.limits import default_threads

from .kernel_floor import SlabKernel

PAGE_BYTES = 4096
TASK_BYTES = 2 << 20  # raw bytes of one task: small chunks are handed out by the dozen
Bytes = npt.NDArray[np.uint8]


class DiskFloor(Contender):
    kind = "floor"
    open_flags = 0

    def start(self, folder: Path) -> None:
        kernel = SlabKernel(self.case, self.frames[: self.case.chunk[0]])
        kernel.encode(0, kernel.chunks)
        self._slot_bytes = kernel.layout.slot_bytes
        self._slots = kernel.chunks * self.case.shard[0] // self.case.chunk[0]
        self.nbytes = [-(-int(n) // PAGE_BYTES) * PAGE_BYTES for n in kernel.nbytes]
        # Anonymous mappings start at a page, which O_DIRECT asks for.
        self.chunks = [np.frombuffer(mmap.mmap(-1, n), np.uint8) for n in self.nbytes]
        for buffer, slot, n in zip(self.chunks, kernel.slots, kernel.nbytes, strict=True):
            buffer[:n] = slot[:n]
        self._slots_per_task = max(1, TASK_BYTES // self.case.chunk_bytes)
        self._pool = ThreadPoolExecutor(default_threads())

    def write(self, path: Path) -> int:
        path.mkdir()
        shards = range(self.case.frames // self.case.shard[0])
        return sum(self._write_shard(path / str(shard)) for shard in shards)

    def _write_shard(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | self.open_flags)
        try:
            os.posix_fallocate(descriptor, 0, self._slots * self._slot_bytes)
            self.write_slots(descriptor)
        finally:
            os.close(descriptor)
        return sum(self.nbytes) * self._slots // len(self.chunks)

    def write_slots(self, descriptor: int) -> None:
        def write_some(first: int) -> None:
            for slot in range(first, min(first + self._slots_per_task, self._slots)):
                self.write_slot(descriptor, slot, self.chunks[slot % len(self.chunks)])

        list(self._pool.map(write_some, range(0, self._slots, self._slots_per_task)))

    @abstractmethod
    def write_slot(self, descriptor: int, slot: int, chunk: Bytes) -> None:
        """Puts a chunk at its offset."""

    def offset(self, slot: int) -> int:
        return slot * self._slot_bytes

    def verify(self, path: Path) -> None:
        for file in path.iterdir():
            shard = np.memmap(file, np.uint8, "r")
            last = self._slots - 1
            chunk = self.chunks[last % len(self.chunks)]
            assert np.array_equal(shard[self.offset(last) : self.offset(last) + chunk.size], chunk), (
                f"{file} differs"
            )

    def stop(self) -> None:
        self._pool.shutdown()


class Pwrite(DiskFloor):
    def write_slot(self, descriptor: int, slot: int, chunk: Bytes) -> None:
        written = os.pwrite(descriptor, chunk.data, self.offset(slot))
        assert written == chunk.size


class Direct(Pwrite):
    open_flags = os.O_DIRECT


class Mapped(DiskFloor):
    def write_slots(self, descriptor: int) -> None:
        self._mapped = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
        super().write_slots(descriptor)
        del self._mapped

    def write_slot(self, descriptor: int, slot: int, chunk: Bytes) -> None:
        np.copyto(self._mapped[self.offset(slot) : self.offset(slot) + chunk.size], chunk)
