"""The kind of filesystem of a folder: whether a sync there reaches a disk of this machine, whether one can
stand for those of many files, and whether writes use the preallocated blocks. Linux, by the magic numbers of
fstatfs(2)."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import beneath, system
from .failpoints import reach
from .files import open_regular, storage_errors, sync_directory, sync_filesystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The numbers of <linux/magic.h> and of the out-of-tree filesystems found on clusters. FUSE may be anything;
# what labs mount with it is mostly remote.
_REMOTE = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x786F4256: "vboxsf",
    0x65735546: "fuse",
}
_COPY_ON_WRITE = {0x9123683E: "btrfs", 0x2FC12FC1: "zfs", 0xCA451A4E: "bcachefs", 0x3434: "nilfs2"}
# on which syncfs(2) writes out all that fsync(2) would, flushes the disk's own cache, and is told of writes
# that failed. XFS may find a clean log and flush nothing, FUSE sends nothing to its server, CIFS has no such
# call, overlayfs hides the errors of what lies below it
_SYNCED_AS_ONE = {0xEF53: "ext", 0x9123683E: "btrfs", 0x01021994: "tmpfs"}
_TOLD_OF_ERRORS = (5, 8)  # the first Linux whose syncfs is
_IN_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}

_libc = ctypes.CDLL(None, use_errno=True)
_STATFS_BYTES = 256  # more than struct statfs has anywhere


def remote_filesystem(path: Path) -> str | None:
    """Returns the name of the network (or FUSE) filesystem of ``path``, None for a local one. Raises
    ``StorageError``."""
    return _REMOTE.get(_magic(path))


def memory_filesystem(path: Path) -> str | None:
    """Returns ``tmpfs`` or ``ramfs`` if ``path`` lies in memory, which no sync makes durable, else None.
    Raises ``StorageError``."""
    return _IN_MEMORY.get(_magic(path))


def copy_on_write_filesystem(path: Path) -> str | None:
    """Returns the name of a filesystem that writes a changed page elsewhere, so that preallocated blocks
    serve only the first write; else None. Raises ``StorageError``."""
    return _COPY_ON_WRITE.get(_magic(path))


def unmappable_filesystem(path: Path) -> str | None:
    """Returns the name of a filesystem on which a write into a mapping can fail although its blocks were
    preallocated, which ends the process by SIGBUS: copy-on-write ones (a full disk), network ones (a lost
    server). None if a mapping is safe. Raises ``StorageError``."""
    magic = _magic(path)
    return _COPY_ON_WRITE.get(magic) or _REMOTE.get(magic)


def syncs_as_one(path: Path) -> bool:
    """Returns whether ``sync_filesystem`` can stand for syncs of all files below ``path``. Raises
    ``StorageError``."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    told = release is not None and (int(release[1]), int(release[2])) >= _TOLD_OF_ERRORS
    return told and _magic(path) in _SYNCED_AS_ONE


@contextmanager
def synced_as_one(folder: Path, kind: str) -> Iterator[None]:
    """A context at whose end all that was written within it below ``folder`` is durable. ``kind``: of the
    failpoint. Raises ``StorageError``."""
    if not syncs_as_one(folder):
        yield
        for path, _, files in beneath.walk(folder):
            _sync_each(path, files)
        return
    with storage_errors("sync", folder):
        descriptor = beneath.open_file(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
        with storage_errors("sync", folder):
            reach(f"{kind}.before_sync")
            sync_filesystem(descriptor)
    finally:
        beneath.close(descriptor)


def _sync_each(folder: Path, names: list[str]) -> None:
    for name in names:
        with storage_errors("sync", folder / name), open_regular(folder / name) as file:
            reach("files.before_sync")
            system.calls.sync(file.fileno())
    sync_directory(folder)


def nearest_folder(path: Path) -> Path:
    """Returns ``path``, or the first folder above it that exists, as far as this user can see."""

    def is_seen(folder: Path) -> bool:
        try:
            return beneath.is_dir(folder)
        except PermissionError:
            return False

    return next(folder for folder in (path, *path.parents) if is_seen(folder))


def same_filesystem(one: Path, other: Path) -> bool:
    """Returns whether two existing folders share their free space. Raises ``StorageError``."""
    with storage_errors("look at", one):
        return beneath.stat(one).st_dev == beneath.stat(other).st_dev


def _magic(path: Path) -> int:
    facts = (ctypes.c_byte * _STATFS_BYTES)()
    with storage_errors("look at", path):
        descriptor = beneath.open_file(path, os.O_PATH)
        try:
            if _libc.fstatfs(descriptor, ctypes.byref(facts)) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            beneath.close(descriptor)
    # f_type is the first member, a long; the numbers have 32 bits
    return ctypes.c_ulong.from_buffer(facts).value & 0xFFFFFFFF
