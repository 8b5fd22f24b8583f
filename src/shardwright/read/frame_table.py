"""The frame table of a store, read a chunk of a column at a time, strictly, and checked for ``verify``."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from shardwright.array.document import array_chain, default_keys
from shardwright.array.frame_table_format import JSON_CHUNK_BYTES, TABLE_PATH, VERSION
from shardwright.codecs.decode import ChunkCodecs, decode_chunk
from shardwright.codecs.strings import decode_strings
from shardwright.disk import beneath
from shardwright.disk.files import read_regular
from shardwright.disk.remote_path import RemotePath
from shardwright.disk.typed_errors import storage_errors
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.frame_status import OLDER_STATUS, STATUS, FrameStatus, Reason, status_column
from shardwright.model.names import DOCUMENT
from shardwright.model.versions import check_version
from shardwright.model.write_options import DTYPES

from .store import inside, read_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .store import Store, StoredArray

_T = TypeVar("_T")
MAX_COLUMNS = 128
MAX_ROWS_PER_CHUNK = 1 << 20
MOST_KEPT_BYTES = 64 << 20  # of decoded columns: images are looked at one by one, and share the table
_COLUMN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_NUMBER = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_INDEX = "index_"
_STRING_CODECS = ["vlen-utf8", "gzip", "crc32c"]


@dataclass(frozen=True)
class Column:
    """One 1-D array of the table. ``codecs`` None: it is of strings, and its dtype object."""

    path: Path
    dtype: np.dtype[Any]
    rows: int
    rows_per_chunk: int
    codecs: ChunkCodecs | None

    @property
    def chunks(self) -> int:
        return -(-self.rows // self.rows_per_chunk)

    def read(self, chunk: int) -> npt.NDArray[Any]:
        """Returns the rows of one chunk. Raises ``ShardFormatError`` when the chunk is missing or does not
        decode, and ``StorageError``."""
        data = self.read_encoded(chunk)
        if self.codecs is None:
            strings_bytes = JSON_CHUNK_BYTES + 4 * (self.rows_per_chunk + 1)
            values: npt.NDArray[Any] = decode_strings(data, self.rows_per_chunk, strings_bytes)
        else:
            chunk_bytes = self.rows_per_chunk * self.dtype.itemsize
            values = decode_chunk(data, self.codecs, chunk_bytes).view(self.dtype)
        return values[: self.rows - chunk * self.rows_per_chunk]

    def read_encoded(self, chunk: int) -> bytes:
        """Returns one chunk as it lies on disk. Raises as ``read``."""
        path = self.path / "c" / str(chunk)
        strings_bytes = JSON_CHUNK_BYTES + 4 * (self.rows_per_chunk + 1)
        chunk_bytes = self.rows_per_chunk * self.dtype.itemsize if self.codecs else strings_bytes
        limit = (self.codecs or ChunkCodecs("gzip", checksum=True)).max_encoded_bytes(chunk_bytes)
        with storage_errors("read", path):
            try:
                return read_regular(path, limit)
            except FileNotFoundError:
                raise ShardFormatError("a chunk of the frame table is missing", got=path) from None
            except ShardFormatError:
                raise ShardFormatError(
                    "chunk is longer than its codec can make it", expected=f"at most {limit} bytes"
                ) from None


class ParquetRecord(NamedTuple):
    """The record of ``frames.parquet``: its length and crc32c when it was made, and that of the chunks of the
    table then (``frame_parquet.table_crc``)."""

    nbytes: int
    crc: int
    table_crc: int


class FinishedPart(NamedTuple):
    """The receipt with which a part of an acquisition ended: the counts of all that had come by then, from
    clients up to ``client_epoch``."""

    client_epoch: int
    counts: dict[str, int]


class _DecodedChunks:
    """The chunks of columns that were decoded first, up to ``MOST_KEPT_BYTES``. The others are decoded each
    time: the next pass over the table would find none of the newest."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Path, int], npt.NDArray[Any]] = {}
        self._bytes = 0

    def read(self, column: Column, chunk: int) -> npt.NDArray[Any]:
        """As ``Column.read``."""
        values = self._kept.get((column.path, chunk))
        if values is None:
            values = column.read(chunk)
            if self._bytes + values.nbytes <= MOST_KEPT_BYTES:
                self._kept[column.path, chunk] = values
                self._bytes += values.nbytes
        return values


@dataclass(frozen=True)
class FrameTable:
    """The frame table of a store. All columns have the same rows and chunks. ``axes``: the frame axes in the
    order of acquisition. ``status_column``: the column that ``read_statuses`` reads. ``parquet``: None where
    no file was made of it. ``receipts``: one for each time that the acquisition has ended; ``acquisition``:
    what it needs to go on (``store.finish_record``), None where nothing was recorded. ``images``,
    ``image_names``: of several images, the paths of their arrays and their names, by number; ``image``: the
    number of the one whose rows and axes are read, None for all."""

    path: Path
    rows: int
    columns: dict[str, Column]
    status_column: str
    images: tuple[str, ...] = ()
    image_names: tuple[str, ...] = ()
    image: int | None = None
    axes_of_image: tuple[str, ...] = ()
    parquet: ParquetRecord | None = None
    receipts: tuple[FinishedPart, ...] = ()
    acquisition: dict[str, Any] | None = field(default=None, repr=False)
    decoded: _DecodedChunks = field(default_factory=_DecodedChunks, repr=False, compare=False)

    def of(self, store: Store, array: StoredArray) -> FrameTable:
        """Returns the part of the table that is of the image with this array. Raises ``ShardFormatError`` if
        it names no such image."""
        if not self.images:
            return self
        path = array.path.relative_to(store.root).as_posix()
        if path not in self.images:
            raise ShardFormatError("the frame table names no such image", got=path)
        names = {str(name) for name in (array.dimension_names or ())[:-2]}
        axes = tuple(axis for axis in self.axes if axis in names)
        return replace(self, image=self.images.index(path), axes_of_image=axes)

    @property
    def axes(self) -> list[str]:
        if self.image is not None:
            return list(self.axes_of_image)
        return [name.removeprefix(_INDEX) for name in self.columns if name.startswith(_INDEX)]

    @property
    def chunks(self) -> int:
        return next(iter(self.columns.values())).chunks

    @property
    def tells_statuses(self) -> bool:
        return {self.status_column, "reason"} <= self.columns.keys()

    def frame_counts(self, array: StoredArray) -> tuple[int, ...]:
        """Returns the extents of an image along the frame axes, in the order of acquisition. Raises
        ``ShardFormatError`` when its axes are not the table's."""
        names = list(array.dimension_names or ())
        if sorted(self.axes) != sorted(str(name) for name in names[:-2]):
            raise ShardFormatError(
                "the frame table has other axes than the image", expected=names[:-2], got=self.axes
            )
        return tuple(array.shape[names.index(axis)] for axis in self.axes)

    def column(self, name: str) -> Column:
        """Raises ``ShardFormatError`` if the table has no column of this name."""
        if name not in self.columns:
            raise ShardFormatError(f"the frame table has no column {name!r}", got=self.path)
        return self.columns[name]

    def read(self, name: str, chunk: int) -> npt.NDArray[Any]:
        """As ``Column.read``, of the rows of the image; raises as ``column``, too."""
        values = self.decoded.read(self.column(name), chunk)
        if self.image is None:
            return values
        mine: npt.NDArray[Any] = values[self.decoded.read(self.columns["image"], chunk) == self.image]
        return mine

    def read_statuses(self, chunk: int) -> npt.NDArray[Any]:
        """Returns the rows' numbers of ``FrameStatus``."""
        return self.read(self.status_column, chunk)

    def with_status(self, columns: dict[str, _T]) -> dict[str, _T]:
        """Returns columns of the table with ``status``, before ``fate``, where 0.2.0 wrote ``fate`` alone. A
        frame field named ``status`` keeps the name."""
        if STATUS in columns or OLDER_STATUS not in columns:
            return columns
        names = [each for name in columns for each in ((STATUS, name) if name == OLDER_STATUS else (name,))]
        return {name: columns[OLDER_STATUS if name == STATUS else name] for name in names}

    def read_indices(self, chunk: int) -> npt.NDArray[np.int64]:
        """Returns the rows' indices, int64[rows, axes]."""
        indices = [self.read(_INDEX + axis, chunk).astype(np.int64) for axis in self.axes]
        return (
            np.stack(indices, axis=1) if indices else np.zeros((self.read_statuses(chunk).size, 0), np.int64)
        )


def open_frame_table(store: Store) -> FrameTable | None:
    """Opens the frame table. Returns None when the store has none, or something else of that name. Raises
    ``ShardFormatError`` naming the fault, or ``StorageError``."""
    return None if store.group is None else frame_table_of(store.root)


def frame_table_of(root: Path) -> FrameTable | None:
    """As ``open_frame_table``, of the folder of a store."""
    return frame_table_in(root / TABLE_PATH)


def frame_table_in(folder: Path) -> FrameTable | None:
    """As ``open_frame_table``, of the folder of a table."""
    if not beneath.exists(folder):
        return None
    attributes = read_metadata(folder).get("attributes")
    if not isinstance(attributes, dict) or "shardwright" not in attributes:
        return None
    facts = attributes["shardwright"]
    try:
        rows, names = facts["rows"], facts["columns"]
        if facts["table"] == "frames":
            # Before anything else is judged: the table of a newer release is refused as that, and not as
            # damaged.
            check_version(facts["version"], VERSION, folder / DOCUMENT)
        images = tuple(
            inside(PurePosixPath(), str(image["path"])).as_posix() for image in facts.get("images", ())
        )
        image_names = tuple(str(image["name"]) for image in facts.get("images", ()))
        parquet = ParquetRecord(**facts["parquet"]) if "parquet" in facts else None
        receipts = tuple(
            FinishedPart(each["client_epoch"], each["counts"]) for each in facts.get("receipts", ())
        )
        acquisition = facts.get("acquisition")
        sound = facts["table"] == "frames" and _are_counts(rows)
        sound = sound and all(
            isinstance(part.counts, dict) and _are_counts(part.client_epoch, *part.counts.values())
            for part in receipts
        )
        sound = sound and (acquisition is None or isinstance(acquisition, dict))
        several = "images" in facts or facts["version"] == 2
        sound = sound and (parquet is None or _are_counts(*parquet))
        sound = sound and bool(images) == several and ("image" in names or not several)
        sound = (
            sound
            and 0 < len(names) <= MAX_COLUMNS
            and all(map(_COLUMN_NAME.fullmatch, names))
            and len(set(names)) == len(names)
            and (STATUS in names or STATUS not in facts)
        )
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise ShardFormatError(f"{folder / DOCUMENT} does not describe a frame table")
    columns = {name: _parse_column(folder / name) for name in names}
    whole = {"sequence", "reason", status_column(facts), *(["image"] if images else [])}
    for name, column in columns.items():
        if (name in whole or name.startswith(_INDEX)) and column.dtype.kind not in "iu":
            raise ShardFormatError(
                f"column {name} of the frame table is not of integers", got=column.dtype.name
            )
    wanted = rows, columns[names[0]].rows_per_chunk
    if any((column.rows, column.rows_per_chunk) != wanted for column in columns.values()):
        lengths = {name: column.rows for name, column in columns.items() if column.rows != rows}
        raise ShardFormatError(
            "the columns of the frame table differ in length or chunks",
            expected=f"{rows} rows",
            got=lengths or None,
        )
    return FrameTable(
        folder,
        rows,
        columns,
        status_column(facts),
        images,
        image_names,
        parquet=parquet,
        receipts=receipts,
        acquisition=acquisition,
    )


def _are_counts(*values: Any) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _parse_column(folder: Path) -> Column:
    document = read_metadata(folder)
    try:
        (rows,) = document["shape"]
        (rows_per_chunk,) = document["chunk_grid"]["configuration"]["chunk_shape"]
        chain = array_chain(document)
        is_text = document["data_type"] == "string" and chain.names == _STRING_CODECS
        dtype = np.dtype(document["data_type"] if document["data_type"] in DTYPES else "O").newbyteorder("<")
        codecs = None if is_text else ChunkCodecs.of(chain)
        sound = (
            _are_counts(rows, rows_per_chunk)
            and 0 < rows_per_chunk <= MAX_ROWS_PER_CHUNK
            and (is_text or (dtype.kind in "iuf" and codecs is not None and not codecs.order))
            and document["chunk_key_encoding"] == default_keys()
        )
    except ShardFormatError:
        raise
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise ShardFormatError(f"{folder / DOCUMENT} does not describe a column of a frame table")
    return Column(folder, dtype, rows, rows_per_chunk, codecs)


def check_frame_table(table: FrameTable) -> Iterator[tuple[str, str]]:
    """Yields (path below the store, what is wrong) for every fault of the table itself: chunks that do not
    decode, surplus files, unknown numbers. Time and memory follow the files: metadata may name any number of
    rows."""
    there: dict[str, set[int]] = {}
    for name, column in table.columns.items():
        there[name] = set()
        for path in sorted(_chunk_files(column)):
            if _NUMBER.fullmatch(path.name) and int(path.name) < column.chunks:
                there[name].add(int(path.name))
            else:
                yield f"{TABLE_PATH}/{name}/c/{path.name}", "not a chunk of this column"
        if missing := column.chunks - len(there[name]):
            first = next(chunk for chunk in itertools.count() if chunk not in there[name])
            more = f", and {missing - 1} more" if missing > 1 else ""
            yield f"{TABLE_PATH}/{name}/c/{first}", f"a chunk of the frame table is missing{more}"
    for chunk in sorted(set().union(*there.values())):
        damaged = False
        for name, column in table.columns.items():
            if chunk not in there[name]:
                damaged = True
                continue
            try:
                column.read(chunk)
            except (ShardFormatError, StorageError) as error:
                damaged = True
                yield f"{TABLE_PATH}/{name}/c/{chunk}", str(error)
        if table.tells_statuses and not damaged:
            for fault in _faults_of_statuses(table, chunk):
                yield f"{TABLE_PATH} chunk {chunk}", fault


def _chunk_files(column: Column) -> Iterable[Path]:
    folder = column.path / "c"
    if isinstance(folder, RemotePath) and not folder.has_lists:
        return itertools.takewhile(beneath.exists, (folder / str(i) for i in range(column.chunks)))
    return beneath.matching(folder, "*")


def _faults_of_statuses(table: FrameTable, chunk: int) -> Iterator[str]:
    status, reason = table.read_statuses(chunk), table.read("reason", chunk)
    if OLDER_STATUS in table.columns and (table.read(OLDER_STATUS, chunk) != status).any():
        yield f"{OLDER_STATUS} differs from {table.status_column}"
    if not np.isin(status, list(FrameStatus)).all() or not np.isin(reason, list(Reason)).all():
        yield "a status or a reason has an unknown number"
    stored = status == FrameStatus.STORED
    if table.images and not np.isin(table.read("image", chunk)[stored], range(len(table.images))).all():
        yield "a stored frame has no image"


def broken_receipts(table: FrameTable) -> Iterator[tuple[str, str]]:
    """Yields (path below the store, what is wrong) for each receipt that promises more stored frames than the
    table has of the clients that had sent by then."""
    if not table.receipts or not table.tells_statuses or "client_epoch" not in table.columns:
        return
    stored = [0] * len(table.receipts)
    for chunk in range(table.chunks):
        epochs = table.read("client_epoch", chunk)[table.read_statuses(chunk) == FrameStatus.STORED]
        for i, part in enumerate(table.receipts):
            stored[i] += int((epochs <= part.client_epoch).sum())
    for number, (part, found) in enumerate(zip(table.receipts, stored, strict=True), 1):
        promised = part.counts.get("frames_stored", 0)
        if found < promised:
            what = (
                f"receipt {number} says that {promised} frames are stored, and the table has {found} of them"
            )
            yield TABLE_PATH, what


def check_places(table: FrameTable, array: StoredArray) -> Iterator[tuple[str, str]]:
    """Yields (path below the store, what is wrong) for every fault of an image's part of a table whose chunks
    decode: axes that the image does not have, impossible places.

    Stored frames outside the array are no fault: the array was cropped (``cropped_frames``).
    """
    try:
        table.frame_counts(array)
    except ShardFormatError as error:
        yield TABLE_PATH, str(error)
        return
    if table.tells_statuses:
        for chunk in range(table.chunks):
            for fault in _faults_of_places(table, chunk):
                yield f"{TABLE_PATH} chunk {chunk}", fault


def _faults_of_places(table: FrameTable, chunk: int) -> Iterator[str]:
    status, indices = table.read_statuses(chunk), table.read_indices(chunk)
    # A frame whose index nobody knows has -1 along every axis; along some of them alone it is no index.
    if ((indices < 0).any(axis=1) & (indices != -1).any(axis=1)).any():
        yield "an index is not a place of the array"
    if (indices[status == FrameStatus.STORED] < 0).any():
        yield "a stored frame has no place in the array"


def cropped_frames(table: FrameTable, array: StoredArray) -> int:
    """Counts the stored frames whose places lie outside the array's present shape."""
    counts = table.frame_counts(array)
    return sum(
        int(
            (table.read_indices(chunk)[table.read_statuses(chunk) == FrameStatus.STORED] >= counts)
            .any(axis=1)
            .sum()
        )
        for chunk in range(table.chunks)
    )


def shards_of_stored_frames(table: FrameTable, array: StoredArray) -> Iterator[tuple[int, ...]]:
    """Yields the coordinates, each once, of the shards that hold places of stored frames inside the array's
    shape."""
    names = list(array.dimension_names or ())
    counts = table.frame_counts(array)
    axes = [names.index(axis) for axis in table.axes]  # of the array, in the order of the table's columns
    sizes = np.array([array.shard_shape[axis] for axis in axes], np.int64)
    seen: set[tuple[int, ...]] = set()
    for chunk in range(table.chunks):
        indices = table.read_indices(chunk)[table.read_statuses(chunk) == FrameStatus.STORED]
        rows = np.unique(indices[((indices >= 0) & (indices < counts)).all(axis=1)] // sizes, axis=0)
        seen.update(map(tuple, rows.tolist()))
    plane = [range(n) for n in array.grid_shape[-2:]]
    for row in sorted(seen):
        places = dict(zip(axes, row, strict=True))
        for y, x in itertools.product(*plane):
            yield (*(places[axis] for axis in range(len(axes))), y, x)
