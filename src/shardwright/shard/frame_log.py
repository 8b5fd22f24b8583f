"""The frame log: the frame records of an unfinished acquisition that no open journal holds.
``.shardwright/frames.log``, appended block by block.

    0       header page, 4096 bytes: magic, format u32, record_bytes u32, identity 16 bytes, zeros, header_crc
            u32
    4096    block, block, ...                      up to the first one that is not valid; zeros after it,
            preallocated

    block   offset  size  field
                 0     8  magic
                 8     4  kind          u32, ``BlockKind``
                12     4  record_bytes  u32, the same in every block
                16     8  shard_row     i64, -1 where the kind has none
                24     8  count         u64, records in this block
                32     4  payload_crc   u32, crc32c of the records, started from the file's seed
                36    24  zeros
                60     4  header_crc    u32, crc32c of the 60 bytes before it, started from the file's seed
                64        the records

All little-endian; the seed is the crc32c of the identity. Appending never syncs: a kill leaves whole blocks
and perhaps a torn one at the end; a power cut may destroy any block written after the last sync, and with it
all later ones. One owner, one thread.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from enum import IntEnum
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.array.grid import image_of
from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    preallocate,
    read_all,
    storage_errors,
    sync_data,
    sync_directory,
    truncate,
    write_all,
)
from shardwright.disk.typed_errors import sync_errors
from shardwright.model.errors import ShardFormatError, StorageError, StorageFullError
from shardwright.model.frame_status import FrameStatus

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping
    from pathlib import Path

    from shardwright.array.grid import Grids

HEADER_PAGE_BYTES = 4096
EXTENT_BYTES = 1 << 20
ROWS_PER_PIECE = 1 << 16
MAX_BLOCK_ROWS = 1 << 24
FORMAT = 1
FILE_MAGIC, _BLOCK_MAGIC = b"SWFRMLOG", b"SWFRMBLK"

_FILE_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("format", "<u4"),
        ("record_bytes", "<u4"),
        ("identity", "V16"),
        ("zeros", "V4060"),
        ("header_crc", "<u4"),
    ],
)
_BLOCK_HEADER = struct.Struct("<8sIIqQI24xI")
BLOCK_HEADER_BYTES = _BLOCK_HEADER.size
assert (_FILE_HEADER.itemsize, BLOCK_HEADER_BYTES) == (HEADER_PAGE_BYTES, 64), "FORMAT.md draws them"


class BlockKind(IntEnum):
    SHARD_ROW = 1  # every record of a sealed shard row
    EVENTS = 2  # settled frames: duplicate, late, dropped, lost


class FrameLog:
    """An open frame log, made by ``create`` or ``open``. Owns the descriptor and the end of the log.

    ``rows`` counts the records of all blocks, ``shard_rows`` are the shard rows that have a block. For a
    shard row that was reopened and sealed again only the last block counts, which has all records of those
    before it. ``torn_bytes``: bytes that ``open`` found behind the last whole block; they are overwritten
    with zeros before the next ``append``. After a failed write or sync nothing more is written, unless the
    disk was just full.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[np.void],
        identity: bytes,
        descriptor: int,
        grids: Grids | None = None,
    ) -> None:
        assert len(identity) == 16, "16 bytes"
        self.path = path
        self.rows = 0
        self._shard_row_offsets: dict[int, int] = {}  # shard row -> start of its last block
        self.torn_bytes = 0
        self.preallocated_bytes = 0
        self._dtype = dtype
        self._identity = identity
        self._grids = grids
        self._seed = crc32c.crc32c(identity)
        self._descriptor = descriptor
        self._end = HEADER_PAGE_BYTES
        self._told_end = HEADER_PAGE_BYTES  # of the blocks that ``open`` and ``find_more`` have told of
        self._torn_end = HEADER_PAGE_BYTES
        self._failure: str | None = None  # the error that made it unusable

    @classmethod
    def create(cls, path: Path, dtype: np.dtype[np.void], identity: bytes) -> FrameLog:
        """Creates a log of records of ``dtype``, its header and name durable. Raises ``StorageError``
        (``StorageFullError`` when there is no room)."""
        with storage_errors("create", path):
            reach("log.before_create")
            log = cls(
                path,
                dtype,
                identity,
                beneath.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL),
            )
            try:
                log.reserve(EXTENT_BYTES)
                reach("log.before_header")
                write_all(log._descriptor, 0, log._header_page())
                log.sync()
                sync_directory(path.parent)
            except BaseException:
                log.close()
                beneath.unlink(path)
                raise
        return log

    @classmethod
    def open(
        cls,
        path: Path,
        dtype: np.dtype[np.void],
        identity: bytes,
        *,
        grids: Grids | None = None,
        read_only: bool = False,
    ) -> FrameLog:
        """Opens a log, to append behind its last whole block. Writes nothing yet. ``grids``: what blocks say
        must be of these images; None for a log that was just made.

        Raises ``ShardFormatError`` when the header is damaged or names another record size or acquisition,
        and for a whole block of frames that cannot be (cut off, it would take their only trace along),
        ``StorageError``.
        """
        # O_NONBLOCK: opening a named pipe must not wait for a writer
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with storage_errors("open", path):
            log = cls(path, dtype, identity, beneath.open_file(path, flags), grids)
        try:
            log._scan()
        except BaseException:
            log.close()
            raise
        return log

    def find_more(self) -> list[tuple[int, int]]:
        """Finds the whole blocks that another process has appended since; returns (shard row, offset) for
        each of a shard row. The next call tells of those that were found before an error. Raises
        ``ShardFormatError`` as ``open``, ``StorageError``."""
        self._find_blocks(os.fstat(self._descriptor).st_size)
        known, self._told_end = self._told_end, self._end
        return sorted((row, offset) for row, offset in self._shard_row_offsets.items() if offset >= known)

    def append(self, kind: BlockKind, shard_row: int, records: np.ndarray) -> None:
        """Appends one block of records (dtype[n]); ``shard_row`` is -1 for events. Raises
        ``StorageFullError`` (then no block was written) or ``StorageError``."""
        self._append(kind, {shard_row: records})

    def append_rows(self, records: Mapping[int, np.ndarray]) -> None:
        """Appends the records of sealed shard rows, a block each, by one write where they are few. Raises as
        ``append``; of many, blocks of the first ones may be written then, and may be appended again."""
        some: dict[int, np.ndarray] = {}
        for shard_row, found in records.items():
            some[shard_row] = found
            if sum(each.nbytes for each in some.values()) > EXTENT_BYTES:
                self._append(BlockKind.SHARD_ROW, some)
                some = {}
        if some:
            self._append(BlockKind.SHARD_ROW, some)

    def _append(self, kind: BlockKind, blocks: Mapping[int, np.ndarray]) -> None:
        parts: list[bytes | memoryview] = []
        for shard_row, records in blocks.items():
            assert records.dtype == self._dtype, "this log's records"
            assert records.size <= MAX_BLOCK_ROWS, "no shard row has so many frames"
            payload = np.ascontiguousarray(records).view(np.uint8).data
            parts += self._block_header(kind, shard_row, records.size, payload), payload
        data = memoryview(b"".join(parts))
        self._check_usable()
        self.reserve(len(data))
        try:
            with storage_errors("write", self.path):
                reach("log.before_append")
                self._clear_torn_tail()
                write_all(self._descriptor, self._end, data[:BLOCK_HEADER_BYTES])
                reach("log.before_payload")
                write_all(self._descriptor, self._end + BLOCK_HEADER_BYTES, data[BLOCK_HEADER_BYTES:])
        # a copy-on-write filesystem may need room even here; nothing was synced, so that these bytes can be
        # written again
        except StorageFullError:
            stop = self._end + len(data)
            if len(blocks) > 1:  # those that are whole stay: a reader may be behind them
                self._find_blocks(stop)
            self._torn_end = max(self._torn_end, stop)
            raise
        except StorageError as error:
            self._failure = error.message
            raise
        for shard_row, records in blocks.items():
            self._count(kind, shard_row, records.size)
            self._end += BLOCK_HEADER_BYTES + records.nbytes

    def reserve(self, nbytes: int) -> None:
        """Preallocates room for blocks of so many bytes. Raises ``StorageFullError`` or ``StorageError``.

        Extents are taken ahead while there is room, so that the log can still grow for a while on a full
        disk.
        """
        needed = self._end + nbytes
        if self.preallocated_bytes >= needed + EXTENT_BYTES:
            return
        try:
            self._preallocate((needed // EXTENT_BYTES + 3) * EXTENT_BYTES)
        except StorageError:
            if self.preallocated_bytes < needed:
                self._preallocate(needed)

    def sync(self) -> None:
        """Makes everything appended so far durable. Raises ``StorageError``."""
        self._check_usable()
        self._sync("log.before_sync")

    def blocks(
        self, only: BlockKind | None = None, *, of_images: Container[int] | None = None
    ) -> Iterator[tuple[BlockKind, int, np.ndarray]]:
        """Yields (kind, shard row, records) of every block in order, in pieces of at most 65,536 records.
        ``only``: of blocks of one kind; ``of_images``: of shard rows of these images, and of all events. The
        others are not read.

        Raises ``ShardFormatError`` after the last piece of a block whose checksum does not fit.
        """
        offset = HEADER_PAGE_BYTES
        while offset < self._end:
            header = self._read_header(offset)
            if header is None:
                raise ShardFormatError(
                    f"{self.path} has changed since it was opened", got=f"no block at {offset}"
                )
            kind, shard_row, count, payload_crc = header
            unwanted = only not in (None, kind)
            if kind is BlockKind.SHARD_ROW:
                unwanted |= self._shard_row_offsets[shard_row] != offset  # superseded
                unwanted |= of_images is not None and image_of(shard_row) not in of_images
            offset += BLOCK_HEADER_BYTES
            if unwanted:
                offset += count * self._dtype.itemsize
                continue
            checksum = self._seed
            for start in range(0, count, ROWS_PER_PIECE):
                data = self._read(offset, min(ROWS_PER_PIECE, count - start) * self._dtype.itemsize)
                checksum = crc32c.crc32c(data, checksum)
                offset += len(data)
                yield kind, shard_row, np.frombuffer(data, self._dtype)
            if checksum != payload_crc:
                raise ShardFormatError(
                    f"{self.path}: a block fails its crc32c",
                    expected=f"{payload_crc:#010x}",
                    got=f"{checksum:#010x}",
                )

    @property
    def shard_rows(self) -> set[int]:
        return set(self._shard_row_offsets)

    def shard_row_records(self, shard_row: int) -> np.ndarray:
        """Returns all records of a shard row that has a block. Raises ``ShardFormatError`` when the block's
        checksum does not fit, ``StorageError``."""
        offset = self._shard_row_offsets[shard_row]
        header = self._read_header(offset)
        data = (
            b""
            if header is None
            else self._read(offset + BLOCK_HEADER_BYTES, header[2] * self._dtype.itemsize)
        )
        if header is None or crc32c.crc32c(data, self._seed) != header[3]:
            raise ShardFormatError(
                f"{self.path} has changed since it was opened",
                got=f"no block of shard row {shard_row} at {offset}",
            )
        return np.frombuffer(data, self._dtype)

    def close(self) -> None:
        if self._descriptor >= 0:
            beneath.close(self._descriptor)
            self._descriptor = -1

    def _preallocate(self, nbytes: int) -> None:
        with storage_errors("preallocate", self.path):
            size = os.fstat(self._descriptor).st_size
            try:
                reach("log.before_preallocate")
                preallocate(self._descriptor, nbytes)
            except OSError:
                reach("log.before_cut")
                truncate(self._descriptor, size)  # frees what was allocated of the last blocks
                raise
        self.preallocated_bytes = nbytes

    def _sync(self, point: str) -> None:
        try:
            with sync_errors(self.path):
                reach(point)
                sync_data(self._descriptor)
        except StorageError as error:
            self._failure = error.message  # the next sync would succeed all the same
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(f"{self.path} failed before and is not written any more: {self._failure}")

    def _count(self, kind: BlockKind, shard_row: int, rows: int) -> None:
        """Counts a block that starts at the log's end."""
        self.rows += rows
        if kind is BlockKind.SHARD_ROW:
            self._shard_row_offsets[shard_row] = self._end

    def _header_page(self) -> bytes:
        header = np.zeros(1, _FILE_HEADER)
        header["magic"], header["format"], header["record_bytes"] = FILE_MAGIC, FORMAT, self._dtype.itemsize
        header["identity"] = np.void(self._identity)
        header["header_crc"] = crc32c.crc32c(header.tobytes()[:-4], self._seed)
        return header.tobytes()

    def _block_header(self, kind: BlockKind, shard_row: int, count: int, payload: memoryview) -> bytes:
        checksum, record_bytes = crc32c.crc32c(payload, self._seed), self._dtype.itemsize
        header = _BLOCK_HEADER.pack(_BLOCK_MAGIC, kind, record_bytes, shard_row, count, checksum, 0)[:-4]
        return header + struct.pack("<I", crc32c.crc32c(header, self._seed))

    def _read_header(self, offset: int) -> tuple[BlockKind, int, int, int] | None:
        """Returns (kind, shard row, count, payload_crc) of the block at ``offset``, None when there is none.
        Neither the payload nor its size is checked."""
        data = self._read(offset, BLOCK_HEADER_BYTES)
        if len(data) < BLOCK_HEADER_BYTES:
            return None
        magic, kind, record_bytes, shard_row, count, payload_crc, header_crc = _BLOCK_HEADER.unpack(data)
        if crc32c.crc32c(data[:-4], self._seed) != header_crc or magic != _BLOCK_MAGIC:
            return None
        if record_bytes != self._dtype.itemsize or kind not in tuple(BlockKind):
            return None
        return BlockKind(kind), shard_row, count, payload_crc

    def _scan(self) -> None:
        """Checks the header page, finds the end of the log and any bytes behind it."""
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or self._read(0, HEADER_PAGE_BYTES) != self._header_page():
            raise ShardFormatError(f"{self.path} is damaged, or no frame log of this acquisition")
        size = status.st_size
        self._find_blocks(size)
        self._torn_end = self._told_end = self._end
        for offset in self._written_pieces(self._end, size):
            data = np.frombuffer(self._read(offset, min(EXTENT_BYTES, size - offset)), np.uint8)
            if data.any():
                self._torn_end = offset + int(np.flatnonzero(data)[-1]) + 1
        self.torn_bytes = self._torn_end - self._end

    def _find_blocks(self, size: int) -> None:
        """Moves the log's end behind the last whole block."""
        while (header := self._read_header(self._end)) is not None:
            kind, shard_row, count, payload_crc = header
            payload = self._end + BLOCK_HEADER_BYTES
            end = payload + count * self._dtype.itemsize
            if count > MAX_BLOCK_ROWS or end > size:
                break
            checksum, can_be = self._check_records(payload, count, kind, shard_row)
            if checksum != payload_crc:
                break
            if not can_be:
                raise ShardFormatError(
                    f"{self.path}: a block has frames that cannot be in this acquisition",
                    got=f"shard row {shard_row} at {self._end}",
                )
            self._count(kind, shard_row, count)
            self._end = end

    def _written_pieces(self, start: int, stop: int) -> Iterator[int]:
        """Yields the starts of pieces of EXTENT_BYTES that cover [start, stop), except holes and extents that
        were never written."""
        while start < stop:
            try:
                start = max(start, os.lseek(self._descriptor, start, os.SEEK_DATA))
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return
            if start < stop:
                yield start
            start += EXTENT_BYTES

    def _check_records(self, offset: int, count: int, kind: BlockKind, shard_row: int) -> tuple[int, bool]:
        """Returns the checksum of ``count`` records from ``offset`` on, and whether they can be those of such
        a block."""
        checksum, rows = self._seed, max(1, EXTENT_BYTES // self._dtype.itemsize)
        can_be = self._can_be(kind, shard_row, np.zeros(0, self._dtype))
        for first in range(0, count, rows):
            start = offset + first * self._dtype.itemsize
            data = self._read(start, min(rows, count - first) * self._dtype.itemsize)
            checksum = crc32c.crc32c(data, checksum)
            whole = len(data) // self._dtype.itemsize  # fewer if the file has become shorter
            can_be = can_be and self._can_be(kind, shard_row, np.frombuffer(data, self._dtype, whole))
        return checksum, can_be

    def _can_be(self, kind: BlockKind, shard_row: int, records: np.ndarray) -> bool:
        """Returns whether a block of this kind may hold these records: positions decide how far an array
        reaches, and a status that nobody knows counts nowhere."""
        if self._grids is None:
            return True
        if not np.isin(records["status"], tuple(FrameStatus)).all():
            return False
        positions = records["position"].astype(np.int64)
        if kind is BlockKind.SHARD_ROW:
            return self._grids.are_places_of_row(shard_row, positions)
        return bool(self._grids.hold(positions[positions >= 0]).all())  # the others are not known

    def _clear_torn_tail(self) -> None:
        """Overwrites the torn tail with zeros and syncs, so that after a power cut no block from behind the
        torn one reappears: its records may be appended again."""
        if self._torn_end > self._end:
            reach("log.before_clear")
            for offset in range(self._end, self._torn_end, EXTENT_BYTES):
                write_all(self._descriptor, offset, bytes(min(EXTENT_BYTES, self._torn_end - offset)))
            self._sync("log.before_clear_sync")
        self._torn_end = self._end

    def _read(self, offset: int, nbytes: int) -> bytes:
        """Returns ``nbytes`` bytes, fewer only at the end of the file."""
        with storage_errors("read", self.path):
            return read_all(self._descriptor, offset, nbytes)
