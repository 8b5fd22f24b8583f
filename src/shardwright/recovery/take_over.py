"""Taking a store over from a writer that hangs: it may wake up and write on through its descriptors, so its files are left to it and copies used.

The lock file has been replaced and the writer epoch raised before this; the old writer can then rename nothing any more, here it loses the bytes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardwright.shard.manifest import is_manifest
from shardwright.storage.failpoints import reach
from shardwright.storage.files import open_regular, storage_errors, sync_directory

from .scan import COPY_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from .unfinished import Unfinished


def leave_old_inodes(store: Unfinished) -> None:
    """After a take-over the old writer may still write through its descriptors: go on with copies that it does not know."""
    for workspace in (placement.workspace for placement in store.placements):
        for file in sorted(workspace.iterdir()) if workspace.is_dir() else []:
            if file.name in ("lock", "ballast") or is_manifest(file) or not file.is_file():
                continue
            copy = file.with_name(f"{file.name}{COPY_SUFFIX}")
            with storage_errors("copy", file):
                copy.unlink(missing_ok=True)
                _copy_file(file, copy)
                reach("take_over.before_rename")
                copy.replace(file)
        if workspace.is_dir():
            sync_directory(workspace)


def _copy_file(source: Path, target: Path) -> None:
    """Whole blocks, so that the copy is as preallocated as the source."""
    with open_regular(source) as reading, target.open("xb") as writing:
        size = os.fstat(reading.fileno()).st_size
        os.posix_fallocate(writing.fileno(), 0, max(size, 1))
        os.ftruncate(writing.fileno(), size)
        done = 0
        while done < size:
            count = os.copy_file_range(reading.fileno(), writing.fileno(), size - done, done, done)
            if count == 0:
                break
            done += count
        os.fsync(writing.fileno())
