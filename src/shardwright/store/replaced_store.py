"""A finished store that gives its name to a new one (``name_taken`` is ``overwrite``).

    ROOT/.shardwright-HEX.replaced/NAME/    the old store, until the new one has a durable frame

The new store is made in a folder beside its name (``new_store``). That folder is renamed to the one above,
and then the two stores exchange their places in one step. So the name always stands for a whole store, and a
kill leaves one of these:

    in the folder    under the name           what happens
    the new store    the old store            the folder is removed
    the old store    the new, unfinished      its writer or its recovery decides: once a frame is durable the
                                              old store is removed; without any they change places again, or
                                              the old store gets a number behind its name if the new one
                                              records frames that were lost
    the old store    nothing                  the old store gets its name back (also of a deletion that was
                                              cut short before it was decided: ``rework.name_changes``)
    the old store    any other                the old store gets a number behind its name
    any other        any                      it gets its name back, or a number behind it

The exchange is made under the lock of the old store's zarr.json, so that no two creations make it at once.

A new store is told by its identity, which begins with HEX, or by its workspace without a manifest when it is
withdrawn. A finished one has no workspace. Any other was given the name just before the exchange, perhaps by
another creation: it may hold frames.
"""

from __future__ import annotations

import re
import secrets
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.array.frame_table_format import TABLE_PATH
from shardwright.array.metadata import DOCUMENTS, creator_facts
from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    exchange,
    file_held,
    rename_without_replacing,
    replace_by_rename,
    storage_errors,
    sync_directory,
)
from shardwright.disk.lock import is_locked
from shardwright.model.errors import LockedError, OutputExistsError, ShardFormatError, StorageError
from shardwright.model.names import EDIT_FOLDER, WORK_FOLDER, WORKSPACE, numbered
from shardwright.read.store import read_metadata
from shardwright.shard.file_header import IDENTITY_BYTES
from shardwright.shard.manifest import has_manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

# why a name is taken from a finished store: the words of a message
OVERWRITE, DELETE, RENAME, UPGRADE = "overwrite it", "delete it", "rename it", "upgrade it"
LOCK = "lock"  # of a making folder
LOCKS = (LOCK, ".lock")  # the second one beside a store that has the name of the first
_MAKING, _REPLACED = ".making", ".replaced"
_NAME = re.compile(r"\.shardwright-[0-9a-f]{16}\.replaced")
_DOCUMENTS = "|".join(map(re.escape, DOCUMENTS))
_DOCUMENT = re.compile(rf"({_DOCUMENTS})|\.({_DOCUMENTS})\.([0-9]+\.)?new")  # whole, or about to be renamed


def new_identity(making: Path) -> bytes:
    """Returns an identity for the store that is made in this folder, which begins as the folder's name
    says."""
    begins = bytes.fromhex(_hex_of(making))
    return begins + secrets.token_bytes(IDENTITY_BYTES - len(begins))


def check_at_rest(path: Path, purpose: str = OVERWRITE) -> None:
    """Checks that a name may be taken from what has it: a finished store of ours that nobody works on and
    that is whole in this folder. ``purpose``: why, for messages. Raises ``OutputExistsError``,
    ``LockedError``, ``StorageError``."""
    _check_finished(path, purpose)
    with storage_errors("look into", path):
        device = beneath.stat(path).st_dev
        for folder, folders, files in beneath.walk(path, failed=beneath.raise_failure):
            for name in (*folders, *files):
                _check_entry(Path(folder, name), device, purpose)


def _check_finished(path: Path, purpose: str = OVERWRITE) -> None:
    """Raises ``OutputExistsError`` unless this is a finished store of ours."""
    overwrites = purpose == OVERWRITE
    subject = "the output exists and" if overwrites else "it"
    if not _is_ours(path):
        raise OutputExistsError(
            f"{subject} is no store that was written here",
            expected=f"a finished store, to {purpose}",
            got=path,
            hint="Choose another name, or move it away" if overwrites else "Other folders are left alone",
        )
    if beneath.exists(path / WORKSPACE):
        raise unfinished(path, expected=f"a finished store, to {purpose}", subject=subject)


def unfinished(
    path: Path, *, expected: str = "a name that is not taken", subject: str = "the output exists and"
) -> OutputExistsError:
    """Returns the error for a store of ours in the way of another one, which its writer has not ended."""
    hint = (
        "To go on with it: `sw.resume`, or acquire(..., reopen=True). To seal what it has: `shardwright "
        f"recover {path}`; then overwrite=True (name_taken: overwrite) may replace it. To give it up: delete "
        "the folder. Or choose another name (name_taken: increment gives a number)"
    )
    what, written = f"{subject} is an acquisition that is unfinished", is_locked(path / WORKSPACE / "lock")
    return OutputExistsError(
        f"{what}, and being written" if written else what,
        expected=expected,
        got=path,
        hint=f"Close its writer first. {hint}" if written else hint,
    )


def replace_store(store: Path, path: Path) -> None:
    """Gives a complete store the name of a finished one, durably. ``store`` is in a locked making folder,
    where the finished one is afterwards. Raises ``OutputExistsError``, ``LockedError``, ``StorageError``: the
    finished store then has its name."""
    aside = folder_for_another(store.parent)
    try:
        # Only one creation at a time takes a name from a store: the next one finds another file to lock. Else
        # it could exchange the store of a quicker one, and that one's files, which are made by their paths,
        # would be in the wrong store until the two had changed places again: in one that is then removed.
        with file_held(path / DOCUMENTS[0], "store", create=False):
            _check_finished(path)
            exchange_stores(path, aside)
        # somebody may have begun to work on it
        check_at_rest(aside / path.name)
        sync_directory(path.parent)
        sync_directory(aside)
    except BaseException:
        with suppress(StorageError):  # else the store is withdrawn, or the next creation removes it
            if holds_another_store(aside):
                exchange_stores(path, aside)
            if not holds_another_store(aside):
                give_up(aside)
        raise


def folder_for_another(making: Path) -> Path:
    """Renames a locked making folder, durably, to one in which a store keeps the right to its name; returns
    it. Raises ``StorageError``."""
    # before a store is in it: after a power cut that must not be in a folder that is removed
    return _renamed(making, _REPLACED, "store.before_set_aside")


def aside_of(path: Path) -> Path | None:
    """Returns the folder with the store whose name ``path`` has taken over, if there is one. Raises
    ``StorageError``."""
    with storage_errors("look into", path.parent):
        folders = [folder for folder in beneath.paths_in(path.parent) if is_aside(folder)]
    return next((folder for folder in folders if _is_old(folder / path.name)), None)


def is_aside(folder: Path) -> bool:
    """Returns whether this is the folder in which a creation keeps a store whose name it has taken."""
    return _NAME.fullmatch(folder.name) is not None


def exchange_stores(path: Path, aside: Path) -> None:
    """Exchanges the store with this name and the one in the folder, in one step. Raises ``StorageError``."""
    with storage_errors("exchange the names of", path):
        reach("store.before_exchange")
        exchange(aside / path.name, path)


def give_up(aside: Path) -> Path:
    """Renames the folder, durably, to one whose content has no use; returns it. Raises ``StorageError``."""
    return _renamed(aside, _MAKING, "replaced.before_give_up")


def _renamed(folder: Path, suffix: str, point: str) -> Path:
    renamed = folder.with_suffix(suffix)
    with storage_errors("rename", folder):
        reach(point)
        replace_by_rename(folder, renamed)
    sync_directory(folder.parent)
    return renamed


def holds_another_store(folder: Path) -> bool:
    """Returns whether a store is in this folder that was not made in it, so that it must get a name again.
    Raises ``StorageError``."""
    store = store_in(folder) if is_aside(folder) else None
    if store is None:
        return False
    if not has_manifest(store / WORKSPACE):
        return _is_old(store) or not is_bare(store)
    try:
        return not read_manifest(store / WORKSPACE).identity.startswith(_hex_of(folder))
    except ShardFormatError:
        return True


def is_bare(store: Path) -> bool:
    """Returns whether a store holds no more than a creation wrote: documents of groups and arrays, and its
    workspace, but no shard, no table, and no file of others. Raises ``StorageError``."""
    with storage_errors("look into", store):
        files = [entry for entry in beneath.all_below(store) if not beneath.is_dir(entry)]
    for file in files:
        above = file.relative_to(store).parts[0]
        if above != WORKSPACE and (above == TABLE_PATH or not _DOCUMENT.fullmatch(file.name)):
            return False
    return True


def is_undecided(folder: Path) -> bool:
    """Returns whether the store with the name of the old one in this folder is unfinished: it decides."""
    store = store_in(folder) if is_aside(folder) else None
    return store is not None and _is_old(store) and beneath.exists(folder.parent / store.name / WORKSPACE)


def put_back(folder: Path) -> Path:
    """Gives the store in a folder its name again, with a number if that is taken, and removes the folder.
    Returns the path of the store. Raises ``StorageError``."""
    store = store_in(folder)
    assert store is not None, "the caller has looked"
    path = renamed_or_numbered(store, folder.parent / store.name)
    with suppress(OSError):  # else the next creation removes it
        reach("replaced.before_remove_folder")
        for name in LOCKS:
            beneath.unlink(folder / name, missing_ok=True)
        beneath.remove_folder(folder)
    return path


def renamed_or_numbered(store: Path, path: Path) -> Path:
    """Gives a store a name, durably, with a number if that is taken; returns its path. Raises
    ``StorageError``."""
    for number in count(1):
        candidate = path if number == 1 else numbered(path, number)
        with suppress(OutputExistsError):
            with storage_errors("rename to", candidate):
                reach("replaced.before_put_back")
                rename_without_replacing(store, candidate)
            break
    sync_directory(path.parent)
    return candidate


def files_removed(folder: Path) -> Iterator[Path]:
    """Removes a folder, one file at each step. Raises ``StorageError``."""
    with storage_errors("remove", folder):
        for parent, folders, files in beneath.walk(folder, top_down=False):
            for name in files:
                reach("replaced.before_remove")
                beneath.unlink(Path(parent, name), missing_ok=True)
                yield Path(parent, name)
            for name in folders:
                reach("replaced.before_remove")
                beneath.remove_folder(Path(parent, name))
        reach("replaced.before_remove")
        beneath.remove_folder(folder)


def store_in(folder: Path) -> Path | None:
    """Returns the store in a making folder, None if there is none. Raises ``StorageError``."""
    with storage_errors("look into", folder), suppress(FileNotFoundError, NotADirectoryError):
        return next((entry for entry in beneath.paths_in(folder) if not _is_lock(entry)), None)
    return None


def lock_file(folder: Path, name: str) -> Path:
    """Returns the lock file of a folder in which a store of this name is made."""
    return folder / LOCKS[name == LOCK]


def lock_files(folder: Path) -> list[Path]:
    """Returns the files of a making folder that may be its lock."""
    return [folder / name for name in LOCKS if not beneath.is_dir(folder / name)]


def _is_lock(entry: Path) -> bool:
    return entry.name in LOCKS and not beneath.is_dir(entry)


def _hex_of(folder: Path) -> str:
    return folder.stem.rpartition("-")[2]


def _is_old(store: Path) -> bool:
    return beneath.is_dir(store) and not beneath.exists(store / WORKSPACE)


def _is_ours(path: Path) -> bool:
    """Returns whether this is a folder with a group and the frame table that our acquisitions end with, or
    with a workspace."""
    if not beneath.is_dir(path):
        return False
    if beneath.exists(path / WORKSPACE):
        return True
    try:
        group, table = read_metadata(path), read_metadata(path / TABLE_PATH)
    except (ShardFormatError, StorageError):
        return False
    return group["node_type"] == "group" and creator_facts(table).get("table") == TABLE_PATH


def _check_entry(entry: Path, device: int, purpose: str) -> None:
    """Raises ``OutputExistsError`` for a link to what lies elsewhere, for what is mounted there, and for a
    store in it that is written; ``LockedError`` for a lock that a job holds."""
    status = beneath.stat(entry)
    if stat.S_ISLNK(status.st_mode) or status.st_dev != device:
        what = "the link" if stat.S_ISLNK(status.st_mode) else "the mount"
        hints = {
            OVERWRITE: "Delete it or move it away, or choose another name",
            DELETE: "Delete what it leads to as well, by `rm`, if that is meant",
        }
        raise OutputExistsError(
            "a part of the existing output lies elsewhere, so it cannot be overwritten"
            if purpose == OVERWRITE
            else "a part of it lies elsewhere",
            expected="a store that is whole in its folder",
            got=f"{what} {entry}",
            hint=hints.get(
                purpose, "`shardwright compact STORE --to PATH` sends all of it under another name"
            ),
        )
    if entry.name == WORKSPACE:
        raise OutputExistsError(
            "an acquisition in it is unfinished",
            expected=f"a finished store, to {purpose}",
            got=entry.parent,
            hint="End its writer, or finish it with `shardwright recover`",
        )
    if entry.parent.name in (WORK_FOLDER, EDIT_FOLDER) and is_locked(entry):
        raise LockedError(
            f"a job is at work on {entry.parent.parent}",
            hint="Wait until `shardwright compact`, or an update, has ended, or choose another name",
        )
