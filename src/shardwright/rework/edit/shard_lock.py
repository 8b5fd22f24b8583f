"""The lock of one shard against other processes and threads that edit it."""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING

from shardwright.model.errors import LockedError
from shardwright.rework.runtime.work_folder import remove_lock, take_lock
from shardwright.shard.edit_files import LOCK_SUFFIX, edit_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 30.0
_RETRY_S = 0.01


@contextmanager
def shard_locked(array_folder: Path, key: str, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """A context that holds the lock; its file is deleted afterwards. Raises ``LockedError``, which names the
    holder, when that does not release it in time, ``StorageError``."""
    path = edit_file(array_folder, key, LOCK_SUFFIX)
    end = monotonic() + timeout_s
    while True:
        try:
            lock = take_lock(path.parent, path.name)
            break
        except LockedError as error:
            if monotonic() >= end:
                raise LockedError(
                    f"{array_folder / key} is being updated by another process or thread: {error.message}",
                    expected=f"released within {timeout_s:g} s",
                    hint="Wait for it, or end it if it hangs: `shardwright recover` completes its update",
                ) from None
        sleep(_RETRY_S)
    try:
        yield
    finally:
        remove_lock(lock)
