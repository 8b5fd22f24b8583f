"""An unfinished store on disk, as its manifest describes it: where its files in progress are, and how each is
opened. Recovery, live views and compaction find them here, each file when it is needed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardwright.array.grid import image_of
from shardwright.codecs.parameters import CodecParameters
from shardwright.disk import beneath
from shardwright.disk.failpoints import look
from shardwright.disk.files import storage_errors
from shardwright.model.errors import ShardFormatError, SpecError, StorageError
from shardwright.model.names import REWRITE_SUFFIX, WORKSPACE, acquisition_name, number_behind
from shardwright.shard.file_header import is_begun
from shardwright.shard.final_name import is_one_file
from shardwright.shard.frame_log import FrameLog
from shardwright.shard.frame_record import record_of
from shardwright.shard.frames_in_place import FramesInPlace
from shardwright.shard.journal import JournalLayout, ShardRowJournal
from shardwright.shard.layout import ArrayLayout, StoreLayout
from shardwright.shard.manifest import find_manifest, has_manifest, manifest_path, read_manifest
from shardwright.shard.shard_row_files import (
    JOURNAL_SUFFIX,
    LOG_NAME,
    STAGING_NAME,
    WORKING_SUFFIX,
    frames_set_aside,
    is_in_progress,
    placements_of,
    shard_of_working,
)
from shardwright.shard.shared_journal import SharedJournal, age_of, is_shared
from shardwright.shard.staging import StagingArea, slots_in

from .facts import JournalFact
from .shared_headers import SharedHeaders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.model.write_options import LiveMode
    from shardwright.shard.manifest import Manifest
    from shardwright.shard.shard_row_files import Placement
    from shardwright.shard.shared_journal import SharedHeader


_JOURNAL_NAME = re.compile(rf"(0|[1-9][0-9]*){re.escape(JOURNAL_SUFFIX)}")

T = TypeVar("T")


class JournalName(NamedTuple):
    """The file with the journal of a shard row."""

    path: Path
    inode: int


@dataclass(frozen=True)
class FilesInProgress:
    """The files in progress in one placement, by their names. ``journals``: the file of each, by shard row.
    ``shards``: names of shards in progress; ``rewrites``: of new files of shard rows that are rewritten.
    ``shared``: by name the headers of journals that rows share; None if it is damaged or not written."""

    journals: dict[int, JournalName]
    shards: list[str]
    rewrites: list[str]
    shared: dict[str, SharedHeader | None]


class UnfinishedStore:
    """An unfinished store. ``placements``: the store itself and, if it has one, its folder below the second
    root. Holds no file open, locks and changes nothing. Raises ``ShardFormatError`` for a manifest that
    describes no acquisition."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path  # of its folder; the workspace and all keys are below it
        # A live view sets the newer one of the same writer, whose files lie where they lay.
        self.manifest = manifest
        # From the manifest alone: the zarr.json of an image that has no frame yet may not be there, and its
        # shape covers only what readers have been shown.
        try:
            self.spec = manifest.acquisition
        except SpecError as error:
            damaged = manifest_path(self.workspace, manifest.writer_epoch)
            raise ShardFormatError(f"{damaged} does not describe an acquisition: {error}") from None
        # Of each record in journals, frame log and staging area: it has the frame's own fields and JSON.
        self.record_dtype = record_of(self.spec)
        # Where files in progress may be, by the second root and the files' epoch. A take-over writes another
        # epoch, since the old writer may go on in the old files: then this store must be read anew.
        self.placements = placements_of(path, manifest)
        self._headers = SharedHeaders(manifest.identity_bytes, self.record_dtype.itemsize)

    @classmethod
    def read(cls, path: Path) -> UnfinishedStore:
        """Reads the manifest of a store. Raises as ``read_manifest``."""
        return cls(path, read_manifest(path / WORKSPACE))

    @classmethod
    def find(cls, path: Path) -> UnfinishedStore | None:
        """As ``read``; None for a store that is not unfinished."""
        manifest = find_manifest(path / WORKSPACE)
        return None if manifest is None else cls(path, manifest)

    @cached_property
    def layout(self) -> StoreLayout:
        return store_layout(self.spec)

    @property
    def workspace(self) -> Path:
        return self.path / WORKSPACE

    def nodes(self) -> list[Path]:
        """Returns the folders of the store, of its images and of the groups above them that there are: those
        in which a writer writes a zarr.json."""
        arrays = [PurePosixPath(path) for path in self.spec.all_array_paths()]
        paths = {parent for array in arrays for parent in (array, *array.parents)}
        folders = [self.path / path for path in sorted({*paths, PurePosixPath("OME")})]
        return [folder for folder in folders if beneath.is_dir(folder)]

    @property
    def was_set_aside(self) -> bool:
        """True if an earlier recovery set a damaged file aside that may have frames."""
        return frames_set_aside(self.placements)

    def files_in_progress(self) -> list[Path]:
        """Returns the frame log, the staging area, and all files of shard rows that are not sealed."""
        folders = [placement.files for placement in self.placements if beneath.is_dir(placement.files)]
        files = (path for folder in folders for path in sorted(beneath.paths_in(folder)))
        return list(filter(is_in_progress, files))

    # ------------------------------------------------------------------ shard rows

    def look_into(self, placement: Placement) -> FilesInProgress:
        """Returns the files in progress in one placement; none if its folder of these is not there. Raises
        ``StorageError``, for a second root that is not there as well: its rows in progress would count as
        sealed, or as without a frame."""
        found = FilesInProgress({}, [], [], {})
        look("look.journals")
        with (
            storage_errors("look into", placement.files),
            suppress(FileNotFoundError),
            beneath.entries_in(placement.files) as entries,
        ):
            for entry in entries:
                if (number := self.shard_row_of(entry.name)) is not None:
                    found.journals[number] = JournalName(placement.files / entry.name, entry.inode())
                elif is_shared(entry.name):
                    found.shared[entry.name] = None
                elif entry.name.endswith(WORKING_SUFFIX):
                    found.shards.append(entry.name)
                elif entry.name.endswith(REWRITE_SUFFIX):
                    found.rewrites.append(entry.name)
        if placement.spill is None:  # where rows share journals
            self._headers.keep(found.shared)
        # A journal of its own counts before them: a row has that after an I/O error, and when it takes frames
        # again. Of two shared ones the newer one counts.
        for name in sorted(found.shared, key=age_of, reverse=True):
            path = placement.files / name
            if (header := self._shared_header(path)) is not None:
                found.shared[name] = header
                for row in header.bases:
                    found.journals.setdefault(row, JournalName(path, header.inode))
        placement.check_there()  # behind the look, which it is to be true of
        return found

    def _shared_header(self, path: Path) -> SharedHeader | None:
        """Returns the header of a shared journal; None if it is damaged or not written."""
        with suppress(ShardFormatError):
            return if_begun(path, partial(self.read_shared, path))
        return None

    def read_shared(self, path: Path) -> SharedHeader:
        """Reads the header of a journal that rows share. Raises as ``shared_journal.read_header``."""

        def may_share(row: int) -> bool:
            is_there = row >= 0 and image_of(row) < len(self.spec.paths)
            return is_there and self.layout.of(row).grid.has_one_slab(row)

        return self._headers.read(path, may_share)

    def open_shared(
        self, path: Path, header: SharedHeader | None = None, *, read_only: bool = False
    ) -> SharedJournal:
        """As ``SharedJournal.open``; ``header``: of the file, if it was read already."""
        header = header or self.read_shared(path)
        return SharedJournal.open(path, header, self.manifest.identity_bytes, read_only=read_only)

    def journal_path(self, placement: Placement, number: int) -> Path:
        """Returns the path of the file with a shard row's journal, that of its own one if there is none.
        Raises ``StorageError``."""
        path = placement.journal(number)
        if self.manifest.journal_rows == 1 or placement.spill is not None or beneath.exists(path):
            return path
        with (
            storage_errors("look into", placement.files),
            suppress(FileNotFoundError),
            beneath.entries_in(placement.files) as entries,
        ):
            there = {entry.name: entry.inode() for entry in entries if is_shared(entry.name)}
            return self._shared_with(placement, number, there) or path
        return path

    def _shared_with(self, placement: Placement, number: int, there: dict[str, int]) -> Path | None:
        """Returns the newest of the shared journals ``there`` (name: inode) that has a shard row in progress,
        None without one."""
        self._headers.keep(there)
        for name in sorted(there, key=age_of, reverse=True):
            path = placement.files / name
            if self._headers.may_have(path, there[name], number):
                header = self._shared_header(path)
                if header is not None and number in header.bases:
                    return path
        return None

    def open_shards(self) -> set[str]:
        """Returns the paths in the store of all shards that are not sealed, or whose shard row is not sealed
        whole: it has a journal, or a new one that is to replace it. A shard in progress counts without one as
        well. Raises as ``look_into``."""
        paths: set[str] = set()
        for placement in self.placements:
            found = self.look_into(placement)
            rows = set(found.journals)
            for name in (*found.shards, *(name.removesuffix(REWRITE_SUFFIX) for name in found.rewrites)):
                if name.endswith(WORKING_SUFFIX):
                    paths.add(shard_of_working(name))
                elif (row := self.shard_row_of(name)) is not None:
                    rows.add(row)
            paths.update(path for row in rows for path in self.layout.of(row).shard_paths(row))
        return paths

    def shard_row_of(self, name: str) -> int | None:
        """Returns the shard row whose journal has this name; None for any other name, also if it would be of
        an image that there is not."""
        found = _JOURNAL_NAME.fullmatch(name)
        return int(found[1]) if found and image_of(int(found[1])) < len(self.spec.paths) else None

    def row_of_shard(self, path: str) -> int | None:
        """Returns the shard row of a shard by its path in the store; None if it is of no array of it."""
        array, _, key = path.rpartition("/c/")
        if (found := self._arrays.get(array)) is None or not key.replace("/", "").isdecimal():
            return None
        image, level = found
        layout, shard = self.layout.arrays[image], tuple(map(int, key.split("/")))
        if len(shard) != len(layout.grid.counts) + 2:
            return None
        of_file = layout.file_of_shard(level, shard)
        return None if of_file is None else of_file[0]

    @cached_property
    def _arrays(self) -> dict[str, tuple[int, int]]:
        """The image and level of each array, by its path."""
        images = range(len(self.spec.paths))
        return {path: (i, level) for i in images for level, path in enumerate(self.spec.level_paths(i))}

    def tables(self, shard_row: int) -> JournalLayout:
        """Returns the layout of the journal of a shard row."""
        return JournalLayout.of(self.layout.of(shard_row), shard_row, self.record_dtype)

    def open_journal(
        self,
        path: Path,
        tables: JournalLayout,
        *,
        read_only: bool = False,
        shared: SharedJournal | None = None,
    ) -> ShardRowJournal:
        """Opens the journal of a shard row in a file; ``shared``: that file, open, if it is one of several
        rows. Raises ``ShardFormatError``, ``StorageError``."""
        if shared is not None:
            return shared.journal_at(tables)
        number = tables.shard_row
        return ShardRowJournal.open(path, tables, self.manifest.identity_bytes, number, read_only=read_only)

    # ------------------------------------------------------------------ frame log, staging area

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

    @property
    def staging_path(self) -> Path:
        return self.placements[0].files / STAGING_NAME

    def open_staging(self, *, read_only: bool = False) -> StagingArea | None:
        """Opens the staging area; returns None if there is none. Its number of slots follows from its length.
        Raises ``ShardFormatError``, ``StorageError``."""
        path, grids, record = self.staging_path, self.spec.grids, self.record_dtype
        frame_bytes = 0 if grids.in_place else grids.slot_bytes
        look("look.staging.name")
        with storage_errors("look at", path):
            if not beneath.exists(path):
                return None
            look("look.staging.open")
            slots = slots_in(beneath.stat(path).st_size, frame_bytes, record.itemsize)
        identity = self.manifest.identity_bytes
        return StagingArea.open(path, slots, frame_bytes, record, identity, grids=grids, read_only=read_only)


def store_layout(spec: AcquisitionSpec) -> StoreLayout:
    """Returns the layouts of the shards of all images, which follow from the specification alone. Images with
    the same array share its tables."""
    made: dict[int, ArrayLayout] = {}  # by the id of the array's specification
    layouts = []
    for array, grid, path in zip(spec.arrays, spec.grids.grids, spec.paths, strict=True):
        if id(array) not in made:
            codec = CodecParameters.of(array, grid.chunk_bytes)
            made[id(array)] = ArrayLayout.of_spec(array, grid, codec.max_encoded_bytes)
        layouts.append(made[id(array)].image(grid, path))
    return StoreLayout(tuple(layouts), spec.grids)


def if_begun(path: Path, opens: Callable[[], T]) -> T | None:
    """Returns what ``opens`` gives of a journal or staging area, which its writer may be making or deleting;
    None where it says nothing: it is gone, or has no header yet, so that nothing is stored there. Raises
    ``ShardFormatError`` for one that is damaged: it may say anything, ``StorageError``."""
    try:
        return opens()
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    except ShardFormatError:
        if is_begun(path):
            raise
        return None


def is_shown(live: LiveMode, journal: JournalFact, placement: Placement, shard_path: str) -> bool:
    """Returns whether the file under a shard's final name, if there is one, is of the shard in progress (row
    ``shown`` of ``scan.table``): readers see it grow, and it holds nothing beyond the journal. ``journal``:
    of its shard row, in ``placement``. Raises ``StorageError``."""
    if live == "none" or journal is JournalFact.REOPENED:
        return False  # only a whole shard gets a final name, or keeps it
    working, final = placement.working(shard_path), placement.final(shard_path)
    with storage_errors("look at", working):
        if journal is not JournalFact.DAMAGED:
            # Its seal gives this shard the final name as its only one, so the name in progress is enough: a
            # live view looks at each shard that it reads, and at no name more than it must.
            return beneath.exists(working)
        # A damaged journal does not tell whether the shard row was reopened: the final name may be that of
        # an older shard, which is another file. A copy is another file too, so that any may be one; and so is
        # the file of a writer that was taken over.
        if live == "append" or placement.epoch:
            return beneath.exists(working) and beneath.is_file(final)
    return is_one_file(working, final)


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
    return f"{acquisition_name(store.name)} is unfinished ({store}): resume or reopen that one"
