"""The compaction of one store in place. May be interrupted at any point and run again: finished shards are
not done again.

    plan    reads every index and changes nothing: which shards are to be packed, what that saves, what is
            wrong, how much room it takes
    run     takes the lock of each array, deletes what a dead job left, hands a task for each shard to an
            executor, collects the results

A shard that cannot be packed stays as it is and never stops the others. Shards that are still being written
are skipped.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.files import free_bytes, storage_errors
from shardwright.disk.working_file import WorkingFile
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    ConfigError,
    LockedError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StorageFullError,
)
from shardwright.model.names import WORK_FOLDER
from shardwright.read.store import open_store
from shardwright.rework.change_checks import check_not_spilled
from shardwright.rework.runtime.done_list import DONE_NAME, DoneList
from shardwright.rework.runtime.executors import LocalProcesses
from shardwright.rework.runtime.job_report import no_progress, run_with_progress
from shardwright.rework.runtime.throttle import Throttle, pause_files, rig_pause_files
from shardwright.rework.runtime.work_folder import WorkFolder, working_path
from shardwright.rework.source_shard import SourceShard

from .hdf5_container import check_store, hdf5_plan, is_hdf5, most_bytes, publish
from .merge_shards import MergeReport, merge_shards
from .recode import denser_codec
from .sealed_shards import Shard, sealed_shards

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.read.store import Store
    from shardwright.rework.runtime.executors import Executor
    from shardwright.rework.runtime.job_report import OnProgress


@dataclass(frozen=True)
class Options:
    """The options of a compaction. ``recompress``: as ``pack_shard`` takes it, None to leave chunks as they
    are encoded. ``bytes_per_s``: of the whole job, None for no limit. ``idle``: at idle priority. ``trim``:
    drop chunks and shards that lie wholly outside the array's shape. ``parity``: percent of each shard row
    that may be lost, made when all is packed (``shard_parity``); 0 for none. ``shards``: as ``merge_shards``
    takes them, none to merge none. ``container``: what each shard is to be as well (``hdf5_container``).
    ``describe``: each shard gets a description of itself."""

    order: str = "row_major"
    recompress: dict[str, Any] | None = None
    bytes_per_s: float | None = None
    idle: bool = True
    trim: bool = False
    parity: int = 0
    shards: dict[str, int] = field(default_factory=dict)
    container: str | None = None
    describe: bool = False


@dataclass(frozen=True)
class PlannedShard:
    """A sealed shard. ``allocated_bytes``: of the filesystem, less than ``file_bytes`` where gaps were given
    back. ``packed_bytes``: its length when packed, without recompression. ``todo``: it is not packed yet, or
    is to be recompressed. ``owner``: user and group.
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
    """The shards of a store and the work planned for each. ``open``: shards (below the store) that are
    still being written. ``spilled``: links to shards, which are only read.
    ``unknown``: files that are no shards, and why. ``failures``: what cannot be
    compacted, and the error.
    """

    store: Store
    options: Options
    shards: tuple[PlannedShard, ...]
    open: tuple[str, ...]
    spilled: tuple[str, ...]
    unknown: dict[str, str]
    failures: dict[str, ShardwrightError]

    @property
    def todo(self) -> list[PlannedShard]:
        return [shard for shard in self.shards if shard.todo]

    @property
    def pause_files(self) -> list[str]:
        """The files that pause this job while they exist."""
        return pause_files(self.store.arrays[0].path)

    def throttle(self, workers: int) -> Throttle:
        """The throttle of this job, for so many workers."""
        options = self.options
        return Throttle(options.bytes_per_s, tuple(self.pause_files), options.idle, workers=workers)

    def to_dict(self) -> dict[str, Any]:
        """As ``compact --dry-run --json`` prints it. ``expected_bytes``: without what ``recompress`` gains on
        top of packing."""
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
            "spilled": list(self.spilled),
            "unknown": self.unknown,
            "failures": {name: error.to_dict() for name, error in self.failures.items()},
        }


@dataclass
class Report:
    """The result of a compaction. ``dropped``: of those packed, shards of which nothing was left.
    ``skipped``: shards that were packed already. ``left``: shards that were not reached, because of an
    interrupt. ``merged``, ``unmerged``: arrays, as of ``MergeReport``."""

    path: str
    merged: list[str] = field(default_factory=list)
    unmerged: dict[str, str] = field(default_factory=dict)
    packed: int = 0
    dropped: int = 0
    skipped: int = 0
    left: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    gain_bytes: int = 0
    chunks_recoded: int = 0
    seconds: float = 0.0
    parity_rows: int = 0  # shard rows that have the parity asked for
    interrupted: bool = False
    open: list[str] = field(default_factory=list)
    spilled: list[str] = field(default_factory=list)
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


def plan(store: Store, options: Options, on_look: OnProgress = no_progress) -> JobPlan:
    """Examine every shard, within the rate, and waiting for cameras. ``on_look`` gets the number of shards
    examined and of all shards. Changes nothing.

    Raises ``ShardFormatError`` when an array cannot be read, cannot be packed with these options, or the work
    in progress is not understood, ``ConfigError`` for an unknown order, or a codec that an array does not
    cover, ``StorageError``."""
    store.check_references()
    store.check_spelling()
    _check_arrays(store, options)
    if options.recompress is not None:
        for array in store.arrays:
            denser_codec(array, options.recompress)  # what an array does not cover, none of its shards does
    found = sealed_shards(store)
    if options.trim and found.in_progress:
        raise LockedError(
            f"{store.root} is still being written and its shape grows, so it is not trimmed",
            hint="Wait until it has ended",
        )
    failures: dict[str, ShardwrightError] = {}
    done = _done_lists(store, options)
    throttle = Throttle(options.bytes_per_s, tuple(rig_pause_files(store.arrays[0].path)))
    shards = []
    for number, shard in enumerate(found.sealed):
        on_look(number, len(found.sealed))
        throttle.take(shard.array.index_bytes)
        try:
            shards.append(_look_at(shard, options, done[shard.array.path]))
        except (ShardFormatError, StorageError) as error:
            # Any file may have the name that a shard outside of the grid would have. It is told, and is no
            # failure.
            if isinstance(error, ShardFormatError) and not shard.array.contains_shard(shard.coordinates):
                found.unknown[shard.path] = (
                    f"outside the grid of {shard.array.grid_shape} shards, and not a shard itself: {error}"
                )
            else:
                failures[_name(store, shard.path)] = error
    if options.container:  # arrays change as a whole
        for shard in found.open:
            raise LockedError(f"{shard.path} is being written", hint="Wait until its acquisition has ended")
        for shard in found.spilled:
            check_not_spilled(shard.path)
        for failure in failures.values():
            raise ErrorText.of(failure).to_error()
    return JobPlan(
        store,
        options,
        tuple(shards),
        tuple(_name(store, shard.path) for shard in found.open),
        tuple(_name(store, shard.path) for shard in found.spilled),
        {_name(store, path): reason for path, reason in found.unknown.items()},
        failures,
    )


def _check_arrays(store: Store, options: Options) -> None:
    """Raises ``ShardFormatError``, ``ConfigError`` for an array that cannot be packed with these options."""
    if options.container:
        check_store(store)
    for array in store.arrays:
        if options.describe and not array.is_sharded:
            raise ShardFormatError(
                f"{array.path} has no shards, and a file of one chunk cannot describe itself",
                hint="Leave out --describe, or make shards of it: `shardwright rechunk --shards`",
            )
        if (options.container or array.container) and (options.recompress is not None or options.trim):
            raise ConfigError(
                f"the shards of {array.path} are HDF5 files as well, or are to be, and keep their chunks",
                hint="Recompress or trim a store before --container. `shardwright rechunk` makes a new one",
            )


def _look_at(shard: Shard, options: Options, done: DoneList) -> PlannedShard:
    with SourceShard(shard.array, shard.coordinates) as source:
        if options.container or shard.array.container:
            packed = is_hdf5(source)
            packed_bytes = source.file.nbytes if packed else most_bytes(hdf5_plan(source, options.order))
        else:
            new = source.pack_plan(options.order, trim=options.trim, describe=options.describe)
            packed, packed_bytes = source.is_packed(new), new.file_bytes
        # A packed shard shows that it is packed. A recompressed one looks like any other: a list says what
        # earlier runs have done.
        is_done = done.has(shard.key, shard.path) if options.recompress else packed
        if options.trim and source.is_cropped_whole():
            is_done = False  # to be deleted, however short it is
        return PlannedShard(
            shard,
            source.file.nbytes,
            source.file.allocated_bytes,
            max(0, source.file.nbytes - packed_bytes),
            packed_bytes,
            packed,
            not is_done,
            source.file.status.st_dev,
            (source.file.status.st_uid, source.file.status.st_gid),
        )


def _done_lists(store: Store, options: Options) -> dict[Path, DoneList]:
    """Of each array, for the options that decide what a finished shard looks like."""
    decisive = {
        "order": options.order,
        "recompress": options.recompress,
        **({"trim": True} if options.trim else {}),
        **({"describe": True} if options.describe else {}),
    }
    return {array.path: DoneList(array.path / WORK_FOLDER / DONE_NAME, decisive) for array in store.arrays}


def _name(store: Store, path: Path) -> str:
    """The name of a file in messages: below the store, or below the array by which it was opened."""
    return path.relative_to(store.root).as_posix() if path.is_relative_to(store.root) else str(path)


def check_room(plans: Sequence[JobPlan], workers: int) -> None:
    """Raises ``StorageFullError`` when a filesystem has no room for the copies that are made at the same
    time: of the largest ``workers`` shards of one store."""
    for job in plans:
        for device in {shard.device for shard in job.todo}:
            sizes = sorted((shard.packed_bytes for shard in job.todo if shard.device == device), reverse=True)
            folder = next(shard.shard.path.parent for shard in job.todo if shard.device == device)
            free, needed = free_bytes(folder), sum(sizes[:workers])
            if needed > free:
                raise StorageFullError(
                    f"no room to compact {job.store.root}: a shard is copied before its copy replaces it, "
                    f"{min(workers, len(sizes))} at a time",
                    expected=f"{needed} bytes free in {folder}",
                    got=f"{free}",
                    hint="Free some space" + (", or use fewer workers" if sizes[0] <= free else ""),
                )


def _check_owners(job: JobPlan) -> None:
    """Raises ``StorageError`` when a copy could not be given to the owner of the shard that it replaces.
    Tries it with an empty file for each owner."""
    others = {shard.owner: shard.shard for shard in job.todo if shard.owner != (os.geteuid(), os.getegid())}
    for shard in others.values():
        with storage_errors("look at", shard.path):
            try:
                status = beneath.stat(shard.path)
            except FileNotFoundError:  # an edit has deleted it since: its task says so
                continue
        with WorkingFile(working_path(shard.array, shard.key), 0, status):
            pass


def run(job: JobPlan, executor: Executor, on_progress: OnProgress = no_progress) -> Report:
    """Merge shards, if that was asked for, and do what was planned. ``on_progress`` gets bytes of shards.

    Raises ``LockedError`` when another job is at work on one of the arrays, ``StorageFullError`` (before
    anything is begun), ``StorageError``. An interrupt (``KeyboardInterrupt``) ends the tasks that are running
    and is in the report.
    """
    begin_s, merge = time.monotonic(), MergeReport()
    if job.options.shards:
        try:
            job, merge = _merged(job, executor, on_progress)
        except KeyboardInterrupt:
            return Report(str(job.store.root), left=len(job.todo), interrupted=True)
    report = Report(str(job.store.root), merge.merged, merge.unmerged)
    report.open, report.unknown = list(job.open), dict(job.unknown)
    report.spilled = list(job.spilled)
    report.failures = {name: error.to_dict() for name, error in job.failures.items()}
    report.skipped = len(job.shards) - len(job.todo)
    check_room([job], executor.workers)
    with ExitStack() as held:
        for array in job.store.arrays:
            folder = held.enter_context(WorkFolder.locked(array.path))
            folder.clear_leftovers()
            # Called before the lock is let go: afterwards such files could be another job's.
            held.callback(folder.clear_leftovers)  # of workers that were killed
        # Once, and not by each task: without the right to give files away all shards would fail, one by one.
        _check_owners(job)
        try:
            _run_tasks(job, executor, report, on_progress)
            if report.ok and (job.options.container or any(s.shard.array.container for s in job.todo)):
                arrays = [a for a in job.store.arrays if job.options.container or a.container]
                publish(job.store, arrays, [shard.shard for shard in job.shards])
        except KeyboardInterrupt:
            report.interrupted = True
    report.left = len(job.shards) + len(job.failures) - report.packed - report.skipped - len(report.failures)
    report.failures |= merge.failures
    report.seconds = time.monotonic() - begin_s
    return report


def _merged(job: JobPlan, executor: Executor, on_progress: OnProgress) -> tuple[JobPlan, MergeReport]:
    """Returns the plan of the store once its shards are merged: they have other names. Where old ones
    described themselves, packing describes the new ones."""
    options = job.options
    throttle = job.throttle(executor.workers)
    merge = merge_shards(job.store, options.shards, executor.run, throttle, on_progress, trim=options.trim)
    options = replace(options, describe=options.describe or merge.described)
    return (plan(open_store(job.store.root), options) if merge.merged else job), merge


def _run_tasks(job: JobPlan, executor: Executor, report: Report, on_progress: OnProgress) -> None:
    options, planned = job.options, {_name(job.store, shard.shard.path): shard for shard in job.todo}
    throttle = job.throttle(executor.workers).of_one_worker(len(planned))
    done = _done_lists(job.store, options)
    threads = _threads_of_each(executor, len(planned))
    run_tasks = run_with_progress(
        executor, {key: shard.packed_bytes for key, shard in planned.items()}, on_progress
    )
    tasks = (task_of(key, shard, options, throttle, threads) for key, shard in planned.items())
    with closing(run_tasks(tasks)) as results:
        for result in results:
            report.add(result)
            if result["ok"] and options.recompress and not result.get("dropped"):
                shard = planned[result["key"]].shard
                done[shard.array.path].add(shard.key, shard.path)
    # Kept after a failure or an interrupt: the next run would recompress what this one has done.
    if report.ok:
        for each in done.values():
            each.forget()


def _threads_of_each(executor: Executor, tasks: int) -> int:
    """The threads of a task: a few large shards are recompressed by as many processors as many small ones. A
    cluster's worker has threads for other tasks."""
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
        "describe": options.describe,
        "container": options.container,
        "threads": threads,
        "throttle": throttle.to_dict(),
    }
