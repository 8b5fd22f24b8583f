"""The sequences whose pixels nobody needs any more, until the owner of the ring takes them. Owned by the
acquisition's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .commit_ledger import joined

if TYPE_CHECKING:
    from collections.abc import Iterable


class FreePixels:
    """Collects the sequences of frames whose pixels may be freed, but for those whose pixels are in no
    ring."""

    def __init__(self) -> None:
        self._sequences: list[np.ndarray] = []
        # Of frames that an earlier process had staged, or that were reloaded from sealed shards: their
        # pixels are in the staging area, and no slot of a ring. Told to its owner, they would free another
        # frame's.
        self._in_no_ring = np.zeros(0, np.int64)

    def append(self, sequences: np.ndarray) -> None:
        self._sequences.append(sequences)

    def extend(self, sequences: Iterable[np.ndarray]) -> None:
        self._sequences.extend(sequences)

    def expect_in_no_ring(self, sequences: np.ndarray) -> None:
        """Notes frames that collect although their pixels are in no ring."""
        self._in_no_ring = np.union1d(self._in_no_ring, sequences)

    @property
    def in_no_ring(self) -> int:
        """The number of frames that are still needed and in no ring."""
        return self._in_no_ring.size

    def take(self) -> np.ndarray:
        """Removes and returns int64[n] sequences."""
        taken, self._sequences = joined(self._sequences), []
        if self._in_no_ring.size and taken.size:
            ours = np.isin(taken, self._in_no_ring)
            self._in_no_ring = np.setdiff1d(self._in_no_ring, taken)
            taken = taken[~ours]
        return taken
