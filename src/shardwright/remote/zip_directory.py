"""The directory of a zip file: which files it holds, and where their bytes lie. Python's ``zipfile`` reads
it; what it says is checked here.

    [header, name, extra, bytes of a file] ... [central directory] [ZIP64 end] [end, comment]
     ^ offset of an entry   ^ data_start       ^ directory_start

A zip file comes from anywhere, and every number in it may be wrong. So no length is used before it was
compared with what the file can hold. A directory in which one name could mean two files, or a path outside
of the store, is refused as a whole: which of the two readers would get is nobody's to guess. An entry that is
compressed or encrypted is refused when it is read: the other files of the archive can be read all the same.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shardwright.model.errors import ShardFormatError
from shardwright.model.local_path import can_be_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MOST_DIRECTORY_BYTES = 16 << 20  # about 150,000 files with names as in a store, 150 MB in memory
_TAIL_BYTES = 128 << 10  # by the first request: the longest comment, both ends, and a small directory
_HEADER = struct.Struct("<4s2xHH16xHH")  # signature; flags, method; lengths of name and extra field
_SIGNATURE, _END_SIGNATURE, _END_64_SIGNATURE = b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06"
_LIKELY_EXTRA_BYTES = 64  # behind a name, read with it: most writers have none, or the 20 bytes of ZIP64
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_UTF_8 = 0x0800
_ZIP_AGAIN = (
    "Unzip it into a folder, and make a file of that again: `shardwright compact FOLDER --to NEW.ozx`"
)


class ZipBytes(Protocol):
    """The bytes of the file itself, here or at an address: of ``disk.read_file.ReadFile`` and of
    ``object_shard.ObjectRanges``, whose docstrings hold."""

    @property
    def path(self) -> Any: ...

    def edge(self, nbytes: int, *, at_end: bool, known: Any, sure: bool) -> tuple[bytes, Any, int] | None: ...

    def ranges(self, version: Any, bounds: list[tuple[int, int]]) -> Sequence[bytes | memoryview]: ...


class ZipEntry(NamedTuple):
    """One file in it. ``offset``: of its header. ``crc32``: of its bytes."""

    offset: int
    nbytes: int
    crc32: int
    flags: int
    method: int

    def encoded(self, name: str) -> bytes:
        """Returns its name as it stands in the file, of which ``zipfile`` has made ``name``."""
        return name.encode("utf-8" if self.flags & _UTF_8 else "cp437", "replace")

    def header_bytes(self, name: str) -> int:
        """Returns how long its header is, without the extra field."""
        return _HEADER.size + len(self.encoded(name))

    def check_readable(self, where: str) -> None:
        """Raises ``ShardFormatError`` for an entry of which no part can be read by its place."""
        if self.flags & _ENCRYPTED:
            raise ShardFormatError(f"{where} is encrypted", expected="a file as it is", hint=_ZIP_AGAIN)
        if self.method != zipfile.ZIP_STORED:
            raise ShardFormatError(
                f"{where} is compressed by zip",
                expected="a stored file, whose parts can be read where they lie",
                got=f"method {self.method}",
                hint=_ZIP_AGAIN,
            )


class ZipDirectory:
    """The directory of one state of a zip file: ``version`` tells it from all others. ``comment``: of the
    archive. Immutable but for what it remembers of headers; any thread may use it."""

    def __init__(
        self, path: Any, version: Any, entries: dict[str, ZipEntry], directory_start: int, comment: bytes
    ) -> None:
        self.path = path
        self.version = version
        self.entries = entries
        self.comment = comment
        self._directory_start = directory_start
        self._names = sorted(entries)
        self._offsets = sorted(entry.offset for entry in entries.values())
        self._data_starts: dict[str, int] = {}  # of entries whose header was read

    @classmethod
    def read(cls, file: ZipBytes) -> ZipDirectory:
        """Reads the directory of a file. Raises ``ShardFormatError`` for one that is no zip file, is damaged,
        or cannot be a store's, ``FileNotFoundError``, ``StorageError``, ``ChangedError``."""
        edge = file.edge(_TAIL_BYTES, at_end=True, known=None, sure=True)
        assert edge is not None, "no version was known"
        tail, version, nbytes = edge

        def read(start: int, stop: int) -> bytes:
            if start >= nbytes - len(tail):
                return tail[start - nbytes + len(tail) : stop - nbytes + len(tail)]
            return bytes(file.ranges(version, [(start, stop)])[0])

        try:
            with zipfile.ZipFile(_Seekable(file.path, read, nbytes)) as found:
                infos, start, comment = found.infolist(), found.start_dir, found.comment
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, struct.error) as error:
            if isinstance(error, ShardFormatError):
                raise
            raise ShardFormatError(
                f"{file.path} is no zip file, or is damaged: {error}",
                hint="If it was copied or downloaded, do that again: the end of the file lists its parts",
            ) from None
        _check_end(file.path, tail, len(infos), len(comment))
        return cls(file.path, version, _checked(file.path, infos, start), start, comment)

    def is_folder(self, key: str) -> bool:
        """Returns whether files lie below a path; the empty one is the root."""
        start = f"{key}/" if key else ""
        at = bisect_left(self._names, start)
        return not key or (at < len(self._names) and self._names[at].startswith(start))

    def keys_below(self, folder: str) -> Iterator[str]:
        """Yields the paths of all files below a folder, relative to it."""
        start = f"{folder}/" if folder else ""
        for at in range(bisect_left(self._names, start), len(self._names)):
            if not self._names[at].startswith(start):
                return
            yield self._names[at].removeprefix(start)

    def names_in(self, folder: str) -> Iterator[str]:
        """Yields the names of files and folders in a folder. What lies below each is passed over, so that a
        folder of a few arrays costs little, however many shards these have."""
        start = f"{folder}/" if folder else ""
        at = bisect_left(self._names, start)
        while at < len(self._names) and self._names[at].startswith(start):
            name, slash, _ = self._names[at].removeprefix(start).partition("/")
            yield name
            # "0" follows "/": the first name that is not below this folder
            at = bisect_left(self._names, f"{start}{name}0", at) if slash else at + 1

    def data_range(self, key: str, file: ZipBytes) -> tuple[int, int]:
        """Returns [start, stop) of the bytes of an entry. Its own header says where they begin, and must be
        that of this name. Raises ``ShardFormatError``, ``ChangedError``, ``StorageError``."""
        entry = self.entries[key]
        start = self._data_starts.get(key)
        if start is None:
            stop = min(entry.offset + entry.header_bytes(key) + _LIKELY_EXTRA_BYTES, self._directory_start)
            (head,) = file.ranges(self.version, [(entry.offset, stop)])
            start = self._data_starts[key] = self._start_of(key, bytes(head))
        return start, start + entry.nbytes

    def content(self, key: str, file: ZipBytes) -> bytes:
        """Returns all bytes of an entry, by one request where its header is as usual. The caller has looked
        at how many they are. Raises as ``data_range``, and for bytes that fail their checksum."""
        entry = self.entries[key]
        likely = entry.header_bytes(key) + _LIKELY_EXTRA_BYTES + entry.nbytes
        stop = min(entry.offset + likely, self._directory_start)
        (found,) = file.ranges(self.version, [(entry.offset, stop)])
        start = self._data_starts[key] = self._start_of(key, bytes(found[: stop - entry.offset]))
        within = start - entry.offset
        data = bytes(found[within : within + entry.nbytes])
        if len(data) < entry.nbytes:  # behind an extra field of another writer
            (data,) = map(bytes, file.ranges(self.version, [(start, start + entry.nbytes)]))
        self.check(key, data)
        return data

    def check(self, key: str, data: bytes | memoryview) -> None:
        """Raises ``ShardFormatError`` for bytes of a whole entry that fail its checksum."""
        if zlib.crc32(data) != self.entries[key].crc32:
            raise ShardFormatError(f"{self.path}/{key} fails its checksum", hint="Restore it from a copy")

    def _start_of(self, key: str, head: bytes) -> int:
        """Returns where the bytes of an entry begin, by the beginning of its header."""
        entry = self.entries[key]
        entry.check_readable(f"{self.path}/{key}")
        wrong = f"{self.path}/{key} does not lie where the directory of the zip file says"
        if len(head) < entry.header_bytes(key):
            raise ShardFormatError(wrong, expected="a header", got=f"{len(head)} bytes")
        signature, flags, method, name_bytes, extra_bytes = _HEADER.unpack_from(head)
        name = head[_HEADER.size : _HEADER.size + name_bytes]
        is_its_own = name == entry.encoded(key) and method == entry.method
        if signature != _SIGNATURE or not is_its_own or flags & _ENCRYPTED:
            raise ShardFormatError(wrong, expected="a header with its name", got=repr(head[:40]))
        start: int = entry.offset + _HEADER.size + name_bytes + extra_bytes
        behind = bisect_right(self._offsets, entry.offset)
        limit = self._offsets[behind] if behind < len(self._offsets) else self._directory_start
        if start + entry.nbytes > limit:
            raise ShardFormatError(
                wrong,
                expected=f"{entry.nbytes} bytes before {limit}, where the next begins",
                got=f"at {start}",
            )
        return start


def _check_end(path: Any, tail: bytes, files: int, comment_bytes: int) -> None:
    """Raises ``ShardFormatError`` if a zip file does not have what its end says, which ``zipfile`` does not
    compare: the comment, the last bytes of all, and the number of files. A damaged length in the directory
    would hide files, which readers take for fill value."""
    end = tail.rindex(_END_SIGNATURE)  # where ``zipfile`` has found it
    told, told_comment = (int.from_bytes(tail[end + at : end + at + 2], "little") for at in (10, 20))
    of_zip64 = end - 76  # its own end, before the locator (20)
    if told == 0xFFFF and of_zip64 >= 0 and tail[of_zip64 : of_zip64 + 4] == _END_64_SIGNATURE:
        told = int.from_bytes(tail[of_zip64 + 32 : of_zip64 + 40], "little")
    if comment_bytes < told_comment:
        raise ShardFormatError(
            f"the zip file {path} ends too early",
            expected=f"{told_comment} bytes of comment",
            got=comment_bytes,
        )
    if told not in (files, files % (1 << 16)):  # old programs count no further
        raise ShardFormatError(
            f"the directory of the zip file {path} is damaged", expected=f"{told} files", got=files
        )


def is_entry_name(name: str) -> bool:
    """Returns whether a name is the path of a file in a store, to everyone who reads it."""
    return can_be_path(name) and not {"", ".", ".."}.intersection(name.split("/")) and "\\" not in name


class _Seekable:
    """The file as ``zipfile`` reads a directory from it: it asks for as many bytes as the end of the file
    says that the directory has, and gets no more than one may have."""

    def __init__(self, path: Any, read: Callable[[int, int], bytes], nbytes: int) -> None:
        self._path = path
        self._read = read
        self._nbytes = nbytes
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + (self._nbytes if whence == os.SEEK_END else self._at if whence else 0)
        if at < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # as of a file, which zipfile expects
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def read(self, nbytes: int = -1) -> bytes:
        start = min(self._at, self._nbytes)
        stop = self._nbytes if nbytes < 0 else min(start + nbytes, self._nbytes)
        if stop - start > MOST_DIRECTORY_BYTES:
            raise ShardFormatError(
                f"the zip file {self._path} has too many files, or is damaged",
                expected=f"a directory of at most {MOST_DIRECTORY_BYTES} bytes",
                got=stop - start,
                hint="A store with shards has fewer files: unzip it, and `shardwright rechunk` it",
            )
        self._at = stop
        return self._read(start, stop) if stop > start else b""


def _checked(path: Any, infos: Sequence[zipfile.ZipInfo], directory_start: int) -> dict[str, ZipEntry]:
    """Returns the files of a directory by name. Raises ``ShardFormatError`` for one that could mean two
    things, or a place outside of the archive or the store."""

    def refuse(what: str, name: str) -> ShardFormatError:
        return ShardFormatError(
            f"the zip file {path} {what}",
            got=repr(name)[:160],
            hint="It is damaged, or was made to deceive: get it from its source again",
        )

    entries: dict[str, ZipEntry] = {}
    for info in infos:
        # As the directory has it: ``filename`` ends at a null character, and may come from an extra field.
        name = info.orig_filename
        if not is_entry_name(name.removesuffix("/")):
            raise refuse("has a name that is no path in a store", name)
        if name.endswith("/"):
            continue
        if name in entries:
            raise refuse("has two files of one name", name)
        entry = ZipEntry(info.header_offset, info.compress_size, info.CRC, info.flag_bits, info.compress_type)
        is_stored = entry.method == zipfile.ZIP_STORED and not entry.flags & _ENCRYPTED
        if not 0 <= entry.offset <= directory_start - entry.header_bytes(name) - entry.nbytes or (
            is_stored and info.file_size != info.compress_size
        ):
            raise refuse("has a file that does not lie in it", name)
        if info.volume:
            raise refuse("is one part of several", name)
        entries[name] = entry
    # By what follows a name, and not by a set of all folders: those of a few deep names fill the memory.
    names = sorted(info.orig_filename for info in infos)
    for name in entries:
        behind = bisect_left(names, f"{name}/")
        if behind < len(names) and names[behind].startswith(f"{name}/"):
            raise refuse("has a file and a folder of one name", name)
    return entries
