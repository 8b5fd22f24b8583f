"""A sealed shard that is read: the one way to its index and to the bytes of its chunks, wherever it lies.

    file of a name       SealedShard.open ──▶ ReadFile ┐
    open descriptor      ReadFile(path, descriptor)    ├─▶ SealedShard ──▶ ReadIndex: entries, checked once
    object of a bucket,  ranges of it                  ┘              └──▶ bytes of chunks, of that state
    file in a zip file

What is checked, and where:

    no link but a spilled shard's, a regular file      ``SealedShard.open``
    long enough for its index; the index' checksum     ``ShardIndex.read``
    each entry: whole, within the data, no longer
    than its codec makes a chunk, not empty            ``ReadIndex``; a bad one spoils its own chunk alone
    the state of file or object that the index is of   ``SealedShard.fetch``, ``ReadFile.check_unchanged``

Entries may share bytes: chunks of the same content need to be stored only once. So an overlap is no fault.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from shardwright.array.document import NamingFile
from shardwright.disk.read_file import ChangedError, ReadFile
from shardwright.disk.remote_path import RemotePath
from shardwright.disk.typed_errors import storage_errors
from shardwright.model.errors import ShardFormatError

from .index import EMPTY, INDEX_ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Self

    import numpy.typing as npt

    from .index import ShardIndex

    Bools = npt.NDArray[np.bool_]

_FIXED_BYTES = 500  # of what an index takes in memory beside its entries


class ShardBytes(Protocol):
    """The bytes of a shard. All methods raise ``ShardFormatError`` where they end too early, and
    ``StorageError``."""

    @property
    def path(self) -> Path | str:
        """For messages."""

    def edge(self, nbytes: int, *, at_end: bool, known: Any, sure: bool) -> tuple[bytes, Any, int] | None:
        """Returns the first or last bytes, the version of this state, and its length; None if ``known`` is
        that version, or need not be ``sure`` and costs a request to compare. Raises ``FileNotFoundError``."""

    def ranges(self, version: Any, bounds: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """Returns the bytes [start, stop) of each range, all of the state ``version``. Raises
        ``ChangedError``."""

    def is_sure(self, version: Any) -> bool:
        """Returns whether no other state has this version."""

    def unchanged(self) -> AbstractContextManager[None]:
        """A context in which all bytes are of one state; else it raises ``ChangedError``."""

    def close(self) -> None: ...


File = TypeVar("File", bound=ShardBytes)


@dataclass(frozen=True)
class ReadIndex:
    """The index of one state of a shard, its entries checked. ``version``: what tells this state from all
    others.

    entries   INDEX_ENTRY[chunks]
    present   bool[chunks]
    sound     bool[chunks]: present, and may be read
    data_range  [start, stop) of the shard in which chunks lie
    """

    version: Any
    entries: np.ndarray
    present: Bools
    sound: Bools
    data_range: tuple[int, int]
    most_chunk_bytes: int

    @classmethod
    def of(cls, form: ShardIndex, version: Any, file_bytes: int, entries: np.ndarray) -> ReadIndex:
        data_range = form.data_range(file_bytes)
        start, stop = map(np.uint64, data_range)
        offsets, sizes = entries["offset"], entries["nbytes"]
        present = (offsets != EMPTY) | (sizes != EMPTY)
        # sizes are limited to stop first, so that the subtraction cannot wrap around
        inside = (sizes <= stop) & (offsets >= start) & (offsets <= stop - np.minimum(sizes, stop))
        sound = inside & (sizes > 0) & (sizes <= np.uint64(form.most_chunk_bytes))
        return cls(version, entries, present, sound, data_range, form.most_chunk_bytes)

    @property
    def is_sound(self) -> bool:
        """True if no entry is bad."""
        return bool((self.sound == self.present).all())

    @property
    def live(self) -> npt.NDArray[np.int64]:
        """int64[n]: the numbers of the chunks that may be read."""
        return np.flatnonzero(self.sound)

    @property
    def bad(self) -> npt.NDArray[np.int64]:
        """int64[n]: the numbers of the chunks with bad entries."""
        return np.flatnonzero(self.present & ~self.sound)

    def fault(self, number: int) -> str | None:
        """Returns what is wrong with an entry, None if nothing is. The text is made here: one for each bad
        entry of a stranger's index could fill the memory."""
        if self.sound[number] or not self.present[number]:
            return None
        offset, nbytes = (int(self.entries[name][number]) for name in ("offset", "nbytes"))
        start, stop = self.data_range
        if EMPTY in (offset, nbytes):
            return "index entry is half empty: only one of offset and size is 2^64-1"
        if not start <= offset <= stop - nbytes:
            return (
                f"chunk lies outside the data of its shard: {nbytes} bytes at {offset}, not in "
                f"[{start}, {stop})"
            )
        if nbytes:
            return (
                f"chunk is longer than its codec can make it: {nbytes} bytes, at most {self.most_chunk_bytes}"
            )
        return "chunk has a size of 0"

    def faults(self) -> Iterator[tuple[int, str]]:
        """Yields the number of each chunk with a bad entry, and what is wrong with it."""
        for number in self.bad.tolist():
            yield number, self.fault(number) or ""

    def check(self, number: int, name: str, hint: str | None = None) -> None:
        """Raises ``ShardFormatError`` if the entry of a chunk is bad; ``name`` tells of chunk and shard."""
        if (fault := self.fault(number)) is not None:
            raise ShardFormatError(f"chunk {name}: {fault}", hint=hint)

    @property
    def nbytes(self) -> int:
        """About the memory that it takes."""
        return _FIXED_BYTES + len(self.entries) * (INDEX_ENTRY.itemsize + 2)


class SealedShard(Generic[File]):
    """A sealed shard while it is read; a context manager. ``form``: of the index of each shard of its array.
    One state of it, as long as ``file`` does not change; ``fetch`` tells if it does."""

    def __init__(self, file: File, form: ShardIndex) -> None:
        self.file = file
        self.form = form
        self._index: ReadIndex | None = None

    @staticmethod
    def open(path: Path, form: ShardIndex, *, spilled: bool = True) -> SealedShard[ReadFile]:
        """Opens the file of this name. ``spilled``: it may be a link to a spilled shard. Raises
        ``StorageError``, ``LinkError``, ``ShardFormatError`` if it is no regular file."""
        if isinstance(path, RemotePath):
            return SealedShard(path.open_shard(), form)
        return SealedShard(regular_file(path, spilled=spilled), form)

    @property
    def path(self) -> Path | str:
        return self.file.path

    @property
    def index(self) -> ReadIndex:
        """The index, read at the first use, or as ``look`` has found it. Raises ``ShardFormatError`` for a
        file that is too short or an index that fails its checksum, ``StorageError``."""
        # no cached_property: before Python 3.12 it holds one lock, of all shards, while it computes, so that
        # all readers would wait for the disk of one
        if self._index is None:
            with storage_errors("open", self.path):  # what is no file is asked for now
                self._index = self._read(None)
        return self._index

    @property
    def entries(self) -> np.ndarray:
        """INDEX_ENTRY[chunks]. Raises as ``index``."""
        return self.index.entries

    @property
    def index_offset(self) -> int:
        """Returns where the index begins in the file. Raises as ``index``."""
        return self.form.offset(self.index.data_range[1])

    def check_sound(self) -> None:
        """Raises ``ShardFormatError`` if the index, or an entry of it, cannot be right; ``StorageError``."""
        with NamingFile(self.path):
            bad = self.index.bad
        for number in bad.tolist():
            self.index.check(number, f"{number} of {self.path}")

    def _read(self, known: ReadIndex | None, *, sure: bool = True) -> ReadIndex:
        edge = self.file.edge(
            self.form.nbytes, at_end=self.form.location != "start", known=known and known.version, sure=sure
        )
        if edge is None:
            assert known is not None, "only its version can be met"
            return known
        data, version, file_bytes = edge
        entries = self.form.read(file_bytes, lambda _offset, _nbytes: data)
        return ReadIndex.of(self.form, version, file_bytes, entries)

    def look(self, known: ReadIndex | None = None, *, sure: bool = True) -> ReadIndex:
        """Returns the index of the shard as it is now: ``known``, one that was read before, if it is that. If
        it need not be ``sure``, ``known`` may be returned unasked, since ``fetch`` finds out. Raises
        ``ChangedError`` if the shard is changed in that moment, ``FileNotFoundError``, and as ``index``."""
        with self.file.unchanged():
            found = self._index = self._read(known, sure=sure)
        return found

    def fetch(self, index: ReadIndex, bounds: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """Returns the bytes [start, stop) of each range, of that state of the shard to which the index
        belongs. Raises ``ChangedError`` if it is another by now, ``ShardFormatError``, ``StorageError``."""
        found = self.file.ranges(index.version, bounds)
        if bounds and not self.file.is_sure(index.version):
            now = self.look()
            if now.version != index.version or now.entries.tobytes() != index.entries.tobytes():
                raise ChangedError
        return found

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def regular_file(path: Path, *, spilled: bool = True) -> ReadFile:
    """Opens the file of a shard. Raises as ``SealedShard.open``."""
    with storage_errors("open", path):
        file = ReadFile.open(path, spilled=spilled)
    if not stat.S_ISREG(file.status.st_mode):
        file.close()
        raise ShardFormatError(f"{path} is not a regular file")
    return file
