"""Takes a store over from a writer that hangs. That writer may continue at any time, with the files it has
open and with the one call that follows its last check of the fence.

Before this, the lock file has been replaced and the writer epoch raised. All files in progress are copied
into a new folder, ``taken-EPOCH``, which is valid as a whole once the manifest names it. Then the names that
the old writer uses are deleted, so that it writes into files without a name and finds nothing to rename. The
documents that it was about to put in place are deleted too.
"""

from __future__ import annotations

import errno
import re
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.array.metadata import DOCUMENTS
from shardwright.disk import beneath
from shardwright.disk.ballast import Ballast
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    append_file,
    copy_file,
    delete_new_files,
    make_directories,
    open_regular,
    storage_errors,
    sync_directory,
)
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import LockedError
from shardwright.model.names import MOVE_LOCK_NAME, WORK_FOLDER
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard.manifest import write_manifest
from shardwright.shard.metadata_updates import delete_new_updates
from shardwright.shard.shard_row_files import (
    JOURNAL_SUFFIX,
    LOG_NAME,
    STAGING_NAME,
    TAKEN_PREFIX,
    WORKING_SUFFIX,
    is_in_progress,
    without_suffix,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardwright.shard.manifest import Manifest
    from shardwright.shard.shard_row_files import Placement

_NUMBERED = tuple(
    re.compile(pattern)
    for pattern in (rf"{TAKEN_PREFIX}(\d+)", r"frames\.(\d+)\.building", r"frames\.(\d+)\.parquet")
)
"""Names that a killed writer leaves, by its epoch: the folder of the files it took over, a frame table, the
same as one file."""
_MARK = "taking-over"  # of each take-over with a token behind it; alone it is for releases before tokens
_TRIES = 20  # to delete a folder in which the old writer makes files: a few, and then it is told
_OLD_COPY = ".copy"  # a take-over of 0.2.0 that was killed


def begin_take_over(workspace: Path) -> None:
    """Marks a take-over: until ``end_take_over``, any later writer of the store must take it over too, since
    an interrupted take-over has taken the lock from a writer that may be alive. Each has a mark of its own,
    which no other removes while it is at it. Raises ``StorageError``."""
    append_file(workspace / f"{_MARK}.{secrets.token_hex(8)}", b"", "replace")
    append_file(workspace / _MARK, b"", "replace")


def marks_in(workspace: Path) -> list[Path]:
    """Returns the marks of take-overs that have begun and not ended. Raises ``StorageError``."""
    with storage_errors("look into", workspace):
        return sorted(beneath.matching(workspace, f"{_MARK}*"))


def end_take_over(marks: Iterable[Path]) -> None:
    """Removes marks that there were before the lock was taken: one that was made later is of the next
    take-over. The copies are valid by then, and the manifest says how far the old writer's frames came.
    Raises ``StorageError``."""
    for mark in marks:
        _remove(mark)


def take_files(store: UnfinishedStore, still_ours: Callable[[], None]) -> UnfinishedStore:
    """Copies the files of a store whose manifest is the new writer's; returns the store with the copies.
    ``still_ours`` raises ``FencedError`` when another writer has taken it over. Raises ``StorageError``; the
    next take-over deletes these copies, unless the manifest names them, and starts again."""
    epoch = store.manifest.writer_epoch
    for placement in store.placements:
        copies = replace(placement, epoch=epoch)
        _copy_files(placement.files, copies.files)
        _keep_final_names(store, copies)
    return with_manifest(store, replace(store.manifest, files_epoch=epoch), still_ours)


def with_manifest(
    store: UnfinishedStore, manifest: Manifest, may_replace: Callable[[], None], *, is_first: bool = False
) -> UnfinishedStore:
    """Writes another manifest, durably; on a full disk in the ballast's room. Returns the store with it.
    Raises as ``write_manifest``."""
    Ballast(store.workspace / "ballast", 0).spent_on(
        lambda: write_manifest(store.workspace, manifest, may_replace, is_first=is_first)
    )
    return UnfinishedStore(store.path, manifest)


def clear_older(store: UnfinishedStore, still_ours: Callable[[], None]) -> None:
    """Deletes files in progress of earlier writers, and documents that they were about to put in place. What
    they had put in place is made durable. Raises ``StorageError`` or what ``still_ours`` raises."""
    epoch = store.manifest.writer_epoch
    for placement in store.placements:
        if not beneath.is_dir(placement.workspace):
            continue
        with storage_errors("look into", placement.workspace):
            entries = sorted(beneath.paths_in(placement.workspace))
        for entry in entries:
            number = next(
                (int(found[1]) for pattern in _NUMBERED if (found := pattern.fullmatch(entry.name))), None
            )
            older = number is not None and number < epoch and entry != placement.files
            if (
                older
                or entry.name.endswith(_OLD_COPY)
                or (placement.epoch and is_in_progress(without_suffix(entry)))
            ):
                still_ours()
                _remove(entry)
        sync_directory(placement.workspace)
    still_ours()
    release_moves(store.path)  # of a writer that was killed as it made a finished store unfinished again
    delete_new_updates(store.workspace, below=epoch)
    for folder in store.nodes():
        still_ours()
        for document in DOCUMENTS:
            delete_new_files(folder / document, below=epoch)
        sync_directory(folder)


def release_moves(path: Path, held: StoreLock | None = None) -> None:
    """Deletes the lock against moves of a store (``held``: by whom it is), and the folder of jobs if nothing
    else is in it: whoever made them may have been killed between the two. Raises ``StorageError``."""
    folder = path / WORK_FOLDER
    if held is None and not beneath.is_dir(folder):
        return
    with suppress(LockedError):  # by a job, which refuses a store that is not finished
        lock = held
        if lock is None and beneath.exists(folder / MOVE_LOCK_NAME):
            lock = StoreLock.take(folder / MOVE_LOCK_NAME)
        if lock is not None:
            lock.delete()
        with suppress(OSError):  # not empty: another job's
            reach("compact.before_remove_work_folder")
            beneath.remove_folder(folder)


def _copy_files(source: Path, target: Path) -> None:
    """Copies all files in progress, in the order in which the old writer may still move frames between them,
    so that none is missed: it reuses a staging slot once a journal has the slab, and journals what is in a
    shard. Files are listed anew for each kind, since it may finish making files of a shard row."""
    make_directories(target)
    for ends in (STAGING_NAME, JOURNAL_SUFFIX, WORKING_SUFFIX, LOG_NAME):
        for file in sorted(beneath.matching(source, f"*{ends}")):
            with storage_errors("copy", file):
                reach("take_over.before_copy")
                try:
                    reading = open_regular(file, buffering=0)
                except FileNotFoundError:
                    if file.name in (STAGING_NAME, LOG_NAME):
                        raise
                    continue  # it has got its final name, or the log has all of it
                with reading:
                    copy_file(reading, target / file.name)
    sync_directory(target)


def _keep_final_names(store: UnfinishedStore, copies: Placement) -> None:
    """Makes the names of shards durable that the old writer has sealed and not synced. They were not copied:
    a power cut that took the name back would leave them in the folder of the old writer."""
    rows = store.look_into(copies).journals
    paths = [path for row in rows for path in store.layout.of(row).shard_paths(row)]
    copies.sync_names(final for final in map(copies.final, paths) if beneath.exists(final))


def _remove(path: Path) -> None:
    with storage_errors("delete", path):
        reach("take_over.before_delete")
        for tries_left in reversed(range(_TRIES)):
            if not beneath.is_dir(path):
                beneath.unlink(path, missing_ok=True)
                return
            try:
                beneath.remove_tree(path)
            except OSError as error:
                # the old writer may just be making a file, or renaming this folder, behind its last check of
                # the fence
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not tries_left:
                    raise
            else:
                return
