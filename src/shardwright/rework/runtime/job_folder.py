"""The hidden folder of a job that makes new arrays. By it a run continues what an interrupted one left.

    FOLDER/lock        held for the whole job (levels of a store: the lock of the array instead)
    FOLDER/job         a record of a job (job_record.py): the source shards and the new arrays
    FOLDER/work        working files of shards
    FOLDER/...         the new arrays, complete shards under their final names

A run that finds in the record what it is to make keeps the shards that are there. Any other run clears the
folder and starts again; the record is replaced last, so that the folder never holds shards of another job
than it names. An earlier release wrote job.json.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.files import make_directories, storage_errors
from shardwright.model.errors import FormatVersionError, ShardFormatError

from .job_record import read_job, write_job
from .work_folder import remove, remove_lock, take_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK_NAME, _WORK_NAME = "lock", "work"
_JOB_NAME = "job"
_OLD_JOB_NAME = "job.json"  # of an earlier release
_KIND = "build"


class JobFolder:
    """The folder of one job. Only the holder of the job's lock calls its methods, from one thread. All raise
    ``StorageError``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def locked(cls, path: Path) -> Iterator[JobFolder]:
        """The folder, made if need be. It goes at the end if nothing but the lock is in it. Raises
        ``LockedError`` while another job is at work in it."""
        lock = take_lock(path, LOCK_NAME)
        try:
            yield cls(path)
        finally:
            try:
                with storage_errors("look into", path):
                    if beneath.is_dir(path) and set(beneath.names_in(path)) <= {LOCK_NAME}:
                        remove_lock(lock)
            finally:
                lock.release()

    @property
    def work(self) -> Path:
        """Where tasks put their working files."""
        return self.path / _WORK_NAME

    def found(self) -> dict[str, Any] | None:
        """The job that an earlier run was at; None when there is none, or none that can be read, or two: an
        earlier release has been at another one here, which does not know the record of this one. Raises
        ``FormatVersionError``."""
        try:
            records = [read_job(self.path / name, _KIND) for name in (_JOB_NAME, _OLD_JOB_NAME)]
        except FormatVersionError:
            raise
        except ShardFormatError:
            return None
        found = [record.facts for record in records if record is not None]
        return found[0] if found and found[0] == found[-1] else None

    def save(self, job: dict[str, Any]) -> None:
        """Durably."""
        write_job(self.path / _JOB_NAME, _KIND, job)
        remove(self.path / _OLD_JOB_NAME)

    def begin(self, job: dict[str, Any], check_room: Callable[[], None]) -> None:
        """Keep what an earlier run left of this very job. Otherwise clear the folder, then ``check_room``,
        then name the job."""
        same = self.found() == job
        make_directories(self.path)
        for stale in [self.work] if same else sorted(beneath.paths_in(self.path)):
            if stale.name not in (LOCK_NAME, _JOB_NAME, _OLD_JOB_NAME):
                remove(stale)
        if not same:
            check_room()
            self.save(job)
        make_directories(self.work)

    def clear(self) -> None:
        """The job is done: delete all but the lock, and the folder too if it has none. The record goes last:
        a run that finds it knows what the rest was."""
        if beneath.is_dir(self.path):
            last = {_OLD_JOB_NAME: 1, _JOB_NAME: 2}
            for stale in sorted(beneath.paths_in(self.path), key=lambda path: last.get(path.name, 0)):
                if stale.name != LOCK_NAME:
                    remove(stale)
            if not beneath.exists(self.path / LOCK_NAME):
                remove(self.path)
