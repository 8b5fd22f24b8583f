"""Reads boxes of a sharded array: chunks that lie together are fetched at once, and decoded in as many
threads as there are processors, without the GIL. See ``kernels.cuts`` for what is decoded of a chunk.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from shardwright.codecs.decode import ChunkCodecs
from shardwright.disk.failpoints import look
from shardwright.disk.read_file import ChangedError
from shardwright.kernels.cuts import BLOSC, OTHER, PLAIN, ZSTD, decode_cuts
from shardwright.kernels.file_io import FILE_ENDED, read_pieces, will_need
from shardwright.model.errors import ShardFormatError, ShardwrightError, StorageError
from shardwright.shard.read_back import fits_checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardwright.disk.read_file import ReadFile
    from shardwright.shard.sealed_shard import SealedShard

    from .store import StoredArray
    from .store_state import NeverStored

COALESCE_BYTES = 64 << 10  # chunks with at most such a gap between them are fetched together
BATCH_BYTES = 1 << 20  # fetched and then decoded by one thread; less is not worth another one
# a chunk of its own is decoded in parts of at least so much, each in a thread: handing one over costs as much
# as decoding half of it
PART_BYTES = 2 << 20
JOB_BATCH_BYTES = 256 << 10  # likewise of a job, which has a bound on its memory
BATCHES_AHEAD = 8  # that the system fetches from the disk meanwhile
ABSENT, NO_CRC = -1, -1
_LEAST_KEPT_BYTES, _MOST_KEPT_BYTES, _MOST_KEPT = 128 << 10, 128 << 20, 3  # memory of boxes, to be used again

Coordinates = tuple[int, ...]
Slices = tuple[slice, ...]
Opener: TypeAlias = "Callable[[str], int]"  # opens the file of a key; may raise OSError
Staged = list[tuple[int, "Callable[[], np.ndarray]"]]
Item = TypeVar("Item")
_KERNEL_FORMS = {None: PLAIN, "blosc": BLOSC, "zstd": ZSTD}


class ChunkSearch:
    """The search for some chunks of one shard: their locations, as far as looks have found them. It reads
    nothing: a chunk that it has not found may have moved (``store_state``), until ``conclude`` says that it
    was never stored."""

    def __init__(self, count: int) -> None:
        self._file, self._crc = np.full(count, ABSENT, np.int8), np.full(count, NO_CRC, np.int64)
        self._offset, self._nbytes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._files: list[ReadFile] = []
        self._named = np.zeros(count, np.bool_)
        self.recorded = np.zeros(count, np.bool_)
        self.staged: dict[int, Staged] = {}

    def put(
        self, file: ReadFile | None, where: np.ndarray, entries: np.ndarray, crcs: np.ndarray | None = None
    ) -> None:
        """Sets the chunks ``where`` (int64[m]) to index entries of a file, unless these are absent. None: the
        file that they name is not under its name."""
        here = entries["nbytes"] != np.uint64(2**64 - 1)
        where, entries = where[here], entries[here]
        self._named[where] = True
        if file is None:
            return
        self._file[where] = len(self._files)
        self._offset[where], self._nbytes[where] = entries["offset"], entries["nbytes"]
        self._crc[where] = NO_CRC if crcs is None else crcs[here]
        self._files.append(file)

    @property
    def missing(self) -> np.ndarray:
        """int64[m], the chunks that no file has by now."""
        return np.flatnonzero(self._file == ABSENT)

    @property
    def is_journaled(self) -> bool:
        """True if a journal has the offset and the checksum of each chunk, whatever was looked at besides."""
        return not self.staged and bool((self._crc != NO_CRC).all())

    def misses_the_same(self, other: ChunkSearch) -> bool:
        return self.staged.keys() == other.staged.keys() and np.array_equal(self.missing, other.missing)

    def conclude(self, never: NeverStored | None) -> Located:
        """Returns where the chunks are. ``never``: proves that those which were not found were never stored;
        not needed if all are found. Raises ``ChangedError`` if one is not where a journal or an index has
        named it."""
        if self._named[self.missing].any():
            raise ChangedError
        assert never is not None or not self.missing.size, "what was not found needs a proof"
        located = self._file, self._offset, self._nbytes, self._crc
        return Located(tuple(self._files), *located, self.recorded, self.staged, never)


@dataclass(frozen=True)
class Located:
    """Where some chunks are, of one shard, or of several one after the other (``joined``), in the order in
    which they were asked for. Made by ``ChunkSearch``.

    files           those that hold them
    file            int8[n], the number of each chunk's file, ``ABSENT`` for one that is all fill
    offset, nbytes  int64[n], of its encoded bytes
    crc             int64[n], their checksum in a journal, ``NO_CRC`` for a chunk of a sealed shard
    recorded        bool[n], frames of a chunk may have been stored, although it is absent: all are fill value
    staged          by the number of a chunk in this order: (index in the slab, what returns the pixels
                    [rows, columns] of the shard's part) of frames that are not in its encoded bytes yet
    never           the proof that the absent ones were never stored; may be None if none is
    """

    files: tuple[ReadFile, ...]
    file: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    crc: np.ndarray
    recorded: np.ndarray
    staged: dict[int, Staged]
    never: NeverStored | None

    @staticmethod
    def joined(parts: Sequence[Located]) -> Located:
        """Returns where the chunks of several shards are, one after the other."""
        if len(parts) == 1:
            return parts[0]
        files = list(itertools.accumulate((len(part.files) for part in parts), initial=0))
        chunks = list(itertools.accumulate((part.file.size for part in parts), initial=0))
        file = [
            np.where(part.file == ABSENT, ABSENT, part.file.astype(np.int64) + before)
            for part, before in zip(parts, files, strict=False)
        ]
        staged = {
            first + i: frames
            for part, first in zip(parts, chunks, strict=False)
            for i, frames in part.staged.items()
        }
        offset, nbytes, crc, recorded = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("offset", "nbytes", "crc", "recorded")
        )
        proved = all(part.never is not None for part in parts if part.is_fill_somewhere)
        never = next((part.never for part in parts if part.never is not None), None) if proved else None
        opened = tuple(each for part in parts for each in part.files)
        return Located(opened, np.concatenate(file), offset, nbytes, crc, recorded, staged, never)

    @property
    def is_fill_somewhere(self) -> bool:
        """True if a chunk is absent."""
        return bool((self.file == ABSENT).any())

    @property
    def is_there(self) -> np.ndarray:
        """bool[n]: the chunks that an index lists."""
        there: np.ndarray = self.file != ABSENT
        there[list(self.staged)] = True
        return there

    @property
    def may_be_named(self) -> np.ndarray:
        """bool[n]: the chunks that an index of this store lists, or has listed while frames were staged."""
        named: np.ndarray = self.is_there | self.recorded
        return named

    def check_unchanged(self) -> None:
        """Raises ``ChangedError`` if a shard was written since its index was read. A chunk of a journal has a
        checksum instead, since its file is written all the time."""
        for number in np.unique(self.file[(self.file != ABSENT) & (self.crc == NO_CRC)]).tolist():
            self.files[number].check_unchanged()

    def check(self, i: int, data: memoryview) -> None:
        """Raises ``ShardFormatError`` for bytes that are not those of the journal."""
        if self.crc[i] != NO_CRC and not fits_checksum(data, int(self.crc[i])):
            path = self.files[self.file[i]].path
            raise ShardFormatError(
                f"a chunk at {self.offset[i]} of {path} does not fit its checksum in the journal",
                hint="`shardwright recover` says what of this store can be read, once its writer is gone",
            )


def chunks_of_box(array: StoredArray, low: Coordinates, high: Coordinates) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers (int64[n]) and the coordinates (int64[n, axes]), both within their shard, of the
    chunks that a box [low, high) of one shard touches."""
    if not low:
        return np.zeros(1, np.int64), np.zeros((1, 0), np.int64)
    first = [a // c for a, c in zip(low, array.chunk_shape, strict=True)]
    counts = [-(-b // c) - a for a, b, c in zip(first, high, array.chunk_shape, strict=True)]
    coordinates = np.indices(counts).reshape(len(counts), -1).T + first
    after = itertools.accumulate(array.shard_chunks[:0:-1], operator.mul, initial=1)
    return coordinates @ list(after)[::-1], coordinates


@dataclass(frozen=True)
class BoxPart:
    """A box [low, high) of a shard, counted from its first element, and the element of an array from which on
    it goes there."""

    shard: Coordinates
    low: Coordinates
    high: Coordinates
    at: Coordinates

    @property
    def region(self) -> tuple[Any, ...]:
        """The key of the part: of a view, also of an array without axes."""
        ends = zip(self.at, self.low, self.high, strict=True)
        return (*(slice(at, at + high - low) for at, low, high in ends), ...)


def cuts_of_box(array: StoredArray, chunks: np.ndarray, part: BoxPart) -> np.ndarray:
    """Returns the cuts (``kernels.cuts``) that a box takes of its chunks, and where they go."""
    begin = chunks * array.chunk_shape
    first, stop = np.maximum(begin, part.low), np.minimum(begin + array.chunk_shape, part.high)
    moved = [at - low for at, low in zip(part.at, part.low, strict=True)]
    return np.stack([first - begin, stop - first, first + moved], axis=1).astype(np.int64, copy=False)


def read_boxes(
    array: StoredArray,
    parts: Sequence[BoxPart],
    chunks: Sequence[np.ndarray],
    located: Located,
    out: np.ndarray[Any, Any],
) -> None:
    """Reads boxes into parts of ``out`` (C order). ``chunks``: of each box int64[n, axes], the coordinates in
    its shard of the chunks that it touches, which ``located`` has in this order. Raises
    ``ShardFormatError``, ``StorageError``."""
    reading = _BoxReading(array, parts, chunks, located, out)
    if located.is_fill_somewhere:
        assert located.never is not None, "only what was never stored is fill"
        first = 0
        for part, mine in zip(parts, chunks, strict=True):
            if (located.file[first : first + len(mine)] == ABSENT).any():
                out[part.region] = array.fill_element
            first += len(mine)
    batches = _batches(located, BATCH_BYTES)
    for batch in batches[:BATCHES_AHEAD]:
        reading.announce(batch)
    if len(batches) == 1:
        reading.read(batches[0], alone=True)
    else:
        ahead = [*batches[BATCHES_AHEAD:], *[None] * BATCHES_AHEAD]
        _all_of(reading.read_one, zip(batches, ahead, strict=False))
    for i, frames in located.staged.items():
        reading.lay_over(i, frames)


def read_sealed(
    array: StoredArray,
    shard: Coordinates,
    sealed: SealedShard[ReadFile] | None,
    box: tuple[Coordinates, Coordinates],
    out: np.ndarray[Any, Any],
    at: Coordinates,
    *,
    take: Callable[[int], None],
    never: NeverStored | None,
) -> int:
    """Fills the part of ``out`` (C order) that begins at ``at`` with a box [low, high) of a sealed shard, in
    this thread alone; returns the bytes of its chunks. ``take`` is called before so many bytes are fetched,
    of ``JOB_BATCH_BYTES`` and one chunk at most. ``never``: as for ``ChunkSearch.conclude``; ``sealed`` None:
    it proves that there is no shard.

    Raises ``ShardFormatError`` naming chunk and shard, ``StorageError``, and ``ChangedError`` if the shard
    was written since it was opened: an edit gives bytes of chunks that its index has named to others."""
    numbers, chunks = chunks_of_box(array, *box)
    found = ChunkSearch(numbers.size)
    if sealed is not None:
        index = sealed.index
        for number in numbers[index.present[numbers] & ~index.sound[numbers]].tolist():
            index.check(number, array.chunk_name(shard, number))
        found.put(sealed.file, found.missing, index.entries[numbers])
    located = found.conclude(never)
    part = BoxPart(shard, *box, at)
    if found.missing.size:
        out[part.region] = array.fill_element
    reading = _BoxReading(array, [part], [chunks], located, out)
    with nullcontext() if sealed is None else sealed.file.unchanged():
        for batch in _batches(located, JOB_BATCH_BYTES):
            take(int(located.nbytes[batch.chunks].sum()))
            reading.read(batch)
    return int(located.nbytes.sum())


@dataclass(frozen=True)
class _Fetch:
    """Chunks that one thread fetches and decodes. ``chunks``: int64[n]; ``memory_offsets``: int64[n], of
    their bytes in memory; ``reads``: int64[m, 4], of each read the file, the offset, the bytes, and the
    offset in memory."""

    chunks: np.ndarray
    memory_offsets: np.ndarray
    reads: np.ndarray

    @property
    def nbytes(self) -> int:
        return int(self.reads[-1, 2] + self.reads[-1, 3])


def _batches(located: Located, batch_bytes: int) -> list[_Fetch]:
    """Returns the chunks that are there, in the order of their bytes, those that lie together in one read."""
    there = np.flatnonzero(located.file != ABSENT)
    if there.size == 0:
        return []
    if there.size == 1:  # of a small box; the rest would cost as much as decoding it
        read = located.file[there], located.offset[there], located.nbytes[there], [0]
        return [_Fetch(there, np.zeros(1, np.int64), np.array(read, np.int64).T)]
    order = there[np.lexsort((located.offset[there], located.file[there]))]
    file, start = located.file[order].astype(np.int64), located.offset[order]
    stop = start + located.nbytes[order]
    gaps = start[1:] - stop[:-1]
    apart = np.flatnonzero((file[1:] != file[:-1]) | (gaps < 0) | (gaps > COALESCE_BYTES)) + 1
    # the offset of each chunk if all were read into one memory, and from it the batch
    jumps = np.zeros(order.size, np.int64)
    jumps[apart] = start[apart] - stop[apart - 1]
    memory_offsets = start - start[0] - np.cumsum(jumps)
    number = memory_offsets // batch_bytes
    cuts = np.flatnonzero(number[1:] != number[:-1]) + 1
    firsts = np.unique(np.concatenate([[0], apart, cuts]))
    lasts = np.append(firsts[1:], order.size) - 1
    reads = np.stack(
        [file[firsts], start[firsts], stop[lasts] - start[firsts], memory_offsets[firsts]], axis=1
    )
    batches = []
    for first, last in itertools.pairwise([0, *cuts.tolist(), order.size]):
        mine = reads[np.searchsorted(firsts, first) : np.searchsorted(firsts, last)].copy()
        mine[:, 3] -= memory_offsets[first]
        batches.append(_Fetch(order[first:last], memory_offsets[first:last] - memory_offsets[first], mine))
    return batches


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, "shardwright-read")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its threads


def _all_of(work: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Works on all items, in this thread and in others."""
    waiting = deque(items)

    def work_on() -> None:
        while True:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            work(item)

    helpers = min(len(waiting), os.cpu_count() or 1) - 1
    helping = [_pool().submit(work_on) for _ in range(helpers)]
    try:
        work_on()
    finally:
        waiting.clear()  # after an error nobody goes on
        for each in helping:
            each.exception()
    for each in helping:
        each.result()


_local = threading.local()


def _scratch(name: str, nbytes: int) -> np.ndarray:
    """Returns memory of this thread that is used again: fresh memory costs more than decoding into it."""
    block = getattr(_local, name, None)
    if block is None or block.size < nbytes:
        block = np.empty(nbytes, np.uint8)
        setattr(_local, name, block)
    found: np.ndarray = block[:nbytes]
    return found


_kept: deque[bytearray] = deque(maxlen=_MOST_KEPT)


def empty_box(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns a new array. Its memory is kept for another one when nobody has the array, or a part of it, any
    more."""
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.kind in "OT":  # text, which has memory of its own
        return np.empty(shape, dtype)
    if not _LEAST_KEPT_BYTES <= nbytes <= _MOST_KEPT_BYTES:
        return np.empty(shape, dtype)
    try:
        memory = _kept.pop()
    except IndexError:
        memory = bytearray()
    if not nbytes <= len(memory) <= 2 * nbytes:
        memory = bytearray(nbytes)
    whole = np.frombuffer(memory, np.uint8)  # the base of all its parts
    weakref.finalize(whole, _kept.append, memory).atexit = False
    return whole[:nbytes].view(dtype).reshape(shape)


class _BoxReading:
    """One call of ``read_boxes``. Threads write to different parts of ``out``."""

    def __init__(
        self,
        array: StoredArray,
        parts: Sequence[BoxPart],
        chunks: Sequence[np.ndarray],
        located: Located,
        out: np.ndarray[Any, Any],
    ) -> None:
        assert out.flags.c_contiguous, "kernels count elements from its first"
        assert out.dtype == array.dtype, "kernels copy elements of that size"
        cuts = [cuts_of_box(array, mine, part) for part, mine in zip(parts, chunks, strict=True)]
        within = [
            mine + np.array(part.shard, np.int64) * np.array(array.shard_chunks, np.int64)
            for part, mine in zip(parts, chunks, strict=True)
        ]
        self._array = array
        self._located = located
        self._chunks = np.concatenate(within)  # int64[n, axes], coordinates in the array
        # one memory order, whatever the number of chunks: kernels are compiled for each
        self._cuts = np.ascontiguousarray(np.concatenate(cuts))
        self._out = out
        self._shapes = np.array([array.chunk_shape, out.shape], np.int64)
        form = OTHER
        if isinstance(array.codecs, ChunkCodecs) and not array.codecs.order:
            form = _KERNEL_FORMS.get(array.codecs.compressor, OTHER)
        self._form = form, array.codecs.checksum, array.dtype.itemsize
        self._descriptors = np.array([file.descriptor for file in located.files], np.int64)

    def announce(self, batch: _Fetch) -> None:
        """Lets the system begin to fetch a batch from the disk."""
        for file in np.unique(batch.reads[:, 0]).tolist():
            mine = batch.reads[batch.reads[:, 0] == file]
            will_need(int(self._descriptors[file]), mine[:, 1], mine[:, 2])

    def read_one(self, batches: tuple[_Fetch, _Fetch | None]) -> None:
        """Reads a batch, after it has announced another one."""
        batch, ahead = batches
        if ahead is not None:
            self.announce(ahead)
        self.read(batch)

    def read(self, batch: _Fetch, *, alone: bool = False) -> None:
        """Fetches and decodes some chunks. ``alone``: no other batch is read; threads may help."""
        located, chunks = self._located, batch.chunks
        data = _scratch("encoded", batch.nbytes)
        look("look.chunks")
        number, error = read_pieces(self._descriptors, batch.reads, data.ctypes.data)
        if error:
            raise self._error_of(batch.reads[number], error)
        for i in np.flatnonzero(located.crc[chunks] != NO_CRC).tolist():
            located.check(int(chunks[i]), self._encoded(batch, i, data))
        sources, nbytes, cuts = (
            batch.memory_offsets + data.ctypes.data,
            located.nbytes[chunks],
            self._cuts[chunks],
        )
        if alone and chunks.size == 1 and self._form[0] == BLOSC and not self._form[1]:
            done = self._decode_parts(sources, nbytes, _parts_of(cuts[0], self._array.chunk_bytes))
        else:
            done = self._decode_all(sources, nbytes, cuts)
        for i in np.flatnonzero(~done).tolist():
            self._decode(int(chunks[i]), self._encoded(batch, i, data))

    def _error_of(self, read: np.ndarray, error: int) -> ShardwrightError:
        file = self._located.files[int(read[0])]
        if error == FILE_ENDED:
            return file.ends_early(int(read[1]), int(read[2]))
        return StorageError(f"cannot read {file.path}: {os.strerror(error)}")

    def _decode_all(self, sources: np.ndarray, nbytes: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        done = np.zeros(len(cuts), np.bool_)
        decoded = _scratch("decoded", self._array.chunk_bytes)
        out = self._out.ctypes.data
        decode_cuts(sources, nbytes, self._form, cuts, self._shapes, out, decoded, done)
        return done

    def _decode_parts(self, source: np.ndarray, nbytes: np.ndarray, cuts: list[np.ndarray]) -> np.ndarray:
        """Decodes one chunk, cut by cut; returns bool[1]."""
        done: list[bool] = []
        _all_of(lambda cut: done.append(bool(self._decode_all(source, nbytes, cut[None])[0])), cuts)
        return np.array([all(done)])

    def _encoded(self, batch: _Fetch, i: int, data: np.ndarray) -> memoryview:
        memory_offset = batch.memory_offsets[i]
        return data.data[memory_offset : memory_offset + self._located.nbytes[batch.chunks[i]]]

    def _slices(self, i: int) -> tuple[Slices, Slices]:
        """Returns the cut of chunk i as slices of the chunk and of the box."""
        first, count, in_box = self._cuts[i]
        inner = tuple(slice(a, a + n) for a, n in zip(first, count, strict=True))
        return inner, tuple(slice(a, a + n) for a, n in zip(in_box, count, strict=True))

    def _decode(self, i: int, data: memoryview) -> None:
        """Decodes a chunk that no kernel has."""
        decoded = _scratch("decoded", self._array.chunk_bytes)
        inner, outer = self._slices(i)
        try:
            self._out[outer] = self._array.decode(data, decoded)[inner]
        except ShardFormatError as error:
            raise self._naming_chunk(i, error) from None

    def _naming_chunk(self, i: int, error: ShardFormatError) -> ShardFormatError:
        where = f"chunk {'/'.join(map(str, self._chunks[i].tolist()))}"
        path = self._located.files[self._located.file[i]].path
        return ShardFormatError(f"{where} in {path}: {error.message}", expected=error.expected, got=error.got)

    def lay_over(self, i: int, frames: Staged) -> None:
        """Lays staged frames over what chunk i has of the box."""
        (*inner, _, _), outer = self._slices(i)
        chunk, (first, _, _) = self._array.chunk_shape, self._cuts[i]
        in_shard = self._chunks[i][-2:] % self._array.shard_chunks[-2:]
        top, left = (int(a) for a in in_shard * chunk[-2:] + first[-2:])
        for index_in_slab, pixels in frames:
            at = np.unravel_index(index_in_slab, chunk[:-2])
            if all(axis.start <= j < axis.stop for j, axis in zip(at, inner, strict=True)):
                behind = tuple(int(j) - axis.start for j, axis in zip(at, inner, strict=True))
                box = self._out[outer][behind]
                whole = pixels().T if self._array.is_transposed else pixels()
                part = whole[top : top + box.shape[0], left : left + box.shape[1]]
                box[: part.shape[0], : part.shape[1]] = part


def _parts_of(cut: np.ndarray, chunk_bytes: int) -> list[np.ndarray]:
    """Divides a cut along its slowest axis of several elements."""
    if not cut.shape[1]:
        return [cut]
    axis = int(np.argmax(cut[1] > 1))
    count = int(cut[1, axis])
    edges = np.linspace(0, count, 1 + max(1, min(count, os.cpu_count() or 1, chunk_bytes // PART_BYTES)))
    parts = []
    for start, stop in itertools.pairwise(edges.astype(np.int64).tolist()):
        part = cut.copy()
        part[[0, 2], axis] += start
        part[1, axis] = stop - start
        parts.append(part)
    return parts
