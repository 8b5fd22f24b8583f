"""The staging area: only a frame whose record and pixels both check is one."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

import crc32c
import numpy as np
import pytest

from shardwright.array.grid import Grid, Grids
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.model.errors import ShardFormatError, StorageError, StorageFullError
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.staging import StagingArea

from .sidecars import IDENTITY, RECORD, frame_record, put, seed_of

SLOTS, FRAME_BYTES = 5, 5000
SEED = seed_of(shard_row=-1)
SHAPE = (SLOTS, FRAME_BYTES, RECORD, IDENTITY)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "staging"


@pytest.fixture
def staging(path):
    made = StagingArea.create(path, *SHAPE)
    yield made
    made.close()


def stage(staging, slot: int, pixels: bytes, seed: int = SEED, **fields) -> None:
    put(staging, staging.data_offset(slot), pixels)
    put(staging, staging.entry_offset(slot), frame_record(seed, pixels_crc=crc32c.crc32c(pixels), **fields))


def pixels_of(number: int) -> bytes:
    return np.random.default_rng(number).bytes(FRAME_BYTES)


def test_places_never_overlap_and_fill_the_file(staging, path):
    taken = np.zeros(path.stat().st_size, np.uint8)
    taken[:PAGE_BYTES] += 1
    for slot in range(SLOTS):
        assert staging.data_offset(slot) % PAGE_BYTES == 0
        taken[staging.data_offset(slot) :][: staging.slot_bytes] += 1
        taken[staging.entry_offset(slot) :][: RECORD.itemsize] += 1
    assert taken.max() == 1
    assert np.flatnonzero(taken == 0).size < PAGE_BYTES
    assert path.stat().st_blocks * 512 >= path.stat().st_size, "real blocks, not a sparse file"
    many = np.arange(SLOTS)
    assert staging.data_offset(many).tolist() == [staging.data_offset(slot) for slot in range(SLOTS)]
    assert staging.entry_offset(many).tolist() == [staging.entry_offset(slot) for slot in range(SLOTS)]


def test_the_header_is_as_format_md_draws_it(staging, path):
    data = path.read_bytes()[:PAGE_BYTES]
    assert struct.unpack_from("<8s2I16s3q", data) == (
        b"SWSTAGNG",
        1,
        RECORD.itemsize,
        IDENTITY,
        SLOTS,
        FRAME_BYTES,
        path.stat().st_size,
    )
    assert not any(data[56:4092])
    assert struct.unpack_from("<I", data, 4092) == (crc32c.crc32c(data[:4092]),)


def test_staged_frames_are_found_again_and_mapped(staging, path):
    assert not staging.read()[1].any()
    for slot in (1, 4):
        stage(staging, slot, pixels_of(slot), sequence=10 + slot)
    staging.sync()
    again = StagingArea.open(path, *SHAPE)
    records, valid = again.read()
    assert again.seed == SEED
    assert np.flatnonzero(valid).tolist() == [1, 4]
    assert records["sequence"][valid].tolist() == [11, 14]
    address = again.map()
    assert address == again.map()
    for slot in (1, 4):
        assert ctypes.string_at(address + slot * again.slot_bytes, FRAME_BYTES) == pixels_of(slot)
    again.close()


def test_a_record_of_a_place_that_no_frame_can_have_is_damaged(staging, path):
    plane = [Dimension(name=name, count=size, chunk_size=size) for name, size in (("y", 50), ("x", 100))]
    spec = ArraySpec(dtype="uint8", dimensions=[Dimension(name="t", count=8, chunk_size=2), *plane])
    grids = Grids((Grid.of(spec),))
    positions = (7, 8, -1, 1 << 62, 0)
    for slot, position in enumerate(positions):
        stage(staging, slot, pixels_of(slot), position=position)
    again = StagingArea.open(path, *SHAPE, grids=grids)
    records, valid = again.read()
    assert valid.tolist() == [True, False, False, False, True]
    assert again.spoiled(records, valid)[1], "nobody knows what they were"
    assert again.spoiled(records, valid)[0].size == 0
    again.close()


def test_a_frame_over_another_one_counts_as_none_until_its_record_follows(staging):
    stage(staging, 2, pixels_of(1), sequence=1)
    put(staging, staging.data_offset(2), pixels_of(2)[:1])
    assert not staging.read()[1].any(), "the old record, the new frame's first byte"
    put(staging, staging.data_offset(2), pixels_of(2))
    assert not staging.read()[1].any()
    stage(staging, 2, pixels_of(2), sequence=2)
    records, valid = staging.read()
    assert (np.flatnonzero(valid).tolist(), records["sequence"][2]) == ([2], 2)


def test_a_record_torn_at_any_byte_is_not_believed(staging):
    pixels = pixels_of(0)
    put(staging, staging.data_offset(0), pixels)
    new = frame_record(SEED, pixels_crc=crc32c.crc32c(pixels), sequence=2, frame_id=9)
    for torn in range(len(new) + 1):
        data = new[:torn].ljust(len(new), b"\0")
        put(staging, staging.entry_offset(0), data)
        assert staging.read()[1][0] == (data == new), torn


def test_any_flipped_bit_of_pixels_or_record_is_found(path):
    small = StagingArea.create(path, 2, 40, RECORD, IDENTITY)
    pixels = bytes(range(40))
    stage(small, 1, pixels, sequence=3)
    for place, count in ((small.data_offset(1), 40), (small.entry_offset(1), RECORD.itemsize)):
        for bit in range(8 * count):
            (byte,) = os.pread(small.descriptor, 1, place + bit // 8)
            put(small, place + bit // 8, bytes([byte ^ 1 << bit % 8]))
            assert not small.read()[1].any(), bit
            put(small, place + bit // 8, bytes([byte]))
    assert small.read()[1].tolist() == [False, True]
    small.close()


@pytest.mark.parametrize(
    "stranger",
    [seed_of(shard_row=0), seed_of(identity=bytes(16), shard_row=-1), 0],
    ids=["a journal", "another acquisition", "no seed"],
)
def test_records_of_another_file_are_refused(staging, stranger):
    stage(staging, 0, pixels_of(0), stranger)
    assert not staging.read()[1].any()


@pytest.mark.parametrize(
    "shape",
    [
        (SLOTS + 1, *SHAPE[1:]),
        (SLOTS, FRAME_BYTES + 1, *SHAPE[2:]),
        (SLOTS, 9000, *SHAPE[2:]),
        (*SHAPE[:3], bytes(16)),
    ],
    ids=["slots", "bytes of a frame", "bytes of a file", "identity"],
)
def test_another_staging_area_is_refused(staging, path, shape):
    with pytest.raises(ShardFormatError, match=r"does not fit|wrong size"):
        StagingArea.open(path, *shape)


def test_any_flipped_bit_of_the_header_page_is_found(staging, path):
    data = path.read_bytes()
    for bit in range(0, 8 * PAGE_BYTES, 3):
        put(staging, bit // 8, bytes([data[bit // 8] ^ 1 << bit % 8]))
        with pytest.raises(ShardFormatError):
            StagingArea.open(path, *SHAPE)
        put(staging, bit // 8, data[bit // 8 : bit // 8 + 1])


@pytest.mark.parametrize(
    "point",
    ["staging.before_create", "staging.before_preallocate", "staging.before_header", "staging.before_sync"],
)
def test_a_staging_area_that_cannot_be_created_leaves_nothing(path, failing, point):
    failing(point, errno.ENOSPC)
    with pytest.raises(StorageFullError):
        StagingArea.create(path, *SHAPE)
    assert not path.exists()


@pytest.mark.parametrize(
    ("point", "call"),
    [
        ("before_sync", StagingArea.sync),
        ("before_read", StagingArea.read),
        ("before_clear", lambda area: area.clear(np.array([1]))),
    ],
)
def test_io_errors_are_typed(staging, failing, point, call):
    failing(f"staging.{point}")
    with pytest.raises(StorageError, match="Input/output error"):
        call(staging)
