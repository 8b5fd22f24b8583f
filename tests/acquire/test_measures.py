"""Histograms and clocks: exact counts in the right buckets, and a pipeline that counts each frame, task, sync
and shard once."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest

from shardwright.acquire.commands import Grow
from shardwright.acquire.measures import BOUNDS_NS, BOUNDS_S, BusyClock, Histogram, Measures
from shardwright.acquire.workers import WorkerPool
from shardwright.disk import failpoints
from shardwright.disk.side_by_side import MOST_THREADS
from shardwright.model.write_settings import WriteSettings

HELD_S = 0.05


@pytest.fixture
def one_worker():
    pool = WorkerPool(1)
    pool.start()
    yield pool
    pool.stop()


@pytest.fixture
def drive(drive_of, spec_of, shared_pool, tmp_path):
    """``drive(pool, y=..., x=..., **settings)``."""

    def make(pool=shared_pool, y=(4, 2, 1), x=(6, 4, 2), **settings):
        return drive_of(tmp_path / "a.zarr", spec_of(y=y, x=x), pool, WriteSettings(**settings))

    return make


@pytest.fixture
def at_point():
    """``at_point(name, hook)``, until the end of the test."""
    names = []

    def hook(name, action):
        names.append(name)
        failpoints.set_hook(name, action)

    yield hook
    for name in names:
        failpoints.set_hook(name, None)


def test_the_buckets_reach_from_100_us_to_100_s_and_each_holds_what_is_at_most_its_bound():
    assert (BOUNDS_S[0], BOUNDS_S[-1], len(BOUNDS_S)) == (1e-4, 100.0, 19)
    assert list(BOUNDS_NS) == sorted(set(BOUNDS_NS))
    histogram = Histogram()
    for bound in BOUNDS_NS:
        histogram.observe_ns(bound)
    histogram.observe_ns(BOUNDS_NS[-1] + 1)
    histogram.observe_ns(0)
    assert histogram.counts.tolist() == [2, *[1] * 18, 1]


def test_many_durations_at_once_count_as_one_after_another():
    durations = np.concatenate([10 ** np.random.default_rng(1).uniform(3, 12, 1000), BOUNDS_NS]).astype(
        np.int64
    )
    at_once, one_by_one = Histogram(), Histogram()
    at_once.observe_all_ns(durations)
    at_once.observe_all_ns(durations[:0])
    for duration in durations.tolist():
        one_by_one.observe_ns(duration)
    assert at_once.to_dict() == one_by_one.to_dict()
    assert at_once.to_dict()["count"] == durations.size
    assert math.isclose(at_once.to_dict()["sum"], durations.sum() / 1e9)


def test_sums_are_new_and_leave_their_parts_alone():
    parts = [Measures() for _ in range(3)]
    for i, part in enumerate(parts):
        part.queue.observe_ns(10**6)
        part.commit.observe_ns(i * 10**9)
    total = parts[0].plus(parts[1:])
    assert (total.queue.to_dict()["count"], total.commit.sum_ns, total.store.to_dict()["count"]) == (
        3,
        3 * 10**9,
        0,
    )
    assert [int(part.queue.counts.sum()) for part in parts] == [1, 1, 1]


def test_a_busy_clock_runs_while_its_thread_is_at_something_and_ends_with_an_error():
    clock = BusyClock()
    assert clock.busy_s() == 0.0

    def work():
        with clock:
            before_s = clock.busy_s()
            time.sleep(0.001)
            assert clock.busy_s() > before_s
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert clock.busy_s() == 0.0


@pytest.mark.parametrize("durability", ["stored", "durable"])
def test_each_frame_task_sync_and_shard_is_counted_once(drive, durability):
    rig = drive(durability=durability, store_within_ms=10, sync_interval_ms=10)
    # three slabs of two frames, and half of one: it is staged, and stored again with its slab
    rig.submit(*range(7))
    rig.until(lambda: rig.acquisition.durable_watermark == 7)
    receipt = rig.finish()
    measures = rig.acquisition.measures
    counts = {name: histogram["count"] for name, histogram in measures.to_dict().items()}
    tasks = 4 * len(rig.acquisition._task_ranges[0])
    assert receipt.frames_stored == counts["store_seconds"] == 7
    assert counts["queue_seconds"] == counts["encode_seconds"] == tasks
    assert counts["shard_seal_seconds"] == 2
    assert counts["shard_open_seconds"] == 3  # the next is prepared in time, and not needed
    assert counts["commit_seconds"] >= 1


def test_what_a_worker_is_held_up_by_is_in_its_time_and_in_the_wait_of_the_others(
    drive, one_worker, at_point
):
    rig = drive(one_worker)
    at_point("slots.before_store", lambda: time.sleep(HELD_S))
    rig.submit(*range(4))  # two slabs
    rig.finish()
    measures, tasks = rig.acquisition.measures, 2 * len(rig.acquisition._task_ranges[0])
    assert measures.encode.sum_ns >= tasks * HELD_S * 1e9
    assert measures.queue.sum_ns >= sum(range(tasks)) * HELD_S * 1e9
    assert measures.store.sum_ns >= 4 * HELD_S * 1e9


@pytest.mark.parametrize(
    ("point", "name"), [("shard.before_rename", "shard_seal"), ("sealer.before_commit", "commit")]
)
def test_what_the_sealer_is_held_up_by_is_in_the_time_of_its_call(drive, at_point, point, name):
    rig = drive(y=(4, 4, 1), x=(6, 6, 1), sync_interval_ms=10)
    at_point(point, lambda: time.sleep(HELD_S))
    histogram = getattr(rig.acquisition.measures, name)
    rig.submit(*range(6))  # a shard row, and a slab that no row makes durable
    rig.until(lambda: histogram.counts.any())
    rig.finish()
    assert histogram.sum_ns >= histogram.counts.sum() * HELD_S * 1e9 > 0


def test_what_failed_is_not_counted(drive, at_point):
    rig = drive()

    def fail() -> None:
        raise RuntimeError("a defect")

    at_point("slots.before_store", fail)
    rig.submit(0, 1)
    receipt = rig.finish()
    counts = {name: histogram["count"] for name, histogram in rig.acquisition.measures.to_dict().items()}
    assert receipt.frames_lost == 2
    assert counts == {
        **dict.fromkeys(counts, 0),
        "shard_open_seconds": counts["shard_open_seconds"],
        "commit_seconds": counts["commit_seconds"],
    }


@pytest.mark.parametrize("point", ["shard.before_preallocate", "shard.before_index", "shard.before_rename"])
def test_a_sealer_that_gets_on_from_file_to_file_is_not_stuck_however_many_there_are(drive, at_point, point):
    rig = drive(y=(4, 1, 1), x=(6, 2, 1), sync_interval_ms=10)  # shard rows of twelve files
    since_s = []
    at_point(point, lambda: since_s.append(rig.acquisition._sealer.busy._since_s))
    rig.submit(*range(6))
    rig.until(lambda: rig.acquisition.durable_watermark >= 4)
    rig.finish()
    assert len(since_s) >= 12
    assert len(set(since_s)) >= len(since_s) / MOST_THREADS, "it moves on with each file"


def test_clocks_tell_of_a_worker_and_a_sealer_that_are_stuck(drive, one_worker, at_point):
    rig = drive(one_worker)
    acquisition, go_on = rig.acquisition, threading.Event()
    rig.still()
    assert (one_worker.busy_s(), acquisition.sealer_busy_s) == (0.0, 0.0)
    at_point("slots.before_store", go_on.wait)
    at_point("sealer.before_command", go_on.wait)
    rig.submit(0, 1)
    acquisition.flush()
    acquisition._sealer.put(Grow(0, (0,)))
    rig.until(lambda: one_worker.busy_s() > 2 * HELD_S and acquisition.sealer_busy_s > 2 * HELD_S)
    go_on.set()
    rig.finish()
    assert (one_worker.busy_s(), acquisition.sealer_busy_s) == (0.0, 0.0)


def test_an_acquisition_that_waits_for_its_first_frame_is_not_stuck(drive):
    """Its first files are made before the sealer's thread is there."""
    rig = drive()
    assert rig.acquisition.sealer_busy_s == 0.0
    rig.finish()
