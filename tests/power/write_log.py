"""The log of a recorded disk, in the format of Linux' dm-log-writes: a sector of header, then for each entry
a sector about it and its data.

An entry is written after the operation it describes has been done, and before whoever asked for it hears so.
Hence a *mark*, the log's size at some moment: all that had been confirmed by then has its entry before the
mark.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

SECTOR_BYTES = 512
_MAGIC = 0x6A736677736872
_FLUSH, _FORCED, _DISCARD = 1, 2, 4
_HEADER, _ENTRY = struct.Struct("<QQQI"), struct.Struct("<QQQQ")


@dataclass(frozen=True)
class WriteLog:
    """Entries in order, each array[n]. ``starts``: where the entry begins in the log. ``offsets``, ``sizes``:
    the bytes of the disk that it writes (a flush writes none). ``barriers``: whether all before it, and
    itself, is safe from then on."""

    data: np.ndarray  # uint8, the whole log
    starts: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    barriers: np.ndarray
    discards: np.ndarray

    @classmethod
    def read(cls, path: Path) -> WriteLog:
        data = np.fromfile(path, np.uint8)
        magic, version, count, sector = _HEADER.unpack_from(data, 0)
        assert (magic, version, sector) == (_MAGIC, 1, SECTOR_BYTES), "not a write log of this kind"
        starts, entries, place = [], [], SECTOR_BYTES
        while place < data.size:
            first, sectors, flags, _ = _ENTRY.unpack_from(data, place)
            starts.append(place)
            entries.append((first * SECTOR_BYTES, sectors * SECTOR_BYTES, flags))
            place += SECTOR_BYTES + (0 if flags & _DISCARD else sectors * SECTOR_BYTES)
        assert (place, len(starts)) == (data.size, count), "the log is whole"
        table = np.array(entries, np.int64).reshape(-1, 3)
        # A forced write is safe by itself; what lies before it is not. Our disks send none.
        assert not (table[:, 2] & _FORCED).any(), "a loop device turns forced writes into flushes"
        flushes = (table[:, 2] & _FLUSH) != 0
        return cls(
            data, np.array(starts, np.int64), table[:, 0], table[:, 1], flushes, (table[:, 2] & _DISCARD) != 0
        )

    def __len__(self) -> int:
        return len(self.starts)

    def bytes_of(self, entry: int) -> np.ndarray:
        """uint8[sizes[entry]]; a discarded range reads as zeros."""
        if self.discards[entry]:
            return np.zeros(self.sizes[entry], np.uint8)
        first = self.starts[entry] + SECTOR_BYTES
        return self.data[first : first + self.sizes[entry]]

    def entries_before(self, mark: int) -> int:
        """How many entries had been begun at a mark: a cut after so many, or more, comes after the mark."""
        return int(np.searchsorted(self.starts, mark))

    def flushed_before(self, cut: int) -> int:
        """How many of the first ``cut`` entries the last flush among them has made safe (itself counted)."""
        flushes = np.flatnonzero(self.barriers[:cut])
        return int(flushes[-1]) + 1 if flushes.size else 0
