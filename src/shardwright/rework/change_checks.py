"""Refusals before a finished store is changed: it is being acquired or moved, or a shard lies on another
disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.array.metadata import CONTAINER, creator_facts
from shardwright.disk import beneath
from shardwright.disk.files import storage_errors
from shardwright.disk.lock import is_locked
from shardwright.model.errors import LockedError, ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT, MOVE_LOCK_NAME, WORK_FOLDER
from shardwright.read.store import is_between_versions, parse_array, read_metadata, workspace_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.read.store import StoredArray

DOCUMENT_OF_A_COPY = b"{}"  # zarr.json beside the copy of an object: nobody else changes that array


def check_finished(where: Path) -> None:
    """Raises ``LockedError`` while an acquisition is at work in the store of a folder."""
    if (workspace := workspace_of(where)) is not None:
        raise LockedError(
            f"{workspace.parent} is still being written, or its acquisition ended without sealing all shards",
            hint="Wait until it has ended; `shardwright recover` finishes the store of a daemon that died",
        )


def check_at_rest(where: Path) -> None:
    """Raises ``LockedError`` while an acquisition or a move is at work in the store of a folder."""
    check_finished(where)
    for folder in (where, *where.parents):
        if not beneath.exists(folder / DOCUMENT):
            break
        if is_locked(folder / WORK_FOLDER / MOVE_LOCK_NAME):
            raise LockedError(
                f"{folder} is being moved, copied or upgraded", hint="Wait until that has ended"
            )


def check_not_between_versions(where: Path) -> None:
    """Raises ``LockedError`` for a store, or a part of one, whose upgrade to another version of OME-Zarr is
    at work or was interrupted: only the command that began it makes one version of it. A job calls it while
    it holds the lock that the upgrade looks for."""
    for folder in (where, *where.parents):
        if not beneath.exists(folder / DOCUMENT):
            break
        if is_between_versions(folder):
            raise LockedError(
                f"an upgrade of {folder} to another version of OME-Zarr is at work, or was interrupted",
                hint=f"End it first: `shardwright upgrade-ome {folder}`",
            )


def check_same_shards(array: StoredArray) -> None:
    """Raises ``ShardFormatError`` for an array whose shards are HDF5 files as well, since HDF5 would still
    name the old bytes of a chunk, or were merged since it was opened: a shard of the old grid would have the
    name of another one. zarr.json is read again."""
    path, now = array.path / DOCUMENT, {}
    if beneath.is_file(path) and beneath.stat(path).st_size > len(DOCUMENT_OF_A_COPY):
        now = read_metadata(array.path, foreign=True)
    if (container := array.container or creator_facts(now).get(CONTAINER)) is not None:
        raise ShardFormatError(
            f"the shards of {array.path} are {container} files as well, and are not changed",
            hint="`shardwright rechunk` writes the same values to a new store, which can be changed",
        )
    if now and parse_array(array.path, now).shard_shape != array.shard_shape:
        raise ShardFormatError(
            f"{array.path} has other shards than when it was opened", hint="Open it again, and repeat this"
        )


def is_spilled(shard: Path) -> bool:
    """Returns whether a shard's key is a link. Raises ``StorageError``."""
    with storage_errors("look at", shard):
        return beneath.is_link(shard)


def check_not_spilled(shard: Path) -> None:
    """Raises ``StorageError`` for a shard whose key is a link."""
    if is_spilled(shard):
        raise StorageError(
            f"{shard} is a link to a shard on another disk, which is not changed",
            hint="`shardwright compact --to` makes a store without links",
        )
