"""The bytes of a shard in a bucket or behind a server: by requests for ranges, each on the condition that the
object is still in the state in which its first answer came."""

from __future__ import annotations

import hashlib
import os
import stat
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardwright.disk.read_file import ChangedError
from shardwright.disk.typed_errors import storage_errors
from shardwright.model.errors import ShardFormatError, StorageError

from .objects import not_found, strong_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import AbstractContextManager

    from .objects import Objects

RANGES_AT_ONCE = 16  # requests for ranges, of all shards together
RANGE_BYTES = 8 << 20  # asked for by one request; a longer range comes in parts, side by side
# That one request may fetch of a shard, index and all, before its length is known. As many as shards are read
# at once are in memory.
MOST_WHOLE_BYTES = RANGE_BYTES
_LEAST_AHEAD_BYTES, _MOST_AHEAD_BYTES = 64 << 10, 4 << 20  # that one request fetches for reads to come
_MOST_RATIO = 4  # of compression, that is expected of an array of which nothing is known


@dataclass(frozen=True)
class ObjectVersion:
    """One state of an object. An ETag is enough if it is strong; else size and time count too."""

    e_tag: str | None
    nbytes: int
    modified: Any

    @classmethod
    def of(cls, meta: Any) -> ObjectVersion:
        tag = strong_tag(meta)
        return cls(meta["e_tag"], int(meta["size"]), meta["last_modified"] if tag is None else None)

    @property
    def condition(self) -> str | None:
        """The value of If-Match, None where the server has no ETag that it can be."""
        return strong_tag({"e_tag": self.e_tag})

    @property
    def status(self) -> os.stat_result:
        """As a file has it: the inode stands for the ETag."""
        s = 0 if self.modified is None else int(self.modified.timestamp())
        return status_told_by(str(self.e_tag), self.nbytes, s)


def status_told_by(told: str, nbytes: int, modified_s: int = 0) -> os.stat_result:
    """Returns the status of a file that nobody may write. The inode stands for what is ``told``, which
    differs between any two states."""
    tag = hashlib.blake2b(told.encode(), digest_size=7).digest()
    s, mode, blocks = modified_s, stat.S_IFREG | 0o444, -(-nbytes // 512)
    times = (s, s, s, *map(float, (s, s, s)), *(s * 10**9,) * 3)
    return os.stat_result((mode, int.from_bytes(tag), 0, 1, 0, 0, nbytes, *times, 0, blocks, 0))


@dataclass
class ShardSize:
    """The length that is expected of the shards of one array: that of the last one. ``whole_bytes``: one of
    at most so many is fetched whole with its index. Threads set ``is_short`` without a lock: each has seen a
    shard, and the last one to say so is as right as any."""

    whole_bytes: int
    is_short: bool

    @classmethod
    def before_the_first(cls, whole_bytes: int, most_bytes: int) -> ShardSize:
        """``most_bytes``: of a shard whose chunks do not shrink."""
        return cls(whole_bytes, most_bytes <= _MOST_RATIO * whole_bytes)


class RangesAsFile(ABC):
    """The part of ``disk.read_file.ReadFile`` that other bytes have, too, which are asked for by ranges."""

    descriptor = -1  # there is none: no kernel reads it

    @property
    @abstractmethod
    def status(self) -> os.stat_result: ...

    @property
    @abstractmethod
    def has_changed(self) -> bool:
        """True if an answer was of another state, of which nothing was returned."""

    @abstractmethod
    def read(self, offset: int, nbytes: int) -> memoryview: ...

    @property
    def nbytes(self) -> int:
        return self.status.st_size

    @property
    def allocated_bytes(self) -> int:
        return self.nbytes

    def check_unchanged(self) -> None:
        """Raises ``ChangedError`` if it has changed."""
        if self.has_changed:
            raise ChangedError

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills ``buffer`` from ``offset``. Raises as ``read``."""
        buffer[:] = self.read(offset, len(buffer))

    def unchanged(self) -> AbstractContextManager[None]:
        """``ranges`` gives bytes of one state."""
        return nullcontext()

    def forget_edge(self) -> None:  # noqa: B027 (most have none)
        """Lets later reads ask for what has come with the index, on condition."""

    @abstractmethod
    def ranges(self, version: Any, bounds: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """As ``shard.sealed_shard.ShardBytes``."""

    def ask(self, version: Any, bounds: list[tuple[int, int]]) -> Callable[[], Sequence[bytes | memoryview]]:
        """As ``ranges``, in two steps: asks, where that is a request, and returns what waits for answers."""
        return partial(self.ranges, version, bounds)


class ObjectRanges(RangesAsFile):
    """The bytes of one object, asked for when they are read. ``side_by_side``: the threads that send
    requests; ``path``: for messages; ``size``: of a shard whose chunks will be read. Used by one thread at a
    time, but for ``ranges``."""

    def __init__(
        self,
        objects: Objects,
        key: str,
        side_by_side: Callable[[], ThreadPoolExecutor],
        path: Any = None,
        size: ShardSize | None = None,
    ) -> None:
        self._objects = objects
        self._key = key
        self.side_by_side = side_by_side
        self.path = key if path is None else path
        self.version: ObjectVersion | None = None  # of the first answer
        self._size = size
        # what came with the index, from an offset on: until ranges are asked for
        self._edge_at, self._edge = 0, memoryview(b"")
        self._has_changed = False
        self._ahead: bytes | memoryview = b""
        self._ahead_at, self._ahead_bytes = 0, _LEAST_AHEAD_BYTES

    # as ``disk.read_file.ReadFile``

    @property
    def status(self) -> os.stat_result:
        with storage_errors("open", self.path):
            return (self.version or self._state()).status

    def _state(self) -> ObjectVersion:
        """Asks for the version that the object has now. Raises ``FileNotFoundError``, ``StorageError``."""
        meta = self._objects.head(self._key)
        if meta is None:
            raise not_found(self.path)
        self.version = version = ObjectVersion.of(meta)
        return version

    @property
    def has_changed(self) -> bool:
        return self._has_changed

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Returns bytes, and fetches more ahead the longer reads follow each other closely: chunk after chunk
        takes few requests, and the heads of large chunks do not fetch the chunks. Raises ``ShardFormatError``
        if it ends too early, ``StorageError``."""
        start = offset - self._ahead_at
        if not 0 <= start <= start + nbytes <= len(self._ahead):
            follows = 0 <= start <= len(self._ahead) + _LEAST_AHEAD_BYTES and len(self._ahead) > 0
            more = min(2 * self._ahead_bytes, _MOST_AHEAD_BYTES) if follows else _LEAST_AHEAD_BYTES
            self._ahead_bytes = more
            stop = min(offset + max(nbytes, more), max(self.nbytes, offset + nbytes))
            assert self.version is not None, "its size is known"
            (self._ahead,) = self.ranges(self.version, [(offset, stop)]) if stop > offset else (b"",)
            self._ahead_at, start = offset, 0
        return memoryview(self._ahead)[start : start + nbytes]

    # as the bytes of a shard (``shard.sealed_shard``)

    def edge(
        self, nbytes: int, *, at_end: bool, known: ObjectVersion | None, sure: bool
    ) -> tuple[bytes, ObjectVersion, int] | None:
        if known is not None and not sure:
            return None
        if nbytes == 0:  # a chunk without shards has no index, and no server answers a range of nothing
            version = self._state()
            return None if version == known else (b"", version, version.nbytes)
        most = nbytes
        size, self._size = self._size, None  # a second look is for the index alone
        if size is not None and size.is_short:
            most = max(nbytes, size.whole_bytes)
        options: dict[str, Any] = {"range": {"suffix": most} if at_end else (0, most)}
        if known is not None and known.condition:
            options["if_none_match"] = known.condition
        try:
            found = self._objects.get(self._key, options)
        except StorageError:
            if self._objects.is_bucket or not at_end:
                raise
            # Many servers of plain files know no "last bytes". Where that was not why, this fails too.
            end = self.nbytes
            most = most if end <= most else nbytes
            found = self._objects.get(self._key, {**options, "range": (max(0, end - most), end)})
        if found is None:
            return None
        data, self.version = memoryview(found[0]), ObjectVersion.of(found[1].meta)
        version, end = self.version, self.version.nbytes
        if len(data) != min(most, end):
            raise self._ends_early(max(0, end - most) if at_end else 0, min(most, end), len(data))
        if size is not None:
            size.is_short = end <= size.whole_bytes
        if most > nbytes:
            self._edge_at, self._edge = end - len(data) if at_end else 0, data
        return bytes(data[max(0, len(data) - nbytes) :] if at_end else data[:nbytes]), version, end

    def ranges(self, version: ObjectVersion, bounds: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        if len(bounds) == 1 and bounds[0][1] - bounds[0][0] <= RANGE_BYTES and not self._edge:
            return [self._range(version, *bounds[0])]  # without the way through another thread
        return self.ask(version, bounds)()

    def ask(
        self, version: ObjectVersion, bounds: list[tuple[int, int]]
    ) -> Callable[[], Sequence[bytes | memoryview]]:
        at, edge = self._edge_at, self._edge
        self.forget_edge()
        is_there = all(at <= start and stop <= at + len(edge) for start, stop in bounds)
        if is_there and version == self.version:
            return lambda: [edge[start - at : stop - at] for start, stop in bounds]
        # filled as they come: with answers that are joined all bytes would be in memory twice
        wholes = [memoryview(bytearray(stop - start)) for start, stop in bounds]
        asked = [
            self.side_by_side().submit(self._fill, version, at, whole[at - start : at - start + RANGE_BYTES])
            for whole, (start, stop) in zip(wholes, bounds, strict=True)
            for at in range(start, stop, RANGE_BYTES)
        ]

        def wait() -> list[memoryview]:
            for answer in asked:
                answer.result()
            return wholes

        return wait

    def forget_edge(self) -> None:
        self._edge = memoryview(b"")

    def _fill(self, version: ObjectVersion, start: int, part: memoryview) -> None:
        part[:] = self._range(version, start, start + len(part))

    def _range(self, version: ObjectVersion, start: int, stop: int) -> bytes:
        options: dict[str, Any] = {"range": (start, stop)}
        if version.condition:
            options["if_match"] = version.condition
        try:
            found = self._objects.get(self._key, options)
        except (FileNotFoundError, ChangedError):
            found = None
        if found is None or ObjectVersion.of(found[1].meta) != version:
            self._has_changed = True
            raise ChangedError
        if len(found[0]) != stop - start:
            raise self._ends_early(start, stop - start, len(found[0]))
        return found[0]

    def _ends_early(self, start: int, nbytes: int, came: int) -> ShardFormatError:
        return ShardFormatError(
            f"{self._objects.url}/{self._key} ends too early",
            expected=f"{nbytes} bytes at {start}",
            got=came,
        )

    def is_sure(self, version: ObjectVersion) -> bool:
        """Size and time are those of another object too that was put within the same second."""
        return version.condition is not None

    def close(self) -> None:
        """Nothing is open."""
