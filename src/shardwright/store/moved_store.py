"""The remains of a store that was moved away: folders, and files of jobs, which mean nothing without data.

    NAME/.compact/move.lock      held by a move to the end
    NAME/.compact/move.*         records of moves: of one that was killed as it ended, and of copies to other
                                 destinations that were never finished
    NAME/0/.compact/, NAME/0/.shardwright-edit/    locks and entries of other jobs
    NAME/0/.shardwright-parity/  of the shards as they lay here; those at the destination are packed

Its name goes in one step, to the name of a making folder (``new_store``), so that no kill leaves an empty
folder under it. Recovery, and a creation of that name, remove what a kill left before that step.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import replace_by_rename, storage_errors, sync_directory
from shardwright.disk.lock import StoreLock, is_locked
from shardwright.model.errors import LockedError, StorageError
from shardwright.model.names import (
    EDIT_FOLDER,
    MOVE_LOCK_NAME,
    MOVE_PREFIX,
    PARITY_FOLDER,
    WORK_FOLDER,
)

from .new_store import new_making_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDERS = (WORK_FOLDER, EDIT_FOLDER, PARITY_FOLDER)


def files_and_links(root: Path) -> Iterator[Path]:
    """All files and links below a store, without what jobs keep; links also when they lead nowhere. Raises
    ``StorageError``."""
    for folder, folders, names in beneath.walk(root, failed=_raise):
        folders[:] = sorted(name for name in folders if name not in _FOLDERS)
        links = [name for name in folders if beneath.is_link(Path(folder) / name)]
        yield from (Path(folder) / name for name in sorted(names + links))


def is_moved_away(path: Path) -> bool:
    """Returns whether a move from here has left nothing but files of jobs. A destination to which a move has
    just begun to send has a work folder, too, but none of these. Raises ``StorageError``."""
    work = path / WORK_FOLDER
    with storage_errors("list", work):
        if beneath.is_link(path) or not beneath.is_dir(work):
            return False
        is_source = any(entry.name.startswith(MOVE_PREFIX) for entry in beneath.paths_in(work))
    return is_source and next(files_and_links(path), None) is None


def remove_moved_away(path: Path) -> None:
    """Removes what a move has left here. Raises ``LockedError`` while a job is at work, ``StorageError``."""
    lock = StoreLock.take(path / WORK_FOLDER / MOVE_LOCK_NAME)
    try:
        if not free_moved_name(path):
            raise LockedError(f"a job is at work on {path}", hint="Wait until it has ended")
    finally:
        lock.release()


def free_moved_name(path: Path) -> bool:
    """Frees the name of a store that was moved away; the caller holds its move lock. Returns False, and does
    nothing, if files came meanwhile or another job is at work. Raises ``StorageError``."""
    if not is_moved_away(path) or any(map(is_locked, _other_locks(path))):
        return False
    folder = path.with_name(new_making_name())
    with storage_errors("remove", path):
        reach("moved.before_take_name")
        replace_by_rename(path, folder)
    sync_directory(path.parent)
    with suppress(StorageError), storage_errors("remove", folder):  # leftovers have no use
        reach("moved.before_remove")
        beneath.remove_tree(folder)
    return True


def _other_locks(path: Path) -> Iterator[Path]:
    """Yields the files of jobs, but for the lock of the move."""
    own = path / WORK_FOLDER / MOVE_LOCK_NAME
    for folder, _, names in beneath.walk(path, failed=_raise):
        yield from (file for name in names if (file := Path(folder, name)) != own)


def _raise(error: OSError) -> None:
    try:
        with storage_errors("list", str(error.filename)):
            raise error
    finally:
        del error  # in its traceback it would hold itself, and every caller's frame
