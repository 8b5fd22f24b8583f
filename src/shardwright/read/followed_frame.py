"""The frames that a follower gives, and the record of those that it has given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

# of what a follower over HTTP has met when it connects again, since it is a part of an address
MOST_RANGES = 256
MOST_BEYOND = 1 << 24


@dataclass(frozen=True)
class FollowedFrame:
    """A stored frame. ``index``: its place in acquisition order; ``image``: the name of its image, empty if
    there is only one; ``pixels``: [rows, columns], read-only to others but the caller's own; ``row``: its row
    of the frame table, by column."""

    index: tuple[int, ...]
    image: str
    pixels: np.ndarray[Any, Any]
    row: dict[str, Any]


class MetSequences:
    """Which sequences were met: those before ``first``, and a byte for each from there on."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._met = np.zeros(1024, np.bool_)

    def new_ones(self, sequences: np.ndarray) -> np.ndarray:
        """Returns the indices (int64[n]) of sequences that were not met before, in their order, each once;
        now they are met."""
        values, indices = np.unique(sequences.astype(np.int64) - self._first, return_index=True)
        values, indices = values[values >= 0], indices[values >= 0]
        self._hold(int(values.max(initial=-1)) + 1)
        new = ~self._met[values]
        self._met[values] = True
        found: np.ndarray = indices[new]
        return found

    def meet(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Counts the sequences [start, stop) of some ranges as met."""
        for start, stop in ranges:
            self._hold(stop - self._first)
            self._met[max(0, start - self._first) : max(0, stop - self._first)] = True

    def ranges(self) -> list[tuple[int, int]]:
        """Returns [start, stop) of what was met, without those before the first."""
        edges = np.flatnonzero(np.diff(self._met.astype(np.int8), prepend=0, append=0)) + self._first
        return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]

    def ranges_beyond(self) -> list[tuple[int, int]]:
        """Returns [start, stop) of what was met beyond ``all_before``, in order: the ``MOST_RANGES`` longest,
        as far as ``MOST_BEYOND`` sequences beyond it."""
        first = self.all_before
        end = first + MOST_BEYOND
        beyond = [(start, min(stop, end)) for start, stop in self.ranges() if first < start < end]
        return sorted(sorted(beyond, key=lambda each: each[0] - each[1])[:MOST_RANGES])

    @property
    def all_before(self) -> int:
        """All sequences before this one were met."""
        return self._first + (self._met.size if self._met.all() else int(self._met.argmin()))

    def _hold(self, count: int) -> None:
        if count > self._met.size:
            self._met = np.concatenate([self._met, np.zeros(count, np.bool_)])
