"""Buffers of workers grow with the largest task, and go when no such task is to come."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from shardwright.acquire.workers import WorkerPool, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS = 2
SCRATCH_BYTES, SLOTS_BYTES = 8 << 20, 4 << 20


class Large:
    """A task that needs much, and waits for the others of its kind: each worker has one of them."""

    def __init__(self, meet: threading.Barrier) -> None:
        self._meet = meet

    def run(self, state: WorkerState) -> None:
        state.scratch(SCRATCH_BYTES)
        state.slots(1, SLOTS_BYTES)
        self._meet.wait()


class Held:
    """A task that is at its buffer until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.done = threading.Event(), threading.Event(), threading.Event()

    def run(self, state: WorkerState) -> None:
        scratch = state.scratch(SCRATCH_BYTES)
        scratch[:] = 1
        self.begun.set()
        self.go_on.wait()
        self.is_its_own = bool(scratch.all()) and state.scratch(SCRATCH_BYTES) is scratch
        self.done.set()


def until(true: Callable[[], bool]) -> None:
    while not true():  # the suite's own limit of time ends it
        time.sleep(0.001)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(WORKERS)
    pool.start()
    meet = threading.Barrier(WORKERS)
    pool.put(pool.line(), [Large(meet) for _ in range(WORKERS)])
    until(lambda: pool.buffer_bytes >= WORKERS * (SCRATCH_BYTES + SLOTS_BYTES))
    yield pool
    pool.stop()


def test_idle_workers_give_back_what_no_task_needs(pool) -> None:
    before = pool.buffer_bytes
    pool.keep_buffers(SCRATCH_BYTES, SLOTS_BYTES)
    assert pool.buffer_bytes == before
    pool.keep_buffers(SCRATCH_BYTES, 0)
    until(lambda: pool.buffer_bytes <= before - WORKERS * SLOTS_BYTES)
    assert pool.buffer_bytes >= WORKERS * SCRATCH_BYTES
    pool.keep_buffers(0, 0)
    until(lambda: pool.buffer_bytes == 0)


def test_a_worker_at_a_task_keeps_its_buffers_until_that_is_done(pool) -> None:
    task = Held()
    pool.put(pool.line(), [task])
    assert task.begun.wait(60)
    pool.keep_buffers(0, 0)
    until(lambda: pool.buffer_bytes < WORKERS * SCRATCH_BYTES)
    assert pool.buffer_bytes >= SCRATCH_BYTES
    task.go_on.set()
    assert task.done.wait(60)
    assert task.is_its_own
    until(lambda: pool.buffer_bytes == 0)


def test_tasks_that_need_more_have_it_again(pool) -> None:
    pool.keep_buffers(0, 0)
    meet = threading.Barrier(WORKERS)
    pool.put(pool.line(), [Large(meet) for _ in range(WORKERS)])
    until(lambda: pool.buffer_bytes >= WORKERS * (SCRATCH_BYTES + SLOTS_BYTES))


def test_a_pool_that_has_stopped_has_no_buffers(pool) -> None:
    """They are left to whoever comes next."""
    pool.stop()
    assert pool.buffer_bytes == 0
