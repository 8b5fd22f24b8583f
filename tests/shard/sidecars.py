"""Journals and staging areas for tests: one small layout, and the bytes of entries and records, put together
here independently of the kernels."""

from __future__ import annotations

import os
import struct

import crc32c
import numpy as np

from shardwright.array.grid import Grid
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.journal import JournalLayout, ShardRowJournal
from shardwright.shard.layout import ArrayLayout

IDENTITY = bytes(range(16))
RECORD = record_dtype(1)
GRID = Grid(
    counts=(10, 2),
    chunk=(2, 1),
    shard_chunks=(2, 2),
    stored_axes=(1, 0),
    frame_shape=(10, 10),
    plane_chunk=(4, 4),
    plane_shard_chunks=(2, 2),
    itemsize=2,
)
ARRAY = ArrayLayout.of(GRID, 100, index_location="start")
LAYOUT = JournalLayout.of(ARRAY, 0, RECORD)
LAST_GROUP = 2  # half as many slabs


# position of a frame by its slot layer and its place in the slab
POSITION_AT = {
    (ARRAY.layer_of_slab(slab)[1], GRID.index_in_slab(position)): position
    for position in range(8)
    if GRID.shard_row_of_slab(slab := GRID.slab_of_position(position)) == 0
}


def seed_of(identity: bytes = IDENTITY, shard_row: int = 0) -> int:
    return crc32c.crc32c(identity + struct.pack("<q", shard_row))


def sealed(body: bytes, seed: int) -> bytes:
    return body + struct.pack("<I", crc32c.crc32c(body, seed))


def chunk_entry(
    slot: int, nbytes: int, seed: int, *, offset: int | None = None, data_crc: int = 77, writer_epoch: int = 3
) -> bytes:
    """An entry as a worker writes it; ``nbytes`` 0: all fill."""
    where = LAYOUT.data_start + slot * LAYOUT.slot_bytes if offset is None else offset
    fields = (where, nbytes, data_crc) if nbytes else (2**64 - 1, 2**64 - 1, 0)
    return sealed(struct.pack("<QQIII", *fields, writer_epoch, 0), seed)


def frame_record(seed: int, *, pixels_crc: int = 0, dtype: np.dtype = RECORD, **fields) -> bytes:
    record = np.zeros((), dtype)
    for name, value in (fields | {"pixels_crc": pixels_crc, "status": 1, "client_epoch": 1}).items():
        record[name] = value
    return sealed(record.tobytes()[:-4], seed)


def new_journal(*args, **options) -> ShardRowJournal:
    """An empty journal, durable with its name, as ``ShardRowJournal.make`` takes the arguments."""
    journal = ShardRowJournal.make(*args, **options)
    journal.begin_alone()
    return journal


def put(file, place: int, data: bytes) -> None:
    """Write through the descriptor, as workers do."""
    assert os.pwrite(file.descriptor, data, place) == len(data)
