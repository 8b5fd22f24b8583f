"""A set of frame sequences that fills up from 0, in any order: a count without holes, and a bit for each
sequence beyond it."""

from __future__ import annotations

import numpy as np

_LEAST = 1024  # elements


class SequenceSet:
    """``value`` counts sequences held without a hole from 0. Memory and the cost of ``add``: one byte for
    each between the value and the newest."""

    def __init__(self) -> None:
        self.value = 0
        self.stop = 0  # one more than the newest
        self._held = np.zeros(_LEAST, np.bool_)  # element i: sequence value + i

    def add(self, sequences: np.ndarray) -> None:
        """Any order; those held already do no harm."""
        if sequences.size == 0:
            return
        offsets = sequences.astype(np.int64) - self.value
        newest = int(offsets.max())
        self.stop = max(self.stop, self.value + newest + 1)
        if newest >= self._held.size:
            grown = np.zeros(max(newest + 1, 2 * self._held.size), np.bool_)
            grown[: self._held.size] = self._held
            self._held = grown
        self._held[offsets[offsets >= 0]] = True
        # beyond it none is, however large a hole has made the array once
        held = self._held[: self.stop - self.value]
        run = held.size if held.all() else int(held.argmin())
        if run:
            self.value += run
            held[: held.size - run] = held[run:].copy()
            held[held.size - run :] = False
            if self._held.size > _LEAST and self.stop - self.value < self._held.size // 4:
                self._held = self._held[: max(_LEAST, self._held.size // 2)].copy()

    def holds(self, sequences: np.ndarray) -> np.ndarray:
        """bool[n]: which of these are in the set."""
        offsets = sequences.astype(np.int64) - self.value
        beyond = (offsets >= 0) & (offsets < self._held.size)
        held = offsets < 0
        held[beyond] = self._held[offsets[beyond]]
        return held

    def missing(self, stop: int) -> list[tuple[int, int]]:
        """(first, last) of each hole in [0, stop), both included."""
        if stop <= self.value:
            return []
        width = min(stop - self.value, self._held.size)
        edges = np.flatnonzero(np.diff(np.concatenate(([True], self._held[:width], [True])).astype(np.int8)))
        holes = [
            (self.value + int(a), self.value + int(b) - 1)
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]
        if self.value + width < stop:
            if holes and holes[-1][1] == self.value + width - 1:
                holes[-1] = (holes[-1][0], stop - 1)
            else:
                holes.append((self.value + width, stop - 1))
        return holes
