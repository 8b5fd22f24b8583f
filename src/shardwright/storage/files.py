"""The seam to the filesystem: preallocate, punch, sync, rename, replace. Linux.

Everything that can fail raises ``StorageError`` (or ``StorageFullError``) with the operation, the path and
errno's text. Calls that Python does not offer go to libc by ctypes, which releases the GIL.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING

from shardwright.model.errors import OutputExistsError, ShardwrightError, StorageError, StorageFullError

from .failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Self

_FALLOC_KEEP_SIZE, _FALLOC_PUNCH_HOLE = 0x01, 0x02
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
FLOCK = "@hhqqi4x"  # struct flock
WHOLE_FILE = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # a lock on all of it; its pid must be 0
HELD_TIMEOUT_S = 30.0  # what is done under the lock of a file is a rename
_HELD_RETRY_S = 0.01
_PIECE_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap
_libc.renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


@contextmanager
def storage_errors(operation: str, path: Path | str) -> Iterator[None]:
    """Turn an ``OSError`` inside into the typed error that names what was tried on what."""
    try:
        yield
    except ShardwrightError:
        raise
    except OSError as error:
        kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        hint = (
            "Free some space on this filesystem, or choose another output root"
            if kind is StorageFullError
            else None
        )
        raise kind(f"cannot {operation} {path}: {error.strerror or error}", hint=hint) from error


def raise_errno(number: int) -> None:
    """What a system call said: nothing, or an ``OSError``."""
    if number:
        raise OSError(number, os.strerror(number))


def _call(function: Callable[..., int], *arguments: int | bytes) -> None:
    """Call libc, again after a signal, as Python does with calls of its own. Raises ``OSError``."""
    while function(*arguments) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def preallocate(descriptor: int, nbytes: int, *, start: int = 0) -> bool:
    """Reserve real blocks for ``nbytes`` of a file from ``start`` on. True: the filesystem guarantees them;
    False: glibc had to write zeros."""
    try:
        _call(_libc.fallocate, descriptor, 0, start, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.posix_fallocate(descriptor, start, nbytes)
        return False
    return True


def punch_hole(descriptor: int, offset: int, nbytes: int) -> bool:
    """Give the blocks of a gap back to the filesystem; the file keeps its size.

    False where that is not possible, for lack of support or of room for its bookkeeping: the gap then just
    stays. Raises only for an I/O error.
    """
    try:
        _call(_libc.fallocate, descriptor, _FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE, offset, nbytes)
    except OSError as error:
        if error.errno == errno.EIO:
            raise
        return False
    return True


def data_ranges(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """[first, last) of what a file holds data for within [start, stop); the rest are holes, which read as
    zeros. All of it where the filesystem cannot tell. Raises ``OSError``."""
    while start < stop:
        try:
            first = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing but a hole up to the file's end
                raise
            return
        if first >= stop:
            return
        last = min(stop, os.lseek(descriptor, first, os.SEEK_HOLE))
        yield first, last
        start = last


def pieces_of(descriptor: int, *, skip_unreadable: bool = False) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of all that a file holds, holes left out; pages that cannot be read, too, where they
    are to be skipped. Raises ``OSError``."""
    for first, stop in data_ranges(descriptor, 0, os.fstat(descriptor).st_size):
        start = first
        while start < stop:
            try:
                # short before a page that cannot be read
                piece = os.pread(descriptor, min(_PIECE_BYTES, stop - start), start)
            except OSError as error:
                if error.errno != errno.EIO or not skip_unreadable:
                    raise
                start = (start // mmap.PAGESIZE + 1) * mmap.PAGESIZE
                continue
            if not piece:
                break  # somebody cuts it off meanwhile
            yield start, piece
            start += len(piece)


def write_all(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    """All of ``data``, however little one call writes. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done


def free_bytes(folder: Path) -> int:
    """What this user may still write on the filesystem of a folder. Raises ``StorageError``."""
    with storage_errors("look at", folder):
        facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def renew(path: Path, *, again: bool, failed: Callable[[], None]) -> None:
    """Sync a file. Where that fails (``failed`` is called at once), or ``again``, all that it holds is
    written once more, for the next sync: of what it could not write the kernel tells once, and holds it for
    clean from then on (PostgreSQL's "fsyncgate"). Raises ``StorageError``."""
    with storage_errors("write again", path), open_regular(path, writing=True, buffering=0) as file:
        reach("files.before_renew")
        descriptor = file.fileno()
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise
            failed()
            again = True
        for offset, piece in pieces_of(descriptor, skip_unreadable=True) if again else ():
            try:
                reach("files.before_write")
                write_all(descriptor, offset, piece)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                os.fsync(descriptor)  # copy on write: frees the blocks of what was written again so far
                write_all(descriptor, offset, piece)


def set_direct(descriptor: int, *, on: bool) -> None:
    """From here on writes and reads go past the page cache (O_DIRECT), or through it. Raises ``OSError``
    where the filesystem cannot."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)


def advise(address: int, nbytes: int, advice: int) -> int:
    """madvise(2) on memory of this process, without the GIL, which Python's own keeps. Returns 0 or errno."""
    return 0 if _libc.madvise(address, nbytes, advice) == 0 else ctypes.get_errno()


def populate(address: int, nbytes: int) -> int:
    """Make pages of a mapping ready to be written. Returns 0 or errno; EINVAL: this kernel (before 5.14)
    cannot."""
    return advise(address, nbytes, _MADV_POPULATE_WRITE)


def rename_without_replacing(source: Path, target: Path) -> None:
    """Atomic rename that fails when ``target`` exists. Raises ``OutputExistsError`` then, ``StorageError``
    otherwise.

    Network filesystems know no such rename: there a hard link, which never replaces either, gives the new
    name and the old one is deleted; a folder, which no link can name, is renamed, and replaces at most an
    empty folder that came this moment.
    """
    try:
        try:
            _call(
                _libc.renameat2,
                _AT_FDCWD,
                os.fsencode(source),
                _AT_FDCWD,
                os.fsencode(target),
                _RENAME_NOREPLACE,
            )
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            if not source.is_dir():
                target.hardlink_to(source)
                source.unlink()
            elif os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            else:
                source.rename(target)
    except FileExistsError as error:
        raise OutputExistsError("a file of this name is already there", got=target) from error
    except OSError:
        with storage_errors("rename to", target):
            raise


def replace_by_rename(source: Path, target: Path) -> None:
    """Atomic rename onto whatever has the name ``target``. Raises ``StorageError``."""
    with storage_errors("rename to", target):
        source.replace(target)


def open_regular(path: Path, *, writing: bool = False, buffering: int = -1) -> IO[bytes]:
    """A regular file, for reading or for both. Raises ``OSError``, also for any other: a named pipe in its
    place would wait for somebody to write."""
    descriptor = os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))  # noqa: TRY301
        return open(descriptor, "r+b" if writing else "rb", buffering=buffering)  # noqa: PTH123 (of a descriptor; the caller closes it)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path) -> bytes:
    """All of a regular file. Raises ``OSError``."""
    with open_regular(path) as file:
        return file.read()


def read_range(path: Path, offset: int, nbytes: int) -> bytes:
    """Bytes of a file, fewer at its end. Raises ``StorageError``."""
    with storage_errors("read", path), open_regular(path, buffering=0) as file:
        pieces, done = [], 0
        while done < nbytes and (piece := os.pread(file.fileno(), nbytes - done, offset + done)):
            pieces.append(piece)
            done += len(piece)
    return b"".join(pieces)


def sync_directory(path: Path) -> None:
    """Make the names in a folder durable."""
    with storage_errors("sync folder", path):
        reach("directory.before_sync")
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_directories(path: Path) -> None:
    """Create ``path`` and its missing parents, each new name durable in its parent."""
    missing = []
    with storage_errors("create folder", path):  # a folder above it may be closed to this user
        while not path.is_dir():
            missing.append(path)
            path = path.parent
    for directory in reversed(missing):
        with storage_errors("create folder", directory):
            reach("directory.before_create")
            directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


class AtomicFile:
    """A file that gets its name whole and durable, or not at all.

        AtomicFile(path) ──▶ write ... ──▶ sync ──▶ replace, or take_name
        leaving the context before that deletes it: what has the name keeps it

    Failpoints: ``KIND.before_create``, ``before_preallocate``, ``before_write``, ``before_sync``,
    ``before_rename``, ``before_discard``. Every step raises ``StorageError`` (``StorageFullError``).
    """

    def __init__(self, path: Path, kind: str, *, called: Path | None = None, mode: int = 0o644) -> None:
        """``path`` is the name until then, and must not exist. ``called``: what errors call it."""
        self.path, self._kind, self._called = path, kind, called or path
        with storage_errors("write", self._called):
            reach(f"{kind}.before_create")
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def preallocate(self, nbytes: int) -> None:
        with storage_errors("preallocate", self._called):
            reach(f"{self._kind}.before_preallocate")
            preallocate(self.descriptor, nbytes)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        with storage_errors("write", self._called):
            reach(f"{self._kind}.before_write")
            write_all(self.descriptor, offset, data)

    def write_parts(self, parts: Iterable[bytes | bytearray], nbytes: int) -> int:
        """Write all of a file of ``nbytes`` that come in parts, and sync it out of the page cache. Returns
        the bytes that came, which the caller compares; more than ``nbytes`` are an error."""
        if nbytes:
            self.preallocate(nbytes)
        came = 0
        for part in parts:
            if came + len(part) > nbytes:
                raise StorageError(f"cannot write {self._called}: more came than its {nbytes} bytes")
            self.write(came, memoryview(part))
            came += len(part)
        self.sync(forget=True)
        return came

    def sync(self, *, forget: bool = False) -> None:
        """``forget``: its bytes leave the page cache, so that what is read next comes from the disk."""
        with storage_errors("write", self._called):
            reach(f"{self._kind}.before_sync")
            os.fsync(self.descriptor)
            if forget:
                os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def replace(self, target: Path, may_replace: AbstractContextManager[None] | None = None) -> None:
        """Take the name of ``target``, durably: who opens it sees the old bytes or the new; who has it open
        keeps the old. ``may_replace`` is entered right before, and left right behind."""
        with storage_errors("write", target):
            reach(f"{self._kind}.before_rename")
            with may_replace or nullcontext():
                self.path.replace(target)
        self._named(target)

    def take_name(self, target: Path) -> None:
        """As ``replace``, but raises ``OutputExistsError`` when there is such a file."""
        reach(f"{self._kind}.before_rename")
        rename_without_replacing(self.path, target)
        self._named(target)

    def _named(self, target: Path) -> None:
        # before ``path`` changes: from here on an interrupt must not discard it
        descriptor, self.descriptor = self.descriptor, -1
        self.path = target
        with storage_errors("write", target):
            os.close(descriptor)
        sync_directory(target.parent)

    def discard(self) -> None:
        """Delete it, unless it has its name. Never raises: what stays is a leftover."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        with suppress(OSError):
            os.close(descriptor)
        with suppress(OSError):
            reach(f"{self._kind}.before_discard")
            self.path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def replace_file(
    path: Path, data: bytes, may_replace: Callable[[], None] = lambda: None, *, writer: int | None = None
) -> None:
    """Put ``data`` at ``path`` atomically and durably: readers see the old bytes or the new. A failure leaves
    the old and nothing else.

    ``may_replace`` is asked last, right before the new bytes get the name; what it raises is a failure. No
    look can come after that one: where ``writer`` may be taken over, whoever does so takes its new bytes away
    (``delete_new_files``), and has its own under another name.
    """
    temporary = path.with_name(f".{path.name}.new" if writer is None else f".{path.name}.{writer}.new")

    @contextmanager
    def asked() -> Iterator[None]:
        may_replace()
        yield

    with storage_errors("write", path):
        reach("replace.before_delete")
        temporary.unlink(missing_ok=True)  # of an earlier try
    # discarded on failure: on a full disk it would hold the last free blocks
    with AtomicFile(temporary, "replace", called=path) as new:
        new.write(0, data)
        new.sync()
        new.replace(path, asked())


def delete_new_files(path: Path, *, below: int) -> None:
    """What writers of lower numbers than this were about to put at ``path``, or were killed before. Raises
    ``StorageError``."""
    with storage_errors("look into", path.parent):
        found = list(path.parent.glob(f".{path.name}.*.new"))
    for new in found:
        number = new.name.removeprefix(f".{path.name}.").removesuffix(".new")
        if not number.isdecimal() or int(number) >= below:
            continue
        with storage_errors("delete", new):
            reach("replace.before_clear")
            new.unlink(missing_ok=True)


def remove_own(path: Path, descriptor: int, kind: str) -> None:
    """Remove a name, if it is still that of the open file (-1: it was closed, and left to others): another
    writer may have taken the name. Where a filesystem numbers open files and names differently, it stays.
    ``kind``: of the failpoint. Raises ``OSError``."""
    if descriptor < 0:
        return
    reach(f"{kind}.before_delete")
    try:
        ours = os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return
    if ours:
        path.unlink(missing_ok=True)


def copy_file(source: IO[bytes], target: Path) -> None:
    """Copies a file to a new one, durably; its name is durable after ``sync_directory``.

    It is read and written, holes left out, and preallocated to the source's length: blocks that the
    filesystem shares would be what has reached the disk, after a failed sync less than what was acknowledged.
    Raises ``OSError``.
    """
    with target.open("xb", buffering=0) as new:
        size = os.fstat(source.fileno()).st_size
        reach("copy.before_write")
        os.posix_fallocate(new.fileno(), 0, max(size, 1))
        os.ftruncate(new.fileno(), size)
        for offset, piece in pieces_of(source.fileno()):
            write_all(new.fileno(), offset, piece)
        reach("copy.before_sync")
        os.fsync(new.fileno())


def sync_data(descriptor: int) -> None:
    """Makes the bytes of an open file durable, and its length. Raises ``OSError``."""
    os.fdatasync(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """A whole file whose bytes are durable; its name is so after ``sync_directory``."""
    with storage_errors("write", path):
        reach("replace.before_open")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            reach("replace.before_write")
            write_all(descriptor, 0, data)
            reach("replace.before_sync")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append_file(path: Path, data: bytes, kind: str) -> None:
    """Put ``data`` behind what is in a file, which is made if need be, durably. Several processes may do so
    at once, and none waits for another, which may have been stopped: the kernel appends each write as one.
    One that was cut short is followed by all of ``data`` again.

    A failure may leave a part of it. ``kind``: of the failpoints. Raises ``StorageError``.
    """
    with storage_errors("write", path):
        reach(f"{kind}.before_open")
        created = not path.exists()
        descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644
        )
        try:
            reach(f"{kind}.before_write")
            while os.write(descriptor, data) < len(data):
                pass  # the disk is about to be full: the next call fails, or there is room again
            reach(f"{kind}.before_sync")
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    if created:
        sync_directory(path.parent)


@contextmanager
def file_held(path: Path, kind: str, *, create: bool, timeout_s: float = HELD_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of a file against other processes and other threads; ``append_file`` does not ask for it.

    A file that is not there is made, or (without ``create``) nothing is held. ``kind``: of the failpoint.
    Raises ``StorageError``, also when the other one does not let go in time: it may have been stopped.
    """
    with ExitStack() as stack:
        with storage_errors("lock", path), suppress(*(() if create else (FileNotFoundError,))):
            reach(f"{kind}.before_lock")
            flags = os.O_WRONLY | (os.O_CREAT if create else 0) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(path, flags, 0o644)
            stack.callback(os.close, descriptor)
            _lock_within(timeout_s, descriptor, path)
        yield


def _lock_within(timeout_s: float, descriptor: int, path: Path) -> None:
    end = monotonic() + timeout_s
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, WHOLE_FILE)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as POSIX leaves it to the system
            if monotonic() > end:
                raise StorageError(
                    f"another process has held {path} for {timeout_s:g} s",
                    hint="It replaces a shard and was stopped meanwhile, or its disk hangs: end it, then "
                    "run shardwright recover",
                ) from None
            sleep(_HELD_RETRY_S)
        else:
            return


def publish_folder(source: Path, target: Path) -> None:
    """Give a complete, synced folder the name that readers look for, durably. There may be an empty folder at
    ``target``, nothing else."""
    with storage_errors("rename to", target):
        reach("folder.before_rename")
        source.rename(target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)
