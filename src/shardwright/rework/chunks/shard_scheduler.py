"""Runs the requests for the chunks of a shard one batch at a time. Requests that arrive meanwhile form the
next batch.

    requests ──▶ queue of a shard ──▶ one thread takes all that wait
                                        reads that follow each other   ──▶ index, then ranges, once
                                        writes that follow each other  ──▶ one edit

Requests for one shard are served in the order in which they came, so a read sees every write before it. A
batch of reads costs two rounds of requests at most: the index, unless it is known, and ranges. The index of
one state of a shard is never used for another: a shard that was replaced in between is read again.

Far away a request costs more than bytes, and a reader asks for a few chunks at a time. So a short shard is
fetched whole with its index, and kept. It answers for each chunk once, for a moment: for a chunk that is
asked for again, or later, the server must first say that this is still the state of the shard.

What is fetched beside the answers, whole ranges with their gaps, is bounded: a batch of more than PART_BYTES
takes one more round for each part of that size, and the parts of all shards share a budget.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from random import uniform
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shardwright.disk.read_file import ChangedError
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ShardChangedError, ShardFormatError
from shardwright.model.promise import Promise
from shardwright.remote.objects import Objects

from .byte_budget import ByteBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardwright.read.store import StoredArray
    from shardwright.shard.sealed_shard import ReadIndex, SealedShard

    from .chunk_backend import ChunkBackend

_TRIES = 20  # of a batch, for a shard that other writers replace
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.005, 0.5
PART_BYTES = 64 << 20  # fetched of a shard at once; a single chunk may have more
_MOST_FETCHED_BYTES = 4 * PART_BYTES  # of all shards
KEPT_S = 1.0  # so long the other chunks of a shard that was read are given without asking again

# returns the bytes [start, stop) that are wanted of a chunk of so many bytes; None: all
Cut: TypeAlias = "Callable[[int], tuple[int, int]] | None"


@dataclass(frozen=True)
class ShardRef:
    """A shard of the store. ``key``: of its file below the root."""

    array: StoredArray
    shard: tuple[int, ...]
    key: str


@dataclass
class Read:
    """Asks for bytes of chunks, by their numbers in the shard. Answered with a list of bytes, None for absent
    ones."""

    wanted: list[tuple[int, Cut]]
    answer: Promise[list[bytes | None]] = field(default_factory=Promise)


@dataclass
class Look:
    """Asks for the index as it is now, without a chunk. Answered with None if there is no shard."""

    answer: Promise[ReadIndex | None] = field(default_factory=Promise)


@dataclass
class Write:
    """Gives chunks new bytes, None to erase one, or writes ``(start, bytes)`` into what they have."""

    changes: dict[int, bytes | list[tuple[int, bytes]] | None]
    answer: Promise[None] = field(default_factory=Promise)


Request: TypeAlias = "Read | Look | Write"


class ShardScheduler:
    """Thread-safe. ``coalesce_bytes``: ranges with at most such a gap between them are read as one.
    ``index_cache_bytes``: of indexes and whole shards that are kept. ``concurrency``: shards that are served
    side by side."""

    def __init__(
        self, backend: ChunkBackend, *, coalesce_bytes: int, index_cache_bytes: int, concurrency: int
    ) -> None:
        self._backend = backend
        self._coalesce_bytes = coalesce_bytes
        self._kept = KeptShards(index_cache_bytes)
        self._concurrency = concurrency
        self._fetched = ByteBudget(_MOST_FETCHED_BYTES)
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Request]] = {}  # under _lock; a shard that is served has an entry
        self._pool: ThreadPoolExecutor | None = None  # under _lock

    def submit(self, ref: ShardRef, *requests: Request) -> None:
        """Queues requests, which are served together; their ``answer`` is set by another thread. Never
        blocks."""
        with self._lock:
            if ref.key in self._waiting:
                self._waiting[ref.key].extend(requests)
                return
            self._waiting[ref.key] = [*requests]
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="shardwright-chunks")
            try:
                self._pool.submit(self._serve, ref)
            except RuntimeError:  # the interpreter ends: nobody would serve those that come later
                del self._waiting[ref.key]
                raise

    def close(self) -> None:
        """Waits for what was asked. It may be used again."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    # ------------------------------------------------------------------ the thread that serves a shard

    def _serve(self, ref: ShardRef) -> None:
        while True:
            with self._lock:
                requests = self._waiting[ref.key]
                if not requests:
                    del self._waiting[ref.key]
                    return
                self._waiting[ref.key] = []
            wanted = [request for request in requests if not request.answer.cancelled()]
            for is_write, batch in groupby(wanted, lambda request: isinstance(request, Write)):
                (self._write if is_write else self._read)(ref, list(batch))

    def _read(self, ref: ShardRef, requests: list[Any]) -> None:
        chunks = [item for request in requests if isinstance(request, Read) for item in request.wanted]
        sure = any(isinstance(request, Look) for request in requests)
        try:
            index, found = self.read_chunks(ref, chunks, sure=sure)
        except BaseException as error:  # noqa: BLE001 (of whoever asked)
            why = ErrorText.of(error)
            for request in requests:
                request.answer.fail(why)
            return
        left = iter(found)
        for request in requests:
            if isinstance(request, Look):
                request.answer.keep(index)
                continue
            answers = [next(left) for _ in request.wanted]
            bad = next((answer for answer in answers if isinstance(answer, ErrorText)), None)
            if bad is None:
                request.answer.keep(answers)
            else:
                request.answer.fail(bad)

    def _write(self, ref: ShardRef, requests: list[Any]) -> None:
        try:
            self._edit(ref, [request.changes for request in requests])
        except BaseException as error:  # noqa: BLE001 (of whoever asked)
            if len(requests) > 1 and isinstance(error, ValueError):
                for request in requests:  # one of them is to blame
                    self._write(ref, [request])
                return
            why = ErrorText.of(error)
            for request in requests:
                request.answer.fail(why)
        else:
            for request in requests:
                request.answer.keep(None)

    # ------------------------------------------------------------------ reading

    def read_chunks(
        self, ref: ShardRef, wanted: list[tuple[int, Cut]], *, sure: bool = False
    ) -> tuple[ReadIndex | None, list[bytes | ErrorText | None]]:
        """Returns the index and the bytes of chunks, all of one state of the shard; None and absent chunks
        without a shard. ``sure``: also if no byte has to be read. Raises as ``SealedShard.look`` does, but
        ``ShardChangedError`` for a shard that is replaced again and again."""
        for waited_s in _waits():
            try:
                with self._backend.open_shard(ref.array, ref.shard, ref.key, whole=bool(wanted)) as shard:
                    return self._read_once(ref, shard, wanted, sure=sure)
            except FileNotFoundError:
                self._kept.drop(ref.key)
                return None, [None] * len(wanted)
            except ChangedError:
                self._kept.drop(ref.key)
                sleep(waited_s)
        raise _changing(ref, "read")

    def _read_once(
        self, ref: ShardRef, shard: SealedShard[Any], wanted: list[tuple[int, Cut]], *, sure: bool
    ) -> tuple[ReadIndex, list[bytes | ErrorText | None]]:
        found: list[bytes | ErrorText | None] = [b""] * len(wanted)
        ranges: list[tuple[int, int, int]] = []  # start, stop, number in wanted
        kept, changes, numbers = self._kept.get(ref.key), Objects.changes, [number for number, _ in wanted]
        if kept is not None and not sure:
            ranges = _located(ref, kept.index, wanted, found)
            # without a range to be read on condition, it must be asked whether the known state still holds
            sure = not ranges or kept.data is not None
            if sure and self._backend.whole_bytes and kept.answers(numbers):
                kept.give(ranges, found)
                return kept.index, found
        index = shard.look(None if kept is None else kept.index, sure=sure)
        if sure or kept is None or index is not kept.index:
            ranges = _located(ref, index, wanted, found)
        if kept is None or index is not kept.index:
            kept = KeptShard(index)
        start, stop = index.data_range
        if kept.data is None and ranges and stop - start <= self._backend.whole_bytes:
            whole: list[Any] = [b""]
            self._fetch(ref, shard, index, [(start, stop, 0)], whole)
            (kept.data,) = whole
        if kept.data is None:
            self._fetch(ref, shard, index, ranges, found)
        else:
            kept.give(ranges, found)
        kept.confirm(numbers, changes)
        self._kept.put(ref.key, kept)
        return index, found

    def _fetch(
        self,
        ref: ShardRef,
        shard: SealedShard[Any],
        index: ReadIndex,
        ranges: list[tuple[int, int, int]],
        found: list[bytes | ErrorText | None],
    ) -> None:
        for part in _parts(_fused(ranges, self._coalesce_bytes)):
            bounds = [(start, _end(members)) for start, members in part]
            nbytes = min(sum(stop - start for start, stop in bounds), _MOST_FETCHED_BYTES)
            self._fetched.take(nbytes, ref.key)
            try:
                for (start, members), data in zip(part, shard.fetch(index, bounds), strict=True):
                    for first, stop, position in members:
                        found[position] = bytes(memoryview(data)[first - start : stop - start])
            finally:
                self._fetched.give(nbytes)

    # ------------------------------------------------------------------ writing

    def _edit(self, ref: ShardRef, all_changes: list[dict[int, Any]]) -> None:
        """Makes several sets of changes, one after the other, as one edit. Raises ``ShardFormatError`` for
        bytes that begin behind the end of their chunk, and as ``ChunkBackend.edit`` does."""
        patched = sorted(
            {n for changes in all_changes for n, new in changes.items() if isinstance(new, list)}
        )
        for waited_s in _waits():
            expected, old = self._before(ref, patched) if patched else (None, {})
            chunks: dict[int, bytes | None] = {}
            for number, new in (change for changes in all_changes for change in changes.items()):
                before = chunks[number] if number in chunks else old.get(number)
                chunks[number] = with_pieces(before, new, "a chunk") if isinstance(new, list) else new
            try:
                self._backend.edit(ref.array, ref.shard, ref.key, chunks, expected)
            except ChangedError:
                sleep(uniform(0, waited_s))  # noqa: S311 (apart from other writers)
            else:
                return
            finally:
                self._kept.drop(ref.key)
        raise _changing(ref, "written")

    def _before(self, ref: ShardRef, numbers: list[int]) -> tuple[Any, dict[int, bytes | ErrorText | None]]:
        """Returns the version of a shard, and the bytes of these chunks in it."""
        index, found = self.read_chunks(ref, [(number, None) for number in numbers], sure=True)
        version = self._backend.absent if index is None else index.version
        return version, dict(zip(numbers, found, strict=True))


def _waits() -> Iterable[float]:
    return (min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**n) for n in range(_TRIES))


def _changing(ref: ShardRef, what: str) -> ShardChangedError:
    return ShardChangedError(
        f"{ref.key} cannot be {what}: other writers changed it {_TRIES} times meanwhile",
        hint="Try again when they have finished",
    )


def _located(
    ref: ShardRef, index: ReadIndex, wanted: list[tuple[int, Cut]], found: list[bytes | ErrorText | None]
) -> list[tuple[int, int, int]]:
    """Returns the ranges of the shard that are wanted, and their numbers; sets what is found without them."""
    ranges = []
    for position, (number, cut) in enumerate(wanted):
        if not index.present[number]:
            found[position] = None
            continue
        try:
            index.check(number, f"{number} of {ref.key}")
        except ShardFormatError as error:
            found[position] = ErrorText.of(error)
            continue
        offset, nbytes = int(index.entries["offset"][number]), int(index.entries["nbytes"][number])
        start, stop = (0, nbytes) if cut is None else cut(nbytes)
        found[position] = b""
        if start < stop:
            ranges.append((offset + start, offset + stop, position))
    return ranges


def _fused(
    ranges: list[tuple[int, int, int]], coalesce_bytes: int
) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """Returns (start, members) of ranges that are read as one: gaps between members are not longer than
    ``coalesce_bytes``, and they have PART_BYTES at most together."""
    fused: list[tuple[int, list[tuple[int, int, int]]]] = []
    end = 0
    for piece in sorted(ranges):
        if fused and piece[0] - end <= coalesce_bytes and max(end, piece[1]) - fused[-1][0] <= PART_BYTES:
            fused[-1][1].append(piece)
            end = max(end, piece[1])
        else:
            fused.append((piece[0], [piece]))
            end = piece[1]
    return fused


def _parts(
    fused: list[tuple[int, list[tuple[int, int, int]]]],
) -> Iterator[list[tuple[int, list[tuple[int, int, int]]]]]:
    """Yields ranges that are fetched at once: PART_BYTES at most, or a single one. Once if there are none:
    whether the shard is still the same is asked too."""
    part: list[tuple[int, list[tuple[int, int, int]]]] = []
    nbytes = 0
    for start, members in fused:
        nbytes += _end(members) - start
        if part and nbytes > PART_BYTES:
            yield part
            part, nbytes = [], _end(members) - start
        part.append((start, members))
    yield part


def _end(members: list[tuple[int, int, int]]) -> int:
    return max(stop for _, stop, _ in members)


def with_pieces(data: bytes | ErrorText | None, pieces: list[tuple[int, bytes]], what: str) -> bytes:
    """Returns the bytes of a chunk or a file, an absent one is empty, with others written into them. Raises
    ``ShardFormatError``."""
    if isinstance(data, ErrorText):
        raise data.to_error()
    found = bytearray(data or b"")
    for start, piece in pieces:
        if not 0 <= start <= len(found):
            raise ShardFormatError(
                f"bytes for offset {start} of {what} of {len(found)} bytes: none may be left out"
            )
        found[start : start + len(piece)] = piece
    return bytes(found)


@dataclass
class KeptShard:
    """A state of a shard. Used by the thread that serves the shard.

    data      all bytes of chunks of a short shard far away
    since_s   when an answer last said that it is the state of the shard
    changes   ``Objects.changes`` when that was asked
    answered  bool[chunks]: those that were given since
    """

    index: ReadIndex
    data: bytes | None = None
    since_s: float = 0.0
    changes: int = 0
    answered: np.ndarray = field(default_factory=lambda: np.zeros(0, np.bool_))

    def confirm(self, numbers: list[int], changes: int) -> None:
        """Takes it for the state of the shard: an answer with these chunks has come."""
        self.since_s, self.changes = monotonic(), changes
        self.answered = np.zeros(len(self.index.entries), np.bool_)
        self.answered[numbers] = True

    def answers(self, numbers: list[int]) -> bool:
        """Returns whether these chunks are given without asking the server, which is done once. Not after a
        change by this process, to any object by any store: who made it would be given what was before."""
        if monotonic() - self.since_s > KEPT_S or self.changes != Objects.changes:
            return False
        if self.answered[numbers].any():
            return False
        self.answered[numbers] = True
        return True

    def give(self, ranges: list[tuple[int, int, int]], found: list[bytes | ErrorText | None]) -> None:
        at = self.index.data_range[0]
        for start, stop, position in ranges:
            found[position] = (self.data or b"")[start - at : stop - at]

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self.answered.nbytes + len(self.data or b"")


class KeptShards:
    """The shards that were read last, of at most ``limit_bytes`` together. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[KeptShard, int]] = OrderedDict()  # under _lock; with its bytes
        self._bytes = 0  # under _lock

    def get(self, key: str) -> KeptShard | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: str, shard: KeptShard) -> None:
        with self._lock:
            self._drop(key)
            self._kept[key] = shard, shard.nbytes
            self._bytes += shard.nbytes
            while self._bytes > self._limit_bytes:
                self._drop(next(iter(self._kept)))

    def drop(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        if key in self._kept:
            self._bytes -= self._kept.pop(key)[1]
