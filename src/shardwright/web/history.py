"""The last minutes of the daemon: sums over all streams, the rates between them, and the time until its disks
are full, by the daemon's own clock. Kept by the server, so that a page that is opened late has them too."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SPAN_S = 180.0
STEP_S = 0.9  # between two samples that are kept, at least
RATE_SPAN_S = 3.0  # a rate is that of the last seconds: steady enough to read
LATENCY_SPAN_S = 10.0
DISK_SPAN_S = 120.0
DISK_LEAST_S = 5.0  # a shorter time says little of a disk: bytes are stored slab by slab
SUMMED = (
    "frames_received",
    "bytes_received",
    "frames_stored",
    "frames_durable",
    "bytes_raw",
    "bytes_stored",
    "frames_skipped",
    "frames_duplicate",
    "frames_late",
    "frames_dropped",
    "frames_lost",
    "ring_frames",
    "ring_used",
)


@dataclass(frozen=True)
class _StatusSample:
    """``stored``: the counts of the histogram of the time from a frame's arrival until it is stored, and
    ``bounds_s`` of its buckets."""

    time_s: float
    sums: dict[str, int]
    bounds_s: list[float]
    stored: list[int]

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> _StatusSample:
        streams = snapshot["streams"].values()
        sums = {name: sum(stream.get(name, 0) for stream in streams) for name in SUMMED}
        sums["degrade_level"] = max((stream.get("degrade_level", 0) for stream in streams), default=0)
        histograms = [stream["histograms"]["store_seconds"] for stream in streams if "histograms" in stream]
        return cls(
            snapshot["uptime_s"],
            sums,
            histograms[0]["le"] if histograms else [],
            [sum(counts) for counts in zip(*(each["counts"] for each in histograms), strict=True)],
        )


class History:
    """Owned by the event loop."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._samples: deque[_StatusSample] = deque()
        self._points: deque[dict[str, float | None]] = deque()

    def added_to(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the snapshot of now with ``sums`` over the streams, ``now``, the newest point (``points``),
        and for each disk ``full_in_s``: None where nothing is stored, or the rate is not known yet."""
        sample = _StatusSample.of(snapshot)
        if snapshot["pid"] != self._pid or (self._samples and sample.time_s < self._samples[-1].time_s):
            self._pid = snapshot["pid"]
            self._samples.clear()
            self._points.clear()
        point = self._point(sample)
        # Changes of the free space are no measure: shards are preallocated and give back what they did not
        # need, so that it jumps by whole shards.
        rate = self._per_s("bytes_stored", sample, DISK_SPAN_S, DISK_LEAST_S) or 0.0
        if not self._samples or sample.time_s - self._samples[-1].time_s >= STEP_S:
            self._keep(sample, point)
        disks = [
            {
                **disk,
                "full_in_s": disk["free_bytes"] / rate
                if rate > 0 and disk["free_bytes"] is not None
                else None,
            }
            for disk in snapshot["disks"]
        ]
        return {**snapshot, "disks": disks, "sums": sample.sums, "now": point}

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

    def _point(self, sample: _StatusSample) -> dict[str, float | None]:
        sums = sample.sums
        earlier = self._before(sample.time_s - LATENCY_SPAN_S)
        new = sample.stored if earlier is None else _less(sample.stored, earlier.stored)
        return {
            "time_s": sample.time_s,
            "frames_per_s": self._per_s("frames_received", sample, RATE_SPAN_S),
            "received_bytes_per_s": self._per_s("bytes_received", sample, RATE_SPAN_S),
            "stored_bytes_per_s": self._per_s("bytes_stored", sample, RATE_SPAN_S),
            "ring": sums["ring_used"] / sums["ring_frames"] if sums["ring_frames"] else 0.0,
            "median_s": None if earlier is None else quantile(sample.bounds_s, new, 0.5),
            "most_s": None if earlier is None else quantile(sample.bounds_s, new, 0.99),
        }

    def _before(self, time_s: float) -> _StatusSample | None:
        """Returns the newest sample that is at least as old as ``time_s``, else the oldest one."""
        old = (sample for sample in reversed(self._samples) if sample.time_s <= time_s)
        return next(old, self._samples[0] if self._samples else None)

    def _per_s(self, name: str, sample: _StatusSample, span_s: float, least_s: float = 0.0) -> float | None:
        """Returns the rate of a sum over the last ``span_s``; None before ``least_s`` are known."""
        before = self._before(sample.time_s - span_s)
        if before is None or sample.time_s - before.time_s <= least_s:
            return None
        return max(0, sample.sums[name] - before.sums[name]) / (sample.time_s - before.time_s)


def _less(newer: list[int], older: list[int]) -> list[int]:
    """Returns what was counted between two histograms; ``older`` is empty before the first stream."""
    return [n - o for n, o in zip(newer, older or [0] * len(newer), strict=True)]


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
