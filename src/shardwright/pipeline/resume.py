"""From an unfinished store on disk back to an acquisition that goes on: takes the lock, decides about every file by ``shard.recover``'s table, checks
what the journals claim, and hands over what ``Acquisition`` needs. Everything found good is synced, so that what is stored afterwards is durable.

Each step leaves the disk so that the next try finds the same or more: recovery may be killed and begun again at any point.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Grid
from shardwright.array.ome import IMAGE_PATH
from shardwright.array.parse import parse_spec
from shardwright.model.errors import ResumeError, ShardFormatError, StorageFullError
from shardwright.read.store import read_metadata
from shardwright.shard.frame_log import FrameLog
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.group_files import WORKSPACE
from shardwright.shard.layout import page_aligned
from shardwright.shard.manifest import delete_manifests, has_manifest, read_manifest, write_manifest
from shardwright.shard.staging import StagingArea
from shardwright.shard.versions import refuse_other_versions
from shardwright.storage.ballast import Ballast
from shardwright.storage.lock import StoreLock

from .accounts import Accounts
from .evidence import end_intact
from .finder import Finder
from .restored import Restored
from .store_folder import StoreFolder
from .take_over import leave_old_inodes, spill_workspace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.shard.manifest import Manifest

    from .limits import Limits
    from .settings import WriteSettings


def restore(
    path: Path,
    limits_of: Callable[[ArraySpec], Limits],
    settings: WriteSettings,
    *,
    threads: int,
    take_over: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Restored:
    """Raises ``LockedError``, ``ResumeError`` when there is nothing to go on with, ``FormatVersionError`` for files of another version (nothing was
    changed then), ``ShardFormatError`` for a damaged manifest, ``StorageError``."""
    workspace = path / WORKSPACE
    if not has_manifest(workspace):
        raise _nothing_unfinished(path)
    if take_over:
        read_known_manifest(path)  # before its writer loses the lock
    lock = StoreLock.replace(workspace / "lock") if take_over else StoreLock.take(workspace / "lock")
    try:
        if take_over:
            end_intact(workspace)
        manifest = read_known_manifest(path)
        _check_spill(path, spill_workspace(path, manifest))
        manifest = replace(manifest, writer_epoch=manifest.writer_epoch + 1)
        _write_manifest(workspace, manifest)  # from here on an older writer is fenced off
        delete_manifests(workspace, up_to_epoch=manifest.writer_epoch - 1)
        if take_over:
            leave_old_inodes(path, manifest)
        restored = _open_folder(path, manifest, lock, limits_of, settings)
    except BaseException:
        lock.release()
        raise
    try:
        Finder(restored, threads, progress).run()
    except BaseException as error:
        restored.folder.note_disk_error(error)
        restored.close()
        raise
    return restored


def _nothing_unfinished(path: Path) -> ResumeError:
    if (path / "zarr.json").exists():
        hint = "Nothing is left to resume, and nothing can be appended: read it as it is, and begin a new store for more frames."
        return ResumeError(f"{path} is finished: complete and sealed", hint=hint)
    got = "another folder or file" if path.exists() else "no such folder"
    return ResumeError(f"there is nothing to resume at {path}", expected="a store that its writer left unfinished", got=got)


def read_known_manifest(path: Path) -> Manifest:
    """The manifest of a store all of whose files are of versions that are known. Changes nothing. Raises ``FormatVersionError``,
    ``ShardFormatError`` for a damaged manifest and for metadata that are not understood, which would be rewritten, ``StorageError``."""
    manifest = read_manifest(path / WORKSPACE)
    for node in (path, path / IMAGE_PATH):
        if (node / "zarr.json").exists():
            read_metadata(node)
    for workspace in filter(None, (path / WORKSPACE, spill_workspace(path, manifest))):
        if workspace.is_dir():
            refuse_other_versions(workspace, manifest.identity_bytes)
    return manifest


def _check_spill(path: Path, spill: Path | None) -> None:
    """Without its second root a store would come back with holes, and its journals there be forgotten."""
    if spill is not None and not spill.is_dir():
        raise ResumeError(f"shards of {path} may lie in {spill}, which is not there", hint="Mount the second root, then try again")


def _write_manifest(workspace: Path, manifest: Manifest) -> None:
    """On a full disk in the ballast's room."""
    try:
        write_manifest(workspace, manifest)
    except StorageFullError:
        if not Ballast(workspace / "ballast", 0).release():
            raise
        write_manifest(workspace, manifest)


def _open_folder(path: Path, manifest: Manifest, lock: StoreLock, limits_of: Callable[[ArraySpec], Limits], settings: WriteSettings) -> Restored:
    spec = parse_spec(manifest.spec)
    limits = limits_of(spec)
    workspace, dtype = path / WORKSPACE, record_dtype(len(spec.frame_fields))
    log = FrameLog.open(workspace / "frames.log", dtype, manifest.identity_bytes)
    try:
        staging = open_staging(workspace, spec, manifest, dtype)
    except BaseException:
        log.close()
        raise
    ballast = Ballast(workspace / "ballast", settings.ballast_bytes)
    folder = StoreFolder(path, spec, manifest, lock, log, staging, ballast, extent=_visible_extent(path, spec))
    grid = Grid.of(spec)
    accounts = Accounts(limits.frame_bytes, int(np.prod(grid.counts[1:], dtype=np.int64)), received_extent=0 if grid.counts else 1)
    return Restored(folder, spec, limits, accounts)


def open_staging(workspace: Path, spec: ArraySpec, manifest: Manifest, dtype: np.dtype[np.void]) -> StagingArea | None:
    """The staging area of a store, None where there is none. Its number of slots follows from its length."""
    path = workspace / "staging"
    if not path.exists():
        return None
    room = path.stat().st_size - page_aligned(1)
    slots = room // (page_aligned(spec.frame_bytes) + dtype.itemsize)
    while slots > 1 and page_aligned(slots * dtype.itemsize) + slots * page_aligned(spec.frame_bytes) > room:
        slots -= 1
    return StagingArea.open(path, slots, spec.frame_bytes, dtype, manifest.identity_bytes)


def _visible_extent(path: Path, spec: ArraySpec) -> int:
    """How much of the first frame axis zarr.json covers already: it never shrinks."""
    document = read_metadata(path / IMAGE_PATH)
    if len(spec.dimensions) == 2:
        return 0
    axis = [d.name for d in spec.stored_dimensions].index(spec.dimensions[0].name)
    try:
        return int(document["shape"][axis])
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise ShardFormatError(f"{path / IMAGE_PATH / 'zarr.json'} is damaged: it has no shape", got=repr(error)[:80]) from None
