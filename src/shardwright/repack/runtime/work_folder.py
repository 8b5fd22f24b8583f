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

from shardwright.model.errors import StorageError
from shardwright.model.names import WORK_FOLDER
from shardwright.storage import beneath
from shardwright.storage.failpoints import reach
from shardwright.storage.files import made_in, make_directories, storage_errors
from shardwright.storage.lock import StoreLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

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
    """The right to compact one array; made by ``take``, ended by ``release``. Also a context manager."""

    def __init__(self, array_folder: Path, lock: StoreLock) -> None:
        self.array_folder = array_folder
        self._lock = lock

    @classmethod
    def take(cls, array_folder: Path) -> WorkFolder:
        """Raises ``LockedError`` naming the process that works on this array, or ``StorageError``."""
        return cls(array_folder, take_lock(array_folder / WORK_FOLDER, LOCK_NAME))

    @property
    def path(self) -> Path:
        return self.array_folder / WORK_FOLDER

    def clear_leftovers(self) -> list[Path]:
        """Delete the working files of jobs that died; returns what was deleted. Raises ``StorageError``."""
        cleared = sorted(beneath.matching(self.path, f"*{WORKING_SUFFIX}"))
        for file in cleared:
            with storage_errors("delete", file):
                reach("compact.before_clear")
                beneath.unlink(file, missing_ok=True)
        return cleared

    def release(self) -> None:
        """Release the lock, and remove the folder if nothing is left in it. Raises ``StorageError``."""
        remove_lock(self._lock)

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
