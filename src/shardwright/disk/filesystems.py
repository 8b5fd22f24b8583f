"""The kind of filesystem of a folder: whether a sync there reaches a disk of this machine, whether one can
stand for those of many files, and whether writes use the preallocated blocks. Linux, by the magic numbers of
fstatfs(2)."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from shardwright.model.errors import StorageError

from . import beneath, system
from .failpoints import reach
from .files import open_regular, storage_errors, sync_directory, sync_filesystem
from .typed_errors import says_closed

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
MOST_SYNCED_ALONE = 4  # files or names; more are synced by one call for the whole filesystem
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


def shares_sync(path: Path, files: int) -> bool:
    """Returns whether one sync of the filesystem of ``path`` is to stand for those of so many files, or
    names, there. Raises ``StorageError``."""
    # Not for few: it would wait for what all other programs have written, too. Measured on ext4 with files of
    # 300 KB: of two 0.56 ms by one sync and 0.62 by two, of four 0.9 and 1.2, of 32 4.7 and 8.9.
    return files > MOST_SYNCED_ALONE and syncs_as_one(path)


class WholeSync:
    """Syncs of the filesystem of a folder, in place of those of many files there that are written from now
    on. Once one has failed there are no more: the kernel tells of a failure once."""

    def __init__(self, folder: Path) -> None:
        """``close`` follows. Raises ``StorageError``."""
        self._folder = folder
        self._has_failed = False
        with storage_errors("sync", folder):
            self._descriptor = beneath.open_file(folder, os.O_RDONLY | os.O_DIRECTORY)

    def sync(self, kind: str) -> bool:
        """Returns whether everything is durable; if not, each file is to be synced by itself, by a descriptor
        that it was written with. ``kind``: of the failpoint."""
        with suppress(StorageError):
            if not self._has_failed:
                self.sync_or_raise(kind)
        return not self._has_failed

    def sync_or_raise(self, kind: str) -> None:
        """Makes everything durable. Raises ``StorageError``."""
        self._has_failed = True
        with storage_errors("sync", self._folder):
            reach(f"{kind}.before_sync")
            sync_filesystem(self._descriptor)
        self._has_failed = False

    def close(self) -> None:
        beneath.close(self._descriptor)


@contextmanager
def synced_as_one(folder: Path, kind: str) -> Iterator[None]:
    """A context at whose end all that was written within it below ``folder`` is durable. ``kind``: of the
    failpoint. Raises ``StorageError``."""
    if not syncs_as_one(folder):
        yield
        with storage_errors("look into", folder):
            for path, _, files in beneath.walk(folder, failed=beneath.raise_failure):
                _sync_each(path, files)
        return
    with closing(WholeSync(folder)) as whole:
        yield
        # Its failure is none to mend here: these files are closed. The kernel forgets what it has not told of
        # a file once nobody has it open, and a sync of it, opened again, would succeed.
        whole.sync_or_raise(kind)


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
        except StorageError as error:
            if says_closed(error):
                return False
            raise

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
