"""Decodes and checks every chunk of a store, and reports exactly what is wrong.

    metadata   the group's datasets lead to arrays; consolidated metadata are those that they copy; no work in
               progress and no interrupted update was left behind
    files      nothing but shards under c/
    index      size and crc32c; entries inside the file, clear of the index
    chunks     crc32c where there is one; decoded to exactly the chunk's size
    record     the shards that were sealed are there, each with the chunks that it had (shard.shard_sums)
    parity     it is of the shards that are there, and its files are as they were made (shard.parity_set)
    forms      a shard's description of itself is of this shard; one that is to be an HDF5 file too still is;
               the shards that acquisition.h5 names are there
    frames     every chunk of the frame table decodes, its values are possible, no place is stored twice;
               frames.parquet, where it is there, was made of this table

A shard of which every chunk decodes, and that is not the recorded one, was changed by another program; one
that does not decode is damaged. Without checksums of chunks a flipped bit may look like such a change.

An absent shard is counted: it reads as fill value, which is legal unless the shard is on record. Chunks and
shards outside the shape are legal too, with a warning: another program has cropped the array. Memory is
bounded by the threads: each holds one encoded and one decoded chunk.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.array.consolidated_metadata import FIELD as CONSOLIDATED
from shardwright.array.consolidated_metadata import consolidated_metadata, differences
from shardwright.array.frame_table_format import TABLE_PATH
from shardwright.array.ome_version import axes_of, ome_in
from shardwright.disk import beneath
from shardwright.disk.files import NO_FILE, FileIdentity
from shardwright.disk.read_file import ChangedError
from shardwright.disk.remote_path import RemotePath
from shardwright.disk.spill_links import shard_status
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT, UPGRADE_RECORD, WORK_FOLDER, WORKSPACE, folders_to
from shardwright.shard.edit_files import INTERRUPTED, JOURNAL_SUFFIX, edit_file, interrupted_edits
from shardwright.shard.parity_set import ParitySet, parity_folders
from shardwright.shard.shard_description import HDF5_NAME, find_description
from shardwright.shard.shard_sums import SUMS_NAME, ShardSums, Sum, data_crc, shard_sum

from .frame_parquet import check_frame_parquet
from .frame_table import (
    broken_receipts,
    check_frame_table,
    check_places,
    cropped_frames,
    open_frame_table,
    shards_of_stored_frames,
)
from .hdf5_sources import hdf5_sources
from .missing_frames import MissingFrames
from .store import (
    Store,
    StoredArray,
    is_between_versions,
    open_store,
    read_metadata,
    read_nodes,
    workspace_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardwright.shard.shard_description import ShardDescription

    from .frame_table import FrameTable

MAX_PROBLEMS_KEPT = 10_000
_MOST_TEXT = 500  # of a problem with names that others chose
# decoded bytes of one task: short enough for an even progress bar, long enough to cost no overhead
_BATCH_DECODED_BYTES = 64 * 1024 * 1024

Listed = Mapping["Path", Mapping[str, tuple[int, ...] | None]]  # by array: shard_files
Record = dict[str, set[Sum]]  # of one array: by key, see shard.shard_sums
Accept = Callable[["ChangedShard"], bool]  # returns whether the shard is on record now
Progress = Callable[[int, int], None]  # bytes of shard files done, bytes in all


@dataclass(frozen=True)
class StoreProblem:
    """One fault. ``where`` is a path inside the store, ``chunk`` the coordinates in the array's grid of inner
    chunks."""

    where: str
    what: str
    chunk: tuple[int, ...] | None = None
    is_change: bool = False  # another program's, not damage: ``verify --accept`` records it

    def __str__(self) -> str:
        chunk = "" if self.chunk is None else f" chunk {'/'.join(map(str, self.chunk))}"
        return f"{self.where}{chunk}: {self.what}"


@dataclass(frozen=True)
class ChangedShard:
    """A shard that is sound, or gone, and is not what the record has. ``sum``: of it as it is, None if it is
    gone; ``identity``: of its file. ``is_doubtful``: it may as well be a loss: it is gone, or is what another
    key had."""

    array: StoredArray
    key: str
    where: str
    sum: Sum
    identity: FileIdentity
    is_doubtful: bool


@dataclass
class VerifyReport:
    """The result of a verification. ``shards_recorded``: shards that could be compared with the record.
    ``accepted``: those that another program had changed, and that are on record from now on.
    ``*_absent``: those inside the shape that hold nothing and read as fill value. ``warnings``: legal, but
    perhaps not intended."""

    path: str
    arrays: int = 0
    checksums: bool = True  # True if every array's chunks carry a crc32c
    shards: int = 0
    shards_recorded: int = 0
    accepted: list[str] = field(default_factory=list)
    shards_absent: int = 0
    # absent shards without a line in the record: all fill value, never written, or deleted
    shards_absent_unrecorded: int = 0
    chunks: int = 0
    chunks_absent: int = 0
    encoded_bytes: int = 0
    decoded_bytes: int = 0
    frame_rows: int = 0  # of the frame table
    parity_rows: int = 0  # shard rows with parity
    # one for each time that the acquisition has ended: ``client_epoch``, ``counts``
    receipts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[StoreProblem] = field(default_factory=list)
    problems_not_kept: int = 0
    warnings: list[StoreProblem] = field(default_factory=list)
    warnings_not_kept: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems

    def add_problem(
        self, where: str, what: str, chunk: tuple[int, ...] | None = None, *, is_change: bool = False
    ) -> None:
        """``where``, ``what``, ``chunk``, ``is_change``: as ``StoreProblem`` has them."""
        if len(self.problems) < MAX_PROBLEMS_KEPT:
            self.problems.append(StoreProblem(where, what, chunk, is_change))
        else:
            self.problems_not_kept += 1

    def add_warning(self, where: str, what: str) -> None:
        if len(self.warnings) < MAX_PROBLEMS_KEPT:
            self.warnings.append(StoreProblem(where, what))
        else:
            self.warnings_not_kept += 1

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True)
class _ChunkBatch:
    """Some chunks of one shard, decoded by one thread: (chunk number, offset, bytes) each. ``done_bytes``:
    its share of the progress."""

    array: StoredArray
    where: str
    shard: tuple[int, ...]
    chunks: list[tuple[int, int, int]]
    done_bytes: int


@dataclass(frozen=True)
class _Outcome:
    """The outcome of verifying one batch of chunks."""

    batch: _ChunkBatch
    problems: list[StoreProblem]
    encoded_bytes: int
    decoded_bytes: int
    data_crcs: npt.NDArray[np.uint32]


class _DecodedShard:
    """The checksums of one shard's chunks, collected batch by batch, to be compared with the record."""

    def __init__(self, chunks: int, batches: int, identity: FileIdentity) -> None:
        self.left = batches
        self.identity = identity  # when its index was read
        self.sound = True
        self.count = 0
        self.chunks = np.zeros((3, chunks), np.int64)  # number, bytes, crc32c of each
        self.description: ShardDescription | None = None

    def add(self, outcome: _Outcome) -> None:
        self.left -= 1
        self.sound = self.sound and not outcome.problems
        batch = outcome.batch.chunks
        rows = self.chunks[:, self.count : self.count + len(batch)]
        rows[0], rows[1], rows[2] = (
            [number for number, _, _ in batch],
            [nbytes for _, _, nbytes in batch],
            outcome.data_crcs,
        )
        self.count += len(batch)

    def sum(self) -> int:
        return shard_sum(self.chunks[0], self.chunks[1], self.chunks[2])


class _Buffers(threading.local):
    """One encoded and one decoded chunk for each thread, reused, since fresh memory is expensive. Not those
    of ``box_reader``, which loads the kernels: a check of a store needs none of them."""

    def __init__(self) -> None:
        self._held = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    def take(
        self, encoded_bytes: int, decoded_bytes: int
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        for i, size in enumerate((encoded_bytes, decoded_bytes)):
            if self._held[i].nbytes < size:
                self._held[i] = np.empty(size, np.uint8)
        return self._held[0][:encoded_bytes], self._held[1][:decoded_bytes]


def accept_nothing(_shard: ChangedShard) -> bool:
    return False


def verify_store(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    accept: Accept = accept_nothing,
) -> VerifyReport:
    """Checks the store, array or single shard at ``path``, or at an address. ``accept`` is asked of each
    shard that another program has changed. Raises only when there is no store to check, and what ``accept``
    raises; every other fault is in the report."""
    store = open_store(path)
    report = VerifyReport(
        str(store.root if isinstance(store.root, RemotePath) else path),
        arrays=len(store.arrays),
        checksums=all(array.codecs.checksum for array in store.arrays),
    )
    _check_metadata(store, report)
    _check_edits(store, report)
    # At an address one list answers for all shards; here they are not looked for before they are opened.
    listed: Listed = {
        array.path: dict(array.shard_files())
        for array in store.arrays
        if isinstance(array.path, RemotePath) and store.shard is None
    }
    records = {array.path: _record(store, array, listed, report, accept) for array in store.arrays}
    _check_frame_table(store, records, listed, report)
    for array in store.arrays if store.shard is None and not isinstance(store.root, RemotePath) else ():
        _check_parity(store, array, records[array.path], report)
    if store.shard is None and not isinstance(store.root, RemotePath):
        _check_virtual_datasets(store, records, report)
    shards = [
        (array, coordinates)
        for array in store.arrays
        for coordinates in _shards_to_check(store, array, records[array.path], listed, report)
    ]
    total_bytes = sum(_size(array, coordinates) for array, coordinates in shards)
    run = _Run(store.root, report, records, total_bytes, progress, accept)
    run.check(shards, threads or len(os.sched_getaffinity(0)))
    for found in (report.problems, report.warnings):
        found.sort(key=lambda problem: problem.where)  # stable: within one shard in the order of its chunks
    return report


def _check_metadata(store: Store, report: VerifyReport) -> None:
    for name, reason in store.broken_references.items():
        report.add_problem(DOCUMENT, f"dataset {name!r} leads to no readable array: {reason}")
    if store.work_in_progress:
        report.add_problem(
            WORKSPACE,
            "work in progress: an acquisition is still running, or ended without sealing its last shards",
        )
    if store.group is not None:
        _check_groups(store, report)
    for image in store.images:
        where = (image.root.relative_to(store.root) / DOCUMENT).as_posix()
        for what in _axes_that_differ(image):
            report.add_problem(where, what)


def _check_edits(store: Store, report: VerifyReport) -> None:
    for array in store.arrays:
        for name in interrupted_edits(array.path):
            if store.shard in (None, array.coordinates_of(name.replace(".", array.keys.separator))):
                where = edit_file(array.path, name, JOURNAL_SUFFIX).relative_to(store.root).as_posix()
                report.add_problem(where, INTERRUPTED)


def _axes_that_differ(image: Store) -> Iterator[str]:
    for scale in image.group["ome"]["multiscales"] if image.group else ():
        axes: tuple[str | None, ...] = ()
        with suppress(LookupError, TypeError):
            axes = tuple(axis.get("name") if isinstance(axis, dict) else None for axis in axes_of(scale))
        paths = {image.root / str(dataset["path"]) for dataset in scale["datasets"]}
        for array in image.arrays:
            has_names = array.spelling is None or array.dimension_names is not None
            if array.path in paths and has_names and array.dimension_names != axes:
                names = array.dimension_names
                yield f"OME axes {axes} differ from the dimension_names {names} of {array.path.name!r}"


def _check_groups(store: Store, report: VerifyReport) -> None:
    """Compares the versions of all groups, and every group's copy of the metadata below it with these
    metadata."""
    try:
        if isinstance(store.root, RemotePath) and not store.root.has_lists:
            what = f"{store.root} cannot be listed: files that are neither shards nor named are not seen"
            report.add_warning(DOCUMENT, f"{what}, nor is {CONSOLIDATED} compared")
            return
        nodes = {"": read_metadata(store.root), **read_nodes(store.root)}
        _check_versions(store, nodes, report)
        for path, group in nodes.items():
            copy = consolidated_metadata(group)
            if copy is None:
                continue
            base = f"{path}/" if path else ""
            below = {
                other.removeprefix(base): node
                for other, node in nodes.items()
                if other.startswith(base) and other != path
            }
            for name, what in differences(copy, below):
                report.add_problem(
                    f"{base}{DOCUMENT}",
                    f"{CONSOLIDATED}: {name!r} {what}; zarr.consolidate_metadata writes them again",
                )
    except (ShardFormatError, StorageError) as error:
        report.add_problem(DOCUMENT, str(error))


def _check_versions(store: Store, nodes: Mapping[str, dict[str, Any]], report: VerifyReport) -> None:
    """Reports groups of different versions of OME-Zarr, and an upgrade that was interrupted; in the folder of
    an image, where labels of other tools are, only as a warning."""
    command = "`shardwright upgrade-ome` ends an upgrade that was interrupted"
    images = {image.root.relative_to(store.root).as_posix() for image in store.images}
    own: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for path, node in nodes.items():
        version = ome_in(node).get("version")
        if version is not None:
            is_below = path and ("." in images or not images.isdisjoint(folders_to(path)[:-1]))
            (below if is_below else own).setdefault(str(version), []).append(path)
    if len(own) > 1:
        what = f"groups of different versions of OME-Zarr: {_by_version(own)}; {command}"
        report.add_problem(DOCUMENT, what[:_MOST_TEXT])
    elif others := {version: paths for version, paths in below.items() if version not in own}:
        what = f"OME-Zarr has one version in a store. In folders of images: {_by_version(others)}"
        report.add_warning(DOCUMENT, what[:_MOST_TEXT])
    record = f"{WORK_FOLDER}/{UPGRADE_RECORD}"
    if not isinstance(store.root, RemotePath) and is_between_versions(store.root):
        report.add_problem(record, f"an upgrade to another version of OME-Zarr; {command}")


def _by_version(paths_of: Mapping[str, list[str]]) -> str:
    return ", ".join(
        f"{len(paths)} of {version}, such as {min(paths) or 'the store'}"
        for version, paths in sorted(paths_of.items())
    )


def _check_frame_table(
    store: Store, records: Mapping[Path, Record], listed: Listed, report: VerifyReport
) -> None:
    try:
        table = open_frame_table(store)
        if table is None or not store.arrays:
            return
        report.frame_rows = table.rows
        report.receipts = [part._asdict() for part in table.receipts]
        if _has_faults(check_frame_table(table), report) or _has_faults(broken_receipts(table), report):
            return
        for where, what, is_fault in check_frame_parquet(store.root, table):
            (report.add_problem if is_fault else report.add_warning)(where, what)
        for image in store.images:
            if not image.arrays:
                continue
            array = image.arrays[0]
            part = table.of(store, array)
            if not _has_faults(check_places(part, array), report) and table.tells_statuses:
                _check_frames_of_image(array, part, records[array.path], listed, report)
    except (ShardFormatError, StorageError) as error:
        report.add_problem(TABLE_PATH, str(error))


def _has_faults(faults: Iterable[tuple[str, str]], report: VerifyReport) -> bool:
    found = False
    for where, what in faults:  # one by one: what the report does not keep takes no memory
        report.add_problem(where, what)
        found = True
    return found


def _check_frames_of_image(
    array: StoredArray, table: FrameTable, record: Record, listed: Listed, report: VerifyReport
) -> None:
    if count := cropped_frames(table, array):
        what = f"{count} stored frames have places outside the shape {array.shape}: it was cropped"
        report.add_warning(TABLE_PATH, what)
    _check_shards_of_frames(array, table, record, listed, report)
    places = MissingFrames(table, array)
    for _ in places.ranges():
        pass
    for place in places.stored_twice:
        what = f"two frames are stored at place {places.index_of(place)}"
        report.add_problem(TABLE_PATH, what)


def _check_shards_of_frames(
    array: StoredArray, table: FrameTable, record: Record, listed: Listed, report: VerifyReport
) -> None:
    """Warns of shards of stored frames that are absent and not on record: all fill value, or deleted."""
    keys = map(array.shard_key, shards_of_stored_frames(table, array))
    absent = [key for key in keys if key not in record and not _is_there(array, key, listed)]
    if absent:
        what = (
            f"{len(absent)} shards of stored frames are absent, such as {absent[0]}: all fill value, or "
            f"deleted"
        )
        report.add_warning(TABLE_PATH, what)


def _is_there(array: StoredArray, key: str, listed: Listed) -> bool:
    known = listed.get(array.path)
    return beneath.exists(array.path / key) if known is None else key in known


def _shards_to_check(
    store: Store, array: StoredArray, record: Record, listed: Listed, report: VerifyReport
) -> Iterator[tuple[int, ...]]:
    """Yields the coordinates of the shard files. Counts the absent ones and reports files that are no shard
    of this array."""
    if store.shard is not None:
        if not array.contains_shard(store.shard):
            report.add_warning(_where(store.root, array, array.shard_key(store.shard)), _outside_grid(array))
        yield store.shard
        return
    inside = 0
    found = listed.get(array.path)
    for key, coordinates in array.shard_files() if found is None else found.items():
        where = _where(store.root, array, key)
        if coordinates is None:
            report.add_problem(where, "not a chunk key of this array")
        elif not array.contains_shard(coordinates):
            report.add_warning(where, _outside_grid(array))
            yield coordinates
        else:
            inside += 1
            yield coordinates
    absent = array.shards_in_shape - inside
    report.shards_absent += absent
    report.shards_absent_unrecorded += absent - sum(_is_absent(array, key, listed) for key in record)


def _is_absent(array: StoredArray, key: str, listed: Listed) -> bool:
    """True if ``key`` is an absent shard inside the array's grid."""
    coordinates = array.coordinates_of(key)
    is_inside = coordinates is not None and array.contains_shard(coordinates)
    return is_inside and not _is_there(array, key, listed)


def _record(store: Store, array: StoredArray, listed: Listed, report: VerifyReport, accept: Accept) -> Record:
    """Returns the record of an array's shards. Reports damaged lines, and recorded shards that are absent."""
    damaged: list[int] = []
    try:
        record = ShardSums(array.path).read(damaged.append)
    except (ShardFormatError, StorageError) as error:
        report.add_problem(_where(store.root, array, SUMS_NAME), str(error))
        return {}
    if damaged:
        what = (
            f"{len(damaged)} lines are damaged, such as line {damaged[0]}: their shards are compared with "
            f"the other lines, if there are any"
        )
        report.add_warning(_where(store.root, array, SUMS_NAME), what)
    in_progress = workspace_of(array.path) is not None
    for key, known in record.items():
        if in_progress or None in known:
            continue  # not renamed to its final name yet, or rightly removed
        if store.shard in (None, array.coordinates_of(key)) and _is_absent(array, key, listed):
            where = _where(store.root, array, key)
            if accept(ChangedShard(array, key, where, None, NO_FILE, is_doubtful=True)):
                report.accepted.append(where)
                continue
            report.add_problem(where, f"missing, although it was sealed (record: {SUMS_NAME})")
    return record


def _check_virtual_datasets(store: Store, records: Mapping[Path, Record], report: VerifyReport) -> None:
    """Reports that the HDF5 file over all shards is missing or cannot be read, or names a shard that is
    missing. Of a shard on record the record has said so."""
    over: dict[Path, list[StoredArray]] = {}
    try:
        for array in store.arrays:
            if array.container is None:
                continue
            folders = (array.path, *array.path.parents)
            path = next((f / HDF5_NAME for f in folders if beneath.is_file(f / HDF5_NAME)), None)
            if path is None:
                what = f"{HDF5_NAME} is not there; `shardwright compact --container hdf5` makes it again"
                report.add_problem(_where(store.root, array, DOCUMENT), what)
            else:
                over.setdefault(path, []).append(array)
        for path, arrays in over.items():
            named = hdf5_sources(path, arrays)
            for array in arrays:
                for key in sorted(named[array.path] - records[array.path].keys()):
                    if not beneath.exists(array.path / key):
                        what = f"missing, although {HDF5_NAME} names it: both formats read fill value"
                        report.add_problem(_where(store.root, array, key), what)
    except StorageError as error:
        report.add_problem(HDF5_NAME, str(error))


def _check_parity(store: Store, array: StoredArray, record: Record, report: VerifyReport) -> None:
    """Counts the sets of an array's parity. Warns of those that would not restore its shards as they are."""
    for folder in parity_folders(array.path):
        report.parity_rows += 1
        try:
            is_whole = ParitySet.read(folder, record).is_whole()
            fault = "" if is_whole else "the parity is damaged, so that less can be restored: delete it first"
        except (ShardFormatError, StorageError) as error:
            fault = f"the parity is not used: {error}"
        if fault:
            where = folder.relative_to(store.root).as_posix()
            report.add_warning(where, f"{fault}; `compact --parity` makes it again")


def _outside_grid(array: StoredArray) -> str:
    return f"outside the grid of {array.grid_shape} shards that the shape {array.shape} covers"


def _where(root: Path, array: StoredArray, key: str) -> str:
    return (array.path.relative_to(root) / key).as_posix()


def _size(array: StoredArray, coordinates: tuple[int, ...]) -> int:
    path = array.path / array.shard_key(coordinates)
    try:
        return path.listed_bytes() if isinstance(path, RemotePath) else shard_status(path).st_size
    except OSError:
        return 0  # opening it will report why


class _Run:
    """One verification. The calling thread reads indexes and hands out batches, the pool decodes. Only the
    calling thread touches the report."""

    def __init__(
        self,
        root: Path,
        report: VerifyReport,
        records: Mapping[Path, Record],
        total_bytes: int,
        progress: Progress | None,
        accept: Accept,
    ) -> None:
        self._root = root
        self._accept = accept
        self._report = report
        self._records = records
        self._found: dict[str, _DecodedShard] = {}  # by path below the root: shards that are being decoded
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._progress = progress
        self._buffers = _Buffers()

    def check(self, shards: list[tuple[StoredArray, tuple[int, ...]]], threads: int) -> None:
        pending: deque[Future[_Outcome]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
            for array, coordinates in shards:
                for batch in self._open(array, coordinates):
                    pending.append(pool.submit(self._decode, batch))
                    if len(pending) > 4 * threads:
                        self._account(pending.popleft().result())
            while pending:
                self._account(pending.popleft().result())

    def _open(self, array: StoredArray, coordinates: tuple[int, ...]) -> list[_ChunkBatch]:
        """Checks a shard's index and splits its sound chunks into batches."""
        where = _where(self._root, array, array.shard_key(coordinates))
        is_local = not isinstance(array.path, RemotePath)
        self._report.shards += 1
        try:
            with array.open_shard(coordinates) as sealed:
                index, file_bytes = sealed.index, sealed.file.nbytes
                identity, description = NO_FILE, None
                if is_local:  # at an address a description is one more request for each shard
                    identity = sealed.file.identity
                    description = find_description(sealed, array.described, coordinates)
        except (ShardFormatError, StorageError) as error:
            self._report.add_problem(where, str(error))
            self._advance(_size(array, coordinates))
            return []
        if array.container is not None and is_local and (description is None or not description.user_block):
            what = f"it is no {array.container} file of this array, as its zarr.json says: it was replaced"
            self._report.add_problem(where, what)
        for chunk, fault in index.faults():
            self._report.add_problem(where, fault, array.chunk_coordinates(coordinates, chunk))
        present = int(index.present.sum())
        cropped = int((index.present & ~array.chunks_in_shape(coordinates)).sum())
        if cropped and array.contains_shard(coordinates):
            self._report.add_warning(
                where, f"{cropped} chunks lie wholly outside the array's shape {array.shape}: it was cropped"
            )
        self._report.chunks += present
        self._report.chunks_absent += max(0, array.chunks_inside(coordinates) - (present - cropped))
        live, entries = index.live, index.entries
        live = live[np.argsort(entries["offset"][live], kind="stable")]  # in file order, for the disk
        chunks = list(
            zip(
                live.tolist(), entries["offset"][live].tolist(), entries["nbytes"][live].tolist(), strict=True
            )
        )
        step = max(1, _BATCH_DECODED_BYTES // array.chunk_bytes)
        self._advance(max(0, file_bytes - sum(nbytes for _, _, nbytes in chunks)))
        parts = [chunks[i : i + step] for i in range(0, len(chunks), step)]
        self._found[where] = found = _DecodedShard(len(chunks), len(parts), identity)
        found.sound, found.description = index.is_sound, description
        if not parts:
            self._compare_with_record(array, coordinates, where)
        return [
            _ChunkBatch(array, where, coordinates, part, sum(nbytes for _, _, nbytes in part))
            for part in parts
        ]

    def _decode(self, batch: _ChunkBatch) -> _Outcome:
        """Runs in the pool."""
        array, problems = batch.array, []
        encoded_bytes = decoded_bytes = 0
        data_crcs = np.zeros(len(batch.chunks), np.uint32)
        try:
            with array.open_shard(batch.shard) as sealed:
                for i, (chunk, offset, nbytes) in enumerate(batch.chunks):
                    encoded, decoded = self._buffers.take(nbytes, array.chunk_bytes)
                    try:
                        sealed.file.read_into(offset, encoded.data)
                        _check_values(array.decode(encoded.data, decoded))
                        # decoding has checked an inner one
                        data_crcs[i] = data_crc(
                            encoded.data, has_inner=array.codecs.checksum, inner_is_believed=True
                        )
                        encoded_bytes += nbytes
                        decoded_bytes += array.chunk_bytes
                    except ShardFormatError as error:
                        problems.append(
                            StoreProblem(batch.where, str(error), array.chunk_coordinates(batch.shard, chunk))
                        )
        except (StorageError, ShardFormatError, ChangedError) as error:
            problems.append(StoreProblem(batch.where, str(error)))
        return _Outcome(batch, problems, encoded_bytes, decoded_bytes, data_crcs)

    def _account(self, outcome: _Outcome) -> None:
        for problem in outcome.problems:
            self._report.add_problem(problem.where, problem.what, problem.chunk)
        self._report.encoded_bytes += outcome.encoded_bytes
        self._report.decoded_bytes += outcome.decoded_bytes
        self._advance(outcome.batch.done_bytes)
        found = self._found[outcome.batch.where]
        found.add(outcome)
        if not found.left:
            self._compare_with_record(outcome.batch.array, outcome.batch.shard, outcome.batch.where)

    def _compare_with_record(self, array: StoredArray, shard: tuple[int, ...], where: str) -> None:
        """Compares a shard with the record, and with its description, once all its chunks are known. Skips
        one with another fault, so that it is not reported twice."""
        found, record, key = self._found.pop(where), self._records[array.path], array.shard_key(shard)
        known, described = record.get(key), found.description
        if found.sound and described and not described.is_of(array.described, shard, found.sum()):
            what = "its description is not of this array, this place and these chunks"
            self._report.add_problem(where, what)
        if known is None or not found.sound:
            return
        self._report.shards_recorded += 1
        value = found.sum()
        if value in known:
            return
        other = next((name for name, values in record.items() if value in values), None)
        changed = ChangedShard(array, key, where, value, found.identity, is_doubtful=other is not None)
        if self._accept(changed):
            self._report.accepted.append(where)
            return
        what = f"it is {other}"
        if other is None:
            sure = "another program has changed it: every chunk decodes"
            what = sure if array.codecs.checksum else "it was altered or replaced since; every chunk decodes"
        self._report.add_problem(
            where,
            f"not the shard that was sealed: {what} (record: {SUMS_NAME})",
            is_change=not changed.is_doubtful,
        )

    def _advance(self, nbytes: int) -> None:
        self._done_bytes += nbytes
        if self._progress:
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)


def _check_values(values: npt.NDArray[Any]) -> None:
    """Raises ``ShardFormatError`` for a bool that is neither 0 nor 1. Every other bit pattern is a value."""
    if values.dtype.kind == "b" and (most := int(values.view(np.uint8).max(initial=0))) > 1:
        raise ShardFormatError("bool chunk holds bytes other than 0 and 1", got=most)
