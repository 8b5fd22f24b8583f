"""Paths of files in a zip file (``.ozx``, RFC-9 of OME-Zarr), which lies here or at an address.

    /data/embryo.ozx             the archive, as the folder of a store that it is
    /data/embryo.ozx/0/c/0/0     a file in it
    s3://BUCKET/embryo.ozx/0     of an archive in a bucket

The archive is the first part of a path that ends with ``.ozx`` and is no folder. Nothing is unzipped: what is
read of a file in it are ranges of the archive. Its directory is read once, as long as the archive is in the
same state: here each look compares it with the file, at an address each request is made on that condition.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shardwright.disk import beneath
from shardwright.disk.files import FileIdentity
from shardwright.disk.read_file import ChangedError, ReadFile
from shardwright.disk.remote_path import RemotePath
from shardwright.disk.typed_errors import storage_errors
from shardwright.model.errors import ConfigError, ShardFormatError, StorageError
from shardwright.model.forked_child import RenewedLock, renew_in_child
from shardwright.model.names import ARCHIVE_SUFFIX, is_archive_name

from .object_path import ObjectPath
from .object_shard import ObjectRanges, RangesAsFile, status_told_by
from .objects import not_found
from .zip_directory import ZipDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MOST_DIRECTORIES = 4  # in memory
_LOCAL_THREADS = 4
_TRIES = 3  # to read an archive in one state


def within_archive(path: Path) -> Path:
    """Returns a path as that of a file in an archive, if it leads into one, or is one; else as it is. A path
    with ``.ozx`` is looked at, at an address by a request."""
    for archive in _candidates(path):
        if beneath.is_file(archive):
            return ZipPath(*path.parts)
    return path


def is_archive(path: Path) -> bool:
    """Returns whether this is a file with the name of an archive."""
    return path.suffix.lower() == ARCHIVE_SUFFIX and beneath.is_file(path)


def _candidates(path: Path) -> list[Path]:
    """Returns what may be the archive of a path: it ends with the suffix, as a folder above may, too."""
    outer: Any = ObjectPath if path.parts[:1] and path.parts[0].endswith(":") else Path
    parts = enumerate(path.parts, 1)
    return [outer(*path.parts[:count]) for count, part in parts if is_archive_name(part)]


class _Archive:
    """An archive that is open. ``file``: its bytes; ``directory``: of the state that they have."""

    def __init__(self, file: Any, directory: ZipDirectory) -> None:
        self.file = file
        self.directory = directory


class _Directories:
    """The directories that were read last, by the path of the archive. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = RenewedLock()
        self._known: OrderedDict[str, ZipDirectory] = OrderedDict()  # under _lock
        renew_in_child(self._known.clear)

    def forget(self, directory: ZipDirectory) -> None:
        with self._lock:
            if self._known.get(str(directory.path)) is directory:
                del self._known[str(directory.path)]

    def open(self, archive: Path, *, is_asked: bool = False) -> _Archive:
        """Opens an archive. ``is_asked``: the server is asked whether it has changed. Raises
        ``FileNotFoundError``, ``ShardFormatError``, ``StorageError``."""
        with self._lock:
            known = self._known.get(str(archive))
        for _ in range(_TRIES):
            file: Any
            if isinstance(archive, ObjectPath):
                file = archive.open_shard()
                if known is not None and is_asked:
                    known = known if file.status and file.version == known.version else None
                file.version = None if known is None else known.version
            else:
                file = ReadFile.open(archive)
                known = known if known is not None and file.version == known.version else None
            if known is not None:
                return _Archive(file, known)
            with suppress(ChangedError):
                return _Archive(file, self._keep(str(archive), ZipDirectory.read(file)))
        raise _changes(archive)

    def _keep(self, archive: str, directory: ZipDirectory) -> ZipDirectory:
        with self._lock:
            self._known[archive] = directory
            self._known.move_to_end(archive)
            while len(self._known) > _MOST_DIRECTORIES:
                self._known.popitem(last=False)
        return directory


_directories = _Directories()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOCAL_THREADS, "shardwright-archive")


renew_in_child(_threads.cache_clear)


class ZipPath(RemotePath):
    """As ``RemotePath``. Raises ``ShardFormatError`` too, for an archive that is damaged."""

    hint_without_document = (
        "An archive has the zarr.json of its store at the top, and not in a folder: unzip it, and make one "
        "of the store in it: `shardwright compact STORE --to NEW.ozx`"
    )

    def __fspath__(self) -> NoReturn:
        raise ConfigError(
            f"{self} is a zip file, or lies in one",
            expected="the path of a store's folder",
            hint="Stores in zip files are read, and nothing else. Unzip it into a new folder, which is a "
            "store like any other",
        )

    def opened(self, *, is_asked: bool = False) -> tuple[_Archive, str]:
        """Returns the archive, and the path in it. Raises ``FileNotFoundError`` for what is above."""
        found = _candidates(self)
        # one alone was looked at when this path was made
        archive = found[0] if len(found) == 1 else next(filter(beneath.is_file, found), None)
        if archive is None:
            raise not_found(self)
        key = "/".join(self.parts[len(archive.parts) :])
        return _directories.open(archive, is_asked=is_asked), key

    @property
    def has_lists(self) -> bool:
        return True

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        del follow_symlinks
        # The store itself is asked for each time that it is opened, by a request at an address; what is in it
        # is read on the condition that the archive is still the same.
        archive, key = self.opened(is_asked=self.suffix.lower() == ARCHIVE_SUFFIX)
        if key in archive.directory.entries:
            return _status(archive.directory, key)
        if archive.directory.is_folder(key):
            return os.stat_result((stat.S_IFDIR | 0o555, *(0,) * 9))
        raise not_found(self)

    def names(self) -> list[str]:
        archive, key = self.opened()
        if not archive.directory.is_folder(key):
            raise not_found(self)
        return list(archive.directory.names_in(key))

    def keys_below(self) -> Iterator[str]:
        archive, key = self.opened()
        return archive.directory.keys_below(key)

    def present(self, keys: Iterable[str]) -> Iterator[str]:
        archive, folder = self.opened()
        start = f"{folder}/" if folder else ""
        return (key for key in keys if start + key in archive.directory.entries)

    def listed_bytes(self) -> int:
        return beneath.stat(self).st_size

    def content(self, most_bytes: int) -> bytes:
        for _ in range(_TRIES):
            archive, key = self.opened()
            entry = archive.directory.entries.get(key)
            if entry is None:
                raise not_found(self)
            if entry.nbytes > most_bytes:
                raise ShardFormatError(
                    f"{self} is too long", expected=f"at most {most_bytes} bytes", got=entry.nbytes
                )
            try:
                return archive.directory.content(key, archive.file)
            except ChangedError:
                _directories.forget(archive.directory)
        raise _changes(self)

    def open_shard(self, size: Any = None) -> ZipRanges:
        del size  # the directory has it
        return ZipRanges(self)


class ZipRanges(RangesAsFile):
    """The bytes of one file in an archive, as ``object_shard.ObjectRanges`` has them of an object: ``path``,
    ``version`` and ``has_changed`` mean the same. Nothing is asked for before it is read."""

    def __init__(self, path: ZipPath) -> None:
        self.path = path
        self._is_refused = False  # a range of the state that was opened
        self._opened: tuple[_Archive, str] | None = None

    @property
    def _found(self) -> tuple[_Archive, str]:
        """The archive, and a path in it that is a file's."""
        if self._opened is None:
            with storage_errors("open", self.path):
                archive, key = self.path.opened()
                if key not in archive.directory.entries:
                    raise not_found(self.path)
            self._opened = archive, key
        return self._opened

    @property
    def has_changed(self) -> bool:
        """True if what was opened is not what has the name: who read on in an archive that was replaced would
        mix what is read there with what is read of the new one."""
        if self._is_refused or self._opened is None:
            return self._is_refused
        archive = self._opened[0]
        if isinstance(archive.file, ObjectRanges):
            return False  # each range is asked for on that condition
        try:
            return bool(FileIdentity.of(beneath.stat(archive.file.path)) != archive.directory.version)
        except OSError:
            return True

    @property
    def version(self) -> Any:
        return self._found[0].directory.version

    @property
    def status(self) -> os.stat_result:
        archive, key = self._found
        return _status(archive.directory, key)

    def side_by_side(self) -> ThreadPoolExecutor:
        """The threads that read several of them at once."""
        file = self._found[0].file
        return file.side_by_side() if isinstance(file, ObjectRanges) else _threads()

    def _places(self, bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns where ranges of the file lie in the archive. Raises ``ShardFormatError`` for one that does
        not lie in the file: what follows there is another file's."""
        archive, key = self._found
        begin, end = archive.directory.data_range(key, archive.file)
        for start, stop in bounds:
            if not 0 <= start <= stop <= end - begin:
                raise ShardFormatError(
                    f"{self.path} ends too early",
                    expected=f"{stop - start} bytes at {start}",
                    got=f"{end - begin} bytes",
                )
        return [(begin + start, begin + stop) for start, stop in bounds]

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Returns bytes, at an address with some ahead. Raises ``ShardFormatError`` if it ends too early,
        ``StorageError``."""
        file, ((start, stop),) = self._found[0].file, self._places([(offset, offset + nbytes)])
        if not isinstance(file, ObjectRanges):
            return memoryview(self.ranges(self.version, [(offset, offset + nbytes)])[0])
        data = file.read(start, stop - start)
        self._check_whole((offset, offset + nbytes), data)
        return data

    def _check_whole(self, bounds: tuple[int, int], data: bytes | memoryview) -> None:
        """Raises ``ShardFormatError`` if this is all of the file, and fails its checksum in the directory."""
        archive, key = self._found
        if bounds == (0, archive.directory.entries[key].nbytes):
            archive.directory.check(key, data)

    # as the bytes of a shard (``shard.sealed_shard``)

    def edge(self, nbytes: int, *, at_end: bool, known: Any, sure: bool) -> tuple[bytes, Any, int] | None:
        if known is not None and not sure:
            return None
        for _ in range(_TRIES):
            try:
                end = self._found[0].directory.entries[self._found[1]].nbytes
                nbytes = min(nbytes, end)
                start = end - nbytes if at_end else 0
                (data,) = self.ranges(self.version, [(start, start + nbytes)])
            except ChangedError:
                if known is not None:
                    raise
                self._opened, self._is_refused = None, False  # no state was seen yet: any will do
                continue
            return None if known == self.version else (bytes(data), self.version, end)
        raise _changes(self.path)

    def ranges(self, version: Any, bounds: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        archive, _ = self._found
        try:
            places = self._places(bounds)
            full = [place for place in places if place[0] < place[1]]
            read = iter(archive.file.ranges(version, full) if full else ())
            found = [next(read) if start < stop else b"" for start, stop in places]
        except ChangedError:
            self._is_refused = True
            _directories.forget(archive.directory)
            raise
        for each, data in zip(bounds, found, strict=True):
            self._check_whole(each, data)
        return found

    def is_sure(self, version: Any) -> bool:
        return bool(self._found[0].file.is_sure(version))

    def close(self) -> None:
        if self._opened is not None:
            self._opened[0].file.close()
            self._opened = None


def _status(directory: ZipDirectory, key: str) -> os.stat_result:
    """Returns the status of a file in an archive: the inode stands for its place, and for the state of the
    archive."""
    entry = directory.entries[key]
    return status_told_by(f"{directory.version}:{entry.offset}:{entry.crc32}", entry.nbytes)


def _changes(path: object) -> StorageError:
    return StorageError(
        f"{path} is changed again and again while it is read", hint="Wait until it is at rest"
    )
