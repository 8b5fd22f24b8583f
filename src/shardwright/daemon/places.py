"""The output root, checked before anything opens: a disk that is not mounted or not writable is refused at
the start, before an acquisition is lost."""

from __future__ import annotations

import errno
import os
import tempfile
from stat import S_ISDIR
from typing import TYPE_CHECKING

from shardwright.model.errors import StorageError
from shardwright.storage.files import make_directories
from shardwright.storage.filesystems import memory_filesystem, nearest_folder

if TYPE_CHECKING:
    from pathlib import Path


def prepare_output_root(root: Path, *, create: bool, in_memory: bool = False) -> None:
    """Makes sure that stores can be written below ``root``; ``in_memory``: also where a power cut destroys
    them. Raises ``StorageError``."""
    above = nearest_folder(root)
    if (create or above == root) and not in_memory and (kind := memory_filesystem(above)):
        hint = "Choose a folder on a disk. output.in_memory: true allows it, for trials."
        raise StorageError(
            f"output root {root} is in memory ({kind}): nothing there survives a power cut", hint=hint
        )
    if create:
        make_directories(root)
    try:
        is_folder: bool | None = S_ISDIR(root.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_folder = None
    except OSError as error:
        hint = f"This daemon runs as user {os.geteuid()}; every folder above must let it in."
        raise StorageError(f"output root {root} cannot be reached", got=error.strerror, hint=hint) from None
    if not is_folder:
        what = "does not exist" if is_folder is None else "is not a folder"
        raise StorageError(
            f"output root {root} {what}",
            hint="Mount its disk or make the folder; output.create: true makes it at each start.",
        )
    try:
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(b"shardwright")
    except OSError as error:
        raise StorageError(
            f"output root {root} cannot be written", got=error.strerror, hint=_whose(root, error)
        ) from None


def _whose(root: Path, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        facts = root.stat()
        return (
            f"It belongs to user {facts.st_uid}, mode {facts.st_mode & 0o7777:o}; this daemon runs as "
            f"user {os.geteuid()}."
        )
    return "Check the disk and how it is mounted."
