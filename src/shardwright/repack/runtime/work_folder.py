"""The folder in which compaction works: ARRAY/.compact, beside the shards of one array, and one beside
spilled shards on their own filesystem.

    ARRAY/.compact/lock                        who compacts this array; held for a whole job
    ARRAY/.compact/pause                       while it exists, tasks wait (pausing.py)
    ARRAY/.compact/queued                      a daemon is to compact this array (queued.py)
    ARRAY/.compact/KEY.RANDOM.packed           a shard in the making (KEY with dots); whatever is left of a
                                               dead job is cleared by the next
    SPILL/NAME/0/.compact/KEY.RANDOM.packed    the same for a spilled shard: the file behind the link is
                                               replaced, the link stays

Nothing in here is ever read as data, so that it may go at any moment but for the lock.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read.store import StoredArray, parse_array
from shardwright.storage.failpoints import reach
from shardwright.storage.files import make_directories, storage_errors
from shardwright.storage.lock import StoreLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

WORK_FOLDER = ".compact"
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
    return folder / f"{key.replace('/', '.')}.{secrets.token_hex(8)}{WORKING_SUFFIX}"


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """A lock in the work folder of a store or an array, and that folder gone at the end if nothing else is in
    it."""
    if not folder.is_dir():
        raise StorageError(f"no such store: {folder}")
    make_directories(folder / WORK_FOLDER)
    lock = StoreLock.take(folder / WORK_FOLDER / name)
    try:
        yield
    finally:
        lock.delete()
        with suppress(OSError):  # not empty: another job's, or a record of ours
            reach("compact.before_remove_work_folder")
            (folder / WORK_FOLDER).rmdir()


class WorkFolder:
    """The right to compact one array; made by ``take``, ended by ``release``. Also a context manager."""

    def __init__(self, array_folder: Path, lock: StoreLock) -> None:
        self.array_folder = array_folder
        self._lock = lock

    @classmethod
    def take(cls, array_folder: Path) -> WorkFolder:
        """Raises ``LockedError`` naming who else compacts this array, or ``StorageError``."""
        path = array_folder / WORK_FOLDER
        while True:
            make_directories(path)
            try:
                return cls(array_folder, StoreLock.take(path / LOCK_NAME))
            except StorageError as error:
                # the job before us has just removed it
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise

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
        """Let others in; folders in which nothing is left go. Raises ``StorageError``."""
        try:
            for folder in self._folders()[1:]:
                with suppress(OSError):  # not empty, or gone
                    reach("compact.before_remove")
                    folder.rmdir()
        finally:
            self._lock.delete()
        with suppress(OSError):
            reach("compact.before_remove")
            self.path.rmdir()

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
