"""The files of updates of an array's shards: ARRAY/.shardwright-edit, beside its shards (rework/EDIT.md).

    KEY.lock          held while the shard is updated
    KEY.journal       what is being written into the shard: complete, and durable before the first byte is
    KEY.journal.new   the same before it is complete; means nothing
    KEY.copy          a shard that is to take the old one's place; means nothing yet

KEY has dots in place of slashes. Readers ignore the folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.files import storage_errors
from shardwright.disk.lock import is_locked
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import LockedError
from shardwright.model.names import EDIT_FOLDER

INTERRUPTED = "an update was interrupted: run `shardwright recover`"

if TYPE_CHECKING:
    from pathlib import Path

LOCK_SUFFIX, JOURNAL_SUFFIX, NEW_SUFFIX, COPY_SUFFIX = ".lock", ".journal", ".journal.new", ".copy"


def edit_file(array_folder: Path, key: str, suffix: str) -> Path:
    """Returns the path of a file of the update of one shard."""
    return array_folder / EDIT_FOLDER / f"{key.replace('/', '.')}{suffix}"


def check_not_edited(array_folder: Path, key: str) -> None:
    """Raises ``LockedError`` for a shard into which an update is being written, or was when it was
    interrupted."""
    if beneath.exists(edit_file(array_folder, key, JOURNAL_SUFFIX)):
        raise LockedError(
            f"{array_folder / key} is being updated, or its update was interrupted",
            hint="Wait for the update, or run `shardwright recover` if none is at work",
        )


def is_interrupted(array_folder: Path, key: str) -> bool:
    """Returns whether an update was interrupted while it was written into a shard: until it is recovered,
    readers may find chunks that fail their checksum."""
    has_journal = beneath.exists(edit_file(array_folder, key, JOURNAL_SUFFIX))
    is_here = not isinstance(array_folder, RemotePath)  # elsewhere nobody holds a lock
    return has_journal and not (is_here and is_locked(edit_file(array_folder, key, LOCK_SUFFIX)))


def interrupted_edits(array_folder: Path) -> list[str]:
    """Returns the keys of such shards of an array, with dots in place of slashes."""
    return [name for name in journaled_edits(array_folder) if is_interrupted(array_folder, name)]


def journaled_edits(array_folder: Path) -> list[str]:
    """Returns the keys, with dots in place of slashes, of shards into which an update is being written, or
    was when it was interrupted. Raises ``StorageError``."""
    with storage_errors("look into", array_folder / EDIT_FOLDER):
        try:
            names = beneath.names_in(array_folder / EDIT_FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return sorted(name.removesuffix(JOURNAL_SUFFIX) for name in names if name.endswith(JOURNAL_SUFFIX))


def journals_below(root: Path) -> list[Path]:
    """Returns the journals of all arrays in a store, also of arrays that no image names, such as labels.
    Raises ``StorageError``."""
    with storage_errors("look into", root):
        below = (path for path in beneath.all_below(root) if path.parent.name == EDIT_FOLDER)
        return sorted(path for path in below if path.name.endswith(JOURNAL_SUFFIX))
