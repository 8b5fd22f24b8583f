"""What stands in a store about its compaction by a daemon: that it is wanted. It outlives a daemon that dies:
the next one finds it.

ARRAY/.compact/queued    the store was sealed and is still to be compacted; how often that has failed
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.model.versions import check_version
from shardwright.shard.group_files import IMAGE_FOLDER
from shardwright.storage.failpoints import reach
from shardwright.storage.files import read_regular, replace_file, storage_errors, sync_directory

from .work_folder import WORK_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

QUEUED_NAME = "queued"
VERSION = 1  # files without one are of this, too


def queue_entries(root: Path) -> list[QueueEntry]:
    """Stores below ``root`` that a daemon wanted to compact, and has not; folders that are closed to this
    user, such as a disk's lost+found, are passed over. Raises ``StorageError``."""
    with storage_errors("look into", root):
        stores = [QueueEntry(folder) for folder in sorted(root.iterdir())]
        return [store for store in stores if store.is_queued]


@dataclass(frozen=True)
class QueueEntry:
    """One store, for the daemon's compaction thread."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / IMAGE_FOLDER / WORK_FOLDER

    @property
    def queued_file(self) -> Path:
        return self.folder / QUEUED_NAME

    @property
    def is_queued(self) -> bool:
        try:
            return self.queued_file.exists()
        except PermissionError:
            return False

    @property
    def failures(self) -> int:
        """How often its compaction has failed. What cannot be read says 0."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(read_regular(self.queued_file))["failures"])
        return 0

    def check_version(self) -> None:
        """Raises ``FormatVersionError`` when a release that keeps something else there has queued it."""
        facts = None
        with suppress(OSError, ValueError):
            facts = json.loads(read_regular(self.queued_file))
        if isinstance(facts, dict):
            check_version(facts.get("version", VERSION), VERSION, self.queued_file)

    def add(self, failures: int = 0) -> None:
        """Durable when this returns. Raises ``StorageError``, also where the store is gone: it is not made
        again."""
        with storage_errors("create folder", self.folder):
            reach("compact.before_create")
            self.folder.mkdir(exist_ok=True)
        sync_directory(self.folder.parent)
        replace_file(self.queued_file, json.dumps({"version": VERSION, "failures": failures}).encode())

    def remove(self) -> None:
        """It is done, or given up. Raises ``StorageError``."""
        with storage_errors("delete", self.queued_file):
            reach("compact.before_forget")
            self.queued_file.unlink(missing_ok=True)
        with suppress(OSError):  # something is left in it, or the store is gone
            reach("compact.before_remove")
            self.folder.rmdir()
