"""The accounting of credit: which frames are in flight, by sequence, and where their pixels are. The same on
both sides; its cost is per batch and range, not per frame."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ProtocolError

NO_SLOT = 2**32 - 1  # of a frame without pixels
_FIRST = attrgetter("first")


@dataclass
class SentBatch:
    """A run of frames: frame ``first + i`` is in ``slots[i]`` (or ``NO_SLOT``) while ``live[i]``."""

    first: int
    slots: npt.NDArray[np.uint32]
    live: npt.NDArray[np.bool_]
    remaining: int
    # the owner of these frames' memory (received message parts, a ring, their descriptors), dropped when the
    # last of them is released
    keep: Any

    @property
    def stop(self) -> int:
        return self.first + len(self.slots)

    def window(self, first: int, last: int) -> slice:
        """Returns the slice of its rows for frames ``first`` to ``last``; empty when there are none."""
        return slice(max(first, self.first) - self.first, max(0, min(last + 1, self.stop) - self.first))


class InFlight:
    """The frames in flight. Batches enter in any order, each a run of sequences that no other batch has;
    frames leave in any order."""

    def __init__(self) -> None:
        # By their first frames. One list, which one call changes: a user's thread of the client adds to it,
        # and a signal's handler that raises in between must not leave half a change to the I/O thread.
        self._batches: list[SentBatch] = []
        self.frames = 0

    def add(self, first: int, slots: npt.NDArray[np.uint32], keep: Any = None) -> SentBatch:
        """Adds a batch, and returns it: frame ``first + i`` is in ``slots[i]``."""
        at, added = bisect_right(self._batches, first, key=_FIRST), len(slots)
        batch = SentBatch(first, slots, np.ones(added, np.bool_), added, keep)
        assert at == 0 or self._batches[at - 1].stop <= first, "a sequence is in flight once"
        assert at == len(self._batches) or batch.stop <= self._batches[at].first, "likewise"
        self.frames += added  # before: too high after an interruption, it still bounds what may be released
        self._batches.insert(at, batch)
        return batch

    def at(self, first: int, last: int) -> tuple[SentBatch | None, int]:
        """Returns the batch that has frame ``first``, in flight or not any more, or None; and the last frame,
        at most ``last``, of which the same is true."""
        for batch in self._batches[(at := self._index_of(first)) : at + 2]:
            if first < batch.first:
                return None, min(last, batch.first - 1)
            if first < batch.stop:
                return batch, min(last, batch.stop - 1)
        return None, last

    def put_back(self, batch: SentBatch, rows: slice) -> None:
        """Puts those of these frames of a batch that are not in flight any more back, without pixels."""
        gone = ~batch.live[rows]
        count = int(np.count_nonzero(gone))
        batch.slots[rows][gone], batch.live[rows] = NO_SLOT, True
        batch.remaining += count
        self.frames += count

    def _index_of(self, first: int) -> int:
        """Returns the index of the last batch that begins with frame ``first`` or before; 0 without any."""
        return max(0, bisect_right(self._batches, first, key=_FIRST) - 1)

    def holds(self, keep: object) -> bool:
        """Returns whether a frame with this ``keep`` is still in flight."""
        return any(batch.keep is keep for batch in self._batches)

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the frames in flight as sorted (first, last) ranges, both included."""
        live = [batch.first + np.flatnonzero(batch.live) for batch in self._batches]
        return ranges_of(np.concatenate(live)) if live else []

    def without_pixels(self, first: int, last: int) -> int:
        """Returns how many of the frames from ``first`` to ``last`` are in flight without pixels."""
        at, count = self._index_of(first), 0
        while at < len(self._batches) and self._batches[at].first <= last:
            batch = self._batches[at]
            rows = batch.window(first, last)
            count += int(np.count_nonzero(batch.live[rows] & (batch.slots[rows] == NO_SLOT)))
            at += 1
        return count

    def release_known(self, first: int, last: int) -> npt.NDArray[np.uint32]:
        """Releases those frames from ``first`` to ``last`` that are in flight; returns their slots."""
        at = self._index_of(first)
        slots: list[npt.NDArray[np.uint32]] = []
        while at < len(self._batches) and self._batches[at].first <= last:
            batch = self._batches[at]
            window = batch.window(first, last)
            live = batch.live[window]
            slots.append(batch.slots[window][live])
            batch.remaining -= len(slots[-1])
            self.frames -= len(slots[-1])
            live[:] = False
            if batch.remaining == 0:
                del self._batches[at]
            else:
                at += 1
        return np.concatenate(slots) if slots else np.zeros(0, np.uint32)

    def release_ranges(self, ranges: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Releases the frames in int64[n, 2] (first, last) pairs; returns their slots in the order of the
        frames. Raises ``ProtocolError``, with nothing released, when one of them is not in flight or is named
        twice."""
        ordered = ranges[np.argsort(ranges[:, 0])]
        apart = (ordered[1:, 0] > ordered[:-1, 1]).all() if len(ordered) else True
        # otherwise they are not expanded at all
        if apart and int((ordered[:, 1] - ordered[:, 0] + 1).sum()) <= self.frames:
            sequences = sequences_in(ordered)
            if self.all_in_flight(sequences):
                return self.release_all(sequences)
        got = [tuple(pair) for pair in ordered[:4].tolist()]
        raise ProtocolError(
            "a release of frames that are not in flight", expected="frames sent and not yet released", got=got
        )

    def all_in_flight(self, sequences: npt.NDArray[np.int64]) -> bool:
        """Returns whether each of ``sequences`` (sorted, different) is in flight."""
        found, at = 0, self._index_of(int(sequences[0])) if len(sequences) else len(self._batches)
        while at < len(self._batches) and self._batches[at].first <= sequences[-1]:
            batch = self._batches[at]
            begin, end = np.searchsorted(sequences, (batch.first, batch.stop))
            found += int(np.count_nonzero(batch.live[sequences[begin:end] - batch.first]))
            at += 1
        return found == len(sequences)

    def release_all(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Releases those of ``sequences`` (sorted, different) that are in flight; returns their slots. The
        cost is per batch, not per frame."""
        slots: list[npt.NDArray[np.uint32]] = []
        at = self._index_of(int(sequences[0])) if len(sequences) else len(self._batches)
        while at < len(self._batches) and self._batches[at].first <= sequences[-1]:
            batch = self._batches[at]
            begin, end = np.searchsorted(sequences, (batch.first, batch.stop))
            rows = sequences[begin:end] - batch.first
            rows = rows[batch.live[rows]]
            slots.append(batch.slots[rows])
            batch.live[rows] = False
            batch.remaining -= len(rows)
            self.frames -= len(rows)
            if batch.remaining == 0:
                del self._batches[at]
            else:
                at += 1
        return np.concatenate(slots) if slots else np.zeros(0, np.uint32)


def runs_of(sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns int64[n, 2] of (first, last), both included, for sorted sequences without repeats."""
    if len(sequences) == 0:
        return np.zeros((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(sequences) != 1)
    runs = np.empty((len(breaks) + 1, 2), np.int64)
    runs[0, 0], runs[1:, 0] = sequences[0], sequences[breaks + 1]
    runs[:-1, 1], runs[-1, 1] = sequences[breaks], sequences[-1]
    return runs


def sequences_in(runs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns every sequence in int64[n, 2] ranges, in their order: the inverse of ``runs_of``."""
    counts = runs[:, 1] - runs[:, 0] + 1
    ends = np.cumsum(counts)
    sequences: npt.NDArray[np.int64] = np.arange(int(ends[-1]) if len(runs) else 0) + np.repeat(
        runs[:, 0] - (ends - counts), counts
    )
    return sequences


def ranges_of(sequences: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Returns sorted (first, last) ranges, both included, for sequences in any order, without repeats."""
    return [(first, last) for first, last in runs_of(np.sort(sequences.astype(np.int64))).tolist()]


def without(whole: tuple[int, int], *holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the range ``whole`` (first, last) without the lists of ranges ``holes``."""
    left, start = [], whole[0]
    for first, last in sorted(hole for some in holes for hole in some):
        if start < first:
            left.append((start, min(first - 1, whole[1])))
        start = max(start, last + 1)
        if start > whole[1]:
            return left
    return [*left, (start, whole[1])] if start <= whole[1] else left


def at_most(ranges: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Joins ``ranges`` (sorted, disjoint) over the smallest gaps until there are no more than ``most``."""
    if len(ranges) <= most:
        return ranges
    gaps = np.array([later[0] - earlier[1] for earlier, later in itertools.pairwise(ranges)])
    kept = np.sort(np.argpartition(-gaps, most - 2)[: most - 1]) if most > 1 else np.zeros(0, np.int64)
    firsts = [0, *(kept + 1).tolist()]
    lasts = [*kept.tolist(), len(ranges) - 1]
    return [(ranges[i][0], ranges[j][1]) for i, j in zip(firsts, lasts, strict=True)]
