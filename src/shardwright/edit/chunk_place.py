"""The place where the files of a store lie, as a store of chunks uses it: ``LocalPlace``, ``ObjectPlace``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shardwright.read.shard_file import check_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    import numpy as np

    from shardwright.read.store import StoredArray

ENTRY_BYTES = 16
_FIXED_BYTES = 500  # of what an index takes in memory beside its entries


class ReplacedError(Exception):
    """A shard is not, or no longer, the one of which the index is known. Never leaves this room."""


@dataclass(frozen=True)
class ReadIndex:
    """The index of one state of a shard. ``version``: what tells this state from all others.

    entries   INDEX_ENTRY[chunks]
    present   bool[chunks]
    sound     bool[chunks], false for entries that cannot be right
    data_range  [start, stop) of the shard in which chunks lie
    """

    version: Any
    entries: np.ndarray
    present: np.ndarray
    sound: np.ndarray
    data_range: tuple[int, int]

    @classmethod
    def of(
        cls, array: StoredArray, shard: tuple[int, ...], version: Any, file_bytes: int, entries: np.ndarray
    ) -> ReadIndex:
        data_range = array.index.data_range(file_bytes)
        check = check_entries(array, shard, entries, data_range)
        return cls(version, entries, check.present, check.sound, data_range)

    def fault(self, number: int) -> str | None:
        """Returns what is wrong with an entry, None if nothing is. The text is made here: one for each bad
        entry of a stranger's index could fill the memory."""
        if self.sound[number] or not self.present[number]:
            return None
        return "index entry cannot be right: {} bytes at {}, not in [{}, {}), or too long or short".format(
            self.entries["nbytes"][number], self.entries["offset"][number], *self.data_range
        )

    @property
    def nbytes(self) -> int:
        """About the memory that it takes."""
        return _FIXED_BYTES + len(self.entries) * (ENTRY_BYTES + 2)


class ReadableShard(Protocol):
    """One shard while a batch of requests is served. One thread's."""

    def index(self, known: ReadIndex | None, *, sure: bool) -> ReadIndex:
        """Returns its index. ``known``: one that was read before. If it need not be ``sure``, ``known`` may
        be returned unasked, since ``fetch`` finds out. Raises ``ReplacedError``, ``FileNotFoundError``,
        ``ShardFormatError``, ``StorageError``."""

    def fetch(self, index: ReadIndex, ranges: list[tuple[int, int]]) -> list[bytes | bytearray]:
        """Returns the bytes [start, stop) of each range, of that state of the shard to which the index
        belongs. Raises as ``index`` does."""


class ChunkPlace(Protocol):
    """Thread-safe. Keys are paths of files below the root; every method raises ``StorageError``.

    absent       the version of a shard that does not exist
    is_writable  else nothing but reading works
    has_lists    ``files`` and ``names`` work
    """

    absent: Any
    is_writable: bool
    has_lists: bool

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
        self, array: StoredArray, shard: tuple[int, ...], key: str
    ) -> AbstractContextManager[ReadableShard]:
        """Raises ``FileNotFoundError`` when there is none, ``ShardFormatError``, ``StoreGoneError`` when the
        array is not there either, or the store is another one."""

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

        Raises ``ReplacedError`` when the shard is another, or became another meanwhile; ``LockedError``,
        ``ShardFormatError``, ``StorageFullError``.
        """

    def close(self) -> None: ...


GONE = "Open the store anew, where it is now"


def is_visible(key: str) -> bool:
    """Returns whether a key may be one of a store: no part of it is empty or hidden, as our own files are."""
    return all(part and not part.startswith(".") and "\0" not in part for part in key.split("/"))
