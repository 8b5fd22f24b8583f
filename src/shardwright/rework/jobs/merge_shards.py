"""The shards of a finished store merged into longer ones where it is, chunks copied as they are encoded. May
be interrupted at any point, and run again.

    STORE/.compact/merged.NAME/        the job's folder of one array (job_folder.py); NAME percent-encoded
    STORE/.compact/merged.NAME/array   the new array; from when this has taken the old one's place, that one
                                       until it is deleted

    lock of the array ──▶ every new shard, durable ──▶ moves, and through them updates, are kept out; the
    record of the array is held ──▶ the source is as it was? ──▶ both folders exchange their names, in one
    step ──▶ synced ──▶ the old array is deleted

So the array is the old one or the new one, each whole, at any crash: nothing of the old one is deleted before
the exchange is durable. A run that finds the array merged already deletes what an earlier one has left.

An edit that waits for its turn meanwhile was planned for the old shards: ``check_same_shards`` refuses it.
Our readers find that the array has other shards. Another program that has read zarr.json before looks for
shards that are gone, and takes them for fill value: so a store is merged before people read it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    exchange,
    make_directories,
    read_regular,
    replace_file,
    storage_errors,
    sync_directory,
    write_file,
)
from shardwright.model.errors import ShardFormatError, StorageError, StorageFullError
from shardwright.model.names import DOCUMENT, EDIT_FOLDER, MOVE_LOCK_NAME, PARITY_FOLDER, WORK_FOLDER
from shardwright.read.store import parse_array
from shardwright.rework.change_checks import (
    check_at_rest,
    check_finished,
    check_not_spilled,
    check_same_shards,
)
from shardwright.rework.runtime.compaction_queue import QUEUED_NAME
from shardwright.rework.runtime.job_folder import JobFolder
from shardwright.rework.runtime.job_report import BuildReport
from shardwright.rework.runtime.throttle import pause_files
from shardwright.rework.runtime.work_folder import (
    LOCK_NAME,
    PAUSE_NAME,
    locked,
    new_working_path,
    remove,
    remove_lock,
    take_lock,
)
from shardwright.rework.shard_record import check_recorded, data_crcs, sum_of
from shardwright.rework.source_shard import SourceShard
from shardwright.rework.unknown_bytes import unknown_bytes
from shardwright.shard.shard_sums import SUMS_NAME, ShardSums

from .new_arrays import (
    Build,
    NewArray,
    check_parents,
    check_room,
    check_unchanged,
    fingerprint,
    make_arrays,
    stored_bytes,
)
from .new_shard import DEFAULT_MEMORY_BYTES
from .rechunk_store import RechunkOptions, new_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shardwright.disk.lock import StoreLock
    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.tasks import RunTasks
    from shardwright.rework.runtime.throttle import Throttle

_PREFIX = "merged."
_MOST_KEPT_BYTES = 1 << 20  # of a file of the work folder that goes along
# Parity goes with the old array: it is of shards that are no more.
_KNOWN = {DOCUMENT, SUMS_NAME, WORK_FOLDER, EDIT_FOLDER, PARITY_FOLDER, "c"}


@dataclass
class MergeReport:
    """The result of a merge. ``merged``: names of arrays with longer shards now. ``described``: old shards
    described themselves; the new ones do not yet. ``unmerged``: arrays that stay, and why they are left.
    ``failures``: errors by shard."""

    merged: list[str] = field(default_factory=list)
    described: bool = False
    unmerged: dict[str, str] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)


def merge_shards(
    store: Store,
    sizes: Mapping[str, int],
    run: RunTasks,
    throttle: Throttle,
    on_progress: OnProgress,
    *,
    trim: bool = False,
) -> MergeReport:
    """Merges shards into ones of at least ``sizes`` elements along the axes that it names, array by array:
    whole old shards, and no longer than the array. An array with shorter shards that stays is in the report,
    with the reason. ``on_progress`` gets decoded bytes of each array. ``trim``: chunks that lie wholly
    outside the array's shape are left out; else an array that has any stays.

    Raises ``LockedError`` for a store that is written, moved, or that another job is at work on;
    ``ShardFormatError`` for an array that is changed meanwhile; ``StorageFullError`` before an array is
    begun; ``StorageError``.
    """
    report = MergeReport()
    for array in store.arrays:
        name = array.path.relative_to(store.root).as_posix()
        folder = JobFolder(store.root / WORK_FOLDER / f"{_PREFIX}{quote(name, safe='')}")
        check_at_rest(array.path)
        with ExitStack() as held:
            lock = take_lock(array.path / WORK_FOLDER, LOCK_NAME)
            held.callback(remove_lock, lock)
            if (document := _longer(array, sizes)) is not None:
                try:
                    report.described |= _check_nothing_lost(store, array, throttle, trim=trim)
                    _check_exchange(array.path / WORK_FOLDER)
                except StorageFullError:
                    raise
                except (ShardFormatError, StorageError) as error:
                    report.unmerged[name] = str(error)
                    document = None
            if document is not None:
                known = fingerprint(array)
                made = BuildReport(str(array.path))
                pausing = throttle.waiting_for(pause_files(array.path))
                _make(array, document, known, folder, Build(run, pausing, made, on_progress))
                report.failures.update((f"{name}: {one['key']}", one["error"]) for one in made.failures)
                if not made.ok:
                    continue  # the shards that are there wait for the next run
                _exchange(store.root, array, sizes, (known, document), folder, lock, held)
                report.merged.append(name)
            if beneath.is_dir(store.root / WORK_FOLDER):
                with locked(store.root, MOVE_LOCK_NAME):  # one that was killed may have left the lock, too
                    folder.clear()
    return report


def _longer(array: StoredArray, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """Returns the zarr.json of the merged array; None if none of its shards would be longer."""
    names = [str(name) for name in array.dimension_names or ()]
    axes = zip(names, array.shard_shape, strict=False)
    # of whole shards, which are compared with the record: one that is split could not be
    wanted = {name: -(-sizes[name] // s) * s for name, s in axes if name in sizes}
    if not wanted:
        return None
    document = new_document(array, names, RechunkOptions({}, wanted, array.chain.as_json), None)
    shards = parse_array(array.path, document).shard_shape
    return document if any(a > b for a, b in zip(shards, array.shard_shape, strict=True)) else None


def _check_exchange(work: Path) -> None:
    """Exchanges two empty files: a filesystem that cannot, as those of networks, is to say so before every
    shard is copied, and not after. Raises ``StorageError``."""
    one, two = new_working_path(work, "exchange"), new_working_path(work, "exchange")
    try:
        for file in (one, two):
            write_file(file, b"", synced=False)
        reach("compact.before_trial")
        exchange(one, two, "Write a new store instead: `shardwright rechunk STORE DEST --shards ...`")
    finally:
        for file in (one, two):
            remove(file)


def _check_nothing_lost(store: Store, array: StoredArray, throttle: Throttle, *, trim: bool) -> bool:
    """Raises ``ShardFormatError`` or ``StorageError`` where something of the old array would be lost with it,
    but for what ``trim`` drops, or what describes it would become wrong. Returns whether shards describe
    themselves."""
    if store.root == array.path or store.shard is not None:
        raise ShardFormatError("it was given alone", hint="Give the store")
    check_same_shards(array)
    describes = False
    _check_surroundings(array.path)
    record = ShardSums(array.path)
    for key, sums in record.read().items():
        if None not in sums and not beneath.exists(array.path / key):
            raise ShardFormatError(f"{key} is missing, although {SUMS_NAME} records it")
    for key, shard in array.shard_files():
        if shard is None:
            raise ShardFormatError(f"{key} is not a chunk key of it")
        check_not_spilled(array.path / key)
        throttle.take(array.index_bytes)
        with SourceShard(array, shard) as source:
            inside = array.chunks_in_shape(shard)[source.index.live]
            if not array.contains_shard(shard) or not inside.all():
                if not trim:
                    raise ShardFormatError(
                        f"{key} has chunks outside of the shape",
                        hint="`shardwright compact --trim` drops them",
                    )
                # Who copies a part of a shard cannot compare it with the record, which is of the whole.
                throttle.take(source.file.nbytes)
                check_recorded(source, record, lambda: sum_of(source, *data_crcs(source)))
            unknown = unknown_bytes(source, source.pack_plan("row_major"), throttle.take)
            if unknown is not None:
                raise unknown.error()
            describes |= source.description is not None
    return describes


def _check_surroundings(folder: Path) -> None:
    """As ``_check_nothing_lost``, but for shards."""
    check_parents(folder)
    if others := {path.name for path in beneath.paths_in(folder)} - _KNOWN:
        raise ShardFormatError(f"its folder has files of others: {min(others)}")


def _make(array: StoredArray, document: dict[str, Any], known: str, folder: JobFolder, build: Build) -> None:
    """Makes every shard of the merged array that is not there yet. Raises as ``merge_shards`` does."""
    job = {"source": {"path": str(array.path), "shards": known}, "array": document}
    folder.begin(job, lambda: check_room(folder.path, stored_bytes(array)))
    ones = (1,) * len(array.shape)
    new = NewArray(_new(folder), array.path, document, ones, None, DEFAULT_MEMORY_BYTES, lossy=False)
    make_arrays([new], folder, build)


def _new(folder: JobFolder) -> Path:
    return folder.path / "array"


def _exchange(
    root: Path,
    array: StoredArray,
    sizes: Mapping[str, int],
    copied: tuple[str, dict[str, Any]],
    folder: JobFolder,
    lock: StoreLock,
    held: ExitStack,
) -> None:
    """Gives the new array the name of the old one, durably. ``copied``: the fingerprint of the old one and
    the zarr.json of the new one, when it was begun. ``lock``: of the old one; that of the new one
    goes into ``held``, since each lock file moves with its folder. Raises ``LockedError``,
    ``ShardFormatError`` if the old one has changed, ``StorageError``."""
    old, new, work = array.path, _new(folder), _new(folder) / WORK_FOLDER
    make_directories(work)
    for name in (QUEUED_NAME, PAUSE_NAME):
        if beneath.is_file(old / WORK_FOLDER / name):
            replace_file(work / name, read_regular(old / WORK_FOLDER / name, _MOST_KEPT_BYTES))
    new_lock = take_lock(work, LOCK_NAME)
    held.callback(remove_lock, new_lock)
    with locked(root, MOVE_LOCK_NAME), ShardSums(old).held(create=False):
        check_finished(old)
        _check_surroundings(old)
        now = fingerprint(array), _longer(parse_array(old), sizes)
        check_unchanged(old, same=now == copied)
        with storage_errors("exchange the names of", old):
            reach("compact.before_exchange")
            exchange(new, old)
        lock.renamed(work / LOCK_NAME)
        new_lock.renamed(old / WORK_FOLDER / LOCK_NAME)
        sync_directory(old.parent)
        sync_directory(folder.path)
