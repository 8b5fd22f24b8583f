"""The shard index of the Zarr v3 sharding codec: (offset, nbytes) as little-endian u64 for each inner chunk,
then a crc32c of these bytes.

An array without shards has files of one chunk and nothing else. Such a file is taken for a shard whose index
has no bytes: its only entry is the whole file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.array.spec import IndexPlace

INDEX_ENTRY = np.dtype([("offset", "<u8"), ("nbytes", "<u8")])
EMPTY = 2**64 - 1  # both fields of an absent chunk
CHECKSUM_BYTES = 4


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
    if len(data) != _encoded_bytes(chunks):
        raise ShardFormatError(
            "shard index has the wrong size",
            expected=f"{_encoded_bytes(chunks)} bytes",
            got=f"{len(data)} bytes",
        )
    body, recorded = data[:-CHECKSUM_BYTES], int.from_bytes(data[-CHECKSUM_BYTES:], "little")
    computed = crc32c.crc32c(body)
    if computed != recorded:
        raise ShardFormatError(
            "shard index fails its crc32c", expected=f"{recorded:#010x}", got=f"{computed:#010x}"
        )
    return np.frombuffer(body, INDEX_ENTRY)


def _encoded_bytes(chunks: int) -> int:
    return chunks * INDEX_ENTRY.itemsize + CHECKSUM_BYTES


@dataclass(frozen=True)
class ShardIndex:
    """The index of every shard of an array: ``chunks`` entries at one ``place`` of the file."""

    chunks: int
    place: IndexPlace

    @property
    def nbytes(self) -> int:
        """The size of the encoded index."""
        return 0 if self.place == "none" else _encoded_bytes(self.chunks)

    @property
    def before_bytes(self) -> int:
        """The part of it that lies before all chunks."""
        return self.nbytes if self.place == "start" else 0

    @property
    def behind_bytes(self) -> int:
        """The part of it that lies behind all chunks."""
        return self.nbytes - self.before_bytes

    def offset(self, data_end: int) -> int:
        """Returns where it begins in a file whose chunks end at ``data_end``."""
        return 0 if self.place == "start" else data_end

    def data_range(self, file_bytes: int) -> tuple[int, int]:
        """Returns [start, stop) of the bytes in which the chunks of such a file lie. Raises
        ``ShardFormatError`` for a file that is shorter than the index."""
        if file_bytes < self.nbytes:
            raise ShardFormatError(
                "shard is shorter than its index", expected=f"{self.nbytes} bytes or more", got=file_bytes
            )
        return self.before_bytes, file_bytes - self.behind_bytes

    def encode(self, entries: np.ndarray) -> bytes:
        """Returns its ``nbytes`` bytes."""
        return b"" if self.place == "none" else encode_index(entries)

    def read(self, file_bytes: int, read: Callable[[int, int], bytes]) -> np.ndarray:
        """Returns INDEX_ENTRY[chunks] of a file of so many bytes. ``read`` returns so many bytes from an
        offset. Raises ``ShardFormatError`` for a file that is too short or an index that fails its
        checksum."""
        _, data_end = self.data_range(file_bytes)
        if self.place == "none":
            return np.array([(0, file_bytes)], INDEX_ENTRY)
        return decode_index(read(self.offset(data_end), self.nbytes), self.chunks)
