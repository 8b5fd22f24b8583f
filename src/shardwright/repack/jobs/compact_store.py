"""One compaction of one store, from looking at it to the report. A job may be stopped at any moment and begun
again: what is finished stays so.

    plan    reads every index, quietly as all the rest, changes nothing: what is to be done, what that saves,
            what is wrong, how much room it takes
    run     takes the lock of each array, clears what a dead job left, hands a task for each shard to an
            executor, collects the results

A shard that cannot be packed stays as it is and never stops the others. Shards that are still being written
are skipped.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import (
    LockedError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StorageFullError,
)
from shardwright.repack.runtime.done_list import DONE_NAME, DoneList
from shardwright.repack.runtime.executors import LocalProcesses
from shardwright.repack.runtime.pause import pause_files, rig_pause_files
from shardwright.repack.runtime.throttle import Throttle
from shardwright.repack.runtime.work_folder import WORK_FOLDER, WorkFolder, file_of_shard, working_path
from shardwright.repack.source_shard import SourceShard
from shardwright.storage.files import storage_errors
from shardwright.storage.working_file import WorkingFile

from .recode import denser_codec
from .sealed_shards import Shard, sealed_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shardwright.read.store import Store
    from shardwright.repack.runtime.executors import Executor

_GRANTS_PER_BYTE = 3  # read, written, read back: see throttle.py


@dataclass(frozen=True)
class Options:
    """``recompress``: as ``pack_shard`` takes it, None to leave chunks as they are encoded. ``bytes_per_s``:
    of the whole job, None for no limit. ``trim``: drop chunks and shards that lie wholly outside the array's
    shape."""

    order: str = "row_major"
    recompress: dict[str, Any] | None = None
    bytes_per_s: float | None = None
    idle: bool = True
    trim: bool = False


@dataclass(frozen=True)
class PlannedShard:
    """A sealed shard. ``allocated_bytes``: what the filesystem holds for it, less than ``file_bytes`` where
    its gaps were given back. ``packed_bytes``: how long it will be, before any recompression. ``todo``: it is
    not packed yet, or is to be recompressed. ``owner``: user and group.
    """

    shard: Shard
    file_bytes: int
    allocated_bytes: int
    gap_bytes: int
    packed_bytes: int
    packed: bool
    todo: bool
    device: int
    owner: tuple[int, int]


@dataclass(frozen=True)
class JobPlan:
    """What a job would do. ``open``: shards (below the store) that are still being written. ``unknown``:
    files that are no shards, and why. ``failures``: what cannot be compacted, and the error.
    """

    store: Store
    options: Options
    shards: tuple[PlannedShard, ...]
    open: tuple[str, ...]
    unknown: dict[str, str]
    failures: dict[str, ShardwrightError]

    @property
    def todo(self) -> list[PlannedShard]:
        return [shard for shard in self.shards if shard.todo]

    @property
    def todo_bytes(self) -> int:
        return sum(shard.packed_bytes for shard in self.todo)

    @property
    def pause_files(self) -> list[str]:
        """What holds this job up."""
        return pause_files(self.store.arrays[0].path)

    def to_dict(self) -> dict[str, Any]:
        """What would be saved. ``expected_bytes`` is without what ``recompress`` may gain on top of it."""
        sums = {
            name: sum(getattr(shard, name) for shard in self.shards)
            for name in ("file_bytes", "allocated_bytes", "gap_bytes")
        }
        return {
            "path": str(self.store.root),
            "ok": not self.failures,
            "shards": len(self.shards),
            "shards_packed": sum(shard.packed for shard in self.shards),
            "shards_todo": len(self.todo),
            **sums,
            "expected_bytes": sum(shard.packed_bytes for shard in self.shards),
            "open": list(self.open),
            "unknown": self.unknown,
            "failures": {name: error.to_dict() for name, error in self.failures.items()},
        }


@dataclass
class Report:
    """What a job did. ``dropped``: of those packed, shards of which nothing was left. ``skipped``: was as it
    should be. ``left``: shards that were not reached, because of an interrupt."""

    path: str
    packed: int = 0
    dropped: int = 0
    skipped: int = 0
    left: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    gain_bytes: int = 0
    chunks_recoded: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    open: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.interrupted

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def add(self, result: dict[str, Any]) -> None:
        """Count the result of one task."""
        if not result["ok"]:
            self.failures[result["key"]] = result["error"]
        elif result.get("skipped"):
            self.skipped += 1
        else:
            self.packed += 1
            self.dropped += bool(result.get("dropped"))
        self.bytes_read += result["bytes_read"]
        self.bytes_written += result["bytes_written"]
        self.gain_bytes += result.get("gain_bytes", 0)
        self.chunks_recoded += result.get("chunks_recoded", 0)


def plan(
    store: Store, options: Options, on_look: Callable[[int, int], None] = lambda done, total: None
) -> JobPlan:
    """``on_look`` is told how many shards have been looked at, and of how many. Keeps to the rate, and waits
    for cameras.

    Raises ``ShardFormatError`` when an array cannot be read or it is not clear what may be touched,
    ``ConfigError`` for an order that does not exist, or a codec that an array does not cover,
    ``StorageError``."""
    store.check_references()
    if options.recompress is not None:
        for array in store.arrays:
            denser_codec(array, options.recompress)  # what an array does not cover, none of its shards does
    found = sealed_shards(store)
    if options.trim and found.in_progress:
        raise LockedError(
            f"{store.root} is still being written, and its shape grows: nothing of it is trimmed",
            hint="Wait until it has ended",
        )
    failures: dict[str, ShardwrightError] = {}
    finished = {
        array.path: DoneList(array.path / WORK_FOLDER / DONE_NAME, _recorded(options))
        for array in store.arrays
    }
    throttle = Throttle(options.bytes_per_s, tuple(rig_pause_files(store.arrays[0].path)))
    shards = []
    for number, shard in enumerate(found.sealed):
        on_look(number, len(found.sealed))
        throttle.take(shard.array.index_bytes)
        try:
            shards.append(_look_at(shard, options, finished[shard.array.path]))
        except (ShardFormatError, StorageError) as error:
            if isinstance(error, ShardFormatError) and not shard.array.contains_shard(shard.coordinates):
                found.unknown[shard.path] = (
                    f"outside the grid of {shard.array.grid_shape} shards, and none itself: {error}"
                )
            else:
                failures[_name(store, shard.path)] = error
    return JobPlan(
        store,
        options,
        tuple(shards),
        tuple(_name(store, shard.path) for shard in found.open),
        {_name(store, path): reason for path, reason in found.unknown.items()},
        failures,
    )


def _look_at(shard: Shard, options: Options, finished: DoneList) -> PlannedShard:
    with SourceShard(shard.array, shard.coordinates) as source:
        plan = source.pack_plan(options.order, trim=options.trim)
        packed = plan.matches(source.file_bytes)
        done = finished.has(shard.key, shard.path) if options.recompress else packed
        if options.trim and source.is_cropped_whole():
            done = False  # to be deleted, however short it is
        return PlannedShard(
            shard,
            source.file_bytes,
            source.allocated_bytes,
            max(0, source.file_bytes - plan.file_bytes),
            plan.file_bytes,
            packed,
            not done,
            file_of_shard(shard.array, shard.key).stat().st_dev,
            (source.status.st_uid, source.status.st_gid),
        )


def _recorded(options: Options) -> dict[str, Any]:
    """The options that decide what a finished shard looks like."""
    return {
        "order": options.order,
        "recompress": options.recompress,
        **({"trim": True} if options.trim else {}),
    }


def _name(store: Store, path: Path) -> str:
    """A file for messages: below the store, or below the array by which it was opened."""
    return path.relative_to(store.root).as_posix() if path.is_relative_to(store.root) else str(path)


def check_room(plans: Sequence[JobPlan], workers: int) -> None:
    """Raises ``StorageFullError`` when a filesystem has no room for the copies that are made at once: the
    largest ``workers`` of one store."""
    for job in plans:
        for device in {shard.device for shard in job.todo}:
            sizes = sorted((shard.packed_bytes for shard in job.todo if shard.device == device), reverse=True)
            folder = next(shard.shard.path.resolve().parent for shard in job.todo if shard.device == device)
            with storage_errors("look at", folder):
                facts = os.statvfs(folder)
            free, needed = facts.f_bavail * facts.f_frsize, sum(sizes[:workers])
            if needed > free:
                raise StorageFullError(
                    f"no room to compact {job.store.root}: a shard is copied before its copy replaces it, "
                    f"{min(workers, len(sizes))} at a time",
                    expected=f"{needed} bytes free in {folder}",
                    got=f"{free}",
                    hint="Free some space" + (", or use fewer workers" if sizes[0] <= free else ""),
                )


def _check_owners(job: JobPlan) -> None:
    """Raises ``StorageError`` when a copy could not be given to the owner of the shard that it replaces:
    tried with an empty one for each owner."""
    others = {shard.owner: shard.shard for shard in job.todo if shard.owner != (os.geteuid(), os.getegid())}
    for shard in others.values():
        file = file_of_shard(shard.array, shard.key)
        with storage_errors("look at", file):
            status = file.stat()
        with WorkingFile(working_path(file, shard.key), 0, status):
            pass


def run(job: JobPlan, executor: Executor, on_progress: Callable[[int], None] = lambda _: None) -> Report:
    """Do what was planned. ``on_progress`` gets bytes of ``job.todo_bytes`` as they are done.

    Raises ``LockedError`` when another job is at work on one of the arrays, ``StorageFullError`` (before
    anything is begun), ``StorageError``. An interrupt (``KeyboardInterrupt``) abandons what is running and is
    told in the report.
    """
    begin_s = time.monotonic()
    report = Report(str(job.store.root), open=list(job.open), unknown=dict(job.unknown))
    report.failures = {name: error.to_dict() for name, error in job.failures.items()}
    report.skipped = len(job.shards) - len(job.todo)
    check_room([job], executor.workers)
    with ExitStack() as held:
        for array in job.store.arrays:
            folder = held.enter_context(WorkFolder.take(array.path))
            folder.clear_leftovers()
            held.callback(folder.clear_leftovers)  # of workers that were killed
        _check_owners(job)
        try:
            _run_tasks(job, executor, report, on_progress)
        except KeyboardInterrupt:
            report.interrupted = True
    report.left = len(job.shards) + len(job.failures) - report.packed - report.skipped - len(report.failures)
    report.seconds = time.monotonic() - begin_s
    return report


def _run_tasks(job: JobPlan, executor: Executor, report: Report, on_progress: Callable[[int], None]) -> None:
    share = min(executor.workers, len(job.todo)) or 1
    rate = None if job.options.bytes_per_s is None else job.options.bytes_per_s / share
    throttle = Throttle(rate, tuple(job.pause_files), job.options.idle)
    planned = {_name(job.store, shard.shard.path): shard for shard in job.todo}
    finished = {
        array.path: DoneList(array.path / WORK_FOLDER / DONE_NAME, _recorded(job.options))
        for array in job.store.arrays
    }
    threads = _threads_of_each(executor, len(job.todo))
    progress = ByteCount({key: shard.packed_bytes for key, shard in planned.items()}, on_progress)
    tasks = (task_of(key, shard, job.options, throttle, threads) for key, shard in planned.items())
    with closing(executor.run(tasks, progress.moved)) as results:
        for result in results:
            report.add(result)
            progress.finished(result["key"])
            if result["ok"] and job.options.recompress and not result.get("dropped"):
                shard = planned[result["key"]].shard
                finished[shard.array.path].add(shard.key, shard.path)
    if report.ok:
        for record in finished.values():
            record.forget()


def _threads_of_each(executor: Executor, tasks: int) -> int:
    """So that a few large shards are recompressed by as many processors as many small ones. A cluster's
    worker has threads for other tasks."""
    return max(1, executor.workers // max(1, tasks)) if isinstance(executor, LocalProcesses) else 1


def task_of(
    key: str, planned: PlannedShard, options: Options, throttle: Throttle, threads: int
) -> dict[str, Any]:
    """The task for one shard, as ``tasks.run_task`` takes it."""
    return {
        "kind": "pack",
        "key": key,
        "array": str(planned.shard.array.path),
        "shard": list(planned.shard.coordinates),
        "order": options.order,
        "recompress": options.recompress,
        "trim": options.trim,
        "threads": threads,
        "throttle": throttle.to_dict(),
    }


class ByteCount:
    """Turns the grants of running tasks and the ends of tasks into bytes that add up to the size of all
    shards, whatever was granted how often."""

    def __init__(self, sizes: dict[str, int], on_progress: Callable[[int], None]) -> None:
        self._left = dict(sizes)
        self._on_progress = on_progress

    def moved(self, task: dict[str, Any], nbytes: int) -> None:
        self._count(task["key"], nbytes // _GRANTS_PER_BYTE)

    def finished(self, key: str) -> None:
        self._count(key, self._left[key])

    def _count(self, key: str, nbytes: int) -> None:
        counted = min(nbytes, self._left[key])
        self._left[key] -= counted
        self._on_progress(counted)
