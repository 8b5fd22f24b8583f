"""crc32c: the published answers, the hardware way and the table way, odd addresses and lengths around a
lane."""

from __future__ import annotations

import crc32c as crc32c_package
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.kernels import checksum

# RFC 3720, B.4
KNOWN = {
    "zeros": (bytes(32), 0x8A9136AA),
    "ones": (b"\xff" * 32, 0x62A8AB43),
    "up": (bytes(range(32)), 0x46DD794E),
    "down": (bytes(range(31, -1, -1)), 0x113FDB5C),
    "iscsi read": (
        bytes.fromhex(
            "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
        ),
        0xD9963A56,
    ),
    "digits": (b"123456789", 0xE3069283),
    "nothing": (b"", 0),
}


def kernel_crc32c(guarded, data: bytes) -> int:
    memory = guarded(len(data))
    memory.view[:] = np.frombuffer(data, np.uint8)
    return int(checksum.crc32c_at(memory.address, len(data)))


def table_crc32c(guarded, data: bytes) -> int:
    """The way of machines without the instruction; the bytes after the last whole word as ``crc32c_at`` does
    them."""
    memory = guarded(len(data))
    memory.view[:] = np.frombuffer(data, np.uint8)
    words = len(data) // 8 * 8
    value = int(
        checksum._update_tables(
            np.uint32(0xFFFFFFFF), memory.address, words, checksum._SLICES, checksum._SHIFT_ONE_LANE
        )
    )
    for byte in data[words:]:
        value = value >> 8 ^ int(checksum._SLICES[0, (value ^ byte) & 0xFF])
    return value ^ 0xFFFFFFFF


@pytest.mark.parametrize("name", KNOWN)
def test_known_answers(guarded, name):
    data, expected = KNOWN[name]
    assert reference.crc32c(data) == expected
    assert kernel_crc32c(guarded, data) == expected
    assert table_crc32c(guarded, data) == expected


@given(data=st.binary(max_size=200))
def test_short_buffers_equal_the_twin(guarded, data):
    assert kernel_crc32c(guarded, data) == table_crc32c(guarded, data) == reference.crc32c(data)


LANES = 3 * checksum.LANE_BYTES


@pytest.mark.parametrize(
    "count",
    [
        LANES - 8,
        LANES - 1,
        LANES,
        LANES + 1,
        LANES + 8,
        2 * LANES - 3,
        2 * LANES,
        2 * LANES + 4097,
        7 * LANES + 5,
    ],
)
def test_lengths_around_the_three_lanes(guarded, count):
    data = np.random.default_rng(count).bytes(count)
    expected = crc32c_package.crc32c(data)
    assert kernel_crc32c(guarded, data) == expected
    assert table_crc32c(guarded, data) == expected


@given(first=st.binary(max_size=100), second=st.binary(max_size=100))
def test_a_crc_goes_on_from_a_seed(guarded, first, second):
    memory = guarded(len(second))
    memory.view[:] = np.frombuffer(second, np.uint8)
    whole = crc32c_package.crc32c(first + second)
    assert int(checksum.crc32c_from(crc32c_package.crc32c(first), memory.address, len(second))) == whole
    assert reference.crc32c(second, reference.crc32c(first)) == whole
