"""The output root: checked before anything opens, so that a disk that is not mounted or not ours is a refusal and not a lost acquisition."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING

from shardwright.model.errors import StorageError
from shardwright.storage.files import make_directories

if TYPE_CHECKING:
    from pathlib import Path


def prepare_output_root(root: Path, *, create: bool) -> None:
    """Make sure that stores can be written below ``root``. Raises ``StorageError``."""
    if create:
        make_directories(root)
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise StorageError(f"output root {root} {what}", hint="Mount its disk or make the folder; output.create: true makes it at each start.")
    try:
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(b"shardwright")
    except OSError as error:
        raise StorageError(f"output root {root} cannot be written", got=error.strerror, hint=_whose(root, error)) from None


def _whose(root: Path, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        facts = root.stat()
        return f"It belongs to user {facts.st_uid}, mode {facts.st_mode & 0o7777:o}; this daemon runs as user {os.geteuid()}."
    return "Check the disk and how it is mounted."
