"""The places a daemon needs before it may start: an output folder that can be written, folders for its sockets. Each is checked before anything opens."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from shardwright.model.errors import StorageError
from shardwright.storage.files import make_directories, storage_errors


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


def prepare_socket_folder(socket: str) -> None:
    """Make the folder of a Unix socket, for this user alone, where it is missing. Raises ``StorageError``."""
    with storage_errors("make the folder of socket", socket):
        Path(socket).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
