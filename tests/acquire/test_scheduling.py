"""Workers as the kernel sees them: batch threads with long slices and everybody's nice value; where it
cannot, they work all the same."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING

from shardwright.acquire import workers
from shardwright.acquire.workers import WorkerPool, WorkerState

if TYPE_CHECKING:
    import pytest

_SCHED_GETATTR = {314: 315, 351: 352, 274: 275, 355: 356}


class Asking:
    """A task that tells how its thread is scheduled."""

    def __init__(self) -> None:
        self.told = threading.Event()

    def run(self, state: WorkerState) -> None:
        self.nice = os.getpriority(os.PRIO_PROCESS, 0)
        self.policy = os.sched_getscheduler(0)
        attributes = ctypes.create_string_buffer(workers._ATTRIBUTES.size)
        number = _SCHED_GETATTR[workers._SCHED_SETATTR[os.uname().machine]]
        ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, attributes, workers._ATTRIBUTES.size, 0)
        self.slice_ns = workers._ATTRIBUTES.unpack(attributes.raw)[5]
        self.told.set()


def told_by_a_worker() -> Asking:
    pool, task = WorkerPool(1), Asking()
    pool.start()
    pool.put(pool.line(), [task])
    assert task.told.wait(30)
    pool.stop()
    return task


def test_a_worker_preempts_nobody_and_keeps_its_share() -> None:
    ours = os.sched_getscheduler(0)
    worker = told_by_a_worker()
    assert worker.policy == os.SCHED_BATCH
    assert worker.nice == os.getpriority(os.PRIO_PROCESS, 0)
    assert worker.slice_ns in (0, workers.SLICE_MS * 1_000_000), "0 before Linux 6.12"
    assert os.sched_getscheduler(0) == ours, "nobody else's thread"


def test_where_the_kernel_will_not_they_are_ordinary_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SCHED_SETATTR", {})
    assert not workers.let_others_first()
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_FIFO)
    assert not workers.let_others_first(), "somebody wants it so"
    monkeypatch.undo()
    monkeypatch.setattr(workers, "_SCHED_SETATTR", {os.uname().machine: 10**6})
    assert not workers.let_others_first()
