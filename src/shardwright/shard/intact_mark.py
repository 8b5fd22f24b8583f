"""The intact mark of an unfinished store, the workspace's file ``boot``: the kernel's boot id, as long as
nothing worse than kills has happened to the store. After a power cut or on another machine the id differs; an
I/O error and a rewrite delete the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import read_range, storage_errors, write_file
from shardwright.disk.typed_errors import says_nothing
from shardwright.model.errors import StorageError
from shardwright.model.machine import boot_id

if TYPE_CHECKING:
    from pathlib import Path

_BOOT = "boot"
_MAX_BOOT_BYTES = 64


def begin_intact(workspace: Path) -> None:
    """Writes the intact mark of a new store. Raises ``StorageError``."""
    if (boot := boot_id()) is not None:
        write_file(workspace / _BOOT, boot.encode())


def is_intact(workspace: Path) -> bool:
    """Returns whether nothing worse than kills has happened to the store. Raises ``StorageError`` where
    that cannot be told."""
    boot = boot_id()
    try:
        return boot is not None and read_range(workspace / _BOOT, 0, _MAX_BOOT_BYTES) == boot.encode()
    except StorageError as error:
        if says_nothing(error):
            raise
        return False


def is_marked(workspace: Path) -> bool:
    """Returns whether the intact mark exists. If not, a sync may have failed: the page cache, if it is still
    the same, may hold bytes that the disk does not."""
    return beneath.exists(workspace / _BOOT)


def end_intact(workspace: Path) -> None:
    """Deletes the intact mark: from now on, acknowledged frames may leave no trace. Raises
    ``StorageError``."""
    path = workspace / _BOOT
    with storage_errors("remove", path):
        reach("boot.before_remove")
        beneath.unlink(path, missing_ok=True)
