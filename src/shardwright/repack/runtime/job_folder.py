"""The hidden folder of a job that makes new arrays. By it a run continues what an interrupted one left.

    FOLDER/lock        held for the whole job (levels of a store: the lock of the array instead)
    FOLDER/job.json    the source shards and the new arrays
    FOLDER/work        working files of shards
    FOLDER/...         the new arrays, complete shards under their final names

A run that finds in job.json what it is to make keeps the shards that are there. Any other run clears the
folder and starts again; job.json is replaced last, so that the folder never holds shards of another job than
it names.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError
from shardwright.model.json_text import parse_json
from shardwright.storage import beneath
from shardwright.storage.files import make_directories, read_regular, replace_file, storage_errors

from .work_folder import remove, remove_lock, take_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK_NAME, _JOB_NAME, _WORK_NAME = "lock", "job.json", "work"
_MOST_JOB_BYTES = 256 << 20


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

    @property
    def _job(self) -> Path:
        return self.path / _JOB_NAME

    def found(self) -> dict[str, Any] | None:
        """The job that an earlier run was at; None when there is none, or none that can be read."""
        with storage_errors("look at", self._job):
            try:
                facts = parse_json(read_regular(self._job, _MOST_JOB_BYTES))
            except (FileNotFoundError, ValueError, ShardFormatError):
                return None
        return facts if isinstance(facts, dict) else None

    def save(self, job: dict[str, Any]) -> None:
        """Durably."""
        replace_file(self._job, json.dumps(job).encode())

    def begin(self, job: dict[str, Any], check_room: Callable[[], None]) -> None:
        """Keep what an earlier run left of this very job. Otherwise clear the folder, then ``check_room``,
        then name the job."""
        same = self.found() == job
        make_directories(self.path)
        for stale in [self.work] if same else sorted(beneath.paths_in(self.path)):
            if stale.name not in (LOCK_NAME, _JOB_NAME):
                remove(stale)
        if not same:
            check_room()
            self.save(job)
        make_directories(self.work)

    def clear(self) -> None:
        """The job is done: delete all but the lock. job.json goes last: a run that finds it knows what the
        rest was."""
        if beneath.is_dir(self.path):
            for stale in sorted(beneath.paths_in(self.path), key=lambda path: path.name == _JOB_NAME):
                if stale.name != LOCK_NAME:
                    remove(stale)
