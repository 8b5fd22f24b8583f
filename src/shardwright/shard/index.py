"""The shard index of the Zarr v3 sharding codec: (offset, nbytes) as little-endian u64 for each inner chunk,
then a crc32c of these bytes."""

from __future__ import annotations

import crc32c
import numpy as np

from shardwright.model.errors import ShardFormatError

INDEX_ENTRY = np.dtype([("offset", "<u8"), ("nbytes", "<u8")])
EMPTY = 2**64 - 1  # both fields of an absent chunk
CHECKSUM_BYTES = 4


def index_bytes(chunks: int) -> int:
    """Returns the size of an encoded index."""
    return chunks * INDEX_ENTRY.itemsize + CHECKSUM_BYTES


def empty_index(chunks: int) -> np.ndarray:
    """Returns INDEX_ENTRY[chunks], every chunk absent."""
    entries = np.empty(chunks, INDEX_ENTRY)
    entries["offset"] = EMPTY
    entries["nbytes"] = EMPTY
    return entries


def encode_index(entries: np.ndarray) -> bytes:
    """Returns the encoded index, ``index_bytes(len(entries))`` bytes."""
    data = entries.astype(INDEX_ENTRY, copy=False).tobytes()
    return data + crc32c.crc32c(data).to_bytes(CHECKSUM_BYTES, "little")


def decode_index(data: bytes, chunks: int) -> np.ndarray:
    """Returns INDEX_ENTRY[chunks]. Raises ``ShardFormatError`` when the size or the checksum is wrong."""
    if len(data) != index_bytes(chunks):
        raise ShardFormatError(
            "shard index has the wrong size",
            expected=f"{index_bytes(chunks)} bytes",
            got=f"{len(data)} bytes",
        )
    body, recorded = data[:-CHECKSUM_BYTES], int.from_bytes(data[-CHECKSUM_BYTES:], "little")
    computed = crc32c.crc32c(body)
    if computed != recorded:
        raise ShardFormatError(
            "shard index fails its crc32c", expected=f"{recorded:#010x}", got=f"{computed:#010x}"
        )
    return np.frombuffer(body, INDEX_ENTRY)
