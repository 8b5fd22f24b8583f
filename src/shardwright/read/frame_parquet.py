"""``frames.parquet``, the frame table as one file for pandas, polars, DuckDB and the like: made, and checked.

It has the columns of ``shardwright.frame_table``, in their order, with words in place of numbers for
statuses, reasons and images. The rows are in the order of the table, some of its chunks in a row group.

The attributes of the table record the file, and the bytes of the table of which it was made. So nobody has to
read it to know whether the two agree: a flipped bit in a Parquet file may end the process that reads it.

Only this module knows Parquet. To make the file it needs ``shardwright[parquet]``.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.array.frame_table_format import PARQUET_PATH
from shardwright.disk import beneath
from shardwright.disk.files import read_range
from shardwright.disk.read_file import ChangedError
from shardwright.disk.remote_path import RemotePath
from shardwright.disk.typed_errors import storage_errors
from shardwright.model.errors import ConfigError, StorageError
from shardwright.model.extras import install_line, naming_missing_extra

from .column_words import column_words, word_codes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from .frame_table import FrameTable

_GROUP_ROWS, _GROUP_BYTES = 1 << 16, 64 << 20  # at most, unless one chunk of the table has more
_PIECE_BYTES = 8 << 20
_CRC_BYTES = 4
_MADE_AGAIN = "it is made of the table, and may be deleted"


def check_parquet() -> None:
    """Raises ``ConfigError`` unless the package that writes Parquet is installed, and can be loaded."""
    try:
        with naming_missing_extra("frame_parquet"):
            import pyarrow.parquet  # noqa: F401
    except ConfigError:
        raise
    except Exception as error:  # a broken package may raise anything
        raise ConfigError(
            "frame_parquet needs pyarrow, which is installed and cannot be loaded",
            got=f"{type(error).__name__}: {error}",
            hint=f"Install it again: {install_line('parquet')}",
        ) from error


def parquet_parts(table: FrameTable) -> Iterator[bytes]:
    """Yields the bytes of the file, a part for each row group. Raises ``ConfigError``,
    ``ShardFormatError``, ``StorageError``."""
    check_parquet()
    import pyarrow.parquet as pq

    made = io.BytesIO()
    with pq.ParquetWriter(made, _rows(table, None).schema) as writer:
        for rows in _row_groups(table):
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))
            yield made.getvalue()
            # What is written stays with the caller; the writer counts its offsets by itself.
            made.seek(0)
            made.truncate()
    yield made.getvalue()


def _row_groups(table: FrameTable) -> Iterator[pa.Table]:
    """Yields the rows of as many chunks at a time as a row group may have: of a table with long strings a
    chunk has few rows, and each group costs a reader a seek, and the file its facts of every column."""
    import pyarrow as pa

    chunks: list[pa.Table] = []
    for chunk in range(table.chunks):
        rows = _rows(table, chunk)
        more = [*chunks, rows]
        if chunks and (
            sum(each.num_rows for each in more) > _GROUP_ROWS
            or sum(each.nbytes for each in more) > _GROUP_BYTES
        ):
            yield pa.concat_tables(chunks)
            more = [rows]
        chunks = more
    if chunks:
        yield pa.concat_tables(chunks)


def _rows(table: FrameTable, chunk: int | None) -> pa.Table:
    """Returns the rows of a chunk of the table; None: none of them."""
    import pyarrow as pa

    words = column_words(table)
    columns = {}
    for name, column in table.with_status(dict(table.columns)).items():
        values = np.zeros(0, column.dtype) if chunk is None else column.read(chunk)
        if name in words:
            codes = word_codes(table, name, words[name], values).astype(np.int32)
            indices = pa.array(codes, mask=codes < 0)
            columns[name] = pa.DictionaryArray.from_arrays(indices, pa.array(list(words[name]), pa.string()))
        elif values.dtype.kind == "O":
            columns[name] = pa.array(values.tolist(), pa.string())
        else:
            columns[name] = pa.array(values.astype(values.dtype.newbyteorder("=")))
    return pa.table(columns)


def table_crc(table: FrameTable) -> int:
    """Returns the crc32c of all chunks of the table as they lie on disk: chunk by chunk, and of each the
    columns in their order. Raises ``ShardFormatError``, ``StorageError``."""
    crc = 0
    for chunk in range(table.chunks):
        for column in table.columns.values():
            # Without the crc32c that ends each: with it the sum would be the same, whatever comes before.
            crc = crc32c.crc32c(column.read_encoded(chunk)[:-_CRC_BYTES], crc)
    return crc


def check_frame_parquet(store: Path, table: FrameTable) -> Iterator[tuple[str, str, bool]]:
    """Yields (path below the store, what is wrong, whether that is a fault) if the file is not that which was
    made of this table, whose chunks decode. One that is gone is no fault: the table says the same. Raises
    ``ShardFormatError``, ``StorageError``."""
    path = store / PARQUET_PATH
    if not beneath.exists(path):
        if table.parquet is not None:
            yield PARQUET_PATH, "the frame table records it, and it is gone", False
        return
    if table.parquet is None:
        yield PARQUET_PATH, "the frame table does not record it, so they were not compared", False
        return
    with storage_errors("look at", path):
        nbytes = path.listed_bytes() if isinstance(path, RemotePath) else beneath.stat(path).st_size
    if nbytes != table.parquet.nbytes:
        fault = f"it has {nbytes} bytes, and not the {table.parquet.nbytes} that were written; {_MADE_AGAIN}"
        yield PARQUET_PATH, fault, True
    elif _file_crc(path, nbytes) != table.parquet.crc:
        yield PARQUET_PATH, f"it differs from the file that was written; {_MADE_AGAIN}", True
    elif table_crc(table) != table.parquet.table_crc:
        yield PARQUET_PATH, f"it was made of another frame table; {_MADE_AGAIN}", True


def _file_crc(path: Path, nbytes: int) -> int:
    """Returns the crc32c of the file, of which a piece at a time is in memory."""
    pieces = [(start, min(start + _PIECE_BYTES, nbytes)) for start in range(0, nbytes, _PIECE_BYTES)]
    crc = 0
    file = path.open_shard() if isinstance(path, RemotePath) else None
    try:
        for start, stop in pieces:
            data = read_range(path, start, stop - start) if file is None else file.read(start, stop - start)
            crc = crc32c.crc32c(data, crc)
    except ChangedError:
        raise StorageError(f"{path} changed while it was read", hint="Verify it again") from None
    return crc
