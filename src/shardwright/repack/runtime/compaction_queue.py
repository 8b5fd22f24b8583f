"""The persistent compaction queue of a store: one entry, which says that a daemon is to compact it. The
next daemon finds it.

    ARRAY/.compact/queued    {"version": 1, "failures": N}: the store was sealed and is still to be compacted,
                             which has failed N times
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.acquisition_spec import ARRAY_NAME
from shardwright.model.errors import LinkError, ShardFormatError
from shardwright.model.json_text import parse_json
from shardwright.model.names import WORK_FOLDER
from shardwright.model.versions import check_version
from shardwright.storage import beneath
from shardwright.storage.failpoints import reach
from shardwright.storage.files import made_in, read_regular, replace_file, storage_errors, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

QUEUED_NAME = "queued"
_MOST_BYTES = 4096
VERSION = 1  # also of files that name none


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
        except (PermissionError, LinkError):
            return False

    @property
    def failures(self) -> int:
        """How often its compaction has failed, 0 where that cannot be read."""
        failures = self._facts().get("failures")
        return failures if type(failures) is int and failures >= 0 else 0

    def check_version(self) -> None:
        """Raises ``FormatVersionError`` for an entry in another version of the format."""
        check_version(self._facts().get("version", VERSION), VERSION, self.queued_file)

    def _facts(self) -> dict[str, Any]:
        """Returns what the entry says, nothing where that cannot be read."""
        with suppress(OSError, ValueError, ShardFormatError):
            facts = parse_json(read_regular(self.queued_file, _MOST_BYTES))
            if isinstance(facts, dict):
                return facts
        return {}

    def add(self, failures: int = 0) -> None:
        """Durably. Raises ``StorageError``, also where the store is gone."""
        entry = json.dumps({"version": VERSION, "failures": failures}).encode()
        made_in(self.folder, lambda: replace_file(self.queued_file, entry))
        sync_directory(self.folder.parent)  # whoever made the folder may not have come to it

    def remove(self) -> None:
        """The compaction is done, or given up. Raises ``StorageError``."""
        with storage_errors("delete", self.queued_file):
            reach("compact.before_forget")
            beneath.unlink(self.queued_file, missing_ok=True)
        with suppress(OSError):  # something is left in it, or the store is gone
            reach("compact.before_remove")
            beneath.remove_folder(self.folder)
