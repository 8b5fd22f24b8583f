"""An unfinished store on disk: its manifest, and where and how its files are read."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import crc32c

from shardwright.model.errors import FormatVersionError, ResumeError, ShardFormatError, StorageError
from shardwright.model.names import STORE_SUFFIX, WORKSPACE, number_behind
from shardwright.model.versions import check_version
from shardwright.read.layouts import store_layout
from shardwright.read.store import read_metadata
from shardwright.shard import frame_log, journal, staging
from shardwright.shard.file_header import version_of
from shardwright.shard.frame_log import FrameLog
from shardwright.shard.frame_record import record_of
from shardwright.shard.frames_in_place import FramesInPlace
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.manifest import has_manifest, read_manifest, write_manifest
from shardwright.shard.metadata_updates import read_updates, updated_groups
from shardwright.shard.shard_row_files import (
    JOURNAL_SUFFIX,
    LOG_NAME,
    STAGING_NAME,
    is_in_progress,
    placements_of,
)
from shardwright.shard.staging import StagingArea, slots_in
from shardwright.storage import beneath
from shardwright.storage.ballast import Ballast
from shardwright.storage.failpoints import reach
from shardwright.storage.files import make_directories, replace_by_rename, storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.shard.layout import StoreLayout
    from shardwright.shard.manifest import Manifest
    from shardwright.shard.shard_row_files import Placement

DAMAGED = ".shardwright.damaged"  # beside a workspace: damaged files that a recovery set aside


class Unfinished:
    """An unfinished store, as ``manifest`` describes it. ``placements``: the store itself and, if it has one,
    its folder below the second root."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.spec = manifest.acquisition
        self.record_dtype = record_of(self.spec)
        self.placements = placements_of(path, manifest)

    @classmethod
    def read(cls, path: Path) -> Unfinished:
        """Reads a store and checks that all of its files are of known versions. Changes nothing. Raises
        ``FormatVersionError``, ``ShardFormatError`` for a damaged manifest and for metadata that are not
        understood (they would be rewritten), ``StorageError``."""
        manifest = read_manifest(path / WORKSPACE)
        store = cls(path, manifest)
        for node in store.nodes():
            if beneath.exists(node / "zarr.json"):
                read_metadata(node)
        for placement in placements_of(path, manifest):
            for folder in (placement.workspace, *([placement.files] if placement.epoch else [])):
                if beneath.is_dir(folder):
                    _refuse_other_versions(folder, manifest.identity_bytes)
        for placement in store.placements:
            if beneath.is_dir(placement.workspace) and not beneath.is_dir(placement.files):
                raise ShardFormatError(
                    f"{placement.files} is not there, and the manifest says that the "
                    f"shards in progress are in it"
                )
        return store

    def write(
        self, manifest: Manifest, may_replace: Callable[[], None], *, is_first: bool = False
    ) -> Unfinished:
        """Writes another manifest, durably; on a full disk in the ballast's room. Returns the store with it.
        Raises as ``write_manifest``."""
        Ballast(self.workspace / "ballast", 0).spent_on(
            lambda: write_manifest(self.workspace, manifest, may_replace, is_first=is_first)
        )
        return Unfinished(self.path, manifest)

    @cached_property
    def layout(self) -> StoreLayout:
        return store_layout(self.spec)

    def nodes(self) -> list[Path]:
        """Returns the folders of the store, of its images and of the groups above them that there are: those
        in which a writer writes a zarr.json."""
        arrays = [PurePosixPath(path) for path in self.spec.all_array_paths()]
        paths = {parent for array in arrays for parent in (array, *array.parents)}
        folders = [self.path / path for path in sorted({*paths, PurePosixPath("OME")})]
        return [folder for folder in folders if beneath.is_dir(folder)]

    @property
    def workspace(self) -> Path:
        return self.path / WORKSPACE

    @property
    def was_set_aside(self) -> bool:
        """True if an earlier recovery set a damaged file aside."""
        return any(beneath.exists(placement.root / DAMAGED) for placement in self.placements)

    def check_second_root(self) -> None:
        """Raises ``ResumeError`` if the second root is missing: the store would be recovered with holes, and
        its journals there would be ignored."""
        for placement in self.placements:
            if placement.spill is not None and not beneath.is_dir(placement.workspace):
                hint = "Mount the second root, then try again"
                raise ResumeError(
                    f"shards of {self.path} may lie in {placement.workspace}, which is not there", hint=hint
                )

    def files_in_progress(self) -> list[Path]:
        """Returns the frame log, the staging area, and all files of shard rows that are not sealed."""
        folders = [placement.files for placement in self.placements if beneath.is_dir(placement.files)]
        files = (path for folder in folders for path in sorted(beneath.paths_in(folder)))
        return list(filter(is_in_progress, files))

    @property
    def frames_in_place(self) -> FramesInPlace | None:
        """Reads the staged frames whose pixels are in their chunks; None if they are in the staging area."""
        return FramesInPlace(self.layout, self.placements) if self.spec.grids.in_place else None

    def open_log(self, *, read_only: bool = False) -> FrameLog:
        """Opens the frame log. Raises ``ShardFormatError``, ``StorageError``."""
        return FrameLog.open(
            self.placements[0].files / LOG_NAME,
            self.record_dtype,
            self.manifest.identity_bytes,
            grids=self.spec.grids,
            read_only=read_only,
        )

    def open_staging(self) -> StagingArea | None:
        """Opens the staging area; returns None if there is none. Its number of slots follows from its length.
        Raises ``ShardFormatError``, ``StorageError``."""
        path, frame_bytes, record_bytes = (
            self.placements[0].files / STAGING_NAME,
            0 if self.spec.grids.in_place else self.spec.grids.slot_bytes,
            self.record_dtype.itemsize,
        )
        if not beneath.exists(path):
            return None
        slots = slots_in(beneath.stat(path).st_size, frame_bytes, record_bytes)
        identity, grids = self.manifest.identity_bytes, self.spec.grids
        return StagingArea.open(path, slots, frame_bytes, self.record_dtype, identity, grids=grids)


def unfinished_beside(path: Path) -> str | None:
    """Returns a hint that names the newest unfinished store with a number behind the name of ``path``, as
    ``name_taken: increment`` makes them; None if there is none."""
    found: dict[int, Path] = {}
    with suppress(OSError, StorageError):
        for store in beneath.paths_in(path.parent):
            number = number_behind(path, store)
            if number is not None and beneath.is_dir(store / WORKSPACE) and has_manifest(store / WORKSPACE):
                found[number] = store
    if not found:
        return None
    store = found[max(found)]
    return f"{store.name.removesuffix(STORE_SUFFIX)} is unfinished ({store}): resume or reopen that one"


def set_aside(root: Path, path: Path) -> None:
    """Moves a damaged file to where it stays when the store is finished. Raises ``StorageError``."""
    make_directories(root / DAMAGED)
    with storage_errors("set aside", path):
        reach("recover.before_set_aside")
        replace_by_rename(path, root / DAMAGED / path.name)


def journals(placement: Placement) -> list[tuple[int, Path]]:
    """Returns (shard row, journal path) for each journal in one workspace, by shard row."""
    return sorted(
        (int(path.name.removesuffix(JOURNAL_SUFFIX)), path)
        for path in beneath.matching(placement.files, f"[0-9]*{JOURNAL_SUFFIX}")
    )


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
