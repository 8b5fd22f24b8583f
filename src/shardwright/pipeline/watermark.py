"""A watermark over frame sequences: how many are settled without a hole from the first, although they settle in any order."""

from __future__ import annotations

import numpy as np


class Watermark:
    """``value`` counts sequences settled without a hole. Memory: one byte for each sequence between the value and the newest settled one."""

    def __init__(self) -> None:
        self.value = 0
        self._settled = np.zeros(1024, np.bool_)  # element i: sequence value + i

    def settle(self, sequences: np.ndarray) -> None:
        """Mark sequences (any order, each once)."""
        if sequences.size == 0:
            return
        offsets = sequences.astype(np.int64) - self.value
        needed = int(offsets.max()) + 1
        if needed > self._settled.size:
            grown = np.zeros(max(needed, 2 * self._settled.size), np.bool_)
            grown[: self._settled.size] = self._settled
            self._settled = grown
        self._settled[offsets] = True
        run = self._settled.size if self._settled.all() else int(self._settled.argmin())
        if run:
            self.value += run
            self._settled[:-run] = self._settled[run:].copy()
            self._settled[self._settled.size - run :] = False
