"""Resumes an acquisition from an unfinished store on disk: takes the lock, fences off older writers, then
scan -> decide -> execute.

Each step leaves the disk so that the next recovery finds the same or more: it may be killed at any point and
started again.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shardwright.acquire.acquisition import Acquisition
from shardwright.disk import beneath
from shardwright.disk.ballast import Ballast
from shardwright.disk.failpoints import reach
from shardwright.disk.files import renew, storage_errors
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import (
    FencedError,
    LockedError,
    OutputExistsError,
    ResumeError,
    ShardFormatError,
    StorageError,
    StorageFullError,
)
from shardwright.model.names import DOCUMENT, WORKSPACE
from shardwright.read.frame_parquet import check_parquet
from shardwright.scan.store_scan import Scanned, scan
from shardwright.scan.unfinished_store import unfinished_beside
from shardwright.shard.intact_mark import end_intact, is_marked
from shardwright.shard.manifest import delete_manifests, find_manifest, has_manifest
from shardwright.shard.metadata_updates import read_updates, updated_groups, updates_path
from shardwright.store.store_folder import StoreFolder

from .admission import admit, check_second_root
from .decide import Decisions, decide
from .execute import execute, set_aside
from .go_on import covered_extents, find_finished, go_on
from .take_over import begin_take_over, clear_older, marks_in, take_files, with_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardwright.acquire.limits import Limits
    from shardwright.acquire.recovered_state import RecoveredState
    from shardwright.acquire.workers import WorkerPool
    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.model.write_settings import WriteSettings
    from shardwright.scan.unfinished_store import UnfinishedStore
    from shardwright.shard.frame_log import FrameLog
    from shardwright.shard.manifest import Manifest
    from shardwright.shard.staging import StagingArea


_TAKE_OVER = (
    "Stop its writer first. If that hangs, take over, by take_over=True of `resume` or by `shardwright "
    "recover --take-over`: frames that it has not stored by then are lost"
)


@dataclass(frozen=True)
class Found:
    """An unfinished store with the result of its scan and the decisions."""

    store: UnfinishedStore
    scanned: Scanned
    decisions: Decisions


def resume(
    path: Path,
    pool: WorkerPool,
    wake: Callable[[], None],
    settings: WriteSettings,
    limits_of: Callable[[AcquisitionSpec], Limits],
    *,
    take_over: bool = False,
    goes_on: bool = False,
) -> Acquisition:
    """Resumes an unfinished store, and a finished one if that ``goes_on``. Raises as ``restore`` does, and
    ``ResumeError`` when its staged frames do not fit into memory."""
    restored, _ = restore(
        path, limits_of, settings, threads=pool.threads, take_over=take_over, goes_on=goes_on
    )
    return begin_restored(restored, pool, wake, settings)


def check_packages(path: Path) -> None:
    """Raises ``ConfigError`` where a package is missing that the end of the store at ``path`` needs: for
    users, who can install it. A daemon, and ``recover``, end the store without what it is for."""
    with suppress(ShardFormatError, StorageError):  # of which resuming says more
        manifest = manifest_of(path)
        if manifest is not None and manifest.frame_parquet:
            check_parquet()


def manifest_of(path: Path) -> Manifest | None:
    """Returns the manifest of an unfinished store, or that which a finished one has recorded; None if there
    is none. Raises as ``find_manifest`` and ``find_finished``."""
    manifest = find_manifest(path / WORKSPACE)
    if manifest is None and (finished := find_finished(path)) is not None:
        return finished.manifest
    return manifest


def begin_restored(
    restored: RecoveredState, pool: WorkerPool, wake: Callable[[], None], settings: WriteSettings
) -> Acquisition:
    """Makes an acquisition from the result of ``restore``. ``restored`` is consumed, also on an error."""
    folder = restored.folder
    try:
        return Acquisition(
            folder.path, folder.spec, restored.standing.limits, pool, wake, settings, restored=restored
        )
    except BaseException:
        restored.close()
        raise


def restore(
    path: Path,
    limits_of: Callable[[AcquisitionSpec], Limits],
    settings: WriteSettings,
    *,
    threads: int,
    take_over: bool = False,
    goes_on: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[RecoveredState, Found]:
    """Takes the lock and recovers the state of an unfinished store; ``goes_on``: a finished one becomes that
    first. Raises ``LockedError``, ``ResumeError``
    when there is nothing to resume, ``FormatVersionError`` for files of another version (nothing was changed
    then), ``ShardFormatError`` for a damaged manifest, ``StorageError``."""
    workspace = path / WORKSPACE
    if has_manifest(workspace):
        is_recovered, (lock, marks, took) = True, _taken(path, take_over=take_over)
    elif goes_on and unfinished_beside(path) is None:
        lock, marks, took = go_on(path, limits_of, settings.ballast_bytes), [], False
        is_recovered = False
    else:
        raise _nothing_unfinished(path)
    try:
        # A writer without the lock is dead. It is not taken over: what it had not acknowledged is then known.
        take_over = took or bool(marks_in(workspace))
        with storage_errors("recover", path):
            store = _fence_off(path, lock, take_over=take_over)
            if not take_over:  # a take-over has just written all of it
                _renew_page_cache(store)
            folder = _open_folder(store, lock, settings, is_recovered=is_recovered)
    except BaseException:
        lock.release()
        raise
    try:
        with storage_errors("recover", path):
            found = look(
                store,
                folder.log,
                folder.staging,
                limits_of(store.spec),
                threads=threads,
                progress=progress,
                taking_over=take_over,
            )
            order = folder.as_created(settings).chunk_order
            return execute(folder, store, found.scanned, found.decisions, order, marks), found
    except BaseException as error:
        folder.note_disk_error(error)
        folder.close()
        raise


def _taken(path: Path, *, take_over: bool) -> tuple[StoreLock, list[Path], bool]:
    """Returns the lock of an unfinished store, the marks of take-overs that there were before it was taken,
    and whether it was taken from a writer. Raises as ``restore``."""
    workspace = path / WORKSPACE
    marks = marks_in(workspace)
    try:
        return _locked(path, take_over=False), marks, False
    except LockedError as error:
        if not take_over:
            error.hint = _TAKE_OVER
            raise
    check_second_root(_read(path))  # before its writer loses the lock
    with _unfinished_still(path):
        begin_take_over(workspace)
    marks = marks_in(workspace)
    return _locked(path, take_over=True), marks, True


def _read(path: Path) -> UnfinishedStore:
    """Raises as ``restore``."""
    with _unfinished_still(path):
        return admit(path)


@contextmanager
def _unfinished_still(path: Path) -> Iterator[None]:
    """A context whose ``StorageError`` is a ``ResumeError`` if the store is not unfinished any more: the
    process that has it may finish or remove it at this very moment."""
    try:
        yield
    except StorageError:
        if has_manifest(path / WORKSPACE):
            raise
        raise _nothing_unfinished(path) from None


def _locked(path: Path, *, take_over: bool) -> StoreLock:
    """Returns the lock of an unfinished store. Raises as ``restore``."""
    workspace = path / WORKSPACE
    with _unfinished_still(path):
        lock = StoreLock.replace(workspace / "lock") if take_over else StoreLock.take(workspace / "lock")
    try:
        if has_manifest(workspace):
            return lock
    except BaseException:
        lock.release()
        raise
    with suppress(StorageError):  # the workspace has gone with it
        lock.delete()  # made anew in the workspace that is being removed: it would keep that there
    with suppress(OSError):
        reach("workspace.before_remove")
        beneath.remove_folder(workspace)
    raise _nothing_unfinished(path)


def look(
    store: UnfinishedStore,
    log: FrameLog,
    staging: StagingArea | None,
    limits: Limits,
    *,
    threads: int,
    progress: Callable[[int], None] | None,
    taking_over: bool,
) -> Found:
    """Scans a store and makes the decisions; changes nothing. ``progress`` is called with numbers of bytes as
    they are checked. ``taking_over``: as in ``StoreFacts``. Raises ``ShardFormatError`` for a damaged log,
    ``StorageError``."""
    scanned = scan(store, log, staging, threads=threads, progress=progress, taking_over=taking_over)
    return Found(store, scanned, decide(scanned.facts, log.blocks(), store.layout, limits))


def _nothing_unfinished(path: Path) -> ResumeError:
    hint = unfinished_beside(path)
    if beneath.exists(path / DOCUMENT):
        hint = hint or "`sw.resume`, or `acquire(..., reopen=True)`, goes on with it"
        return ResumeError(f"{path} is finished: complete and sealed", hint=hint)
    got = "another folder or file" if beneath.exists(path) else "no such folder"
    return ResumeError(
        f"there is nothing to resume at {path}",
        expected="a store that its writer left unfinished",
        got=got,
        hint=hint,
    )


def _fence_off(path: Path, lock: StoreLock, *, take_over: bool) -> UnfinishedStore:
    """Raises the writer epoch and returns the store. From then on an older writer may rename nothing, and
    after a take-over has lost the files."""

    def still_ours() -> None:
        if not lock.is_held():
            raise FencedError(f"another writer has taken {path} over", got="a new lock file")

    store = _claimed(path, still_ours)
    delete_manifests(store.workspace, up_to_epoch=store.manifest.writer_epoch - 1)
    clear_older(store, still_ours)
    if take_over:
        store = take_files(store, still_ours)
        clear_older(store, still_ours)
    return store


def _claimed(path: Path, still_ours: Callable[[], None]) -> UnfinishedStore:
    """Returns the store with a writer epoch that is this writer's alone, and the files that the manifest
    before it names. Raises as ``restore``."""
    while True:
        store = _read(path)
        check_second_root(store)
        next_one = replace(store.manifest, writer_epoch=store.manifest.writer_epoch + 1)
        try:
            return with_manifest(store, next_one, still_ours, is_first=True)
        except OutputExistsError:
            # By one whose lock was replaced after its last look at it, or who has just replaced ours: in its
            # manifest it may name files of its own. To write over it would lose them.
            still_ours()


def _renew_page_cache(store: UnfinishedStore) -> None:
    """Makes sure that the bytes read from here on are the bytes that the next sync writes, although an
    earlier sync may have failed: the kernel reported that error to the writer, or reports it now. On a full
    copy-on-write disk it uses the ballast's room."""
    doubtful, no_more_intact = not is_marked(store.workspace), partial(end_intact, store.workspace)
    for file in store.files_in_progress():
        try:
            renew(file, again=doubtful, failed=no_more_intact)
        except StorageFullError:
            if not Ballast(store.workspace / "ballast", 0).release():
                raise
            renew(file, again=True, failed=no_more_intact)


def _open_folder(
    store: UnfinishedStore, lock: StoreLock, settings: WriteSettings, *, is_recovered: bool
) -> StoreFolder:
    extents, updated, log = _visible_extents(store), _updated_groups(store), store.open_log()
    try:
        return StoreFolder(
            store.path,
            store.spec,
            store.manifest,
            lock,
            log,
            store.open_staging(),
            Ballast(store.workspace / "ballast", settings.ballast_bytes),
            extents=extents,
            updated=updated,
            is_recovered=is_recovered,
        )
    except BaseException:
        log.close()
        raise


def _updated_groups(store: UnfinishedStore) -> set[int | None]:
    """Returns the groups whose metadata were updated. A damaged update is set aside: the frames count
    more."""
    found = updated_groups(store.workspace)
    for image in sorted(found, key=str):
        try:
            read_updates(store.workspace, image)
        except ShardFormatError:
            set_aside(store.path, updates_path(store.workspace, image))
            found.remove(image)
    return found


def _visible_extents(store: UnfinishedStore) -> dict[int, tuple[int, ...]]:
    """Returns, of each image that has an array, how much of its growing axes zarr.json covers already: it
    never shrinks."""
    return {
        image: covered_extents(store.path / path, array)
        for image, (path, array) in enumerate(zip(store.spec.paths, store.spec.arrays, strict=True))
        if store.spec.is_single or beneath.exists(store.path / path / DOCUMENT)
    }
