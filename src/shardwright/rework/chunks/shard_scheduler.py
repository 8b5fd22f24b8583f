"""Runs the requests for the chunks of a shard one batch at a time. Requests that arrive meanwhile form the
next batch.

    requests ──▶ queue of a shard ──▶ one thread takes all that wait
                                        reads that follow each other   ──▶ index, then ranges, once
                                        writes that follow each other  ──▶ one edit

Requests for one shard are served in the order in which they came, so a read sees every write before it. A
batch of reads costs two rounds of requests at most: the index, unless it is known, and ranges. The index of
one state of a shard is never used for another: a shard that was replaced in between is read again.

Far away a request costs more than bytes, and a reader asks for a few chunks at a time. So a short shard is
fetched whole with its index, and a read that follows another one fetches ahead, at most as much as that took
by then. What came beside the answers is kept for a moment (``KeptShards``). It answers for each chunk once:
who asks for one again, or later, gets it if the server says that it is still the state of the shard.

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
from shardwright.remote.object_shard import KEPT_S

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
KEPT_BYTES = 64 << 20  # that came beside answers, of all shards of a store
_MOST_PIECES = 64  # of one shard
_MOST_AHEAD_BYTES = 16 << 20  # fetched at once for reads to come

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
    """Thread-safe. ``coalesce_bytes``: ranges with at most such a gap between them are read as one, and a
    shard with no more of chunks far away is read whole. ``index_cache_bytes``: of indexes that are kept.
    ``concurrency``: shards that are served side by side."""

    def __init__(
        self, backend: ChunkBackend, *, coalesce_bytes: int, index_cache_bytes: int, concurrency: int
    ) -> None:
        self._backend = backend
        self._coalesce_bytes = coalesce_bytes
        self._kept = KeptShards(index_cache_bytes, KEPT_BYTES)
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
        ranges: list[_Range] = []
        kept, asked_s, numbers = self._kept.get(ref.key), monotonic(), {number for number, _ in wanted}
        if kept is not None and not sure:
            ranges = kept.take(_located(ref, kept.index, wanted, found), found)
            if not ranges and self._backend.is_remote and kept.answers(numbers, asked_s):
                return kept.index, found
        # without a range to be read on condition, it must be asked whether the known index still holds
        known = None if kept is None else kept.index
        index = shard.look(known, sure=sure or not ranges)
        if kept is None or index is not known:
            kept = KeptShard(index)
            self._kept.put(ref.key, kept)
            ranges = _located(ref, index, wanted, found)
        elif sure:
            ranges = kept.take(_located(ref, index, wanted, found), found)
        self._fetch(ref, shard, kept, ranges, found)
        kept.since_s, kept.answered = asked_s, numbers
        return index, found

    def _fetch(
        self,
        ref: ShardRef,
        shard: SealedShard[Any],
        kept: KeptShard,
        ranges: list[_Range],
        found: list[bytes | ErrorText | None],
    ) -> None:
        fused = _fused(ranges, self._coalesce_bytes)
        if fused and self._backend.is_remote:
            start, stop = kept.index.data_range
            if stop - start <= self._coalesce_bytes:
                fused = [_Fused(start, stop, ranges)]
            else:
                kept.read_ahead(fused, self._coalesce_bytes)
        beside: list[tuple[int, memoryview]] = []
        for part in _parts(fused):
            nbytes = min(sum(each.nbytes for each in part), _MOST_FETCHED_BYTES)
            self._fetched.take(nbytes, ref.key)
            try:
                bounds = [(each.start, each.stop) for each in part]
                for each, data in zip(part, shard.fetch(kept.index, bounds), strict=True):
                    each.give(memoryview(data), found)
                    if each.has_more:
                        beside.append((each.start, memoryview(data)))
            finally:
                self._fetched.give(nbytes)
        if beside and self._backend.is_remote:
            self._kept.add(ref.key, kept, beside)

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


_Range: TypeAlias = "tuple[int, int, int]"  # start and stop in a shard, number in what is wanted


def _located(
    ref: ShardRef, index: ReadIndex, wanted: list[tuple[int, Cut]], found: list[bytes | ErrorText | None]
) -> list[_Range]:
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


@dataclass
class _Fused:
    """A range of a shard that is fetched at once, and those that are wanted of it."""

    start: int
    stop: int
    members: list[_Range]

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    @property
    def has_more(self) -> bool:
        """True if it has bytes that are not wanted."""
        return sum(stop - start for start, stop, _ in self.members) < self.nbytes

    def give(self, data: memoryview, found: list[bytes | ErrorText | None]) -> None:
        for start, stop, position in self.members:
            found[position] = bytes(data[start - self.start : stop - self.start])


def _fused(ranges: list[_Range], coalesce_bytes: int) -> list[_Fused]:
    """Returns what is read as one: gaps between members are not longer than ``coalesce_bytes``, and they have
    PART_BYTES at most together."""
    fused: list[_Fused] = []
    for piece in sorted(ranges):
        start, stop, _ = piece
        last = fused[-1] if fused else None
        if last and start - last.stop <= coalesce_bytes and max(last.stop, stop) - last.start <= PART_BYTES:
            last.members.append(piece)
            last.stop = max(last.stop, stop)
        else:
            fused.append(_Fused(start, stop, [piece]))
    return fused


def _parts(fused: list[_Fused]) -> Iterator[list[_Fused]]:
    """Yields ranges that are fetched at once: PART_BYTES at most, or a single one. Once if there are none:
    whether the shard is still the same is asked too."""
    part: list[_Fused] = []
    nbytes = 0
    for each in fused:
        nbytes += each.nbytes
        if part and nbytes > PART_BYTES:
            yield part
            part, nbytes = [], each.nbytes
        part.append(each)
    yield part


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
    """A state of a shard. Used by the thread that serves the shard, but for ``pieces``, which another one may
    empty.

    since_s   when it was last known to be the state of the shard
    answered  the chunks that were given since
    pieces    (start, bytes) that were fetched beside answers, of this state
    run       [start, stop) of the reads that have followed each other, up to the last one
    """

    index: ReadIndex
    since_s: float = float("-inf")
    answered: set[int] = field(default_factory=set)
    pieces: list[tuple[int, memoryview]] = field(default_factory=list)
    run: tuple[int, int] = (0, 0)

    def answers(self, numbers: set[int], now_s: float) -> bool:
        """Returns whether these chunks are given without asking the server, which is done once."""
        if now_s - self.since_s > KEPT_S or not self.answered.isdisjoint(numbers):
            return False
        self.answered |= numbers
        return True

    def take(self, ranges: list[_Range], found: list[bytes | ErrorText | None]) -> list[_Range]:
        """Sets what is in the pieces; returns the other ranges."""
        pieces, left = self.pieces, []
        for start, stop, position in ranges:
            for at, data in pieces:
                if at <= start and stop <= at + len(data):
                    found[position] = bytes(data[start - at : stop - at])
                    break
            else:
                left.append((start, stop, position))
        return left

    def read_ahead(self, fused: list[_Fused], coalesce_bytes: int) -> None:
        """Lets the last range end later, behind a whole chunk, if the first one follows what was read just
        now: by as much as reads that follow each other have taken."""
        first, last = fused[0], fused[-1]
        follows = self.run[0] < first.start <= self.run[1] + coalesce_bytes
        if follows and monotonic() - self.since_s <= KEPT_S:
            most = min(last.stop - self.run[0], _MOST_AHEAD_BYTES, max(0, PART_BYTES - last.nbytes))
            entries = self.index.entries[self.index.sound]
            ends = entries["offset"] + entries["nbytes"]
            ends = ends[ends <= np.uint64(last.stop + most)]
            last.stop = max(last.stop, int(ends.max(initial=0)))
            self.run = self.run[0], last.stop
        else:
            self.run = first.start, last.stop

    @property
    def pieces_bytes(self) -> int:
        return sum(len(data) for _, data in self.pieces)


class KeptShards:
    """The shards that were read last: indexes of at most ``index_bytes`` together, and pieces of at most
    ``pieces_bytes``. Thread-safe."""

    def __init__(self, index_bytes: int, pieces_bytes: int) -> None:
        self._most_bytes, self._most_pieces_bytes = index_bytes, pieces_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, KeptShard] = OrderedDict()  # under _lock
        self._bytes = self._pieces_bytes = 0  # under _lock

    def get(self, key: str) -> KeptShard | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: str, shard: KeptShard) -> None:
        with self._lock:
            self._drop(key)
            self._kept[key] = shard
            self._bytes += shard.index.nbytes
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def add(self, key: str, shard: KeptShard, pieces: list[tuple[int, memoryview]]) -> None:
        """Adds pieces to a shard, if it is still kept; in place of those that it has if these are too many.
        Pieces of others go until there is room."""
        with self._lock:
            if self._kept.get(key) is not shard:
                return
            both = [*shard.pieces, *pieces]
            is_much = sum(len(data) for _, data in both) > self._most_pieces_bytes // 4
            self._set_pieces(shard, pieces if is_much or len(both) > _MOST_PIECES else both)
            for each in self._kept.values():  # those used last are at the end
                if self._pieces_bytes <= self._most_pieces_bytes:
                    break
                self._set_pieces(each, [])

    def _set_pieces(self, shard: KeptShard, pieces: list[tuple[int, memoryview]]) -> None:
        self._pieces_bytes -= shard.pieces_bytes
        shard.pieces = pieces
        self._pieces_bytes += shard.pieces_bytes

    def drop(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        if (shard := self._kept.pop(key, None)) is not None:
            self._bytes -= shard.index.nbytes
            self._set_pieces(shard, [])
