"""The admission of an unfinished store to recovery: all that is checked before anything in it is changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import crc32c

from shardwright.disk import beneath
from shardwright.disk.files import storage_errors
from shardwright.model.errors import FormatVersionError, ShardFormatError
from shardwright.model.names import DOCUMENT
from shardwright.model.versions import check_version
from shardwright.read.store import read_metadata
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard import frame_log, journal, staging
from shardwright.shard.file_header import version_of
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.metadata_updates import read_updates, updated_groups
from shardwright.shard.shard_row_files import JOURNAL_SUFFIX, LOG_NAME, STAGING_NAME

if TYPE_CHECKING:
    from pathlib import Path


def admit(path: Path) -> UnfinishedStore:
    """Reads an unfinished store and checks that all of its files are of known versions. Raises
    ``FormatVersionError``, ``ShardFormatError`` for a damaged manifest and for metadata that are not
    understood (they would be rewritten), ``StorageError``."""
    store = UnfinishedStore.read(path)
    for node in store.nodes():
        if beneath.exists(node / DOCUMENT):
            read_metadata(node)
    for placement in store.placements:
        for folder in dict.fromkeys((placement.workspace, placement.files)):
            if beneath.is_dir(folder):
                _refuse_other_versions(folder, store.manifest.identity_bytes)
        if beneath.is_dir(placement.workspace) and not beneath.is_dir(placement.files):
            raise ShardFormatError(
                f"{placement.files} is not there, and the manifest says that the shards in progress are in it"
            )
    return store


def check_second_root(store: UnfinishedStore) -> None:
    """Raises ``StorageError`` if the second root is missing: the store would be recovered with holes, and its
    journals there would be ignored."""
    for placement in store.placements:
        placement.check_there()


def _refuse_other_versions(workspace: Path, identity: bytes) -> None:
    """Raises ``FormatVersionError`` for the first journal, staging area, frame log or update of metadata of
    another version: files of a newer release would look damaged, and would be set aside, cleared or sealed
    without their frames. Damaged files pass. Raises ``StorageError``."""
    with storage_errors("look into", workspace):
        names = sorted(beneath.names_in(workspace))
    for name in names:
        if name.endswith(JOURNAL_SUFFIX):
            _check_file_version(workspace / name, journal.MAGIC, journal.VERSION)
        elif name == STAGING_NAME:
            _check_file_version(workspace / name, staging.MAGIC, staging.VERSION)
        elif name == LOG_NAME:
            seed = crc32c.crc32c(identity)
            _check_file_version(workspace / name, frame_log.FILE_MAGIC, frame_log.FORMAT, seed)
    for image in updated_groups(workspace):
        try:
            read_updates(workspace, image)
        except FormatVersionError:
            raise
        except ShardFormatError:
            pass


def _check_file_version(path: Path, magic: bytes, known: int, seed: int = 0) -> None:
    with storage_errors("read", path):
        try:
            # O_NONBLOCK: opening a named pipe must not wait for a writer
            descriptor = beneath.open_file(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return  # its writer has just sealed it
        try:
            page = os.read(descriptor, PAGE_BYTES)
        finally:
            beneath.close(descriptor)
    found = version_of(page, magic, seed)
    if found is not None:
        check_version(found, known, path)
