"""Changes the name of a finished store, or deletes it: ``shardwright rename``, ``shardwright delete``.

A name goes in one step, so that under any name there is a whole store or none. A deletion moves the store
into a locked making folder (``store.new_store``) first: what a kill leaves has no use, and the next deletion
or creation beside it, and ``recover``, remove it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    file_held,
    rename_without_replacing,
    replace_by_rename,
    storage_errors,
    sync_directory,
)
from shardwright.model.errors import InvalidNameError, LockedError, OutputExistsError, StorageError
from shardwright.model.local_path import local_path
from shardwright.model.names import DOCUMENT, STORE_SUFFIX, checked_name, checked_new_store, numbered
from shardwright.store.new_store import abandoned, making_folder, remove_abandoned
from shardwright.store.replaced_store import DELETE, RENAME, check_at_rest, files_removed

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from pathlib import Path


def rename_store(path: str | os.PathLike[str], name: str) -> Path:
    """Gives a finished store another name in its folder, durably; returns its path. ``name`` is a plain name,
    with or without the suffix of the store. What its metadata call it stays.

    Raises ``InvalidNameError``, ``OutputExistsError`` where something has the name, or for what is no
    finished store of ours or lies elsewhere in part, ``LockedError`` while a job is at work on it,
    ``StorageError``."""
    store = _own_path(path)
    suffix = STORE_SUFFIX if store.name.endswith(STORE_SUFFIX) else store.suffix
    wanted = name if name.endswith((".zarr", suffix)) else name + suffix
    target = checked_new_store(store.with_name(checked_name(wanted)))
    if target == store:
        raise InvalidNameError("the store has this name", got=repr(name))
    with _at_rest(store, RENAME):
        with storage_errors("rename", store):
            reach("names.before_rename")
            rename_without_replacing(store, target)
        _undo_if_begun(target, store, RENAME)
    sync_directory(target.parent)
    return target


def delete_store(path: str | os.PathLike[str], on_progress: Callable[[int, int], None] | None = None) -> int:
    """Deletes a finished store; returns the number of its files. ``on_progress`` (done, all) is called with
    each file that is gone. What a deletion that was cut short has left beside it goes, too.

    Raises ``OutputExistsError`` for what is no finished store of ours or lies elsewhere in part,
    ``LockedError`` while a job is at work on it, ``StorageError``."""
    store = _own_path(path)
    if not beneath.exists(store):
        left = _remove_left_beside(store)
        also = "; what a deletion beside it had left is gone now" if left else ""
        raise StorageError(f"no such store: {store}{also}")
    if not beneath.is_changeable(store):
        raise StorageError(
            f"{store} is a mount point, or in a folder that this user cannot change",
            hint="Unmount it, or delete it as a user who may",
        )
    # In a locked folder: whoever removes what creations have left would take one without a lock for that.
    with making_folder(store) as folder:
        aside = folder / store.name
        with _at_rest(store, DELETE):
            with storage_errors("delete", store):
                reach("names.before_set_aside")
                replace_by_rename(store, aside)
            # Before anything of it goes: after a power cut a part of it must not have the name again.
            sync_directory(store.parent)
            _undo_if_begun(aside, store, DELETE)
            files = sum(not beneath.is_dir(entry) for entry in beneath.all_below(aside))
        for done, _ in enumerate(files_removed(aside), 1):
            if on_progress is not None:
                on_progress(done, files)
    _remove_left_beside(store)
    return files


def _own_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a store that is given by a name of its own. Raises ``StorageError`` for a link:
    whoever deletes that means the link, or does not know of it."""
    given = local_path(path).absolute()
    own = beneath.user_path(given.parent) / given.name
    if beneath.is_link(own):
        raise StorageError(
            f"{given} is a link to {beneath.read_link(own)}",
            expected="the store itself",
            hint="Give the path of the store; a link is deleted by `rm`",
        )
    return own


@contextmanager
def _at_rest(store: Path, purpose: str) -> Iterator[None]:
    """A context in which nobody else renames, replaces or deletes the store, in whatever process: all of
    these hold its zarr.json. Raises as ``check_at_rest``."""
    with file_held(store / DOCUMENT, "store", create=False):
        check_at_rest(store, purpose)
        yield


def _undo_if_begun(now: Path, before: Path, purpose: str) -> None:
    """Gives a store its name again, or that with a number if it is taken, and raises the error, if somebody
    began to work on it between the look and the change of its name."""
    try:
        check_at_rest(now, purpose)
    except (LockedError, OutputExistsError, StorageError):
        for number in count(1):
            with suppress(OutputExistsError):
                rename_without_replacing(now, before if number == 1 else numbered(before, number))
                break
        sync_directory(before.parent)
        raise


def _remove_left_beside(store: Path) -> bool:
    """Removes what deletions, and creations, that were cut short have left beside a store. Returns whether
    there was anything."""
    left = abandoned(store.parent)
    for folder in left:
        with suppress(LockedError):
            remove_abandoned(folder)
    return bool(left)
