"""The executors, which run tasks: local processes, or the workers of a dask.distributed cluster. Both call
``run_task`` and return results as they complete.

    tasks ──▶ a bounded number in flight ──▶ run_task in another process ──▶ results, as they complete
                                               └── bytes granted by Throttle.take (local processes only)
                                                   ──▶ on_moved(task, nbytes)

When a worker is killed, its task is run again elsewhere. A task that has killed ``MAX_ATTEMPTS`` workers
becomes a failed result. Closing the iterator early (an interrupt, ``close``) ends the tasks that are running,
or waits for those that cannot be ended. No task of a job runs any more when its iterator has ended, so that
the job's lock is held as long as its tasks run. A task may be ended at any point.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import CancelledError
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol

from shardwright.disk.failpoints import load_from_environment
from shardwright.model.errors import ConfigError, SessionLostError, WorkerError
from shardwright.model.extras import naming_missing_extra

from .tasks import failed, run_task
from .throttle import watch_grants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .tasks import Result, Results, Task

MAX_ATTEMPTS = 3
_MAX_DEFAULT_WORKERS = 4  # beyond that a disk is busy, not a processor
_END_TIMEOUT_S = 10.0  # for a worker to clear up after its task, before it is killed
_CLUSTER_TIMEOUT_S = 10.0
_BEGUN_TIMEOUT_S = 600.0  # for what a cluster's workers have begun, which cannot be ended from here
_BEGUN_LOOK_S = 0.5
_QUIET_LOOKS = 2  # in a row: a worker may be about to begin what was cancelled in the same moment
_PR_SET_PDEATHSIG = 1


def _ignore(_task: Task, _nbytes: int) -> None:
    """The ``on_moved`` of a job that does not watch its tasks."""


class Executor(Protocol):
    """Runs tasks. ``workers``: how many at the same time."""

    @property
    def workers(self) -> int: ...

    def run(self, tasks: Iterable[Task], on_moved: Callable[[Task, int], None] = _ignore) -> Results: ...

    def close(self) -> None: ...


def default_workers() -> int:
    return min(_MAX_DEFAULT_WORKERS, len(os.sched_getaffinity(0)))


def open_executor(*, workers: int | None = None, scheduler: str | None = None) -> Executor:
    """The cluster of ``scheduler`` if one is given, else local processes. Raises ``ConfigError``, or
    ``SessionLostError`` for a cluster that cannot be used."""
    if workers is not None and scheduler is not None:
        raise ConfigError(
            "--workers and --scheduler do not go together: a cluster has its own workers",
            hint="Give one of them",
        )
    return LocalProcesses(workers or default_workers()) if scheduler is None else DaskCluster(scheduler)


class LocalProcesses:
    """The executor of ``workers`` processes of this machine, started when tasks come. They die with this
    process."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def close(self) -> None:
        """Does nothing: no process is kept between runs."""

    def run(self, tasks: Iterable[Task], on_moved: Callable[[Task, int], None] = _ignore) -> Results:
        waiting: deque[tuple[Task, int]] = deque()  # tasks whose worker died, with the attempts so far
        rest = iter(tasks)
        processes: list[_WorkerProcess] = []
        try:
            while True:
                while len(busy := [worker for worker in processes if worker.task is not None]) < self.workers:
                    task, attempt = waiting.popleft() if waiting else (next(rest, None), 0)
                    if task is None:
                        break
                    idle = next((worker for worker in processes if worker.task is None), None)
                    if idle is None:
                        processes.append(idle := _WorkerProcess())
                    idle.begin(task, attempt + 1)
                if not busy:
                    return
                for connection in wait([worker.connection for worker in busy]):
                    worker = next(worker for worker in busy if worker.connection is connection)
                    task, attempt, message = worker.task, worker.attempt, worker.receive()
                    if isinstance(message, int):
                        on_moved(task, message)
                    elif message is not None:
                        yield message
                    else:
                        processes.remove(worker)
                        if attempt < MAX_ATTEMPTS:
                            waiting.append((task, attempt))
                        else:
                            yield failed(
                                task,
                                WorkerError(
                                    f"a worker process died {attempt} times on this task, {worker.death()}"
                                ),
                            )
        finally:
            for worker in processes:
                worker.ask_to_end()
            for worker in processes:
                worker.end()


class _WorkerProcess:
    """A child process and its task, None when it is idle. Only for the thread that runs the tasks."""

    def __init__(self) -> None:
        # a fork would inherit locks that other threads of ours hold
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_work, args=(theirs, os.getpid()), name="compact worker", daemon=True
        )
        self._process.start()
        theirs.close()  # so that the connection ends when the child does
        self.task: Any = None
        self.attempt = 0

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def begin(self, task: Task, attempt: int) -> None:
        self.task, self.attempt = task, attempt
        with contextlib.suppress(BrokenPipeError):  # it is dead: ``receive`` returns None
            self.connection.send(task)

    def receive(self) -> Result | int | None:
        """The task's result, or the bytes that it has just moved; None when the process has died."""
        try:
            message: Result | int = self.connection.recv()
        except (EOFError, OSError):  # also in the middle of a message
            self.end()
            return None
        if not isinstance(message, int):
            self.task = None
        return message

    def death(self) -> str:
        code = self._process.exitcode
        return (
            f"the last time by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else (f"the last time with exit code {code}")
        )

    def ask_to_end(self) -> None:
        self._process.terminate()

    def end(self) -> None:
        self._process.join(_END_TIMEOUT_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(_END_TIMEOUT_S)
        self.connection.close()


def _work(connection: Connection, parent: int) -> None:
    """The main function of a child: runs one task after another until the parent ends it, or is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before the signal was requested
    # Ctrl-C is for the parent, which decides; and a session of its own can be made idle as a whole, see
    # make_idle
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    load_from_environment()
    one_at_a_time = threading.Lock()

    def send(message: Result | int) -> None:
        with one_at_a_time:
            connection.send(message)

    watch_grants(send)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            send(run_task(connection.recv()))


def _leave(number: int, _: object) -> None:
    """Raises, so that the current task removes its working file."""
    sys.exit(128 + number)


class DaskCluster:
    """The workers of the dask.distributed scheduler at ``address``: they have shardwright installed and see
    the same storage under the same paths.

    The scheduler itself runs a killed worker's tasks elsewhere.
    """

    def __init__(self, address: str) -> None:
        with naming_missing_extra("--scheduler"):
            import distributed
        self._address = address
        self._distributed: Any = distributed  # its functions are not typed
        try:
            self._client = self._distributed.Client(address, timeout=_CLUSTER_TIMEOUT_S, set_as_default=False)
            self._client.wait_for_workers(1, timeout=_CLUSTER_TIMEOUT_S)
        except (OSError, TimeoutError, ValueError) as error:
            raise SessionLostError(
                f"no dask cluster at {address}: {error}",
                hint="Start a scheduler and workers, or leave --scheduler out",
            ) from error
        self.workers = max(1, sum(self._client.nthreads().values()))

    def close(self) -> None:
        """Nothing is running any more: ``run`` has waited for it."""
        self._client.close()

    def run(self, tasks: Iterable[Task], on_moved: Callable[[Task, int], None] = _ignore) -> Results:
        """Run the tasks. Closed early, it returns only when no task runs any more, and raises ``WorkerError``
        if that takes too long."""
        rest = iter(tasks)
        running: dict[Any, tuple[Any, Task]] = {}  # by the key of the future
        completed = self._distributed.as_completed(loop=self._client.loop)
        try:
            while True:
                while len(running) < 2 * self.workers and (task := next(rest, None)) is not None:
                    future = self._client.submit(
                        run_task, _at_its_priority(task), pure=False, retries=MAX_ATTEMPTS
                    )
                    running[future.key] = future, task
                    completed.add(future)
                if not running:
                    return
                future = next(completed)
                result = self._result(*running[future.key])
                del running[future.key]
                yield result
        finally:
            if running:
                self._end([future for future, _ in running.values()])

    def _end(self, futures: list[Any]) -> None:
        """Cancel tasks that have not begun, and wait for those that have: a worker's thread cannot be
        stopped, and may still replace a shard."""
        keys, deadline_s = {future.key for future in futures}, time.monotonic() + _BEGUN_TIMEOUT_S
        # the scheduler is gone: the look below says so
        with contextlib.suppress(OSError, CancelledError, TimeoutError):
            self._client.cancel(futures)
        reported, quiet = False, 0
        while quiet < _QUIET_LOOKS:
            if self._client.status != "running":
                print(
                    f"The scheduler at {self._address} is gone: its workers may still be running tasks of "
                    "this job",
                    file=sys.stderr,
                )
                return
            begun = self._begun(keys)
            quiet = 0 if begun is None or begun else quiet + 1
            if time.monotonic() > deadline_s:
                raise WorkerError(
                    f"after {_BEGUN_TIMEOUT_S:.0f} s the cluster at {self._address} still runs "
                    f"tasks of the interrupted job",
                    got=f"{len(begun)} tasks" if begun is not None else "a worker that does not answer",
                    hint="Do not run this job again before these tasks, or their workers, have ended",
                )
            if begun and not reported:
                reported = True
                print(
                    f"Waiting for {len(begun)} tasks that the cluster has begun, at most "
                    f"{_BEGUN_TIMEOUT_S:.0f} s",
                    file=sys.stderr,
                )
            time.sleep(_BEGUN_LOOK_S)

    def _begun(self, keys: set[Any]) -> set[Any] | None:
        """Those of our tasks that a worker's thread runs now, cancelled ones among them; None when a worker
        did not answer."""
        try:
            stacks = self._client.call_stack()
        except (OSError, CancelledError, TimeoutError):
            return None
        return keys & {key for tasks in stacks.values() for key in tasks}

    def _result(self, future: Any, task: Task) -> Result:
        """Raises ``SessionLostError`` when the scheduler is gone: then the future is cancelled, or its result
        does not come."""
        try:
            error = future.exception() if future.status == "error" else None
            if error is None:
                result: Result = future.result()
                return result
        except (OSError, CancelledError) as lost:
            raise SessionLostError(
                f"the scheduler at {self._address} is gone: {lost}",
                hint="Run the same command again: finished shards are not done again",
            ) from lost
        return failed(
            task,
            WorkerError(f"no worker of the cluster could run this task: {type(error).__name__}: {error}"),
        )


def _at_its_priority(task: Task) -> Task:
    """The task at the priority that the cluster's owner chose: a worker's thread that was made idle would
    stay so, also for the tasks of others."""
    return task | {"throttle": {**(task.get("throttle") or {}), "idle": False}}
