"""The accounting of credit: which frames are in flight, by sequence, and where their pixels are. The same on
both sides; its cost is per batch and range, not per frame."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

NO_SLOT = 2**32 - 1  # of a frame without pixels


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
        self._firsts: list[int] = []
        self._batches: list[SentBatch] = []
        self.frames = 0

    def add(self, first: int, slots: npt.NDArray[np.uint32], keep: Any = None) -> None:
        """Adds a batch: frame ``first + i`` is in ``slots[i]``."""
        place = bisect_right(self._firsts, first)
        assert place == 0 or self._batches[place - 1].stop <= first, "a sequence is in flight once"
        assert place == len(self._firsts) or first + len(slots) <= self._firsts[place], (
            "a sequence is in flight once"
        )
        self._firsts.insert(place, first)
        self._batches.insert(place, SentBatch(first, slots, np.ones(len(slots), np.bool_), len(slots), keep))
        self.frames += len(slots)

    def put_back(self, first: int, last: int, keep_of: Callable[[int, int], Any]) -> None:
        """Puts frames that are not in flight back, without pixels. ``keep_of(first, count)`` makes the
        ``keep`` of those that no batch has."""
        wanted = first
        for batch in self.overlapping(first, last):
            self._put_back_unknown(wanted, batch.first - 1, keep_of)
            window = batch.window(first, last)
            assert not batch.live[window].any(), "a sequence is in flight once"
            batch.slots[window], batch.live[window] = NO_SLOT, True
            batch.remaining += window.stop - window.start
            self.frames += window.stop - window.start
            wanted = batch.stop
        self._put_back_unknown(wanted, last, keep_of)

    def _put_back_unknown(self, first: int, last: int, keep_of: Callable[[int, int], Any]) -> None:
        if first <= last:
            count = last - first + 1
            self.add(first, np.full(count, NO_SLOT, np.uint32), keep_of(first, count))

    def holds(self, keep: object) -> bool:
        """Returns whether a frame with this ``keep`` is still in flight."""
        return any(batch.keep is keep for batch in self._batches)

    def overlapping(self, first: int, last: int) -> list[SentBatch]:
        """Returns the batches that hold or held some of these frames, in order."""
        return [batch for batch in self._batches if batch.stop > first and batch.first <= last]

    def gone(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Returns those of these frames that are not in flight."""
        absent = np.ones(last + 1 - first, np.bool_)
        for batch in self.overlapping(first, last):
            window = batch.window(first, last)
            start = batch.first + window.start - first
            absent[start : start + window.stop - window.start] = ~batch.live[window]
        return first + np.flatnonzero(absent)

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the frames in flight as sorted (first, last) ranges, both included."""
        live = [batch.first + np.flatnonzero(batch.live) for batch in self._batches]
        return ranges_of(np.concatenate(live)) if live else []

    def release_known(self, first: int, last: int) -> npt.NDArray[np.uint32]:
        """Releases those frames from ``first`` to ``last`` that are in flight; returns their slots."""
        place = max(0, bisect_right(self._firsts, first) - 1)
        slots: list[npt.NDArray[np.uint32]] = []
        while place < len(self._batches) and self._batches[place].first <= last:
            batch = self._batches[place]
            window = batch.window(first, last)
            live = batch.live[window]
            slots.append(batch.slots[window][live])
            batch.remaining -= len(slots[-1])
            self.frames -= len(slots[-1])
            live[:] = False
            if batch.remaining == 0:
                del self._firsts[place], self._batches[place]
            else:
                place += 1
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
        found, place = (
            0,
            max(0, bisect_right(self._firsts, int(sequences[0])) - 1)
            if len(sequences)
            else len(self._batches),
        )
        while place < len(self._batches) and self._batches[place].first <= sequences[-1]:
            batch = self._batches[place]
            begin, end = np.searchsorted(sequences, (batch.first, batch.stop))
            found += int(np.count_nonzero(batch.live[sequences[begin:end] - batch.first]))
            place += 1
        return found == len(sequences)

    def release_all(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Releases those of ``sequences`` (sorted, different) that are in flight; returns their slots. The
        cost is per batch, not per frame."""
        slots: list[npt.NDArray[np.uint32]] = []
        place = (
            max(0, bisect_right(self._firsts, int(sequences[0])) - 1)
            if len(sequences)
            else len(self._batches)
        )
        while place < len(self._batches) and self._batches[place].first <= sequences[-1]:
            batch = self._batches[place]
            begin, end = np.searchsorted(sequences, (batch.first, batch.stop))
            rows = sequences[begin:end] - batch.first
            rows = rows[batch.live[rows]]
            slots.append(batch.slots[rows])
            batch.live[rows] = False
            batch.remaining -= len(rows)
            self.frames -= len(rows)
            if batch.remaining == 0:
                del self._firsts[place], self._batches[place]
            else:
                place += 1
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
