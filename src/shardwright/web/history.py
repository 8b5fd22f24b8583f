"""The last minutes of the daemon, by its own clock: what its snapshots say of each moment, and what lies
between two of them. Kept by the server, so that a page that is opened late has them too."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SPAN_S = 180.0
STEP_S = 0.9  # between two samples that are kept, at least
# A rate is that of the last seconds: steady enough to read, and soon that of now. Stored bytes have another
# one in the daemon, by which it foretells when a disk is full (``daemon.disks``). That one is of minutes, and
# stands still while a disk hangs, just when the page must show that nothing is stored. The ingest thread,
# which measures the rate of what comes, would have to add up the receipts of all acquisitions for it, twice a
# second.
RATE_SPAN_S = 3.0
LATENCY_SPAN_S = 10.0


@dataclass(frozen=True)
class _StatusSample:
    """One sample of the history. ``stored``: the counts of the histogram of the time from a frame's arrival
    until it is stored, and ``bounds_s`` of its buckets."""

    time_s: float
    bytes_stored: int
    bounds_s: list[float]
    stored: list[int]

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> _StatusSample:
        streams = snapshot["streams"].values()
        histograms = [stream["histograms"]["store_seconds"] for stream in streams]
        return cls(
            snapshot["uptime_s"],
            snapshot["sums"]["bytes_stored"],
            histograms[0]["le"],
            [sum(counts) for counts in zip(*(each["counts"] for each in histograms), strict=True)],
        )


class History:
    """Owned by the event loop."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._samples: deque[_StatusSample] = deque()
        self._points: deque[dict[str, float | None]] = deque()

    def added_to(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the snapshot of now with the newest point (``points``) as ``now``."""
        sample = _StatusSample.of(snapshot)
        if snapshot["pid"] != self._pid or (self._samples and sample.time_s < self._samples[-1].time_s):
            self._pid = snapshot["pid"]
            self._samples.clear()
            self._points.clear()
        point = self._point(snapshot, sample)
        if not self._samples or sample.time_s - self._samples[-1].time_s >= STEP_S:
            self._keep(sample, point)
        return {**snapshot, "now": point}

    def points(self) -> list[dict[str, float | None]]:
        """Returns what was kept of the last ``SPAN_S``, oldest first: ``time_s`` since the daemon's start,
        rates of the last seconds, the part of the ring that is full, and the time until frames are stored;
        None where it is not known."""
        return list(self._points)

    def _keep(self, sample: _StatusSample, point: dict[str, float | None]) -> None:
        self._samples.append(sample)
        self._points.append(point)
        while self._samples[0].time_s < sample.time_s - SPAN_S - RATE_SPAN_S:
            self._samples.popleft()
            self._points.popleft()

    def _point(self, snapshot: Mapping[str, Any], sample: _StatusSample) -> dict[str, float | None]:
        sums = snapshot["sums"]
        earlier = self._before(sample.time_s - LATENCY_SPAN_S)
        new = sample.stored if earlier is None else _less(sample.stored, earlier.stored)
        return {
            "time_s": sample.time_s,
            "frames_per_s": snapshot["rate_hz"],
            "received_bytes_per_s": snapshot["bytes_per_s"],
            "stored_bytes_per_s": self._stored_bytes_per_s(sample),
            "ring": sums["ring_used"] / sums["ring_frames"] if sums["ring_frames"] else 0.0,
            "median_s": None if earlier is None else quantile(sample.bounds_s, new, 0.5),
            "most_s": None if earlier is None else quantile(sample.bounds_s, new, 0.99),
        }

    def _before(self, time_s: float) -> _StatusSample | None:
        """Returns the newest sample that is at least as old as ``time_s``, else the oldest one."""
        old = (sample for sample in reversed(self._samples) if sample.time_s <= time_s)
        return next(old, self._samples[0] if self._samples else None)

    def _stored_bytes_per_s(self, sample: _StatusSample) -> float | None:
        before = self._before(sample.time_s - RATE_SPAN_S)
        if before is None or sample.time_s <= before.time_s:
            return None
        return max(0, sample.bytes_stored - before.bytes_stored) / (sample.time_s - before.time_s)


def _less(newer: list[int], older: list[int]) -> list[int]:
    """Returns what was counted between two histograms."""
    return [n - o for n, o in zip(newer, older, strict=True)]


def quantile(bounds_s: list[float], counts: list[int], part: float) -> float | None:
    """Returns the time within which ``part`` of what was counted took place, from buckets of at most
    ``bounds_s`` each and a last one for all longer; None where nothing was counted."""
    left = part * sum(counts)
    if left <= 0:
        return None
    for bucket, count in enumerate(counts):
        if count and count >= left:
            low = bounds_s[bucket - 1] if bucket else 0.0
            high = bounds_s[min(bucket, len(bounds_s) - 1)]
            return low + (high - low) * (left / count)
        left -= count
    return bounds_s[-1]
