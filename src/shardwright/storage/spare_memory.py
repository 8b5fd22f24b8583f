"""Large buffers that outlive the acquisition they were made for: the next one in this process takes them over instead of touching fresh memory.

The first touch of a page costs more than anything that is done with it later (0.4 to 2 GB/s here), so a ring that is allocated anew for each short
acquisition can take as long as the acquisition. What is kept is bounded: a request that nothing kept fits gives all of it back first, so that the
process never holds more than one acquisition's plan beyond what is in use.
"""

from __future__ import annotations

import threading

import numpy as np

LEAST_BYTES = 1 << 20  # less is not worth keeping, and must not cost what is kept
_PAGE_BYTES = 4096


class SpareMemory:
    """Thread-safe. A block belongs to whoever took it until it is given back; its content is whatever was there before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[np.ndarray] = []

    def take(self, nbytes: int) -> np.ndarray:
        """uint8[nbytes] that begins at a page, every page of it touched. Raises ``MemoryError``."""
        if nbytes < LEAST_BYTES:
            return self.fresh(nbytes)
        with self._lock:
            fitting = [i for i, block in enumerate(self._kept) if nbytes <= block.size <= 2 * nbytes]
            if fitting:
                return self._kept.pop(min(fitting, key=lambda i: self._kept[i].size))[:nbytes]
            self._kept.clear()
        return self.fresh(nbytes)

    def fresh(self, nbytes: int) -> np.ndarray:
        """The same, never used before."""
        raw = np.empty(nbytes + _PAGE_BYTES, np.uint8)
        first = -raw.ctypes.data % _PAGE_BYTES
        block = raw[first : first + nbytes]
        block.fill(0)  # touches every page now, not in the frame path
        return block

    def give_back(self, block: np.ndarray) -> None:
        """Nobody reads or writes ``block`` any more."""
        with self._lock:
            if block.size >= LEAST_BYTES:
                self._kept.append(block)

    def release(self) -> None:
        """Let the system have what is kept."""
        with self._lock:
            self._kept.clear()

    @property
    def kept_bytes(self) -> int:
        with self._lock:
            return sum(block.size for block in self._kept)


spare_memory = SpareMemory()
"""Of this process."""
