"""A file that is changed where it lies, by whoever has written down durably what it changes.

Failpoints: ``edit.before_open``, ``before_reserve``, ``before_write``, ``before_clear``, ``before_cut``,
``before_touch``, ``before_sync``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .failpoints import reach
from .files import (
    FileIdentity,
    clear_range,
    is_name_of,
    open_regular,
    preallocate_behind,
    read_all,
    storage_errors,
    sync_data,
    truncate,
    write_all,
)

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self


class ChangedFile:
    """The open file. A context manager; owner's thread only. Every method raises ``StorageError``
    (``StorageFullError``)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage_errors("open", path):
            reach("edit.before_open")
            self._file = open_regular(path, writing=True, buffering=0)
        self._descriptor = self._file.fileno()
        self._begun_ns = self.status().st_mtime_ns

    def status(self) -> os.stat_result:
        with storage_errors("look at", self.path):
            return os.fstat(self._descriptor)

    def is_as(self, identity: FileIdentity) -> bool:
        """Returns whether the file still has its name and this identity."""
        return FileIdentity.of(self.status()) == identity and is_name_of(self.path, self._descriptor)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns bytes of it, fewer only at its end."""
        with storage_errors("read", self.path):
            return read_all(self._descriptor, offset, nbytes)

    def reserve(self, offset: int, nbytes: int) -> None:
        """Gets blocks for bytes that are to be written, so that a full disk is met here. The file keeps its
        size, and its bytes."""
        with storage_errors("write", self.path):
            reach("edit.before_reserve")
            preallocate_behind(self._descriptor, nbytes, start=offset)

    def write(self, offset: int, data: bytes | bytearray) -> None:
        with storage_errors("write", self.path):
            reach("edit.before_write")
            write_all(self._descriptor, offset, memoryview(data))

    def clear(self, start: int, stop: int) -> None:
        """Makes bytes zeros, whole pages of them holes."""
        with storage_errors("clear a part of", self.path):
            reach("edit.before_clear")
            clear_range(self._descriptor, start, stop)

    def cut(self, nbytes: int) -> None:
        """Gives it this length, and blocks behind it back."""
        with storage_errors("truncate", self.path):
            reach("edit.before_cut")
            truncate(self._descriptor, nbytes)

    def sync(self, *, forget: bool = False) -> None:
        """Makes all that was written durable, before anything else is. ``forget``: it leaves the page cache,
        so that the next read is from the disk."""
        with storage_errors("sync", self.path):
            reach("edit.before_sync")
            sync_data(self._descriptor)
            if forget:
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def finish(self) -> FileIdentity:
        """Makes all of it durable, with an identity that it never had before: a time of its own, since the
        clock of a filesystem may stand still for several milliseconds."""
        with storage_errors("sync", self.path):
            status = self.status()
            changed_ns = max(self._begun_ns, status.st_mtime_ns) + 1
            reach("edit.before_touch")
            os.utime(self._descriptor, ns=(status.st_atime_ns, changed_ns))
        self.sync()
        return FileIdentity.of(self.status())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
