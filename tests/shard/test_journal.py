"""The journal: where its tables lie, what it believes, and that nothing torn, stale or strange passes for an
entry."""

from __future__ import annotations

import errno
import math
import os
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model.errors import ShardFormatError, StorageError, StorageFullError
from shardwright.scan.unfinished_store import if_begun
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.journal import EMPTY, TORN, VALID, JournalLayout, ShardRowJournal
from shardwright.shard.layout import PAGE_BYTES, ArrayLayout

from .sidecars import (
    ARRAY,
    GRID,
    IDENTITY,
    LAST_GROUP,
    LAYOUT,
    POSITION_AT,
    RECORD,
    chunk_entry,
    frame_record,
    new_journal,
    put,
    seed_of,
)
from .test_layout import grids, slabs_of_shard_row

SEED = seed_of()
# one shard of 64 slabs of 1000 frames
DEEP = {"counts": (64_000,), "chunk": (1000,), "shard_chunks": (64,), "stored_axes": (0,), "row_shards": (1,)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0.journal"


@pytest.fixture
def journal(path):
    made = new_journal(path, LAYOUT, IDENTITY, 0, writer_epoch=3, packed=False)
    yield made
    made.close()


@given(grid=grids(), shard_row=st.integers(0, 3), further=st.integers(0, 2))
def test_places_never_overlap_and_fill_the_file(grid, shard_row, further):
    """Every frame of every slab and every slot of every file has a place of its own, none in the header, all
    inside the file."""
    layout = ArrayLayout.of(grid, 100, index_location="end")
    slabs = slabs_of_shard_row(grid, shard_row)
    if not slabs:
        return
    record = record_dtype(1 + further)
    record_bytes = record.itemsize
    tables = JournalLayout.of(layout, shard_row, record)
    assert tables.slabs == len(slabs)
    taken = np.zeros(tables.file_bytes, np.uint8)
    taken[:PAGE_BYTES] += 1
    for slab in slabs:
        _, slot_layer = layout.layer_of_slab(slab)
        place = tables.frame_records_offset(slot_layer)
        taken[place : place + grid.frames_per_slab * record_bytes] += 1
    for file in range(tables.files):
        slots = np.arange(layout.shard(shard_row, file).slots)
        assert tables.slots[file] == len(slots)
        places = [tables.chunk_entry_offset(file, slot) for slot in slots.tolist()]
        assert places == tables.chunk_entry_offsets(np.full(len(slots), file), slots).tolist()
        for place in places:
            taken[place : place + 32] += 1
    assert taken.max() == 1
    rest = np.flatnonzero(taken == 0).size
    assert rest < (1 + tables.files) * PAGE_BYTES, "nothing but the tables' rounding to pages is left over"


def test_a_new_journal_is_empty_preallocated_and_opens_again(journal, path):
    assert path.stat().st_size == LAYOUT.file_bytes
    assert path.stat().st_blocks * 512 >= LAYOUT.file_bytes, "real blocks, not a sparse file"
    for opened in (journal, ShardRowJournal.open(path, LAYOUT, IDENTITY, 0)):
        assert (opened.path, opened.layout, opened.writer_epoch, opened.seed) == (path, LAYOUT, 3, SEED)
        records, valid = opened.read_frames()
        assert records.shape == valid.shape == (LAYOUT.slabs, LAYOUT.frames_per_slab)
        assert records.dtype == RECORD
        assert not valid.any()
        for file in range(LAYOUT.files):
            _, states = opened.read_chunks(file)
            assert len(states) == LAYOUT.slots[file]
            assert (states == EMPTY).all()
        opened.close()


def test_the_header_is_as_format_md_draws_it(journal, path):
    data = path.read_bytes()[:PAGE_BYTES]
    assert struct.unpack_from("<8s2I16sq2I6q", data) == (
        *(b"SWJOURNL", 1, RECORD.itemsize, IDENTITY, 0, 3, GRID.frames_per_slab),
        *(LAYOUT.slabs, LAYOUT.files, sum(LAYOUT.slots), PAGE_BYTES, LAYOUT.slot_bytes, path.stat().st_size),
    )
    assert not any(data[96:4092])
    assert struct.unpack_from("<I", data, 4092) == (crc32c.crc32c(data[:4092]),)


def test_what_was_written_is_read_by_another_process_too(journal, path):
    position = POSITION_AT[2, 1]
    put(
        journal,
        LAYOUT.frame_records_offset(2) + RECORD.itemsize,
        frame_record(SEED, sequence=7, position=position),
    )
    put(journal, LAYOUT.chunk_entry_offset(1, 3), chunk_entry(3, LAYOUT.slot_bytes, SEED, data_crc=5))
    put(journal, LAYOUT.chunk_entry_offset(1, 4), chunk_entry(4, 0, SEED))
    journal.sync()
    again = ShardRowJournal.open(path, LAYOUT, IDENTITY, 0)
    records, valid = again.read_frames()
    assert np.argwhere(valid).tolist() == [[2, 1]]
    assert (records[2, 1]["sequence"], records[2, 1]["position"]) == (7, position)
    entries, states = again.read_chunks(1)
    assert np.flatnonzero(states == VALID).tolist() == [3, 4]
    assert not (states == TORN).any()
    assert entries[3].tolist()[:4] == (LAYOUT.data_start + 3 * LAYOUT.slot_bytes, LAYOUT.slot_bytes, 5, 3)
    assert entries[4].tolist()[:2] == (2**64 - 1, 2**64 - 1)
    assert (again.read_chunks(0)[1] == EMPTY).all()
    again.close()


@given(places=st.sets(st.integers(0, 64 * 1000 - 1), max_size=40), damaged=st.integers(0, 40))
def test_frames_are_found_wherever_they_were_written(places, damaged):
    """Records cross the limits of pages, and most pages are never written."""
    record = record_dtype(3)
    layout = JournalLayout.of(ArrayLayout.of(replace(GRID, **DEEP), 100, index_location="end"), 0, record)
    with tempfile.TemporaryDirectory() as folder:
        journal = new_journal(Path(folder, "0.journal"), layout, IDENTITY, 0, 3, packed=True)
        for number, place in enumerate(sorted(places)):
            data = bytearray(frame_record(SEED, sequence=place, position=place, dtype=record))
            data[9] ^= number == damaged
            put(journal, layout.frame_records_offset(0) + place * record.itemsize, bytes(data))
        whole, valid = journal.read_frames()
        found = journal.written_frames()
        journal.close()
    assert found.tobytes() == whole[valid].tobytes()
    assert found.size == len(places) - (damaged < len(places))


@pytest.mark.parametrize("before", ["nothing", "another entry"])
def test_an_entry_torn_at_any_byte_is_not_believed(journal, before):
    """A write that got as far as byte n, over zeros or over an older entry of the same slot."""
    old = bytes(32) if before == "nothing" else chunk_entry(1, 55, SEED, data_crc=0x11111111, writer_epoch=1)
    new = chunk_entry(1, 66, SEED, data_crc=0x22222222, writer_epoch=2)
    for torn in range(33):
        data = new[:torn] + old[torn:]
        put(journal, LAYOUT.chunk_entry_offset(0, 1), data)
        state = journal.read_chunks(0)[1][1]
        assert state == (EMPTY if not any(data) else VALID if data in (old, new) else TORN), torn


@pytest.mark.parametrize("before", ["nothing", "another record"])
def test_a_record_torn_at_any_byte_is_not_believed(journal, before):
    size = RECORD.itemsize
    old = bytes(size) if before == "nothing" else frame_record(SEED, sequence=1, frame_id=-1, camera_ns=2**60)
    new = frame_record(SEED, sequence=2, frame_id=9, camera_ns=-(2**59))
    for torn in range(size + 1):
        data = new[:torn] + old[torn:]
        put(journal, LAYOUT.frame_records_offset(0), data)
        believed = journal.read_frames()[1][0, 0]
        assert believed == (data == new or (data == old and before != "nothing")), torn


def test_any_flipped_bit_of_an_entry_or_record_is_found(journal):
    entry, record = chunk_entry(1, 66, SEED), frame_record(SEED, sequence=2)
    for data, place, believed in (
        (entry, LAYOUT.chunk_entry_offset(0, 1), lambda: journal.read_chunks(0)[1][1] == VALID),
        (record, LAYOUT.frame_records_offset(0), lambda: journal.read_frames()[1][0, 0]),
    ):
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            put(journal, place, bytes(flipped))
            assert not believed(), bit
        put(journal, place, data)
        assert believed()


@pytest.mark.parametrize(
    "stranger",
    [seed_of(shard_row=1), seed_of(identity=bytes(16)), 0],
    ids=["another shard row", "another acquisition", "no seed"],
)
def test_entries_of_another_file_are_refused(journal, stranger):
    put(journal, LAYOUT.chunk_entry_offset(0, 1), chunk_entry(1, 66, stranger))
    put(journal, LAYOUT.frame_records_offset(0), frame_record(stranger, sequence=2))
    assert journal.read_chunks(0)[1][1] == TORN
    assert not journal.read_frames()[1].any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"slot": 2, "nbytes": 5},
        {"slot": 1, "nbytes": LAYOUT.slot_bytes + 1},
        {"slot": 1, "nbytes": 2**64 - 1},
        {"slot": 1, "nbytes": 2**63},
        {"slot": 1, "nbytes": 5, "offset": 2**64 - 1},
        {"slot": 1, "nbytes": 5, "offset": 0},
    ],
)
def test_an_entry_that_checks_but_does_not_fit_its_slot_is_refused(journal, wrong):
    """So that whoever follows an entry reads at most a slot, inside the file."""
    put(journal, LAYOUT.chunk_entry_offset(0, 1), chunk_entry(seed=SEED, **wrong))
    assert journal.read_chunks(0)[1][1] == TORN


@pytest.mark.parametrize(
    ("offset", "nbytes", "state"),
    [
        (LAYOUT.data_start, 1, VALID),
        (LAYOUT.data_start + 5, LAYOUT.slot_bytes, VALID),
        (2**40, 7, VALID),
        (LAYOUT.data_start - 1, 5, TORN),
        (LAYOUT.data_start, LAYOUT.slot_bytes + 1, TORN),
        (LAYOUT.data_start, 0, TORN),
        (2**63, 5, TORN),
        (2**64 - 1, 5, TORN),
    ],
)
def test_a_packed_chunk_lies_anywhere_among_the_data_and_is_no_longer_than_a_slot(
    tmp_path, offset, nbytes, state
):
    path = tmp_path / "0.journal"
    made = new_journal(path, LAYOUT, IDENTITY, 0, writer_epoch=3, packed=True)
    body = struct.pack("<QQIII", offset, nbytes, 0, 3, 0)
    put(made, LAYOUT.chunk_entry_offset(0, 1), body + struct.pack("<I", crc32c.crc32c(body, SEED)))
    made.close()
    assert struct.unpack_from("<I", path.read_bytes(), 8) == (2,), (
        "an older release must not take these places for damage"
    )
    opened = ShardRowJournal.open(path, LAYOUT, IDENTITY, 0)
    assert opened.packed
    assert opened.read_chunks(0)[1][1] == state
    opened.close()


def fill_all(journal) -> None:
    layout = journal.layout
    for layer in range(layout.slabs):
        put(
            journal,
            layout.frame_records_offset(layer),
            b"".join(
                frame_record(journal.seed, sequence=layer, position=position)
                for position in positions_of(layout, layer)
            ),
        )
    for file, slots in enumerate(layout.slots):
        put(
            journal,
            layout.chunk_entry_offset(file, 0),
            b"".join(chunk_entry(slot, 9, journal.seed) for slot in range(slots)),
        )


def positions_of(layout: JournalLayout, layer: int) -> list[int]:
    """Of the frames of a slab, in the order of their places."""
    slabs = {ARRAY.layer_of_slab(slab)[1]: slab for slab in slabs_of_shard_row(GRID, layout.shard_row)}
    positions = [p for p in range(math.prod(GRID.counts)) if GRID.slab_of_position(p) == slabs[layer]]
    return sorted(positions, key=GRID.index_in_slab)


@pytest.mark.parametrize("position", [POSITION_AT[0, 1], POSITION_AT[1, 0], 9, 2**31, 2**62, -1])
def test_a_record_of_a_frame_of_another_place_is_not_believed(journal, position):
    put(journal, LAYOUT.frame_records_offset(0), frame_record(SEED, position=POSITION_AT[0, 0]))
    assert journal.read_frames()[1][0, 0]
    put(journal, LAYOUT.frame_records_offset(0), frame_record(SEED, position=position))
    assert not journal.read_frames()[1].any()
    assert not journal.written_frames().size


def test_a_stored_slab_with_a_damaged_record_is_an_error(journal):
    fill_all(journal)
    assert journal.read_stored_slab(1) is None, "its records do not count its frames"
    put(journal, LAYOUT.frame_records_offset(1), frame_record(SEED, position=2**31))
    with pytest.raises(ShardFormatError, match="a frame record of a stored slab is damaged"):
        journal.read_stored_slab(1)


def test_clear_slabs_forgets_those_slabs_only(journal):
    fill_all(journal)
    journal.clear_slabs([1, 3])
    kept = np.array([layer not in (1, 3) for layer in range(LAYOUT.slabs)])
    assert (journal.read_frames()[1] == kept[:, None]).all()
    for file, layer_slots in enumerate(ARRAY.plane.layer_slots.tolist()):
        states = journal.read_chunks(file)[1]
        assert (states == np.where(np.repeat(kept, layer_slots), VALID, EMPTY)).all()


def test_a_slab_copied_into_another_journal_of_the_shard_row_is_believed_there(journal, tmp_path):
    fill_all(journal)
    records, _ = journal.read_frames()
    other = new_journal(tmp_path / "0.journal.new", LAYOUT, IDENTITY, 0, writer_epoch=4, packed=False)
    layer_slots = ARRAY.plane.layer_slots.tolist()
    other.copy_slab(
        2,
        records[2],
        [journal.read_chunks(file)[0][2 * slots : 3 * slots] for file, slots in enumerate(layer_slots)],
    )
    other.rename(journal.path)
    assert other.path == journal.path
    other.close()
    again = ShardRowJournal.open(journal.path, LAYOUT, IDENTITY, 0)
    assert again.writer_epoch == 4, "it took the other one's place"
    copied = np.array([layer == 2 for layer in range(LAYOUT.slabs)])
    assert (again.read_frames()[1] == copied[:, None]).all()
    for file, slots in enumerate(layer_slots):
        assert (again.read_chunks(file)[1] == np.where(np.repeat(copied, slots), VALID, EMPTY)).all()
    again.close()


def test_a_smaller_shard_row_at_the_edge(tmp_path):
    layout = JournalLayout.of(ARRAY, LAST_GROUP, RECORD)
    assert layout.slabs == LAYOUT.slabs // 2
    journal = new_journal(tmp_path / "j", layout, IDENTITY, LAST_GROUP, 1, packed=False)
    fill_all(journal)
    assert journal.read_frames()[1].all()
    assert all((journal.read_chunks(file)[1] == VALID).all() for file in range(layout.files))
    journal.close()


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def refused(path, layout=LAYOUT, identity=IDENTITY, shard_row=0, match="") -> None:
    before = open_descriptors()
    with pytest.raises(ShardFormatError, match=match):
        ShardRowJournal.open(path, layout, identity, shard_row)
    assert open_descriptors() == before


def test_the_journal_of_another_acquisition_shard_row_or_layout_is_refused(journal, path):
    refused(path, identity=bytes(16), match="identity")
    refused(path, shard_row=1, match="shard_row")
    refused(path, layout=JournalLayout.of(ARRAY, LAST_GROUP, RECORD), match="wrong size|slabs")
    wider = ArrayLayout.of(GRID, 5000, index_location="start")
    refused(path, layout=JournalLayout.of(wider, 0, RECORD), match="slot_bytes")
    at_end = ArrayLayout.of(GRID, 100, index_location="end")
    refused(path, layout=JournalLayout.of(at_end, 0, RECORD), match="data_start")


def test_any_flipped_bit_of_the_header_page_is_found(journal, path):
    data = path.read_bytes()
    for bit in range(8 * PAGE_BYTES):
        flipped = data[bit // 8] ^ 1 << bit % 8
        os.pwrite(journal.descriptor, bytes([flipped]), bit // 8)
        with pytest.raises(ShardFormatError):
            ShardRowJournal.open(path, LAYOUT, IDENTITY, 0)
        os.pwrite(journal.descriptor, data[bit // 8 : bit // 8 + 1], bit // 8)
    ShardRowJournal.open(path, LAYOUT, IDENTITY, 0).close()


@pytest.mark.parametrize("size", [0, 1, PAGE_BYTES, LAYOUT.file_bytes - 1, LAYOUT.file_bytes + 1, 2**40])
def test_a_file_of_another_size_is_refused(journal, path, size):
    os.ftruncate(journal.descriptor, size)
    refused(path, match="wrong size")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", match="wrong size")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    for name, what in (("link", "is a symbolic link"), ("missing", "cannot open"), (".", "cannot open")):
        with pytest.raises(StorageError, match=what):
            ShardRowJournal.open(tmp_path / name, LAYOUT, IDENTITY, 0)


def test_a_file_cut_while_open_is_an_error_and_no_hang(journal):
    os.ftruncate(journal.descriptor, PAGE_BYTES + 5)
    with pytest.raises(StorageError, match="cut while open"):
        journal.read_frames()


def test_delete_closes_and_removes(journal, path):
    before = open_descriptors()
    journal.delete()
    assert not path.exists()
    assert open_descriptors() == before - 1


@pytest.mark.parametrize(
    "point",
    ["journal.before_create", "journal.before_preallocate", "journal.before_header", "journal.before_sync"],
)
def test_a_journal_that_cannot_be_created_leaves_nothing(path, failing, point):
    before = open_descriptors()
    failing(point, errno.ENOSPC)
    with pytest.raises(StorageFullError):
        new_journal(path, LAYOUT, IDENTITY, 0, 1, packed=False)
    assert not path.exists()
    assert open_descriptors() == before


def test_a_journal_whose_name_is_not_durable_was_not_created(path, failing):
    failing("directory.before_sync")
    with pytest.raises(StorageError):
        new_journal(path, LAYOUT, IDENTITY, 0, 1, packed=False)
    assert not path.exists()


def test_a_journal_that_is_there_is_not_replaced(journal, path):
    data = path.read_bytes()
    with pytest.raises(StorageError, match="exists"):
        new_journal(path, LAYOUT, IDENTITY, 0, 4, packed=False)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("point", "call"),
    [
        ("journal.before_sync", lambda journal: journal.sync()),
        ("journal.before_clear", lambda journal: journal.clear_slabs([0])),
        ("journal.before_read", lambda journal: journal.read_frames()),
        ("journal.before_read", lambda journal: journal.read_chunks(0)),
        ("journal.before_copy", lambda journal: journal.copy_slab(0, *journal.read_frames()[:1], [])),
        ("journal.before_replace", lambda journal: journal.rename(journal.path.with_name("other"))),
        ("journal.before_delete", lambda journal: journal.delete()),
    ],
)
def test_io_errors_are_typed(journal, path, failing, point, call):
    failing(point)
    with pytest.raises(StorageError, match=rf"Input/output error|{path.name}"):
        call(journal)


@pytest.mark.parametrize("cut", [0, 1, 8, 9, 100, PAGE_BYTES - 1])
def test_a_header_whose_write_was_cut_short_says_nothing(journal, path, cut):
    """A kill within that write: entries come only once it is durable. With one behind it, it is damaged."""
    page = path.read_bytes()[:PAGE_BYTES]

    def opens() -> ShardRowJournal:
        return ShardRowJournal.open(path, LAYOUT, IDENTITY, 0)

    with path.open("r+b") as file:
        file.write(page[:cut].ljust(PAGE_BYTES, b"\0"))
    assert if_begun(path, opens) is None
    with path.open("r+b") as file:
        file.seek(PAGE_BYTES + 1000)
        file.write(b"x")
    if cut >= 8:  # less is not told from a page of zeros, which costs a reader one look
        with pytest.raises(ShardFormatError):
            if_begun(path, opens)
    with path.open("r+b") as file:
        file.write(page)
    if_begun(path, opens).close()
