"""Large buffers that outlive the acquisition they were made for: the next one in this process takes them over
instead of touching fresh memory.

The first touch of a page costs more than anything that is done with it later (0.4 to 2 GB/s here), so a ring
that is allocated anew for each short acquisition can take as long as the acquisition. What is kept is
bounded: together with what is in use, never more than was in use at once before; and if no kept block fits a
request, all of them are freed first.
"""

from __future__ import annotations

import threading

import numpy as np

LEAST_BYTES = 1 << 20  # less is not worth keeping, and must not cost what is kept
_PAGE_BYTES = 4096


class SpareMemory:
    """Thread-safe. A block belongs to whoever took it until it is given back, as it was taken; its content is
    whatever was there before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[np.ndarray] = []
        self._most_bytes = 0  # that were ever in use at once: nor will more be kept
        self._in_use_bytes = 0

    def take(self, nbytes: int) -> np.ndarray:
        """uint8, ``nbytes`` or little more, that begins at a page, every page of it touched. Raises
        ``MemoryError``."""
        if nbytes < LEAST_BYTES:
            return self.fresh(nbytes)
        with self._lock:
            block = self._fitting(nbytes)
            if block is None:
                self._kept.clear()
        block = self.fresh(nbytes) if block is None else block
        with self._lock:  # not before: what the system refused was never in use
            self._in_use_bytes += block.size
            self._most_bytes = max(self._most_bytes, self._in_use_bytes)
        return block

    def _fitting(self, nbytes: int) -> np.ndarray | None:
        """The smallest that is large enough, and not so large that a plan would be exceeded by much."""
        fitting = [i for i, block in enumerate(self._kept) if nbytes <= block.size <= nbytes + nbytes // 8]
        return self._kept.pop(min(fitting, key=lambda i: self._kept[i].size)) if fitting else None

    def fresh(self, nbytes: int) -> np.ndarray:
        """The same, never used before."""
        raw = np.empty(nbytes + _PAGE_BYTES, np.uint8)
        first = -raw.ctypes.data % _PAGE_BYTES
        block = raw[first : first + nbytes]
        block.fill(0)  # touches every page now, not in the frame path
        return block

    def give_back(self, block: np.ndarray) -> None:
        """Nobody reads or writes ``block`` any more."""
        if block.size < LEAST_BYTES:
            return
        with self._lock:
            self._in_use_bytes -= block.size
            self._kept.append(block)
            while self._in_use_bytes + sum(block.size for block in self._kept) > self._most_bytes:
                self._kept.pop(0)

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
