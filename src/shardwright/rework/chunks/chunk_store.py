"""A store of zarr-python 3 in which each inner chunk of each sharded array is a key of its own.

zarr.json of a sharded array has the inner chunks as its chunks (``chunk_documents``), so that a program that
knows no shards reads and writes it chunk by chunk. Chunks of one shard that are asked for, or written, at the
same time are read or written together (``shard_scheduler``).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardwright.array.document import encode_document
from shardwright.codecs.zarr_python import (
    READ_ONLY,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
    requested_range,
    to_buffer,
)
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ConfigError, ShardwrightError, SpecError
from shardwright.model.gathered_calls import GatheredCalls
from shardwright.model.local_path import is_address, local_path
from shardwright.model.names import DOCUMENT
from shardwright.model.promise import Promise
from shardwright.rework.edit.edit_plan import STRATEGIES

from .chunk_documents import served_form, stored_form
from .chunk_tree import ChunkRef, ChunkTree, ListedShard
from .local_backend import LocalBackend
from .object_backend import ObjectBackend
from .shard_scheduler import Look, Read, ShardScheduler, Write, with_pieces

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
    from typing import Literal

    from shardwright.codecs.zarr_python import Buffer, BufferPrototype, ByteRequest
    from shardwright.rework.edit.edit_plan import Strategy

    from .chunk_backend import ChunkBackend
    from .shard_scheduler import ShardRef

COALESCE_BYTES = 1 << 20
INDEX_CACHE_BYTES = 64 << 20
CONCURRENCY = 16
BATCH_BYTES = 256 << 20  # of chunks that are read ahead, or gathered for one edit of each of their shards
_ITEM_BYTES = 1 << 10  # of a batch, for one key
_FILE_BYTES = 16 << 20  # of a batch, for a file, whose size is not known
T = TypeVar("T")
_LISTED_AT_ONCE = 1000  # keys, by one step in another thread


class ChunkStore(Store):
    """The store at a path, or at the address of a bucket (s3://BUCKET/PREFIX, ``AWS_…`` in the environment)
    or of a server of plain files (http(s)://, only to be read).

    ``mode``: "r" or "r+". ``strategy``, ``max_unused``: how shards on a disk are changed (``edit_shard``); in
    a bucket they are rewritten, on condition that no other writer was first. ``coalesce_bytes``: chunks of a
    shard with at most such a gap between them are read by one request; at an address, a whole shard of at
    most so many bytes (8 MiB). Its other chunks show the state of the shard that was read, for ``KEPT_S``
    (1 s) at most. ``index_cache_bytes``: memory for indexes of shards, and for shards that were read whole.
    ``concurrency``: shards that are read or written side by side.

    Opening raises ``StorageError`` for a folder that is not there, ``LockedError`` for one to be written that
    is being acquired, ``ConfigError``. Reading raises ``ShardFormatError``, ``StorageError``,
    ``ShardChangedError`` for a shard that is replaced again and again. Writing raises as ``edit_shard`` does,
    ``SpecError`` for a zarr.json of another layout, and ``ValueError`` in mode "r".

    Examples
    --------
    A value in a sealed shard is changed by a program that knows no shards:

    >>> import zarr
    >>> shape = {"shape": (4, 64, 64), "dtype": "uint16", "axes": "tyx"}
    >>> with sw.create("run.ome.zarr", **shape, chunks={"t": 1}, shards={"t": 4}) as writer:
    ...     writer.append_many(np.zeros((4, 64, 64), "uint16"))
    >>> image = zarr.open(sw.ChunkStore("run.ome.zarr"))["0"]
    >>> image.chunks, zarr.open("run.ome.zarr")["0"].shards
    ((1, 64, 64), (4, 64, 64))
    >>> image[2, 0, 0] = 9
    >>> int(zarr.open("run.ome.zarr")["0"][2].max())
    9
    """

    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(
        self,
        path_or_url: str | os.PathLike[str],
        mode: Literal["r", "r+"] = "r+",
        *,
        strategy: Strategy = "auto",
        max_unused: float = 0.25,
        coalesce_bytes: int = COALESCE_BYTES,
        index_cache_bytes: int = INDEX_CACHE_BYTES,
        concurrency: int = CONCURRENCY,
    ) -> None:
        if mode not in ("r", "r+"):
            raise ConfigError("unknown mode of a store of chunks", expected="'r' or 'r+'", got=repr(mode))
        if strategy not in STRATEGIES or not 0 <= max_unused <= 1:
            raise ConfigError(
                "strategy or max_unused of a store of chunks",
                expected=f"{' or '.join(STRATEGIES)}, and a number from 0 to 1",
                got=f"{strategy!r}, {max_unused!r}",
            )
        for name, value, least in (
            ("coalesce_bytes", coalesce_bytes, 0),
            ("index_cache_bytes", index_cache_bytes, 0),
            ("concurrency", concurrency, 1),
        ):
            if type(value) is not int or value < least:
                raise ConfigError(
                    f"{name} of a store of chunks", expected=f"a whole number from {least}", got=repr(value)
                )
        super().__init__(read_only=mode == "r")
        self._settings: dict[str, Any] = {
            "strategy": strategy,
            "max_unused": max_unused,
            "coalesce_bytes": coalesce_bytes,
            "index_cache_bytes": index_cache_bytes,
            "concurrency": concurrency,
        }
        self._backend = _backend(path_or_url, mode == "r+", strategy, max_unused, coalesce_bytes)
        self._scheduler = ShardScheduler(
            self._backend,
            coalesce_bytes=coalesce_bytes,
            index_cache_bytes=index_cache_bytes,
            concurrency=concurrency,
        )
        root = Path() if is_address(self._backend.url) else Path(self._backend.url)
        self._tree = ChunkTree(self._backend, self._scheduler, root)
        self._gets: GatheredCalls[tuple[str, ByteRequest | None], Any] = GatheredCalls()

    @property
    def url(self) -> str:
        """The absolute path, or the address."""
        return self._backend.url

    @property
    def supports_writes(self) -> bool:
        return not self.read_only

    def __str__(self) -> str:
        return f"shardwright-chunks://{self.url}"

    def __repr__(self) -> str:
        return f"ChunkStore({self.url!r}, mode={self._mode!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkStore) and self.url == other.url

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._settings), (self.url, self._mode)

    @property
    def _mode(self) -> Literal["r", "r+"]:
        return "r" if self.read_only else "r+"

    def with_read_only(self, read_only: bool = False) -> ChunkStore:
        return type(self)(self.url, "r" if read_only else "r+", **self._settings)

    def close(self) -> None:
        """Waits for what was asked, and ends its threads."""
        self._scheduler.close()
        self._backend.close()
        super().close()

    # ------------------------------------------------------------------ reading

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        requested_range(byte_range, 0)  # raises ``TypeError`` to this caller alone
        found = await self._gets.call(self._read_together, (key, byte_range))
        if isinstance(found, str):
            found = await asyncio.to_thread(self._read_file, found, byte_range)
        return None if found is None else to_buffer(found, prototype)

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """As ``get``, in this thread."""
        (data,) = self._read_many([(key, byte_range)])
        return None if data is None else to_buffer(data, prototype)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Returns the bytes of many keys, None for one that is not there. What is wanted of one shard takes
        two rounds of requests: its index, then ranges, side by side; more than ``shard_scheduler.PART_BYTES``
        of ranges one more round for each such part."""
        found = await asyncio.to_thread(self._read_many, list(key_ranges))
        return [None if data is None else to_buffer(data, prototype) for data in found]

    async def get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        """Yields many keys, each with its bytes, in the order that they are asked for. At most about
        BATCH_BYTES are read ahead."""
        asked = iter(requests)
        while batch := await asyncio.to_thread(self._next_batch, asked):
            wanted = [(key, byte_range) for key, _, byte_range in batch]
            found = await asyncio.to_thread(self._read_many, wanted)
            for (key, prototype, _), data in zip(batch, found, strict=True):
                yield key, None if data is None else to_buffer(data, prototype)

    def _next_batch(
        self, requests: Iterator[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> list[tuple[str, BufferPrototype, ByteRequest | None]]:
        """Returns the next requests, of which what is found has about BATCH_BYTES at most."""
        batch, nbytes = [], 0
        for request in requests:
            found = self._tree.find(request[0])
            batch.append(request)
            nbytes += _most_encoded_bytes(found) if isinstance(found, ChunkRef) else _FILE_BYTES
            if nbytes >= BATCH_BYTES:
                break
        return batch

    def _read_many(self, key_ranges: list[tuple[str, ByteRequest | None]]) -> list[bytes | None]:
        found: list[bytes | None] = []
        begun = self._begin_reads(key_ranges)
        for (_, byte_range), each in zip(key_ranges, begun, strict=True):
            if isinstance(each, ErrorText):
                raise each.to_error()
            if isinstance(each, str):
                found.append(self._read_file(each, byte_range))
            else:
                found.append(None if each is None else each.result()[0])
        return found

    async def _read_together(self, key_ranges: list[tuple[str, ByteRequest | None]]) -> list[Any]:
        """Returns the bytes of chunks; of what is no chunk the key of a file, which whoever asks reads."""
        found: list[Any] = []
        for each in await asyncio.to_thread(self._begin_reads, key_ranges):
            found.append(each)
            if isinstance(each, Promise):
                try:
                    (found[-1],) = await _settled(each)
                except ShardwrightError as error:
                    found[-1] = ErrorText.of(error)
        return found

    def _begin_reads(
        self, key_ranges: list[tuple[str, ByteRequest | None]]
    ) -> list[Promise[list[bytes | None]] | str | ErrorText | None]:
        """Begins to read chunks, those of one shard together. Returns the answer of each to come; the key of
        a file for what is no chunk, None for what cannot be there."""
        begun: list[Any] = []
        reads: dict[str, tuple[ShardRef, list[Read]]] = {}
        for key, byte_range in key_ranges:
            requested_range(byte_range, 0)  # raises ``TypeError`` here, not in the thread of the scheduler
            try:
                found: Any = self._tree.find(key)
            except Exception as error:  # noqa: BLE001 (of whoever asked)
                found = ErrorText.of(error)
            if isinstance(found, ChunkRef):
                read = Read([(found.number, _cut_of(byte_range))])
                reads.setdefault(found.ref.key, (found.ref, []))[1].append(read)
                found = read.answer
            begun.append(found)
        for ref, asked in reads.values():
            self._scheduler.submit(ref, *asked)
        return begun

    def _read_file(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        folder, _, name = key.rpartition("/")
        if name == DOCUMENT:
            data = self._document(folder)
            return None if data is None else data[slice(*requested_range(byte_range, len(data)))]
        match byte_range:
            case RangeByteRequest(start, stop):
                found = self._backend.read_range(key, start, stop)
            case OffsetByteRequest(start):
                found = self._backend.read_range(key, start, None)
            case SuffixByteRequest(count):
                found = self._backend.read_range(key, None, count)
            case _:
                found = self._backend.read(key)
        if found is None:
            self._check_absent(key)
        return found

    def _check_absent(self, key: str) -> None:
        """Raises ``StoreGoneError`` for a file that was not found, of an array that has gone since the key
        was understood: there it would be taken for fill value."""
        self._tree.find(key)

    def _document(self, folder: str) -> bytes | None:
        data, node = self._tree.read_document(folder)
        if node is None:
            return data
        served = served_form(node.document, Path(folder))
        return data if served is node.document else encode_document(served, foreign=True)

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self._size, key) is not None

    async def getsize(self, key: str) -> int:
        nbytes = await asyncio.to_thread(self._size, key)
        if nbytes is None:
            raise FileNotFoundError(key)
        return nbytes

    def _size(self, key: str) -> int | None:
        found = self._tree.find(key)
        if isinstance(found, ChunkRef):
            look = Look()
            self._scheduler.submit(found.ref, look)
            index = look.answer.result()
            is_there = index is not None and index.present[found.number]
            return int(index.entries["nbytes"][found.number]) if is_there and index is not None else None
        if found is None:
            return None
        folder, _, name = found.rpartition("/")
        if name == DOCUMENT:
            data = self._document(folder)
            return None if data is None else len(data)
        nbytes = self._backend.size(found)
        if nbytes is None:
            self._check_absent(found)
        return nbytes

    # ------------------------------------------------------------------ listing

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yields all keys that begin with ``prefix``. The index of every shard there is asked for; behind a
        server without lists, that of every shard of an array's grid, and only what documents name is
        found."""
        keys = self._tree.keys_below(prefix)
        while batch := await asyncio.to_thread(lambda: list(islice(keys, _LISTED_AT_ONCE))):
            for key in batch:
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(lambda: sorted(self._tree.names_in(prefix.rstrip("/")))):
            yield name

    async def getsize_prefix(self, prefix: str) -> int:
        """Returns the size of all keys in a folder: those of ``10/...`` are not in that of ``1``."""
        return await asyncio.to_thread(self._size_below, f"{prefix.rstrip('/')}/" if prefix else "")

    def _size_below(self, prefix: str) -> int:
        total = 0
        for found in self._tree.below(prefix):
            total += found.nbytes if isinstance(found, ListedShard) else self._size(found) or 0
        return total

    # ------------------------------------------------------------------ writing

    def _require_writable(self) -> None:
        if self.read_only:
            raise ValueError(READ_ONLY)

    async def set(self, key: str, value: Buffer) -> None:
        self._require_writable()
        await _settled(await asyncio.to_thread(self._write, key, _bytes_of(value)))

    def set_sync(self, key: str, value: Buffer) -> None:
        """As ``set``, in this thread."""
        self._require_writable()
        self._write(key, _bytes_of(value)).result()

    async def set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        """Sets many keys: the chunks of one shard by one edit, shards side by side. Of more than BATCH_BYTES,
        those that come first are set before the others are looked at. If some cannot be set, others may be;
        the first error is raised."""
        self._require_writable()
        await asyncio.to_thread(self._write_many, ((key, _bytes_of(value)) for key, value in values))

    async def set_partial_values(
        self, key_start_values: Iterable[tuple[str, int, bytes | bytearray | memoryview]]
    ) -> None:
        """Writes bytes into the encoded bytes of keys, each from an offset on; a key that is not there is
        empty. All that goes into chunks of one shard is one edit (of more than BATCH_BYTES, with the chunks
        that they change, several), made again if another writer changes the shard meanwhile. Raises
        ``ShardFormatError`` for an offset behind the end."""
        self._require_writable()
        pieces = ((key, [(start, bytes(value))]) for key, start, value in key_start_values)
        await asyncio.to_thread(self._write_many, pieces)

    async def delete(self, key: str) -> None:
        self._require_writable()
        await _settled(await asyncio.to_thread(self._write, key, None))

    def delete_sync(self, key: str) -> None:
        """As ``delete``, in this thread."""
        self._require_writable()
        self._write(key, None).result()

    async def erase(self, key: str) -> None:
        """Erases a key: a chunk leaves its shard, and the last one deletes it."""
        await self.delete(key)

    async def erase_values(self, keys: Iterable[str]) -> None:
        """Erases many keys: the chunks of one shard by one edit."""
        self._require_writable()
        await asyncio.to_thread(self._write_many, ((key, None) for key in keys))

    async def erase_prefix(self, prefix: str) -> None:
        """Erases all keys that begin with ``prefix``."""
        self._require_writable()
        await asyncio.to_thread(self._erase_below, prefix)

    async def delete_dir(self, prefix: str) -> None:
        await self.erase_prefix(f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else "")

    def _write(self, key: str, change: Any) -> Promise[None]:
        """Begins to set, patch or erase a key."""
        found = self._found_to_write(key, change)
        if isinstance(found, ChunkRef):
            write = Write({found.number: change})
            self._scheduler.submit(found.ref, write)
            return write.answer
        if found is not None:
            self._write_file(found, change)
        return _kept(None)

    def _write_many(self, changes: Iterable[tuple[str, Any]]) -> None:
        batch: list[tuple[ChunkRef | str | None, Any]] = []
        nbytes = 0
        for key, change in changes:
            found = self._found_to_write(key, change)
            of_one = _held_bytes(found, change)
            if nbytes + of_one > BATCH_BYTES:
                self._write_batch(batch)
                batch, nbytes = [], 0
            batch.append((found, change))
            nbytes += of_one
        self._write_batch(batch)

    def _write_batch(self, changes: Iterable[tuple[ChunkRef | str | None, Any]]) -> None:
        files: list[tuple[str, Any]] = []
        writes: dict[str, tuple[ShardRef, list[Write]]] = {}
        for found, change in changes:
            if isinstance(found, ChunkRef):
                _, asked = writes.setdefault(found.ref.key, (found.ref, []))
                if not asked or found.number in asked[-1].changes:
                    asked.append(Write({}))
                asked[-1].changes[found.number] = change
            elif found is not None:
                files.append((found, change))
        for ref, asked in writes.values():
            for write in asked:
                self._scheduler.submit(ref, write)
        for key, change in files:
            self._write_file(key, change)
        self._wait([write.answer for _, asked in writes.values() for write in asked])

    @staticmethod
    def _wait(answers: Sequence[Promise[None]]) -> None:
        """Waits for all answers. Raises the first error."""
        failures = [failure for answer in answers if (failure := answer.failure()) is not None]
        if failures:
            raise failures[0].to_error()

    def _found_to_write(self, key: str, change: Any) -> ChunkRef | str | None:
        found = self._tree.find_to_write(key)
        if found is None and change is not None:
            raise SpecError(
                f"{key!r} is no key of a store of chunks", expected="parts without a dot in front, none empty"
            )
        return found

    def _write_file(self, key: str, change: Any) -> None:
        folder, _, name = key.rpartition("/")
        if isinstance(change, list):
            change = with_pieces(self._read_file(key, None), change, key)
        if name == DOCUMENT:
            if change is not None:
                change = stored_form(change, folder, self._stored_document)
            self._tree.forget(folder)
        if change is None:
            self._backend.delete(key)
        else:
            self._backend.put(key, change)
        if name == DOCUMENT:
            self._tree.forget(folder)

    def _stored_document(self, folder: str) -> dict[str, Any] | None:
        node = self._tree.read_document(folder)[1]
        return None if node is None else node.document

    def _erase_below(self, prefix: str) -> None:
        """Erases chunks first, then files, documents last: until then chunks are found."""
        files: list[str] = []
        answers: list[Promise[None]] = []
        for found in self._tree.to_erase(prefix):
            if isinstance(found, str):
                files.append(found)
                continue
            if isinstance(found, ListedShard):
                ref, write = found.ref, Write(dict.fromkeys(found.numbers))
            else:
                ref, write = found, Write(dict.fromkeys(range(found.array.chunks_per_shard)))
            self._scheduler.submit(ref, write)
            answers.append(write.answer)
        self._wait(answers)
        is_document = [key.rpartition("/")[2] == DOCUMENT for key in files]
        for last in (False, True):
            for key, is_last in sorted(zip(files, is_document, strict=True), reverse=True):
                if is_last is last:
                    self._write_file(key, None)
        self._backend.clear(prefix.rpartition("/")[0])


def _backend(
    path_or_url: str | os.PathLike[str],
    writable: bool,
    strategy: Strategy,
    max_unused: float,
    coalesce_bytes: int,
) -> ChunkBackend:
    text = str(path_or_url)
    if text.startswith(("s3://", "http://", "https://")):
        return ObjectBackend(text, writable=writable, whole_bytes=coalesce_bytes)
    return LocalBackend(local_path(path_or_url), writable=writable, strategy=strategy, max_unused=max_unused)


def _most_encoded_bytes(chunk: ChunkRef) -> int:
    array = chunk.ref.array
    return array.codecs.max_encoded_bytes(array.chunk_bytes)


def _held_bytes(found: ChunkRef | str | None, change: Any) -> int:
    """Returns about what a change takes in memory; bytes that are written into a chunk, with the chunk as it
    was and as it will be."""
    if not isinstance(change, list):
        return _ITEM_BYTES + len(change or b"")
    whole = 2 * _most_encoded_bytes(found) if isinstance(found, ChunkRef) else _FILE_BYTES
    return _ITEM_BYTES + whole + sum(len(piece) for _, piece in change)


def _kept(value: T) -> Promise[T]:
    promise: Promise[T] = Promise()
    promise.keep(value)
    return promise


async def _settled(promise: Promise[T]) -> T:
    """Waits for a promise, which is cancelled with the task that waits. Raises as its ``result``."""
    loop, settled = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(settled.set)

    promise.when_settled(tell)
    try:
        await settled.wait()
    except asyncio.CancelledError:
        promise.cancel()
        raise
    return promise.result()


def _bytes_of(value: Buffer) -> bytes:
    if not hasattr(value, "to_bytes"):
        raise TypeError(f"ChunkStore.set(): `value` must be a Buffer instance, not {type(value)!r}")
    return bytes(value.to_bytes())


def _cut_of(byte_range: ByteRequest | None) -> Callable[[int], tuple[int, int]] | None:
    return None if byte_range is None else partial(requested_range, byte_range)
