"""Compares a journal with the bytes that are stored, to find which slabs of a shard row are whole. For
recovery, and for rewriting a shard.

A slab is whole when every chunk of it is journaled, the bytes of every chunk fit their crc32c, and all its
frame records are there. Everything else counts as not stored. Reads each chunk once, in several threads; the
checksum releases the GIL.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import crc32c
import numpy as np

from shardwright.disk.typed_errors import says_nothing
from shardwright.model.errors import StorageError

from .index import CHECKSUM_BYTES
from .index import EMPTY as ABSENT
from .journal import EMPTY, VALID, has_all_records
from .layout import SlabChunks, chunks_of_slab, slabs_of_shard_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from .journal import ShardRowJournal
    from .layout import ArrayLayout

READ_BYTES = 4 << 20  # of one piece: neighbouring slots are read at once


class Readable(Protocol):
    """A shard in progress."""

    def read(self, offset: int, nbytes: int) -> bytes: ...


@dataclass
class ReadBack:
    """The result of comparing the journal of a shard row with its files. ``entries[f]``: CHUNK_ENTRY[slots]
    of file f; ``good[f]``: bool[slots], the chunk is valid; ``written[f]``: bool[slots], there is an entry.
    ``whole``: slabs, with the slots of their chunks."""

    entries: list[np.ndarray]
    good: list[np.ndarray]
    records: np.ndarray
    record_valid: np.ndarray
    written: list[np.ndarray]
    whole: list[SlabChunks] = field(default_factory=list)
    # the journal has something of it, but it is not whole
    torn: list[SlabChunks] = field(default_factory=list)
    checked_bytes: int = 0

    def frames_of(self, slab_chunks: SlabChunks) -> np.ndarray:
        """Returns the frame records of a slab."""
        records: np.ndarray = self.records[slab_chunks.slot_layer][self.record_valid[slab_chunks.slot_layer]]
        return records

    def was_stored(self, slab_chunks: SlabChunks) -> bool:
        """Returns whether every chunk of a slab was journaled, so that its frames may have been
        acknowledged."""
        return all(
            bool(self.written[f][slab_chunks.slot[slab_chunks.file == f]].all())
            for f in np.unique(slab_chunks.file)
        )

    def has_all_records(self, slab_chunks: SlabChunks) -> bool:
        """Returns whether there is a record of every frame of a stored slab."""
        return has_all_records(self.frames_of(slab_chunks))

    @property
    def chunks_kept(self) -> int:
        return sum(slab_chunks.slot.size for slab_chunks in self.whole)

    @property
    def chunks_dropped(self) -> int:
        """The number of chunks whose slab is not whole. Its frames were never acknowledged, or are in the
        staging area, or lost."""
        return sum(slab_chunks.slot.size for slab_chunks in self.torn)


def read_back(
    layout: ArrayLayout,
    shard_row: int,
    journal: ShardRowJournal,
    shards: Sequence[Readable | None],
    *,
    lost: Collection[int] = (),
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> ReadBack:
    """Checks the chunks of a shard row. ``shards[f]`` None: file f has its final name, so that all its chunks
    are valid, or it is one of the ``lost``.

    Raises ``StorageError`` when the journal cannot be read; chunks that cannot be read are not valid.
    ``progress`` is called with numbers of bytes as they are checked.
    """
    records, record_valid = journal.read_frames()
    entries, good, written = [], [], []
    checked_bytes = 0
    with ExitStack() as stack:
        # One thread is this one: a writer that is sealed as the interpreter ends can start no other.
        each: Callable[..., Iterator[int]] = map
        if threads > 1:
            each = stack.enter_context(ThreadPoolExecutor(threads, "shardwright-read-back")).map
        for file, shard in enumerate(shards):
            table, states = journal.read_chunks(file)
            believed = states == VALID
            if file in lost:
                believed[:] = False
            elif shard is not None:
                checked_bytes += _check_chunks(each, shard, table, believed, progress)
            entries.append(table)
            good.append(believed)
            written.append(states != EMPTY)
    found = ReadBack(entries, good, records, record_valid, written, checked_bytes=checked_bytes)
    for slab in slabs_of_shard_row(layout, shard_row):
        slab_chunks = chunks_of_slab(layout, slab)
        state, journaled = (
            np.concatenate(
                [table[f][slab_chunks.slot[slab_chunks.file == f]] for f in np.unique(slab_chunks.file)]
            )
            for table in (good, written)
        )
        if state.all() and has_all_records(found.frames_of(slab_chunks)):
            found.whole.append(slab_chunks)
        # also of an entry alone, which a power cut may have left: it would say that the shard holds a chunk
        elif journaled.any() or record_valid[slab_chunks.slot_layer].any():
            found.torn.append(slab_chunks)
    return found


def fits_checksum(chunk: memoryview, data_crc: int) -> bool:
    """Returns whether the encoded bytes fit the journal's checksum; a chunk may end in an inner crc32c, which
    then equals ``data_crc``."""
    return _fits(crc32c.crc32c(chunk[:-CHECKSUM_BYTES]), bytes(chunk[-CHECKSUM_BYTES:]), data_crc)


def _fits(body: int, inner: bytes, data_crc: int) -> bool:
    """``body``: the crc32c of all bytes but the last, ``inner``."""
    return bool(
        crc32c.crc32c(inner, body) == data_crc
        or (body == data_crc and int.from_bytes(inner, "little") == body)
    )


def fits(read: Callable[[int, int], bytes], chunk: np.void) -> bool:
    """Returns whether the bytes of one chunk, a CHUNK_ENTRY, fit its checksum. ``read``: as of ``Readable``.
    Raises ``StorageError``."""
    offset, nbytes, data_crc = (int(chunk[name]) for name in ("offset", "nbytes", "data_crc"))
    if nbytes > READ_BYTES:
        return _fits_in_pieces(read, offset, nbytes, data_crc)
    data = read(offset, nbytes)
    return len(data) == nbytes and fits_checksum(memoryview(data), data_crc)


def _fits_in_pieces(read: Callable[[int, int], bytes], offset: int, nbytes: int, data_crc: int) -> bool:
    """As ``fits_checksum``, of a chunk that may be larger than memory. Raises ``StorageError``."""
    body, end = 0, offset + nbytes - CHECKSUM_BYTES
    while offset < end:
        piece = read(offset, min(READ_BYTES, end - offset))
        if not piece:
            return False
        body = crc32c.crc32c(piece, body)
        offset += len(piece)
    inner = read(end, CHECKSUM_BYTES)
    return len(inner) == CHECKSUM_BYTES and _fits(body, inner, data_crc)


def _check_chunks(
    each: Callable[[Callable[[np.ndarray], int], list[np.ndarray]], Iterator[int]],
    shard: Readable,
    table: np.ndarray,
    believed: np.ndarray,
    progress: Callable[[int], None] | None,
) -> int:
    """Clears ``believed`` for chunks whose bytes do not fit or cannot be read; returns the bytes read.
    ``each``: as ``map``."""
    present = np.flatnonzero(believed & (table["offset"] != ABSENT))
    pieces = _pieces(table, present)

    def check_each(piece: np.ndarray, start: int, data: memoryview) -> None:
        for slot in piece.tolist():
            first, nbytes = int(table["offset"][slot]) - start, int(table["nbytes"][slot])
            chunk = data[first : first + nbytes]
            believed[slot] = len(chunk) == nbytes and fits_checksum(chunk, int(table["data_crc"][slot]))

    def check(piece: np.ndarray) -> int:
        start = int(table["offset"][piece[0]])
        stop = int(table["offset"][piece[-1]] + table["nbytes"][piece[-1]])
        try:
            if piece.size == 1 and stop - start > READ_BYTES:
                believed[piece] = _fits_in_pieces(
                    shard.read, start, stop - start, int(table["data_crc"][piece[0]])
                )
            else:
                check_each(piece, start, memoryview(shard.read(start, stop - start)))
        except StorageError as error:
            if says_nothing(error):
                raise
            believed[piece] = False
        if progress is not None:
            progress(stop - start)
        return stop - start

    return sum(each(check, pieces))


def _pieces(table: np.ndarray, slots: np.ndarray) -> list[np.ndarray]:
    """Returns slots in the order of their chunks in the file (packed ones may lie in any order), in pieces of
    about ``READ_BYTES``. A piece ends at a gap wider than a chunk, so that no gap is read for nothing."""
    slots = slots[np.argsort(table["offset"][slots], kind="stable")]
    pieces: list[np.ndarray] = []
    first = 0
    for i in range(1, slots.size + 1):
        if i == slots.size:
            pieces.append(slots[first:i])
            break
        here, before = slots[i], slots[i - 1]
        end = int(table["offset"][here] + table["nbytes"][here])
        gap = int(table["offset"][here]) - int(table["offset"][before] + table["nbytes"][before])
        if end - int(table["offset"][slots[first]]) > READ_BYTES or gap > int(table["nbytes"][here]):
            pieces.append(slots[first:i])
            first = i
    return pieces
