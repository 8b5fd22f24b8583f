"""What the kernels wrote is what the files' owners believe: a shard row's journal and a staging area, written
by workers, read by recovery."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from tests.shard.sidecars import new_journal

from shardwright.array.grid import Grid
from shardwright.kernels.journal_kernels import journal_chunks, journal_frames, stage_frames
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.journal import EMPTY, VALID, JournalLayout, ShardRowJournal
from shardwright.shard.layout import ArrayLayout
from shardwright.shard.staging import StagingArea

IDENTITY = b"an acquisition's"
RECORD = record_dtype(2)
FRAMES = 3  # a slab


@pytest.fixture
def grid():
    return Grid(
        (0,),
        (FRAMES,),
        (4,),
        (0,),
        frame_shape=(10, 10),
        plane_chunk=(4, 4),
        plane_shard_chunks=(2, 2),
        itemsize=2,
    )


def records_of(count: int, first: int = 0) -> np.ndarray:
    records = np.zeros(count, RECORD)
    records["sequence"] = records["position"] = first + np.arange(count)
    records["further"] = np.random.default_rng(0).random((count, 2))
    records["status"] = 1
    return records


def as_bytes(records: np.ndarray) -> np.ndarray:
    return records.view(np.uint8).reshape(len(records), -1)


def test_journal(tmp_path, grid):
    layout = ArrayLayout.of(grid, 300, index_location="start")
    tables = JournalLayout.of(layout, 1, RECORD)
    path = tmp_path / "1.journal"
    journal = new_journal(path, tables, IDENTITY, 1, writer_epoch=9, packed=False)
    records, filled = records_of(FRAMES, first=18), np.array([True, False, True])
    files = layout.plane.file
    slots = 2 * layout.plane.layer_slots[files] + layout.plane.slot  # the shard row's third slab
    nbytes = np.arange(len(files), dtype=np.int64) * 30  # the first chunk is all fill
    crcs = np.arange(len(files), dtype=np.uint32) + np.uint32(2**32 - 5)
    offsets = tables.data_start + slots * tables.slot_bytes
    scratch = np.zeros(4096, np.uint8)
    assert (
        journal_chunks(
            journal.descriptor,
            tables.chunk_entry_offsets(files, slots),
            offsets,
            nbytes,
            crcs,
            9,
            journal.seed,
            scratch,
        )
        == 0
    )
    assert (
        journal_frames(
            journal.descriptor,
            tables.frame_records_offset(2),
            as_bytes(records),
            filled,
            journal.seed,
            scratch,
        )
        == 0
    )
    journal.close()

    journal = ShardRowJournal.open(path, tables, IDENTITY, 1)
    found, valid = journal.read_frames()
    assert np.argwhere(valid).tolist() == [[2, 0], [2, 2]]
    assert (as_bytes(found[2][filled])[:, :-4] == as_bytes(records[filled])[:, :-4]).all()
    for file in range(tables.files):
        entries, states = journal.read_chunks(file)
        mine = files == file
        assert np.flatnonzero(states != EMPTY).tolist() == sorted(slots[mine].tolist())
        assert (states[slots[mine]] == VALID).all()
        expected = np.where(nbytes[mine] > 0, nbytes[mine].astype(np.uint64), np.uint64(2**64 - 1))
        assert entries["nbytes"][slots[mine]].tolist() == expected.tolist()
        assert entries["data_crc"][slots[mine]].tolist() == np.where(nbytes[mine] > 0, crcs[mine], 0).tolist()
        assert (entries["writer_epoch"][slots[mine]] == 9).all()
    journal.close()


def test_staging(tmp_path):
    path, shape = tmp_path / "staging", (6, 5000, RECORD, IDENTITY)
    staging = StagingArea.create(path, *shape)
    pixels = np.random.default_rng(1).integers(0, 256, (2, 5000), np.uint8)
    records, slots = records_of(2, first=40), np.array([4, 1])
    addresses = pixels.ctypes.data + 5000 * np.arange(2)
    places = staging.data_offset(slots), staging.entry_offset(slots)
    assert stage_frames(staging.descriptor, addresses, 5000, *places, as_bytes(records), staging.seed) == 0
    staging.close()

    staging = StagingArea.open(path, *shape)
    found, valid = staging.read()
    assert np.flatnonzero(valid).tolist() == [1, 4]
    assert found[slots].tobytes() == records.tobytes()
    for slot, frame in zip(slots.tolist(), pixels, strict=True):
        assert ctypes.string_at(staging.map() + slot * staging.slot_bytes, 5000) == frame.tobytes()
    staging.close()
