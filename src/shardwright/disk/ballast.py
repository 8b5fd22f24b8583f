"""The ballast: disk space that is reserved while there is enough, and freed for sealing and recovery on a
full disk."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, TypeVar

from shardwright.model.errors import StorageFullError

from . import beneath
from .failpoints import reach
from .files import open_to_write, preallocate, storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


class Ballast:
    """One preallocated file of ``nbytes`` (0: no ballast). It may exist already, from a process that died."""

    def __init__(self, path: Path, nbytes: int) -> None:
        assert nbytes >= 0, "a size"
        self.path = path
        self.nbytes = nbytes

    def fill(self) -> bool:
        """Reserves the room. Returns False, with nothing reserved, when the disk is full. Raises
        ``StorageError`` for any other failure."""
        if self.nbytes == 0:
            return True
        with storage_errors("fill", self.path):
            reach("ballast.before_open")
            descriptor = open_to_write(self.path, os.O_CREAT)
            try:
                reach("ballast.before_fill")
                preallocate(descriptor, self.nbytes)
            except OSError as error:
                beneath.unlink(self.path)  # glibc's emulation may have written half of it
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    return False
                raise
            finally:
                beneath.close(descriptor)
        return True

    @property
    def is_there(self) -> bool:
        """True while the room is reserved. Raises ``StorageError``."""
        with storage_errors("look at", self.path):
            try:
                # less of it is what a kill in the middle of ``fill`` leaves
                return beneath.stat(self.path).st_size >= self.nbytes
            except FileNotFoundError:
                return self.nbytes == 0

    def spent_on(self, work: Callable[[], T]) -> T:
        """Does work that must not fail for want of room: if the disk is full, frees the room and does it once
        more. Returns its result. Raises what it raises."""
        try:
            return work()
        except StorageFullError:
            if not self.release():
                raise
        return work()

    def release(self) -> bool:
        """Frees the room; returns whether there was any. Deletes the file, which works also on a full
        copy-on-write filesystem."""
        with storage_errors("release", self.path):
            try:
                held = beneath.stat(self.path).st_blocks > 0
                reach("ballast.before_release")
                beneath.unlink(self.path)
            except FileNotFoundError:
                return False
        return held
