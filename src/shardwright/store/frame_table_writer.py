"""Writes the frame table from the frame log when an acquisition ends. It needs constant memory: one chunk of
rows at a time (and the sequences of lost frames).

The table is built in the workspace and renamed into place as a whole, so that readers see all of it or none,
and it can be built again after a crash.
"""

from __future__ import annotations

import gzip
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.array.frame_table_format import (
    PARQUET_PATH,
    TABLE_PATH,
    column_document,
    rows_per_chunk,
    table_columns,
    table_document,
)
from shardwright.array.grid import image_of
from shardwright.array.stage_position import StagePosition
from shardwright.codecs.strings import encode_strings, with_checksum
from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    NO_EXCHANGE,
    AtomicFile,
    exchange,
    publish_folder,
    replace_file,
    storage_errors,
    sync_directory,
    write_file,
)
from shardwright.disk.filesystems import synced_as_one
from shardwright.kernels.place import slabs_and_indices
from shardwright.model.errors import StorageError, StorageFullError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import DOCUMENT, WORKSPACE
from shardwright.read.frame_parquet import check_parquet, parquet_parts, table_crc
from shardwright.read.frame_table import ParquetRecord, frame_table_in
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.frame_record import PASSED_OVER, record_of

from .finish_record import MOST_PASSED_OVER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.shard.frame_log import FrameLog

log = logging.getLogger("shardwright")
_BUILT, _REPLACED = "frames.{}.building", "frames.replaced"  # folders of the workspace
_REPLACED_PARQUET = "frames.replaced.parquet"


@dataclass(frozen=True)
class LogSurvey:
    """The facts of a whole frame log that the end of an acquisition needs before it writes anything.
    ``positions``: of the stage, of the first stored frame of each image that was asked for, where that frame
    tells. ``given_up``: uint64[n], the sequences that were given up after an I/O error."""

    positions: dict[int, StagePosition]
    given_up: np.ndarray

    @classmethod
    def of(cls, log: FrameLog, unplaced: Collection[int] = ()) -> LogSurvey:
        """Reads the log once; of a log of which no image is ``unplaced`` only the events. Raises
        ``StorageError``, ``ShardFormatError`` when the log is damaged."""
        first: dict[int, np.void] = {}
        given_up = [np.zeros(0, np.uint64)]
        for kind, shard_row, records in log.blocks(of_images=unplaced):
            if kind is BlockKind.EVENTS:
                given_up.append(records["sequence"][records["status"] == FrameStatus.LOST])
            else:
                image = image_of(shard_row)
                stored = records[records["status"] == FrameStatus.STORED]
                first.update(_earlier(first.get(image), image, stored))
        found = {image: StagePosition.of_frame(record) for image, record in first.items()}
        positions = {image: position for image, position in found.items() if position is not None}
        return cls(positions, np.concatenate(given_up))


def _earlier(known: np.void | None, image: int, stored: np.ndarray) -> dict[int, np.void]:
    """Returns the record that was sent first, by its image, unless one was that is ``known`` already. A copy:
    a record of ``stored`` itself would keep all of them, for each image."""
    if not stored.size:
        return {}
    earliest = stored[np.argmin(stored["sequence"])]
    is_earlier = known is None or earliest["sequence"] < known["sequence"]
    return {image: earliest.copy()} if is_earlier else {}


def write_frame_table(
    store: Path,
    spec: AcquisitionSpec,
    log: FrameLog,
    *,
    survey: LogSurvey | None = None,
    writer: int = 0,
    may_publish: Callable[[], None] = lambda: None,
    has_parquet: bool = False,
    record: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Writes the group ``frames`` of ``store``, complete and durable, in place of an existing table. The log
    stays; its owner deletes it.

    ``survey``: of the log, if it was made already; ``writer`` distinguishes the build folder from another
    writer's; ``may_publish`` is called right before readers see the table. ``has_parquet``:
    ``frames.parquet`` is made of it if that can be, and that of an earlier table goes first. ``record``: of
    the acquisition (``finish_record``); slabs that were passed over are added.

    Raises ``StorageError`` (``StorageFullError``), ``ShardFormatError`` when the log is damaged, or what
    ``may_publish`` raises. It may be called again then.
    """
    workspace = store / WORKSPACE
    built, table = workspace / _BUILT.format(writer), store / TABLE_PATH
    _remove(built)
    _remove(workspace / _REPLACED)
    _remove(workspace / _REPLACED_PARQUET)
    with ExitStack() as stack:  # of a file that has not got its name
        new = None
        try:
            with storage_errors("create folder", built):
                reach("table.before_create")
                beneath.make_folder(built, exist_ok=True)  # the answer to a call that made it may be lost
            with synced_as_one(built, "table"):
                record = _build(built, spec, log, survey or LogSurvey.of(log), record)
            if has_parquet:
                new = _parquet_of(built, spec, store, writer, stack, record)
        except BaseException:
            # on a full disk it would hold the last free blocks
            beneath.remove_tree(built, ignore_errors=True)
            raise
        may_publish()
        if has_parquet and beneath.exists(store / PARQUET_PATH):
            # Durably: after a power cut it would be beside another table than that of which it was made.
            # Renamed, as the table is: whatever else has its name does not stop the end either.
            publish_folder(store / PARQUET_PATH, workspace / _REPLACED_PARQUET)
        _take_place(built, table, workspace / _REPLACED)
        if new is not None:
            may_publish()
            new.replace(store / PARQUET_PATH)
    _remove(built)
    _remove(workspace / _REPLACED)
    _remove(workspace / _REPLACED_PARQUET)


def _take_place(built: Path, table: Path, replaced: Path) -> None:
    """Gives a table its name. Where there is one, of a part of the acquisition that has ended, they change
    places in one step: nobody finds the store without a table. Only on a filesystem that cannot do that is
    there none for a moment, and after a kill until recovery. Raises ``StorageError``."""
    if beneath.exists(table):
        try:
            reach("folder.before_rename")
            exchange(built, table)
        except StorageError as error:
            if error.__cause__ is None or getattr(error.__cause__, "errno", 0) not in NO_EXCHANGE:
                raise
            publish_folder(table, replaced)
        else:
            sync_directory(table.parent)
            sync_directory(built.parent)
            return
    publish_folder(built, table)


def _parquet_of(
    built: Path,
    spec: AcquisitionSpec,
    store: Path,
    writer: int,
    stack: ExitStack,
    record: Mapping[str, Any],
) -> AtomicFile | None:
    """Makes the whole new ``frames.parquet`` of a table that is built, which records it then; ``stack``
    deletes it unless it gets its name. Returns None, and the table records none, where the package that makes
    it fails, or the disk has no room for it: the table has all of it. Raises ``StorageError``."""
    made = store / WORKSPACE / f"frames.{writer}.parquet"
    _remove(made)  # of an earlier try
    try:
        with ExitStack() as unless_whole:
            file = unless_whole.enter_context(AtomicFile(made, "replace", called=store / PARQUET_PATH))
            _write_parquet(file, built, spec, writer, record)
            stack.push(unless_whole.pop_all())
            return file
    except StorageFullError as error:
        reason: Exception = error
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001  (of a package that nothing else needs)
        reason = error
    log.warning("%s gets no %s: %s", store, PARQUET_PATH, str(reason) or type(reason).__name__)
    return None


def _write_parquet(
    file: AtomicFile, built: Path, spec: AcquisitionSpec, writer: int, record: Mapping[str, Any]
) -> None:
    """Fills the file, and then records it in the table: a failure leaves a table that records none."""
    check_parquet()
    table, nbytes, crc = frame_table_in(built), 0, 0
    assert table is not None, "it was built"
    for part in parquet_parts(table):
        file.write(nbytes, part)
        nbytes, crc = nbytes + len(part), crc32c.crc32c(part, crc)
    file.sync()
    parquet = ParquetRecord(nbytes, crc, table_crc(table))._asdict()
    document = table_document(table.rows, list(table.columns), spec, parquet, record)
    replace_file(built / DOCUMENT, document, writer=writer)


def _build(
    folder: Path, spec: AcquisitionSpec, log: FrameLog, survey: LogSurvey, record: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Writes all files of the table, none of them durable yet, and returns the record that is in it. Chunks
    are no longer than the table, so that that of a short acquisition costs little."""
    empty = np.zeros(0, record_of(spec))
    chunk_rows = max(1, min(rows_per_chunk(spec), log.rows))
    columns = {name: values.dtype for name, values in table_columns(empty, spec)}
    with storage_errors("create folder", folder):
        for name in columns:
            reach("table.before_create")
            beneath.make_folder(folder / name, exist_ok=True)
            beneath.make_folder(folder / name / "c", exist_ok=True)
    rows, passed_over = 0, np.zeros(0, np.int64)
    for chunk, records in enumerate(_chunks(log, survey, np.empty(chunk_rows, empty.dtype))):
        for name, values in table_columns(records, spec):
            padded = np.zeros(chunk_rows, values.dtype.newbyteorder("<"))
            padded[: records.size] = values
            write_file(folder / name / "c" / str(chunk), _encode_chunk(padded), synced=False)
        rows += records.size
        closed = records["position"][(records["flags"] & PASSED_OVER) != 0].astype(np.int64)
        if closed.size:
            slabs = slabs_and_indices(closed, *spec.grids.tables)[0]
            passed_over = np.union1d(passed_over, slabs)[-MOST_PASSED_OVER:]
    if "acquisition" in record:
        record = {**record, "acquisition": {**record["acquisition"], "passed_over": passed_over.tolist()}}
    for name, dtype in columns.items():
        write_file(folder / name / DOCUMENT, column_document(rows, chunk_rows, dtype), synced=False)
    write_file(folder / DOCUMENT, table_document(rows, list(columns), spec, None, record), synced=False)
    return record


def _chunks(log: FrameLog, survey: LogSurvey, buffer: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the log's records, as many at a time as ``buffer`` holds and the rest at the end. Each array is
    valid until the next one is requested."""
    filled = 0
    found_again = _found_again(log, survey.given_up)
    for _, _, piece in log.blocks():
        if found_again.size:
            piece = piece[(piece["status"] != FrameStatus.LOST) | ~np.isin(piece["sequence"], found_again)]  # noqa: PLW2901
        while piece.size:
            count = min(piece.size, buffer.size - filled)
            buffer[filled : filled + count] = piece[:count]
            filled, piece = filled + count, piece[count:]  # noqa: PLW2901  (what is left of it)
            if filled == buffer.size:
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]


def _found_again(log: FrameLog, given_up: np.ndarray) -> np.ndarray:
    """Returns sequences that were ``given_up`` but found intact by recovery: these count as stored."""
    if not given_up.size:
        return given_up
    stored = [
        np.intersect1d(given_up, records["sequence"]) for _, _, records in log.blocks(BlockKind.SHARD_ROW)
    ]
    return np.concatenate(stored) if stored else given_up[:0]


def _encode_chunk(values: np.ndarray) -> bytes:
    """Encodes a chunk as ``column_document`` describes: gzip, then its crc32c."""
    if values.dtype.kind == "S":
        return encode_strings(values)
    return with_checksum(gzip.compress(values.tobytes(), 1, mtime=0))


def _remove(path: Path) -> None:
    """Deletes a folder with all in it, or whatever else has its name."""
    with storage_errors("delete", path):
        if beneath.exists(path):
            reach("table.before_delete")
            if beneath.is_dir(path):
                beneath.remove_tree(path)
            else:
                beneath.unlink(path, missing_ok=True)
