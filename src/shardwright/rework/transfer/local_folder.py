"""A folder as a destination. A file is written under another name, synced, and renamed, never over an
existing one."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    AtomicFile,
    DurableFolders,
    free_bytes,
    made_in,
    read_range,
    read_regular,
    storage_errors,
    sync_directory,
    sync_folders_above,
)

from .destination import (
    CLAIM_KEY,
    MOST_CLAIM_BYTES,
    PART_SUFFIX,
    WORK_PREFIX,
    Destination,
    check_size,
    key_exists,
    part_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .destination import Part


class LocalFolder(Destination):
    """A folder. ``root`` need not exist; ``claim`` makes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders = DurableFolders()

    @property
    def url(self) -> str:
        return str(self.root)

    def free_bytes(self) -> int:
        """Bytes that may still be written here. The parts of a dead job count as free, since ``claim``
        deletes them. Raises ``StorageError``."""
        folder = next(folder for folder in (self.root, *self.root.parents) if beneath.is_dir(folder))
        with storage_errors("look at", folder):
            total = free_bytes(folder)
            for part in beneath.matching(self.root / WORK_PREFIX, f"*{PART_SUFFIX}"):
                with suppress(FileNotFoundError):  # another job, which is to be refused, has just ended it
                    total += beneath.stat(part).st_blocks * 512
            return total

    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        path, part = self.root / key, self.root / part_key(key, secrets.token_hex(4))
        self._folders.make(path.parent)
        with storage_errors("write", path):
            if beneath.exists(path):
                raise key_exists(self.url, key)
        with made_in(part.parent, lambda: AtomicFile(part, "put", called=path)) as new:
            check_size(self.url, key, nbytes, new.write_parts(parts, nbytes))
            new.take_name(path)

    def keep(self, key: str) -> None:
        sync_folders_above(self.root, key)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return read_range(self.root / key, offset, nbytes)

    def size(self, key: str) -> int | None:
        path = self.root / key
        with storage_errors("look at", path):
            try:
                return beneath.stat(path).st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def delete(self, key: str) -> None:
        path = self.root / key
        with storage_errors("delete", path):
            if not beneath.exists(path):
                return
            reach("compact.before_delete")
            beneath.unlink(path, missing_ok=True)
        sync_directory(path.parent)

    def sizes(self) -> dict[str, int]:
        found = {}
        for folder, folders, names in beneath.walk(self.root, failed=_raise):
            if folder == self.root and WORK_PREFIX in folders:
                folders.remove(WORK_PREFIX)
            for path in (folder / name for name in names):
                with storage_errors("look at", path), suppress(FileNotFoundError):
                    found[path.relative_to(self.root).as_posix()] = beneath.stat(path).st_size
        return found

    def _claim_bytes(self) -> bytes | None:
        path = self.root / CLAIM_KEY
        with storage_errors("read", path):
            try:
                return read_regular(path, MOST_CLAIM_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _first_found(self) -> str | None:
        with storage_errors("list", self.root):
            if beneath.is_dir(self.root):
                return min((set(beneath.names_in(self.root)) - {WORK_PREFIX}), default=None)
            return "a file" if beneath.exists(self.root) else None

    def _clear_up_after_death(self) -> None:
        self._delete_parts()
        # a job that was killed right after a file got its name has not synced its folder
        for folder, _, _ in beneath.walk(self.root):
            sync_directory(folder)

    def _leave(self) -> None:
        if not beneath.is_dir(self.root / WORK_PREFIX):
            return
        with storage_errors("remove", self.root / WORK_PREFIX):
            reach("compact.before_remove_work_folder")
            try:
                # also one that was left by a release that failed after it had deleted the claim
                beneath.remove_folder(self.root / WORK_PREFIX)
            except OSError:
                return  # a foreign file is in it
        sync_directory(self.root)

    def _delete_parts(self) -> None:
        folder = self.root / WORK_PREFIX
        with storage_errors("clear", folder):
            for path in beneath.matching(folder, f"*{PART_SUFFIX}"):
                reach("compact.before_delete_part")
                beneath.unlink(path, missing_ok=True)


def _raise(error: OSError) -> None:
    try:
        if not isinstance(error, FileNotFoundError):
            with storage_errors("list", str(error.filename)):
                raise error
    finally:
        del error  # in its traceback it would hold itself, and every caller's frame
