"""The ballast: disk that is held back while there is plenty, and given up so that sealing and recovery get
through when there is none."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from .failpoints import reach
from .files import preallocate, storage_errors

if TYPE_CHECKING:
    from pathlib import Path


class Ballast:
    """One preallocated file of ``nbytes`` (0: no ballast at all). It may be there already, from a process
    that died."""

    def __init__(self, path: Path, nbytes: int) -> None:
        assert nbytes >= 0, "a size"
        self.path = path
        self.nbytes = nbytes

    def fill(self) -> bool:
        """Take the room. False when the disk does not have it, and nothing is taken then. Raises
        ``StorageError`` for anything but a full disk."""
        if self.nbytes == 0:
            return True
        with storage_errors("fill", self.path):
            reach("ballast.before_open")
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                reach("ballast.before_fill")
                preallocate(descriptor, self.nbytes)
            except OSError as error:
                self.path.unlink()  # glibc's emulation may have taken half of it
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    return False
                raise
            finally:
                os.close(descriptor)
        return True

    def release(self) -> bool:
        """Give the room back. True when there was some. Deletes the file: on a full copy-on-write filesystem
        that still works."""
        with storage_errors("release", self.path):
            try:
                held = self.path.stat().st_blocks > 0
                reach("ballast.before_release")
                self.path.unlink()
            except FileNotFoundError:
                return False
        return held

    def delete(self) -> None:
        """At the end of an acquisition."""
        self.release()
