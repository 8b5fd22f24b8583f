"""The persistent compaction queue of a store: one entry, which says that a daemon is to compact it. The
next daemon finds it.

    ARRAY/.compact/queued    a record of a job (job_record.py), {"failures": N}: the store was sealed and is
                             still to be compacted, which has failed N times
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.array.acquisition_spec import ARRAY_NAME
from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import made_in, storage_errors, sync_directory
from shardwright.disk.typed_errors import says_closed
from shardwright.model.errors import LinkError, ShardFormatError, StorageError
from shardwright.model.names import WORK_FOLDER

from .job_record import delete_job, read_job, readable_job, write_job

if TYPE_CHECKING:
    from pathlib import Path

QUEUED_NAME = "queued"
_KIND = "queue"
_MOST_BYTES = 4096


def queue_entries(root: Path) -> list[QueueEntry]:
    """The queued stores below ``root``. Folders that this user may not open, such as a disk's lost+found, are
    left out. Raises ``StorageError``."""
    with storage_errors("look into", root):
        stores = map(QueueEntry, sorted(filter(beneath.is_dir, beneath.paths_in(root))))
        return [store for store in stores if store.is_queued]


@dataclass(frozen=True)
class QueueEntry:
    """The entry of one store. The daemon's compaction thread only."""

    root: Path

    @property
    def folder(self) -> Path:
        """In the first image, or in the store itself if it is a plate."""
        first = self.root / ARRAY_NAME
        return (first if beneath.is_dir(first) else self.root) / WORK_FOLDER

    @property
    def queued_file(self) -> Path:
        return self.folder / QUEUED_NAME

    @property
    def is_queued(self) -> bool:
        try:
            return beneath.exists(self.queued_file)
        except StorageError as error:
            if isinstance(error, LinkError) or says_closed(error):
                return False
            raise

    @property
    def failures(self) -> int:
        """The number of times that its compaction has failed, 0 where that cannot be read."""
        failures: object = None
        with suppress(ShardFormatError, StorageError):
            record = read_job(self.queued_file, _KIND, _MOST_BYTES)
            failures = record and record.facts.get("failures")
        return failures if type(failures) is int and failures >= 0 else 0

    def check_version(self) -> None:
        """Raises ``FormatVersionError`` for an entry in another version of the format."""
        with suppress(StorageError):  # it is there: that is what counts
            readable_job(self.queued_file, _KIND, _MOST_BYTES)

    def add(self, failures: int = 0) -> None:
        """Durably. Raises ``StorageError``, also where the store is gone."""
        made_in(self.folder, lambda: write_job(self.queued_file, _KIND, {"failures": failures}))
        sync_directory(self.folder.parent)  # whoever made the folder may not have come to it

    def remove(self) -> None:
        """The compaction is done, or given up. Raises ``StorageError``."""
        with suppress(LinkError):  # the store was moved, and its entry with it
            delete_job(self.queued_file)
        with suppress(OSError):  # something is left in it, or the store is gone
            reach("compact.before_remove")
            beneath.remove_folder(self.folder)
