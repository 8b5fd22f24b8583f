"""A live view as a store of zarr-python 3, and the codec by which zarr-python reads its shards.

The store hands out zarr.json as it is now, except that sharded arrays name the codec below instead of
``sharding_indexed``. It is that codec, with the same chunks and metadata, but asks the view for all that a
selection takes of a shard at once: chunks that lie together are fetched together, decoded on all processors,
and come from one state of the shard. Other codecs than ours are left to zarr-python, and arrays without
shards to its reading key by key.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.document import encode_document
from shardwright.codecs.zarr_python import (
    READ_ONLY,
    ShardingCodec,
    Store,
    StorePath,
    register_codec,
    requested_range,
    side_by_side,
    to_buffer,
)
from shardwright.disk.read_file import ChangedError
from shardwright.disk.remote_path import RemotePath
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ShardFormatError, ShardwrightError
from shardwright.model.gathered_calls import GatheredCalls
from shardwright.model.names import DOCUMENT, is_visible_key
from shardwright.shard.index import LittleEndian

from .box_reader import BoxPart, empty_box
from .live_shard import LiveKeys
from .live_view import LiveView

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path
    from typing import Self

    from shardwright.codecs.zarr_python import Buffer, BufferPrototype, ByteGetter, ByteRequest, NDBuffer

    from .live_shard import ComposedShard, KeyBytes, KeyFile
    from .live_view import Layout
    from .store import StoredArray

CODEC_NAME, CODEC_BY_RANGES = "shardwright.shards", "shardwright.shards_by_ranges"
_STANDARD = "sharding_indexed"
# of chunks, decoded, in the thread of zarr-python: another thread would cost more than the wait for it
_MOST_READ_AT_ONCE_BYTES = 2 << 20
_MOST_BOXED = 4  # chunks that are decoded for each one that is wanted


class LiveStore(Store):
    """The store at ``path``, read-only: as it is being written, was left, or is finished. Pickled, it is
    opened again where it is unpickled, and must be the same store there. Raises as ``LiveView`` does."""

    supports_writes: bool = False
    supports_deletes: bool = False
    supports_listing: bool = True

    def __init__(self, path: str | os.PathLike[str], *, expected: tuple[int, int] | None = None) -> None:
        super().__init__(read_only=True)
        self.view = LiveView(path, expected=expected)
        self._keys = LiveKeys(self.view)
        self._boxes: GatheredCalls[_Box, np.ndarray[Any, Any]] = GatheredCalls()
        self.is_remote = isinstance(self.path, RemotePath)
        if isinstance(self.path, RemotePath):
            self.supports_listing = self.path.has_lists

    @property
    def path(self) -> Path:
        return self.view.path

    def __str__(self) -> str:
        return f"shardwright://{self.path}"

    def __repr__(self) -> str:
        return f"LiveStore({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LiveStore) and (self.path, self.view.identity) == (
            other.path,
            other.view.identity,
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        # who has an array of it, there as well, has read its metadata here
        return _opened, (str(self.path), self.view.identity, self.view.given.copy())

    def with_read_only(self, read_only: bool = False) -> LiveStore:
        if not read_only:
            raise ValueError("a live store is read-only")
        return _opened(str(self.path), self.view.identity, self.view.given)

    # ------------------------------------------------------------------ reading

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Returns the bytes of a key, None if it is not there. Raises ``ShardFormatError``, ``StorageError``,
        ``StoreGoneError``."""
        data = self._read(key, byte_range)
        return None if data is None else to_buffer(data, prototype)

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        folder, _, name = key.rpartition("/")
        if name == DOCUMENT and is_visible_key(key):
            document = self.view.document(folder)
            data = (
                None
                if document is None
                else encode_document(self._with_our_codec(folder, document), foreign=True)
            )
            return None if data is None else data[slice(*requested_range(byte_range, len(data)))]
        found = self.find(key)
        return None if found is None else found.read(byte_range)

    def find(self, key: str) -> FoundKey | None:
        """Returns a key as it is now; None if it is not there. Raises as ``get_sync``."""
        found = self._keys.find(key)
        return None if found is None else FoundKey(found)

    async def read_box(self, box: _Box) -> np.ndarray[Any, Any]:
        """Returns a box of a shard. Raises as ``get_sync``. At an address, boxes of one array and shape that
        are asked for together are read together, by few rounds of requests."""
        if self.is_remote:
            kind = self.view.given_above(box.key), box.shape
            return await self._boxes.call(self._read_boxes, box, kind=kind)
        return await asyncio.to_thread(self.read_box_sync, box)

    def read_box_sync(self, box: _Box) -> np.ndarray[Any, Any]:
        """As ``read_box``, in this thread."""
        found = self.view.shard_of_key(box.key)
        if found is None:
            self.view.raise_no_array(self.view.given_above(box.key) or box.key)
        folder, array, coordinates = found
        box.check(folder, array.stored)
        return self.view.read_box(folder, coordinates, box.low, box.high)

    async def _read_boxes(self, boxes: list[_Box]) -> list[np.ndarray[Any, Any] | ErrorText]:
        """If one cannot be read, each is read by itself, and what is wrong with it is its own."""
        folder = self.view.given_above(boxes[0].key)
        if folder is not None and len(boxes) > 1 and boxes[0].shape:
            with suppress(ChangedError, ShardwrightError):
                return await asyncio.to_thread(self._read_together, folder, boxes)
        return await asyncio.gather(*(asyncio.to_thread(self._read_alone, box) for box in boxes))

    def _read_alone(self, box: _Box) -> np.ndarray[Any, Any] | ErrorText:
        try:
            return self.read_box_sync(box)
        except Exception as error:  # noqa: BLE001 (of whoever asked)
            return ErrorText.of(error)

    def _read_together(self, folder: str, boxes: list[_Box]) -> list[np.ndarray[Any, Any] | ErrorText]:
        array = self.view.find_read_array(folder).stored
        self.view.check_given(folder, array)
        height, *others = boxes[0].shape
        out = empty_box((height * len(boxes), *others), array.dtype)
        parts = []
        for i, box in enumerate(boxes):
            box.check(folder, array)
            shard = array.coordinates_of(box.key.removeprefix(folder).removeprefix("/"))
            if shard is None:
                raise ChangedError
            parts.append(BoxPart(shard, box.low, box.high, (i * height, *(0 for _ in others))))
        self.view.read_into(folder, array, parts, out)
        return [out[i * height : (i + 1) * height] for i in range(len(boxes))]

    def _with_our_codec(self, folder: str, document: dict[str, Any]) -> dict[str, Any]:
        array = self.view.array(folder) if document["node_type"] == "array" else None
        if array is None or not array.stored.is_sharded:
            return document
        (codec,) = document["codecs"]
        name = CODEC_NAME if _is_our_sharding(array.stored) else CODEC_BY_RANGES
        return {**document, "codecs": [{**codec, "name": name}]}

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        asked = [self.get(key, prototype, byte_range) for key, byte_range in key_ranges]
        return list(await asyncio.gather(*asked))

    async def exists(self, key: str) -> bool:
        return await self.getsize_or_none(key) is not None

    async def getsize(self, key: str) -> int:
        nbytes = await self.getsize_or_none(key)
        if nbytes is None:
            raise FileNotFoundError(key)
        return nbytes

    async def getsize_or_none(self, key: str) -> int | None:
        """Returns the size of a key in bytes, None if it is not there."""
        return await asyncio.to_thread(self._size_of, key)

    def _size_of(self, key: str) -> int | None:
        if key.rpartition("/")[2] == DOCUMENT:
            data = self._read(key, None)
            return None if data is None else len(data)
        found = self._keys.find(key)
        return found.nbytes if found is not None and found.has(0, found.nbytes) else None

    # ------------------------------------------------------------------ listing

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(lambda: sorted(self._keys.below(prefix))):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(lambda: sorted(self._keys.names_in(prefix.rstrip("/")))):
            yield name

    async def getsize_prefix(self, prefix: str) -> int:
        """Returns the size of all keys in a folder. Not every version of zarr-python keeps ``10/...`` out of
        that of ``1``."""
        return await super().getsize_prefix(f"{prefix.rstrip('/')}/" if prefix else "")

    # ------------------------------------------------------------------ what is not possible

    async def set(self, key: str, value: Buffer) -> None:
        raise ValueError(READ_ONLY)

    async def delete(self, key: str) -> None:
        raise ValueError(READ_ONLY)


@dataclass(frozen=True)
class _Box:
    """The elements [low, high) of the shard with this key, as who asks has its metadata."""

    key: str
    low: tuple[int, ...]
    high: tuple[int, ...]
    shard_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.low, self.high, strict=True))

    def check(self, folder: str, array: StoredArray) -> None:
        """Raises ``ShardFormatError`` for an array that has become another."""
        if array.shard_shape != self.shard_shape or array.chunk_shape != self.chunk_shape:
            raise ShardFormatError(
                f"{folder} has other chunks than when it was opened",
                expected=self.chunk_shape,
                got=array.chunk_shape,
                hint="Open it again",
            )


class FoundKey:
    """A key as it was found. An index and the chunks that it names come from one state of it, whatever has
    its name by then: a file that stays open, or a shard that is composed. A ``ByteGetter`` of zarr-python,
    which takes None for fill value."""

    def __init__(self, found: KeyFile | KeyBytes | ComposedShard) -> None:
        self._found = found

    def read(self, byte_range: ByteRequest | None) -> bytes | None:
        """Returns None if nothing of a shard was ever stored. Raises as ``LiveStore.get_sync``."""
        start, stop = requested_range(byte_range, self._found.nbytes)
        return self._found.read(start, stop) if self._found.has(start, stop) else None

    async def get(self, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        data = await asyncio.to_thread(self.read, byte_range)
        return None if data is None else to_buffer(data, prototype)


def _is_our_sharding(array: StoredArray) -> bool:
    """Returns whether we read the array's shards without zarr-python, in whose loop we would wait for it."""
    return array.is_ours and isinstance(array.index_codec, LittleEndian)


def _opened(path: str, identity: tuple[int, int], given: dict[str, Layout | None]) -> LiveStore:
    store = LiveStore(path, expected=identity)
    store.view.given.update(given)
    return store


class PinnedShardingCodec(ShardingCodec):
    """The codec ``sharding_indexed`` as a live store names it: its index and its chunks come from one state
    of a shard."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return super().from_dict({**data, "name": _STANDARD})

    async def decode_partial(
        self, batch_info: Iterable[tuple[ByteGetter, Any, Any]]
    ) -> Iterable[NDBuffer | None]:
        return await side_by_side(self.read_selection, batch_info)

    async def read_selection(
        self, byte_getter: ByteGetter, selection: Any, shard_spec: Any
    ) -> NDBuffer | None:
        """Returns what zarr-python selects of one shard, None if nothing of it is there."""
        found: ByteGetter | None = byte_getter
        if isinstance(byte_getter, StorePath) and isinstance(byte_getter.store, LiveStore):
            found = await asyncio.to_thread(byte_getter.store.find, byte_getter.path)
        if found is None:
            return None
        (values,) = await super().decode_partial([(found, selection, shard_spec)])
        return values


class LiveShardingCodec(PinnedShardingCodec):
    """Likewise, of chunks that we decode: reads by ``LiveView.read_box``."""

    async def read_selection(
        self, byte_getter: ByteGetter, selection: Any, shard_spec: Any
    ) -> NDBuffer | None:
        if not isinstance(byte_getter, StorePath) or not isinstance(byte_getter.store, LiveStore):
            return await super().read_selection(byte_getter, selection, shard_spec)
        store, key = byte_getter.store, byte_getter.path
        if _is_missing_an_error(shard_spec) and not await byte_getter.store.exists(key):
            return None
        axes = selection if isinstance(selection, tuple) else (selection,)
        bounds = [_bounds_along(axis, n) for axis, n in zip(axes, shard_spec.shape, strict=True)]
        if _is_sparse(axes, bounds, self.chunk_shape):
            return await super().read_selection(byte_getter, selection, shard_spec)
        low, high = tuple(a for a, _, _ in bounds), tuple(b for _, b, _ in bounds)
        box = _Box(key, low, high, shard_spec.shape, self.chunk_shape)
        itemsize = shard_spec.dtype.to_native_dtype().itemsize
        chunks = math.prod(-(-b // c) - a // c for (a, b, _), c in zip(bounds, self.chunk_shape, strict=True))
        nbytes = chunks * math.prod(self.chunk_shape) * itemsize
        if nbytes <= _MOST_READ_AT_ONCE_BYTES and not store.is_remote:
            values = store.read_box_sync(box)
        else:
            values = await store.read_box(box)
        selected = values[tuple(within for _, _, within in bounds)]
        decoded: NDBuffer = shard_spec.prototype.nd_buffer.from_numpy_array(selected)
        return decoded


def _is_missing_an_error(shard_spec: Any) -> bool:
    """Returns whether zarr-python is to name a shard that is not there (its setting ``read_missing_chunks``,
    of version 3.4 on) and not to take it for fill value."""
    return not getattr(shard_spec.config, "read_missing_chunks", True)


def _is_sparse(
    axes: tuple[Any, ...], bounds: list[tuple[int, int, Any]], chunk_shape: tuple[int, ...]
) -> bool:
    """Returns whether a selection touches few of the chunks in the box around it: then each is read by
    itself."""
    boxed, touched = 1, 1
    for axis, (low, high, within), chunk in zip(axes, bounds, chunk_shape, strict=True):
        along = -(-high // chunk) - low // chunk
        boxed *= along
        if isinstance(axis, slice):
            touched *= min(along, -(-(high - low) // within.step))
        elif not isinstance(axis, (int, np.integer)):
            touched *= np.unique((within + low) // chunk).size
    return boxed > _MOST_BOXED * max(1, touched)


def _bounds_along(axis: Any, size: int) -> tuple[int, int, Any]:
    """Returns the range [low, high) that holds a selection along one axis, and the selection within it."""
    if isinstance(axis, slice):
        start, stop, step = axis.indices(size)
        if step < 0:
            raise TypeError("zarr-python selects with steps of 1 or more")
        return start, max(start, stop), slice(0, max(0, stop - start), step)
    if isinstance(axis, (int, np.integer)):
        return int(axis), int(axis) + 1, 0
    indices = np.asarray(axis)
    if indices.dtype == np.bool_:
        indices = np.flatnonzero(indices)
    low = int(indices.min(initial=size))
    return min(low, size), max(low, int(indices.max(initial=-1)) + 1), indices - low


register_codec(CODEC_NAME, LiveShardingCodec)
register_codec(CODEC_BY_RANGES, PinnedShardingCodec)
