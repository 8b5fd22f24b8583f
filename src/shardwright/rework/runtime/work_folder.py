"""The work folder of an array: ARRAY/.compact, beside its shards.

    ARRAY/.compact/lock                        held for a whole job: an array has one job at a time
    ARRAY/.compact/pause                       while it exists, tasks wait (throttle.py)
    ARRAY/.compact/queued                      a daemon is to compact this array (compaction_queue.py)
    ARRAY/.compact/done                        shards that an interrupted job has recompressed (done_list.py)
    ARRAY/.compact/levels/                     levels that are being made (job_folder.py)
    ARRAY/.compact/KEY.RANDOM.packed           the working file of a shard (KEY with dots). The next job
                                               deletes those of a job that died

Readers ignore the folder. All of it but a lock that is held may be deleted at any time: a job then starts
again, and a queued compaction is not done.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import made_in, make_directories, storage_errors
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import StorageError
from shardwright.model.names import WORK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.read.store import StoredArray

LOCK_NAME, PAUSE_NAME = "lock", "pause"
WORKING_SUFFIX = ".packed"


def working_path(array: StoredArray, key: str) -> Path:
    """A new name for the working file that is to replace a shard; its folder is made. Raises
    ``StorageError``."""
    folder = array.path / WORK_FOLDER
    make_directories(folder, synced=False)  # the file leaves it
    return new_working_path(folder, key)


def new_working_path(folder: Path, key: str) -> Path:
    """A name for the working file of a shard that no other task uses."""
    return folder / f"{key.replace('/', '.')}.{secrets.token_hex(8)}{WORKING_SUFFIX}"


def take_lock(folder: Path, name: str) -> StoreLock:
    """A lock in a folder, which is made if need be, but not its parent: a store that was deleted is not made
    again. Raises ``LockedError``, ``StorageError``."""
    return made_in(folder, lambda: StoreLock.take(folder / name))


def remove_lock(lock: StoreLock) -> None:
    """Release a lock, and remove its folder if nothing else is in it. Raises ``StorageError``."""
    lock.delete()
    with suppress(OSError):  # not empty: another job's, or a record of ours
        reach("compact.before_remove_work_folder")
        beneath.remove_folder(lock.path.parent)


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """A lock in the work folder of a store or an array. Raises ``LockedError``, ``StorageError``, also when
    there is no such store."""
    if not beneath.is_dir(folder):
        raise StorageError(f"no such store: {folder}")
    lock = take_lock(folder / WORK_FOLDER, name)
    try:
        yield
    finally:
        remove_lock(lock)


def remove(path: Path) -> None:
    """Delete a file or a whole folder, if it is there. Raises ``StorageError``."""
    with storage_errors("delete", path):
        reach("compact.before_clear")
        if beneath.is_dir(path):
            beneath.remove_tree(path)
        else:
            beneath.unlink(path, missing_ok=True)


class WorkFolder:
    """The work folder of an array whose jobs are kept out: made by ``locked``."""

    def __init__(self, array_folder: Path) -> None:
        self.array_folder = array_folder
        self.path = array_folder / WORK_FOLDER

    @classmethod
    @contextmanager
    def locked(cls, array_folder: Path) -> Iterator[WorkFolder]:
        """A context with the right to compact one array. Raises ``LockedError`` naming the process that works
        on it, ``StorageError``."""
        with locked(array_folder, LOCK_NAME):
            yield cls(array_folder)

    def clear_leftovers(self) -> list[Path]:
        """Delete the working files of jobs that died; returns what was deleted. Raises ``StorageError``."""
        cleared = sorted(beneath.matching(self.path, f"*{WORKING_SUFFIX}"))
        for file in cleared:
            remove(file)
        return cleared
