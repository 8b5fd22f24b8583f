"""The progress of a job, and the report of a job that makes new arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .executors import Executor
    from .tasks import Results, RunTasks, Task

# what is done so far, and in all: bytes, unless told otherwise; from the thread that runs the job
OnProgress = Callable[[int, int], None]

_GRANTS_PER_BYTE = 3  # read, written, read back: see ``Throttle.take``


def no_progress(_done: int, _total: int) -> None:
    """The ``on_progress`` of a job that is not watched."""


class Progress:
    """The bytes of a job that are done. One thread's."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self._done, self._total = 0, total
        self._on_progress = on_progress
        on_progress(0, total)

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        self._on_progress(self._done, self._total)


class TaskProgress:
    """The bytes of tasks that are done. The bytes that running tasks move and the ends of tasks add up to the
    size of all tasks, however often a byte was granted. One thread's."""

    def __init__(self, sizes: Mapping[str, int], on_progress: OnProgress) -> None:
        """``sizes``: bytes of each task, by its key."""
        self._left = dict(sizes)
        self._progress = Progress(sum(sizes.values()), on_progress)

    def moved(self, task: dict[str, Any], nbytes: int) -> None:
        """``nbytes`` were granted to a running task."""
        self._count(task["key"], nbytes // _GRANTS_PER_BYTE)

    def finished(self, key: str) -> None:
        """The task has ended: what was not counted yet is done."""
        self._count(key, self._left[key])

    def _count(self, key: str, nbytes: int) -> None:
        counted = min(nbytes, self._left[key])
        self._left[key] -= counted
        self._progress.add(counted)


def run_with_progress(executor: Executor, sizes: Mapping[str, int], on_progress: OnProgress) -> RunTasks:
    """``executor.run`` that counts the bytes that are done. ``sizes``: of what tasks make, by key."""
    progress = TaskProgress(sizes, on_progress)

    def run(tasks: Iterable[Task]) -> Results:
        with closing(executor.run(tasks, progress.moved)) as results:
            for result in results:
                progress.finished(result["key"])
                yield result

    return run


@dataclass
class BuildReport:
    """The report of a job that makes new arrays. ``path``: the store. ``made``, ``already``: names of arrays
    that this run completed, and of those that were complete before. ``shards_found``: made by an earlier run.
    ``peak_bytes``: the most that one worker held. ``bytes_sent``: to a destination that is no folder.
    ``failures``: results of tasks that failed."""

    path: str
    made: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    shards_made: int = 0
    shards_found: int = 0
    chunks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_sent: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def add(self, result: dict[str, Any]) -> None:
        """Count the result of one task."""
        self.bytes_read += int(result["bytes_read"])
        self.bytes_written += int(result["bytes_written"])
        self.peak_bytes = max(self.peak_bytes, int(result.get("peak_bytes", 0)))
        if not result["ok"]:
            self.failures.append(result)
        elif result.get("skipped"):
            self.shards_found += 1
        else:
            self.shards_made += 1
            self.chunks += int(result["chunks"])
