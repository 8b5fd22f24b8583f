"""/metrics: the daemon's snapshot in the format of Prometheus. METRICS.md lists every name.

Labels are bounded: streams by the names in the configuration and in stores that the daemon found unfinished
(``client`` for all clients with an array of their own), disks by role, events by the names in the code. There
are no labels by acquisition.
"""

from __future__ import annotations

import math
import os
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder

from shardwright.daemon.snapshot import State
from shardwright.model.disk_full import DISK_FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    Facts = Mapping[str, Any]


# name: (key in the snapshot, help); a key may lead deeper
DAEMON_GAUGES = {
    "uptime_seconds": ("uptime_s", "Time since the daemon started."),
    "memory_used_bytes": ("memory.used_bytes", "Memory that counts against the budget."),
    "memory_budget_bytes": ("memory.budget_bytes", "The memory budget."),
    "clients": ("clients", "Connected clients."),
    "stall_seconds": (
        "stall_s",
        "Time so far of the longest call that still runs; a stuck disk shows here.",
    ),
    "compaction_enabled": ("compaction.enabled", "1 if the daemon compacts sealed stores."),
    "compaction_queued": ("compaction.queued", "Sealed stores that wait to be compacted."),
    "compaction_running": ("compaction.running", "1 while a store is being compacted."),
    "compaction_paused": ("compaction.paused", "1 while compaction waits for the cameras."),
}
DAEMON_COUNTERS = {
    "foreign_messages": ("foreign_messages", "Messages that broke the protocol."),
    "compaction_stores": ("compaction.done", "Compacted stores."),
    "compaction_failures": ("compaction.failed", "Failed attempts to compact a store."),
    "scrubbed_stores": ("compaction.scrubbed", "Finished stores that were read and verified."),
    "scrub_failures": ("compaction.scrub_failed", "Scrubs that found something wrong, or did not end."),
    "notifications_sent": ("notifications.sent", "Notifications that their receiver took."),
    "notifications_failed": ("notifications.failed", "Notifications that their receiver did not take."),
    "notifications_dropped": (
        "notifications.dropped",
        "Notifications that were dropped because the queue to their receiver was full.",
    ),
    "log_lines_dropped": (
        "events.lines_dropped",
        "Lines that were dropped because the queue to the log was full.",
    ),
    "log_lines_unwritten": (
        "events.lines_unwritten",
        "Lines that could not be written because writing to the output failed.",
    ),
}
# name: (key of a disk, help)
DISK_GAUGES = {
    "disk_free_bytes": ("free_bytes", "Free space of a disk."),
    "disk_size_bytes": ("total_bytes", "Size of a disk."),
    "disk_low_water_bytes": ("low_water_bytes", "Free space below which the daemon warns."),
    "disk_time_to_full_seconds": (
        "full_in_s",
        "Time until it is full at the rate of the last minutes; +Inf: nothing is stored.",
    ),
}
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
    "places_skipped": ("places_skipped", "Places for which the camera said that no frame comes."),
    "frame_json_dropped": (
        "frame_json_dropped",
        "Frames whose JSON was longer than frame_json_bytes and was left out.",
    ),
    "encode_checks_failed": (
        "encode_checks_failed",
        "Chunks that did not decode to their pixels, and were stored uncompressed.",
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
# name: (a label beside the stream, the key of each of its values, help). A frame is dropped for one reason
# (model/frame_status.py); chunks are written below the configured level at two (codecs/degrade.py).
LABELLED_COUNTERS = {
    "frames_dropped": (
        "reason",
        {"overload": "frames_dropped"},
        "Frames that were not accepted, by reason.",
    ),
    "dropped_bytes": (
        "reason",
        {"overload": "bytes_dropped"},
        "Pixel bytes of the frames that were not accepted, by reason.",
    ),
    "frames_degraded": (
        "level",
        {"faster": "frames_faster", "uncompressed": "frames_uncompressed"},
        "Frames stored with a chunk below the configured compression, by the fastest level of their chunks.",
    ),
    "chunks_degraded": (
        "level",
        {"faster": "chunks_faster", "uncompressed": "chunks_uncompressed"},
        "Chunks written below the configured compression, by level.",
    ),
}
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
    version = snapshot["software"].rpartition(" ")[2]
    yield InfoMetricFamily(_name("build"), "The software.", value={"version": version})
    text = "1 for the present state of the daemon, 0 for the others."
    states = {(state,): float(snapshot["state"] == state) for state in get_args(State)}
    yield _family(GaugeMetricFamily, "state", text, ["state"], states)
    for kind, table in ((GaugeMetricFamily, DAEMON_GAUGES), (CounterMetricFamily, DAEMON_COUNTERS)):
        for name, (key, text) in table.items():
            yield kind(_name(name), text, value=_number(reduce(getitem, key.split("."), snapshot)))
    for name, (key, text) in DISK_GAUGES.items():
        values = {(disk["role"], disk["path"]): _of_disk(disk, key) for disk in snapshot["disks"]}
        yield _family(GaugeMetricFamily, name, text, ["role", "path"], values)
    yield from _streams(snapshot["streams"], snapshot["acquisitions"])
    text = "Events by name, whether or not their lines were written."
    events = {(name,): count for name, count in sorted(snapshot["events"]["by_name"].items())}
    yield _family(CounterMetricFamily, "events", text, ["event"], events)


def _name(name: str) -> str:
    return f"shardwright_{name}"


def _family(
    kind: Callable[..., Any],
    name: str,
    text: str,
    labels: Sequence[str],
    values: Mapping[Any, float | None],
) -> Metric:
    """A metric with labels. ``values``: a number, or None for none, by the values of the labels."""
    family = kind(_name(name), text, labels=labels)
    for key, value in values.items():
        if value is not None:
            family.add_metric(key, value)
    metric: Metric = family
    return metric


def _number(value: Any) -> float:
    """1 and 0 for what is there and what is not, such as the store that is being compacted."""
    return float(value is not None) if value is None or isinstance(value, str) else float(value)


def _of_disk(disk: Facts, key: str) -> float | None:
    is_endless = key == "full_in_s" and disk[key] is None and disk["free_bytes"] is not None
    return math.inf if is_endless else disk[key]


def _streams(streams: Mapping[str, Facts], acquisitions: Sequence[Facts]) -> Iterator[Metric]:
    running = {
        "acquisitions_running": ("Running acquisitions.", acquisitions),
        "acquisitions_disk_full": (
            "Running acquisitions that wait for room on a full disk.",
            [one for one in acquisitions if one["state"] == DISK_FULL],
        ),
    }
    for name, (text, chosen) in running.items():
        counts = {(stream,): sum(one["stream"] == stream for one in chosen) for stream in streams}
        yield _family(GaugeMetricFamily, name, text, ["stream"], counts)
    for kind, table in ((CounterMetricFamily, STREAM_COUNTERS), (GaugeMetricFamily, STREAM_GAUGES)):
        for name, (key, text) in table.items():
            values = {(stream,): facts[key] for stream, facts in streams.items()}
            yield _family(kind, name, text, ["stream"], values)
    for name, (label, keys, text) in LABELLED_COUNTERS.items():
        labelled = {
            (stream, value): facts[key] for stream, facts in streams.items() for value, key in keys.items()
        }
        yield _family(CounterMetricFamily, name, text, ["stream", label], labelled)
    ratios = {
        (stream,): facts["bytes_raw"] / facts["bytes_stored"] if facts["bytes_stored"] else None
        for stream, facts in streams.items()
    }
    text = (
        "Pixel bytes stored for each byte written, since the start; staged frames raise it until their "
        "chunk is full."
    )
    yield _family(GaugeMetricFamily, "compression_ratio", text, ["stream"], ratios)
    for name, text in HISTOGRAMS.items():
        histogram = HistogramMetricFamily(_name(name), text, labels=["stream"])
        for stream, facts in streams.items():
            histogram.add_metric([stream], *_buckets(facts["histograms"][name]))
        yield histogram


def _buckets(histogram: Facts) -> tuple[list[tuple[str, float]], float]:
    """Returns the cumulative buckets of Prometheus, and the sum."""
    total, buckets = 0, []
    for bound, count in zip([*histogram["le"], math.inf], histogram["counts"], strict=True):
        total += count
        buckets.append(("+Inf" if bound == math.inf else repr(float(bound)), float(total)))
    return buckets, histogram["sum"]


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
