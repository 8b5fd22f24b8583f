"""Measurements of a pipeline: durations of its steps, and the duration of each thread's present work.

Each number is written by one thread, without a lock. It may be read at any time from any thread and may then
be a moment old.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

_NS = 1_000_000_000
BOUNDS_NS = tuple(
    digit * 10**power for power in range(5, 12) for digit in (1, 2, 5) if digit * 10**power <= 100 * _NS
)  # 100 us to 100 s
BOUNDS_S = tuple(bound / _NS for bound in BOUNDS_NS)
_BOUNDS_NS = np.array(BOUNDS_NS, np.int64)


class Histogram:
    """A histogram of durations with fixed buckets: bucket ``i`` counts those of at most ``BOUNDS_S[i]``
    seconds, the last bucket all longer ones."""

    def __init__(self) -> None:
        self.counts = np.zeros(len(BOUNDS_NS) + 1, np.int64)
        self.sum_ns = 0

    def observe_ns(self, duration_ns: int) -> None:
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    def observe_all_ns(self, durations_ns: np.ndarray) -> None:
        """Counts durations, int64[n]."""
        self.counts += np.bincount(_BOUNDS_NS.searchsorted(durations_ns), minlength=self.counts.size)
        self.sum_ns += int(np.add.reduce(durations_ns))

    def plus(self, others: Iterable[Histogram]) -> Histogram:
        """Returns the sum of this and the others."""
        total = Histogram()
        for each in (self, *others):
            total.counts += each.counts
            total.sum_ns += each.sum_ns
        return total

    def to_dict(self) -> dict[str, Any]:
        counts = self.counts.tolist()
        return {"le": list(BOUNDS_S), "counts": counts, "sum": self.sum_ns / _NS, "count": sum(counts)}


@dataclass(frozen=True)
class Measures:
    """The histograms of one acquisition, or a sum of several. Written by the acquisition's owner, which gets
    the durations in reports of workers and sealer.

    ``queue``: a task waits for a worker; ``encode``: a worker compresses and writes its chunks; ``store``:
    from a frame's arrival until it is stored; ``commit``: a sync; ``shard_open``, ``shard_seal``: the files
    of one shard row are prepared, or sealed. Failed steps are not counted.
    """

    queue: Histogram = field(default_factory=Histogram)
    encode: Histogram = field(default_factory=Histogram)
    store: Histogram = field(default_factory=Histogram)
    commit: Histogram = field(default_factory=Histogram)
    shard_open: Histogram = field(default_factory=Histogram)
    shard_seal: Histogram = field(default_factory=Histogram)

    def plus(self, others: Iterable[Measures]) -> Measures:
        """Returns the sum of this and the others."""
        others = list(others)
        return Measures(
            **{
                f.name: getattr(self, f.name).plus(getattr(other, f.name) for other in others)
                for f in fields(self)
            }
        )

    def to_dict(self) -> dict[str, Any]:
        return {f"{f.name}_seconds": getattr(self, f.name).to_dict() for f in fields(self)}


class BusyClock:
    """The start of one thread's present work. A context manager around each piece of work, entered by that
    thread only."""

    __slots__ = ("_since_s",)

    def __init__(self) -> None:
        self._since_s = 0.0  # 0: it waits for work

    def __enter__(self) -> None:
        self._since_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._since_s = 0.0

    def step(self) -> None:
        """Restarts the clock after a part of the work: long work that makes progress is not stuck. By that
        thread, or one that helps it."""
        self._since_s = time.monotonic()

    def busy_s(self) -> float:
        """The duration so far of the present work (or of its part: ``step``); 0 when there is none. From any
        thread."""
        since_s = self._since_s
        return time.monotonic() - since_s if since_s else 0.0
