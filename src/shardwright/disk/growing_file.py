"""A file that readers have open while it grows: bytes are only ever added behind its end, each piece in one
write, so that it always ends with all of a piece or, for a moment, with a part of one.

Room is reserved behind its end, so that a full disk is met when it is made, as long as it does not grow
beyond that room. Failpoints: ``growing.before_create``, ``before_preallocate``, ``before_write``,
``before_cut``, ``before_clear``, ``before_truncate``, ``before_sync``, ``before_delete``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from shardwright.model.errors import StorageError

from . import beneath, system
from .failpoints import reach
from .files import (
    DataSync,
    clear_range,
    is_name_of,
    preallocate_behind,
    remove_own,
    storage_errors,
    truncate,
    write_all,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class GrowingFile:
    """Owns the descriptor. ``path``: its name, which the owner changes when it renames it; ``nbytes``: up to
    the end of the last whole piece. Owner's thread only."""

    def __init__(self, path: Path, room_bytes: int) -> None:
        """Makes a new, empty file. Raises ``StorageFullError``, ``StorageError``; a failure leaves none."""
        self.path = path
        self.nbytes = 0
        self._room_bytes = room_bytes
        self._sync = DataSync("growing")
        with storage_errors("make", path):
            reach("growing.before_create")
            self.descriptor = beneath.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                reach("growing.before_preallocate")
                preallocate_behind(self.descriptor, room_bytes)
            except BaseException:
                self.discard()
                raise

    def append(self, parts: Sequence[bytes]) -> None:
        """Appends a piece, given in at most IOV_MAX parts, in one write. Raises ``StorageError``
        (``StorageFullError``): the file then ends as before."""
        nbytes = sum(map(len, parts))
        try:
            with storage_errors("write", self.path):
                reach("growing.before_write")
                done = system.calls.write_parts(self.descriptor, parts, self.nbytes)
                if done < nbytes:  # a full disk, a signal, or more than the kernel takes at once
                    write_all(self.descriptor, self.nbytes + done, memoryview(b"".join(parts))[done:])
        except BaseException:
            with suppress(OSError):
                self._cut()
            raise
        self.nbytes += nbytes

    def _cut(self) -> None:
        """Takes a part of a piece away, and reserves the room again that goes with it."""
        if os.fstat(self.descriptor).st_size > self.nbytes:
            reach("growing.before_cut")
            truncate(self.descriptor, self.nbytes)
            preallocate_behind(self.descriptor, self._room_bytes)

    def clear(self, start: int, stop: int) -> None:
        """Makes bytes that no reader needs zeros, and gives whole pages of them back. Raises
        ``StorageError``."""
        with storage_errors("clear a part of", self.path):
            reach("growing.before_clear")
            clear_range(self.descriptor, start, stop)

    def finish(self) -> None:
        """Gives the room behind the end back, and makes all of it durable. Raises ``StorageError``: the file
        has then failed for good."""
        with storage_errors("truncate", self.path):
            reach("growing.before_truncate")
            truncate(self.descriptor, self.nbytes)
        self._sync.sync(self.descriptor, self.path)
        with suppress(OSError):  # advice, which a filesystem may not support
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def has_name(self, path: Path) -> bool:
        """Returns whether a name is this file's. Raises ``StorageError``."""
        return self.descriptor >= 0 and is_name_of(path, self.descriptor)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            beneath.close(descriptor)

    def discard(self) -> None:
        """Deletes its name, if it is still its own, and closes it. Never raises ``StorageError``: a file that
        stays is a leftover of the workspace, and its shard must not fail for it."""
        with suppress(StorageError), storage_errors("delete", self.path):
            remove_own(self.path, self.descriptor, "growing")
        self.close()
