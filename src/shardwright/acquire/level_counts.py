"""How many chunks and frames were written at each degrade level; a slab that had to be written again counts
once. The acquisition's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.degrade_level import DegradeLevel

if TYPE_CHECKING:
    import numpy.typing as npt

_LEVELS = len(DegradeLevel)


class LevelCounts:
    """``chunks``, ``frames`` int64[levels]: of slabs that are stored. A slab's frames count at the highest
    level that any of its chunks has; a chunk that is all fill, and absent, has none. ``rows``: of the slab
    table, whose numbers slabs go by here."""

    def __init__(self, rows: int) -> None:
        self.chunks: npt.NDArray[np.int64] = np.zeros(_LEVELS, np.int64)
        self.frames: npt.NDArray[np.int64] = np.zeros(_LEVELS, np.int64)
        self._chunks_of = np.zeros((rows, _LEVELS), np.int64)
        self._frames_of = np.zeros((rows, _LEVELS), np.int64)

    def begin_slab(self, row: int) -> None:
        """The row holds another slab from now on."""
        self._chunks_of[row] = self._frames_of[row] = 0

    def begin_writing(self, row: int) -> None:
        """Its slab goes to the workers: for the first time, or again, into other files."""
        if self._frames_of[row].any():
            self.chunks -= self._chunks_of[row]
            self.frames -= self._frames_of[row]
        self.begin_slab(row)

    def wrote(self, row: int, level: DegradeLevel, chunks: int) -> None:
        self._chunks_of[row, level] += chunks

    def stored(self, row: int, frames: int) -> None:
        """All chunks of its slab are."""
        level = int(np.flatnonzero(self._chunks_of[row]).max(initial=DegradeLevel.CONFIGURED))
        self._frames_of[row, level] = frames
        self.chunks += self._chunks_of[row]
        self.frames += self._frames_of[row]
