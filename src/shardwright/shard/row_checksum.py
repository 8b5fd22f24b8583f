"""Tables whose rows each end in their own crc32c: journals, staging areas. The checksums of all rows are
computed at once, word column by word column, without Python code for each row; a few rows are sooner done one
by one."""

from __future__ import annotations

from itertools import repeat

import crc32c
import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)  # Castagnoli, reflected
_BLOCK_ROWS = 4096  # a block stays in a near cache
_FEW_ROWS = 64  # of a record's length these take as long as its word columns do


def _word_table() -> np.ndarray:
    """Returns uint32[65536]: the crc's step over two bytes, by its low half xor these bytes."""
    table = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1)
    return table


_TABLE = _word_table()


def crc32c_of_rows(rows: np.ndarray, seed: int) -> np.ndarray:
    """Returns uint32[n]: the crc32c, started from ``seed``, of each row of uint8[n, bytes]; ``bytes`` must be
    even."""
    assert rows.shape[1] % 2 == 0, "every record is made of whole words"
    if len(rows) <= _FEW_ROWS:
        one_by_one = map(crc32c.crc32c, np.ascontiguousarray(rows), repeat(seed))
        return np.fromiter(one_by_one, np.uint32, len(rows))
    crcs = np.full(len(rows), seed ^ 0xFFFFFFFF, np.uint32)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        crc = crcs[block]
        for words in np.ascontiguousarray(rows[block]).view("<u2").T.copy():
            crc = _TABLE.take((crc ^ words) & 0xFFFF) ^ (crc >> 16)
        crcs[block] = crc
    return crcs ^ np.uint32(0xFFFFFFFF)


def seal_rows(rows: np.ndarray, seed: int) -> None:
    """Sets the end of each row of a table to the crc32c (u32) of the bytes before it, started from
    ``seed``."""
    table = rows.view(np.uint8).reshape(len(rows), -1)
    table[:, -4:] = crc32c_of_rows(table[:, :-4], seed).astype("<u4").view(np.uint8).reshape(-1, 4)


def written_rows(rows: np.ndarray) -> np.ndarray:
    """Returns bool[n]: which rows of a table are not all zeros."""
    data = rows.view(np.uint8).reshape(len(rows), -1)
    return np.asarray(data.any(axis=1))


def checked_rows(rows: np.ndarray, seed: int) -> np.ndarray:
    """Returns bool[n]: which rows of a table were written and end in the right crc32c (u32) of the bytes
    before it, started from ``seed``."""
    table = rows.view(np.uint8).reshape(len(rows), -1)
    recorded = table[:, -4:].copy().view("<u4").ravel()
    checked: np.ndarray = written_rows(rows) & (crc32c_of_rows(table[:, :-4], seed) == recorded)
    return checked
