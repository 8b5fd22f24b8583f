"""The shards of a finished store merged into longer ones where it is, chunks copied as they are encoded. May
be interrupted at any point, and run again.

    STORE/.compact/merged.KEY/         the job's folder of one array (job_folder.py); KEY with dots
    STORE/.compact/merged.KEY/array    the new array; from when this has taken the old one's place, that one
                                       until it is deleted

    lock of the array ──▶ every new shard, durable ──▶ moves, and through them updates, are kept out; the
    record of the array is held ──▶ the source is as it was? ──▶ both folders exchange their names, in one
    step ──▶ synced ──▶ the old array is deleted

So the array is the old one or the new one, each whole, at any crash: nothing of the old one is deleted before
the exchange is durable. A run that finds the array merged already deletes what an earlier one has left.

An edit that waits for its turn meanwhile was planned for the old shards: ``check_same_grid`` refuses it. Our
readers find that the array has other shards. Another program that has read zarr.json before looks for shards
that are gone, and takes them for fill value: so a store is merged before people read it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated_metadata import consolidated_metadata
from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    exchange,
    make_directories,
    read_regular,
    replace_file,
    storage_errors,
    sync_directory,
)
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT, EDIT_FOLDER, MOVE_LOCK_NAME, WORK_FOLDER
from shardwright.read.store import parse_array, read_metadata
from shardwright.rework.change_checks import check_at_rest, check_finished, is_spilled
from shardwright.rework.runtime.compaction_queue import QUEUED_NAME
from shardwright.rework.runtime.job_folder import JobFolder
from shardwright.rework.runtime.job_report import BuildReport, no_progress
from shardwright.rework.runtime.throttle import Throttle, pause_files
from shardwright.rework.runtime.work_folder import LOCK_NAME, PAUSE_NAME, locked, remove_lock, take_lock
from shardwright.rework.source_shard import SourceShard
from shardwright.rework.unknown_bytes import unknown_bytes
from shardwright.shard.shard_sums import SUMS_NAME, ShardSums

from .copied_chunks import are_copied
from .new_arrays import NewArray, check_room, check_unchanged, fingerprint, make_arrays, stored_bytes
from .new_shard import DEFAULT_MEMORY_BYTES
from .rechunk_store import RechunkOptions, new_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shardwright.disk.lock import StoreLock
    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.tasks import RunTasks

_PREFIX = "merged."
_MOST_KEPT_BYTES = 1 << 20  # of a file of the work folder that goes along
_KNOWN = {DOCUMENT, SUMS_NAME, WORK_FOLDER, EDIT_FOLDER, "c"}


@dataclass
class MergeReport:
    """The result of a merge. ``merged``: names of arrays with longer shards now. ``unmerged``: arrays that
    stay, and why they are left. ``failures``: by shard or array."""

    merged: list[str] = field(default_factory=list)
    unmerged: dict[str, str] = field(default_factory=dict)
    failures: dict[str, ErrorText] = field(default_factory=dict)


def merge_shards(
    store: Store,
    sizes: Mapping[str, int],
    run: RunTasks,
    *,
    throttle: Throttle | None = None,
    on_progress: OnProgress = no_progress,
) -> MergeReport:
    """Merges shards into ones of at least ``sizes`` elements along the axes that it names, array by array;
    whole chunks, and no longer than the array. What it does not apply to stays, and is in the report with the
    reason if shards there are shorter.

    Raises ``LockedError`` for a store that is written, moved, or that another job is at work on;
    ``StorageFullError`` before an array is begun; ``StorageError``.
    """
    store.check_references()
    store.check_spelling()
    report = MergeReport()
    throttle = throttle or Throttle()
    for array in store.arrays:
        name = array.path.relative_to(store.root).as_posix()
        check_at_rest(array.path)
        with ExitStack() as held:
            lock = take_lock(array.path / WORK_FOLDER, LOCK_NAME)
            held.callback(remove_lock, lock)
            document = _longer(array, sizes)
            folder = JobFolder(store.root / WORK_FOLDER / f"{_PREFIX}{name.replace('/', '.')}")
            why = None if document is None else _why_left(store, array, document, throttle)
            if why is not None:
                report.unmerged[name] = why
            if document is None or why is not None:
                _clear(store.root, folder)
                continue
            waiting = throttle.waiting_for(pause_files(array.path))
            made, known = _make(array, document, folder, waiting, run, on_progress)
            for failure in made.failures:
                report.failures[f"{name}: {failure['key']}"] = ErrorText.from_dict(failure["error"])
            if made.ok:
                _exchange(store.root, array, known, folder, lock, held)
                report.merged.append(name)
                _clear(store.root, folder)
    return report


def _clear(root: Path, folder: JobFolder) -> None:
    """Deletes what a job has left, or has no use for any more; also the lock of moves, which one that was
    killed may have left."""
    if beneath.is_dir(root / WORK_FOLDER):
        with locked(root, MOVE_LOCK_NAME):
            folder.clear()


def _longer(array: StoredArray, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """Returns the zarr.json of the merged array; None if none of its shards would be longer."""
    names = [str(name) for name in array.dimension_names or ()]
    axes = zip(names, array.shard_shape, array.chunk_shape, strict=False)
    wanted = {name: max(s, -(-sizes[name] // c) * c) for name, s, c in axes if name in sizes}
    if not wanted:
        return None
    document = new_document(array, names, RechunkOptions({}, wanted), None)
    shards = parse_array(array.path, document).shard_shape
    return document if any(a > b for a, b in zip(shards, array.shard_shape, strict=True)) else None


def _why_left(store: Store, array: StoredArray, document: dict[str, Any], throttle: Throttle) -> str | None:
    """Returns why an array is not merged although it has shorter shards, or None. Whatever is left of it then
    would be lost with the old array."""
    if store.root == array.path or store.shard is not None:
        return "it was given alone: give the store"
    for group in (store.root, *store.root.parents):
        if not beneath.exists(group / DOCUMENT):
            break
        if consolidated_metadata(read_metadata(group, foreign=True)) is not None:
            return f"{group} has consolidated metadata, which describe it"
    others = {path.name for path in beneath.paths_in(array.path)} - _KNOWN
    if others:
        return f"its folder has files of others: {min(others)}"
    if not are_copied(array, parse_array(array.path, document), None):
        return "its codecs would change"
    shards = (_why_shard_left(array, key, shard, throttle) for key, shard in array.shard_files())
    return next(filter(None, shards), None)


def _why_shard_left(
    array: StoredArray, key: str, shard: tuple[int, ...] | None, throttle: Throttle
) -> str | None:
    if shard is None:
        return f"{key} is not a chunk key of it"
    if is_spilled(array.path / key):
        return f"{key} is a link to a shard on another disk"
    throttle.take(array.index_bytes)
    try:
        with SourceShard(array, shard) as source:
            inside = array.chunks_in_shape(shard)
            if not array.contains_shard(shard) or not inside[source.index.live].all():
                return f"{key} has chunks outside of the shape: `shardwright compact --trim` drops them"
            unknown = unknown_bytes(source, source.pack_plan("row_major"), throttle.take)
            return None if unknown is None else unknown.error().message
    except (ShardFormatError, StorageError) as error:
        return str(error)


def _make(
    array: StoredArray,
    document: dict[str, Any],
    folder: JobFolder,
    throttle: Throttle,
    run: RunTasks,
    on_progress: OnProgress,
) -> tuple[BuildReport, str]:
    """Makes every shard of the merged array that is not there yet; returns also the fingerprint of the
    source. Raises as ``merge_shards`` does."""
    report, known = BuildReport(str(array.path)), fingerprint(array)
    job = {"source": {"path": str(array.path), "shards": known}, "array": document}
    folder.begin(job, lambda: check_room(folder.path, stored_bytes(array)))
    ones = (1,) * len(array.shape)
    new = NewArray(_new(folder), array.path, document, ones, None, DEFAULT_MEMORY_BYTES, lossy=False)
    make_arrays([new], folder, throttle, run, report, on_progress)
    return report, known


def _new(folder: JobFolder) -> Path:
    return folder.path / "array"


def _exchange(
    root: Path, array: StoredArray, known: str, folder: JobFolder, lock: StoreLock, held: ExitStack
) -> None:
    """Gives the new array the name of the old one, durably. ``known``: the fingerprint of the old one as it
    was copied. ``lock``: of the old one; that of the new one goes into ``held``, since each lock file moves
    with its folder. Raises ``LockedError``, ``ShardFormatError`` if the old one has changed."""
    new, work = _new(folder), _new(folder) / WORK_FOLDER
    make_directories(work)
    for name in (QUEUED_NAME, PAUSE_NAME):
        if beneath.is_file(array.path / WORK_FOLDER / name):
            replace_file(work / name, read_regular(array.path / WORK_FOLDER / name, _MOST_KEPT_BYTES))
    new_lock = take_lock(work, LOCK_NAME)
    held.callback(remove_lock, new_lock)
    with locked(root, MOVE_LOCK_NAME), ShardSums(array.path).held(create=False):
        check_finished(array.path)
        check_unchanged(array.path, same=known == fingerprint(array))
        with storage_errors("exchange the names of", array.path):
            reach("compact.before_exchange")
            exchange(new, array.path)
        lock.renamed(work / LOCK_NAME)
        new_lock.renamed(array.path / WORK_FOLDER / LOCK_NAME)
        sync_directory(array.path.parent)
        sync_directory(folder.path)
