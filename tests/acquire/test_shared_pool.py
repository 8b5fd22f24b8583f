"""Acquisitions that share workers: the backlog of one is none of the others' business. Workers are stepped by
hand, one task at a time."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.acquire.workers import WorkerPool, WorkerState
from shardwright.model.write_settings import WriteSettings

WORKERS = 2
BACKLOG = 60  # frames of the large camera, one slab of four tasks each
DONE = 8  # of its tasks, when the test begins


class SteppedPool(WorkerPool):
    """Its workers are the test: ``step`` runs the task whose turn it is, which takes a millisecond."""

    def __init__(self) -> None:
        super().__init__(WORKERS)
        self._state = WorkerState()

    def alive(self) -> bool:
        return True

    def step(self) -> None:
        assert self._tokens.get(block=False)
        task, line = self._schedule.take()
        task.run(self._state)
        line.took_ns.append(1_000_000)

    def waiting(self) -> int:
        return self._tokens.qsize()


@pytest.fixture
def pool() -> SteppedPool:
    return SteppedPool()


@pytest.fixture
def cameras(pool, drive_of, spec_of, tmp_path):
    """(the large one, with a backlog; the small one, of slabs of two frames)."""

    def drive(name, settings=None, **axes):
        return drive_of(tmp_path / name, spec_of(**axes), pool, settings, ring_frames=2 * BACKLOG)

    large = drive(
        "large.zarr", WriteSettings(overload="drop"), chunk=1, shard=2 * BACKLOG, y=(4, 1, 4), x=(6, 6, 1)
    )
    large.acquisition._task_ranges = [[(i, i + 1) for i in range(4)]]
    small = drive("small.zarr", shard=BACKLOG)
    for each in (large, small):
        each.still()  # the files of the one shard that each of them needs are prepared
    large.submit(*range(BACKLOG))
    for _ in range(DONE):
        pool.step()
    assert pool.waiting() == 4 * BACKLOG - DONE
    return large, small


def finish(pool: SteppedPool, *drives) -> None:
    for drive in drives:
        drive.acquisition.finish()
    while pool.waiting():
        pool.step()
        for drive in drives:
            drive.poll()
    for drive in drives:
        drive.finish()
        assert np.array_equal(drive.read(), drive.expected(range(drive.submitted)))


def test_a_slab_beside_a_backlog_is_stored_by_the_next_free_workers(pool, cameras) -> None:
    large, small = cameras
    for number in range(4):
        small.submit(2 * number, 2 * number + 1)
        for _ in range(WORKERS):
            pool.step()
        small.poll()
        assert small.acquisition.stored_watermark == 2 * number + 2
    assert pool.waiting() >= 4 * BACKLOG - DONE - 4 * WORKERS, "the backlog is still there"
    finish(pool, large, small)


def test_a_frame_that_waits_for_its_slab_is_staged_by_the_next_free_workers(pool, cameras) -> None:
    large, small = cameras
    small.submit(0)
    small.acquisition.flush()  # its age is reached, whatever the clock says
    for _ in range(WORKERS):
        pool.step()
    small.poll()
    assert small.acquisition.stored_watermark == 1
    assert pool.waiting() >= 4 * BACKLOG - DONE - WORKERS
    finish(pool, large, small)


def test_what_the_last_worker_stored_before_it_ended_counts(drive_of, spec_of, tmp_path, monkeypatch) -> None:
    """It reports and ends while its owner looks: nothing of that slab is half written."""
    pool = SteppedPool()
    drive = drive_of(tmp_path / "a.zarr", spec_of(), pool)
    drive.still()
    drive.submit(0, 1)

    def ends_now() -> bool:
        while pool.waiting():
            pool.step()
        return True

    monkeypatch.setattr(pool, "alive", lambda: False)
    monkeypatch.setattr(pool, "ended", ends_now)
    drive.poll()
    receipt = drive.finish()
    assert (receipt.frames_stored, receipt.frames_durable, receipt.frames_lost) == (2, 2, 0)
    assert np.array_equal(drive.read(), drive.expected(range(2)))


def test_the_backlog_goes_on_beside_a_camera_that_always_has_a_slab(pool, cameras) -> None:
    large, small = cameras
    for number in range(20):
        small.submit(2 * number, 2 * number + 1)
        before = pool.waiting()
        for _ in range(4):
            pool.step()
        assert pool.waiting() == before - 4
        small.poll()
        large.poll()
    assert large.acquisition.stored_watermark > 2
    finish(pool, large, small)
