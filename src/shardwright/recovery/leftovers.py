"""Leftovers: folders without useful data that an interrupted creation, or end, of a store has left. Their
facts, the table of actions, and their removal.

A store is made beside its name (``store.new_store``) and its end deletes the manifest first, so that a
folder shows how far its creation or end had got.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import read_range, storage_errors, sync_directory
from shardwright.disk.lock import StoreLock, is_locked
from shardwright.disk.typed_errors import says_closed
from shardwright.model.errors import LockedError, ShardFormatError, ShardwrightError, StorageError
from shardwright.model.names import DOCUMENT, MOVE_LOCK_NAME, WORK_FOLDER, WORKSPACE
from shardwright.scan.table import has_facts
from shardwright.shard.intact_mark import is_intact
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.manifest import has_manifest
from shardwright.store.moved_store import is_moved_away, remove_moved_away
from shardwright.store.new_store import abandoned, is_making_folder, remove_abandoned, withdraw
from shardwright.store.replaced_store import holds_another_store, is_bare, store_in

from .admission import admit
from .take_over import marks_in, release_moves

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.scan.unfinished_store import UnfinishedStore


@dataclass(frozen=True)
class FolderFacts:
    """The facts of a folder. ``making``: a store was being made in it. ``manifest``: its workspace has one.
    Without a manifest, ``bare``: it holds only what a creation wrote. With one, ``unbegun``: no frame ever
    came. ``replaced``: of a making folder, a store is in it that was not made there, and whose name the new
    one has taken. ``moved``: a move has deleted the store, and only files of jobs are left."""

    making: bool
    manifest: bool
    bare: bool
    unbegun: bool
    replaced: bool = False
    moved: bool = False


class FolderAction(Enum):
    REMOVE_MAKING = "remove it"
    PUT_BACK = "give the store in it a name again"
    REMOVE_MOVED = "free its name, and remove what a move left"
    WITHDRAW = "free its name, and remove it"
    REMOVE_WORKSPACE = "remove the workspace"
    TAKE_UP = "recover it"


@dataclass(frozen=True)
class FolderRow:
    """None: any value. ``done``, ``would_be_done``: texts for the user, of the action and of a dry run."""

    making: bool
    manifest: bool | None
    bare: bool | None
    unbegun: bool | None
    replaced: bool | None
    action: FolderAction
    done: str
    would_be_done: str
    moved: bool | None = None


_GONE = ("leftovers removed", "leftovers would be removed")
_BACK = ("the replaced store has a name again", "the replaced store would get a name again")
_EMPTY = ("removed, no frame ever came", "would be removed, no frame ever came")
FOLDER_TABLE = (
    # its creation was killed before the store got its name
    FolderRow(True, None, None, None, False, FolderAction.REMOVE_MAKING, *_GONE),
    # the store that had taken its name is gone or has got no frame, or has taken an unfinished one's
    FolderRow(True, None, None, None, True, FolderAction.PUT_BACK, *_BACK),
    # its removal was killed, or its creation by an older release, which made stores under their names
    FolderRow(False, False, True, None, None, FolderAction.WITHDRAW, *_GONE, moved=False),
    # all shards are sealed: the end of an acquisition deletes the manifest first
    FolderRow(False, False, False, None, None, FolderAction.REMOVE_WORKSPACE, *_GONE, moved=False),
    # its writer was killed before the first frame came
    FolderRow(False, True, None, True, None, FolderAction.WITHDRAW, *_EMPTY),
    # frames came, or may have come
    FolderRow(False, True, None, False, None, FolderAction.TAKE_UP, "sealed", "would be sealed"),
    # a move was killed when it had deleted all files, or an older release left the record of another one
    FolderRow(False, False, None, None, None, FolderAction.REMOVE_MOVED, *_GONE, moved=True),
)


def row_for(facts: FolderFacts) -> FolderRow:
    (row,) = [row for row in FOLDER_TABLE if has_facts(row, facts)]
    return row


def look_at(path: Path) -> FolderFacts:
    """Returns the facts of a making folder, of a store with a workspace, or of what a move left. Reads
    tables, never pixels.
    Raises ``ShardFormatError`` for damaged files, ``StorageError``."""
    making, manifest = is_making_folder(path), has_manifest(path / WORKSPACE)
    bare = not making and not manifest and is_bare(path)
    return FolderFacts(
        making,
        manifest,
        bare,
        unbegun=not making and manifest and _is_unbegun(admit(path)),
        replaced=holds_another_store(path),
        moved=not making and is_moved_away(path),
    )


def is_leftover(path: Path) -> bool:
    """Returns whether a folder is a making folder, or a store whose workspace has no manifest: neither holds
    data that must be recovered."""
    return is_making_folder(path) or not has_manifest(path / WORKSPACE)


def unfinished_stores(root: Path) -> list[Path]:
    """Returns unfinished stores below ``root`` (or ``root`` itself), then what killed creations have left.
    Folders that this user may not read, such as a disk's lost+found, are skipped. Raises ``StorageError``."""
    with storage_errors("look into", root):
        if _is_unfinished(root):
            return [root]
        stores = [
            folder
            for folder in beneath.paths_in(root)
            if beneath.is_dir(folder) and not is_making_folder(folder) and _is_unfinished(folder)
        ]
    return sorted(stores + abandoned(root))


def _is_unfinished(folder: Path) -> bool:
    try:
        if beneath.is_dir(folder / WORKSPACE):
            return True
    except StorageError as error:  # any other is raised when the store is read
        return not says_closed(error)
    with suppress(StorageError):  # a work folder that this user may not read
        return is_moved_away(folder) and not is_locked(folder / WORK_FOLDER / MOVE_LOCK_NAME)
    return False


def remove(path: Path, row: FolderRow) -> None:
    """Removes a folder by its row of the table; nothing is left to do if another process was first. Raises
    ``LockedError`` if another process holds it, or it has changed since or is to be recovered,
    ``StorageError``."""
    try:
        _remove(path, row)
    except ShardwrightError:
        if not is_done_by_another(path):
            raise


def _remove(path: Path, row: FolderRow) -> None:
    if row.action is FolderAction.TAKE_UP:
        raise LockedError(f"another writer has just opened {path}")
    if row.action in (FolderAction.REMOVE_MAKING, FolderAction.PUT_BACK):
        made = store_in(path)
        if made is not None and beneath.exists((store := path.with_name(made.name)) / DOCUMENT):
            # The writer of a finished store may have been killed right before that became unfinished.
            release_moves(store)
        remove_abandoned(path)
        return
    if row.action is FolderAction.REMOVE_MOVED:
        remove_moved_away(path)
        return
    lock = StoreLock.take(path / WORKSPACE / "lock")
    try:
        if row_for(look_at(path)) is not row:
            raise LockedError(f"another writer has just opened {path}")
        sync_directory(path / WORKSPACE)  # else a power cut may bring back the manifest, and not the rest
        if row.action is FolderAction.WITHDRAW:
            withdraw(path, lock, epoch=1)  # no other writer has opened it
        else:
            with storage_errors("remove", path):
                reach("leftovers.before_remove")
                beneath.remove_tree(path / WORKSPACE)
            sync_directory(path)
    finally:
        lock.release()


def is_done_by_another(path: Path) -> bool:
    """Returns whether a store that was unfinished is so no more, or its owner, who has ended, is about to
    remove the workspace. Whoever met an error there has nothing left to do. Raises ``StorageError``."""
    if is_making_folder(path):
        return not beneath.is_dir(path)
    if is_moved_away(path):
        return False
    workspace = path / WORKSPACE
    return not has_manifest(workspace) and (not beneath.is_dir(workspace) or is_locked(workspace / "lock"))


def free_name(path: Path) -> None:
    """Removes what a killed creation has left under this name. Anything else stays as it is. Raises
    ``StorageError``."""
    if beneath.is_link(path) or not beneath.is_dir(path / WORKSPACE):
        return
    with suppress(LockedError, ShardFormatError):  # another process holds it, or it holds data
        row = row_for(look_at(path))
        if row.action is FolderAction.WITHDRAW:
            remove(path, row)


def _is_unbegun(store: UnfinishedStore) -> bool:
    """Returns whether no frame ever came. Known only of an intact store: after a power cut, tables may be
    empty whose frames were acknowledged. While it is taken over, its writer may be writing."""
    if not is_intact(store.workspace) or marks_in(store.workspace):
        return False
    if not all(placement.is_there for placement in store.placements):
        return False  # all of its frames may be below a second root that is not mounted
    log = store.open_log(read_only=True)
    log.close()
    found = [store.look_into(placement) for placement in store.placements]
    journals = [each for files in found for each in files.journals.items()]
    files = [path for _, (path, _) in journals]
    tables = [(file, beneath.stat(file).st_size) for file in files]
    staging = store.open_staging(read_only=True)
    if staging is not None:
        tables.append((staging.path, PAGE_BYTES + staging.slots * store.record_dtype.itemsize))
        staging.close()
    manifest = store.manifest
    used = (
        (manifest.writer_epoch, manifest.client_epoch, manifest.seen_stop) != (1, 1, 0)
        or log.rows
        or log.torn_bytes
    )
    folders = (store.path / path / "c" for path in store.spec.all_array_paths())
    shards = itertools.chain.from_iterable(map(beneath.all_below, folders))
    with storage_errors("look into", store.path):
        kept = any(map(beneath.is_file, shards)) or store.was_set_aside
    later = any(number for number, _ in journals)  # prepared when the first frame comes
    later = later or any(files.shared for files in found)
    return not (used or kept or later) and not any(
        read_range(file, PAGE_BYTES, stop - PAGE_BYTES).strip(b"\0") for file, stop in tables
    )
