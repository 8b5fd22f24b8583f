"""A shard that is to take another one's place: preallocated, filled front to back in pieces, synced, read
back from the disk, renamed.

    create ──▶ write_piece ... ──▶ write ──▶ finish ──▶ read_pieces ──▶ replace
                     (any failure on the way: discard; the old file was never touched)

Pieces go past the page cache where the filesystem offers O_DIRECT: fresh page cache is expensive, and the
file is not read again soon. Elsewhere they go through it and are dropped from it after the sync, so that the
file is read back from the disk either way. Two page-aligned buffers a thread, used again and again: while one
is filled (or checked), the other is on its way to (or from) the disk.
"""

from __future__ import annotations

import errno
import mmap
import os
import pwd
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import StorageError

from . import beneath
from .failpoints import reach
from .files import AtomicFile, set_direct, storage_errors, truncate, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    Buffer = npt.NDArray[np.uint8]

BLOCK_BYTES = 4096  # what O_DIRECT wants of offsets, lengths and addresses
PIECE_BYTES = 8 << 20
_of_this_thread = threading.local()


def _buffers() -> tuple[Buffer, Buffer]:
    """Returns the two buffers of this thread, page-aligned: uint8[PIECE_BYTES] each."""
    held: tuple[Buffer, Buffer] | None = getattr(_of_this_thread, "buffers", None)
    if held is None:
        held = _of_this_thread.buffers = (
            np.frombuffer(mmap.mmap(-1, PIECE_BYTES), np.uint8),
            np.frombuffer(mmap.mmap(-1, PIECE_BYTES), np.uint8),
        )
    return held


class WorkingFile:
    """A context manager: leaving it before ``replace`` deletes the file."""

    def __init__(self, path: Path, nbytes: int, like: os.stat_result) -> None:
        """``nbytes``: the most that it may have. It gets the mode and owner of ``like``. Raises
        ``StorageFullError``, ``StorageError``."""
        # Nobody else may read the copy before it has the owner and the mode of its shard. The owner comes
        # first: a change of owner takes bits of the mode away.
        self._file = AtomicFile(path, "compact", mode=0o600)
        try:
            with storage_errors("write", path):
                own = os.fstat(self._file.descriptor)
                if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
                    self._give_to(like)
                os.fchmod(self._file.descriptor, like.st_mode & 0o7777)
            self._file.preallocate(max(1, -(-nbytes // BLOCK_BYTES)) * BLOCK_BYTES)
            self._direct = self._set_direct(True)
        except BaseException:
            self._file.discard()
            raise

    @property
    def path(self) -> Path:
        return self._file.path

    def _give_to(self, like: os.stat_result) -> None:
        try:
            os.fchown(self._file.descriptor, like.st_uid, like.st_gid)
        except PermissionError:
            raise StorageError(
                f"a copy of a file of user {_user_name(like.st_uid)}, group {like.st_gid}, cannot be given "
                f"to them",
                got=f"user {_user_name(os.geteuid())}",
                hint=f"Run this as user {_user_name(like.st_uid)}, or as root. Nothing was changed",
            ) from None

    def _set_direct(self, direct: bool) -> bool:
        """Returns whether it could be set."""
        try:
            set_direct(self._file.descriptor, on=direct)
        except OSError:
            return False
        return True

    def copy_attributes(self, source: int) -> None:
        """Copies the extended attributes of an open file: a user's, and access lists. Raises
        ``StorageError``.

        Does nothing if the filesystem has none. Those that only the system may set (labels, capabilities) are
        left out: it sets its own.
        """
        with storage_errors("copy the extended attributes to", self.path):
            try:
                names = os.listxattr(source)
            except OSError as error:
                if error.errno != errno.ENOTSUP:
                    raise
                return
            for name in names:
                try:
                    reach("compact.before_attribute")
                    os.setxattr(self._file.descriptor, name, os.getxattr(source, name))
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.ENOTSUP) or name.startswith("user."):
                        raise

    def write_piece(self, offset: int, piece: memoryview) -> None:
        """Writes whole blocks at a block's edge. Raises ``StorageError``."""
        with storage_errors("write", self.path):
            reach("compact.before_write")
            try:
                write_all(self._file.descriptor, offset, piece)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                # it takes the flag and refuses the write: some network filesystems
                self._direct = not self._set_direct(False)
                write_all(self._file.descriptor, offset, piece)

    def unaligned(self) -> int:
        """Returns the descriptor, which may be read and written anywhere from now on."""
        self._direct = self._direct and not self._set_direct(False)
        return self._file.descriptor

    def write(self, offset: int, data: bytes) -> None:
        """Writes a few bytes (the index) anywhere, once all pieces are written. Raises ``StorageError``."""
        with storage_errors("write", self.path):
            reach("compact.before_index")
            self._set_direct(False)
            write_all(self._file.descriptor, offset, data)

    def finish(self, nbytes: int) -> None:
        """Cuts it to its length and makes its bytes durable. To be called once. Raises ``StorageError``."""
        with storage_errors("sync", self.path):
            reach("compact.before_truncate")
            truncate(self._file.descriptor, nbytes)
        self._file.sync(forget=True)

    def read_pieces(self) -> Iterator[tuple[int, Buffer]]:
        """Yields (offset, bytes) of the whole file as the disk has it, piece by piece; a piece is valid until
        the next one is requested. Raises ``StorageError``."""
        with storage_errors("read back", self.path):
            nbytes = os.fstat(self._file.descriptor).st_size
            # By a descriptor of its own, past the page cache: the cache would give back what was written,
            # whatever the disk has made of it.
            descriptor = _open_direct(self.path)
        try:
            with ThreadPoolExecutor(1, "shardwright-read-back") as reader:
                ahead: list[Future[Buffer]] = []
                for number, offset in enumerate(range(0, nbytes + PIECE_BYTES, PIECE_BYTES)):
                    arrived = ahead.pop().result() if ahead else None
                    if offset < nbytes:
                        buffer = _buffers()[number % 2]
                        ahead.append(
                            reader.submit(
                                self._read_piece,
                                descriptor,
                                offset,
                                min(PIECE_BYTES, nbytes - offset),
                                buffer,
                            )
                        )
                    if arrived is not None:
                        yield offset - PIECE_BYTES, arrived
        finally:
            beneath.close(descriptor)

    def _read_piece(self, descriptor: int, offset: int, nbytes: int, buffer: Buffer) -> Buffer:
        done = 0
        with storage_errors("read back", self.path):
            reach("compact.before_read_back")
            while done < nbytes:
                count = os.preadv(descriptor, [buffer[done:].data], offset + done)
                if count == 0:
                    raise StorageError(
                        f"{self.path} was cut while it was read back",
                        expected=f"{offset + nbytes} bytes",
                        got=f"{offset + done} bytes",
                    )
                done += count
        return buffer[:nbytes]

    def replace(self, target: Path, may_replace: AbstractContextManager[None]) -> None:
        """As ``AtomicFile.replace``."""
        self._file.replace(target, may_replace)

    def __enter__(self) -> WorkingFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.discard()


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _open_direct(path: Path) -> int:
    try:
        return beneath.open_file(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return beneath.open_file(path, os.O_RDONLY)


class WriteBehind:
    """Writes consecutive bytes to a working file from offset ``start`` on: while one buffer is filled, the
    other is written.

    A context manager of one thread; leaving it without an error writes the rest, padded with zeros to a whole
    block.
    """

    def __init__(self, file: WorkingFile, start: int) -> None:
        self._file = file
        self._base = start // BLOCK_BYTES * BLOCK_BYTES  # file offset of the buffer's first byte
        self._filled = start - self._base
        self._current = 0
        self._writer = ThreadPoolExecutor(1, "shardwright-write-behind")
        self._on_its_way: Future[None] | None = None
        _buffers()[0][: self._filled] = 0

    @property
    def position(self) -> int:
        """The file offset of the next byte."""
        return self._base + self._filled

    @property
    def room(self) -> Buffer:
        """The free part of the buffer, never empty: the caller fills some of its front and reports it by
        ``advance``."""
        return _buffers()[self._current][self._filled :]

    def advance(self, nbytes: int) -> None:
        """Counts bytes that the caller has filled in. Raises the ``StorageError`` of an earlier write."""
        self._filled += nbytes
        assert self._filled <= PIECE_BYTES, "no more than there was room"
        if self._filled == PIECE_BYTES:
            self._send()

    def append(self, data: Buffer) -> None:
        """Appends a copy of ``data``, of any length."""
        while data.size:
            count = min(data.size, self.room.size)
            self.room[:count] = data[:count]
            self.advance(count)
            data = data[count:]

    def _send(self) -> None:
        # The write that is on its way has the buffer that is filled next. Its error is raised here, in the
        # thread that fills.
        self._wait()
        padded = -(-self._filled // BLOCK_BYTES) * BLOCK_BYTES
        buffer = _buffers()[self._current]
        buffer[self._filled : padded] = 0
        self._on_its_way = self._writer.submit(self._file.write_piece, self._base, buffer[:padded].data)
        self._base += self._filled
        self._filled = 0
        self._current = 1 - self._current

    def _wait(self) -> None:
        if self._on_its_way is not None:
            done, self._on_its_way = self._on_its_way, None
            done.result()

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self._filled:
                    self._send()
                self._wait()
        finally:
            self._writer.shutdown()
