"""Chunks of strings, as the frame table has them: Zarr's data type ``string`` with the codecs vlen-utf8, gzip
and crc32c.

    | count u32 | length u32, UTF-8 of that length | ... |      little-endian, then gzip, then its crc32c
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.shard.index import CHECKSUM_BYTES

from .decode import checked_content, gunzip

if TYPE_CHECKING:
    import numpy.typing as npt

_LENGTH_BYTES = 4


def encode_strings(values: npt.NDArray[np.bytes_]) -> bytes:
    """Returns one chunk of strings, given as UTF-8 with zeros behind each: S[n]. It takes three times the
    memory of ``values``."""
    count, width = values.size, values.dtype.itemsize
    lengths = np.char.str_len(values)
    rows = np.empty((count, _LENGTH_BYTES + width), np.uint8)
    rows[:, :_LENGTH_BYTES] = lengths.astype("<u4").view(np.uint8).reshape(count, _LENGTH_BYTES)
    rows[:, _LENGTH_BYTES:] = np.ascontiguousarray(values).view(np.uint8).reshape(count, width)
    used = np.arange(_LENGTH_BYTES + width) < _LENGTH_BYTES + lengths[:, None]
    return with_checksum(
        gzip.compress(count.to_bytes(_LENGTH_BYTES, "little") + rows[used].tobytes(), 1, mtime=0)
    )


def with_checksum(data: bytes) -> bytes:
    """Returns the data with their crc32c behind them, as the Zarr codec ``crc32c``."""
    return data + crc32c.crc32c(data).to_bytes(CHECKSUM_BYTES, "little")


def decode_strings(data: bytes, count: int, most_bytes: int) -> npt.NDArray[np.object_]:
    """Returns the strings of one chunk that has ``count`` of them, object[count] of str. Raises
    ``ShardFormatError`` when it does not decode, or to more than ``most_bytes``."""
    content = gunzip(checked_content(memoryview(data)), most_bytes)
    if int.from_bytes(content[:_LENGTH_BYTES], "little") != count:
        raise ShardFormatError("a chunk of strings has another number of them", expected=count)
    strings, offset = np.empty(count, object), _LENGTH_BYTES
    for i in range(count):
        start = offset + _LENGTH_BYTES
        offset = start + int.from_bytes(content[offset:start], "little")
        if offset > len(content):
            break
        try:
            strings[i] = content[start:offset].decode()
        except UnicodeDecodeError as error:
            raise ShardFormatError("a string is no UTF-8", got=str(error)[:160]) from None
    if offset != len(content):
        raise ShardFormatError(
            "a chunk of strings has another length", expected=f"{offset} bytes", got=len(content)
        )
    return strings
