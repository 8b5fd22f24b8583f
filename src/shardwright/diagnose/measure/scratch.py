"""The folder below an output root that measurements write to: hidden, ours alone, gone afterwards. What a
killed run left is removed by the next."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.storage.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = ".shardwright-plan-"


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """Held by a lock while it is in use. Raises ``StorageError``."""
    remove_stale(root)
    with storage_errors("make a folder to measure in below", root):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_stale(root: Path) -> None:
    """Folders that nobody holds: their process was killed."""
    for folder in root.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # another run, or one that is about to hold it
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def free_bytes(folder: Path) -> int:
    """Of the disk below ``folder``, for this user. Raises ``StorageError``."""
    with storage_errors("look at", folder):
        room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize
