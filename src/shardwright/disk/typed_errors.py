"""Errors of the filesystem as typed ones, with the operation, the path and what to do."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from shardwright.model.errors import LinkError, ShardwrightError, StorageError, StorageFullError

if TYPE_CHECKING:
    from pathlib import Path

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
# Its name: gone, or another kind's. Its bytes: a sector, a checksum of the filesystem, a place that no file
# has, as a damaged table names. None: of a read that ended early.
_OF_THE_FILE = (
    *(None, *_NOT_THERE, errno.EISDIR, errno.ELOOP, errno.ENXIO),
    *(errno.EIO, errno.EREMOTEIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN, errno.EILSEQ),
    *(errno.EINVAL, errno.EOVERFLOW),
)


def storage_errors(operation: str, path: Path | str) -> _StorageErrors:
    """A context that turns an ``OSError`` into the typed error with the operation and the path."""
    return _StorageErrors(operation, path)


def sync_errors(path: Path | str) -> _StorageErrors:
    """As ``storage_errors``, of the sync of a file: the error is ``in_sync``."""
    return _StorageErrors("sync", path, in_sync=True)


def says_absent(error: OSError) -> bool:
    """Returns whether an error, typed or not, says that nothing has the name of the file that was to be
    opened. To a Zarr reader that is fill value, so that no other error is: not of a link whose file is not
    there, and not where the system or the disk refuses."""
    cause = _cause_of(error)
    return cause is not None and cause.errno in _NOT_THERE and not isinstance(error, LinkError)


def says_nothing(error: OSError) -> bool:
    """Returns whether an error, typed or not, says nothing of the file that was to be opened or read: no
    descriptor or memory is left, a server does not answer, it is not ours to read. Who takes that for damage
    would drop what is sound. So the list is of those that do speak of it."""
    cause = _cause_of(error)
    return cause is not None and cause.errno not in _OF_THE_FILE


def says_closed(error: OSError) -> bool:
    """Returns whether an error, typed or not, says that this user may not look there, as into the lost+found
    of a disk. Who looks for stores passes over such a folder."""
    return isinstance(_cause_of(error), PermissionError)


def _cause_of(error: OSError) -> OSError | None:
    """Returns what the system said; None if it was no call that failed."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    return cause if isinstance(cause, OSError) else None


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
