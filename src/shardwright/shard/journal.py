"""The journal of a shard row: a record of what was stored in its shards, so that a crash loses nothing that
was stored. FORMAT.md, "The journal".

    | header, one page | frame records: slabs x frames_per_slab, to a page edge | chunk entries of file 0, to
    a page edge | of file 1 | ... |

One self-checking record for each frame and one entry for each slot, at offsets known before any pixel
arrives; preallocated, zeros where nothing was written. Workers write them (``kernels.journal_kernels``),
through ``descriptor``; the owner thread does everything else.

The version says where the chunks lie in the shards: 1, each in its own slot; 2, packed, anywhere: in runs
that one task encoded, or in slots of another order. 3 and 4 are the same for a reopened shard row, which was
sealed before it was full: its new shards replace those that have the final names.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from shardwright.disk.files import open_regular, read_all, storage_errors
from shardwright.disk.table_file import TableFile
from shardwright.model.errors import ShardFormatError

from .file_header import decode_header, encode_header, expect_header, file_seed, has_more, version_of
from .index import EMPTY as ABSENT
from .layout import PAGE_BYTES, page_aligned, slabs_of_shard_row
from .row_checksum import checked_rows, written_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .layout import ArrayLayout

CHUNK_ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("nbytes", "<u8"),
        ("data_crc", "<u4"),
        ("writer_epoch", "<u4"),
        ("zeros", "<u4"),
        ("entry_crc", "<u4"),
    ]
)
MOST_FILE_BYTES = np.uint64(1 << 62)  # an offset beyond it is invalid
# states of a chunk entry: nothing written, valid, damaged or not of this file
EMPTY, VALID, TORN = 0, 1, 2

MAGIC, SLOTTED, PACKED = b"SWJOURNL", 1, 2
_MOST_SLOTS_READ_OVER = 128  # of a slab in one file: 4 KiB of entries are read at once rather than skipped
REOPENED = 2  # added to either
SHARED = 5  # of several rows: ``shared_journal``
VERSION = SHARED  # the newest
_HEADER = struct.Struct("<8s2I16sq2I6q")


class JournalFile(Protocol):
    """The file of one row's journal: a ``TableFile`` of its own, or a part of a shared one."""

    @property
    def path(self) -> Path: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def has_failed(self) -> bool: ...
    def read_table(self, offset: int, count: int, dtype: np.dtype[np.void]) -> np.ndarray: ...
    def written_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]: ...
    def write(self, offset: int, data: bytes, what: str) -> None: ...
    def begin(self, first_page: bytes) -> None: ...
    def begin_alone(self, first_page: bytes) -> None: ...
    def rename(self, path: Path) -> None: ...
    def sync(self, *, whole: bool = False) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...
    def delete(self, *, durably: bool = False) -> None: ...


class JournalHeader(NamedTuple):
    """The header's fields in the order of ``_HEADER``."""

    magic: bytes
    version: int
    record_bytes: int
    identity: bytes
    shard_row: int
    writer_epoch: int
    frames_per_slab: int
    slabs: int
    files: int
    slots: int
    data_start: int
    slot_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class JournalLayout:
    """The layout of one shard row's journal. ``record``: ``frame_record.record_dtype`` of its array.
    ``slots`` counts the slots of each of its shard files, ``slabs`` the slot layers. ``is_split``: each slab
    has files of its own, as many as any other; else every file has slots of every slab."""

    array: ArrayLayout
    shard_row: int
    slabs: int
    frames_per_slab: int
    record: np.dtype[np.void]
    slots: tuple[int, ...]
    data_start: int
    slot_bytes: int
    is_split: bool = False
    base: int = 0  # how far behind its place in a journal of its own each table lies (``shared_journal``)

    @classmethod
    def of(cls, layout: ArrayLayout, shard_row: int, record: np.dtype[np.void]) -> JournalLayout:
        shards = [layout.shard(shard_row, file) for file in range(layout.files_per_slab)]
        slabs, grid = math.prod(layout.grid.shard_row_extent_chunks(shard_row)), layout.grid
        slots = tuple(shard.slots for shard in shards) * (slabs if grid.is_split else 1)
        start = shards[0].data_start
        frames, slot_bytes = grid.frames_per_slab, layout.slot_bytes
        return cls(layout, shard_row, slabs, frames, record, slots, start, slot_bytes, grid.is_split)

    @property
    def files(self) -> int:
        return len(self.slots)

    def slots_of_slab(self, slot_layer: int) -> list[tuple[int, int, int]]:
        """Returns (file, first slot, slots) of one slab in each file that has slots of it."""
        if self.is_split:
            files = self.files // self.slabs
            first = slot_layer * files
            return [(file, 0, self.slots[file]) for file in range(first, first + files)]
        counts = [slots // self.slabs for slots in self.slots]
        return [(file, slot_layer * count, count) for file, count in enumerate(counts)]

    @cached_property
    def _slab_numbers(self) -> np.ndarray:
        """int64[slabs]: the slab of each slot layer."""
        numbers = np.zeros(self.slabs, np.int64)
        if self.slabs == 1:
            numbers[:] = slabs_of_shard_row(self.array, self.shard_row)
            return numbers
        for slab in slabs_of_shard_row(self.array, self.shard_row):
            numbers[self.array.layer_of_slab(slab)[1]] = slab
        return numbers

    def belong(self, records: np.ndarray, first: int) -> np.ndarray:
        """Returns bool[n]: which of the frame records at the places from ``first`` on are of frames whose
        places these are. A position decides how far an array reaches."""
        if records.size == 1:  # as of a frame a shard: without the arrays of the general case
            position, (layer, place) = int(records["position"][0]), divmod(first, self.frames_per_slab)
            slab, grid = self._slab_numbers[layer], self.array.grid
            inside = grid.first <= position <= grid.last_position
            found = (grid.slab_of_position(position), grid.index_in_slab(position)) if inside else None
            return np.array([found == (slab, place)])
        layers, in_slab = np.divmod(np.arange(first, first + records.size), self.frames_per_slab)
        slabs, within = self.array.grid.slabs_and_indices(records["position"].astype(np.int64))
        belong: np.ndarray = (slabs == self._slab_numbers[layers]) & (within == in_slab)
        return belong

    @property
    def slab_record_bytes(self) -> int:
        return self.frames_per_slab * self.record.itemsize

    @cached_property
    def _table_edges(self) -> np.ndarray:
        """int64[files + 1]: the starts of each file's chunk entries, and the end of the last ones."""
        start = self.base + PAGE_BYTES + page_aligned(self.slabs * self.slab_record_bytes)
        tables = (page_aligned(slots * CHUNK_ENTRY.itemsize) for slots in self.slots)
        return np.array(list(accumulate(tables, initial=start)), np.int64)

    @property
    def file_bytes(self) -> int:
        """Of a journal of its own."""
        return int(self._table_edges[-1]) - self.base

    def frame_records_offset(self, slot_layer: int) -> int:
        """Returns the start of the frame records of one slab."""
        assert 0 <= slot_layer < self.slabs, f"slot layer {slot_layer} of {self.slabs}"
        return self.base + PAGE_BYTES + slot_layer * self.slab_record_bytes

    def chunk_entry_offset(self, file: int, slot: int) -> int:
        """Returns the offset of one slot's entry."""
        assert 0 <= slot < self.slots[file], f"slot {slot} of {self.slots[file]}"
        return int(self._table_edges[file]) + slot * CHUNK_ENTRY.itemsize

    def chunk_entry_offsets(self, files: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Returns ``chunk_entry_offset`` of each pair: int64[n] each."""
        offsets: np.ndarray = self._table_edges[files] + slots * CHUNK_ENTRY.itemsize
        return offsets


def was_never_begun(path: Path, file_bytes: int | None) -> bool:
    """Returns whether the writer died while it made this journal of ``file_bytes`` (None: not known): before
    the header and the size were durable nothing was stored. So a power cut may leave the header in part, or
    the file short, but nothing behind the header. Raises ``StorageError``."""
    with storage_errors("read", path), open_regular(path, buffering=0) as file:
        descriptor = file.fileno()
        if file_bytes is not None and os.fstat(descriptor).st_size >= file_bytes:
            header = read_all(descriptor, 0, PAGE_BYTES)
            if version_of(header, MAGIC) is not None:
                return False
        return not has_more(descriptor)


def has_all_records(records: np.ndarray) -> bool:
    """Returns whether a stored slab has all its frame records: each holds their number (modulo 2^16)."""
    return records.size > 0 and bool((records["slab_frames"] == records.size % (1 << 16)).all())


class ShardRowJournal:
    """One open journal. ``seed``: the start of its checksums; ``writer_epoch``: of the writer that created
    it. ``packed``: chunks lie anywhere in their shard's data, not in slots. ``reopened``: the shard row was
    sealed once, before it was full."""

    def __init__(
        self,
        file: JournalFile,
        layout: JournalLayout,
        identity: bytes,
        shard_row: int,
        writer_epoch: int,
        *,
        packed: bool,
        reopened: bool = False,
        shared_by: int = 0,
    ) -> None:
        self.layout = layout
        self.shared_by = shared_by  # rows with journals in its file, ended or not; 0: it has its own
        self.packed = packed
        self.reopened = reopened
        self.writer_epoch = writer_epoch
        self.seed = file_seed(identity, shard_row)
        self._identity, self._shard_row = identity, shard_row
        self._file = file

    @classmethod
    def make(
        cls,
        path: Path,
        layout: JournalLayout,
        identity: bytes,
        shard_row: int,
        writer_epoch: int,
        *,
        packed: bool,
        reopened: bool = False,
    ) -> ShardRowJournal:
        """Makes an empty journal. Its header is written (``begin``) once all names are durable, and synced.
        Raises ``StorageError``; a failure leaves no file."""
        file = TableFile.make(path, "journal", layout.file_bytes)
        return cls(file, layout, identity, shard_row, writer_epoch, packed=packed, reopened=reopened)

    @property
    def _header(self) -> bytes:
        version = (PACKED if self.packed else SLOTTED) + (REOPENED if self.reopened else 0)
        header = _header(self.layout, self._identity, self._shard_row, self.writer_epoch, version)
        return encode_header(_HEADER, header)

    def begin_alone(self) -> None:
        """As ``TableFile.begin_alone``, with the header of this journal."""
        self._file.begin_alone(self._header)

    def begin(self) -> None:
        """Writes the header of a journal that was made, which says that the shards of the row have their
        names. Raises ``StorageError``."""
        self._file.begin(self._header)

    def abandon(self) -> None:
        """Closes and deletes a journal that was not begun, or not durably. Raises ``StorageError``."""
        self._file.abandon()

    @classmethod
    def open(
        cls, path: Path, layout: JournalLayout, identity: bytes, shard_row: int, *, read_only: bool = False
    ) -> ShardRowJournal:
        """Opens the journal of this shard row. Raises ``ShardFormatError`` when its size or header does not
        fit or is damaged, ``StorageError``."""
        file = TableFile.open(path, "journal", layout.file_bytes, read_only=read_only)
        try:
            page = np.empty(PAGE_BYTES, np.uint8)
            file.read_into(0, page)
            found = JournalHeader._make(decode_header(page.tobytes(), _HEADER, MAGIC, path))
            version = found.version if SLOTTED <= found.version < SHARED else SLOTTED
            expect_header(
                found,
                _header(layout, identity, shard_row, found.writer_epoch, version),
                JournalHeader._fields,
                path,
            )
        except BaseException:
            file.close()
            raise
        packed, reopened = version in (PACKED, PACKED + REOPENED), version > REOPENED
        return cls(file, layout, identity, shard_row, found.writer_epoch, packed=packed, reopened=reopened)

    @property
    def is_shared(self) -> bool:
        return self.shared_by > 0

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def descriptor(self) -> int:
        return self._file.descriptor

    def read_frames(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (frame records [slabs, frames_per_slab], bool of the same shape: written and undamaged).
        Raises ``StorageError``."""
        shape = self.layout.slabs, self.layout.frames_per_slab
        records, valid = self._read_frames(0, shape[0] * shape[1])
        return records.reshape(shape), valid.reshape(shape)

    def _read_frames(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As ``read_frames``, of the places from ``first`` on. Records of frames of other places are
        damaged, whatever their checksum."""
        record = self.layout.record
        start = self.layout.frame_records_offset(0)
        records = self._file.read_table(start + first * record.itemsize, count, record)
        valid = checked_rows(records, self.seed)
        valid[valid] = self.layout.belong(records, first)[valid]
        return records, valid

    def written_frames(self) -> np.ndarray:
        """Returns the frame records that are written and undamaged, in the order of their places, without
        reading the parts of the table that were never written. Raises ``StorageError``."""
        record, done, start = self.layout.record, 0, self.layout.frame_records_offset(0)
        stop = self.layout.slabs * self.layout.frames_per_slab
        found = []
        for begun, end in self._file.written_ranges(start, start + stop * record.itemsize):
            first = max(done, (begun - start) // record.itemsize)
            done = min(stop, -((start - end) // record.itemsize))
            records, valid = self._read_frames(first, done - first)
            found.append(records if valid.all() else records[valid])
        if len(found) == 1:  # not for NumPy, which takes its time with the fields of a record
            return found[0]
        return np.concatenate([np.zeros(0, record), *found])

    def read_chunks(self, file: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (CHUNK_ENTRY[slots], uint8[slots] of EMPTY, VALID or TORN) of one shard file. Raises
        ``StorageError``.

        VALID: the entry was written for this slot and names a chunk at the slot's offset (packed: within the
        shard's data) that fits into it, or no chunk. The chunk's bytes are not checked (``data_crc``).
        """
        return self._read_chunks(file, 0, self.layout.slots[file])

    def _read_chunks(self, file: int, first: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
        """As ``read_chunks``, for some slots."""
        entries = self._file.read_table(self.layout.chunk_entry_offset(file, first), slots, CHUNK_ENTRY)
        offsets, nbytes = entries["offset"], entries["nbytes"]
        absent = (offsets == ABSENT) & (nbytes == ABSENT)
        start = np.uint64(self.layout.data_start)
        if self.packed:
            fitting = (offsets >= start) & (offsets <= MOST_FILE_BYTES)
        else:
            numbers = np.arange(first, first + slots, dtype=np.uint64)
            fitting = offsets == numbers * np.uint64(self.layout.slot_bytes) + start
        fits = absent | (fitting & (nbytes > 0) & (nbytes <= self.layout.slot_bytes))
        states = np.full(slots, VALID, np.uint8)
        if not (valid := checked_rows(entries, self.seed) & fits).all():
            states[~valid] = TORN
            states[~written_rows(entries)] = EMPTY
        return entries, states

    def begun(self, slot_layers: np.ndarray) -> np.ndarray:
        """Returns bool[n]: for each of these slabs (int64[n], ascending) whether the entry of its first chunk
        is written, without which it is not stored. Raises ``StorageError``."""
        layer_slots = self.layout.slots[0] // self.layout.slabs
        if layer_slots > _MOST_SLOTS_READ_OVER or self.layout.is_split:
            firsts = (self.layout.slots_of_slab(layer)[0] for layer in slot_layers.tolist())
            read = (
                self._file.read_table(self.layout.chunk_entry_offset(file, slot), 1, CHUNK_ENTRY)
                for file, slot, _ in firsts
            )
            return np.array([entry["nbytes"][0] != 0 for entry in read], np.bool_)
        if not slot_layers.size:
            return np.zeros(0, np.bool_)
        first, stop = int(slot_layers[0]), int(slot_layers[-1]) + 1
        offset, slots = self.layout.chunk_entry_offset(0, first * layer_slots), (stop - first) * layer_slots
        table = self._file.read_table(offset, slots, CHUNK_ENTRY)
        written: np.ndarray = table["nbytes"][::layer_slots][slot_layers - first] != 0
        return written

    def read_stored_slab(self, slot_layer: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]] | None:
        """Returns (frame records [frames_per_slab], bool of the same shape: written; CHUNK_ENTRY of each of
        ``slots_of_slab``) of a slab that is stored, None for any other. The chunks' bytes are not checked.
        Raises ``StorageError``, ``ShardFormatError`` if all its chunks are there and a record is damaged:
        what it says was stored is not known.

        Another process may be writing: the records are read last, since they are written before the last
        entries, and cleared before any.
        """
        tables = []
        for file, first, slots in self.layout.slots_of_slab(slot_layer):
            entries, states = self._read_chunks(file, first, slots)
            if not (states == VALID).all():
                return None
            tables.append(entries)
        frames = self.layout.frames_per_slab
        records, valid = self._read_frames(slot_layer * frames, frames)
        if (written_rows(records) & ~valid).any():
            raise ShardFormatError(f"{self.path}: a frame record of a stored slab is damaged")
        return (records, valid, tables) if has_all_records(records[valid]) else None

    def clear_slabs(self, slot_layers: Iterable[int]) -> None:
        """Clears slabs: writes zeros over their frame records, then over their chunk entries. Raises
        ``StorageError``."""
        for slot_layer in slot_layers:
            self._file.write(
                self.layout.frame_records_offset(slot_layer), bytes(self.layout.slab_record_bytes), "clear"
            )
            for file, first, slots in self.layout.slots_of_slab(slot_layer):
                offset = self.layout.chunk_entry_offset(file, first)
                self._file.write(offset, bytes(slots * CHUNK_ENTRY.itemsize), "clear")

    def copy_slab(self, slot_layer: int, records: np.ndarray, entries: list[np.ndarray]) -> None:
        """Writes a slab as in another journal of this shard row: its frame records, then for each of
        ``slots_of_slab`` its CHUNK_ENTRY in the order of slots.

        Raises ``StorageError``.
        """
        self._file.write(self.layout.frame_records_offset(slot_layer), records.tobytes(), "copy")
        for (file, first, slots), table in zip(self.layout.slots_of_slab(slot_layer), entries, strict=True):
            assert table.size == slots, "an entry for each slot"
            if slots:
                self._file.write(self.layout.chunk_entry_offset(file, first), table.tobytes(), "copy")

    def rename(self, path: Path) -> None:
        """Gives it the name of a journal that it replaces; the folder is not synced. Raises
        ``StorageError``."""
        self._file.rename(path)

    @property
    def has_failed(self) -> bool:
        """True if a sync of it has failed: it has then failed for good."""
        return self._file.has_failed

    def sync(self, *, whole: bool = False) -> None:
        """Makes everything written so far durable, with ``whole`` also of all other files of its filesystem.
        Raises ``StorageError``."""
        self._file.sync(whole=whole)

    def close(self) -> None:
        self._file.close()

    def delete(self, *, durably: bool = False) -> None:
        """Closes and deletes the journal, after the shard row was sealed and logged; ``durably``: no power
        cut brings it back. Raises ``StorageError``."""
        self._file.delete(durably=durably)


def _header(
    layout: JournalLayout, identity: bytes, shard_row: int, writer_epoch: int, version: int
) -> JournalHeader:
    return JournalHeader(
        magic=MAGIC,
        version=version,
        record_bytes=layout.record.itemsize,
        identity=identity,
        shard_row=shard_row,
        writer_epoch=writer_epoch,
        frames_per_slab=layout.frames_per_slab,
        slabs=layout.slabs,
        files=layout.files,
        slots=sum(layout.slots),
        data_start=layout.data_start,
        slot_bytes=layout.slot_bytes,
        file_bytes=layout.file_bytes,
    )
