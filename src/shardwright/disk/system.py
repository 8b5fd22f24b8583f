"""The calls by which everything below a store is opened, named, written and made durable: a small interface,
carried out by the operating system. A simulated disk may take its place, in tests.

    beneath, files ──▶ system.calls ──▶ OperatingSystem
                                        a simulated disk: the same, and it remembers what a power cut leaves

Bytes of open files are read and written past it too: by kernels and through mappings. No call is made here
that a frame waits for.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat as modes
import struct
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OPENAT2 = 437  # of every machine that Linux numbers together since 5.0
_RESOLVE_NO_SYMLINKS = 0x04
_AT_FDCWD = -100
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NO_OPENAT2 = (errno.ENOSYS, errno.EPERM)  # an older kernel, or a filter of system calls (containers)
_FALLOC_KEEP_SIZE, _FALLOC_PUNCH_HOLE = 0x01, 0x02

_libc = ctypes.CDLL(None, use_errno=True)
_openat2 = _libc.syscall
_openat2.restype = ctypes.c_long
_openat2.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
_HOW_BYTES = 24  # struct open_how: flags, mode, resolve, each uint64
_libc.renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.syncfs.argtypes = (ctypes.c_int,)


class OperatingSystem:
    """All of these raise ``OSError``. No component of a path is followed if it is a symbolic link
    (``ELOOP``); a name that is deleted, renamed or linked may be a link's."""

    def open(self, path: str, flags: int, mode: int = 0o644, folder: int | None = None) -> int:
        """Returns a descriptor; a relative path begins at the descriptor ``folder``, if given."""
        opened = _open_at_once if has_openat2() else _open_step_by_step
        return opened(path, flags | os.O_CLOEXEC, mode, folder)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def file(self, descriptor: int, mode: str, buffering: int) -> IO[bytes]:
        """Returns a file that closes its descriptor."""
        return open(descriptor, mode, buffering=buffering)

    def names(self, descriptor: int) -> list[str]:
        """Returns the names in an open folder, in no order."""
        return os.listdir(descriptor)

    def room(self, descriptor: int) -> os.statvfs_result:
        """Returns the facts of the filesystem of an open file or folder."""
        return os.fstatvfs(descriptor)

    # ------------------------------------------------------------------ names

    # each in an open folder

    def unlink(self, folder: int, name: str) -> None:
        os.unlink(name, dir_fd=folder)

    def make_folder(self, folder: int, name: str, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=folder)

    def remove_folder(self, folder: int, name: str) -> None:
        os.rmdir(name, dir_fd=folder)

    def rename(self, old: int, old_name: str, new: int, new_name: str, flags: int = 0) -> None:
        """``flags`` of renameat2(2); without any, in place of what has the new name."""
        if flags:
            _call(_libc.renameat2, old, os.fsencode(old_name), new, os.fsencode(new_name), flags)
        else:
            os.replace(old_name, new_name, src_dir_fd=old, dst_dir_fd=new)

    def add_name(self, old: int, old_name: str, new: int, new_name: str) -> None:
        """Gives a file (or a link) one more name."""
        os.link(old_name, new_name, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)

    def make_link(self, folder: int, name: str, target: Path) -> None:
        os.symlink(target, name, dir_fd=folder)

    # ------------------------------------------------------------------ bytes

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Returns the number of bytes that were written."""
        return os.pwrite(descriptor, data, offset)

    def write_parts(self, descriptor: int, parts: Sequence[bytes], offset: int) -> int:
        """As ``write``, of at most IOV_MAX parts one behind the other."""
        return os.pwritev(descriptor, parts, offset)

    def append(self, descriptor: int, data: bytes) -> int:
        """As ``write``, behind the last byte of a file that was opened to append."""
        return os.write(descriptor, data)

    def allocate(self, descriptor: int, start: int, nbytes: int, *, keeps_size: bool = False) -> None:
        """Reserves real blocks."""
        _call(_libc.fallocate, descriptor, _FALLOC_KEEP_SIZE if keeps_size else 0, start, nbytes)

    def punch(self, descriptor: int, offset: int, nbytes: int) -> None:
        """Gives blocks back; the file keeps its size."""
        _call(_libc.fallocate, descriptor, _FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE, offset, nbytes)

    def truncate(self, descriptor: int, nbytes: int) -> None:
        os.ftruncate(descriptor, nbytes)

    def sync(self, descriptor: int, *, data_only: bool = False) -> None:
        """Makes the bytes of a file durable, or the names in a folder. ``data_only``: not the times of a
        file."""
        (os.fdatasync if data_only else os.fsync)(descriptor)

    def sync_filesystem(self, descriptor: int) -> None:
        """Makes everything on the filesystem of a file durable."""
        _call(_libc.syncfs, descriptor)
        # After an error the kernel makes a filesystem read-only: btrfs, and ext4 of older kernels. Then it
        # writes nothing out, and the call succeeds.
        if os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


calls = OperatingSystem()


def use(system: OperatingSystem | None) -> None:
    """Lets ``system`` carry out all calls of this process from now on; None: the operating system."""
    global calls  # noqa: PLW0603 (what tests replace, and nobody else)
    calls = OperatingSystem() if system is None else system


def _call(function: Callable[..., int], *arguments: int | bytes) -> None:
    """Calls libc, again after a signal, as Python does with calls of its own."""
    while function(*arguments) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _open_how(flags: int, mode: int) -> bytes:
    makes = flags & os.O_CREAT or flags & os.O_TMPFILE == os.O_TMPFILE
    return struct.pack("=3Q", flags, mode if makes else 0, _RESOLVE_NO_SYMLINKS)


def _open_at_once(path: str, flags: int, mode: int, folder: int | None) -> int:
    how, name = _open_how(flags, mode), os.fsencode(path)
    at = _AT_FDCWD if folder is None else folder
    while True:
        descriptor: int = _openat2(_OPENAT2, at, name, how, _HOW_BYTES)
        if descriptor >= 0:
            return descriptor
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def _open_step_by_step(path: str, flags: int, mode: int, folder: int | None) -> int:
    *above, last = Path(path).parts or (".",)
    held = os.open(above.pop(0) if path.startswith("/") and above else ".", FOLDER, dir_fd=folder)
    try:
        for part in above:
            inner = _open_no_link(part, FOLDER, 0, held)
            os.close(held)
            held = inner
        return _open_no_link(last, flags, mode, held)
    finally:
        os.close(held)


def _open_no_link(name: str, flags: int, mode: int, folder: int) -> int:
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=folder)
    except NotADirectoryError:  # O_DIRECTORY is judged first: also what a link answers
        if modes.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise
    # O_PATH with O_NOFOLLOW opens a link itself, as openat2 does when both are asked
    if flags & os.O_PATH and not flags & os.O_NOFOLLOW and modes.S_ISLNK(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return descriptor


@cache
def has_openat2() -> bool:
    """Returns whether the kernel resolves a path without links in one call (Linux 5.6)."""
    try:
        os.close(_open_at_once("/", FOLDER, 0, None))
    except OSError as error:
        if error.errno not in _NO_OPENAT2:
            raise
        return False
    return True
