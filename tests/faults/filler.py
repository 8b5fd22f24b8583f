"""Takes all the room there is on a filesystem, and gives it back."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Filler:
    """One file below ``folder``. Works from whichever process makes it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "filler"

    def fill(self) -> int:
        """Take every free block; returns the bytes taken. Leaves what is preallocated to others alone."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            before, end = -1, os.fstat(descriptor).st_size
            while end > before:
                before, end = end, self._grow(descriptor, end)
                # what others have deleted is free only when their filesystem's journal says so
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return end

    @staticmethod
    def _grow(descriptor: int, end: int) -> int:
        step = 64 << 20
        while step >= 4096:
            try:
                os.posix_fallocate(descriptor, end, step)
                end += step
            except OSError:
                step //= 2
        with contextlib.suppress(OSError):  # what fallocate left: tail blocks that only a write gets
            while True:
                end += os.pwrite(descriptor, bytes(4096), end)
        return end

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
