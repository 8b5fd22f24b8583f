"""Stores of any shape with a frame table of any content: only metadata and the table, since an absent shard
is legal."""

from __future__ import annotations

import gzip
import json
import shutil
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.document import encode_document
from shardwright.array.grid import Grid
from shardwright.array.metadata import array_documents, group_document
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.shard.frame_log import BlockKind, FrameLog
from shardwright.shard.frame_record import record_dtype
from shardwright.store.frame_table_writer import write_frame_table

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.model.frame_status import FrameStatus, Reason

Row = tuple[int, "FrameStatus", "Reason"]  # position (-1: none), status, reason

TZCYX = ArraySpec(
    dtype="uint8",
    dimensions=[
        Dimension(name=n, count=c, chunk_size=2)
        for n, c in [("t", None), ("z", 3), ("c", 2), ("y", 2), ("x", 2)]
    ],
    storage_order=("t", "c", "z", "y", "x"),
)


def make_store(root: Path, rows: list[Row], extent: int, spec: ArraySpec = TZCYX) -> Path:
    """A store whose first axis has ``extent`` elements and whose table has these rows."""
    (root / ".shardwright").mkdir(parents=True)
    (root / "0").mkdir()
    (root / "zarr.json").write_text(json.dumps(group_document(spec, "a")))
    (root / "0/zarr.json").write_bytes(encode_document(array_documents(spec, (extent,))[0]))
    records = np.zeros(len(rows), record_dtype(0))
    records["sequence"] = np.arange(len(rows))
    for name, values in zip(["position", "status", "reason"], zip(*rows, strict=True), strict=False):
        records[name] = values
    log = FrameLog.create(root / ".shardwright/frames.log", records.dtype, bytes(16))
    log.append(BlockKind.EVENTS, -1, records)
    write_frame_table(root, parse_acquisition(spec), log)
    log.close()
    log.path.unlink()
    (root / ".shardwright").rmdir()
    return root


def place(*index: int) -> int:
    return Grid.of(TZCYX).position_of(index)


def without_status(store: Path) -> Path:
    """Leaves the table as 0.2.0 wrote it: with the older name of the column alone."""
    document = json.loads((store / "frames/zarr.json").read_text())
    facts = document["attributes"]["shardwright"]
    facts["columns"].remove("status")
    del facts["status"]
    (store / "frames/zarr.json").write_text(json.dumps(document))
    shutil.rmtree(store / "frames/status")
    return store


def set_statuses(store: Path, **values: int) -> None:
    """As ``set_values``, in the column of both names."""
    for name in ("status", "fate"):
        set_values(store, name, **values)


def set_values(store: Path, name: str, **values: int) -> None:
    """Put other values into rows of a column, with a right checksum. ``r3=7`` is row 3."""
    path = store / "frames" / name / "c/0"
    dtype = json.loads((store / "frames" / name / "zarr.json").read_text())["data_type"]
    column = np.frombuffer(gzip.decompress(path.read_bytes()[:-4]), dtype).copy()
    for row, value in values.items():
        column[int(row[1:])] = value
    data = gzip.compress(column.tobytes(), 1)
    path.write_bytes(data + crc32c.crc32c(data).to_bytes(4, "little"))
