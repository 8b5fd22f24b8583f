"""The crc32c of many rows is the crc32c of each."""

from __future__ import annotations

import crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.shard import row_checksum
from shardwright.shard.row_checksum import crc32c_of_rows


@given(st.integers(0, 150), st.integers(0, 40), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_it_is_the_crc32c_of_each_row(count, words, seed, random):
    """Of a few, and of so many that their word columns are taken together."""
    table = np.random.default_rng(random).integers(0, 256, (count, 2 * words + 4), np.uint8)
    rows = table[:, :-4]  # as they lie in a file, a checksum behind each
    assert crc32c_of_rows(rows, seed).tolist() == [crc32c.crc32c(row.tobytes(), seed) for row in rows]


def test_blocks_of_rows_meet():
    rows = np.random.default_rng(1).integers(0, 256, (2 * row_checksum._BLOCK_ROWS + 3, 28), np.uint8)
    assert crc32c_of_rows(rows, 7).tolist() == [crc32c.crc32c(row.tobytes(), 7) for row in rows]
