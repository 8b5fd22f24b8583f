"""The shard index: what zarr-python writes, round trips, and every way in which it can be wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model.errors import ShardFormatError
from shardwright.shard.index import EMPTY, INDEX_ENTRY, LITTLE_ENDIAN_CRC32C, ShardIndex, empty_index


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=20))
def test_round_trip(pairs):
    entries = np.array(pairs, INDEX_ENTRY)
    data = LITTLE_ENDIAN_CRC32C.encode(entries)
    assert len(data) == ShardIndex(len(pairs), "end").nbytes == 16 * len(pairs) + 4
    assert LITTLE_ENDIAN_CRC32C.decode(data, len(pairs)).tolist() == pairs


def test_the_bytes_are_little_endian_pairs_and_their_crc32c():
    data = LITTLE_ENDIAN_CRC32C.encode(np.array([(1, 2), (EMPTY, EMPTY)], INDEX_ENTRY))
    assert data[:16] == b"\x01" + bytes(7) + b"\x02" + bytes(7)
    assert data[16:32] == b"\xff" * 16
    assert int.from_bytes(data[32:], "little") == bitwise_crc32c(data[:32])


def bitwise_crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_an_empty_index_is_all_absent():
    assert empty_index(3).tolist() == [(EMPTY, EMPTY)] * 3


def test_every_flipped_bit_is_noticed():
    data = LITTLE_ENDIAN_CRC32C.encode(np.array([(0, 7), (4096, 9)], INDEX_ENTRY))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ShardFormatError, match="crc32c"):
            LITTLE_ENDIAN_CRC32C.decode(bytes(damaged), 2)


@pytest.mark.parametrize("size", [0, 3, 4, 35, 37, 52])
def test_a_wrong_size_is_named(size):
    with pytest.raises(ShardFormatError, match=rf"expected 36 bytes; got {size} bytes"):
        LITTLE_ENDIAN_CRC32C.decode(bytes(size), 2)


@pytest.mark.parametrize(
    ("place", "offset", "data", "before", "behind"),
    [("end", 100, (0, 64), 0, 36), ("start", 0, (36, 100), 36, 0), ("none", 100, (0, 100), 0, 0)],
)
def test_its_place_in_a_file(place, offset, data, before, behind):
    index = ShardIndex(1 if place == "none" else 2, place)
    assert (index.nbytes, index.before_bytes, index.behind_bytes) == (before + behind, before, behind)
    assert index.offset(100) == offset
    assert index.data_range(100) == data


@pytest.mark.parametrize("place", ["end", "start"])
def test_an_index_is_read_from_its_place(place):
    index, entries = ShardIndex(2, place), np.array([(40, 7), (EMPTY, EMPTY)], INDEX_ENTRY)
    chunk, encoded = bytes(range(60)), index.encode(entries)
    file = encoded + chunk if place == "start" else chunk + encoded
    assert index.read(len(file), lambda offset, nbytes: file[offset : offset + nbytes]).tolist() == [
        (40, 7),
        (EMPTY, EMPTY),
    ]
    with pytest.raises(ShardFormatError, match="shorter than its index; expected 36 bytes or more; got 35"):
        index.read(35, lambda offset, nbytes: file[offset : offset + nbytes])


def test_without_shards_the_file_is_the_chunk():
    index = ShardIndex(1, "none")
    assert index.encode(np.array([(0, 7)], INDEX_ENTRY)) == b""

    def read(offset: int, nbytes: int) -> bytes:
        raise AssertionError("there is nothing to be read")

    assert index.read(7, read).tolist() == [(0, 7)]
