"""Reads boxes of a sharded array: chunks that lie together are fetched at once, and decoded in as many
threads as there are processors, without the GIL. See ``kernels.cuts`` for what is decoded of a chunk.

    boxes ──▶ BoxCuts: chunks, and cuts of them ──▶ ChunkSearch ──▶ Located ──▶ batches ──▶ bytes ──▶ box

A small box takes as long as what is done once for each call. So what is done for each chunk is done by a
kernel, of all chunks in one call, and for the usual one, all chunks in one sealed shard, little besides.
"""

from __future__ import annotations

import bisect
import itertools
import math
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
from shardwright.kernels.cuts import BLOSC, OTHER, PLAIN, ZSTD, cut_boxes, decode_cuts
from shardwright.kernels.file_io import FILE_ENDED, announce_pieces, plan_pieces, read_pieces
from shardwright.model.errors import ShardFormatError, ShardwrightError, StorageError
from shardwright.model.forked_child import renew_in_child
from shardwright.shard.index import EMPTY
from shardwright.shard.read_back import fits_checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from shardwright.disk.read_file import ReadFile
    from shardwright.shard.sealed_shard import SealedShard

    from .store import StoredArray
    from .store_state import NeverStored

COALESCE_BYTES = 64 << 10  # chunks with at most such a gap between them are fetched together
REMOTE_BATCH_BYTES = 8 << 20  # likewise, of requests that take their time
BATCH_BYTES = 1 << 20  # fetched and then decoded by one thread; less is not worth another one
# a chunk of its own is decoded in parts of at least so much, each in a thread: handing one over costs as much
# as decoding half of it
PART_BYTES = 2 << 20
JOB_BATCH_BYTES = 256 << 10  # likewise of a job, which has a bound on its memory
BATCHES_AHEAD = 8  # that the system fetches from the disk meanwhile, or a server sends: at most 64 MiB
ABSENT, NO_CRC, _NO_BYTES = -1, -1, np.uint64(EMPTY)
_LEAST_KEPT_BYTES, _MOST_KEPT_BYTES, _MOST_KEPT = 128 << 10, 128 << 20, 3  # memory of boxes, to be used again
_MOST_SCRATCH_BYTES = 32 << 20  # that a thread keeps of each kind

Coordinates = tuple[int, ...]
Slices = tuple[slice, ...]
Opener: TypeAlias = "Callable[[str], int]"  # opens the file of a key; may raise OSError
FileFinder: TypeAlias = "Callable[[Path | str, str], ReadFile | None]"  # by the path for messages and the key
# reads of one file, as in ``_Fetch``, and what waits for their bytes
_Answers: TypeAlias = "tuple[list[list[int]], Callable[[], Sequence[bytes | memoryview]]]"
Staged = list[tuple[int, "Callable[[], np.ndarray]"]]
Item = TypeVar("Item")
_KERNEL_FORMS = {None: PLAIN, "blosc": BLOSC, "zstd": ZSTD}


class ChunkSearch:
    """The search for some chunks of one shard, or of several sealed ones: their locations, as far as looks
    have found them. It reads nothing: a chunk that it has not found may have moved (``store_state``), until
    ``conclude`` says that it was never stored."""

    def __init__(self, count: int) -> None:
        self._file, self._crc = np.full(count, ABSENT, np.int64), np.full(count, NO_CRC, np.int64)
        self._offset, self._nbytes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._files: list[ReadFile] = []
        self._named, self._has_checksums = np.zeros(count, np.bool_), False
        self.recorded = np.zeros(count, np.bool_)
        self.staged: dict[int, Staged] = {}

    def put(
        self, file: ReadFile | None, where: np.ndarray, entries: np.ndarray, crcs: np.ndarray | None = None
    ) -> None:
        """Sets the chunks ``where`` (int64[m]) to index entries of a file, unless these are absent. None: the
        file that they name is not under its name."""
        here = entries["nbytes"] != _NO_BYTES
        if not here.all():
            where, entries, crcs = where[here], entries[here], None if crcs is None else crcs[here]
        self._named[where] = True
        if file is None or not where.size:
            return
        self._file[where] = len(self._files)
        self._offset[where], self._nbytes[where] = entries["offset"], entries["nbytes"]
        if crcs is not None:
            self._crc[where], self._has_checksums = crcs, True
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
        missing = self.missing
        if missing.size and self._named[missing].any():
            raise ChangedError
        assert never is not None or not missing.size, "what was not found needs a proof"
        located = self._file, self._offset, self._nbytes, self._crc, self._has_checksums
        return Located(tuple(self._files), *located, self.recorded, self.staged, never)


@dataclass(frozen=True)
class Located:
    """Where some chunks are, of one shard, or of several one after the other (``joined``), in the order in
    which they were asked for. Made by ``ChunkSearch``.

    files           those that hold them
    file            int64[n], the number of each chunk's file, ``ABSENT`` for one that is all fill
    offset, nbytes  int64[n], of its encoded bytes
    crc             int64[n], their checksum in a journal, ``NO_CRC`` for a chunk of a sealed shard
    has_checksums   of any
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
    has_checksums: bool
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
            np.where(part.file == ABSENT, ABSENT, part.file + before)
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
        has_checksums = any(part.has_checksums for part in parts)
        located = np.concatenate(file), offset, nbytes, crc, has_checksums
        return Located(opened, *located, recorded, staged, never)

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
        files: Iterable[ReadFile] = self.files
        if self.has_checksums:
            numbers = np.unique(self.file[(self.file != ABSENT) & (self.crc == NO_CRC)])
            files = [self.files[number] for number in numbers.tolist()]
        for file in files:
            file.check_unchanged()

    def check(self, i: int, data: memoryview) -> None:
        """Raises ``ShardFormatError`` for bytes that are not those of the journal."""
        if self.crc[i] != NO_CRC and not fits_checksum(data, int(self.crc[i])):
            path = self.files[self.file[i]].path
            raise ShardFormatError(
                f"a chunk at {self.offset[i]} of {path} does not fit its checksum in the journal",
                hint="`shardwright recover` says what of this store can be read, once its writer is gone",
            )


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


@dataclass(frozen=True)
class BoxCuts:
    """The chunks that boxes of shards touch, box by box, made by ``of``.

    parts    the boxes
    firsts   the place of each box's first chunk here, and behind them that of the end
    numbers  int64[n], of each chunk in its shard, as the index counts
    cuts     int64[n, 3, axes], as ``kernels.cuts`` takes them
    """

    parts: Sequence[BoxPart]
    firsts: list[int]
    numbers: np.ndarray
    cuts: np.ndarray

    @classmethod
    def of(cls, array: StoredArray, parts: Sequence[BoxPart]) -> BoxCuts:
        shape = array.chunk_shape
        counts = [
            math.prod([-(-b // c) - a // c for a, b, c in zip(part.low, part.high, shape, strict=True)])
            for part in parts
        ]
        firsts = list(itertools.accumulate(counts, initial=0))
        numbers, cuts = np.empty(firsts[-1], np.int64), np.empty((firsts[-1], 3, len(shape)), np.int64)
        boxes = np.array([(part.low, part.high, part.at) for part in parts], np.int64)
        cut_boxes(boxes, np.array([shape, array.shard_chunks], np.int64), numbers, cuts)
        return cls(parts, firsts, numbers, cuts)

    @property
    def of_shards(self) -> list[tuple[Coordinates, np.ndarray]]:
        """Of each box its shard, and the numbers of its chunks."""
        ends = itertools.pairwise(self.firsts)
        return [(part.shard, self.numbers[a:b]) for part, (a, b) in zip(self.parts, ends, strict=True)]

    def chunk_in_array(self, array: StoredArray, i: int) -> np.ndarray:
        """Returns the coordinates in the array (int64[axes]) of a chunk."""
        shard = self.parts[bisect.bisect_right(self.firsts, i) - 1].shard
        in_shard = np.unravel_index(int(self.numbers[i]), array.shard_chunks)
        # arrays of integers, also of an array without axes, of whose shape NumPy would make floats
        per_shard = np.array(array.shard_chunks, np.int64)
        return np.array(in_shard, np.int64) + np.array(shard, np.int64) * per_shard


def read_boxes(array: StoredArray, boxes: BoxCuts, located: Located, out: np.ndarray[Any, Any]) -> None:
    """Reads boxes into parts of ``out`` (C order). ``located``: of their chunks, in this order. Raises
    ``ShardFormatError``, ``StorageError``."""
    reading = _BoxReading(array, boxes, located, out)
    if located.is_fill_somewhere:
        assert located.never is not None, "only what was never stored is fill"
        absent = located.file == ABSENT
        for part, (first, end) in zip(boxes.parts, itertools.pairwise(boxes.firsts), strict=True):
            if absent[first:end].any():
                out[part.region] = array.fill_element
    batches = _batches(located, REMOTE_BATCH_BYTES if reading.is_remote else BATCH_BYTES)
    count = BATCHES_AHEAD
    if reading.is_remote:  # what a server sends takes memory, and one chunk may have more than a batch
        largest = max((batch.nbytes for batch in batches), default=0)
        count = count * REMOTE_BATCH_BYTES // max(REMOTE_BATCH_BYTES, largest)
    for batch in batches[:count]:
        reading.announce(batch)
    if len(batches) == 1:
        reading.read(batches[0], alone=True)
    else:
        ahead = [*batches[count:], *[None] * count]
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
    part = BoxPart(shard, *box, at)
    boxes = BoxCuts.of(array, [part])
    numbers = boxes.numbers
    found = ChunkSearch(numbers.size)
    if sealed is not None:
        index = sealed.index
        for number in numbers[index.present[numbers] & ~index.sound[numbers]].tolist():
            index.check(number, array.chunk_name(shard, number))
        found.put(sealed.file, found.missing, index.entries[numbers])
    located = found.conclude(never)
    if found.missing.size:
        out[part.region] = array.fill_element
    reading = _BoxReading(array, boxes, located, out)
    with nullcontext() if sealed is None else sealed.file.unchanged():
        for batch in _batches(located, JOB_BATCH_BYTES):
            take(int(located.nbytes[batch.chunks].sum()))
            reading.read(batch)
    return int(located.nbytes.sum())


@dataclass(frozen=True)
class _Fetch:
    """Chunks that one thread fetches and decodes. ``chunks``: int64[n]; ``places``: int64[n], of
    their bytes in memory; ``reads``: int64[m, 4], of each read the file, the offset, the bytes, and the
    offset in memory."""

    chunks: np.ndarray
    places: np.ndarray
    reads: np.ndarray

    @property
    def nbytes(self) -> int:
        return int(self.reads[-1, 2] + self.reads[-1, 3])


def _batches(located: Located, batch_bytes: int) -> list[_Fetch]:
    """Returns the chunks that are there, in the order of their bytes, those that lie together in one read."""
    there = np.flatnonzero(located.file != ABSENT)
    if there.size == 0:
        return []
    order = there[np.lexsort((located.offset[there], located.file[there]))]
    count = order.size
    places, reads = np.empty(count, np.int64), np.empty((count, 4), np.int64)
    firsts, limits = np.empty((count + 1, 2), np.int64), (COALESCE_BYTES, batch_bytes)
    found = plan_pieces(order, located.file, located.offset, located.nbytes, limits, places, reads, firsts)
    return [
        _Fetch(order[first:end], places[first:end], reads[read:reads_end])
        for (first, read), (end, reads_end) in itertools.pairwise(firsts[: found + 1].tolist())
    ]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, "shardwright-read")


renew_in_child(_pool.cache_clear)


def _all_of(work: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Works on all items, in this thread and in others."""
    waiting = deque((work, item) for item in items)
    helpers = min(len(waiting), os.cpu_count() or 1) - 1
    helping = [_pool().submit(_work_on, waiting) for _ in range(helpers)]
    try:
        _work_on(waiting)
    finally:
        waiting.clear()  # after an error nobody goes on
        # Of a small box this thread has often done all before another one wakes up: that is not waited for.
        helping = [each for each in helping if not each.cancel()]
        for each in helping:
            each.exception()
    for each in helping:
        each.result()


def _work_on(waiting: deque[tuple[Callable[[Item], None], Item]]) -> None:
    # It knows this queue alone: one that is cancelled stays with the pool until a thread is free, and would
    # keep the memory and the files of its call.
    while True:
        try:
            work, item = waiting.popleft()
        except IndexError:
            return
        work(item)


_local = threading.local()


def _scratch(name: str, nbytes: int) -> np.ndarray:
    """Returns memory of this thread that is used again: fresh memory costs more than decoding into it. For a
    chunk larger than most it is fresh: threads live as long as the process, and would keep it."""
    if nbytes > _MOST_SCRATCH_BYTES:
        return np.empty(nbytes, np.uint8)
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
        self, array: StoredArray, boxes: BoxCuts, located: Located, out: np.ndarray[Any, Any]
    ) -> None:
        assert out.flags.c_contiguous, "kernels count elements from its first"
        assert out.dtype == array.dtype, "kernels copy elements of that size"
        self._array = array
        self._located = located
        self._boxes = boxes
        self._cuts = boxes.cuts
        self._out = out
        self._shapes = np.array([array.chunk_shape, out.shape], np.int64)
        form = OTHER
        if isinstance(array.codecs, ChunkCodecs) and not array.codecs.order:
            form = _KERNEL_FORMS.get(array.codecs.compressor, OTHER)
        self._form = form, array.codecs.checksum, array.dtype.itemsize
        self._descriptors = np.array([file.descriptor for file in located.files], np.int64)
        self.is_remote = bool(located.files) and located.files[0].descriptor < 0  # no kernel reads these
        self._asked: dict[int, list[_Answers]] = {}  # by the first chunk of a batch

    def announce(self, batch: _Fetch) -> None:
        """Lets the system begin to fetch a batch from the disk, or asks a server for it."""
        if self.is_remote:
            self._asked[int(batch.chunks[0])] = self._ask(batch)
        else:
            announce_pieces(self._descriptors, batch.reads)

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
        if self.is_remote:
            self._take_answers(batch, data)
        else:
            number, error = read_pieces(self._descriptors, batch.reads, data.ctypes.data)
            if error:
                raise self._error_of(batch.reads[number], error)
        if located.has_checksums:
            for i in np.flatnonzero(located.crc[chunks] != NO_CRC).tolist():
                located.check(int(chunks[i]), self._encoded(batch, i, data))
        sources, nbytes, cuts = batch.places + data.ctypes.data, located.nbytes[chunks], self._cuts[chunks]
        parts = [cuts]
        if alone and chunks.size == 1 and self._form[0] == BLOSC and not self._form[1]:
            parts = _parts_of(cuts, self._array.chunk_bytes)
        if len(parts) == 1:
            done = self._decode_all(sources, nbytes, cuts)
        else:
            done = self._decode_parts(sources, nbytes, parts)
        if not done.all():
            for i in np.flatnonzero(~done).tolist():
                self._decode(int(chunks[i]), self._encoded(batch, i, data))

    def _ask(self, batch: _Fetch) -> list[_Answers]:
        asked = []
        for number in np.unique(batch.reads[:, 0]).tolist():
            file: Any = self._located.files[number]
            reads = batch.reads[batch.reads[:, 0] == number, 1:].tolist()
            bounds = [(start, start + nbytes) for start, nbytes, _ in reads]
            asked.append((reads, file.ask(file.version, bounds)))
        return asked

    def _take_answers(self, batch: _Fetch, data: np.ndarray) -> None:
        """Raises ``ChangedError`` for a shard that is another one by now, ``StorageError``."""
        for reads, answers in self._asked.pop(int(batch.chunks[0]), None) or self._ask(batch):
            for (_, nbytes, at), piece in zip(reads, answers(), strict=True):
                data[at : at + nbytes] = np.frombuffer(piece, np.uint8)

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
        _all_of(lambda cut: done.append(bool(self._decode_all(source, nbytes, cut)[0])), cuts)
        return np.array([all(done)])

    def _encoded(self, batch: _Fetch, i: int, data: np.ndarray) -> memoryview:
        place = batch.places[i]
        return data.data[place : place + self._located.nbytes[batch.chunks[i]]]

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
        where = f"chunk {'/'.join(map(str, self._boxes.chunk_in_array(self._array, i).tolist()))}"
        path = self._located.files[self._located.file[i]].path
        return ShardFormatError(f"{where} in {path}: {error.message}", expected=error.expected, got=error.got)

    def lay_over(self, i: int, frames: Staged) -> None:
        """Lays staged frames over what chunk i has of the box."""
        (*inner, _, _), outer = self._slices(i)
        chunk, (first, _, _) = self._array.chunk_shape, self._cuts[i]
        in_shard = self._boxes.chunk_in_array(self._array, i)[-2:] % self._array.shard_chunks[-2:]
        top, left = (int(a) for a in in_shard * chunk[-2:] + first[-2:])
        for index_in_slab, pixels in frames:
            at = np.unravel_index(index_in_slab, chunk[:-2])
            if all(axis.start <= j < axis.stop for j, axis in zip(at, inner, strict=True)):
                behind = tuple(int(j) - axis.start for j, axis in zip(at, inner, strict=True))
                box = self._out[outer][behind]
                whole = pixels().T if self._array.is_transposed else pixels()
                part = whole[top : top + box.shape[0], left : left + box.shape[1]]
                box[: part.shape[0], : part.shape[1]] = part


def _parts_of(cuts: np.ndarray, chunk_bytes: int) -> list[np.ndarray]:
    """Divides the cut (int64[1, 3, axes]) of a chunk along its slowest axis of several elements."""
    most = min(os.cpu_count() or 1, chunk_bytes // PART_BYTES)
    if most < 2 or not cuts.shape[2]:
        return [cuts]
    axis = int(np.argmax(cuts[0, 1] > 1))
    count = int(cuts[0, 1, axis])
    edges = np.linspace(0, count, 1 + min(count, most)).astype(np.int64)
    parts = []
    for start, stop in itertools.pairwise(edges.tolist()):
        part = cuts.copy()
        part[0, [0, 2], axis] += start
        part[0, 1, axis] = stop - start
        parts.append(part)
    return parts
