"""Errors of the filesystem as typed ones, with the operation, the path and what to do."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from shardwright.model.errors import ShardwrightError, StorageError, StorageFullError

if TYPE_CHECKING:
    from pathlib import Path


def storage_errors(operation: str, path: Path | str) -> _StorageErrors:
    """A context that turns an ``OSError`` into the typed error with the operation and the path."""
    return _StorageErrors(operation, path)


def sync_errors(path: Path | str) -> _StorageErrors:
    """As ``storage_errors``, of the sync of a file: the error is ``in_sync``."""
    return _StorageErrors("sync", path, in_sync=True)


def says_nothing(error: OSError) -> bool:
    """Returns whether an error, typed or not, says nothing of the file that was to be opened: no descriptor
    is left. Who takes it for damage would drop what is sound."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    return isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)


class _StorageErrors:
    """No generator: from Python 3.13 on, the frame of one that an error has ended refers to those of its
    callers. The error, its traceback and these frames would be a cycle: what an acquisition held stayed until
    the collector came."""

    __slots__ = ("_in_sync", "_operation", "_path")

    def __init__(self, operation: str, path: Path | str, *, in_sync: bool = False) -> None:
        self._operation = operation
        self._path = path
        self._in_sync = in_sync

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, ShardwrightError):
            return
        kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        hint = {
            errno.ENOSPC: "Free some space on this filesystem, or choose another output root",
            errno.EDQUOT: "Free some space on this filesystem, or choose another output root",
            errno.EMFILE: "Raise the limit of open files of this process: ulimit -n",
        }.get(error.errno or 0)
        reason = error.strerror or error
        raise kind(
            f"cannot {self._operation} {self._path}: {reason}", hint=hint, in_sync=self._in_sync
        ) from error
