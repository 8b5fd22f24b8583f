"""Whether nothing worse than kills has come over a store: its file ``boot`` holds the kernel's boot id.

A power cut and another machine bring another id; an I/O error, a rewrite and a take-over delete the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.model.errors import StorageError
from shardwright.model.machine import boot_id
from shardwright.storage.failpoints import reach
from shardwright.storage.files import read_range, storage_errors, write_file

if TYPE_CHECKING:
    from pathlib import Path

_BOOT = "boot"
_MAX_BYTES = 64


def begin_intact(workspace: Path) -> None:
    """Of a new store. Raises ``StorageError``."""
    if (boot := boot_id()) is not None:
        write_file(workspace / _BOOT, boot.encode())


def is_intact(workspace: Path) -> bool:
    boot = boot_id()
    try:
        return boot is not None and read_range(workspace / _BOOT, 0, _MAX_BYTES) == boot.encode()
    except StorageError:
        return False


def is_marked(workspace: Path) -> bool:
    """False: a sync may have failed, so that the page cache, if it is still the same, may hold what the disk
    does not."""
    return (workspace / _BOOT).exists()


def end_intact(workspace: Path) -> None:
    """From now on something that was acknowledged may leave no trace. Raises ``StorageError``."""
    path = workspace / _BOOT
    with storage_errors("remove", path):
        reach("boot.before_remove")
        path.unlink(missing_ok=True)
