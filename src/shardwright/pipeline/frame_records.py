"""Keeps the descriptor of every frame while an acquisition runs, and writes the frame table from them at its end. Runs in the keeper's thread.

Records go to a file in the workspace as they come and are read back a chunk at a time, so that a million frames cost no more memory than one chunk.
"""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.frame_table import ROWS_PER_CHUNK, TABLE_PATH, column_metadata, column_names, columns, table_metadata
from shardwright.storage.files import make_directories, replace_file, storage_errors
from shardwright.wire.descriptor import DESCRIPTOR, METADATA_FIELDS

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.spec import ArraySpec


class FrameRecords:
    """Owns the records file until ``write_table`` or ``close``."""

    def __init__(self, store: Path, workspace: Path, spec: ArraySpec) -> None:
        self._store = store
        self._spec = spec
        self._path = workspace / "frames.records"
        with storage_errors("create", self._path):
            self._file = self._path.open("xb+")
        self._rows = 0

    def add(self, descriptors: np.ndarray) -> None:
        """Keep records (``wire.DESCRIPTOR``[n]) in order of arrival."""
        with storage_errors("write", self._path):
            self._file.write(descriptors.tobytes())
        self._rows += descriptors.size

    def write_table(self) -> None:
        """Write the group ``frames``, each file atomically and durably, then delete the records."""
        table = self._store / TABLE_PATH
        with storage_errors("read", self._path):
            self._file.flush()
        for start in range(0, self._rows, ROWS_PER_CHUNK):
            for name, values in columns(self._read(start), self._spec, METADATA_FIELDS):
                padded = np.zeros(ROWS_PER_CHUNK, values.dtype.newbyteorder("<"))
                padded[: values.size] = values
                folder = table / name / "c"
                make_directories(folder)
                replace_file(folder / str(start // ROWS_PER_CHUNK), gzip.compress(padded.tobytes(), 1, mtime=0))
        make_directories(table)
        for name, values in columns(np.zeros(0, DESCRIPTOR), self._spec, METADATA_FIELDS):
            make_directories(table / name)
            replace_file(table / name / "zarr.json", column_metadata(self._rows, values.dtype))
        replace_file(table / "zarr.json", table_metadata(self._rows, column_names(self._spec, METADATA_FIELDS)))
        self.close()
        with storage_errors("delete", self._path):
            self._path.unlink()

    def close(self) -> None:
        self._file.close()

    def _read(self, start: int) -> np.ndarray:
        count = min(ROWS_PER_CHUNK, self._rows - start)
        with storage_errors("read", self._path):
            data = os.pread(self._file.fileno(), count * DESCRIPTOR.itemsize, start * DESCRIPTOR.itemsize)
        return np.frombuffer(data, DESCRIPTOR)
