"""The staging area: whole frames of incomplete slabs, so that a slow camera's frames survive a crash.
FORMAT.md, "The staging area".

    | header, one page | frame records: one a slot, to a page edge | pixels of slot 0, to a page edge | of
    slot 1 | ... |

Where frames are put into their chunks as they come (``frames_in_place``) there are no pixels here,
``frame_bytes`` is 0, and a record says that its frame is in place.

A slot is free again when its frame's slab is stored in a shard; the owner tracks that, not the file. While a
frame is written over another one, the old record does not fit the new pixels until its own record follows:
the slot then counts as empty.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import crc32c
import numpy as np

from shardwright.disk.table_file import TableFile
from shardwright.disk.typed_errors import says_nothing
from shardwright.model.errors import StorageError

from .file_header import decode_header, encode_header, expect_header, file_seed
from .layout import PAGE_BYTES, page_aligned
from .row_checksum import checked_rows, seal_rows, written_rows

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.grid import Grids

    from .frames_in_place import FramesInPlace

MAGIC, VERSION = b"SWSTAGNG", 1
_HEADER = struct.Struct("<8s2I16s3q")
_EVERY_SHARD_ROW = -1  # in the seed: the staging area serves all shard rows

Slots = TypeVar("Slots", int, np.ndarray)


class StagingHeader(NamedTuple):
    """The header's fields in the order of ``_HEADER``."""

    magic: bytes
    version: int
    record_bytes: int
    identity: bytes
    slots: int
    frame_bytes: int
    file_bytes: int


class StagingArea:
    """One open staging area of ``slots`` frames. Workers write into it (``kernels.journal_kernels``), through
    ``descriptor``; each slot has one writer. ``frame_bytes``: of the largest frame, 0 if pixels are
    elsewhere. ``grids``: of the images whose frames are staged; None, of an area that is only written: what
    its records say is not checked, and every frame is as long as a slot."""

    def __init__(
        self,
        file: TableFile,
        slots: int,
        frame_bytes: int,
        record: np.dtype[np.void],
        identity: bytes,
        grids: Grids | None = None,
    ) -> None:
        self.slots = slots
        self.frame_bytes = frame_bytes
        self.seed = file_seed(identity, _EVERY_SHARD_ROW)
        self.record = record
        self._grids = grids
        self._file = file
        self._data_start = _data_start(slots, record)

    @classmethod
    def create(
        cls, path: Path, slots: int, frame_bytes: int, record: np.dtype[np.void], identity: bytes
    ) -> StagingArea:
        """Creates an empty staging area, durable with its name. Raises ``StorageError``; a failure leaves no
        file."""
        header = _header(slots, frame_bytes, record, identity)
        file = TableFile.create(path, "staging", header.file_bytes, encode_header(_HEADER, header))
        return cls(file, slots, frame_bytes, record, identity)

    @classmethod
    def open(
        cls,
        path: Path,
        slots: int,
        frame_bytes: int,
        record: np.dtype[np.void],
        identity: bytes,
        *,
        grids: Grids | None = None,
        read_only: bool = False,
    ) -> StagingArea:
        """Opens the staging area of this acquisition. Raises ``ShardFormatError`` when its size or header
        does not fit or is damaged, ``StorageError``."""
        expected = _header(slots, frame_bytes, record, identity)
        file = TableFile.open(path, "staging", expected.file_bytes, read_only=read_only)
        try:
            page = np.empty(PAGE_BYTES, np.uint8)
            file.read_into(0, page)
            expect_header(
                decode_header(page.tobytes(), _HEADER, MAGIC, path), expected, StagingHeader._fields, path
            )
        except BaseException:
            file.close()
            raise
        return cls(file, slots, frame_bytes, record, identity, grids)

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def descriptor(self) -> int:
        return self._file.descriptor

    @property
    def slot_bytes(self) -> int:
        """The distance from one slot's pixels to the next one's."""
        return page_aligned(self.frame_bytes)

    def data_offsets(self, slots: np.ndarray) -> np.ndarray:
        """Returns int64[n]: the offsets of the pixels of ``slots``, as ``kernels.stage_frames`` takes
        them."""
        return self.data_offset(slots) if self.frame_bytes else np.full(slots.size, -1)

    def data_offset(self, slot: Slots) -> Slots:
        """Returns the offset of a slot's pixels; one slot or an int64 array of them."""
        return self._data_start + slot * self.slot_bytes

    def entry_offset(self, slot: Slots) -> Slots:
        """Returns the offset of a slot's frame record; one slot or an int64 array of them."""
        return PAGE_BYTES + slot * self.record.itemsize

    def read(self, in_place: FramesInPlace | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns (frame records [slots], bool[slots]: undamaged, and the pixels fit). Reads every staged
        frame; ``in_place`` reads those whose pixels are elsewhere. Raises ``StorageError``."""
        records = self.read_records()
        valid = self.undamaged(records)
        pixels = np.empty(self.frame_bytes, np.uint8)
        for slot in np.flatnonzero(valid).tolist():
            try:
                position, crc = int(records["position"][slot]), int(records["pixels_crc"][slot])
                if in_place is not None:
                    valid[slot] = in_place.read_checked(position, crc) is not None
                    continue
                frame = pixels if self._grids is None else pixels[: self._grids.of(position).frame_bytes]
                self._file.read_into(self.data_offset(slot), frame)
                valid[slot] = crc32c.crc32c(frame.data) == crc
            except StorageError as error:
                if says_nothing(error):
                    raise
                valid[slot] = False  # one bad sector must not lose the other frames
        return records, valid

    def read_records(self) -> np.ndarray:
        """Returns the frame records [slots] as they are, unchecked. Raises ``StorageError``."""
        return self._file.read_table(PAGE_BYTES, self.slots, self.record)

    def undamaged(self, records: np.ndarray) -> np.ndarray:
        """Returns bool[n]: which of some records of this area are written and undamaged, and of a place that
        a frame can have. Pixels are not looked at."""
        valid = checked_rows(records, self.seed)
        # The checksum says that a record is whole, not that it is sound: a place outside of all images would
        # be an index behind an array's end, and the array would grow to it.
        if self._grids is not None:
            valid &= self._grids.hold(records["position"].astype(np.int64))
        return valid

    def read_pixels(self, slot: int, nbytes: int, pixels_crc: int) -> np.ndarray | None:
        """Returns uint8[nbytes]: the pixels of the frame in a slot; None if they are not those of its record,
        since the slot is used again. Raises ``StorageError``."""
        pixels = np.empty(nbytes, np.uint8)
        self._file.read_into(self.data_offset(slot), pixels)
        return pixels if crc32c.crc32c(pixels.data) == pixels_crc else None

    def spoiled(self, records: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, bool]:
        """Returns, for the result of ``read``, the slots (int64[n]) of frames whose pixels do not fit, and
        whether there are records that cannot be read at all. The former include frames that were being
        overwritten; those are no loss, since their slab is stored."""
        readable = self.undamaged(records)
        return np.flatnonzero(readable & ~valid), bool((written_rows(records) & ~readable).any())

    def clear(self, slots: np.ndarray) -> None:
        """Writes zeros over the records of ``slots`` (int64[n]). Raises ``StorageError``."""
        # While a writer lives, pixels that do not fit their record mean that the frame is in its shard by
        # now: a live view looked without end for frames whose pixels a power cut had taken.
        for slot in slots.tolist():
            self._file.write(self.entry_offset(slot), bytes(self.record.itemsize), "clear")

    def map(self) -> int:
        """Returns the address of slot 0's pixels in a read-only mapping that lasts until ``close``; slot k's
        are ``k * slot_bytes`` further."""
        return self._file.map() + self._data_start

    def address_of(self, slots: np.ndarray) -> np.ndarray:
        """Returns int64[n]: the mapped addresses, valid until ``close``, of the pixels in ``slots``
        (int64[n]). Raises ``StorageError``."""
        return self.map() + self.slot_bytes * slots.astype(np.int64)

    def put_pixels(self, slot: int, offset: int, pixels: bytes) -> None:
        """Writes bytes of a frame into a free slot, from byte ``offset`` of the frame on. Its record must be
        written last. Raises ``StorageError``."""
        self._file.write(self.data_offset(slot) + offset, pixels, "write")

    def put_record(self, slot: int, record: np.ndarray, pixels_crc: int) -> None:
        """Writes the record of the frame in a slot (one ``record``). Raises ``StorageError``."""
        row = np.array(record, self.record).reshape(1)
        row["pixels_crc"] = pixels_crc
        seal_rows(row, self.seed)
        self._file.write(self.entry_offset(slot), row.tobytes(), "write")

    def sync(self) -> None:
        """Makes everything written so far durable. Raises ``StorageError``."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def slots_in(file_bytes: int, frame_bytes: int, record_bytes: int) -> int:
    """Returns the number of slots of a staging area of this size. One without pixels fills its pages."""
    room = file_bytes - PAGE_BYTES
    slots = room // (page_aligned(frame_bytes) + record_bytes)
    while slots > 1 and page_aligned(slots * record_bytes) + slots * page_aligned(frame_bytes) > room:
        slots -= 1
    return slots


def _data_start(slots: int, record: np.dtype[np.void]) -> int:
    return PAGE_BYTES + page_aligned(slots * record.itemsize)


def _header(slots: int, frame_bytes: int, record: np.dtype[np.void], identity: bytes) -> StagingHeader:
    return StagingHeader(
        magic=MAGIC,
        version=VERSION,
        record_bytes=record.itemsize,
        identity=identity,
        slots=slots,
        frame_bytes=frame_bytes,
        file_bytes=_data_start(slots, record) + slots * page_aligned(frame_bytes),
    )
