"""Credit: which frames' pixels are still needed, by sequence. The same bookkeeping on both sides; its cost is per batch and range, not per frame."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ProtocolError


@dataclass
class _Batch:
    first: int
    slots: npt.NDArray[np.uint32]
    live: npt.NDArray[np.bool_]
    remaining: int
    keep: object  # what owns the pixels (received message parts), dropped when the last frame is released


class InFlight:
    """Frames on their way. Sequences enter in order, batch by batch, and leave in any order."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._batches: list[_Batch] = []
        self.frames = 0

    def add(self, first: int, slots: npt.NDArray[np.uint32], keep: object = None) -> None:
        """Frame ``first + i`` sits in ``slots[i]``."""
        self._firsts.append(first)
        self._batches.append(_Batch(first, slots, np.ones(len(slots), np.bool_), len(slots), keep))
        self.frames += len(slots)

    def release(self, first: int, last: int) -> npt.NDArray[np.uint32]:
        """The slots of frames ``first`` to ``last``, in that order. ``ProtocolError`` when one of them is not in flight."""
        touched = self._overlapping(first, last)
        slots = []
        for batch in touched:
            window = slice(max(first, batch.first) - batch.first, min(last + 1, batch.first + len(batch.slots)) - batch.first)
            batch.live[window] = False
            batch.remaining -= window.stop - window.start
            slots.append(batch.slots[window])
        self.frames -= last - first + 1
        for batch in touched:
            if batch.remaining == 0:
                place = bisect_right(self._firsts, batch.first) - 1
                del self._firsts[place], self._batches[place]
        return np.concatenate(slots)

    def _overlapping(self, first: int, last: int) -> list[_Batch]:
        """The batches that hold ``first`` to ``last``; every one of those frames is checked to be in flight before anything changes."""
        place, wanted = bisect_right(self._firsts, first) - 1, first
        touched = []
        while wanted <= last:
            batch = self._batches[place] if 0 <= place < len(self._batches) else None
            end = batch.first + len(batch.slots) if batch else 0
            if batch is None or not batch.first <= wanted < end or not batch.live[wanted - batch.first : last + 1 - batch.first].all():
                expected = "frames sent and not yet released"
                raise ProtocolError("a release of frames that are not in flight", expected=expected, got=f"{first} to {last}")
            touched.append(batch)
            place, wanted = place + 1, end
        return touched


def ranges_of(sequences: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Sequences in any order, without repeats -> sorted (first, last) ranges, both included."""
    if len(sequences) == 0:
        return []
    ordered = np.sort(sequences)
    breaks = np.flatnonzero(np.diff(ordered) != 1)
    firsts = ordered[np.concatenate(([0], breaks + 1))]
    lasts = ordered[np.concatenate((breaks, [len(ordered) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
