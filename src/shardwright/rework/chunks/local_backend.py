"""A store of chunks on a disk: shards are read through one open descriptor, and changed by ``edit_shard``."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.failpoints import look, reach
from shardwright.disk.files import (
    NO_FILE,
    DurableFolders,
    FileIdentity,
    keys_on_disk,
    open_regular,
    replace_file,
    storage_errors,
    sync_directory,
)
from shardwright.disk.lock import is_locked
from shardwright.disk.read_file import ChangedError, ReadFile
from shardwright.disk.spill_links import shard_status
from shardwright.model.errors import ShardChangedError, StorageError, StoreGoneError
from shardwright.model.names import DOCUMENT, EDIT_FOLDER, PARITY_FOLDER, is_visible_key
from shardwright.read.store_state import folder_identity
from shardwright.rework.change_checks import check_at_rest, check_not_spilled
from shardwright.rework.edit.edit_recovery import complete_edit, delete_durably, edited_shards
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.edit.shard_lock import shard_locked
from shardwright.shard.edit_files import (
    COPY_SUFFIX,
    JOURNAL_SUFFIX,
    LOCK_SUFFIX,
    NEW_SUFFIX,
    check_not_edited,
    edit_file,
)
from shardwright.shard.parity_set import delete_parity

from .chunk_backend import GONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardwright.read.store import StoredArray
    from shardwright.rework.edit.edit_plan import Strategy
    from shardwright.shard.sealed_shard import SealedShard

_NONE = (FileNotFoundError, NotADirectoryError)


class LocalBackend:
    """A store of chunks in the folder ``root``. Raises ``StorageError`` if it is none, ``LockedError`` if it
    is to be written and is being acquired, moved or copied."""

    absent = NO_FILE
    has_lists = True
    whole_bytes = 0

    def __init__(self, root: Path, *, writable: bool, strategy: Strategy, max_unused: float) -> None:
        self._root = beneath.user_path(root)
        self.is_writable = writable
        self._strategy: Strategy = strategy
        self._max_unused = max_unused
        self._folders = DurableFolders()
        if not beneath.is_dir(self._root):
            hint = "Give the path of a Zarr v3 store; `sw.open` reads one that is a zip file (.ozx)"
            raise StorageError(f"no such folder: {root}", hint=hint)
        self._identity = folder_identity(self._root)
        if writable:
            check_at_rest(self._root)

    @property
    def url(self) -> str:
        return str(self._root)

    def stamp(self, key: str) -> FileIdentity:
        return FileIdentity.at(self._root / key)

    # ------------------------------------------------------------------ whole files

    def read(self, key: str) -> bytes | None:
        return self.read_range(key, 0, None)

    def read_range(self, key: str, start: int | None, stop: int | None) -> bytes | None:
        path = self._root / key
        with storage_errors("read", path):
            try:
                with open_regular(path, spilled=path.name != DOCUMENT) as file:
                    nbytes = os.fstat(file.fileno()).st_size
                    if start is None:
                        start, stop = max(0, nbytes - (stop or 0)), None
                    file.seek(min(start, nbytes))
                    return file.read(max(0, min(nbytes if stop is None else stop, nbytes) - start))
            except _NONE:
                return None
            except OSError:
                if beneath.is_dir(path):  # a folder is no key
                    return None
                raise

    def size(self, key: str) -> int | None:
        path = self._root / key
        with storage_errors("look at", path):
            try:
                status = shard_status(path)
            except _NONE:
                return None
            return status.st_size if stat.S_ISREG(status.st_mode) else None

    def files(self, folder: str) -> Iterator[str]:
        return keys_on_disk(self._root, folder)

    def names(self, folder: str) -> tuple[set[str], set[str]]:
        path = self._root / folder
        files: set[str] = set()
        folders: set[str] = set()
        with storage_errors("look into", path), suppress(*_NONE), beneath.entries_in(path) as entries:
            for entry in entries:
                if is_visible_key(entry.name):
                    (folders if entry.is_dir(follow_symlinks=False) else files).add(entry.name)
        return files, folders

    def put(self, key: str, data: bytes) -> None:
        check_at_rest(self._root)
        path = self._root / key
        self._folders.make(path.parent)
        replace_file(path, data)

    def delete(self, key: str) -> None:
        check_at_rest(self._root)
        path = self._root / key
        if beneath.is_dir(path):
            return
        array = next((below for below in path.parents if beneath.is_file(below / DOCUMENT)), None)
        if array is None or path.name == DOCUMENT:
            self._unlink(path)
        else:
            self._delete_shard(array, path)

    def _delete_shard(self, array: Path, path: Path) -> None:
        """Deletes a file of an array, perhaps a shard, when no edit is at work in it, then what an edit left
        of it: with a shard a journal would be applied to the next one of that name."""
        check_not_spilled(path)
        name = path.relative_to(array).as_posix()
        with shard_locked(array, name):
            self._unlink(path)
            _delete_edit(array, name)

    def _unlink(self, path: Path) -> None:
        with storage_errors("delete", path):
            reach("edit.before_delete_file")
            try:
                beneath.unlink(path)
            except _NONE:
                return
        sync_directory(path.parent)

    def clear(self, folder: str) -> None:
        for below, _, _ in beneath.walk(self._root / folder, top_down=False):
            above = below.parent
            if below.name == EDIT_FOLDER and not beneath.exists(above / DOCUMENT):
                for name in edited_shards(above):  # of shards that went otherwise, and before the array
                    with shard_locked(above, name):
                        _delete_edit(above, name)
            if above.name == PARITY_FOLDER and not beneath.exists(above.parent / DOCUMENT):
                delete_parity(below)  # of no use to an array that gets this name
            if below != self._root:
                with suppress(OSError):  # something is in it, or another process was first
                    reach("edit.before_remove_folder")
                    beneath.remove_folder(below)

    # ------------------------------------------------------------------ shards

    @contextmanager
    def open_shard(
        self, array: StoredArray, shard: tuple[int, ...], key: str, *, whole: bool
    ) -> Iterator[SealedShard[ReadFile]]:
        del whole  # nothing is saved by it
        if beneath.exists(edit_file(array.path, array.shard_key(shard), JOURNAL_SUFFIX)):
            self._wait_for_edit(array, array.shard_key(shard))
        look("look.shard")
        with array.find_shard(shard) or nullcontext() as sealed:
            self._check_there(array)
            if sealed is None:
                raise FileNotFoundError(key)
            yield sealed

    def _check_there(self, array: StoredArray) -> None:
        """Raises ``StoreGoneError`` if a shard that was not found may have been moved or deleted, after the
        documents of its store, or one that was found is another store's."""
        if folder_identity(self._root) != self._identity or not beneath.exists(array.path / DOCUMENT):
            raise StoreGoneError(f"{array.path} was deleted, moved or replaced", hint=GONE)

    def _wait_for_edit(self, array: StoredArray, key: str) -> None:
        """Waits for an edit that is being written into a shard, and completes it if its process died. Raises
        ``LockedError`` if that takes too long, or if it was interrupted and nothing may be written."""
        if not self.is_writable:
            if not is_locked(edit_file(array.path, key, LOCK_SUFFIX)):
                check_not_edited(array.path, key)
            raise ChangedError
        complete_edit(array, key)

    def edit(
        self,
        array: StoredArray,
        shard: tuple[int, ...],
        key: str,
        chunks: Mapping[int, bytes | None],
        expected: Any,
    ) -> None:
        try:
            edit_shard(
                array,
                shard,
                chunks,
                strategy=self._strategy if array.is_sharded else "rewrite",
                max_unused=self._max_unused,
                expected=expected,
            )
        except ShardChangedError:
            raise ChangedError from None

    def close(self) -> None:
        """Keeps nothing open."""


def _delete_edit(array_folder: Path, name: str) -> None:
    """Deletes what an edit left of a shard. The caller holds its lock. Raises ``StorageError``."""
    for suffix in (JOURNAL_SUFFIX, NEW_SUFFIX, COPY_SUFFIX):
        if beneath.exists(left := edit_file(array_folder, name, suffix)):
            delete_durably(left)
