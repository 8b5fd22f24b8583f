"""A store of chunks in a bucket of an object store, or behind a server of plain files (HTTP, read-only), by
obstore.

    read     index, by one range, with a short shard whole ──▶ ranges of chunks side by side, If-Match the
             ETag of the first answer
    edit     room in the budget ──▶ whole object, in pieces, into a file of the temporary folder, changed by
             ``edit_shard`` ──▶ put, If-Match that ETag (a new one: If-None-Match *). Whoever comes second
             reads again

An edit holds an object twice at most: as the old file and the new one, then as the new one and its bytes
that are put. The temporary folder may be in memory, so both count. All edits of a store together take at most
half of the machine's memory; others wait.

An object whose last chunk is erased is deleted, If-Match too. obstore cannot ask for that, so the request is
one that it signs. A server that ignores the condition, which is tried once on an object of no meaning, could
delete what another writer has just put: there the object stays, as a shard of absent chunks.

An answer that was lost, or a 412 to the request that obstore has repeated, says nothing about what was done:
the object is looked at (``done_if``). Where another writer has replaced our object by then, the edit is made
again upon its own, as if it had come second.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.acquire.limits import machine_memory_bytes
from shardwright.disk.files import AtomicFile, make_directories, read_regular, storage_errors, write_file
from shardwright.disk.read_file import ChangedError
from shardwright.model.errors import ConfigError, OutputExistsError, ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT, is_visible_key
from shardwright.remote.object_shard import (
    MOST_WHOLE_BYTES,
    RANGES_AT_ONCE,
    ObjectRanges,
    ObjectVersion,
    ShardSize,
)
from shardwright.remote.objects import CHANGED, GONE, Objects, done_if
from shardwright.rework.change_checks import DOCUMENT_OF_A_COPY
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.shard.index import empty_index
from shardwright.shard.sealed_shard import SealedShard
from shardwright.shard.shard_sums import MAX_BYTES, SUMS_NAME, ShardSums, changed_lines

from .byte_budget import ByteBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardwright.read.store import StoredArray

_MOST_WHOLE_BYTES = 5 << 30  # no larger object can be put on condition
_COPIES = 2  # of an object while it is edited
_PIECE_BYTES = 4 << 20
_RECORD_TRIES = 20


class ObjectBackend:
    """A store of chunks in a bucket, or behind a server. ``url``: s3://BUCKET/PREFIX, or
    http(s)://SERVER/PATH, read-only. ``whole_bytes``: a shard of at most so many is fetched whole. Raises
    ``ConfigError``. Nothing is asked before the first key is."""

    absent = ObjectVersion(None, -1, None)

    def __init__(self, url: str, *, writable: bool, whole_bytes: int = 0) -> None:
        if writable and not url.startswith("s3://"):
            raise ConfigError(f"{url} can only be read", expected="mode='r'", got="mode='r+'")
        self.objects = Objects(url)
        self.is_writable = writable
        self.has_lists = self.objects.is_bucket
        self.whole_bytes = min(whole_bytes, MOST_WHOLE_BYTES)
        self._sizes: dict[Path, ShardSize] = {}  # by array
        self._lock = threading.Lock()
        self._recording = threading.Lock()  # a record is in memory once
        self._edits = ByteBudget(machine_memory_bytes() // 2)
        self._ranges: ThreadPoolExecutor | None = None  # under _lock
        self._deletes_if_match: bool | None = None  # None: not tried yet
        self._without_record: set[str] = set()  # arrays; only ever added to

    @property
    def url(self) -> str:
        return self.objects.url

    def stamp(self, key: str) -> None:
        """Nothing is known of an object without a request."""

    # ------------------------------------------------------------------ whole objects

    def read(self, key: str) -> bytes | None:
        found = self.whole(key)
        return None if found is None else found[0]

    def whole(self, key: str, most_bytes: int = _MOST_WHOLE_BYTES) -> tuple[bytes, ObjectVersion] | None:
        answer = self._begun(key, most_bytes)
        if answer is None:
            return None
        with self.objects.errors("read", key):
            return bytes(answer.bytes()), ObjectVersion.of(answer.meta)

    def _begun(self, key: str, most_bytes: int = _MOST_WHOLE_BYTES) -> Any:
        """Returns the answer with a whole object, of whose bytes none is fetched yet; None without one."""
        answer = self.objects.begin(key)
        if answer is not None:
            self._check_size(key, int(answer.meta["size"]), most_bytes)
        return answer

    def read_range(self, key: str, start: int | None, stop: int | None) -> bytes | None:
        return self.objects.read_range(key, start, stop)

    def size(self, key: str) -> int | None:
        return self.objects.size(key)

    def files(self, folder: str) -> Iterator[str]:
        return (key for key, _ in self.objects.sizes(folder or None) if is_visible_key(key))

    def names(self, folder: str) -> tuple[set[str], set[str]]:
        files, folders = self.objects.names(folder)
        return {*filter(is_visible_key, files)}, {*filter(is_visible_key, folders)}

    def put(self, key: str, data: bytes) -> None:
        self.objects.put(key, data)

    def delete(self, key: str) -> None:
        self.objects.delete(key)

    def clear(self, folder: str) -> None:
        """There are no folders."""

    # ------------------------------------------------------------------ shards

    @contextmanager
    def open_shard(
        self, array: StoredArray, shard: tuple[int, ...], key: str, *, whole: bool
    ) -> Iterator[SealedShard[ObjectRanges]]:
        del shard
        expected = ShardSize.before_the_first(self.whole_bytes, array.index.most_bytes)
        size = self._sizes.setdefault(array.path, expected) if whole else None
        yield SealedShard(ObjectRanges(self.objects, key, self.side_by_side, size=size), array.index)

    def side_by_side(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._ranges is None:
                self._ranges = ThreadPoolExecutor(RANGES_AT_ONCE, thread_name_prefix="shardwright-ranges")
            return self._ranges

    def edit(
        self,
        array: StoredArray,
        shard: tuple[int, ...],
        key: str,
        chunks: Mapping[int, bytes | None],
        expected: Any,
    ) -> None:
        local_key = array.shard_key(shard)
        is_whole = len(chunks) == array.chunks_per_shard and expected is None
        if is_whole and not any(chunks.values()):
            self._record(array, local_key, None, is_new=False)
            self.delete(key)
            return
        with self._room_for(key, array.index.nbytes + _bytes_of(chunks), is_new=is_whole) as answer:
            version = self.absent if answer is None else ObjectVersion.of(answer.meta)
            if expected is not None and version != expected:
                raise ChangedError
            with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
                copy = replace(array, path=Path(folder))
                try:
                    if answer is not None:
                        with self.objects.errors("read", key):
                            _write_pieces(copy.path / local_key, answer)
                    changed = _Changed.of(copy, shard, chunks)
                except ShardFormatError as error:  # it names the copy
                    error.message = error.message.replace(
                        folder, f"{self.url}/{key.removesuffix(local_key)}"[:-1]
                    )
                    raise
            if changed is not None:
                self._record(array, local_key, changed.sum, is_new=answer is None)
                self._put_changed(array, key, changed, version, is_whole=is_whole)

    @contextmanager
    def _room_for(self, key: str, given_bytes: int, *, is_new: bool) -> Iterator[Any]:
        """A context with the room that the edit of an object takes, with new chunks of ``given_bytes``:
        with the answer that has the object, None for one that is not there or need not be read."""
        held = 0
        try:
            while True:
                answer = None if is_new else self._begun(key)
                nbytes = given_bytes + (0 if answer is None else int(answer.meta["size"]))
                needed = _COPIES * nbytes
                if needed <= held:
                    break
                self._edits.give(held)
                held = 0
                waited = self._edits.take(needed, f"{self.url}/{key}")
                held = needed
                if not waited:
                    break
                del answer  # it has been idle, and the object may be another by now: it is asked for again
            yield answer
        finally:
            self._edits.give(held)

    def _put_changed(
        self, array: StoredArray, key: str, changed: _Changed, version: ObjectVersion, *, is_whole: bool
    ) -> None:
        if changed.data is None:
            self._delete_if(array, key, version)
        elif is_whole:
            self.put(key, changed.data)
        else:
            self._put_if(key, changed.data, version)

    def _put_if(self, key: str, data: bytes, version: ObjectVersion) -> None:
        """Puts an object in place of this version of it. Raises ``ChangedError``."""
        self._check_size(key, len(data))
        with done_if(lambda: self._holds(key, data)):
            if version != self.absent:
                self.objects.put_if(key, data, self._condition(version))
                return
            try:
                self.objects.put_new(key, data)
            except OutputExistsError:
                raise ChangedError from None

    def _holds(self, key: str, data: bytes) -> bool:
        """Returns whether these are the bytes of an object, of which a piece at a time is in memory."""
        answer = self._begun(key)
        if answer is None or answer.meta["size"] != len(data):
            return False
        same = 0
        with self.objects.errors("read", key):
            for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                if memoryview(data)[same : same + len(piece)] != memoryview(piece):
                    return False
                same += len(piece)
        return same == len(data)

    def _condition(self, version: ObjectVersion) -> str:
        """Returns the value of If-Match. Raises ``StorageError`` without one: a weak ETag never matches."""
        if version.condition is None:
            raise StorageError(
                f"the object store of {self.url} gives no strong ETag, by which writers are told apart",
                expected="a strong ETag",
                got=version.e_tag,
                hint="Copy the array to a disk, change it there, and copy it back",
            )
        return version.condition

    def _check_size(self, key: str, nbytes: int, most_bytes: int = _MOST_WHOLE_BYTES) -> None:
        """Raises ``StorageError`` for an object that is too large to be held in memory and put at once."""
        if nbytes > most_bytes:
            raise StorageError(
                f"{self.url}/{key} is too large to be read or replaced as a whole",
                expected=f"at most {most_bytes} bytes",
                got=nbytes,
            )

    def _delete_if(self, array: StoredArray, key: str, version: ObjectVersion) -> None:
        """Deletes this version of a shard. Raises ``ChangedError``."""
        condition = self._condition(version)
        if self._deletes_if_match is None:
            self._deletes_if_match = self._tries_delete_if_match()
        if not self._deletes_if_match:
            self._put_if(key, array.index.encode(empty_index(array.chunks_per_shard)), version)
            return
        with done_if(lambda: self.size(key) is None):
            status = self.objects.delete_if(key, condition)
            if status == CHANGED:
                raise ChangedError
            if status >= 400 and status != GONE:
                raise StorageError(f"cannot delete {self.url}/{key}: status {status}")

    def _tries_delete_if_match(self) -> bool:
        """Returns whether the server keeps an object that is to be deleted on a condition that is not met.
        Raises ``StorageError`` where no answer comes: nothing is known then."""
        key = f".shardwright-edit/{secrets.token_hex(8)}"
        self.put(key, b"probe")
        try:
            status = self.objects.delete_if(key, '"no-such-tag"')
            return status == CHANGED and self.size(key) is not None
        finally:
            self.delete(key)

    def _record(self, array: StoredArray, shard_key: str, value: int | None, *, is_new: bool) -> None:
        """Adds a line to the record of the array's shards, if it has one: before the shard is changed.
        Raises ``StorageError``."""
        folder = array.path.as_posix()
        if folder in self._without_record:
            return
        key = SUMS_NAME if folder == "." else f"{folder}/{SUMS_NAME}"
        with self._recording:
            self._record_alone(folder, key, partial(changed_lines, key=shard_key, value=value, is_new=is_new))

    def _record_alone(self, folder: str, key: str, lines: Callable[[bytes, Path], bytes]) -> None:
        for _ in range(_RECORD_TRIES):
            found = self.whole(key, MAX_BYTES)
            if found is None:
                self._without_record.add(folder)
                return
            with suppress(ChangedError):
                self._put_if(key, found[0] + lines(found[0], Path(key)), found[1])
                return
        raise StorageError(
            f"{self.url}/{key} was changed by others {_RECORD_TRIES} times while a line was added"
        )

    def close(self) -> None:
        with self._lock:
            pool, self._ranges = self._ranges, None
        if pool is not None:
            pool.shutdown()


@dataclass(frozen=True)
class _Changed:
    """A shard after an edit. ``data``: None if no chunk is left. ``sum``: what the record says of it."""

    data: bytes | None
    sum: int | None

    @classmethod
    def of(
        cls,
        copy: StoredArray,
        shard: tuple[int, ...],
        chunks: Mapping[int, bytes | None],
    ) -> _Changed | None:
        """Edits a shard in the folder of ``copy``, which has nothing but its file, if there is one. Returns
        None if that changes nothing. Raises as ``edit_shard`` does."""
        path = copy.path / copy.shard_key(shard)
        for name, content in ((DOCUMENT, DOCUMENT_OF_A_COPY), (SUMS_NAME, b"")):
            write_file(copy.path / name, content, synced=False)
        report = edit_shard(copy, shard, chunks, strategy="rewrite")
        if not report.bytes_written and not report.removed:
            return None
        if report.removed:
            return cls(None, None)
        (total,) = ShardSums(copy.path).of(copy.shard_key(shard)) - {None}
        with storage_errors("read", path):
            return cls(read_regular(path, report.file_bytes), total)


def _bytes_of(chunks: Mapping[int, bytes | None]) -> int:
    return sum(len(data) for data in chunks.values() if data is not None)


def _write_pieces(path: Path, answer: Any) -> None:
    """Writes the object of an answer into a new file, a few pieces in memory at a time. Raises
    ``StorageError``."""
    make_directories(path.parent, synced=False)
    with AtomicFile(path, "replace") as file:
        come = 0
        for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
            file.write(come, memoryview(piece))
            come += len(piece)
        if come != answer.meta["size"]:
            raise StorageError(f"{path} ends too early", expected=answer.meta["size"], got=come)
        file.keep()
