"""A folder as a destination: files are written beside their names, synced, and renamed without replacing
anything."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.model.errors import StorageError
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    make_directories,
    preallocate,
    read_range,
    read_regular,
    rename_without_replacing,
    storage_errors,
    sync_directory,
)

from .claim import ClaimedPlace
from .destination import CLAIM_KEY, PART_SUFFIX, WORK_PREFIX, check_size, key_exists, part_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .destination import Part


class LocalFolder(ClaimedPlace):
    """See ``Destination``. ``root`` need not exist; ``claim`` makes it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return str(self.root)

    def free_bytes(self) -> int:
        """What may still be written here; a dead job's parts count as free, since ``claim`` deletes them.
        Raises ``StorageError``."""
        folder = next(folder for folder in (self.root, *self.root.parents) if folder.is_dir())
        with storage_errors("look at", folder):
            facts = os.statvfs(folder)
            parts = sum(
                path.stat().st_blocks * 512 for path in (self.root / WORK_PREFIX).glob(f"*{PART_SUFFIX}")
            )
        return facts.f_bavail * facts.f_frsize + parts

    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        path, part = self.root / key, self.root / part_key(key, secrets.token_hex(4))
        make_directories(path.parent)
        make_directories(part.parent)
        with storage_errors("write", path):
            if os.path.lexists(path):
                raise key_exists(self.url, key)
            try:
                check_size(self.url, key, nbytes, _write(part, parts, nbytes))
                reach("compact.before_put_rename")
                rename_without_replacing(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        sync_directory(path.parent)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return read_range(self.root / key, offset, nbytes)

    def size(self, key: str) -> int | None:
        path = self.root / key
        with storage_errors("look at", path):
            try:
                return path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def delete(self, key: str) -> None:
        path = self.root / key
        with storage_errors("delete", path):
            if not os.path.lexists(path):
                return
            reach("compact.before_delete")
            path.unlink(missing_ok=True)
        sync_directory(path.parent)

    def sizes(self) -> dict[str, int]:
        found = {}
        for folder, folders, names in os.walk(self.root, onerror=_raise):
            if Path(folder) == self.root and WORK_PREFIX in folders:
                folders.remove(WORK_PREFIX)
            for path in (Path(folder) / name for name in names):
                with storage_errors("look at", path), suppress(FileNotFoundError):
                    found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def _claim_bytes(self) -> bytes | None:
        path = self.root / CLAIM_KEY
        with storage_errors("read", path):
            try:
                return read_regular(path)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _first_found(self) -> str | None:
        with storage_errors("list", self.root):
            if self.root.is_dir():
                return min(
                    (path.name for path in self.root.iterdir() if path.name != WORK_PREFIX), default=None
                )
            return "a file" if os.path.lexists(self.root) else None

    def _clear_up_after_death(self) -> None:
        self._delete_parts()
        # there may have been no time to do that after a file got its name
        for folder, _, _ in os.walk(self.root):
            sync_directory(Path(folder))

    def _leave(self) -> None:
        if not (self.root / WORK_PREFIX).is_dir():
            return
        with storage_errors("remove", self.root / WORK_PREFIX):
            reach("compact.before_remove_work_folder")
            try:
                # also the one that a release left which failed after the claim was gone
                (self.root / WORK_PREFIX).rmdir()
            except OSError:
                return  # somebody else's file is in it
        sync_directory(self.root)

    def _delete_parts(self) -> None:
        folder = self.root / WORK_PREFIX
        with storage_errors("clear", folder):
            for path in folder.glob(f"*{PART_SUFFIX}"):
                reach("compact.before_delete_part")
                path.unlink(missing_ok=True)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        with storage_errors("list", str(error.filename)):
            raise error


def _write(path: Path, parts: Iterator[Part], nbytes: int) -> int:
    """A whole file, synced and out of the page cache, so that what is read next comes from the disk. The
    bytes that came."""
    reach("compact.before_put_open")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        if nbytes:
            reach("compact.before_put_allocate")
            preallocate(descriptor, nbytes)
        offset = 0
        for part in parts:
            view = memoryview(part)
            if offset + len(view) > nbytes:
                raise StorageError(f"cannot write {path}: more came than its {nbytes} bytes")
            while view:
                reach("compact.before_put_write")
                count = os.pwrite(descriptor, view, offset)
                view, offset = view[count:], offset + count
        reach("compact.before_put_sync")
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return offset
