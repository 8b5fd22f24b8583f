"""Every number of the daemon's snapshot comes out of /metrics under its own name: here all of them differ, so
that none can stand for another."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shardwright.acquire.measures import Measures
from shardwright.web.metrics import families

STATUSES = ("durable", "missing", "skipped", "duplicate", "late", "dropped", "lost")
NUMBERS = itertools.count(1000)


def stream() -> dict[str, Any]:
    counts = (
        "acquisitions",
        "acquisitions_failed",
        "shards_sealed",
        "bytes_received",
        "bytes_raw",
        "bytes_stored",
        "frames_received",
        "frames_stored",
    )
    occupancy = (
        "frame_json_dropped",
        "places_skipped",
        "encode_checks_failed",
        "ring_frames",
        "ring_used",
        "slabs_total",
        "slabs_used",
        "degrade_level",
    )
    degraded = [f"{what}_{level}" for what in ("frames", "chunks") for level in ("faster", "uncompressed")]
    names = (
        *degraded,
        *counts,
        *(f"frames_{status}" for status in STATUSES),
        *(f"bytes_{status}" for status in STATUSES),
        *occupancy,
    )
    measures = Measures()
    for histogram in (
        getattr(measures, name) for name in ("queue", "encode", "store", "commit", "shard_open", "shard_seal")
    ):
        histogram.observe_ns(next(NUMBERS) * 1_000_000)
    return {**{name: next(NUMBERS) for name in names}, "histograms": measures.to_dict()}


def disk(role: str, **known: Any) -> dict[str, Any]:
    facts = {name: next(NUMBERS) for name in ("free_bytes", "total_bytes", "low_water_bytes", "full_in_s")}
    return {"path": f"/{role}", "role": role, **facts, **known}


SNAPSHOT: dict[str, Any] = {
    "software": "shardwright 1.2.3",
    "state": "draining",
    **{name: next(NUMBERS) for name in ("uptime_s", "clients", "foreign_messages", "stall_s")},
    "memory": {"used_bytes": next(NUMBERS), "budget_bytes": next(NUMBERS)},
    "disks": [disk("root"), disk("spill", full_in_s=None)],
    "streams": {"cam0": stream(), "client": stream()},
    "acquisitions": [
        {"stream": stream, "state": state}
        for stream, state in (("client", "running"), ("cam0", "disk_full"), ("client", "detached"))
    ],
    "compaction": {
        "enabled": True,
        "queued": next(NUMBERS),
        "running": "/a",
        "paused": False,
        "done": next(NUMBERS),
        "failed": next(NUMBERS),
        "scrubbed": next(NUMBERS),
        "scrub_failed": next(NUMBERS),
    },
    "notifications": {name: next(NUMBERS) for name in ("sent", "failed", "dropped")},
    "events": {
        "lines_dropped": next(NUMBERS),
        "lines_unwritten": next(NUMBERS),
        "by_name": {"ready": next(NUMBERS), "disk_full": next(NUMBERS)},
    },
}


def told(snapshot: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Values by name and values of the labels."""
    samples = [
        sample
        for family in families(snapshot)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    ]
    return {
        (sample.name.removeprefix("shardwright_"), *sample.labels.values()): sample.value
        for sample in samples
    }


def expected(snapshot: dict[str, Any]) -> dict[tuple[str, ...], float]:
    memory, compaction, events = snapshot["memory"], snapshot["compaction"], snapshot["events"]
    values = {
        ("build_info", "1.2.3"): 1,
        ("state", "starting"): 0,
        ("state", "serving"): 0,
        ("state", "disk_full"): 0,
        ("state", "draining"): 1,
        ("uptime_seconds",): snapshot["uptime_s"],
        ("clients",): snapshot["clients"],
        ("foreign_messages_total",): snapshot["foreign_messages"],
        ("stall_seconds",): snapshot["stall_s"],
        ("memory_used_bytes",): memory["used_bytes"],
        ("memory_budget_bytes",): memory["budget_bytes"],
        ("compaction_enabled",): 1,
        ("compaction_queued",): compaction["queued"],
        ("compaction_running",): 1,
        ("compaction_paused",): 0,
        ("compaction_stores_total",): compaction["done"],
        ("compaction_failures_total",): compaction["failed"],
        ("scrubbed_stores_total",): compaction["scrubbed"],
        ("scrub_failures_total",): compaction["scrub_failed"],
        **{(f"notifications_{name}_total",): n for name, n in snapshot["notifications"].items()},
        ("log_lines_dropped_total",): events["lines_dropped"],
        ("log_lines_unwritten_total",): events["lines_unwritten"],
        **{("events_total", name): count for name, count in events["by_name"].items()},
        ("acquisitions_running", "cam0"): 1,
        ("acquisitions_running", "client"): 2,
        ("acquisitions_disk_full", "cam0"): 1,
        ("acquisitions_disk_full", "client"): 0,
    }
    for each in snapshot["disks"]:
        values |= of_disk(each)
    for name, facts in snapshot["streams"].items():
        values |= of_stream(name, facts)
    return values


def of_disk(disk: dict[str, Any]) -> dict[tuple[str, ...], float]:
    where = (disk["role"], disk["path"])
    return {
        ("disk_free_bytes", *where): disk["free_bytes"],
        ("disk_size_bytes", *where): disk["total_bytes"],
        ("disk_low_water_bytes", *where): disk["low_water_bytes"],
        ("disk_time_to_full_seconds", *where): float("inf")
        if disk["full_in_s"] is None
        else disk["full_in_s"],
    }


def of_stream(name: str, facts: dict[str, Any]) -> dict[tuple[str, ...], float]:
    values = {
        ("acquisitions_total", name): facts["acquisitions"],
        ("acquisitions_failed_total", name): facts["acquisitions_failed"],
        ("shards_sealed_total", name): facts["shards_sealed"],
        ("frame_json_dropped_total", name): facts["frame_json_dropped"],
        ("places_skipped_total", name): facts["places_skipped"],
        ("encode_checks_failed_total", name): facts["encode_checks_failed"],
        ("received_bytes_total", name): facts["bytes_received"],
        ("stored_bytes_total", name): facts["bytes_raw"],
        ("written_bytes_total", name): facts["bytes_stored"],
        ("compression_ratio", name): facts["bytes_raw"] / facts["bytes_stored"],
        ("frames_missing", name): facts["frames_missing"],
        ("missing_bytes", name): facts["bytes_missing"],
        ("frames_skipped", name): facts["frames_skipped"],
        ("skipped_bytes", name): facts["bytes_skipped"],
        ("frames_dropped_total", name, "overload"): facts["frames_dropped"],
        ("dropped_bytes_total", name, "overload"): facts["bytes_dropped"],
        ("ring_frames", name): facts["ring_frames"],
        ("ring_used_frames", name): facts["ring_used"],
        ("slabs", name): facts["slabs_total"],
        ("slabs_used", name): facts["slabs_used"],
        ("degrade_level", name): facts["degrade_level"],
        **{
            (f"{what}_degraded_total", name, level): facts[f"{what}_{level}"]
            for what in ("frames", "chunks")
            for level in ("faster", "uncompressed")
        },
    }
    values |= {
        (f"frames_{status}_total", name): facts[f"frames_{status}"]
        for status in ("received", "stored", "durable", "duplicate", "late", "lost")
    }
    values |= {
        (f"{status}_bytes_total", name): facts[f"bytes_{status}"]
        for status in ("durable", "duplicate", "late", "lost")
    }
    for histogram, measured in facts["histograms"].items():
        values |= {(f"{histogram}_count", name): 1, (f"{histogram}_sum", name): measured["sum"]}
    return values


def test_each_number_has_its_own_name() -> None:
    assert told(SNAPSHOT) == pytest.approx(expected(SNAPSHOT))


def test_a_disk_that_does_not_answer_has_no_numbers_of_its_own() -> None:
    silent = disk("root", free_bytes=None, total_bytes=None, full_in_s=None)
    values = {
        key: value
        for key, value in told({**SNAPSHOT, "disks": [silent]}).items()
        if key[0].startswith("disk_")
    }
    assert values == {("disk_low_water_bytes", "root", "/root"): silent["low_water_bytes"]}


def test_nothing_written_has_no_ratio() -> None:
    fresh = {**SNAPSHOT["streams"]["cam0"], "bytes_stored": 0, "bytes_raw": 0}
    assert ("compression_ratio", "cam0") not in told({**SNAPSHOT, "streams": {"cam0": fresh}})


def test_buckets_are_cumulative() -> None:
    measures = Measures()
    for milliseconds in (1, 3, 3, 40, 200_000):
        measures.store.observe_ns(milliseconds * 1_000_000)
    facts = {**SNAPSHOT["streams"]["cam0"], "histograms": measures.to_dict()}
    (store,) = [
        family
        for family in families({**SNAPSHOT, "streams": {"cam0": facts}})
        if family.name == "shardwright_store_seconds"
    ]
    buckets = {
        sample.labels["le"]: sample.value for sample in store.samples if sample.name.endswith("_bucket")
    }
    wanted = {"0.0005": 0, "0.001": 1, "0.002": 1, "0.005": 3, "0.02": 3, "0.05": 4, "100.0": 4, "+Inf": 5}
    assert {le: buckets[le] for le in wanted} == wanted
