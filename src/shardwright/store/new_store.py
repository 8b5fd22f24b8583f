"""Makes a new store in a folder beside its name and renames it to that name as a whole: a name always stands
for a store that can be recovered, or for none.

    ROOT/.shardwright-HEX.making/lock       held while the store is made (`.lock`, if NAME is `lock`)
    ROOT/.shardwright-HEX.making/NAME/      the store

A store that never got a frame is renamed to such a folder and then removed. What a kill leaves has no use:
the next creation beside it, the next start of a daemon and ``recover`` remove it. A store whose name a new
one has taken over is in a folder of another name until that has a frame (``replaced_store``).
"""

from __future__ import annotations

import re
import secrets
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.ballast import Ballast
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    rename_without_replacing,
    replace_by_rename,
    storage_errors,
    sync_directory,
)
from shardwright.disk.lock import StoreLock, is_locked
from shardwright.model.errors import (
    FencedError,
    LockedError,
    ShardwrightError,
    StorageError,
)
from shardwright.model.names import WORKSPACE
from shardwright.shard.manifest import delete_manifests, has_manifest, read_manifest
from shardwright.shard.spill_folder import remove_spill_folder

from .replaced_store import (
    aside_of,
    exchange_stores,
    give_up,
    holds_another_store,
    is_undecided,
    lock_file,
    lock_files,
    put_back,
    store_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NAME = re.compile(r"\.shardwright-[0-9a-f]{16}\.(making|replaced)")
_SUFFIX = ".making"
_TRIES = 5  # another process that removes abandoned folders may spoil each


def is_making_folder(folder: Path) -> bool:
    """Returns whether a store is made in this folder, or was set aside there."""
    return _NAME.fullmatch(folder.name) is not None


def abandoned(root: Path) -> list[Path]:
    """Returns the making folders below ``root`` that no process holds and no store needs. A file of such a
    name is none: a disk that failed may show one. Raises ``StorageError``."""
    with storage_errors("look into", root):
        return sorted(
            folder
            for folder in beneath.paths_in(root)
            if is_making_folder(folder)
            and beneath.is_dir(folder)
            and not any(map(is_locked, lock_files(folder)))
            and not is_undecided(folder)
        )


def remove_abandoned(folder: Path) -> None:
    """Removes a making folder. A store in it that was not made there gets a name again. Raises
    ``LockedError`` when another process holds it, ``StorageError``."""
    with ExitStack() as locks:
        for file in lock_files(folder):  # both: a creation that has just made the folder may take either
            locks.callback(StoreLock.take(file).release)
        if is_undecided(folder):
            raise LockedError(f"another writer has just taken the name of the store in {folder}")
        if holds_another_store(folder):
            put_back(folder)
        else:
            sync_directory(
                folder.parent
            )  # else a power cut may give a store its name back, without its content
            _remove(folder if folder.suffix == _SUFFIX else give_up(folder))


def remove_left_beside(path: Path) -> bool:
    """Removes what creations, and deletions, that were cut short have left beside a store; what cannot be
    removed, as of another user, stays. Returns whether anything went. Raises ``StorageError``."""
    gone = False
    for folder in abandoned(path.parent):
        with suppress(ShardwrightError):
            remove_abandoned(folder)
            gone = True
    return gone


@contextmanager
def making_folder(path: Path) -> Iterator[Path]:
    """A context with a locked folder for the store that is to be at ``path``, which is removed with its
    content at the end. Raises ``StorageError``."""
    folder, lock = _begin(path)
    try:
        yield folder
    finally:
        with suppress(StorageError):  # leftovers have no use
            _remove(folder)
        lock.release()


def publish(store: Path, path: Path) -> None:
    """Gives a complete store its name, durably. Raises ``OutputExistsError`` when the name is taken,
    ``StorageError``."""
    with storage_errors("rename to", path):
        reach("store.before_rename")
        rename_without_replacing(store, path)
    sync_directory(path.parent)


def withdraw(path: Path, lock: StoreLock, *, epoch: int) -> None:
    """Removes a store. Its name goes in one step, so that no kill leaves a part of it there; a store from
    which it had taken the name has it again. Works also on a full disk, where no folder can be made and (copy
    on write) a rename may need the ballast's room. ``lock`` and writer ``epoch`` are the caller's, whose
    manifest goes first: without one no writer takes the store over. Raises ``FencedError`` when another
    writer has, ``StorageError``."""
    workspace, aside = path / WORKSPACE, aside_of(path)
    folder = aside or path.with_name(new_making_name())
    remove_spilled = _spilled(path)
    with storage_errors("remove", path):
        reach("store.before_withdraw")
    delete_manifests(workspace, up_to_epoch=epoch)
    if not lock.is_held() or has_manifest(workspace):
        raise FencedError(f"another writer has taken {path} over", got="a new lock file, or a manifest")
    Ballast(workspace / "ballast", 0).spent_on(lambda: _take_name(path, folder, back=aside is not None))
    with suppress(StorageError):  # leftovers have no use
        sync_directory(path.parent)
        if aside is not None:
            folder = give_up(aside)
        with storage_errors("remove", folder):
            remove_spilled()
            reach("store.before_remove")
            beneath.remove_tree(folder)


def _take_name(path: Path, folder: Path, *, back: bool) -> None:
    with storage_errors("remove", path):
        reach("store.before_take_name")
        if back:
            exchange_stores(path, folder)
        else:
            replace_by_rename(path, folder)


def new_making_name() -> str:
    """Returns a name that no folder has."""
    return f".shardwright-{secrets.token_hex(8)}{_SUFFIX}"


def _begin(path: Path) -> tuple[Path, StoreLock]:
    """Makes and locks a folder. Until it is locked another process may remove it as abandoned: then the next
    one is tried."""
    for left in reversed(range(_TRIES)):
        folder = path.with_name(new_making_name())
        with storage_errors("create", folder):
            reach("store.before_create")
            beneath.make_folder(folder, exist_ok=True)  # made by us, if the answer to the first call was lost
        try:
            return folder, StoreLock.take(lock_file(folder, path.name))
        except (LockedError, StorageError) as error:
            spoiled = isinstance(error, LockedError) or isinstance(error.__cause__, FileNotFoundError)
            if not left or not spoiled:
                beneath.remove_tree(folder, ignore_errors=True)
                raise
    raise AssertionError("the last try returns or raises")


def _remove(folder: Path) -> None:
    with storage_errors("remove", folder):
        if (store := store_in(folder)) is not None:
            _spilled(store)()
        reach("store.before_remove")
        beneath.remove_tree(folder)


def _spilled(store: Path) -> Callable[[], None]:
    """Returns what removes the files below its second root of a store that never got a frame. Raises
    nothing."""
    try:
        manifest = read_manifest(store / WORKSPACE)
    except ShardwrightError:
        return lambda: None  # so new that it has no second root yet
    if manifest.spill_root is None:
        return lambda: None
    folder = beneath.user_path(manifest.spill_root) / store.name / WORKSPACE
    return partial(remove_spill_folder, folder, manifest.identity, had_frames=False)
