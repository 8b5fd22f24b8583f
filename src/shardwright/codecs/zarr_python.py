"""zarr-python, as far as shardwright uses it. No other module imports it.

Everything here has a public name in every version from 3.1 on. Its package ``core`` and names with an
underscore are private: each minor version moves some, and version 4 moves the rest. Importing this raises
``ModuleNotFoundError`` without zarr-python, which is an extra (``model.extras.naming_missing_extra``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from zarr import Array, AsyncArray, __version__, config, open_array
from zarr.abc.buffer import Buffer, BufferPrototype, NDBuffer
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec
from zarr.abc.store import (
    ByteGetter,
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.buffer import default_buffer_prototype
from zarr.codecs import ShardingCodec
from zarr.registry import get_codec_class, register_codec
from zarr.storage import MemoryStore, StorePath

from shardwright.model.names import DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

__all__ = [
    "READ_ONLY",
    "Array",
    "ArrayArrayCodec",
    "ArrayBytesCodec",
    "Buffer",
    "BufferPrototype",
    "ByteGetter",
    "ByteRequest",
    "BytesBytesCodec",
    "NDBuffer",
    "OffsetByteRequest",
    "OneNode",
    "RangeByteRequest",
    "ShardingCodec",
    "Store",
    "StorePath",
    "SuffixByteRequest",
    "__version__",
    "default_buffer_prototype",
    "get_codec_class",
    "open_array",
    "register_codec",
    "requested_range",
    "side_by_side",
    "to_buffer",
]

READ_ONLY = "store was opened in read-only mode and does not support writing"  # as its own stores say it
T = TypeVar("T")


class OneNode:
    """A store in memory, with the zarr.json of an array and whatever chunks are put beside it."""

    def __init__(self, document: bytes) -> None:
        self._items: dict[str, Any] = {}
        self._store = MemoryStore(self._items)
        self.put(DOCUMENT, document)

    def open(self, *, write_empty_chunks: bool = False) -> Array[Any]:
        """Returns the array, to be read and written. Raises whatever zarr-python, or the package of a codec,
        raises for a document that it does not understand."""
        found = open_array(store=self._store, mode="r+")
        settings: Any = {"write_empty_chunks": write_empty_chunks}
        # not every version takes them where it opens
        return Array(AsyncArray(found.metadata, found.store_path, settings))

    def written_document(self) -> bytes:
        """Returns the zarr.json as zarr-python writes it. Raises as ``open``."""
        return self.open().metadata.to_buffer_dict(default_buffer_prototype())[DOCUMENT].to_bytes()

    def put(self, key: str, data: bytes) -> None:
        self._items[key] = to_buffer(data)

    def take(self, key: str) -> bytes | None:
        found = self._items.pop(key, None)
        return None if found is None else found.to_bytes()


def to_buffer(data: bytes, prototype: BufferPrototype | None = None) -> Buffer:
    """Returns bytes as zarr-python hands them around; by default as its configuration says."""
    return (prototype or default_buffer_prototype()).buffer.from_bytes(data)


def requested_range(byte_range: ByteRequest | None, nbytes: int) -> tuple[int, int]:
    """Returns the range [start, stop) of a key of ``nbytes`` that a request means. Raises ``TypeError`` for
    what is no request."""
    match byte_range:
        case RangeByteRequest(start, stop):
            return min(start, nbytes), min(stop, nbytes)
        case OffsetByteRequest(start):
            return min(start, nbytes), nbytes
        case SuffixByteRequest(count):
            return max(0, nbytes - count), nbytes
        case None:
            return 0, nbytes
    raise TypeError(f"Unexpected byte_range, got {byte_range!r}")


async def side_by_side(function: Callable[..., Awaitable[T]], items: Iterable[tuple[Any, ...]]) -> list[T]:
    """Returns what ``function`` returns for each tuple of arguments, in their order. As many run at once as
    zarr-python's setting ``async.concurrency`` allows."""
    calls = list(items)
    permits = asyncio.Semaphore(config.get("async.concurrency") or max(1, len(calls)))

    async def call(arguments: tuple[Any, ...]) -> T:
        async with permits:
            return await function(*arguments)

    return await asyncio.gather(*map(call, calls))
