"""Which finished stores are to be read and verified next, so that what a disk has lost is found while it can
be restored (``repair_store``): by the daemon's own compaction, in a process for each, or by ``compact
--config`` under a timer.

    STORE/0/.compact/scrubbed    its time of change is that of the last scrub. Before the first one, the time
                                 of STORE/zarr.json counts
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.files import made_in, replace_file, storage_errors
from shardwright.model.errors import StorageError
from shardwright.model.names import DOCUMENT
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.rework.runtime.compaction_queue import QueueEntry

if TYPE_CHECKING:
    from pathlib import Path

EVERY_S = 30 * 86_400.0
_NAME = "scrubbed"


def sealed_stores(root: Path) -> list[Path]:
    """Returns the finished stores below an output root, without those that are being written or were left
    unfinished. Links and files are passed over. Raises ``StorageError`` of the root alone."""
    unfinished = set(unfinished_stores(root))
    with storage_errors("look into", root):
        return sorted(
            folder
            for folder in beneath.paths_in(root)
            if folder not in unfinished and folder.suffix == ".zarr" and _may_be_store(folder)
        )


def due_stores(root: Path) -> list[Path]:
    """Returns the finished stores that are to be scrubbed by now, that of the longest wait first. Raises
    ``StorageError`` of the root alone."""
    last = {store: _last_scrub_s(store) for store in sealed_stores(root)}
    return sorted((store for store in last if last[store] + EVERY_S <= time.time()), key=last.__getitem__)


def note_scrub(store: Path) -> None:
    """A store was scrubbed just now. Raises ``StorageError``."""
    folder = QueueEntry(store).folder
    made_in(folder, lambda: replace_file(folder / _NAME, b""))


def _last_scrub_s(store: Path) -> float:
    found = 0.0
    for file in (store / DOCUMENT, QueueEntry(store).folder / _NAME):
        try:
            found = max(found, beneath.stat(file).st_mtime)
        except OSError:  # there is none; or nobody may look at it, as the scrub then says
            continue
    return found


def _may_be_store(folder: Path) -> bool:
    """True also for a folder that cannot be looked into: its plan fails and says why, and the other stores
    are compacted all the same."""
    try:
        return beneath.is_dir(folder) and beneath.is_file(folder / DOCUMENT)
    except StorageError:
        return True
