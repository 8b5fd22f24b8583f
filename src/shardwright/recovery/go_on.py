"""Makes a finished store unfinished again, so that its acquisition goes on as after an early end.

A new workspace is made beside the store, as that of a new store is: frame log (from the frame table), staging
area, updates of metadata, receipts of the parts that have ended, manifest. Then one rename puts it into the
store as a whole. A kill before that leaves a finished store, untouched, and a making folder that the next
creation or ``recover`` removes; one behind it an unfinished store, of which every frame is in sealed shards
and in the frame log. Nothing else of the store changes: until the end, readers of the files find what they
found before.

All is checked before that rename: a store that its jobs have changed may look as if it could go on, and lose
what they did.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.acquire.accounts import SequenceSet
from shardwright.array.atlas_block import FIELD as BLOCK
from shardwright.array.atlas_block import told_since
from shardwright.array.document import as_read
from shardwright.array.frame_table_format import RECORD_COLUMNS, TABLE_PATH
from shardwright.array.grid import Extents, image_of
from shardwright.array.metadata import array_documents, group_document
from shardwright.array.metadata_update import MetadataUpdate
from shardwright.array.ome import multiscale_of
from shardwright.array.ome_version import ome_in
from shardwright.array.spec import OWN_ATTRIBUTES
from shardwright.disk import beneath
from shardwright.disk.choose_io import resolve_io
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    DurableFolders,
    file_held,
    made_in,
    rename_without_replacing,
    storage_errors,
    sync_directory,
)
from shardwright.disk.lock import StoreLock, is_locked
from shardwright.disk.spill_links import spilled_file
from shardwright.kernels.place import slabs_and_indices
from shardwright.model.errors import LinkError, LockedError, OutputExistsError, ResumeError, ShardFormatError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import DOCUMENT, EDIT_FOLDER, MOVE_LOCK_NAME, MOVE_PREFIX, WORK_FOLDER, WORKSPACE
from shardwright.read.frame_table import frame_table_of
from shardwright.read.store import read_metadata
from shardwright.shard.checked_json import checksum
from shardwright.shard.edit_files import journaled_edits
from shardwright.shard.frame_log import BlockKind, FrameLog
from shardwright.shard.frame_record import PASSED_OVER, record_of
from shardwright.shard.intact_mark import begin_intact
from shardwright.shard.manifest import Manifest, parse_manifest, write_manifest
from shardwright.shard.metadata_updates import parsed_updates, updates_path, write_updates
from shardwright.shard.shard_row_files import LOG_NAME, TAKEN_PREFIX
from shardwright.shard.shard_sums import ShardSums
from shardwright.shard.spill_folder import make_spill_folder
from shardwright.store.finish_record import keep_receipts
from shardwright.store.moved_store import is_moved_away
from shardwright.store.new_store import making_folder, remove_left_beside
from shardwright.store.replaced_store import new_identity
from shardwright.store.store_folder import check_live, make_files
from shardwright.wire.descriptor import JSON_FIELD, METADATA_FIELDS, NO_POSITION

from .take_over import release_moves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardwright.acquire.limits import Limits
    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.read.frame_table import FrameTable

_NEW_STORE = "Read it as it is, and create a new store for more frames"
_LEVELS = "levels"  # in the work folder of an array: those that `shardwright pyramid` is making


@dataclass(frozen=True)
class RecordedStore:
    """A finished store with the record of its acquisition."""

    path: Path
    table: FrameTable
    manifest: Manifest
    passed_over: np.ndarray
    updates: dict[int | None, MetadataUpdate]  # by the image, None: of the store

    def said_of(self, image: int | None) -> dict[str, Any]:
        """Returns what users had said in the block of a profile when the acquisition ended."""
        declared = self.manifest.acquisition.attributes_of(image)
        said = self.updates.get(image, MetadataUpdate()).over(declared).get(BLOCK)
        return said if isinstance(said, dict) else {}


def find_finished(path: Path) -> RecordedStore | None:
    """Returns a finished store that recorded its acquisition; None for any other folder or file. Raises
    ``ShardFormatError`` for a record that is damaged, ``FormatVersionError``, ``StorageError``."""
    with storage_errors("look at", path):
        is_finished = beneath.is_dir(path) and beneath.exists(path / DOCUMENT)
    table = frame_table_of(path) if is_finished else None
    if table is None or table.acquisition is None:
        return None
    where, record = path / TABLE_PATH / DOCUMENT, dict(table.acquisition)
    try:
        manifest = parse_manifest(where, _checked(record["manifest"]))
        images = {
            updates_path(path, image).name: image
            for image in (None, *range(len(manifest.acquisition.arrays)))
        }
        updates = {
            images[name]: parsed_updates(where, _checked(facts)) for name, facts in record["updates"].items()
        }
        passed_over = np.array(record["passed_over"], np.int64)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, ShardFormatError):
            raise
        raise ShardFormatError(
            f"{where}: the record of the acquisition is damaged", got=repr(error)[:80], hint=_NEW_STORE
        ) from None
    return RecordedStore(path, table, manifest, passed_over, updates)


def _checked(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns facts without their checksum. Raises ``ValueError`` if that does not hold."""
    found = {name: value for name, value in facts.items() if name != "crc32c"}
    if checksum(found) != facts["crc32c"]:
        raise ValueError("its crc32c does not hold")
    return found


def go_on(path: Path, limits_of: Callable[[AcquisitionSpec], Limits], ballast_bytes: int) -> StoreLock:
    """Makes a finished store unfinished again; returns the lock of its new workspace.

    Raises ``ResumeError`` for a store that cannot go on, or not yet, ``LockedError`` while a job or another
    writer is at work on it, ``ShardFormatError`` for damaged metadata, ``StorageError``, and what
    ``limits_of`` raises. Then it is as it was."""
    found = find_finished(path)
    if found is None:
        raise _without_record(path)
    spec = found.manifest.acquisition
    limits = limits_of(spec)
    covered = _check_unchanged(path, spec)
    # A part that was cut short as it began has marked the spill folder as its own.
    remove_left_beside(path)
    with making_folder(path) as making:
        workspace, folders = making / path.name / WORKSPACE, DurableFolders()
        folders.make(workspace)
        lock = StoreLock.take(workspace / "lock")
        lock.renamed(path / WORKSPACE / "lock")
        try:
            manifest = _next_part(found, new_identity(making).hex(), path)
            files = workspace / _files_of(manifest)
            folders.make(files)
            reached = _Replayed(found, spec, manifest).write_log(files / LOG_NAME)
            _check_covered(path, spec, covered, reached)
            make_files(workspace, manifest, limits, ballast_bytes, files)
            keep_receipts(workspace, found.table.receipts)
            check_live(spec, making / path.name, manifest.live)
            begin_intact(workspace)
            write_manifest(workspace, manifest)
            _begin_spilling(path, manifest, folders)
            with _no_move(path), file_held(path / DOCUMENT, "store", create=False):
                # the table may have taken minutes, in which a job came and ended
                _check_unchanged(path, spec)
                # now, too: nobody changes the metadata of the finished store any more
                for image, updates in _updates_by_now(found, spec):
                    write_updates(workspace, image, updates)
                _put_into(workspace, path)
        except BaseException:
            lock.release()
            raise
    return lock


def _next_part(found: RecordedStore, identity: str, path: Path) -> Manifest:
    """Returns the manifest of the next part: what was decided when the store was made stays."""
    before = found.manifest
    roots = [path, *([] if before.spill_root is None else [beneath.user_path(before.spill_root)])]
    opened_as = before.opened_as and replace(before.opened_as, frames_expected=None)
    return replace(
        before,
        identity=identity,
        writer_epoch=before.writer_epoch + 1,
        # the store may be on another disk by now
        io=resolve_io("auto" if before.io == "direct" else before.io, roots),  # type: ignore[arg-type]
        seen_stop=0,  # all that had come is in the table
        # A writer that was taken over may still be about to rename or delete a file by a name that it had.
        files_epoch=before.writer_epoch + 1 if before.files_epoch else 0,
        opened_as=opened_as,
    )


def _files_of(manifest: Manifest) -> str:
    return f"{TAKEN_PREFIX}{manifest.files_epoch}" if manifest.files_epoch else ""


def _begin_spilling(path: Path, manifest: Manifest, folders: DurableFolders) -> None:
    if manifest.spill_root is not None:
        folder = beneath.user_path(manifest.spill_root) / path.name / WORKSPACE
        # Shards that lie there are those of this store if it has links to them, and else of another store of
        # this name.
        is_shared = any(_leads_below(file, folder.parent) for file in beneath.all_below(path))
        make_spill_folder(folder, manifest.identity, folders, is_shared=is_shared)
        folders.make(folder / _files_of(manifest))


def _leads_below(file: Path, folder: Path) -> bool:
    with suppress(LinkError):
        return beneath.is_link(file) and spilled_file(file).is_relative_to(folder)
    return False


def _updates_by_now(
    found: RecordedStore, spec: AcquisitionSpec
) -> Iterator[tuple[int | None, MetadataUpdate]]:
    """Yields what the next part has to know of the metadata of groups: what was updated while the part before
    ran, and how zarr.json differs by now from what was declared and updated. Without that the next end would
    put back what users have changed or removed since."""
    for image in [None] if spec.is_single else [None, *range(len(spec.arrays))]:
        declared, recorded = spec.attributes_of(image), found.updates.get(image, MetadataUpdate())
        folder = found.path if image is None else found.path / spec.folders[image]
        has_block = found.manifest.profile != "none" and (spec.is_single or image is not None)
        updates = recorded
        if (declared or recorded != MetadataUpdate() or has_block) and beneath.exists(folder / DOCUMENT):
            group = read_metadata(folder, foreign=True)
            there = group.get("attributes") or {}
            names = {name for name in declared.keys() & there.keys() if there[name] != declared[name]}
            is_image = bool(ome_in(group))
            # of an image without a frame: its group has no other use
            names |= recorded.attributes.keys() & there.keys() if is_image else there.keys()
            now = {name: there[name] for name in names if name not in OWN_ATTRIBUTES}
            if has_block and isinstance(there.get(BLOCK), dict) and is_image:
                above = {} if image is None else found.said_of(None)
                now[BLOCK] = told_since(there[BLOCK], found.said_of(image), above)
            updates = MetadataUpdate(
                {name: value for name, value in now.items() if name != BLOCK or value},
                {} if is_image else recorded.ome,  # those of an image are in its zarr.json, and stay there
                recorded.position,
                frozenset(declared.keys() - there.keys()),
            )
        if updates != MetadataUpdate():
            yield image, updates


def _put_into(workspace: Path, path: Path) -> None:
    """The one step: until it the store is finished, and from then on its acquisition goes on."""
    target = path / WORKSPACE
    beneath.check_no_link(target)
    if beneath.exists(target):
        raise LockedError(
            f"{path} has a workspace: another writer goes on with it, or its end was cut short",
            hint="Wait until that has ended; `shardwright recover` removes what an end has left",
        )
    with storage_errors("rename to", target):
        reach("store.before_rename")
        try:
            rename_without_replacing(workspace, target)
        except OutputExistsError:
            raise LockedError(f"another writer has just begun to go on with {path}") from None
    sync_directory(path)


@contextmanager
def _no_move(path: Path) -> Iterator[None]:
    """A context in which no move of the store can begin: it would delete what is written from now on. Raises
    ``LockedError``."""
    folder = path / WORK_FOLDER
    lock = made_in(folder, lambda: StoreLock.take(folder / MOVE_LOCK_NAME))
    try:
        yield
    finally:
        release_moves(path, lock)


# ---------------------------------------------------------------------- what may go on


def _without_record(path: Path) -> ResumeError:
    """The error for a folder or file that is no finished store of this release."""
    if is_moved_away(path):
        return ResumeError(
            f"{path} was moved away",
            hint="Go on with it where it is now, if that is a folder of this computer",
        )
    if beneath.is_file(path):
        return ResumeError(
            f"{path} is one file, which nobody changes",
            hint="Unzip it to a folder first, and go on with that one",
        )
    if beneath.exists(path / DOCUMENT):
        return ResumeError(
            f"{path} is finished: complete and sealed, and does not tell how it was acquired, so that it "
            "cannot go on",
            expected="a store that this release, or a later one, has finished",
            hint=_NEW_STORE,
        )
    return ResumeError(
        f"there is nothing to resume at {path}",
        expected="a store that its writer left unfinished, or a finished one",
        got="another folder or file" if beneath.exists(path) else "no such folder",
    )


def _check_unchanged(path: Path, spec: AcquisitionSpec) -> dict[int, tuple[int, ...]]:
    """Checks that a store is as its acquisition left it, and no job at work on it; returns how far the array
    of each image reaches along its growing axes. Raises ``LockedError``, ``ResumeError``,
    ``ShardFormatError``, ``StorageError``."""
    _check_jobs(path, spec)
    _check_not_edited(path, spec)
    return _check_documents(path, spec)


def _check_jobs(path: Path, spec: AcquisitionSpec) -> None:
    """Raises ``LockedError`` while a job is at work, ``ResumeError`` for one that was cut short and must end
    first."""
    with storage_errors("look into", path / WORK_FOLDER):
        work = beneath.names_in(path / WORK_FOLDER) if beneath.is_dir(path / WORK_FOLDER) else []
    if any(name.startswith(MOVE_PREFIX) and name != MOVE_LOCK_NAME for name in work):
        raise ResumeError(
            f"a copy or a move of {path} was interrupted",
            hint=f"Run the same `shardwright compact {path} --to ...` again; to give it up, delete "
            f"{path / WORK_FOLDER}",
        )
    for folder in (path, *(path / each for each in spec.all_array_paths())):
        locks = [
            lock
            for name in (WORK_FOLDER, EDIT_FOLDER)
            if beneath.is_dir(folder / name)
            for lock in beneath.matching(folder / name, "*lock")
        ]
        if any(is_locked(lock) for lock in locks if lock != path / WORK_FOLDER / MOVE_LOCK_NAME):
            raise LockedError(f"a job is at work on {folder}", hint="Wait until it has ended")
        if beneath.exists(folder / WORK_FOLDER / _LEVELS):
            raise ResumeError(
                f"levels of {folder} are being made, or that was interrupted",
                hint=f"Delete {folder / WORK_FOLDER} to give them up: they would lack the frames to come",
            )
        if journaled_edits(folder):
            raise ResumeError(
                f"an update of {folder} was interrupted",
                hint="`shardwright recover` completes it; but a store that was updated cannot go on. "
                + _NEW_STORE,
            )


def _check_not_edited(path: Path, spec: AcquisitionSpec) -> None:
    """Raises ``ResumeError`` for a store with updated shards: chunks that no frame has brought would be lost
    when their shard is opened again, or be in the way of the frames to come."""
    for folder in spec.all_array_paths():
        if ShardSums(path / folder).was_edited():
            raise ResumeError(
                f"{path / folder} was updated since it was acquired, and frames cannot go beside that",
                expected="shards as they were acquired, packed or not",
                hint=_NEW_STORE,
            )


def _check_documents(path: Path, spec: AcquisitionSpec) -> dict[int, tuple[int, ...]]:
    """Checks that the metadata are as this acquisition writes them; returns how far the array of each image
    reaches along its growing axes. Raises ``ResumeError``, ``ShardFormatError``."""
    covered = {}
    for image, array in enumerate(spec.arrays):
        folder, levels = path / spec.folders[image], spec.level_paths(image)
        if not spec.is_single and not beneath.exists(path / levels[0] / DOCUMENT):
            continue
        covered[image] = covered_extents(path / levels[0], array)
        expected = array_documents(array, covered[image])
        for level, document in zip(levels, expected, strict=True):
            there = read_metadata(path / level, foreign=True)
            if different := _different(there, as_read(document)):
                raise _changed(path / level, different)
        _check_group(folder, array)
    return covered


def _check_group(folder: Path, array: ArraySpec) -> None:
    """Raises ``ResumeError`` for an image with other levels, or in another version of OME-Zarr."""
    group = read_metadata(folder, foreign=True)
    ours: dict[str, Any] = group_document(array, "")["attributes"]
    paths = [dataset["path"] for dataset in multiscale_of(group.get("attributes"))["datasets"]]
    expected = [dataset["path"] for dataset in multiscale_of(ours)["datasets"]]
    if paths != expected:
        raise ResumeError(
            f"{folder} has other levels than its acquisition writes, which would lack the frames to come",
            expected=expected,
            got=paths,
            hint=f"{_NEW_STORE}, with levels=N if they are to be written as frames come",
        )
    version = (group.get("attributes") or {}).get("ome", {}).get("version")
    if version != ours["ome"].get("version"):
        raise ResumeError(
            f"{folder} was changed to another version of OME-Zarr",
            expected=ours["ome"].get("version"),
            got=version,
            hint=_NEW_STORE,
        )


def _different(there: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    # zarr-python writes what is empty, too
    names = there.keys() | expected.keys()
    return sorted(name for name in names if (there.get(name) or None) != (expected.get(name) or None))


def _changed(array: Path, fields: list[str]) -> ResumeError:
    return ResumeError(
        f"{array} is not as it was acquired: it was rechunked, cropped, packed as HDF5, or changed otherwise",
        expected=f"{DOCUMENT} as it was",
        got=f"another {', '.join(fields)}",
        hint=_NEW_STORE,
    )


def _check_covered(
    path: Path, spec: AcquisitionSpec, covered: dict[int, tuple[int, ...]], reached: Extents
) -> None:
    """Raises ``ResumeError`` if stored frames lie outside of their array: it was cropped, or has gone."""
    for image in np.flatnonzero(reached.newest >= 0).tolist():
        array = spec.arrays[image]
        along = reached.along[image][: len(array.growing_axes)]
        if image not in covered or (along > np.array(covered[image], np.int64)).any():
            raise _changed(path / spec.paths[image], ["shape"])


def covered_extents(path: Path, spec: ArraySpec) -> tuple[int, ...]:
    """Returns how much of the growing axes zarr.json of an image's array covers. Raises
    ``ShardFormatError``, ``StorageError``."""
    document = read_metadata(path)
    stored = [d.name for d in spec.stored_dimensions]
    axes = [stored.index(spec.dimensions[axis].name) for axis in spec.growing_axes]
    try:
        return tuple(int(document["shape"][axis]) for axis in axes)
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise ShardFormatError(
            f"{path / DOCUMENT} is damaged: it has no shape", got=repr(error)[:80]
        ) from None


# ---------------------------------------------------------------------- from the frame table to the frame log


class _Replayed:
    """The frame log that a finished acquisition had, made of its frame table: the rows are in its order."""

    def __init__(self, found: RecordedStore, spec: AcquisitionSpec, manifest: Manifest) -> None:
        self._found, self._spec, self._manifest = found, spec, manifest
        self._dtype = record_of(spec)
        self._reached, self._sequences = Extents(spec.grids), SequenceSet()
        self._stored = np.zeros(len(spec.arrays), np.int64)
        self._rows: set[int] = set()  # shard rows that have their block

    def write_log(self, path: Path) -> Extents:
        """Writes the log, durably; returns how far its stored frames reach. It has the records of one shard
        row in memory. Raises ``ResumeError`` where no frame came, or none can follow, ``ShardFormatError``
        for a table that was changed, ``StorageError``."""
        identity = self._manifest.identity_bytes
        log = FrameLog.create(path, self._dtype, identity)
        try:
            row, pieces = -1, list[np.ndarray]()
            for chunk in range(self._found.table.chunks):
                for number, records in self._runs(self._records(chunk)):
                    if number != row or number < 0:
                        self._append(log, row, pieces)
                        row, pieces = number, []
                    pieces.append(records)
            self._append(log, row, pieces)
            log.sync()
        finally:
            log.close()
        self._check()
        # whatever is in it can be: recovery would refuse it, and the store be neither finished nor resumed
        FrameLog.open(path, self._dtype, identity, grids=self._spec.grids, read_only=True).close()
        return self._reached

    def _append(self, log: FrameLog, row: int, pieces: list[np.ndarray]) -> None:
        if not pieces:
            return
        if row in self._rows:
            raise ShardFormatError(
                f"the rows of {self._found.table.path} are in another order than they were written in",
                hint=_NEW_STORE,
            )
        if row >= 0:
            self._rows.add(row)
        log.append(BlockKind.EVENTS if row < 0 else BlockKind.SHARD_ROW, row, np.concatenate(pieces))

    def _check(self) -> None:
        path, spec = self._found.path, self._spec
        if not self._stored.any():
            raise ResumeError(
                f"{path} has no stored frame",
                hint="`create(..., overwrite=True)` puts a new store in its place",
            )
        totals = [grid.total_frames for grid in spec.grids.grids]
        if all(total == stored for total, stored in zip(totals, self._stored.tolist(), strict=True)):
            raise ResumeError(
                f"{path} is finished and whole: every place that was declared has its frame",
                expected="an axis without a count, or places without a frame",
                hint=_NEW_STORE,
            )

    def _records(self, chunk: int) -> np.ndarray:
        """Returns the frame records of a chunk of the table. Raises ``ShardFormatError``,
        ``StorageError``."""
        table, spec = self._found.table, self._spec
        statuses = table.read_statuses(chunk)
        records = np.zeros(statuses.size, self._dtype)
        for name in (*RECORD_COLUMNS, *METADATA_FIELDS, "client_epoch", "reason"):
            records[name] = table.read(name, chunk)
        for i, name in enumerate(spec.frame_fields):
            records["further"][:, i] = table.read(name, chunk)
        if spec.frame_json_bytes:
            records[JSON_FIELD] = [text.encode() for text in table.read(JSON_FIELD, chunk)]
        records["status"], records["position"] = statuses, self._positions(chunk)
        self._sequences.add(records["sequence"].astype(np.int64))
        return records

    def _positions(self, chunk: int) -> np.ndarray:
        """Returns int64[rows]: the places of frames, as the index columns have them."""
        table, spec = self._found.table, self._spec
        rows = table.read_statuses(chunk).size
        images = np.zeros(rows, np.int64) if spec.is_single else table.read("image", chunk).astype(np.int64)
        positions = np.full(rows, NO_POSITION, np.int64)
        for image, grid in enumerate(spec.grids.grids):
            mine = np.flatnonzero(images == image)
            if not mine.size:
                continue
            place, is_known = np.zeros(mine.size, np.int64), np.ones(mine.size, np.bool_)
            for d, count in zip(spec.arrays[image].dimensions, grid.counts, strict=False):
                index = table.read(f"index_{d.name}", chunk).astype(np.int64)[mine]
                place, is_known = place * count + index, is_known & (index >= 0)
            positions[mine[is_known]] = grid.first + place[is_known]
        return positions

    def _runs(self, records: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (shard row, records) of stored frames that follow each other, (-1, records) of others."""
        grids, rows = self._spec.grids, np.full(records.size, -1, np.int64)
        is_stored = records["status"] == FrameStatus.STORED
        positions = records["position"][is_stored].astype(np.int64)
        if not grids.hold(positions).all():
            raise ShardFormatError(f"{self._found.table.path} has stored frames outside of their images")
        if positions.size:
            slabs = slabs_and_indices(positions, *grids.tables)[0]
            records["flags"][is_stored] = np.where(np.isin(slabs, self._found.passed_over), PASSED_OVER, 0)
            each, which = np.unique(slabs, return_inverse=True)
            row_of = np.array([grids.shard_row_of_slab(slab) for slab in each.tolist()], np.int64)
            rows[is_stored] = row_of[which]
            self._stored += np.bincount(image_of(positions), minlength=self._stored.size)
            self._reached.reach(positions)
        starts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 1)).tolist()
        for start, stop in zip(starts, [*starts[1:], rows.size], strict=False):
            yield int(rows[start]), records[start:stop]
