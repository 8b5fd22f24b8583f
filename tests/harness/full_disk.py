"""A disk without room for shards."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.disk import slot_file

if TYPE_CHECKING:
    from collections.abc import Callable


def full_below(path: Path) -> Callable[..., bool]:
    """``slot_file.preallocate`` of a disk that is full, for files below ``path``."""
    preallocate = slot_file.preallocate

    def full(descriptor: int, nbytes: int, *, start: int = 0) -> bool:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return preallocate(descriptor, nbytes, start=start)

    return full
