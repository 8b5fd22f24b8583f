"""Checks that the files of an unfinished store are of versions that this release reads, before anything is
changed there: files of a newer release would look damaged, and be set aside, cleared or sealed without their
frames.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import crc32c

from shardwright.model.versions import check_version
from shardwright.storage.files import storage_errors

from . import frame_log, journal, staging
from .file_header import version_of
from .layout import PAGE_BYTES
from .shard_row_files import JOURNAL_SUFFIX, LOG_NAME, STAGING_NAME

if TYPE_CHECKING:
    from pathlib import Path


def refuse_other_versions(workspace: Path, identity: bytes) -> None:
    """Raises ``FormatVersionError`` for the first journal, staging area or frame log of another version,
    ``StorageError``. Damaged ones pass."""
    with storage_errors("look into", workspace):
        names = sorted(entry.name for entry in workspace.iterdir())
    for name in names:
        if name.endswith(JOURNAL_SUFFIX):
            _check(workspace / name, journal.MAGIC, journal.VERSION)
        elif name == STAGING_NAME:
            _check(workspace / name, staging.MAGIC, staging.VERSION)
        elif name == LOG_NAME:
            _check(workspace / name, frame_log.FILE_MAGIC, frame_log.FORMAT, crc32c.crc32c(identity))


def _check(path: Path, magic: bytes, known: int, seed: int = 0) -> None:
    with storage_errors("read", path):
        try:
            # O_NONBLOCK: opening a named pipe must not wait for a writer
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return  # its writer has just sealed it
        try:
            page = os.read(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)
    found = version_of(page, magic, seed)
    if found is not None:
        check_version(found, known, path)
