"""Operations on files and folders: preallocate, punch, sync, rename, replace. Linux.

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
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar

from shardwright.model.errors import (
    OutputExistsError,
    ShardFormatError,
    StorageError,
)
from shardwright.model.names import is_visible_key

from . import beneath, system
from .failpoints import reach
from .remote_path import RemotePath
from .spill_links import open_shard, shard_status
from .typed_errors import storage_errors as storage_errors  # noqa: PLC0414  (most rooms take it from here)
from .typed_errors import sync_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Self

FLOCK = "@hhqqi4x"  # struct flock
WHOLE_FILE = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # a lock on all of it; its pid must be 0
HELD_TIMEOUT_S = 30.0  # under the lock of a file nothing but a rename is done
_HELD_RETRY_S = 0.01
_PIECE_BYTES = 1 << 20
_ZEROS = memoryview(bytes(_PIECE_BYTES))
_MOST_READ_BYTES = 1 << 30  # by one call
_MOST_KNOWN_FOLDERS = 1 << 14  # of one owner, some MiB
_MOST_JUST_MADE = 64  # of these: each shard has folders of its own, which hardly anything comes back to
_MOST_REMOVED = 1000  # times in a row that others may remove a folder which is to be used
T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap


class FileIdentity(NamedTuple):
    """The identity of one state of a file, by which it differs from all others that ever had its name:
    whoever replaces or changes the file gives it another one. ``NO_FILE``: there is none."""

    device: int
    inode: int
    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    @classmethod
    def at(cls, path: Path) -> FileIdentity:
        """Returns that of the file with this name, of a spilled shard's that of its file. Raises
        ``StorageError``."""
        with storage_errors("look at", path):
            try:
                return cls.of(shard_status(path))
            except FileNotFoundError:
                return NO_FILE


NO_FILE = FileIdentity(0, 0, 0, 0)


def raise_errno(number: int) -> None:
    """Raises the ``OSError`` of an errno; 0 is none."""
    if number:
        raise OSError(number, os.strerror(number))


def keys_on_disk(root: Path, folder: str) -> Iterator[str]:
    """Yields the keys of all files below a folder of a store that are not hidden. Raises ``StorageError`` for
    a folder that cannot be read: without it the keys of its chunks would be missing, which are fill value to
    who lists what there is."""
    if isinstance(root, RemotePath):
        for key in (root / folder).keys_below():
            if is_visible_key(key := f"{folder}/{key}" if folder else key):
                yield key
        return
    with storage_errors("look into", root / folder):
        for below, folders, names in beneath.walk(root / folder, failed=beneath.raise_unless_gone):
            folders[:] = sorted(name for name in folders if is_visible_key(name))
            relative = os.path.relpath(below, root)
            start = "" if relative == "." else f"{relative}/"
            yield from (f"{start}{name}" for name in sorted(names) if is_visible_key(name))


def preallocate(descriptor: int, nbytes: int, *, start: int = 0) -> bool:
    """Reserves real blocks for ``nbytes`` of a file from ``start`` on. Returns True if the filesystem
    guarantees them, False if glibc had to write zeros. Raises ``OSError``."""
    # The raw call first: glibc's writes zeros where the filesystem cannot reserve, and does not say so. A
    # reserved file can be filled, named and synced on a disk that is full by then.
    try:
        system.calls.allocate(descriptor, start, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.posix_fallocate(descriptor, start, nbytes)
        return False
    return True


def preallocate_behind(descriptor: int, nbytes: int, *, start: int = 0) -> None:
    """Reserves real blocks for ``nbytes`` of a file from ``start`` on; it keeps its size. Does nothing where
    the filesystem cannot. Raises ``OSError``."""
    try:
        system.calls.allocate(descriptor, start, nbytes, keeps_size=True)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def punch_hole(descriptor: int, offset: int, nbytes: int) -> bool:
    """Gives the blocks of a gap back to the filesystem; the file keeps its size. Returns False, and the gap
    stays, if the filesystem cannot, or has no room for its bookkeeping. Raises ``OSError`` only for an I/O
    error."""
    try:
        system.calls.punch(descriptor, offset, nbytes)
    except OSError as error:
        # A gap that stays costs room and no frame, so it must not fail a shard that is whole.
        if error.errno == errno.EIO:
            raise
        return False
    return True


def truncate(descriptor: int, nbytes: int) -> None:
    """Sets the length of an open file. Raises ``OSError``."""
    system.calls.truncate(descriptor, nbytes)


def clear_range(descriptor: int, start: int, stop: int) -> None:
    """Makes bytes of a file zeros, and gives whole pages of them back where the filesystem can. Raises
    ``OSError``."""
    page = mmap.PAGESIZE
    first, last = -(-start // page) * page, stop // page * page
    punched = first < last and punch_hole(descriptor, first, last - first)
    for begin, end in ((start, first), (last, stop)) if punched else ((start, stop),):
        for offset in range(begin, end, len(_ZEROS)):
            write_all(descriptor, offset, _ZEROS[: end - offset])


def data_ranges(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yields [first, last) of each range of data of a file within [start, stop); between them are holes,
    which read as zeros. A filesystem that knows no holes has one range. Raises ``OSError``."""
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


def pieces_of(
    descriptor: int, begin: int = 0, *, skip_unreadable: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, bytes) of all data of a file from ``begin`` on, without its holes.
    ``skip_unreadable``: also without pages that cannot be read. Raises ``OSError``."""
    for first, stop in data_ranges(descriptor, begin, os.fstat(descriptor).st_size):
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
                break  # another process truncated the file meanwhile
            yield start, piece
            start += len(piece)


def write_all(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    """Writes all of ``data`` at ``offset``, in as many calls as needed. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        done = system.calls.write(descriptor, view, offset)
        view, offset = view[done:], offset + done


def read_all(descriptor: int, offset: int, nbytes: int) -> bytes:
    """Returns bytes of an open file, fewer than ``nbytes`` only at its end. Raises ``OSError``."""
    pieces, done = [], 0
    while done < nbytes and (
        piece := os.pread(descriptor, min(nbytes - done, _MOST_READ_BYTES), offset + done)
    ):
        pieces.append(piece)
        done += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def free_bytes(folder: Path) -> int:
    """Returns the room on the filesystem of a folder that this user may fill. Raises ``StorageError``."""
    with storage_errors("look at", folder):
        facts = beneath.filesystem_of(folder)
    return facts.f_bavail * facts.f_frsize


def renew(path: Path, *, again: bool, failed: Callable[[], None]) -> None:
    """Syncs a file. If that fails (``failed`` is called at once), or with ``again``, all data of the file is
    written once more, for the next sync: the kernel reports a failed write-back only once, and takes those
    pages for clean from then on (PostgreSQL's "fsyncgate"). Raises ``StorageError``."""
    with storage_errors("write again", path), open_regular(path, writing=True, buffering=0) as file:
        reach("files.before_renew")
        descriptor = file.fileno()
        try:
            system.calls.sync(descriptor)
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
                # copy on write: frees the blocks of what was written again so far
                system.calls.sync(descriptor)
                write_all(descriptor, offset, piece)


def set_direct(descriptor: int, *, on: bool) -> None:
    """Lets writes and reads go past the page cache (O_DIRECT) from now on, or through it. Raises ``OSError``
    if the filesystem cannot."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)


def advise(address: int, nbytes: int, advice: int) -> int:
    """Calls madvise(2) on memory of this process, without the GIL, which Python's own keeps. Returns 0 or
    errno."""
    return 0 if _libc.madvise(address, nbytes, advice) == 0 else ctypes.get_errno()


def populate(address: int, nbytes: int) -> int:
    """Makes pages of a mapping ready to be written. Returns 0 or errno; EINVAL: this kernel (before 5.14)
    cannot."""
    return advise(address, nbytes, _MADV_POPULATE_WRITE)


def rename_without_replacing(source: Path, target: Path) -> None:
    """Renames atomically. Raises ``OutputExistsError`` when ``target`` exists, ``StorageError``.

    Network filesystems have no such rename: there a hard link, which never replaces a file either, gives the
    new name and the old one is deleted. A folder cannot be linked: it is renamed, and replaces at most an
    empty folder that was made at this moment.
    """
    try:
        try:
            beneath.rename_with(source, target, beneath.RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            if not beneath.is_dir(source):
                beneath.add_name(source, target)
                beneath.unlink(source)
            elif beneath.exists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            else:
                beneath.replace(source, target)
    except FileExistsError as error:
        raise OutputExistsError("a file of this name is already there", got=target) from error
    except OSError:
        with storage_errors("rename to", target):
            raise


def add_name(path: Path, name: Path) -> None:
    """Gives a file one more name on its filesystem. Raises ``OutputExistsError`` when ``name`` exists,
    ``StorageError``."""
    with storage_errors("link", name):
        try:
            beneath.add_name(path, name)
        except FileExistsError as error:
            raise OutputExistsError("a file of this name is already there", got=name) from error


def takes_second_names(path: Path) -> bool:
    """Returns whether a file can have two names on its filesystem. Raises ``StorageError``."""
    name = path.with_name(f"{path.name}.link")
    try:
        with storage_errors("link", name):
            reach("files.before_second_name")
            add_name(path, name)
    except StorageError:
        return False
    with storage_errors("remove", name):
        beneath.unlink(name)
    return True


def is_name_of(path: Path, descriptor: int) -> bool:
    """Returns whether a name is one of the open file's. Raises ``StorageError``."""
    with storage_errors("look at", path):
        try:
            return os.path.samestat(os.fstat(descriptor), beneath.stat(path))
        except FileNotFoundError:
            return False


NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS)  # of a filesystem without such a call


def exchange(
    one: Path, other: Path, hint: str = "Delete or move the old store first, or choose another name"
) -> None:
    """Exchanges what two names stand for, in one step. Raises ``StorageError``, also on a filesystem that has
    no such call, as those of networks; ``hint``: then."""
    try:
        beneath.rename_with(one, other, beneath.RENAME_EXCHANGE)
    except OSError as error:
        if error.errno in NO_EXCHANGE:
            raise StorageError(f"this filesystem cannot exchange two names: {other}", hint=hint) from error
        with storage_errors("exchange the names of", other):
            raise


def replace_by_rename(source: Path, target: Path) -> None:
    """Renames atomically, in place of the file with the name ``target``, if any. Raises ``StorageError``."""
    with storage_errors("rename to", target):
        beneath.replace(source, target)


def open_regular(
    path: Path, *, writing: bool = False, spilled: bool = False, buffering: int = -1
) -> IO[bytes]:
    """Opens a regular file to read, or to read and write. ``spilled``: a shard, which may be a link to a
    spilled one. Raises ``OSError``, also for a file of another kind: to open a named pipe would wait for its
    writer."""
    flags = (os.O_RDWR if writing else os.O_RDONLY) | os.O_NONBLOCK
    descriptor = (open_shard if spilled and not writing else beneath.open_file)(path, flags)
    try:
        _check_regular(descriptor, path)
        return system.calls.file(descriptor, "r+b" if writing else "rb", buffering)
    except BaseException:
        beneath.close(descriptor)
        raise


def open_to_write(path: Path, flags: int) -> int:
    """Returns a descriptor of a regular file to read and write, which is made with ``O_CREAT`` in ``flags``.
    Raises ``OSError``, also for a file of another kind."""
    descriptor = beneath.open_file(path, os.O_RDWR | os.O_NONBLOCK | flags)
    try:
        _check_regular(descriptor, path)
    except BaseException:
        beneath.close(descriptor)
        raise
    return descriptor


def _check_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Returns all of a regular file. Raises ``OSError``, and ``ShardFormatError`` for one of more than
    ``most_bytes``: a length costs nothing, a file of holes can have any."""
    if isinstance(path, RemotePath):
        return path.content(most_bytes)
    with open_regular(path, buffering=0) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most_bytes:
            raise ShardFormatError(f"{path} is too long", expected=f"at most {most_bytes} bytes", got=nbytes)
        return read_all(file.fileno(), 0, nbytes)


def read_range(path: Path, offset: int, nbytes: int, *, spilled: bool = False) -> bytes:
    """Returns bytes of a regular file, fewer than ``nbytes`` only at its end. ``spilled``: see
    ``open_regular``. Raises ``StorageError``."""
    with storage_errors("read", path), open_regular(path, spilled=spilled, buffering=0) as file:
        return read_all(file.fileno(), offset, nbytes)


def sync_directory(path: Path) -> None:
    """Makes the names in a folder durable. Raises ``StorageError``."""
    with storage_errors("sync folder", path):
        reach("directory.before_sync")
        descriptor = beneath.open_file(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            system.calls.sync(descriptor)
        finally:
            beneath.close(descriptor)


def sync_filesystem(descriptor: int) -> None:
    """Makes all that was written to the filesystem of an open file since it was opened durable, data and
    names, by one call (syncfs): where many files are written that costs one commit of its journal instead of
    one for each. What other programs have written there meanwhile is synced with it. Only a descriptor that
    was open before a write is told of its failure. Raises ``OSError``."""
    system.calls.sync_filesystem(descriptor)


class DurableFolders:
    """Makes folders, and remembers those whose names are durable, for one owner of files.

    That a folder exists does not tell whether a power cut keeps it: an earlier call made it and its answer
    was lost, or the sync after it failed, or another thread or a process that was killed has made it and not
    synced its name. Files in it would be acknowledged and go with it. So the first look at each folder
    syncs the one above it, whoever made it, and a sync that fails is no look. Several threads may call it.
    ``durable``: folders that the owner knows to be.
    """

    def __init__(self, *durable: Path) -> None:
        # whoever makes a folder forgets it before, so that no other trusts an earlier one of that name
        self._known = dict.fromkeys(durable)
        self._just_made: dict[Path, None] = {}  # likewise known, for the next files in them

    def make(self, path: Path, *, synced: bool = True) -> None:
        """Makes a folder and its missing parents. All their names, and those of the folders above that this
        user may have made, are durable then, unless the caller syncs many at once (``synced``). Raises
        ``StorageError``."""
        if not synced:
            made_in(path, lambda: self._make_all(path), lambda _: None)
            return
        with storage_errors("create folder", path):  # a folder above it may be closed to this user
            exists = beneath.is_dir(path)
        if exists:
            self._look_at(path)
        else:
            self._forget(path)
            made_in(path.parent, lambda: _make_new_folder(path, synced=True), self.make)
            _note(self._just_made, path, _MOST_JUST_MADE)

    def _make_all(self, path: Path) -> None:
        def before(folder: Path) -> None:
            reach("directory.before_create")
            self._forget(folder)

        with storage_errors("create folder", path):
            beneath.make_folders(path, before)

    def _forget(self, path: Path) -> None:
        self._known.pop(path, None)
        self._just_made.pop(path, None)

    def _look_at(self, path: Path) -> None:
        if path in self._known or path in self._just_made:
            return
        is_ours = False
        # another process may have removed it in between, as all do that leave it empty
        with storage_errors("look at", path), suppress(FileNotFoundError):
            is_ours = beneath.is_changeable(path)
        if is_ours:
            self._look_at(path.parent)
            sync_directory(path.parent)
        _note(self._known, path, _MOST_KNOWN_FOLDERS)


def _note(folders: dict[Path, None], path: Path, most: int) -> None:
    # All are forgotten at once, and not the oldest: that costs a sync each, and no order to keep.
    folders[path] = None
    if len(folders) > most:  # the next look at one of them syncs once more
        folders.clear()


def make_directories(path: Path, *, synced: bool = True) -> None:
    """Makes one folder as ``DurableFolders`` does. Who makes folders again and again has one of these."""
    DurableFolders().make(path, synced=synced)


def make_folder(path: Path, *, synced: bool = True) -> None:
    """Makes a folder unless it is there, its name durable, but none above it: also that of one which is
    there, since whoever made it may have been killed, is about to sync it, or did not hear that it was made.
    Raises ``StorageError``."""
    with storage_errors("create folder", path):
        exists = beneath.is_dir(path)
    if not exists:
        _make_new_folder(path, synced=False)
    if synced:
        sync_directory(path.parent)


def _make_new_folder(path: Path, *, synced: bool) -> None:
    """As ``make_folder``, of a folder that was not there a moment ago."""
    with storage_errors("create folder", path):
        is_there = False
        while not is_there:
            reach("directory.before_create")
            try:
                beneath.make_folder(path)
                is_there = True
            except FileExistsError:
                reach("directory.before_look")
                # what was there may be gone by now: its owner has removed it when it was empty. One look says
                # both: between two it may go, and be taken for something else
                with suppress(FileNotFoundError):
                    is_there = stat.S_ISDIR(beneath.stat(path).st_mode)
                    if not is_there:
                        beneath.check_no_link(path)
                        raise
    if synced:
        sync_directory(path.parent)


def made_in(
    folder: Path,
    make: Callable[[], T],
    make_folder: Callable[[Path], None] = make_folder,
) -> T:
    """Returns what ``make`` does, which makes a file or folder in ``folder``. That is made before, and again
    when another process has removed it in between, as all do that leave it empty. Raises
    ``StorageError``."""
    for left in reversed(range(_MOST_REMOVED)):
        make_folder(folder)
        try:
            return make()
        except StorageError as error:
            if not left or not isinstance(error.__cause__, FileNotFoundError):
                raise
    raise AssertionError("the last try returns or raises")


class AtomicFile:
    """A new file that gets its name whole and durable, or not at all.

        AtomicFile(path) ──▶ write ... ──▶ sync ──▶ replace, take_name or keep
        leaving the context before that deletes it: an older file of that name stays

    With ``keep`` it has its name from the beginning, and a kill leaves a part of it there: for files in a
    folder that gets its own name later.

    Failpoints: ``KIND.before_create``, ``before_preallocate``, ``before_write``, ``before_sync``,
    ``before_rename``, ``before_discard``. Every step raises ``StorageError`` (``StorageFullError``).
    """

    def __init__(self, path: Path, kind: str, *, called: Path | None = None, mode: int = 0o644) -> None:
        """``path`` is the name until then, and must not exist. ``called``: its name in errors."""
        self.path, self._kind, self._called = path, kind, called or path
        with storage_errors("write", self._called):
            reach(f"{kind}.before_create")
            self.descriptor = beneath.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def preallocate(self, nbytes: int) -> None:
        with storage_errors("preallocate", self._called):
            reach(f"{self._kind}.before_preallocate")
            preallocate(self.descriptor, nbytes)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        with storage_errors("write", self._called):
            reach(f"{self._kind}.before_write")
            write_all(self.descriptor, offset, data)

    def write_parts(self, parts: Iterable[bytes | bytearray], nbytes: int) -> int:
        """Writes a whole file of ``nbytes`` in parts and syncs it out of the page cache. Returns the number
        of bytes that came, which the caller compares; more than ``nbytes`` are an error."""
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

    def sync(self, *, forget: bool = False, whole: bool = False) -> None:
        """Makes its bytes durable. ``forget``: they leave the page cache, so that the next read is from the
        disk. ``whole``: as ``sync_filesystem`` does."""
        with storage_errors("write", self._called):
            reach(f"{self._kind}.before_sync")
            (system.calls.sync_filesystem if whole else system.calls.sync)(self.descriptor)
            # After the sync: dirty pages would stay.
            if forget:
                os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def replace(
        self, target: Path, may_replace: AbstractContextManager[None] | None = None, *, synced: bool = True
    ) -> None:
        """Takes the name of ``target``, durably unless the caller syncs many at once (``synced``). A reader
        that opens it gets the old bytes or the new ones; one that has it open keeps the old ones. The rename
        is done within the context ``may_replace``."""
        with storage_errors("write", target):
            reach(f"{self._kind}.before_rename")
            with may_replace or nullcontext():
                beneath.replace(self.path, target)
        if synced:
            self._named(target)
        else:
            self._close(target)

    def take_name(self, target: Path) -> None:
        """As ``replace``, but raises ``OutputExistsError`` when ``target`` exists."""
        reach(f"{self._kind}.before_rename")
        rename_without_replacing(self.path, target)
        self._named(target)

    def keep(self) -> None:
        """Keeps the name ``path``, which is durable after ``sync_directory``."""
        self._close(self.path)

    def _named(self, target: Path) -> None:
        self._close(target)
        sync_directory(target.parent)

    def _close(self, target: Path) -> None:
        # before ``path`` changes: from here on an interrupt must not discard it
        descriptor, self.descriptor = self.descriptor, -1
        self.path = target
        with storage_errors("write", target):
            beneath.close(descriptor)

    def discard(self) -> None:
        """Deletes it, unless it has its name. Never raises: a file that stays is a leftover."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        with suppress(OSError):
            beneath.close(descriptor)
        with suppress(OSError):
            reach(f"{self._kind}.before_discard")
            beneath.unlink(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


class NewFile:
    """New bytes for a file, until they take its name: what ``replace_file`` writes. Leaving the context
    before that deletes them."""

    def __init__(self, path: Path, data: bytes, writer: int | str | None) -> None:
        """Writes them. Raises ``StorageError``; nothing is left then."""
        self._path = path
        temporary = new_name(path, writer)
        try:
            self._file = AtomicFile(temporary, "replace", called=path)
        except StorageError as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
            with storage_errors("write", path):  # of an earlier try
                reach("replace.before_delete")
                beneath.unlink(temporary, missing_ok=True)
            self._file = AtomicFile(temporary, "replace", called=path)
        try:
            self._file.write(0, data)
        except BaseException:
            # on a full disk it would hold the last free blocks
            self._file.discard()
            raise

    def sync(self) -> None:
        self._file.sync()

    def take_name(self, may_replace: Callable[[], None]) -> None:
        """Takes the name, durably. Raises ``OutputExistsError`` when there is a file of it."""
        may_replace()
        self._file.take_name(self._path)

    def replace(self, may_replace: Callable[[], None], *, synced: bool = True) -> None:
        """Takes the name, durably unless the caller syncs many at once (``synced``)."""

        @contextmanager
        def asked() -> Iterator[None]:
            may_replace()
            yield

        self._file.replace(self._path, asked(), synced=synced)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.discard()


def replace_file(
    path: Path,
    data: bytes,
    may_replace: Callable[[], None] = lambda: None,
    *,
    writer: int | str | None = None,
    is_new: bool = False,
) -> None:
    """Writes a whole file atomically and durably: readers see the old bytes or the new ones. A failure leaves
    only the old ones. ``is_new``: raises ``OutputExistsError`` if there are any.

    ``may_replace`` is called last, right before the new bytes get the name; an error that it raises is a
    failure. Nothing is checked after it: a writer that takes over from ``writer`` deletes its new bytes
    (``delete_new_files``), and has its own under another name. ``writer`` is its epoch, or any name that no
    other has. Raises ``StorageError``, or what ``may_replace`` raises.
    """
    with NewFile(path, data, writer) as new:
        new.sync()
        if is_new:
            new.take_name(may_replace)
        else:
            new.replace(may_replace)


def sync_folders_above(root: Path, key: str) -> None:
    """Makes the name of a key below ``root`` durable, and those of the folders between: whoever gave them may
    have died before it did. Raises ``StorageError``."""
    folder = root / key
    while folder != root:
        folder = folder.parent
        sync_directory(folder)


def new_name(path: Path, writer: int | str | None = None) -> Path:
    """Returns the name of new bytes for ``path`` until they replace it (``replace_file``)."""
    return path.with_name(f".{path.name}.new" if writer is None else f".{path.name}.{writer}.new")


def delete_new_files(path: Path, *, below: int) -> None:
    """Deletes new bytes for ``path`` of writers with lower numbers, which were about to replace it or were
    killed before. Raises ``StorageError``."""
    with storage_errors("look into", path.parent):
        found = beneath.matching(path.parent, f".{path.name}.*.new")
    for new in found:
        number = new.name.removeprefix(f".{path.name}.").removesuffix(".new")
        if not number.isdecimal() or int(number) >= below:
            continue
        with storage_errors("delete", new):
            reach("replace.before_clear")
            beneath.unlink(new, missing_ok=True)


def remove_own(path: Path, descriptor: int, kind: str) -> None:
    """Deletes a name, if it is still that of the open file (-1: closed, and left to others): another writer
    may have taken the name. On a filesystem that numbers open files and names differently it stays. ``kind``:
    of the failpoint. Raises ``OSError``."""
    if descriptor < 0:
        return
    reach(f"{kind}.before_delete")
    beneath.unlink_own(path, descriptor)


def copy_file(source: IO[bytes], target: Path) -> None:
    """Copies a file to a new one, its bytes durable; its name is durable after ``sync_directory``.

    It is read and written, holes left out, and preallocated to the source's length: blocks that the
    filesystem shares would hold the bytes that have reached the disk, after a failed sync fewer than were
    acknowledged. Raises ``StorageError``, and ``OSError`` if the source cannot be read.
    """
    with AtomicFile(target, "copy") as new:
        if size := os.fstat(source.fileno()).st_size:
            new.preallocate(size)
        for offset, piece in pieces_of(source.fileno()):
            new.write(offset, piece)
        new.sync()
        new.keep()


def sync_data(descriptor: int) -> None:
    """Makes the bytes of an open file durable, and its length. Raises ``OSError``."""
    system.calls.sync(descriptor, data_only=True)


class DataSync:
    """The syncs of one open file. Once one has failed, all later ones raise: the next would succeed, although
    bytes are not on the disk. ``kind``: of the failpoint."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._failed = False

    @property
    def has_failed(self) -> bool:
        return self._failed

    def sync(self, descriptor: int, path: Path, *, whole: bool = False) -> None:
        """Makes everything written so far durable. Raises ``StorageError``: the file has then failed for
        good. ``whole``: as ``sync_filesystem`` does; what has failed then may be another's, and the file's
        own sync says whether it has."""
        if self._failed:
            raise StorageError(
                f"a sync of {path} failed before; what was written since the last good one may be gone"
            )
        # Set before, so that an interrupt in the middle counts as a failure as well: nobody knows then what
        # the kernel has reported.
        self._failed = not whole
        with sync_errors(path):
            reach(f"{self._kind}.before_sync")
            (sync_filesystem if whole else sync_data)(descriptor)
        self._failed = False


def write_file(path: Path, data: bytes, *, synced: bool = True) -> None:
    """Writes a whole new file, its bytes durable unless the caller syncs many at once (``synced``); its name
    is durable after ``sync_directory``. Raises ``StorageError``, also when it exists."""
    with AtomicFile(path, "replace") as new:
        new.write(0, data)
        if synced:
            new.sync()
        new.keep()


def append_file(path: Path, data: bytes, kind: str, *, synced: bool = True) -> None:
    """Appends ``data`` to a file, which is made if it does not exist; ``synced``: durably. Several processes
    may do so at once, and none waits for another, which may have been stopped: the kernel appends each write
    as one. A write that was cut short is followed by all of ``data`` again.

    A failure may leave a part of it. ``kind``: of the failpoints. Raises ``StorageError``.
    """
    with storage_errors("write", path):
        reach(f"{kind}.before_open")
        descriptor = beneath.open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
        try:
            # its name is not durable either, whoever made it: ``file_held`` does not wait for that
            is_first = not os.fstat(descriptor).st_size
            reach(f"{kind}.before_write")
            while system.calls.append(descriptor, data) < len(data):
                pass  # the disk is about to be full: the next call fails, or there is room again
            if synced:
                reach(f"{kind}.before_sync")
                system.calls.sync(descriptor, data_only=True)
        finally:
            beneath.close(descriptor)
    if is_first and synced:
        sync_directory(path.parent)


@contextmanager
def file_held(path: Path, kind: str, *, create: bool, timeout_s: float = HELD_TIMEOUT_S) -> Iterator[None]:
    """A context that holds the lock of a file against other processes and other threads; ``append_file`` does
    not take it.

    A file that does not exist is made, or (without ``create``) nothing is held. ``kind``: of the failpoint.
    Raises ``StorageError``, also when the holder does not release it in time: it may have been stopped.
    """
    with ExitStack() as stack:
        with storage_errors("lock", path), suppress(*(() if create else (FileNotFoundError,))):
            reach(f"{kind}.before_lock")
            flags = os.O_WRONLY | (os.O_CREAT if create else 0) | os.O_NONBLOCK
            while True:
                descriptor = beneath.open_file(path, flags, 0o644)
                attempt = stack.enter_context(ExitStack())
                attempt.callback(beneath.close, descriptor)
                _lock_within(timeout_s, descriptor, path)
                if _has_name(descriptor, path):
                    break
                attempt.close()  # it was replaced before it was locked: whoever comes next locks the new one
        yield


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), beneath.stat(path))
    except FileNotFoundError:
        return False


def _lock_within(timeout_s: float, descriptor: int, path: Path) -> None:
    end = monotonic() + timeout_s
    while True:
        try:
            # Of the open file: a lock of the process would not hold against its own threads, and would go as
            # any of them closes the file. Not the call that waits, which has no end: the holder may have been
            # stopped.
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, WHOLE_FILE)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as POSIX leaves it to the system
            if monotonic() > end:
                raise StorageError(
                    f"another process has held {path} for {timeout_s:g} s",
                    hint="It replaces a shard and was stopped meanwhile, or its disk hangs: end that "
                    "process, then run shardwright recover",
                ) from None
            sleep(_HELD_RETRY_S)
        else:
            return


def publish_folder(source: Path, target: Path) -> None:
    """Gives a complete, synced folder the name that readers look for, durably. Only an empty folder may have
    that name already. Raises ``StorageError``."""
    with storage_errors("rename to", target):
        reach("folder.before_rename")
        beneath.replace(source, target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)
