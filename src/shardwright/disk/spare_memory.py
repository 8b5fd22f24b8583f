"""Large buffers that outlive their acquisition: the next one in this process reuses them instead of touching
fresh memory.

The first touch of a page costs more than all later use of it (0.4 to 2 GB/s here), so allocating a ring anew
for each short acquisition can take as long as the acquisition. Kept memory is bounded: together with memory
in use it never exceeds the most that was in use at once. If no kept block fits a request, all kept blocks are
freed first.
"""

from __future__ import annotations

import threading

import numpy as np

LEAST_BYTES = 1 << 20  # smaller blocks are not kept, and a request for one frees no kept block
_PAGE_BYTES = 4096


class SpareMemory:
    """A store of kept blocks. Thread-safe. A block belongs to the caller from ``take`` until ``give_back``,
    which must get the same array; its content is undefined."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[np.ndarray] = []
        self._most_bytes = 0  # the most ever in use at once: the bound of use and kept blocks together
        self._in_use_bytes = 0

    def take(self, nbytes: int) -> np.ndarray:
        """Returns uint8 memory of ``nbytes`` or little more that begins at a page, every page touched. Raises
        ``MemoryError``."""
        if nbytes < LEAST_BYTES:
            return self.fresh(nbytes)
        with self._lock:
            block = self._fitting(nbytes)
            if block is None:
                self._kept.clear()
        block = self.fresh(nbytes) if block is None else block
        with self._lock:  # after the allocation: memory that the system refused was never in use
            self._in_use_bytes += block.size
            self._most_bytes = max(self._most_bytes, self._in_use_bytes)
        return block

    def _fitting(self, nbytes: int) -> np.ndarray | None:
        """Returns the smallest kept block that is large enough, but at most 1/8 larger, so that limits are
        not exceeded by much; None without one."""
        fitting = [i for i, block in enumerate(self._kept) if nbytes <= block.size <= nbytes + nbytes // 8]
        return self._kept.pop(min(fitting, key=lambda i: self._kept[i].size)) if fitting else None

    def fresh(self, nbytes: int) -> np.ndarray:
        """As ``take``, but always new memory."""
        raw = np.empty(nbytes + _PAGE_BYTES, np.uint8)
        first = -raw.ctypes.data % _PAGE_BYTES
        block = raw[first : first + nbytes]
        block.fill(0)  # touches every page now, not in the frame path
        return block

    def give_back(self, block: np.ndarray) -> None:
        """Takes back a block that no thread reads or writes any more."""
        if block.size < LEAST_BYTES:
            return
        with self._lock:
            self._in_use_bytes -= block.size
            self._kept.append(block)
            while self._in_use_bytes + sum(block.size for block in self._kept) > self._most_bytes:
                self._kept.pop(0)

    def leave(self, block: np.ndarray) -> None:
        """Leaves a block to those who still refer to it: it is not used again."""
        if block.size >= LEAST_BYTES:
            with self._lock:
                self._in_use_bytes -= block.size

    def release(self) -> None:
        """Frees all kept blocks."""
        with self._lock:
            self._kept.clear()

    @property
    def kept_bytes(self) -> int:
        with self._lock:
            return sum(block.size for block in self._kept)


spare_memory = SpareMemory()
"""The store of this process."""
