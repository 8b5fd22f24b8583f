"""The shard index of the Zarr v3 sharding codec: (offset, nbytes) as u64 for each inner chunk, encoded by the
codecs that the metadata name for it; ours are little-endian, with a crc32c of these bytes behind them or not.

An array without shards has files of one chunk and nothing else. Such a file is taken for a shard whose index
has no bytes: its only entry is the whole file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import crc32c
import numpy as np

from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.array.spec import IndexLocation

INDEX_ENTRY = np.dtype([("offset", "<u8"), ("nbytes", "<u8")])
EMPTY = 2**64 - 1  # both fields of an absent chunk
CHECKSUM_BYTES = 4  # of each crc32c: behind an index, behind a chunk that has an inner one, in a header


def empty_index(chunks: int) -> np.ndarray:
    """Returns INDEX_ENTRY[chunks], every chunk absent."""
    entries = np.empty(chunks, INDEX_ENTRY)
    entries["offset"] = EMPTY
    entries["nbytes"] = EMPTY
    return entries


class IndexCodec(Protocol):
    """The chain of ``index_codecs``. ``has_checksum``: bytes that were changed do not decode."""

    has_checksum: bool

    def encoded_bytes(self, chunks: int) -> int:
        """Returns the size of an index of so many entries."""

    def encode(self, entries: np.ndarray) -> bytes: ...

    def decode(self, data: bytes, chunks: int) -> np.ndarray:
        """Returns INDEX_ENTRY[chunks]. Raises ``ShardFormatError`` when the size or the checksum is wrong."""


class LittleEndian:
    """The codec ``bytes``, little-endian, and crc32c behind it if ``has_checksum``."""

    def __init__(self, *, has_checksum: bool) -> None:
        self.has_checksum = has_checksum

    def encoded_bytes(self, chunks: int) -> int:
        return chunks * INDEX_ENTRY.itemsize + self.has_checksum * CHECKSUM_BYTES

    def encode(self, entries: np.ndarray) -> bytes:
        data = entries.astype(INDEX_ENTRY, copy=False).tobytes()
        return data + crc32c.crc32c(data).to_bytes(CHECKSUM_BYTES, "little") if self.has_checksum else data

    def decode(self, data: bytes, chunks: int) -> np.ndarray:
        if len(data) != self.encoded_bytes(chunks):
            raise ShardFormatError(
                "shard index has the wrong size",
                expected=f"{self.encoded_bytes(chunks)} bytes",
                got=f"{len(data)} bytes",
            )
        body = data[: chunks * INDEX_ENTRY.itemsize]
        if self.has_checksum:
            computed, recorded = crc32c.crc32c(body), int.from_bytes(data[len(body) :], "little")
            if computed != recorded:
                raise ShardFormatError(
                    "shard index fails its crc32c", expected=f"{recorded:#010x}", got=f"{computed:#010x}"
                )
        return np.frombuffer(body, INDEX_ENTRY)


LITTLE_ENDIAN = LittleEndian(has_checksum=False)
LITTLE_ENDIAN_CRC32C = LittleEndian(has_checksum=True)  # what ZEP 2 recommends


@dataclass(frozen=True)
class ShardIndex:
    """The index of every shard of an array: ``chunks`` entries at one ``location`` of the file.
    ``most_chunk_bytes``: the longest that a codec makes a chunk."""

    chunks: int
    location: IndexLocation
    codec: IndexCodec = LITTLE_ENDIAN_CRC32C
    most_chunk_bytes: int = EMPTY

    @property
    def nbytes(self) -> int:
        """The size of the encoded index."""
        return 0 if self.location == "none" else self.codec.encoded_bytes(self.chunks)

    @property
    def most_bytes(self) -> int:
        """The longest that a shard without unused bytes can be."""
        return self.nbytes + self.chunks * self.most_chunk_bytes

    @property
    def before_bytes(self) -> int:
        """The part of it that lies before all chunks."""
        return self.nbytes if self.location == "start" else 0

    @property
    def behind_bytes(self) -> int:
        """The part of it that lies behind all chunks."""
        return self.nbytes - self.before_bytes

    def offset(self, data_end: int) -> int:
        """Returns where it begins in a file whose chunks end at ``data_end``."""
        return 0 if self.location == "start" else data_end

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
        return b"" if self.location == "none" else self.codec.encode(entries)

    def decode(self, data: bytes) -> np.ndarray:
        """Returns INDEX_ENTRY[chunks] of its ``nbytes`` bytes. Raises ``ShardFormatError``."""
        return self.codec.decode(data, self.chunks)

    def read(self, file_bytes: int, read: Callable[[int, int], bytes]) -> np.ndarray:
        """Returns INDEX_ENTRY[chunks] of a file of so many bytes. ``read`` returns so many bytes from an
        offset. Raises ``ShardFormatError`` for a file that is too short or an index that fails its
        checksum."""
        _, data_end = self.data_range(file_bytes)
        if self.location == "none":
            return np.array([(0, file_bytes)], INDEX_ENTRY)
        return self.decode(read(self.offset(data_end), self.nbytes))
