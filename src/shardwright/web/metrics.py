"""/metrics: the daemon's snapshot in the format of Prometheus. METRICS.md lists every name.

Labels are bounded: streams by the names in the configuration and in stores that the daemon found unfinished
(``client`` for all clients with an array of their own), disks by role, events by the names in the code. There
are no labels by acquisition.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder

from shardwright.model.disk_full import DISK_FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    Facts = Mapping[str, Any]

STATES = ("starting", "serving", DISK_FULL, "draining")

# name: (key in a stream's part of the snapshot, help)
STREAM_COUNTERS = {
    "acquisitions": ("acquisitions", "Acquisitions opened."),
    "acquisitions_failed": ("acquisitions_failed", "Acquisitions ended by an error."),
    "frames_received": (
        "frames_received",
        "Frames that the daemon received, or got a descriptor of; each has one of the statuses below.",
    ),
    "frames_stored": (
        "frames_stored",
        "Frames in their chunk or the staging area: safe from the daemon's death.",
    ),
    "frames_durable": ("frames_durable", "Stored frames that are synced: safe from a power cut."),
    "frames_duplicate": ("frames_duplicate", "Frames whose place already had a frame."),
    "frames_late": (
        "frames_late",
        "Frames that came after their place was closed, with its slab or its shard row.",
    ),
    "frames_lost": ("frames_lost", "Accepted frames that an error kept from the disk."),
    "frame_json_dropped": (
        "frame_json_dropped",
        "Frames whose JSON was longer than frame_json_bytes and was left out.",
    ),
    "received_bytes": ("bytes_received", "Pixel bytes of the frames received."),
    "stored_bytes": ("bytes_raw", "Pixel bytes of the frames stored."),
    "durable_bytes": ("bytes_durable", "Pixel bytes of the frames that are synced."),
    "duplicate_bytes": ("bytes_duplicate", "Pixel bytes of the duplicate frames."),
    "late_bytes": ("bytes_late", "Pixel bytes of the late frames."),
    "lost_bytes": ("bytes_lost", "Pixel bytes of the lost frames."),
    "written_bytes": ("bytes_stored", "Bytes of the encoded chunks and indexes in the shards."),
    "shards_sealed": ("shards_sealed", "Shards that got their final name."),
}
DROPPED_COUNTERS = {
    "frames_dropped": ("frames_dropped", "Frames that were not accepted, by reason."),
    "dropped_bytes": ("bytes_dropped", "Pixel bytes of the frames that were not accepted, by reason."),
}
DROP_REASONS = ("overload",)  # model/frame_status.py: the one reason for which a frame is dropped
DEGRADED_COUNTERS = {
    "frames_degraded": (
        "frames",
        "Frames stored with a chunk below the configured compression, by the fastest level of their chunks.",
    ),
    "chunks_degraded": ("chunks", "Chunks written below the configured compression, by level."),
}
DEGRADE_LEVELS = ("faster", "uncompressed")  # codecs/degrade.py, without the configured one
STREAM_GAUGES = {
    "frames_missing": (
        "frames_missing",
        (
            "Places without a frame, because it was skipped, dropped, late or lost. For a running "
            "acquisition, only those before its newest frame."
        ),
    ),
    "missing_bytes": ("bytes_missing", "Pixel bytes of those places."),
    "frames_skipped": (
        "frames_skipped",
        "Missing frames that the camera never sent: neither dropped, late nor lost.",
    ),
    "skipped_bytes": ("bytes_skipped", "Pixel bytes of the skipped frames."),
    "ring_frames": ("ring_frames", "Capacity of the rings of running acquisitions, in frames."),
    "ring_used_frames": ("ring_used", "Frames in those rings that are not safe yet."),
    "slabs": ("slabs_total", "The most slabs that the running acquisitions may have in work."),
    "slabs_used": ("slabs_used", "Slabs in work."),
    "degrade_level": (
        "degrade_level",
        (
            "How chunks are encoded now, the highest of the running acquisitions: 0 as configured, 1 faster, "
            "2 uncompressed."
        ),
    ),
}
HISTOGRAMS = {
    "queue_seconds": "Time that a slab waits for a worker.",
    "encode_seconds": "Time in which a worker compresses and writes its chunks.",
    "store_seconds": "Time from the arrival of a frame until it is stored.",
    "commit_seconds": "Time of a sync.",
    "shard_open_seconds": "Time to prepare the files of a shard row.",
    "shard_seal_seconds": "Time to seal the files of a shard row.",
}


def families(snapshot: Facts) -> Iterator[Metric]:
    """Yields every metric of a snapshot."""
    yield from _daemon(snapshot)
    yield from _disks(snapshot["disks"])
    yield from _streams(snapshot["streams"], snapshot["acquisitions"])
    yield from _compaction(snapshot["compaction"])
    yield from _events(snapshot["events"])


def _name(name: str) -> str:
    return f"shardwright_{name}"


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_name(name), text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(_name(name), text, value=value)


def _daemon(snapshot: Facts) -> Iterator[Metric]:
    yield InfoMetricFamily(
        _name("build"), "The software.", value={"version": snapshot["software"].rpartition(" ")[2]}
    )
    state = GaugeMetricFamily(
        _name("state"), "1 for the present state of the daemon, 0 for the others.", labels=["state"]
    )
    for name in STATES:
        state.add_metric([name], float(snapshot["state"] == name))
    yield state
    yield _gauge("uptime_seconds", "Time since the daemon started.", snapshot["uptime_s"])
    yield _gauge(
        "memory_used_bytes", "Memory that counts against the budget.", snapshot["memory"]["used_bytes"]
    )
    yield _gauge("memory_budget_bytes", "The memory budget.", snapshot["memory"]["budget_bytes"])
    yield _gauge("clients", "Connected clients.", snapshot["clients"])
    yield _counter("foreign_messages", "Messages that broke the protocol.", snapshot["foreign_messages"])
    yield _gauge(
        "stall_seconds",
        "Time so far of the longest call that still runs; a stuck disk shows here.",
        snapshot["stall_s"],
    )


def _disks(disks: Iterable[Facts]) -> Iterator[Metric]:
    labels = ["role", "path"]
    free = GaugeMetricFamily(_name("disk_free_bytes"), "Free space of a disk.", labels=labels)
    size = GaugeMetricFamily(_name("disk_size_bytes"), "Size of a disk.", labels=labels)
    low = GaugeMetricFamily(
        _name("disk_low_water_bytes"), "Free space below which the daemon warns.", labels=labels
    )
    full = GaugeMetricFamily(
        _name("disk_time_to_full_seconds"),
        "Time until it is full at the rate of the last minutes; +Inf: nothing is stored.",
        labels=labels,
    )
    for disk in disks:
        names = [disk["role"], disk["path"]]
        low.add_metric(names, disk["low_water_bytes"])
        if disk["free_bytes"] is not None:
            free.add_metric(names, disk["free_bytes"])
            size.add_metric(names, disk["total_bytes"])
            full.add_metric(names, math.inf if disk["full_in_s"] is None else disk["full_in_s"])
    yield from (free, size, low, full)


def _streams(streams: Mapping[str, Facts], acquisitions: Iterable[Facts]) -> Iterator[Metric]:
    running = [acquisition["stream"] for acquisition in acquisitions]
    yield _by_stream(
        GaugeMetricFamily,
        "acquisitions_running",
        "Running acquisitions.",
        {name: running.count(name) for name in streams},
    )
    waiting = [one["stream"] for one in acquisitions if one["state"] == DISK_FULL]
    yield _by_stream(
        GaugeMetricFamily,
        "acquisitions_disk_full",
        "Running acquisitions that wait for room on a full disk.",
        {name: waiting.count(name) for name in streams},
    )
    for kind, table in ((CounterMetricFamily, STREAM_COUNTERS), (GaugeMetricFamily, STREAM_GAUGES)):
        for name, (key, text) in table.items():
            yield _by_stream(kind, name, text, {stream: facts[key] for stream, facts in streams.items()})
    for name, (key, text) in DROPPED_COUNTERS.items():
        dropped = CounterMetricFamily(_name(name), text, labels=["stream", "reason"])
        for stream, facts in streams.items():
            dropped.add_metric([stream, *DROP_REASONS], facts[key])
        yield dropped
    for name, (what, text) in DEGRADED_COUNTERS.items():
        degraded = CounterMetricFamily(_name(name), text, labels=["stream", "level"])
        for stream, facts in streams.items():
            for level in DEGRADE_LEVELS:
                degraded.add_metric([stream, level], facts[f"{what}_{level}"])
        yield degraded
    ratios = {
        stream: facts["bytes_raw"] / facts["bytes_stored"]
        for stream, facts in streams.items()
        if facts["bytes_stored"]
    }
    text = (
        "Pixel bytes stored for each byte written, since the start; staged frames raise it until their "
        "chunk is full."
    )
    yield _by_stream(GaugeMetricFamily, "compression_ratio", text, ratios)
    for name, text in HISTOGRAMS.items():
        histogram = HistogramMetricFamily(_name(name), text, labels=["stream"])
        for stream, facts in streams.items():
            histogram.add_metric([stream], *_buckets(facts["histograms"][name]))
        yield histogram


def _by_stream(kind: Callable[..., Any], name: str, text: str, values: Mapping[str, float]) -> Metric:
    family = kind(_name(name), text, labels=["stream"])
    for stream, value in values.items():
        family.add_metric([stream], value)
    metric: Metric = family
    return metric


def _buckets(histogram: Facts) -> tuple[list[tuple[str, float]], float]:
    """Returns the cumulative buckets of Prometheus, and the sum."""
    total, buckets = 0, []
    for bound, count in zip([*histogram["le"], math.inf], histogram["counts"], strict=True):
        total += count
        buckets.append(("+Inf" if bound == math.inf else repr(float(bound)), float(total)))
    return buckets, histogram["sum"]


def _compaction(compaction: Facts) -> Iterator[Metric]:
    yield _gauge("compaction_enabled", "1 if the daemon compacts sealed stores.", compaction["enabled"])
    yield _gauge("compaction_queued", "Sealed stores that wait to be compacted.", compaction["queued"])
    yield _gauge(
        "compaction_running", "1 while a store is being compacted.", compaction["running"] is not None
    )
    yield _gauge("compaction_paused", "1 while compaction waits for the cameras.", compaction["paused"])
    yield _counter("compaction_stores", "Compacted stores.", compaction["done"])
    yield _counter("compaction_failures", "Failed attempts to compact a store.", compaction["failed"])


def _events(events: Facts) -> Iterator[Metric]:
    counted = CounterMetricFamily(
        _name("events"), "Events by name, whether or not their lines were written.", labels=["event"]
    )
    for name, count in sorted(events["by_name"].items()):
        counted.add_metric([name], count)
    yield counted
    yield _counter(
        "log_lines_dropped",
        "Lines that were dropped because the queue to the log was full.",
        events["lines_dropped"],
    )
    yield _counter(
        "log_lines_unwritten",
        "Lines that could not be written because writing to the output failed.",
        events["lines_unwritten"],
    )


class _Families:
    """The registry that an encoder reads."""

    def __init__(self, snapshot: Facts, process: ProcessCollector) -> None:
        self._snapshot = snapshot
        self._process = process

    def collect(self) -> Iterator[Metric]:
        yield from families(self._snapshot)
        yield from self._process.collect()


class Metrics:
    """The metrics of the daemon, which is this process's parent, and of its process. ``render`` answers a
    scrape."""

    def __init__(self) -> None:
        self._process = ProcessCollector(
            namespace="shardwright", pid=os.getppid, registry=CollectorRegistry()
        )

    def render(self, snapshot: Facts, accept: str) -> tuple[bytes, str]:
        """Returns the text and its type, in the format that the scraper accepts."""
        encode, content_type = choose_encoder(accept)
        return encode(_Families(snapshot, self._process)), content_type
