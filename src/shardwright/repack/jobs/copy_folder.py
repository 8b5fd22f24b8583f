"""A folder of plain files copied to a new place, durably, each file read back and compared: for the frame
table, which goes along as it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import crc32c

from shardwright.model.errors import StorageError
from shardwright.storage.failpoints import reach
from shardwright.storage.files import make_directories, open_regular, storage_errors, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

_PIECE_BYTES = 4 << 20


def copy_folder(source: Path, target: Path) -> int:
    """Bytes of all files. ``target`` must not exist. Raises ``StorageError``."""
    make_directories(target)
    total = 0
    with storage_errors("list", source):
        entries = sorted(source.iterdir())
    for entry in entries:
        total += (
            copy_folder(entry, target / entry.name)
            if entry.is_dir()
            else _copy_file(entry, target / entry.name)
        )
    sync_directory(target)
    return total


def _copy_file(source: Path, target: Path) -> int:
    with storage_errors("copy", source):
        reach("compact.before_copy")
        crc = total = 0
        with open_regular(source, buffering=0) as old, target.open("xb", buffering=0) as new:
            while piece := old.read(_PIECE_BYTES):
                crc = crc32c.crc32c(piece, crc)
                total += len(piece)
                view = memoryview(piece)
                while view:
                    view = view[os.write(new.fileno(), view) :]
            os.fsync(new.fileno())
            os.posix_fadvise(new.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found = 0
        with target.open("rb", buffering=0) as new:
            while piece := new.read(_PIECE_BYTES):
                found = crc32c.crc32c(piece, found)
    if found != crc:
        raise StorageError(
            f"{target} reads back differently from what was written",
            expected=f"crc32c {crc:08x}",
            got=f"{found:08x}",
        )
    return total
