"""A shard that did not exist before: its chunks one behind the other in a working file, the index where the
array wants it, and the name at the end.

    append ... ──▶ index ──▶ sync ──▶ every chunk and the index read back from the disk, crc32c compared
    ──▶ rename, never over an existing file

A shard of which every chunk is absent gets no file, but a line in the array's record: it reads as fill value.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from shardwright.codecs.parameters import CHECKSUM_BYTES
from shardwright.kernels.read import FILE_ENDED, read_ranges
from shardwright.kernels.write import write_slots
from shardwright.model.errors import OutputExistsError, ShardFormatError, StorageError
from shardwright.read.shard_file import ShardFile
from shardwright.shard.index import empty_index, encode_index
from shardwright.shard.shard_sums import ShardSums, shard_sum
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    make_directories,
    raise_errno,
    rename_without_replacing,
    storage_errors,
    sync_directory,
)
from shardwright.storage.working_file import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    import numpy.typing as npt

    from shardwright.read.store import StoredArray
    from shardwright.repack.runtime.throttle import Throttle

    from .chunk_encoder import EncodedChunks

WORKING_SUFFIX = ".packed"


class NewShard:
    """Owns the working file until ``publish``. A context manager: leaving it earlier deletes the file."""

    def __init__(
        self, array: StoredArray, coordinates: tuple[int, ...], work_folder: Path, throttle: Throttle
    ) -> None:
        """``work_folder``: on the array's filesystem. Nothing is made yet."""
        self.array = array
        self.target = array.path / array.shard_key(coordinates)
        self._path = (
            work_folder
            / f"{array.shard_key(coordinates).replace('/', '.')}.{secrets.token_hex(8)}{WORKING_SUFFIX}"
        )
        self._throttle = throttle
        self._entries = empty_index(array.chunks_per_shard)
        self._crcs = np.zeros(array.chunks_per_shard, np.uint32)
        self._order: list[int] = []  # chunk numbers as they lie in the file
        self._position = array.index_bytes if array.index_location == "start" else 0
        self._descriptor = -1

    @staticmethod
    def peak_bytes(array: StoredArray) -> int:
        """What it holds: index, checksums and order, once more while it is encoded and checked, and one chunk
        that is read back."""
        return 8 * array.index_bytes + array.codecs.max_encoded_bytes(array.chunk_bytes)

    @property
    def chunks(self) -> int:
        return len(self._order)

    def append(self, chunks: EncodedChunks) -> None:
        """Raises ``StorageError``, ``StorageFullError``."""
        live = chunks.nbytes > 0
        nbytes, numbers = chunks.nbytes[live], chunks.numbers[live]
        if not nbytes.size:
            return
        total = int(nbytes.sum())
        self._throttle.take(total)
        offsets = self._position + np.cumsum(nbytes) - nbytes
        with storage_errors("write", self._path):
            if self._descriptor < 0:
                reach("compact.before_create")
                self._descriptor = os.open(
                    self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
                )
            reach("compact.before_write")
            raise_errno(
                write_slots(
                    np.full(nbytes.size, self._descriptor, np.int64),
                    offsets,
                    chunks.addresses[live],
                    nbytes,
                    1,
                )
            )
        self._entries["offset"][numbers] = offsets
        self._entries["nbytes"][numbers] = nbytes
        self._crcs[numbers] = chunks.crcs[live]
        self._order += numbers.tolist()
        self._position += total

    def publish(self) -> int:
        """Index, sync, check, rename; durable when it returns. Bytes of the file, 0 when there is none.

        Raises ``StorageError``, ``ShardFormatError`` when what the disk gives back is not what was written,
        ``OutputExistsError``.
        """
        key = self.target.relative_to(self.array.path).as_posix()
        if self._descriptor < 0:
            ShardSums(self.array.path).append({key: None})
            return 0
        index = encode_index(self._entries)
        at_start = self.array.index_location == "start"
        with storage_errors("write", self._path):
            reach("compact.before_index")
            _write_all(self._descriptor, index, 0 if at_start else self._position)
            reach("compact.before_sync")
            os.fsync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            nbytes = os.fstat(self._descriptor).st_size
        self._check()
        make_directories(self.target.parent)
        order = np.array(self._order, np.int64)
        ShardSums(self.array.path).append(
            {key: shard_sum(order, self._entries["nbytes"][order], self._crcs[order])}
        )
        reach("compact.before_rename")
        rename_without_replacing(self._path, self.target)
        self._close()
        sync_directory(self.target.parent)
        return nbytes

    def _check(self) -> None:
        """What lies on the disk now is what the encoder's checksums say."""
        inner = CHECKSUM_BYTES if self.array.codecs.checksum else 0
        with ShardFile(self.array, self._path) as file:
            if file.read_index().tobytes() != self._entries.tobytes():
                raise ShardFormatError(
                    f"the index of {self._path} reads back differently",
                    hint="The disk does not keep what is written to it",
                )
            order = np.array(self._order, np.int64)
            offsets, nbytes = (self._entries[name][order].astype(np.int64) for name in ("offset", "nbytes"))
            # one for all of them: only their checksums are wanted
            room = np.empty(int(nbytes.max()), np.uint8)
            found = np.zeros(order.size, np.uint32)
            for part in _pieces(nbytes):
                self._throttle.take(int(nbytes[part].sum()))
                rooms = np.full(part.stop - part.start, room.ctypes.data, np.int64)
                error = read_ranges(file.fileno(), offsets[part], rooms, nbytes[part] - inner, found[part])
                if error:
                    raise StorageError(
                        f"cannot read {self._path} back: "
                        f"{'it was cut' if error == FILE_ENDED else os.strerror(error)}"
                    )
        for i in np.flatnonzero(found != self._crcs[order]).tolist():
            raise ShardFormatError(
                f"chunk {order[i]} of {self._path} reads back differently",
                expected=f"crc32c {self._crcs[order[i]]:08x}",
                got=f"{found[i]:08x}",
                hint="The disk does not keep what is written to it",
            )

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> NewShard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            self._close()
            with suppress(OSError):  # what stays is a leftover that the next run clears
                reach("compact.before_discard")
                self._path.unlink()


def finished(array: StoredArray, coordinates: tuple[int, ...]) -> bool:
    """Whether an earlier run made this shard: only complete ones ever have their name."""
    return (array.path / array.shard_key(coordinates)).is_file()


def already_there(error: OutputExistsError, shard: NewShard) -> bool:
    """Another worker was given the same task again and was first: its shard holds the same values."""
    return error.got == str(shard.target)


def _pieces(nbytes: npt.NDArray[np.int64]) -> Iterator[slice]:
    """Runs of chunks of about ``PIECE_BYTES`` together, of one chunk where that is longer."""
    number = (np.cumsum(nbytes) - 1) // PIECE_BYTES
    begin = 0
    while begin < number.size:
        stop = int(np.searchsorted(number, number[begin], "right"))
        yield slice(begin, stop)
        begin = stop


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
