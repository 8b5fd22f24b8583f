"""Where a store of chunks reads and writes files: ``LocalBackend``, ``ObjectBackend``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from shardwright.read.store import StoredArray
    from shardwright.shard.sealed_shard import SealedShard


class ChunkBackend(Protocol):
    """Thread-safe. Keys are paths of files below the root; every method raises ``StorageError``.

    absent       the version of a shard that does not exist
    is_writable  else nothing but reading works
    has_lists    ``files`` and ``names`` work
    whole_bytes  a shard with chunks of at most so many is fetched whole; 0 where a request costs little
    """

    absent: Any
    is_writable: bool
    has_lists: bool
    whole_bytes: int

    @property
    def url(self) -> str: ...

    def stamp(self, key: str) -> Any:
        """Returns what changes when a file does, if that can be had without a request; else None."""

    def read(self, key: str) -> bytes | None:
        """Returns all of a file, None if there is none."""

    def read_range(self, key: str, start: int | None, stop: int | None) -> bytes | None:
        """Returns bytes [start, stop) of a file; without a ``start`` the last ``stop`` bytes, without a
        ``stop`` all from ``start`` on. Fewer where it ends."""

    def size(self, key: str) -> int | None: ...

    def files(self, folder: str) -> Iterator[str]:
        """Yields the keys of all files below a folder that are not hidden, in any order."""

    def names(self, folder: str) -> tuple[set[str], set[str]]:
        """Returns the names of files and of folders in a folder."""

    def put(self, key: str, data: bytes) -> None:
        """Replaces or makes a file. Raises ``LockedError`` while the store is being acquired."""

    def delete(self, key: str) -> None:
        """Deletes a file, if it is there. Raises as ``put``."""

    def clear(self, folder: str) -> None:
        """Removes folders without files, at or below ``folder``."""

    def open_shard(
        self, array: StoredArray, shard: tuple[int, ...], key: str, *, whole: bool
    ) -> AbstractContextManager[SealedShard[Any]]:
        """``whole``: chunks will be read, so a short shard may be fetched whole with its index. Raises
        ``FileNotFoundError`` when there is none, ``ShardFormatError``, ``StoreGoneError`` when the array is
        not there either, or the store is another one."""

    def edit(
        self,
        array: StoredArray,
        shard: tuple[int, ...],
        key: str,
        chunks: Mapping[int, bytes | None],
        expected: Any,
    ) -> None:
        """Gives chunks of a shard new bytes, or erases them, at once. ``expected``: the version that the
        caller has read, or None.

        Raises ``ChangedError`` when the shard is another, or became another meanwhile; ``LockedError``,
        ``ShardFormatError``, ``StorageFullError``.
        """

    def close(self) -> None: ...


GONE = "Open the store anew, where it is now"
