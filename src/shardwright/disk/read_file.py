"""A file that is open for reading, with the state that it had then: a shard, sealed or in progress, or a
document."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardwright.model.errors import ShardFormatError

from . import beneath
from .failpoints import look
from .files import FileIdentity, read_all
from .spill_links import open_shard
from .typed_errors import says_absent, storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class ChangedError(Exception):
    """The answer belongs to an earlier state of a file or store: look again."""

    def __str__(self) -> str:
        return "was changed while it was read"


class ReadFile:
    """Owns its descriptor: a file stays open as long as somebody reads it, under whatever name, or until
    ``close``. ``status``: when it was opened."""

    def __init__(self, path: Path | str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.status = os.fstat(descriptor)

    @classmethod
    def open(cls, path: Path, *, spilled: bool = False) -> ReadFile:
        """Opens a file of ours, which is no link. ``spilled``: a shard, which may be a link to a spilled one.
        Raises ``OSError``."""
        # O_NONBLOCK: opening a named pipe must not wait for a writer
        return cls(path, (open_shard if spilled else beneath.open_file)(path, os.O_RDONLY | os.O_NONBLOCK))

    @classmethod
    def find(cls, path: Path | str, key: str, open_key: Callable[[str], int]) -> ReadFile | None:
        """Opens the file of a key by ``open_key``; None if there is none. Raises ``StorageError``, of which
        ``LinkError`` is one."""
        with storage_errors("open", path):
            try:
                return cls(path, open_key(key))
            except OSError as error:
                if says_absent(error):
                    return None
                raise

    @property
    def nbytes(self) -> int:
        return self.status.st_size

    @property
    def allocated_bytes(self) -> int:
        return self.status.st_blocks * 512

    @property
    def identity(self) -> FileIdentity:
        """That of the file when it was opened."""
        return FileIdentity.of(self.status)

    @property
    def version(self) -> FileIdentity:
        """As ``ranges`` takes it."""
        return self.identity

    def is_unchanged(self) -> bool:
        """Returns whether the file was not written since it was opened."""
        return FileIdentity.of(os.fstat(self.descriptor)) == self.identity

    def check_unchanged(self) -> None:
        """Raises ``ChangedError`` if the file was written since it was opened: what was read of its index
        may not be what lies there now. An edit within a shard gives it a new time, and its old bytes become
        zeros."""
        look("look.bytes.after")
        if not self.is_unchanged():
            raise ChangedError

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context in which all that is read is of the state that was opened; else it raises
        ``ChangedError``."""
        try:
            yield
        except ShardFormatError:
            self.check_unchanged()
            raise
        self.check_unchanged()

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Returns bytes of the file. Raises ``ShardFormatError`` if it ends too early, ``StorageError``."""
        look("look.bytes")
        with storage_errors("read", self.path):
            data = read_all(self.descriptor, offset, nbytes)
        if len(data) < nbytes:
            raise self.ends_early(offset, nbytes)
        return memoryview(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills ``buffer`` from ``offset``. Raises as ``read``."""
        look("look.bytes")
        done = 0
        while done < len(buffer):
            with storage_errors("read", self.path):
                count = os.preadv(self.descriptor, [buffer[done:]], offset + done)
            if count == 0:
                raise self.ends_early(offset, len(buffer))
            done += count

    def ends_early(self, offset: int, nbytes: int) -> ShardFormatError:
        return ShardFormatError(f"{self.path} ends too early", expected=f"{nbytes} bytes at {offset}")

    # as the bytes of a shard (``shard.sealed_shard``)

    def edge(
        self, nbytes: int, *, at_end: bool, known: FileIdentity | None, sure: bool
    ) -> tuple[bytes, FileIdentity, int] | None:
        """Returns its first or last bytes, all if it has fewer, its identity and its length; None if it is
        the ``known`` one, which costs nothing to see. Raises as ``read``."""
        del sure
        if known == self.identity:
            return None
        nbytes = min(nbytes, self.nbytes)
        data = self.read(self.nbytes - nbytes if at_end else 0, nbytes)
        return bytes(data), self.identity, self.nbytes

    def ranges(self, version: FileIdentity, bounds: list[tuple[int, int]]) -> list[memoryview]:
        """Returns the bytes [start, stop) of each range. Raises ``ChangedError`` if the file is not, or no
        longer, that of ``version``, and as ``read``."""
        with self.unchanged():
            if version != self.identity:
                raise ChangedError
            return [self.read(start, stop - start) for start, stop in bounds]

    def is_sure(self, version: FileIdentity) -> bool:
        """Whoever changes the file gives it another identity."""
        del version
        return True

    def close(self) -> None:
        """Closes it before the last reader lets it go. It may be called again."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            beneath.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            self.close()
