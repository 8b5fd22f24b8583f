"""A zip file as a destination: a store in one file, ``embryo.ozx`` (RFC-9 of OME-Zarr).

    .embryo.ozx.compact/archive        the file that grows: header and bytes of one key after another
    .embryo.ozx.compact/entries.job    a record (job_record.py): the inode of that file, and the offset, bytes
                                       and crc32 of each key that is in it, in their order
    .embryo.ozx.compact/.compact/      the claim, as in a folder
    embryo.ozx                         the same file, once ``finish`` has written its directory and checked it

Nothing half ever has the final name: what grows is a hidden file beside it, named by one rename.
A key that is on record is on the disk. What a killed job has written behind the last one is cut off before
the next key. A key cannot be taken out of the middle: ``cut`` takes it away with all behind it, which are
sent again. So the file has no holes, and zarr.json stay in front.

Keys come one after another: the job has one worker.
"""

from __future__ import annotations

import secrets
import zlib
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from shardwright.disk import beneath
from shardwright.disk.changed_file import ChangedFile
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    FileIdentity,
    make_directories,
    read_range,
    rename_without_replacing,
    storage_errors,
    sync_directory,
    write_file,
)
from shardwright.disk.read_file import ReadFile
from shardwright.model.errors import ConfigError, OutputExistsError, ShardFormatError, StorageError
from shardwright.model.json_text import parse_metadata
from shardwright.model.names import DOCUMENT, WORK_FOLDER, is_archive_name
from shardwright.remote.zip_directory import MOST_DIRECTORY_BYTES, ZipDirectory, is_entry_name
from shardwright.remote.zip_records import (
    archive_comment,
    directory,
    entry_bytes,
    header,
    header_bytes,
    order_in_directory,
)
from shardwright.rework.runtime.job_record import (
    JobRecord,
    add_entry,
    delete_job,
    read_added,
    readable_job,
    write_job,
)
from shardwright.rework.runtime.work_folder import remove

from .destination import (
    CLAIM_KEY,
    MOST_CLAIM_BYTES,
    PART_SUFFIX,
    WORK_PREFIX,
    Destination,
    check_size,
    key_exists,
)
from .local_folder import LocalFolder

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import Self

    from .destination import Part

_KIND = "archive"


class StoredKey(NamedTuple):
    """Where the bytes of a key are in the file."""

    start: int
    nbytes: int
    crc32: int

    @property
    def stop(self) -> int:
        return self.start + self.nbytes


class ArchiveFile(Destination):
    """The file ``path``. Of several processes one at a time puts keys."""

    shows_parts = False

    def __init__(self, path: Path) -> None:
        self.root = path
        self._work = LocalFolder(path.with_name(f".{path.name}{WORK_FOLDER}"))
        self._growing = self._work.root / "archive"
        self._record = self._work.root / "entries.job"
        # As the record had it when it was read last: other processes of the job add to it.
        self._keys: dict[str, StoredKey] = {}
        self._inode = -1
        self._read_at: FileIdentity | None = None
        self._known: JobRecord | None = None
        self._reading = Lock()

    @classmethod
    @lru_cache(maxsize=1)
    def at(cls, path: Path) -> Self:
        """Returns the one of this process for a path: a task is done for each key, and each would read the
        whole record."""
        return cls(path)

    @property
    def url(self) -> str:
        return str(self.root)

    def free_bytes(self) -> int:
        """Bytes that may still be written here. Raises ``StorageError``."""
        return self._work.free_bytes()

    def check_store(self, group: Mapping[str, Any] | None, keys: Iterable[str]) -> None:
        """Raises ``ConfigError`` for a store that no such file can hold. ``group``: the attributes of its
        root; ``keys``: of all of its files."""
        ome = (group or {}).get("ome")
        if not isinstance(ome, dict) or not isinstance(ome.get("version"), str):
            raise ConfigError(
                f"{self.url} can hold an OME-Zarr image alone",
                expected="a group with `ome.version` in its attributes, as OME-Zarr 0.5 has it",
                hint="`shardwright rechunk SOURCE DEST` makes such a store of any array",
            )
        if beneath.exists(self.root.parent / DOCUMENT):
            raise ConfigError(f"{self.url} would lie in another store", hint="Choose a folder outside of it")
        directory_bytes = 0
        for key in keys:
            if not is_entry_name(key) or is_archive_name(key):
                raise ConfigError(
                    "a zip file cannot hold this file of the store, or not so that all read it",
                    got=repr(key)[:160],
                    hint="Move it out of the store, then run the same command again",
                )
            directory_bytes += entry_bytes(key)
        if directory_bytes > MOST_DIRECTORY_BYTES:
            raise ConfigError(
                "the store has too many files for one zip file",
                expected=f"a directory of at most {MOST_DIRECTORY_BYTES} bytes",
                got=directory_bytes,
                hint="`shardwright rechunk STORE NEW` with larger shards makes one of fewer files",
            )

    # ------------------------------------------------------------------ what is there

    def _found(self) -> tuple[dict[str, StoredKey], Path | None]:
        """Returns the keys in their order, and the file that has them: the growing one, or the final one."""
        with self._reading:
            self._read_record()
        last = next(reversed(self._keys.values()), None)
        for path in (self._growing, self.root):
            with storage_errors("look at", path), suppress(FileNotFoundError, NotADirectoryError):
                status = beneath.stat(path)
                if status.st_ino == self._inode and (last is None or last.stop <= status.st_size):
                    return self._keys, path
        if self._inode < 0 and beneath.is_file(self.root):
            return self._of_final(), self.root
        return {}, None

    def _read_record(self) -> None:
        """Reads the record if it has changed: of one that has only grown what is new, since there is a line
        for each key."""
        identity = FileIdentity.at(self._record)
        if identity == self._read_at:
            return
        added = None
        if self._known is not None and identity.nbytes >= self._known.nbytes:
            added = read_added(self._record, _KIND, self._known, identity.nbytes)
        if added is None:
            self._keys, self._inode = {}, -1
            added = readable_job(self._record, _KIND)
        self._known = added
        with suppress(ValueError, TypeError, KeyError):  # damaged: the job begins anew
            for entry in added.entries if added is not None else ():
                self._add(entry)
            self._inode = -1 if added is None else int(added.facts["inode"])
            self._read_at = identity
            return
        self._keys, self._inode, self._known, self._read_at = {}, -1, None, identity

    def _add(self, entry: dict[str, Any]) -> None:
        """Adds a key by its line in the record, if it begins where the last one ends: a line before it may be
        lost, and then what follows that is put once more."""
        key, at, nbytes, crc32 = (
            str(entry["key"]),
            int(entry["at"]),
            int(entry["nbytes"]),
            int(entry["crc32"]),
        )
        if at != next((place.stop for place in reversed(self._keys.values())), 0):
            return
        if min(nbytes, crc32) < 0 or key in self._keys:
            raise ValueError(f"no key of a file: {entry!r:.80}")
        self._keys[key] = StoredKey(at + header_bytes(key), nbytes, crc32)

    def _of_final(self) -> dict[str, StoredKey]:
        """Returns the keys of the file that has the final name, by its own directory: the job was killed
        after it had deleted its record."""
        with storage_errors("read", self.root):
            file = ReadFile.open(self.root)
        found = ZipDirectory.read(file)
        starts = ((key, found.data_range(key, file)[0]) for key in found.entries)
        return {
            key: StoredKey(start, found.entries[key].nbytes, found.entries[key].crc32)
            for key, start in starts
        }

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        if _is_of_work(key):
            return self._work.read(key, offset, nbytes)
        keys, file = self._found()
        if file is None or key not in keys:
            raise StorageError(f"{self.url}/{key} is not there")
        place = keys[key]
        return read_range(file, place.start + offset, max(0, min(nbytes, place.nbytes - offset)))

    def size(self, key: str) -> int | None:
        if _is_of_work(key):
            return self._work.size(key)
        place = self._found()[0].get(key)
        return None if place is None else place.nbytes

    def sizes(self) -> dict[str, int]:
        return {key: place.nbytes for key, place in list(self._found()[0].items())}

    # ------------------------------------------------------------------ changes

    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        if _is_of_work(key):
            self._work.put_new(key, parts, nbytes)
            return
        keys, file = self._found()
        if key in keys:
            raise key_exists(self.url, key)
        if file is None:
            self._begin()
        else:
            self._take_name_away()  # a file has come to the store since
        start = self._end()
        at, crc32 = start + header_bytes(key), 0
        stop = at + nbytes
        with ChangedFile(self._growing) as growing:
            growing.cut(start)  # a part of a key of a killed job
            growing.reserve(start, stop - start)
            for part in parts:
                if at + len(part) > stop:
                    break
                growing.write(at, part)
                crc32 = zlib.crc32(part, crc32)
                at += len(part)
            check_size(self.url, key, nbytes, nbytes - stop + at)
            growing.write(start, header(key, nbytes, crc32))
            growing.sync(forget=True)
        # Only now, after the sync: a key that is on record survives a power cut.
        add_entry(self._record, _line(key, StoredKey(start + header_bytes(key), nbytes, crc32)), synced=False)

    def _end(self) -> int:
        return next((place.stop for place in reversed(self._found()[0].values())), 0)

    def _begin(self) -> None:
        """Makes an empty file, and its record, in place of what a dead job may have left."""
        make_directories(self._work.root)
        self._forget()
        write_file(self._growing, b"")
        self._write_record({}, beneath.stat(self._growing).st_ino)
        sync_directory(self._work.root)

    def _write_record(self, keys: dict[str, StoredKey], inode: int) -> None:
        # Another one each time: who has read a part knows by it that the rest is of the same.
        facts = {"inode": inode, "edition": secrets.token_hex(8)}
        write_job(self._record, _KIND, facts, (_line(*item) for item in keys.items()))

    def cut(self, keep: Container[str]) -> None:
        keys, _ = self._found()
        kept: dict[str, StoredKey] = {}
        for key, place in keys.items():
            if key not in keep:
                break
            kept[key] = place
        if len(kept) == len(keys):
            return
        self._take_name_away()
        self._write_record(kept, self._inode)
        with ChangedFile(self._growing) as growing:
            growing.cut(self._end())

    def _has_final_name(self) -> bool:
        """Returns whether the file of this job, or what it has left, has the final name."""
        return self._is_ours(self.root) or (self._inode < 0 and beneath.is_file(self.root))

    def _is_ours(self, path: Path) -> bool:
        with storage_errors("look at", path), suppress(FileNotFoundError, NotADirectoryError):
            return self._inode >= 0 and beneath.stat(path).st_ino == self._inode
        return False

    def _take_name_away(self) -> None:
        """Takes the final name from the file of this job, before it changes: a reader would find one that
        ends too early, or has not all of the store. Raises ``OutputExistsError`` for another's file."""
        if not self._has_final_name():
            return
        if self._inode < 0:
            raise OutputExistsError(
                f"{self.url} was changed since this job has made it",
                hint="Nothing is ever overwritten: move it away, and run the same command again",
            )
        if self._is_ours(self._growing):
            self._unlink(self.root)
        else:
            reach("archive.before_rename")
            rename_without_replacing(self.root, self._growing)
        sync_directory(self.root.parent)

    def _unlink(self, path: Path) -> None:
        with storage_errors("delete", path):
            reach("archive.before_delete")
            with suppress(NotADirectoryError):
                beneath.unlink(path, missing_ok=True)

    def delete(self, key: str) -> None:
        if _is_of_work(key):
            self._work.delete(key)
            return
        keys = list(self._found()[0])
        if key in keys:
            self.cut(keys[: keys.index(key)])

    def finish(self, expected: Collection[str]) -> None:
        keys, file = self._found()
        if keys.keys() != set(expected):
            raise StorageError(
                f"{self.url} has lost some of what was written since this job began",
                expected=f"{len(expected)} files",
                got=f"{len(keys)}",
                hint="Run the same command again: it sends the others once more",
            )
        was_named = file is not None and self._has_final_name()
        if was_named and self._is_whole(keys):
            sync_directory(self.root.parent)  # perhaps the name is only in the page cache
            return
        self._take_name_away()
        end = self._end()
        files = [
            (key, place.start - header_bytes(key), place.nbytes, place.crc32)
            for key, place in sorted(keys.items(), key=lambda item: order_in_directory(item[0]))
        ]
        with ChangedFile(self._growing) as growing:
            growing.cut(end)
            for key, start, nbytes, crc32 in files if was_named else ():
                growing.write(start, header(key, nbytes, crc32))
            growing.write(end, directory(files, end, archive_comment(self._ome_version())))
            growing.sync(forget=True)
        self._check(self._growing, keys)
        reach("archive.before_rename")
        rename_without_replacing(self._growing, self.root)
        sync_directory(self.root.parent)

    def _is_whole(self, keys: dict[str, StoredKey]) -> bool:
        """Returns whether readers can open the file that has the final name: an earlier run has given it, and
        a source is deleted only for a file that opens. One that this job cannot write anew is an error."""
        try:
            self._check(self.root, keys)
        except StorageError:
            if self._inode < 0:
                raise
            return False
        return True

    def _ome_version(self) -> str:
        document = parse_metadata(self.read(DOCUMENT, 0, self.size(DOCUMENT) or 0))
        return str(document["attributes"]["ome"]["version"])

    def _check(self, path: Path, keys: dict[str, StoredKey]) -> None:
        """Raises ``StorageError`` unless a reader finds each key where its bytes were put and read back."""
        hint = (
            "Check the disk. If the store is still where it came from, delete "
            f"{self._work.root}, and run the same command again: it sends all of it once more"
        )
        with storage_errors("read back", path):
            file = ReadFile.open(path)
        try:
            found = ZipDirectory.read(file)
            there = {key: (found.data_range(key, file), found.entries[key].crc32) for key in found.entries}
        except ShardFormatError as error:
            raise StorageError(
                f"{self.url} came back with other bytes than were written: {error}", hint=hint
            ) from None
        if there != {key: ((place.start, place.stop), place.crc32) for key, place in keys.items()}:
            raise StorageError(f"the directory of {self.url} came back other than it was written", hint=hint)

    # ------------------------------------------------------------------ the claim

    def claim(self, token: str) -> bool:
        is_new = super().claim(token)
        if is_new:
            self._forget()  # of a job whose claim was deleted by hand
        return is_new

    def _claim_bytes(self) -> bytes | None:
        if self._work.size(CLAIM_KEY) is None:
            return None
        return self._work.read(CLAIM_KEY, 0, MOST_CLAIM_BYTES)

    @property
    def _claimed_place(self) -> str:
        return str(self._work.root)

    def _first_found(self) -> str | None:
        if not beneath.exists(self.root):
            return None
        return "a folder" if beneath.is_dir(self.root) else "a file"

    def _clear_up_after_death(self) -> None:
        """Keeps what the killed job has written. The next key takes the place of a torn one."""

    def _delete_parts(self) -> None:
        self._forget()
        for part in beneath.matching(self._work.root / WORK_PREFIX, f"*{PART_SUFFIX}"):
            remove(part)  # of a claim that a killed job was about to make

    def _forget(self) -> None:
        """Deletes the growing file, and then the record: without the file it means nothing."""
        self._unlink(self._growing)
        if beneath.is_dir(self._work.root):
            delete_job(self._record)

    def _leave(self) -> None:
        if not beneath.is_dir(self._work.root):
            return
        with suppress(OSError):  # another job has claimed it meanwhile, or a foreign file is in it
            reach("archive.before_remove_work_folder")
            with suppress(FileNotFoundError):
                beneath.remove_folder(self._work.root / WORK_PREFIX)
            beneath.remove_folder(self._work.root)
            sync_directory(self.root.parent)


def _line(key: str, place: StoredKey) -> dict[str, Any]:
    """Returns the entry of a key in the record."""
    at = place.start - header_bytes(key)
    return {"key": key, "at": at, "nbytes": place.nbytes, "crc32": place.crc32}


def _is_of_work(key: str) -> bool:
    return key.startswith(f"{WORK_PREFIX}/")
