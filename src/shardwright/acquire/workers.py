"""The worker pool: threads that run tasks, each with its own compressor states and scratch memory.

Acquisitions share the pool fairly (``fair_scheduler``). Workers share nothing but the schedule; a task
reports to its own acquisition.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shardwright.disk.spare_memory import LEAST_BYTES, spare_memory
from shardwright.kernels.compressed_forms import CompressorContexts
from shardwright.kernels.warm_up import COMPILING, compiles, warm_up

from .fair_scheduler import Schedule
from .limits import raise_descriptor_limit
from .measures import BusyClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .fair_scheduler import Line

log = logging.getLogger("shardwright")


class WorkerState:
    """The state of one worker: native compressor states, and scratch memory that grows to the largest task's
    need and is reused until no such task is left (``fit``). ``close`` returns it for reuse by others.
    ``lock`` is held while a task runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.fits: tuple[int, int] | None = None  # the need of the pool to which it was last fitted
        self.contexts = CompressorContexts()
        self._scratch = spare_memory.take(0)
        self._slots = spare_memory.take(0)

    def slots(self, count: int, slot_bytes: int) -> np.ndarray:
        """Returns int64[count] addresses of page-aligned slots in this worker's buffer, for shards that are
        not mapped."""
        self._slots = _at_least(self._slots, count * slot_bytes)
        return int(self._slots.ctypes.data) + slot_bytes * np.arange(count, dtype=np.int64)

    def scratch(self, nbytes: int) -> np.ndarray:
        self._scratch = _at_least(self._scratch, nbytes)
        return self._scratch

    @property
    def buffer_bytes(self) -> int:
        """From any thread."""
        return self._scratch.size + self._slots.size

    def fit(self, need: tuple[int, int]) -> None:
        """Gives back scratch and slots that are larger than ``need``; a task that needs more gets it again.
        Under ``lock``."""
        self.fits = need
        scratch_bytes, slots_bytes = need
        if self._scratch.size > _most_bytes(scratch_bytes):
            spare_memory.give_back(self._scratch)
            self._scratch = spare_memory.take(0)
        if self._slots.size > _most_bytes(slots_bytes):
            spare_memory.give_back(self._slots)
            self._slots = spare_memory.take(0)
        spare_memory.release()

    def close(self) -> None:
        self.contexts.close()
        for block in (self._scratch, self._slots):
            spare_memory.give_back(block)
        # the pool refers to this object for as long as it lives
        self._scratch = self._slots = spare_memory.take(0)


def _at_least(block: np.ndarray, nbytes: int) -> np.ndarray:
    if block.size >= nbytes:
        return block
    spare_memory.give_back(block)
    return spare_memory.take(nbytes)


def _most_bytes(need_bytes: int) -> int:
    """The size above which a block is given back: a block may be a little larger than requested, and scratch
    also holds a little for the journal."""
    return max(LEAST_BYTES, need_bytes + need_bytes // 8)


class Task(Protocol):
    """A task for one worker."""

    def run(self, state: WorkerState) -> None:
        """Does the work and reports the outcome, errors included. An exception raised from here kills the
        worker."""


class WorkerPool:
    """The pool of ``threads`` workers. ``failure`` is the text of the exception that killed one; the owner
    must check ``alive``. When one dies, perhaps with a task that is never reported, the others finish the
    queued tasks and end; ``ended`` then says that no more reports will come."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.failure: str | None = None
        self._schedule: Schedule[Task] = Schedule()  # under ``_lock``, held for about a microsecond
        self._lock = threading.Lock()
        # True for each waiting task, and behind these False for each worker that is to end
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._states: list[WorkerState] = []  # of started workers; each appends its own
        self._buffers_needed: tuple[int, int] | None = None  # replaced as a whole
        self._busy = [BusyClock() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._work, args=(busy,), name=f"shardwright-worker-{i}", daemon=True)
            for i, busy in enumerate(self._busy)
        ]

    @property
    def threads(self) -> int:
        return len(self._threads)

    def start(self) -> None:
        """Raises the limit of open files, compiles (or loads) the kernels, then starts the threads."""
        raise_descriptor_limit()
        if compiles():
            log.warning("%s", COMPILING)  # Python shows it on standard error if the program has no log
        warm_up()
        for thread in self._threads:
            thread.start()

    def line(self, *, staging: bool = False) -> Line[Task]:
        """Returns a new line for the tasks of one acquisition: those that stage frames, or those that encode
        them."""
        return self._schedule.line(staging=staging)

    def put(self, line: Line[Task], tasks: Sequence[Task]) -> None:
        """Appends tasks, at least one, to a line of this pool. From any thread."""
        with self._lock:
            line.scheduler.put(line, tasks)
        for _ in tasks:
            self._tokens.put(True)

    def alive(self) -> bool:
        """Returns whether no worker has died. Each notes its death itself: to look at the threads would cost
        a tenth of an append."""
        return self.failure is None

    def ended(self) -> bool:
        """Returns whether no worker runs any more, so that none reads pixels."""
        return not any(thread.is_alive() for thread in self._threads)

    def busy_s(self) -> float:
        """Returns the longest duration so far of a running task."""
        return max(busy.busy_s() for busy in self._busy)

    @property
    def buffer_bytes(self) -> int:
        """The scratch and slots of all workers. From any thread."""
        return sum(state.buffer_bytes for state in self._states)

    def keep_buffers(self, scratch_bytes: int, slots_bytes: int) -> None:
        """Sets the most memory that a coming task needs of each kind. Larger buffers are given back: at once
        by idle workers, after their task by others. From any thread."""
        self._buffers_needed = (scratch_bytes, slots_bytes)
        for state in list(self._states):
            self._fit(state)

    def _fit(self, state: WorkerState) -> None:
        # if not: the worker runs a task, and fits its state after it has released the lock
        if state.lock.acquire(blocking=False):
            try:
                if self._buffers_needed is not None:
                    state.fit(self._buffers_needed)
            finally:
                state.lock.release()

    def stop(self) -> None:
        """Ends the threads after the queued tasks, and waits for them."""
        self._end_when_done()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self, busy: BusyClock) -> None:
        try:
            let_others_first()  # above all threads that append frames
            state = WorkerState()
            self._states.append(state)
            while self._tokens.get():
                self._run_next(state, busy)
            state.close()
        except BaseException as error:
            self.failure = str(error) or type(error).__name__
            self._end_when_done()
            raise

    def _run_next(self, state: WorkerState, busy: BusyClock) -> None:
        """Runs the next task of the schedule, for one token."""
        with self._lock:
            task, line = self._schedule.take()
        begun_ns = time.monotonic_ns()
        with busy, state.lock:
            task.run(state)
        line.took_ns.append(time.monotonic_ns() - begun_ns)
        if state.fits is not self._buffers_needed:
            self._fit(state)

    def _end_when_done(self) -> None:
        for _ in self._threads:
            self._tokens.put(False)


SLICE_MS = 20
# libc has no wrapper for it
_SCHED_SETATTR = {"x86_64": 314, "i686": 351, "aarch64": 274, "riscv64": 274, "ppc64le": 355}
_ATTRIBUTES = struct.Struct("IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period

_libc = ctypes.CDLL(None, use_errno=True)


def let_others_first() -> bool:
    """Lets threads that have little to do run before the calling thread, whose share of the processors stays
    the same. Returns False if nothing has changed: this kernel cannot do it, or another policy was chosen for
    this process.

    A camera's thread that copies a frame in a millisecond would otherwise wait for one or several time slices
    of workers. So workers are SCHED_BATCH, which preempts no other thread when it wakes, with long slices
    (Linux 6.12), which any thread with a shorter one preempts (sched(7), sched_setattr(2)). This needs no
    privilege, and workers keep their nice value. Measured at 80 % of the sustainable rate on two cores, four
    workers: 99.9 % of appends within 6.8 ms in process and 7.2 through the daemon; 27 and 8.8 without; a bare
    copy beside four busy threads of the usual kind: 13.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_BATCH, 0, nice, 0, SLICE_MS * 1_000_000, 0, 0)
    return bool(_libc.syscall(ctypes.c_long(number), ctypes.c_int(0), attributes, ctypes.c_uint(0)) == 0)
