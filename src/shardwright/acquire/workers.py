"""The worker pool: threads that run tasks, each with its own compressor states and scratch memory.

Acquisitions share the pool by turns (``turns``). Workers share nothing but the schedule; a task reports to
its own acquisition.
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

from shardwright.kernels.contexts import CompressorContexts
from shardwright.kernels.warm_up import COMPILING, compiles, warm_up
from shardwright.storage.spare_memory import LEAST_BYTES, spare_memory

from .limits import raise_descriptor_limit
from .measures import BusyClock
from .turns import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .turns import Line

log = logging.getLogger("shardwright")


class WorkerState:
    """What one worker owns: native compressor states and scratch that grows to the largest task's need and is
    then reused, until there is no such task any more (``fit``); ``close`` leaves it to whoever comes next.
    ``lock`` is held while a task runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.fits: tuple[int, int] | None = None  # which need of the pool it was made to fit
        self.contexts = CompressorContexts()
        self._scratch = spare_memory.take(0)
        self._slots = spare_memory.take(0)

    def slots(self, count: int, slot_bytes: int) -> np.ndarray:
        """int64[count] addresses of page-aligned slots in this worker's own buffer, for shards that are not
        mapped."""
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
        """Gives back what is larger than ``need``, of scratch and of slots; tasks that need more have it
        again. Under ``lock``."""
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
        # the pool knows this object for as long as it lives
        self._scratch = self._slots = spare_memory.take(0)


def _at_least(block: np.ndarray, nbytes: int) -> np.ndarray:
    if block.size >= nbytes:
        return block
    spare_memory.give_back(block)
    return spare_memory.take(nbytes)


def _most_bytes(need_bytes: int) -> int:
    """A block may be a little larger than what was asked for, and scratch also takes a little for the
    journal."""
    return max(LEAST_BYTES, need_bytes + need_bytes // 8)


class Task(Protocol):
    def run(self, state: WorkerState) -> None:
        """Do the work and report the outcome, errors included. An exception that leaves here kills the
        worker."""


class WorkerPool:
    """``threads`` workers. ``failure`` tells of the exception that killed one; the owner must look at
    ``alive``. One that dies, perhaps with a task that nobody will report, takes the others with it: they
    finish what is queued, and then ``ended`` says that nothing more will come."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.failure: str | None = None
        self._schedule: Schedule[Task] = Schedule()  # under ``_lock``, which is held for a microsecond
        self._lock = threading.Lock()
        # True for each task that waits, behind it False for each worker that is to end
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._states: list[WorkerState] = []  # of the workers that began; each appends its own
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
        """Lift the limit of open files, compile (or load) the kernels, then start the threads."""
        raise_descriptor_limit()
        if compiles():
            log.warning("%s", COMPILING)  # which Python shows on standard error, where a program has no log
        warm_up()
        for thread in self._threads:
            thread.start()

    def line(self, *, staging: bool = False) -> Line[Task]:
        """A line of its own for the tasks of one acquisition: those that stage frames, or those that encode
        them."""
        return self._schedule.line(staging=staging)

    def put(self, line: Line[Task], tasks: Sequence[Task]) -> None:
        """At least one task, at the end of a line of this pool. From any thread."""
        with self._lock:
            line.turns.put(line, tasks)
        for _ in tasks:
            self._tokens.put(True)

    def alive(self) -> bool:
        """Whether every worker still runs."""
        return self.failure is None and all(thread.is_alive() for thread in self._threads)

    def ended(self) -> bool:
        """Whether no worker runs any more: nobody reads pixels."""
        return not any(thread.is_alive() for thread in self._threads)

    def busy_s(self) -> float:
        """How long the oldest task that a worker is at has taken by now."""
        return max(busy.busy_s() for busy in self._busy)

    @property
    def buffer_bytes(self) -> int:
        """What all workers have of scratch and slots. From any thread."""
        return sum(state.buffer_bytes for state in self._states)

    def keep_buffers(self, scratch_bytes: int, slots_bytes: int) -> None:
        """No task to come needs more of either for each worker: what is larger goes, of a worker that is at a
        task when that is done. From any thread."""
        self._buffers_needed = (scratch_bytes, slots_bytes)
        for state in list(self._states):
            self._fit(state)

    def _fit(self, state: WorkerState) -> None:
        # else its worker is at a task, and looks when it has let go of the lock
        if state.lock.acquire(blocking=False):
            try:
                if self._buffers_needed is not None:
                    state.fit(self._buffers_needed)
            finally:
                state.lock.release()

    def stop(self) -> None:
        """Finish what is queued, then end the threads."""
        self._end_when_done()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self, busy: BusyClock) -> None:
        try:
            let_others_first()  # who appends a frame, above all
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
        """For a token: the task whose turn it is."""
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
    """Give the calling thread the same part of the processors as before, but let threads that have little to
    do run first. False: nothing has changed, since this kernel cannot, or another policy was chosen for this
    process.

    A camera's thread that copies a frame in a millisecond would else wait for a worker's time slice, or for
    several. So workers are SCHED_BATCH, which preempts nobody when it wakes, with long slices (Linux 6.12),
    which anybody with a shorter one preempts (sched(7), sched_setattr(2)). Needs no privilege, and takes
    nothing from the workers: their nice value stays. Measured at 80 % of the sustainable rate on two cores,
    four workers: 99.9 % of appends within 6.8 ms in process and 7.2 through the daemon; 27 and 8.8 without; a
    bare copy beside four busy threads of the usual kind: 13.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_BATCH, 0, nice, 0, SLICE_MS * 1_000_000, 0, 0)
    return bool(_libc.syscall(ctypes.c_long(number), ctypes.c_int(0), attributes, ctypes.c_uint(0)) == 0)
