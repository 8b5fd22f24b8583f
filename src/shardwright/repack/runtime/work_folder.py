"""The work folder of an array: ARRAY/.compact, beside its shards, and one beside spilled shards on their own
filesystem.

    ARRAY/.compact/lock                        held for a whole job: an array has one job at a time
    ARRAY/.compact/pause                       while it exists, tasks wait (throttle.py)
    ARRAY/.compact/queued                      a daemon is to compact this array (compaction_queue.py)
    ARRAY/.compact/done                        shards that an interrupted job has recompressed (done_list.py)
    ARRAY/.compact/levels/                     levels that are being made (job_folder.py)
    ARRAY/.compact/KEY.RANDOM.packed           the working file of a shard (KEY with dots). The next job
                                               deletes those of a job that died
    SPILL/NAME/0/.compact/KEY.RANDOM.packed    the same for a spilled shard: the file behind the link is
                                               replaced, the link stays

Readers ignore the folder. All of it but a lock that is held may be deleted at any time: a job then starts
again, and a queued compaction is not done.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.names import WORK_FOLDER
from shardwright.read.store import StoredArray, parse_array
from shardwright.storage.failpoints import reach
from shardwright.storage.files import made_in, make_directories, storage_errors
from shardwright.storage.lock import StoreLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

LOCK_NAME, PAUSE_NAME = "lock", "pause"
WORKING_SUFFIX = ".packed"


def file_of_shard(array: StoredArray, key: str) -> Path:
    """The file that holds a shard's bytes: the shard itself, or the one that the store's symbolic link leads
    to.

    Raises ``ShardFormatError`` for a link to something that is no shard of that key, since others may own it,
    and ``StorageError``.
    """
    with storage_errors("look at", array.path / key):
        file = (array.path / key).resolve(strict=True)
    if file.parts[-len(Path(key).parts) :] != Path(key).parts:
        raise ShardFormatError(
            f"{array.path / key} is a link to a file that is not named as a shard",
            expected=f"a path that ends in {key}",
            got=file,
        )
    return file


def side_of(file: Path, key: str) -> Path:
    """The array's folder on the side where the file of a shard lies."""
    return file.parents[len(Path(key).parts) - 1]


def working_path(file: Path, key: str) -> Path:
    """A new name for the working file that is to replace ``file``, on the same filesystem; its folder is
    made. Raises ``StorageError``."""
    folder = side_of(file, key) / WORK_FOLDER
    make_directories(folder)
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
        lock.path.parent.rmdir()


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """A lock in the work folder of a store or an array. Raises ``LockedError``, ``StorageError``, also when
    there is no such store."""
    if not folder.is_dir():
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
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


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
        cleared = []
        for folder in self._folders():
            for file in sorted(folder.glob(f"*{WORKING_SUFFIX}")):
                with storage_errors("delete", file):
                    reach("compact.before_clear")
                    file.unlink(missing_ok=True)
                cleared.append(file)
        return cleared

    def release(self) -> None:
        """Release the lock, and remove folders in which nothing is left. Raises ``StorageError``."""
        try:
            for folder in self._folders()[1:]:
                with suppress(OSError):  # not empty, or gone
                    reach("compact.before_remove")
                    folder.rmdir()
        finally:
            remove_lock(self._lock)

    def _folders(self) -> list[Path]:
        """The array's own, then those beside its spilled shards."""
        array = parse_array(self.array_folder)
        sides = []
        for key, coordinates in array.shard_files():
            if coordinates is not None and (array.path / key).is_symlink():
                # a link that leads nowhere: nothing of ours is there
                with suppress(ShardFormatError, StorageError):
                    sides.append(side_of(file_of_shard(array, key), key) / WORK_FOLDER)
        return list(dict.fromkeys([self.path, *sides]))

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
