"""The check that this writer still has its store: made before every change that readers see or that cannot be
taken back, since another writer may have taken it over, or a user deleted or moved it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardwright.array.frame_table_format import TABLE_PATH
from shardwright.disk import beneath
from shardwright.disk.files import storage_errors
from shardwright.model.errors import FencedError, StoreGoneError, StoreMovedError
from shardwright.model.names import WORKSPACE
from shardwright.shard.manifest import check_writer_epoch, find_manifest, is_current_epoch, manifest_path

from .replaced_store import is_aside

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.disk.lock import StoreLock
    from shardwright.shard.manifest import Manifest

_PUT_BACK_EVERY_S, _PUT_BACK_TRIES = 0.01, 100


class Ownership:
    """Of the store at ``path``, by the writer of ``manifest``, who holds ``lock``. ``is_over``: the manifest
    is gone, so no other writer can take over the finished store."""

    def __init__(self, path: Path, manifest: Manifest, lock: StoreLock) -> None:
        self.path = path
        self.lock = lock
        self.writer_epoch = manifest.writer_epoch
        self.is_over = False
        self._identity = manifest.identity
        self._workspace = path / WORKSPACE

    def may_rename(self) -> None:
        """Checks that this writer still owns the store. Called right before every change that readers see or
        that cannot be taken back. Raises ``FencedError`` if another writer has taken the store over,
        ``StoreGoneError`` if it was deleted or moved."""
        if self._is_seen_to_be_ours():
            return
        try:
            if not self.is_over:
                check_writer_epoch(self._workspace, self.writer_epoch)
            self.may_remove()
        except FencedError as error:
            if self._is_put_back():
                self.may_rename()
            else:
                raise self._gone() or error from None

    def _is_seen_to_be_ours(self) -> bool:
        """Returns whether one look at the workspace tells all: our manifest, none of a next writer, our lock.
        False tells nothing. Raises ``StorageError``: it may not be reachable just now."""
        with storage_errors("look at", self._workspace):
            try:
                with beneath.folder_of(self._workspace) as folder:
                    return is_current_epoch(folder, self.writer_epoch) and self.lock.is_held(folder)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def _is_put_back(self) -> bool:
        """Waits for a store that lies in the folder of another creation, and returns whether it has its name
        again. A creation that overwrites may exchange names with a store which a quicker one has begun in
        that moment; it finds this out and puts it back at once."""
        lock, tries = self.lock.current_path(), _PUT_BACK_TRIES
        while not self.lock.is_held() and lock is not None and tries and is_aside(lock.parent.parent.parent):
            time.sleep(_PUT_BACK_EVERY_S)
            lock, tries = self.lock.current_path(), tries - 1
        return self.lock.is_held() and tries < _PUT_BACK_TRIES

    def check_there(self) -> None:
        """Raises ``StoreGoneError`` if the store was deleted or moved. Needed, and cheap, before a sync:
        every write to a deleted file, and every sync of it, succeeds."""
        with storage_errors("look at", self.path):
            there = self.lock.is_held() and beneath.exists(manifest_path(self._workspace, self.writer_epoch))
        if not there and not self._is_put_back() and (gone := self._gone()) is not None:
            try:
                raise gone
            finally:
                del gone  # in its traceback it would hold itself

    def _gone(self) -> StoreGoneError | None:
        """Returns the error for a folder that was moved or deleted, None if another writer has it: that one
        leaves its lock and a manifest or, when done, the frame table."""
        lock = self.lock.current_path()
        if lock is not None and not self.lock.is_held():
            now = lock.parent.parent
            return StoreMovedError(
                f"{self.path} was moved away while it was recorded",
                got=now,
                hint=f"`shardwright recover {now}` seals it there",
            )
        if not beneath.exists(self.path):
            return StoreGoneError(
                f"{self.path} was deleted while it was recorded", hint="Its frames are gone"
            )
        if (manifest := find_manifest(self._workspace)) is not None:
            another = manifest.identity != self._identity
            return (
                StoreGoneError(
                    f"{self.path} was deleted while it was recorded, and its name is another store's"
                )
                if another
                else None
            )
        if lock is None and (beneath.exists(self.lock.path) or beneath.exists(self.path / TABLE_PATH)):
            return None
        hint = "Only shards that were sealed before may be left"
        return StoreGoneError(
            f"the working files of {self.path} were deleted while it was recorded", hint=hint
        )

    def may_remove(self) -> None:
        if not self.lock.is_held():
            raise FencedError(f"another writer has taken {self.path} over", got="a new lock file")
