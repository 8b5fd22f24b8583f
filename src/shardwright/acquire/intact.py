"""The intact mark of a store: its file ``boot`` with the kernel's boot id, as long as nothing worse than
kills has happened to it.

After a power cut or on another machine the id differs; an I/O error, a rewrite and a take-over delete the
file.
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
    """Writes the mark of a new store. Raises ``StorageError``."""
    if (boot := boot_id()) is not None:
        write_file(workspace / _BOOT, boot.encode())


def is_intact(workspace: Path) -> bool:
    boot = boot_id()
    try:
        return boot is not None and read_range(workspace / _BOOT, 0, _MAX_BYTES) == boot.encode()
    except StorageError:
        return False


def is_marked(workspace: Path) -> bool:
    """Returns whether the mark exists. If not, a sync may have failed: the page cache, if still the same, may
    hold what the disk does not."""
    return (workspace / _BOOT).exists()


def end_intact(workspace: Path) -> None:
    """Deletes the mark: from now on, acknowledged frames may leave no trace. Raises ``StorageError``."""
    path = workspace / _BOOT
    with storage_errors("remove", path):
        reach("boot.before_remove")
        path.unlink(missing_ok=True)
