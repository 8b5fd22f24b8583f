"""A preallocated file of fixed tables next to the shards: the journal of a shard row, the staging area. It is
read and written in place, never appended to.

It is created completely or not at all: blocks reserved, its name durable, first page written, synced. After a
power cut a file without a first page may be there; one that has it says that all names made in the folder
before are durable. Later writes meet no full disk. Before every step there is a failpoint with the file's
``kind``, e.g. ``journal.before_sync``.
"""

from __future__ import annotations

import mmap
import os
import stat
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import ShardFormatError, StorageError

from . import beneath
from .failpoints import reach
from .files import DataSync, data_ranges, preallocate, remove_own, storage_errors, sync_directory, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MOST_AT_ONCE_BYTES = 1 << 20


class TableFile:
    """Owns the descriptor and, after ``map``, a read-only mapping. Workers write through ``descriptor``; only
    the owner thread calls the methods."""

    def __init__(self, path: Path, kind: str, nbytes: int, descriptor: int) -> None:
        self.path = path
        self.kind = kind
        self.nbytes = nbytes
        self.descriptor = descriptor
        self._mapping: mmap.mmap | None = None
        self._sync = DataSync(kind)

    @classmethod
    def create(cls, path: Path, kind: str, nbytes: int, first_page: bytes) -> TableFile:
        """Creates a file of zeros behind ``first_page``, durable with its name. Raises ``StorageError``; a
        failure leaves no file."""
        file = cls.make(path, kind, nbytes)
        file.begin_alone(first_page)
        return file

    @classmethod
    def make(cls, path: Path, kind: str, nbytes: int) -> TableFile:
        """Makes a file of zeros; ``create`` says what follows. Raises ``StorageError``; a failure leaves no
        file."""
        with storage_errors("preallocate", path):
            reach(f"{kind}.before_create")
            file = cls(
                path,
                kind,
                nbytes,
                beneath.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL),
            )
            try:
                reach(f"{kind}.before_preallocate")
                preallocate(file.descriptor, nbytes)
            except BaseException:
                file.abandon()
                raise
        return file

    def begin_alone(self, first_page: bytes) -> None:
        """Begins a file that was made: its name is durable, then its header. Raises ``StorageError``; a
        failure leaves no file."""
        # Names first, then the header, which says that the shards in this folder have theirs. In the other
        # order a power cut kept the header alone: recovery took a shard row whose preparation had been cut
        # off for one that was sealed, and dropped frames that were staged for it.
        try:
            sync_directory(self.path.parent)
            self.begin(first_page)
            self.sync()
        except BaseException:
            self.abandon()
            raise

    def begin(self, first_page: bytes) -> None:
        """Writes the header of a file that was made, whose name is durable. Raises ``StorageError``."""
        self.write(0, first_page, "header")

    def abandon(self) -> None:
        """Closes and deletes a file that was not begun, or not durably. Raises ``StorageError``."""
        self.close()
        with storage_errors("delete", self.path):
            beneath.unlink(self.path, missing_ok=True)

    @classmethod
    def open(cls, path: Path, kind: str, nbytes: int, *, read_only: bool = False) -> TableFile:
        """Opens an existing file. Raises ``StorageError``, and ``ShardFormatError`` when it is not a file of
        exactly ``nbytes``."""
        # O_NONBLOCK: opening a named pipe must not wait for a writer. It is refused below, as no regular
        # file.
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with storage_errors("open", path):
            file = cls(path, kind, nbytes, beneath.open_file(path, flags))
            found = os.fstat(file.descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != nbytes:
            file.close()
            raise ShardFormatError(
                f"{kind} {path} has the wrong size", expected=f"{nbytes} bytes", got=f"{found.st_size} bytes"
            )
        return file

    def read_into(self, offset: int, target: np.ndarray) -> None:
        """Fills a contiguous array with the bytes from ``offset`` on. Raises ``StorageError``."""
        view = target.reshape(-1).view(np.uint8).data
        with storage_errors("read", self.path):
            reach(f"{self.kind}.before_read")
            while view:
                count = os.preadv(self.descriptor, [view], offset)
                # ``open`` has compared the length: another process has cut the file since. Without this look
                # the loop would have no end.
                if count == 0:
                    raise StorageError(
                        f"cannot read {self.path}: it was cut while open",
                        expected=f"{self.nbytes} bytes",
                        got=f"{offset} bytes",
                    )
                view, offset = view[count:], offset + count

    def read_table(self, offset: int, count: int, dtype: np.dtype[np.void]) -> np.ndarray:
        """Returns ``dtype[count]`` from ``offset`` on. Raises ``StorageError``."""
        table = np.empty(count, dtype)
        self.read_into(offset, table)
        return table

    def written_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields the parts of [start, stop) that may have been written, at most a MiB each; the rest are
        zeros. Raises ``StorageError``."""
        with storage_errors("read", self.path):
            found = list(data_ranges(self.descriptor, start, stop))
        for first, last in found:
            for begin in range(first, last, _MOST_AT_ONCE_BYTES):
                yield begin, min(last, begin + _MOST_AT_ONCE_BYTES)

    def write(self, offset: int, data: bytes, what: str) -> None:
        """Writes ``data`` at ``offset``. Raises ``StorageError``. ``what`` names the failpoint:
        ``KIND.before_WHAT``."""
        with storage_errors("write", self.path):
            reach(f"{self.kind}.before_{what}")
            write_all(self.descriptor, offset, data)

    def sync(self, *, whole: bool = False) -> None:
        """As ``DataSync.sync``."""
        self._sync.sync(self.descriptor, self.path, whole=whole)

    @property
    def has_failed(self) -> bool:
        """True if a sync of it has failed."""
        return self._sync.has_failed

    def rename(self, path: Path) -> None:
        """Renames the file and replaces any file of that name; the folder is not synced. Raises
        ``StorageError``."""
        with storage_errors("rename", self.path):
            reach(f"{self.kind}.before_replace")
            beneath.replace(self.path, path)
        self.path = path

    def map(self) -> int:
        """Returns the address of the file's first byte in a read-only mapping that lasts until ``close``."""
        with storage_errors("map", self.path):
            if self._mapping is None:
                self._mapping = mmap.mmap(self.descriptor, self.nbytes, prot=mmap.PROT_READ)
            return int(np.frombuffer(self._mapping, np.uint8).ctypes.data)

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        if self.descriptor >= 0:
            beneath.close(self.descriptor)
            self.descriptor = -1

    def delete(self, *, durably: bool = False) -> None:
        """Deletes and closes the file. Unless ``durably`` the folder is not synced, so that the file may
        reappear after a power cut. Raises ``StorageError``: it is open still, since a deletion that found no
        room is tried again."""
        with storage_errors("delete", self.path):
            # Only the name of the file that is open: after a take-over it may be that of a successor's file.
            remove_own(self.path, self.descriptor, self.kind)
        if durably:
            sync_directory(self.path.parent)
        self.close()
