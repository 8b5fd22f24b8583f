"""Recovery of edits that were cut short. `DECISIONS` is the table: exactly one row matches each combination
of facts.

An edit whose journal is complete is done once more; of any other edit nothing has reached the shard.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import crc32c

from shardwright.disk import beneath
from shardwright.disk.changed_file import ChangedFile
from shardwright.disk.failpoints import reach
from shardwright.disk.files import read_regular, storage_errors, sync_directory
from shardwright.disk.typed_errors import says_closed
from shardwright.model.errors import LockedError, ShardFormatError, ShardwrightError, StorageError
from shardwright.model.names import DOCUMENT, EDIT_FOLDER
from shardwright.read.store import parse_array
from shardwright.shard.edit_files import (
    COPY_SUFFIX,
    JOURNAL_SUFFIX,
    LOCK_SUFFIX,
    NEW_SUFFIX,
    edit_file,
    interrupted_edits,
)

from .redo_journal import MOST_BYTES, RedoJournal, damaged_journal
from .shard_lock import shard_locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.read.store import StoredArray


class JournalState(Enum):
    NONE = "none"  # or one that was not complete
    WHOLE = "whole"
    UNREADABLE = "damaged, or of another release"


class FileState(Enum):
    ABSENT = "absent"
    SAME = "the file that was edited, with a length and bytes that it may have had meanwhile"
    COPIED = "another file of which that is true, with the old index or the new one"
    OTHER = "any other file"


class EditAction(Enum):
    CLEAR = "delete what the edit left in its folder"
    REDO = "write all bytes of the journal, sync, delete it"
    DISCARD = "delete the journal"
    REFUSE = "leave both, and say so"


ANY = tuple(FileState)
DECISIONS: tuple[tuple[JournalState, tuple[FileState, ...], EditAction], ...] = (
    (JournalState.NONE, ANY, EditAction.CLEAR),
    # A journal is complete before it has its name, so this one was whole once: the shard may be half written,
    # and the journal may be all that tells what was there. A person decides.
    (JournalState.UNREADABLE, ANY, EditAction.REFUSE),
    # OTHER: the array was written anew, or restored. A journal that is redone there would put bytes of the
    # old shard into it.
    (JournalState.WHOLE, (FileState.SAME, FileState.COPIED), EditAction.REDO),
    (JournalState.WHOLE, (FileState.ABSENT,), EditAction.DISCARD),
    (JournalState.WHOLE, (FileState.OTHER,), EditAction.REFUSE),
)


def decide(journal: JournalState, file: FileState) -> EditAction:
    """Returns the action of the one row that matches."""
    [action] = [action for state, files, action in DECISIONS if state is journal and file in files]
    return action


@dataclass(frozen=True)
class RecoveredEdit:
    """One edit that was interrupted. ``action``: completed, discarded, or refused for ``error``."""

    path: Path
    action: str
    error: dict[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        error = {} if self.error is None else {"error": self.error}
        return {"path": str(self.path), "ok": not error, "action": self.action, **error}


def recover_edits(where: Path, *, dry_run: bool = False) -> list[RecoveredEdit]:
    """Completes or discards every interrupted edit of an array, of all arrays of a store, or of all stores in
    a folder. Edits that are at work are left to their processes. May be interrupted itself, and run again.

    Returns those of which something may have reached the shard. ``dry_run``: changes nothing. Raises
    ``StorageError``.
    """
    found = []
    for folder in edited_arrays(where):
        if dry_run:
            found += [RecoveredEdit(folder / name, "interrupted") for name in interrupted_edits(folder)]
            continue
        found += [
            recovered for name in edited_shards(folder) if (recovered := _recovered(folder, name)) is not None
        ]
        with suppress(OSError):  # not empty, or gone with the last lock
            reach("edit.before_remove_folder")
            beneath.remove_folder(folder / EDIT_FOLDER)
    return found


def _recovered(array_folder: Path, name: str) -> RecoveredEdit | None:
    """Recovers the edit of one shard, None if nothing of it had reached the shard or it is at work. An error
    is that of this one: others are recovered all the same."""
    try:
        with shard_locked(array_folder, name, timeout_s=0):
            return recover_locked(parse_array(array_folder), name)
    except LockedError:
        return None
    except ShardwrightError as error:
        return RecoveredEdit(array_folder / name, "refused", error.to_dict())


def edited_arrays(where: Path) -> Iterator[Path]:
    """Yields the folders of arrays, at or below ``where``, in which an edit is at work or left something; of
    a file the array that it belongs to. Folders that this user may not read are skipped. Raises
    ``StorageError``."""
    where = beneath.user_path(where)
    if not beneath.is_dir(where):
        nodes = (folder for folder in where.parents if beneath.is_file(folder / DOCUMENT))
        where = next(nodes, where.parent)
    folders = [where]
    while folders:
        folder = folders.pop()
        if beneath.is_dir(folder / EDIT_FOLDER):
            yield folder
        with (
            storage_errors("look into", folder),
            suppress(PermissionError),
            beneath.entries_in(folder) as entries,
        ):
            below = (folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            folders += sorted((path for path in below if _is_node(path)), reverse=True)


def _is_node(folder: Path) -> bool:
    try:
        return beneath.is_file(folder / DOCUMENT)
    except StorageError as error:
        if says_closed(error):
            return False
        raise


def edited_shards(array_folder: Path) -> list[str]:
    """Returns the keys, with dots in place of slashes, of shards of which edits have files in their folder.
    Raises ``StorageError``."""
    folder = array_folder / EDIT_FOLDER
    with storage_errors("look into", folder):
        try:
            names = beneath.names_in(folder)
        except FileNotFoundError:  # gone with the last lock
            names = []
    return sorted({_shard_of(name) for name in names})


def _shard_of(name: str) -> str:
    for suffix in (NEW_SUFFIX, JOURNAL_SUFFIX, COPY_SUFFIX, LOCK_SUFFIX):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def complete_edit(array: StoredArray, name: str) -> None:
    """Waits for an edit that is being written into a shard, and completes it if its process died. ``name``:
    as ``recover_locked`` takes it. Raises ``LockedError`` if that takes too long, and as that does."""
    with shard_locked(array.path, name):
        recover_locked(array, name)


def recover_locked(array: StoredArray, name: str) -> RecoveredEdit | None:
    """Recovers the edit of one shard; the caller holds its lock. ``name``: its key, or that with dots in
    place of slashes. Raises ``ShardFormatError``, ``StorageError``."""
    path = edit_file(array.path, name, JOURNAL_SUFFIX)
    journal, state, refusal = _read(array, path)
    shard = array.path / (name if journal is None else journal.key)
    action = decide(state, FileState.OTHER if journal is None else _state_of(array, shard, journal))
    if action is EditAction.REFUSE:
        raise refusal or ShardFormatError(
            f"an update of {shard} was interrupted, and another file has its place now",
            hint="Both are left as they are. Check it with `shardwright verify`; if it is sound, delete "
            f"{path}",
        )
    if action is EditAction.REDO and journal is not None:
        sync_directory(path.parent)  # else a power cut may keep what is written now, and not the journal
        with ChangedFile(shard) as file:
            journal.redo(file)
            file.finish()
    if action in (EditAction.REDO, EditAction.DISCARD):
        delete_durably(path)
    else:  # one that died may have deleted it unsynced, and the shard's name may be another file's soon
        sync_directory(path.parent)
    for suffix in (NEW_SUFFIX, COPY_SUFFIX):
        left = edit_file(array.path, name, suffix)
        with storage_errors("delete", left):
            reach("edit.before_clear_leftover")
            beneath.unlink(left, missing_ok=True)
    if action is EditAction.CLEAR:
        return None
    return RecoveredEdit(shard, "completed" if action is EditAction.REDO else "discarded")


def _read(array: StoredArray, path: Path) -> tuple[RedoJournal | None, JournalState, ShardFormatError | None]:
    with storage_errors("read", path):
        try:
            data = read_regular(path, MOST_BYTES)
        except FileNotFoundError:
            return None, JournalState.NONE, None
        except ShardFormatError as error:
            return None, JournalState.UNREADABLE, damaged_journal(path, error.message)
    try:
        journal = RedoJournal.parse(data, path)
        # The checksum says that the bytes are sound, and not that they are ours. The key becomes the path of
        # a file that is written, so it must be that of a shard of this array, and the one in the journal's
        # name.
        if array.coordinates_of(journal.key) is None or path != edit_file(
            array.path, journal.key, JOURNAL_SUFFIX
        ):
            return None, JournalState.UNREADABLE, damaged_journal(path, f"its shard is {journal.key!r:.80}")
    except ShardFormatError as error:
        return None, JournalState.UNREADABLE, error
    return journal, JournalState.WHOLE, None


def _state_of(array: StoredArray, shard: Path, journal: RedoJournal) -> FileState:
    if not beneath.exists(shard):
        return FileState.ABSENT
    with ChangedFile(shard) as file:
        status = file.status()
        if not journal.old_bytes <= status.st_size <= journal.new_bytes or not journal.explains(file):
            return FileState.OTHER
        if status.st_ino == journal.inode:
            return FileState.SAME
        # Another inode: somebody has copied or restored the store, journal included. Bytes that the edit does
        # not change may differ then; the index tells whether it is the same shard.
        index = array.index
        offset = index.offset(index.data_range(status.st_size)[1])
        found = crc32c.crc32c(file.read(offset, index.nbytes))
    lengths = {(journal.old_bytes, journal.old_index), (journal.new_bytes, journal.new_index)}
    return FileState.COPIED if (status.st_size, found) in lengths else FileState.OTHER


def delete_durably(path: Path) -> None:
    """Deletes a journal: once a later edit has begun, it must not come back. Raises ``StorageError``."""
    with storage_errors("delete", path):
        reach("edit.before_delete_journal")
        beneath.unlink(path, missing_ok=True)
        exists = beneath.is_dir(path.parent)
    if exists:
        sync_directory(path.parent)
