"""The frames that a follower gives, and the record of those that it has given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.wire.in_flight import runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable

# of what a follower over HTTP has met when it connects again, since it is a part of an address
MOST_RANGES = 256
MOST_SEQUENCES = 10**15 - 1  # more than any acquisition has; such an address has at most 15 digits
_LEAST = -(1 << 63)


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
    """The sequences that were met: those before ``first``, and ranges of them. Memory follows the holes
    between them, not the numbers: a table or a server may name any sequence. Time follows what is new: a
    follower adds at the end of as many holes as there are."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        # int64[2, capacity], starts and stops of ``_count`` ranges: in order, with a hole between two. The
        # first range has all before ``first``.
        self._buffer = np.array([[_LEAST], [first]], np.int64)
        self._count = 1

    @property
    def _ranges(self) -> np.ndarray:
        return self._buffer[:, : self._count]

    def new_ones(self, sequences: np.ndarray) -> np.ndarray:
        """Returns the indices (int64[n]) of sequences that were not met before, in their order, each once;
        now they are met. Raises ``ShardFormatError`` for one that no frame has."""
        if sequences.size and not 0 <= sequences.min() <= sequences.max() < MOST_SEQUENCES:
            raise ShardFormatError(
                "a frame has a sequence that cannot be",
                expected=f"0 to {MOST_SEQUENCES - 1}",
                got=f"{sequences.min()} to {sequences.max()}",
                hint="`shardwright verify` lists the faults of the store",
            )
        values, indices = np.unique(sequences.astype(np.int64), return_index=True)
        starts, stops = self._ranges
        new = values >= stops[np.searchsorted(starts, values, side="right") - 1]
        self._add(np.add(runs_of(values[new]), [0, 1]).T)
        found: np.ndarray = indices[new]
        return found

    def meet(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Counts the sequences [start, stop) of some ranges as met."""
        self._add(np.array([each for each in ranges if each[0] < each[1]], np.int64).reshape(-1, 2).T)

    def _add(self, ranges: np.ndarray) -> None:
        if ranges.size:
            starts = self._ranges[0]
            kept = max(0, int(np.searchsorted(starts, ranges[0].min(), side="right")) - 1)
            both = np.concatenate([self._ranges[:, kept:], ranges], axis=1)
            both = both[:, np.argsort(both[0])]
            stops = np.maximum.accumulate(both[1])
            firsts = np.flatnonzero(np.append(True, both[0, 1:] > stops[:-1]))
            lasts = np.append(firsts[1:], both.shape[1]) - 1
            self._put(kept, np.stack([both[0, firsts], stops[lasts]]))

    def _put(self, kept: int, ranges: np.ndarray) -> None:
        """Lets ``ranges`` follow the first ``kept`` ones."""
        count = kept + ranges.shape[1]
        if count > self._buffer.shape[1]:
            grown = np.zeros((2, 2 * count), np.int64)
            grown[:, : self._count] = self._ranges
            self._buffer = grown
        self._buffer[:, kept:count] = ranges
        self._count = count

    def ranges(self) -> list[tuple[int, int]]:
        """Returns [start, stop) of what was met, without those before the first."""
        pairs = np.maximum(self._ranges, self._first).T.tolist()
        return [(start, stop) for start, stop in pairs if start < stop]

    def ranges_beyond(self) -> list[tuple[int, int]]:
        """Returns [start, stop) of what was met beyond ``all_before``, in order: the ``MOST_RANGES``
        longest."""
        beyond = [(start, stop) for start, stop in self.ranges() if start > self.all_before]
        return sorted(sorted(beyond, key=lambda each: each[0] - each[1])[:MOST_RANGES])

    @property
    def all_before(self) -> int:
        """All sequences before this one were met."""
        return int(self._buffer[1, 0])
