"""One shard file, read with pread: its index, the check of its entries, and the bytes of one chunk at a
time."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import LinkError, ShardFormatError, StorageError
from shardwright.shard.index import EMPTY
from shardwright.storage import beneath
from shardwright.storage.spilled import open_shard

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from .store import StoredArray


class ShardFile:
    """A shard file open for reading; a context manager. Raises ``StorageError`` when the system refuses,
    ``ShardFormatError`` for a file that cannot be a shard."""

    def __init__(self, array: StoredArray, path: Path) -> None:
        self.array = array
        self.path = path
        try:
            self._fd = open_shard(path)
        except LinkError:
            raise
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        status = os.fstat(self._fd)
        self.file_bytes = status.st_size
        self.allocated_bytes = status.st_blocks * 512
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ShardFormatError(f"{path} is not a regular file")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        beneath.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    @property
    def data_range(self) -> tuple[int, int]:
        """[start, stop) of the bytes in which chunks may lie: the file without its index."""
        return self.array.index.data_range(self.file_bytes)

    @property
    def index_offset(self) -> int:
        return self.array.index.offset(self.data_range[1])

    def read_index(self) -> npt.NDArray[np.void]:
        """Returns INDEX_ENTRY[chunks_per_shard], its crc32c checked."""
        return self.array.index.read(self.file_bytes, self.read_bytes)

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills ``buffer`` from ``offset``. Raises ``ShardFormatError`` if the file was truncated
        meanwhile."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
            except OSError as error:
                raise StorageError(f"cannot read {self.path}: {error.strerror}") from error
            if count == 0:
                raise ShardFormatError(
                    "shard ends too early", expected=f"{len(buffer)} bytes at {offset}", got=done
                )
            done += count


@dataclass(frozen=True)
class EntryCheck:
    """The result of checking the index alone. ``present``, ``sound``, ``cropped``: bool[chunks]. A sound
    entry may be read. A cropped one is present although its chunk lies wholly outside the array's shape, as
    ``resize`` of zarr-python leaves it. ``faults``: (chunk number, what is wrong).

    Entries may share bytes: chunks of the same content need to be stored only once.
    """

    present: npt.NDArray[np.bool_]
    sound: npt.NDArray[np.bool_]
    cropped: npt.NDArray[np.bool_]
    faults: list[tuple[int, str]]


def check_entries(
    array: StoredArray, shard: tuple[int, ...], entries: npt.NDArray[np.void], data_range: tuple[int, int]
) -> EntryCheck:
    """Checks every index entry against the file, the codec's worst case and the array's shape."""
    start, stop = map(np.uint64, data_range)
    offsets, sizes = entries["offset"], entries["nbytes"]
    present = (offsets != EMPTY) | (sizes != EMPTY)
    half = (offsets == EMPTY) ^ (sizes == EMPTY)
    # sizes are limited to stop first, so that the subtraction cannot wrap around
    outside = (
        present & ~half & ((sizes > stop) | (offsets < start) | (offsets > stop - np.minimum(sizes, stop)))
    )
    limit = array.codecs.max_encoded_bytes(array.chunk_bytes)
    long = present & ~half & ~outside & (sizes > limit)
    nothing = present & ~half & ~outside & (sizes == 0)
    sound = present & ~half & ~outside & ~long & ~nothing
    faults = [
        (int(k), "index entry is half empty: only one of offset and size is 2^64-1")
        for k in np.flatnonzero(half)
    ]
    faults += [
        (
            int(k),
            (
                f"chunk lies outside the data of its shard: {sizes[k]} bytes at {offsets[k]}, not in "
                f"[{start}, {stop})"
            ),
        )
        for k in np.flatnonzero(outside)
    ]
    faults += [
        (int(k), f"chunk is longer than its codec can make it: {sizes[k]} bytes, at most {limit}")
        for k in np.flatnonzero(long)
    ]
    faults += [(int(k), "chunk has a size of 0") for k in np.flatnonzero(nothing)]
    return EntryCheck(present, sound, present & ~chunks_in_shape(array, shard), faults)


def chunks_in_shape(array: StoredArray, shard: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Returns bool[chunks]: true for each chunk of this shard that holds an element of the array."""
    inside = np.ones((), np.bool_)
    for chunks, live in zip(array.shard_chunks, array.extent_inside(shard), strict=True):
        inside = np.logical_and.outer(inside, np.arange(chunks) < live)
    return inside.ravel()
