"""The places of an image that have no stored frame, with the reason where the frame table has one.

Memory is bounded, whatever the size of the table: places are read in windows, each of a fixed number of rows.
A window reads only the table's chunks that have rows in it. Frames come nearly in order, so nearly every
chunk is read once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ShardFormatError
from shardwright.model.frame_status import FrameStatus, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .frame_table import FrameTable
    from .store import StoredArray

ROWS_PER_WINDOW = 1 << 19
MAX_FAULTS_KEPT = 10_000

_NOTHING = 0  # no row of the table has the place
_STORED_TWICE = 1 << 15
Codes = npt.NDArray[np.uint16]  # status * 256 + reason
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MissingRange:
    """Places ``first`` to ``last`` (inclusive) in the order of acquisition. ``status`` and ``reason`` are
    None where the table has no row for them."""

    first: int
    last: int
    status: FrameStatus | None
    reason: Reason | None

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class MissingFrames:
    """The missing frames of an image. ``places``: of the image. ``unplaced``: rows without a place, by
    (status, reason). The constructor reads the table once."""

    def __init__(self, table: FrameTable, array: StoredArray) -> None:
        if not table.tells_statuses:
            raise ShardFormatError(
                f"the frame table {table.path} does not record the status of frames",
                hint="An early version wrote it; `shardwright verify` checks the image",
            )
        self._table = table
        self.counts = table.frame_counts(array)
        self.places = int(np.prod(self.counts, dtype=object))
        self.unplaced: Counter[tuple[FrameStatus, Reason]] = Counter()
        # the first of the places stored twice, up to where ``ranges`` has read: a fault of the table
        self.stored_twice: list[int] = []
        self._bounds = [self._look_at(chunk) for chunk in range(table.chunks)]
        self._end = max([self.places, *(last + 1 for _, last in self._bounds)])

    def index_of(self, place: int) -> tuple[int, ...]:
        index = []
        for count in reversed(self.counts[1:]):
            place, along = divmod(place, count)
            index.append(along)
        return (place, *reversed(index)) if self.counts else ()

    def ranges(self) -> Iterator[MissingRange]:
        """Yields ranges in order, each as long as possible. They end beyond the image when frames that were
        not stored had places there."""
        pending: tuple[int, int, int] | None = None
        start = 0
        while start < self._end:
            places, codes, stop = self._window(start)
            self.stored_twice += places[codes & _STORED_TWICE > 0][
                : MAX_FAULTS_KEPT - len(self.stored_twice)
            ].tolist()
            for first, last, code in _runs(places, codes, start, stop):
                if pending is not None and pending[1] + 1 == first and pending[2] == code:
                    pending = (pending[0], last, code)
                    continue
                if pending is not None:
                    yield _range(*pending)
                pending = (first, last, code)
            start = stop
        if pending is not None:
            yield _range(*pending)

    def _look_at(self, chunk: int) -> tuple[int, int]:
        """Returns the (lowest, highest) place in a chunk's rows; (0, -1) when no row has a place."""
        places, codes = self._read(chunk)
        for code, rows in zip(*np.unique(codes[places < 0], return_counts=True), strict=True):
            self.unplaced[(FrameStatus(int(code) >> 8), Reason(int(code) & 0xFF))] += int(rows)
        places = places[places >= 0]
        return (int(places.min()), int(places.max())) if places.size else (0, -1)

    def _read(self, chunk: int) -> tuple[Places, Codes]:
        """Returns places (-1: none) and codes of a chunk's rows. Leaves out duplicates, which do not change a
        place, and rows whose place the array has lost along an axis other than the first."""
        status, reason, indices = (
            self._table.read_statuses(chunk),
            self._table.read("reason", chunk),
            self._table.read_indices(chunk),
        )
        if not np.isin(status, list(FrameStatus)).all() or not np.isin(reason, list(Reason)).all():
            raise ShardFormatError(
                f"chunk {chunk} of {self._table.path} has an unknown status or reason",
                hint="`shardwright verify` lists the faults of the table",
            )
        places = np.zeros(len(status), np.int64)
        for axis, count in enumerate(self.counts):
            places = places * count + indices[:, axis]
        places[(indices < 0).any(axis=1)] = -1
        named = (status != FrameStatus.DUPLICATE) & (indices[:, 1:] < self.counts[1:]).all(axis=1)
        return places[named], (status.astype(np.uint16) << 8 | reason)[named]

    def _window(self, start: int) -> tuple[Places, Codes, int]:
        """Returns (places, codes, stop): one code for each place that has rows in [start, stop), in order."""
        places, codes, stop = np.zeros(0, np.int64), np.zeros(0, np.uint16), self._end
        for chunk, (lowest, highest) in enumerate(self._bounds):
            if highest < start or lowest >= stop:
                continue
            more_places, more_codes = self._read(chunk)
            here = (more_places >= start) & (more_places < stop)
            places, codes = _one_code_each(
                np.concatenate([places, more_places[here]]), np.concatenate([codes, more_codes[here]])
            )
            if places.size > ROWS_PER_WINDOW:
                stop = int(places[ROWS_PER_WINDOW])
                places, codes = places[:ROWS_PER_WINDOW], codes[:ROWS_PER_WINDOW]
        return places, codes, stop


def _one_code_each(places: Places, codes: Codes) -> tuple[Places, Codes]:
    """Returns sorted places without repetition. A stored frame takes precedence over all others, then the
    latest row."""
    order = np.argsort(places, kind="stable")
    places, codes = places[order], codes[order]
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    if not starts.size:
        return places, codes
    stored = (codes >> 8 & 0x7F == FrameStatus.STORED).astype(np.int64) + (codes & _STORED_TWICE > 0)
    times = np.add.reduceat(stored, starts)
    latest = codes[np.append(starts[1:], len(codes)) - 1]
    merged = np.where(times > 0, np.uint16(FrameStatus.STORED << 8), latest) | np.where(
        times > 1, np.uint16(_STORED_TWICE), np.uint16(0)
    )
    return places[starts], merged.astype(np.uint16)


def _runs(places: Places, codes: Codes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields (first, last, code) of every run of places in [start, stop) that are not stored, in order."""
    edges = np.concatenate([[start - 1], places, [stop]])
    gaps = np.flatnonzero(np.diff(edges) > 1)
    named = codes >> 8 & 0x7F != FrameStatus.STORED
    first = np.concatenate([edges[gaps] + 1, places[named]])
    last = np.concatenate([edges[gaps + 1] - 1, places[named]])
    code = np.concatenate([np.full(len(gaps), _NOTHING, np.uint16), codes[named]])
    order = np.argsort(first)
    first, last, code = first[order], last[order], code[order]
    begins = (
        np.flatnonzero(np.append(True, (first[1:] != last[:-1] + 1) | (code[1:] != code[:-1])))
        if first.size
        else np.zeros(0, np.intp)
    )
    ends = np.append(begins[1:], len(first)) - 1
    for a, b in zip(begins.tolist(), ends[: len(begins)].tolist(), strict=True):
        yield int(first[a]), int(last[b]), int(code[a])


def _range(first: int, last: int, code: int) -> MissingRange:
    if code == _NOTHING:
        return MissingRange(first, last, None, None)
    return MissingRange(first, last, FrameStatus(code >> 8), Reason(code & 0xFF))
