"""The lock of one output: an open-file-description lock, which the kernel releases when its holder dies, on a
file that names the holder.

    {"pid": 4711, "host": "rig-1", "since": "2026-05-04T10:11:12+00:00"}

A take-over replaces the lock file with a new one: the old holder still locks its own file, but that no longer
has the name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardwright.model.errors import LinkError, LockedError
from shardwright.model.json_text import parse_json

from . import beneath, system
from .failpoints import reach
from .files import FLOCK, WHOLE_FILE, open_to_write, storage_errors, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

_MAX_HOLDER_BYTES = 4096
_NO_LOCKS = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)  # of a filesystem without locks


class StoreLock:
    """A held lock; made by ``take`` or ``replace``, released by ``release``, ``delete`` or the death of the
    process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> StoreLock:
        """Takes the lock. Raises ``LockedError``, which names the holder, or ``StorageError``."""
        with storage_errors("lock", path):
            while True:
                reach("lock.before_open")
                descriptor = open_to_write(path, os.O_CREAT)
                lock = cls(path, descriptor)
                try:
                    reach("lock.before_take")
                    _lock_file(path, descriptor)
                    if lock.is_held():
                        _write_holder(descriptor)
                        return lock
                except BaseException:
                    lock.release()
                    raise
                lock.release()  # the file was deleted or replaced before it was locked: try again

    @classmethod
    def replace(cls, path: Path) -> StoreLock:
        """Takes the output over from any holder: from then on the old holder's ``is_held`` is False. Raises
        ``StorageError``.

        Of two simultaneous take-overs the later rename wins; the other one detects it by ``is_held``.
        """
        # of no other process, in whatever container: two may take it over at once
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        with storage_errors("take over", path):
            reach("lock.before_create")
            descriptor = open_to_write(new, os.O_CREAT | os.O_EXCL)
            lock = cls(path, descriptor)
            try:
                _lock_file(path, descriptor)
                _write_holder(descriptor)
                reach("lock.before_rename")
                beneath.replace(new, path)
                sync_directory(path.parent)
            except BaseException:
                lock.release()
                beneath.unlink(new, missing_ok=True)
                raise
        return lock

    def renamed(self, path: Path) -> None:
        """Sets the path of the file after a folder above it was renamed; it stays locked meanwhile."""
        self.path = path

    def is_held(self, folder: int | None = None) -> bool:
        """Returns whether the file with this name is still the one that is locked here. ``folder``: that of
        the file, if it is open."""
        if self._descriptor < 0:
            return False
        path = self.path if folder is None else self.path.name
        with storage_errors("look at", self.path):
            try:
                return os.path.samestat(os.fstat(self._descriptor), beneath.stat(path, folder=folder))
            except FileNotFoundError:
                return False

    def current_path(self) -> Path | None:
        """Returns the present path of the locked file; None once it was deleted."""
        if self._descriptor < 0 or os.fstat(self._descriptor).st_nlink == 0:
            return None
        return type(self.path)(f"/proc/self/fd/{self._descriptor}").readlink()

    def release(self) -> None:
        """Releases the lock. The file stays: without a holder it has no meaning."""
        if self._descriptor >= 0:
            beneath.close(self._descriptor)
            self._descriptor = -1

    def delete(self) -> None:
        """Deletes the file, if it is still the one that is locked here, and releases the lock, also when the
        file cannot be deleted."""
        try:
            with storage_errors("delete", self.path):
                if self.is_held():
                    reach("lock.before_delete")
                    beneath.unlink(self.path)
        finally:
            self.release()


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock of this file now; False if there is no file, or it may not be
    opened. Raises ``StorageError`` where that cannot be told: whoever took the file for one that nobody holds
    would change what its holder is at work on."""
    with storage_errors("look at the lock", path):
        try:
            # O_NONBLOCK: opening a named pipe must not wait for a writer
            descriptor = beneath.open_file(path, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError, PermissionError, LinkError):
            return False
        try:
            found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, WHOLE_FILE)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
        finally:
            beneath.close(descriptor)
    return int(struct.unpack(FLOCK, found)[0]) != fcntl.F_UNLCK


def _lock_file(path: Path, descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, WHOLE_FILE)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: POSIX allows both
        raise LockedError(
            f"another process holds {path}: {_holder(descriptor)}",
            hint="Wait until it has ended, or stop it first",
        ) from None


def _write_holder(descriptor: int) -> None:
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    text = json.dumps(holder).encode()
    reach("lock.before_write")
    system.calls.write(descriptor, text, 0)
    system.calls.truncate(descriptor, len(text))


def _holder(descriptor: int) -> str:
    """Returns the holder by the file's text, which is written after the lock is taken, so it may be old or
    half written."""
    try:
        holder = parse_json(os.pread(descriptor, _MAX_HOLDER_BYTES, 0))
        return (
            f"process {int(holder['pid'])} on {str(holder['host'])[:255]!r} since {str(holder['since'])[:64]}"
        )
    except (OSError, ValueError, TypeError, KeyError):
        return "a process that has not given its name yet"
