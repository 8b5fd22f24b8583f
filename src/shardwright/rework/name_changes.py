"""Changes the name of a finished store, or deletes it: ``shardwright rename``, ``shardwright delete``.

A name goes in one step, so that under any name there is a whole store or none. A deletion moves the store
into a locked folder first. Until nobody is known to work on it that is one from which whoever clears up gives
it its name back (``store.replaced_store``); then one whose content has no use (``store.new_store``): what a
kill leaves of it the next deletion or creation beside it, and ``recover``, remove."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
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
from shardwright.model.errors import (
    InvalidNameError,
    StorageError,
    StorageFullError,
)
from shardwright.model.local_path import local_path
from shardwright.model.names import DOCUMENT, STORE_SUFFIX, checked_name, checked_new_store
from shardwright.store.new_store import making_folder, new_making_name, remove_left_beside
from shardwright.store.replaced_store import (
    DELETE,
    RENAME,
    check_at_rest,
    files_removed,
    folder_for_another,
    give_up,
    holds_another_store,
    put_back,
    renamed_or_numbered,
)

from .runtime.job_report import no_progress

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from .runtime.job_report import OnProgress


def rename_store(path: str | os.PathLike[str], name: str) -> Path:
    """Gives a finished store another name in its folder, durably; returns its path. ``name`` is a plain name,
    with or without the suffix of the store. What its metadata call it stays.

    Raises ``InvalidNameError``, ``OutputExistsError`` where something has the name, or for what is no
    finished store of ours or lies elsewhere in part, ``LockedError`` while a job is at work on it,
    ``StorageError``."""
    store = own_path(path)
    suffix = next((suffix for suffix in (STORE_SUFFIX, ".zarr") if store.name.endswith(suffix)), "")
    wanted = name if name.endswith(".zarr") else name + suffix
    target = checked_new_store(store.with_name(checked_name(wanted)))
    if target == store:
        raise InvalidNameError("the store has this name", got=repr(name))
    with _at_rest(store, RENAME):
        with storage_errors("rename", store):
            reach("names.before_rename")
            rename_without_replacing(store, target)
        _undo_if_begun(target, store)
    sync_directory(target.parent)
    return target


def delete_store(path: str | os.PathLike[str], on_progress: OnProgress = no_progress) -> int:
    """Deletes a finished store; returns the number of its files. ``on_progress`` (done, all) is called with
    each file that is gone. What a deletion that was cut short has left beside it goes, too.

    Raises ``OutputExistsError`` for what is no finished store of ours or lies elsewhere in part,
    ``LockedError`` while a job is at work on it, ``StorageError``."""
    store = own_path(path)
    if not beneath.exists(store):
        left = remove_left_beside(store)  # which gives one its name back whose deletion was not decided
        if not beneath.exists(store):
            also = "; what a deletion beside it had left is gone now" if left else ""
            raise StorageError(f"no such store: {store}{also}")
    if not beneath.is_changeable(store):
        raise StorageError(
            f"{store} is a mount point, or in a folder that this user cannot change",
            hint="Unmount it, or delete it as a user who may",
        )
    with ExitStack() as folders:
        try:
            # In a locked folder: whoever removes what creations have left would take one without a lock.
            aside = _set_aside(store, folders.enter_context(making_folder(store)))
        except StorageFullError:
            aside = _renamed_alone(store)
        files = sum(not beneath.is_dir(entry) for entry in beneath.all_below(aside))
        for done, _ in enumerate(files_removed(aside), 1):
            on_progress(done, files)
    remove_left_beside(store)
    return files


def _set_aside(store: Path, making: Path) -> Path:
    """Takes the name from a store, durably, and decides that it goes; returns where it is. After an error it
    has its name again, or gets it from whoever clears up there next. Raises as ``delete_store``."""
    aside = folder_for_another(making)
    try:
        with _at_rest(store, DELETE):
            with storage_errors("delete", store):
                reach("names.before_set_aside")
                replace_by_rename(store, aside / store.name)
            # Before anything of it goes: after a power cut a part of it must not have the name again.
            sync_directory(store.parent)
            check_at_rest(aside / store.name, DELETE)  # somebody may have begun to work on it
            return give_up(aside) / store.name
    except BaseException:
        with suppress(StorageError):
            if holds_another_store(aside):
                put_back(aside)
            else:
                give_up(aside)
        raise


def _renamed_alone(store: Path) -> Path:
    """As ``_set_aside``, on a disk without room for a folder. A job cannot begin there either, and to whom
    clears up beside it the store is of no use at once."""
    gone = store.with_name(new_making_name())
    with _at_rest(store, DELETE), storage_errors("delete", store):
        reach("names.before_set_aside")
        replace_by_rename(store, gone)
    sync_directory(store.parent)
    return gone


_OF_A_FILE = "A store in one file (.ozx) is renamed by `mv` and deleted by `rm`"


def own_path(path: str | os.PathLike[str], of_a_file: str = _OF_A_FILE) -> Path:
    """Returns the path of a store that is given by a name of its own. ``of_a_file``: what to do with a store
    in one file. Raises ``InvalidNameError`` where it has none, ``StorageError`` for such a file, and for a
    link: whoever deletes that means the link, or does not know of it."""
    given = local_path(path).absolute()
    if given.name in ("", ".."):
        raise InvalidNameError(
            "this is no name of a store", got=str(given), hint="Give the store by its name"
        )
    own = beneath.user_path(given.parent) / given.name
    if beneath.is_link(own):
        raise StorageError(
            f"{given} is a link to {beneath.read_link(own)}",
            expected="the store itself",
            hint="Give the path of the store; a link is deleted by `rm`",
        )
    if beneath.is_file(own):
        raise StorageError(
            f"{given} is a file",
            expected="the folder of a store",
            hint=of_a_file,
        )
    return own


@contextmanager
def _at_rest(store: Path, purpose: str) -> Iterator[None]:
    """A context in which nobody else renames, replaces or deletes the store, in whatever process: all of
    these hold its zarr.json. Raises as ``check_at_rest``."""
    with file_held(store / DOCUMENT, "store", create=False):
        check_at_rest(store, purpose)
        yield


def _undo_if_begun(now: Path, before: Path) -> None:
    """Gives a store its name again, or that with a number if it is taken, and raises the error, if somebody
    began to work on it between the look and the change of its name."""
    try:
        check_at_rest(now, RENAME)
    except BaseException:
        renamed_or_numbered(now, before)
        raise
