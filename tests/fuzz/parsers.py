"""The parsers under test and what they must make of any bytes: a second, plain reading of FORMAT.md to hold
them to."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import crc32c
import numpy as np
from tests.shard.sidecars import (
    IDENTITY,
    LAYOUT,
    POSITION_AT,
    RECORD,
    chunk_entry,
    frame_record,
    new_journal,
    seed_of,
)

from shardwright.model.errors import ShardFormatError
from shardwright.shard.journal import EMPTY, PACKED, REOPENED, SLOTTED, TORN, VALID, ShardRowJournal
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.staging import StagingArea

from .damage import Intact, Row

HEADER = Row(0, PAGE_BYTES, 0)
STRANGERS = ((IDENTITY, 1), (bytes(16), 0))  # another shard row, another acquisition


Rows = list[tuple[bytes, int]]  # what a parser made of a file: every row's bytes and state


def checks(data: bytes, seed: int) -> bool:
    return crc32c.crc32c(data[:-4], seed) == int.from_bytes(data[-4:], "little")


def header_holds(image: bytes, expected: bytes, but: slice) -> bool:
    """The page checks, and its fields are the expected ones (``but`` for one that any writer chooses)."""
    page, fields = image[:PAGE_BYTES], bytearray(expected)
    fields[but] = page[but]
    return len(page) == PAGE_BYTES and page.startswith(bytes(fields)) and checks(page, 0)


class JournalParser:
    """``ShardRowJournal`` of chunks in slots."""

    packed = False

    def __init__(self) -> None:
        self.seed = seed_of()
        records = [
            Row(LAYOUT.frame_records_offset(layer) + i * RECORD.itemsize, RECORD.itemsize, self.seed)
            for layer, i in self._frames()
        ]
        entries = [Row(LAYOUT.chunk_entry_offset(file, slot), 32, self.seed) for file, slot in self._slots()]
        self.intact = Intact(
            image=self._image(IDENTITY, 0),
            rows=(HEADER, *records, *entries),
            header_fields=(
                (0, 8),
                (8, 4),
                (12, 4),
                (16, 8),
                (24, 8),
                (32, 8),
                (40, 4),
                (44, 4),
                *((place, 8) for place in range(48, 96, 8)),
                (4092, 4),
            ),
            strangers=tuple(self._image(*stranger) for stranger in STRANGERS),
            stranger_seeds=(0, *(seed_of(*stranger) for stranger in STRANGERS)),
            numbers=(
                LAYOUT.slot_bytes - 1,
                LAYOUT.slot_bytes,
                LAYOUT.slot_bytes + 1,
                LAYOUT.file_bytes,
                LAYOUT.data_start,
                2**62,
                4,
                9,
            ),
        )

    @staticmethod
    def _frames() -> list[tuple[int, int]]:
        return [(layer, i) for layer in range(LAYOUT.slabs) for i in range(LAYOUT.frames_per_slab)]

    @staticmethod
    def _slots() -> list[tuple[int, int]]:
        return [(file, slot) for file, slots in enumerate(LAYOUT.slots) for slot in range(slots)]

    def _image(self, identity: bytes, shard_row: int) -> bytes:
        """A journal of which two of three rows are written."""
        seed = seed_of(identity, shard_row)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal"
            new_journal(path, LAYOUT, identity, shard_row, 3, packed=self.packed).close()
            image = bytearray(path.read_bytes())
        for number, (layer, i) in enumerate(self._frames()):
            if number % 3:
                place = LAYOUT.frame_records_offset(layer) + i * RECORD.itemsize
                image[place : place + RECORD.itemsize] = frame_record(
                    seed, sequence=number, position=POSITION_AT[layer, i]
                )
        for number, (file, slot) in enumerate(self._slots()):
            if number % 3:
                place = LAYOUT.chunk_entry_offset(file, slot)
                image[place : place + 32] = chunk_entry(slot, number % 4 * 1000, seed, data_crc=number)
        return bytes(image)

    def parse(self, path: Path) -> Rows | None:
        try:
            journal = ShardRowJournal.open(path, LAYOUT, IDENTITY, 0)
        except ShardFormatError:
            return None
        try:
            records, valid = journal.read_frames()
            assert records.shape == valid.shape == (LAYOUT.slabs, LAYOUT.frames_per_slab)
            rows = [
                (record.tobytes(), int(state))
                for record, state in zip(records.ravel(), valid.ravel(), strict=True)
            ]
            for file, slots in enumerate(LAYOUT.slots):
                entries, states = journal.read_chunks(file)
                assert len(entries) == len(states) == slots
                rows += [(entry.tobytes(), int(state)) for entry, state in zip(entries, states, strict=True)]
        finally:
            journal.close()
        return rows

    def expected(self, image: bytes, size: int) -> Rows | None:
        version = int.from_bytes(image[8:12], "little")
        packed = (PACKED, PACKED + REOPENED)
        known = version if version in (SLOTTED, SLOTTED + REOPENED, *packed) else SLOTTED
        wanted = self.intact.image[:8] + known.to_bytes(4, "little") + self.intact.image[12:96]
        if size != LAYOUT.file_bytes or not header_holds(image, wanted, slice(40, 44)):
            return None
        frames, slots = self._frames(), self._slots()
        pieces = [(row, image[row.place : row.place + row.size]) for row in self.intact.rows[1:]]
        states = [
            int(
                any(data)
                and checks(data, self.seed)
                and np.frombuffer(data, RECORD)["position"][0] == POSITION_AT[place]
            )
            for (_, data), place in zip(pieces[: len(frames)], frames, strict=True)
        ]
        states += [
            self._state(data, slot, version in packed)
            for (_, data), (_, slot) in zip(pieces[len(frames) :], slots, strict=True)
        ]
        return [(data, state) for (_, data), state in zip(pieces, states, strict=True)]

    def _state(self, data: bytes, slot: int, packed: bool) -> int:
        if not any(data):
            return EMPTY
        offset, nbytes = struct.unpack_from("<QQ", data)
        placed = (
            LAYOUT.data_start <= offset <= 2**62
            if packed
            else offset == LAYOUT.data_start + slot * LAYOUT.slot_bytes
        )
        fits = (placed and 0 < nbytes <= LAYOUT.slot_bytes) or offset == nbytes == 2**64 - 1
        return VALID if fits and checks(data, self.seed) else TORN


class PackedJournalParser(JournalParser):
    """``ShardRowJournal`` of packed chunks."""

    packed = True


class StagingParser:
    """``StagingArea``."""

    slots, frame_bytes = 4, 100

    def __init__(self) -> None:
        self.seed = seed_of(shard_row=-1)
        self.shape = (self.slots, self.frame_bytes, RECORD, IDENTITY)
        places = [PAGE_BYTES + slot * RECORD.itemsize for slot in range(self.slots)]
        image = self._image(IDENTITY, self.seed)
        self.intact = Intact(
            image=image,
            rows=(HEADER, *(Row(place, RECORD.itemsize, self.seed) for place in places)),
            header_fields=((0, 8), (8, 4), (12, 4), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8), (4092, 4)),
            strangers=(
                self._image(bytes(16), seed_of(bytes(16), -1)),
                self._image(IDENTITY, seed_of(shard_row=0)),
            ),
            stranger_seeds=(0, seed_of(), seed_of(bytes(16), -1)),
            numbers=(
                self.slots - 1,
                self.slots + 1,
                self.frame_bytes - 1,
                self.frame_bytes + 1,
                PAGE_BYTES,
                len(image),
                2**62,
            ),
        )

    def _data_place(self, slot: int) -> int:
        return (2 + slot) * PAGE_BYTES

    def _image(self, identity: bytes, seed: int) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "staging"
            StagingArea.create(path, *self.shape[:3], identity).close()
            image = bytearray(path.read_bytes())
        for slot in range(self.slots - 1):
            pixels = bytes([slot + seed % 200]) * self.frame_bytes
            image[self._data_place(slot) : self._data_place(slot) + self.frame_bytes] = pixels
            place = PAGE_BYTES + slot * RECORD.itemsize
            image[place : place + RECORD.itemsize] = frame_record(
                seed, pixels_crc=crc32c.crc32c(pixels), sequence=slot
            )
        return bytes(image)

    def parse(self, path: Path) -> Rows | None:
        try:
            staging = StagingArea.open(path, *self.shape)
        except ShardFormatError:
            return None
        try:
            records, valid = staging.read()
            address = staging.map()
            assert address % PAGE_BYTES == 0
        finally:
            staging.close()
        return [(record.tobytes(), int(state)) for record, state in zip(records, valid, strict=True)]

    def expected(self, image: bytes, size: int) -> Rows | None:
        if size != len(self.intact.image) or not header_holds(image, self.intact.image[:56], slice(0, 0)):
            return None
        rows = []
        for slot, row in enumerate(self.intact.rows[1:]):
            data = image[row.place : row.place + row.size]
            pixels = image[self._data_place(slot) : self._data_place(slot) + self.frame_bytes]
            pixels_crc = int(np.frombuffer(data, RECORD)["pixels_crc"][0])
            rows.append(
                (data, int(any(data) and checks(data, self.seed) and crc32c.crc32c(pixels) == pixels_crc))
            )
        return rows
