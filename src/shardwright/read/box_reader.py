"""Reads boxes of a sharded array: chunks that lie together are fetched at once, and decoded in as many
threads as there are processors, without the GIL.

Of a chunk that a box only cuts, blocks that the box does not touch are not decompressed, where the codec has
blocks (Blosc) or none compresses.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.codecs.decode import decode_chunk_into, decode_part_into
from shardwright.model.errors import ShardFormatError
from shardwright.shard.read_back import fits_checksum
from shardwright.storage.files import read_all, storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .store import StoredArray

COALESCE_BYTES = 64 << 10  # chunks with at most such a gap between them are fetched together
MOST_FETCHED_BYTES = 4 << 20  # at once, so that all threads get a part
ABSENT, NO_CRC = -1, -1

Coordinates = tuple[int, ...]
Slices = tuple[slice, ...]


class ReadFile:
    """A file that stays open as long as somebody reads it, under whatever name."""

    def __init__(self, path: Path | str, folder: int | None = None) -> None:
        """``path`` below the open ``folder``, if given. Raises ``OSError``."""
        self.path = path
        # O_NONBLOCK: opening a named pipe must not wait for a writer
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        self.status = os.fstat(self.descriptor)

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Returns bytes of the file. Raises ``ShardFormatError`` if it ends too early, ``StorageError``."""
        with storage_errors("read", self.path):
            data = read_all(self.descriptor, offset, nbytes)
        if len(data) < nbytes:
            raise ShardFormatError(
                f"{self.path} ends too early", expected=f"{nbytes} bytes at {offset}", got=len(data)
            )
        return memoryview(data)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


@dataclass
class Located:
    """Where some chunks of one shard are, in the order in which they were asked for.

    files           those that hold them
    file            int8[n], the number of each chunk's file, ``ABSENT`` for one that is all fill
    offset, nbytes  int64[n], of its encoded bytes
    crc             int64[n], their checksum in a journal, ``NO_CRC`` for a chunk of a sealed shard
    staged          by the place of a chunk in this order: (place in the slab, pixels [rows, columns]
                    of the shard's part) of frames that are not in its encoded bytes yet
    """

    files: list[ReadFile]
    file: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    crc: np.ndarray
    staged: dict[int, list[tuple[int, np.ndarray]]] = field(default_factory=dict)

    @classmethod
    def nowhere(cls, count: int) -> Located:
        offset, nbytes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        return cls([], np.full(count, ABSENT, np.int8), offset, nbytes, np.full(count, NO_CRC, np.int64))

    def put(
        self, file: ReadFile, where: np.ndarray, entries: np.ndarray, crcs: np.ndarray | None = None
    ) -> None:
        """Sets the places ``where`` (int64[m]) to index entries of a file, unless these are absent."""
        here = entries["nbytes"] != np.uint64(2**64 - 1)
        where, entries = where[here], entries[here]
        self.file[where] = len(self.files)
        self.offset[where], self.nbytes[where] = entries["offset"], entries["nbytes"]
        self.crc[where] = NO_CRC if crcs is None else crcs[here]
        self.files.append(file)

    @property
    def is_empty(self) -> bool:
        return not self.staged and bool((self.file == ABSENT).all())

    def fetch(self, i: int) -> memoryview:
        """Returns the encoded bytes of chunk i, checked as far as there is a checksum beside them."""
        data = self.files[int(self.file[i])].read(int(self.offset[i]), int(self.nbytes[i]))
        self.check(i, data)
        return data

    def check(self, i: int, data: memoryview) -> None:
        """Raises ``ShardFormatError`` for bytes that are not those of the journal."""
        if self.crc[i] != NO_CRC and not fits_checksum(data, int(self.crc[i])):
            path = self.files[self.file[i]].path
            raise ShardFormatError(
                f"a chunk at {self.offset[i]} of {path} does not fit its checksum in the journal",
                hint="`shardwright recover` says what of this store can be read, once its writer is gone",
            )


def chunks_of_box(
    array: StoredArray, low: Coordinates, high: Coordinates
) -> tuple[np.ndarray, list[Coordinates]]:
    """Returns the numbers (int64[n]) and the coordinates, both within their shard, of the chunks that a box
    [low, high) of one shard touches."""
    ranges = [range(a // c, -(-b // c)) for a, b, c in zip(low, high, array.chunk_shape, strict=True)]
    coordinates = list(itertools.product(*ranges))
    if not coordinates:
        return np.zeros(0, np.int64), []
    numbers = np.ravel_multi_index(np.array(coordinates, np.int64).T, array.shard_chunks)
    return np.asarray(numbers, np.int64), coordinates


def read_box(
    array: StoredArray, located: Located, chunks: list[Coordinates], low: Coordinates, high: Coordinates
) -> np.ndarray[Any, Any]:
    """Returns the elements of a box [low, high) of one shard. ``chunks``: the coordinates of those that
    ``located`` has. Raises ``ShardFormatError``, ``StorageError``."""
    out = np.empty([b - a for a, b in zip(low, high, strict=True)], array.dtype)
    reading = _BoxReading(array, located, chunks, low, high, out)
    for i in np.flatnonzero(located.file == ABSENT).tolist():
        reading.fill(i)
    _all_of(reading.read, _groups(located))
    return out


def _groups(located: Located) -> list[list[int]]:
    """Returns the chunks that are there, those to be fetched together in one list, in the order of their
    bytes."""
    there = np.flatnonzero(located.file != ABSENT)
    order = there[np.lexsort((located.offset[there], located.file[there]))]
    groups: list[list[int]] = []
    start, end, file = 0, -1, ABSENT
    for i in order.tolist():
        offset, nbytes = int(located.offset[i]), int(located.nbytes[i])
        near = 0 <= offset - end <= COALESCE_BYTES and offset + nbytes - start <= MOST_FETCHED_BYTES
        if located.file[i] == file and near:
            groups[-1].append(i)
        else:
            groups.append([i])
            start, file = offset, int(located.file[i])
        end = offset + nbytes
    return groups


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, "shardwright-read")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its threads


def _all_of(work: Callable[[list[int]], None], groups: Sequence[list[int]]) -> None:
    if len(groups) == 1:
        work(groups[0])
    elif groups:
        for done in [_pool().submit(work, group) for group in groups]:
            done.result()


_local = threading.local()


def _scratch(nbytes: int) -> np.ndarray:
    """Returns memory of this thread that is used again: fresh memory costs more than decoding into it."""
    block = getattr(_local, "block", None)
    if block is None or block.size < nbytes:
        block = _local.block = np.empty(nbytes, np.uint8)
    found: np.ndarray = block[:nbytes]
    return found


class _BoxReading:
    """One call of ``read_box``. Threads write to different parts of ``_out``."""

    def __init__(
        self,
        array: StoredArray,
        located: Located,
        chunks: list[Coordinates],
        low: Coordinates,
        high: Coordinates,
        out: np.ndarray[Any, Any],
    ) -> None:
        self._array = array
        self._located = located
        self._chunks = chunks
        self._low, self._high = low, high
        self._out = out

    def _cut(self, i: int) -> tuple[Slices, Slices]:
        """Returns the part of chunk i that is in the box, as slices of the chunk and of the box."""
        cuts = []
        sizes = self._array.chunk_shape
        for c, size, low, high in zip(self._chunks[i], sizes, self._low, self._high, strict=True):
            first = c * size
            a, b = max(low, first), min(high, first + size)
            cuts.append((slice(a - first, b - first), slice(a - low, b - low)))
        return tuple(inner for inner, _ in cuts), tuple(outer for _, outer in cuts)

    def fill(self, i: int) -> None:
        """Fills in a chunk without encoded bytes."""
        inner, outer = self._cut(i)
        if i not in self._located.staged:
            self._out[outer] = self._array.fill_element
            return
        values = np.full(self._array.chunk_shape, self._array.fill_element)
        self._lay_over(i, values)
        self._out[outer] = values[inner]

    def read(self, group: list[int]) -> None:
        """Fetches and decodes chunks that lie together."""
        located = self._located
        start = int(located.offset[group[0]])
        stop = int(located.offset[group[-1]] + located.nbytes[group[-1]])
        data = located.files[located.file[group[0]]].read(start, stop - start)
        for i in group:
            first = int(located.offset[i]) - start
            chunk = data[first : first + int(located.nbytes[i])]
            located.check(i, chunk)
            self._decode(i, chunk)

    def _decode(self, i: int, data: memoryview) -> None:
        array, (inner, outer) = self._array, self._cut(i)
        first, stop = _span(inner, array.chunk_shape)
        scratch = _scratch(array.chunk_bytes)
        itemsize = array.dtype.itemsize
        if i in self._located.staged or 2 * (stop - first) > array.chunk_bytes // itemsize:
            decode_chunk_into(data, array.codecs, scratch)
        else:
            part = scratch[first * itemsize : stop * itemsize]
            decode_part_into(data, array.codecs, array.chunk_bytes, first * itemsize, part)
        values = scratch.view(array.dtype).reshape(array.chunk_shape)
        if i in self._located.staged:
            self._lay_over(i, values)
        self._out[outer] = values[inner]

    def _lay_over(self, i: int, values: np.ndarray[Any, Any]) -> None:
        lay_over(values, self._chunks[i], self._array, self._located.staged[i])


def lay_over(
    values: np.ndarray[Any, Any],
    chunk: Coordinates,
    array: StoredArray,
    frames: list[tuple[int, np.ndarray]],
) -> None:
    """Puts frames of its slab into a decoded chunk: (place, pixels of its shard's part of the frame)."""
    rows, columns = array.chunk_shape[-2:]
    top, left = chunk[-2] * rows, chunk[-1] * columns
    planes = values.reshape(-1, rows, columns)
    for place, pixels in frames:
        part = pixels[top : top + rows, left : left + columns]
        planes[place, : part.shape[0], : part.shape[1]] = part


def _span(inner: Slices, shape: Coordinates) -> tuple[int, int]:
    """Returns the elements [first, stop) of a chunk, as they lie in memory, that hold a part of it."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(part.start * stride for part, stride in zip(inner, strides, strict=True))
    last = sum((part.stop - 1) * stride for part, stride in zip(inner, strides, strict=True))
    return first, last + 1
