"""Writes what recovery needs, in the worker that stored the frames: chunk entries and frame records into a
shard row's journal, frames of unfinished slabs into the staging area. ``shard/FORMAT.md`` draws the bytes,
``shard/journal.py`` and ``shard/staging.py`` own the files.

A checksum starts from the file's seed, so that bytes of another file are never valid as an entry of this one.
Each function returns 0 or the errno of the first failed write. The caller must write a chunk's bytes before
its entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .cache import njit
from .checksum import crc32c_at, crc32c_from
from .file_io import write_at
from .native_calls import CACHE, address_of, memcpy, memset, put_u32, put_u64

CHUNK_ENTRY_BYTES = 32
RECORD_CRC_BYTES, PIXELS_CRC_BYTES = 4, 4  # the last two fields of a frame record: pixels_crc, record_crc


@njit(nogil=True, cache=CACHE)
def _put_chunk_entry(
    entries: Any, start: int, offset: int, nbytes: int, crc: Any, writer_epoch: int, seed: int
) -> None:
    """Makes one entry at byte ``start`` of ``entries``; a chunk of 0 bytes is all fill."""
    absent = nbytes == 0
    put_u64(entries, start, -1 if absent else offset)
    put_u64(entries, start + 8, -1 if absent else nbytes)
    put_u32(entries, start + 16, 0 if absent else crc)
    put_u32(entries, start + 20, writer_epoch)
    put_u32(entries, start + 24, 0)
    put_u32(
        entries,
        start + 28,
        np.int64(crc32c_from(seed, address_of(entries) + start, CHUNK_ENTRY_BYTES - 4)),
    )


@njit(nogil=True, cache=CACHE)
def journal_chunks(
    descriptor: int,
    entry_offsets: Any,
    offsets: Any,
    nbytes: Any,
    crcs: Any,
    writer_epoch: int,
    seed: int,
    scratch: Any,
) -> int:
    """Writes the entry of chunk i at ``entry_offsets[i]`` of the journal; neighbouring entries, in order, are
    written together.

    entry_offsets  int64[n]    offset of each entry in the journal: ``JournalLayout.chunk_entry_offsets``
    offsets     int64[n]    offset of each chunk in its shard file
    nbytes      int64[n]    its encoded bytes, 0 for a chunk that is all fill
    crcs        uint32[n]   crc32c of the encoded bytes
    scratch     uint8[>= 32 * n]
    """
    assert scratch.size >= entry_offsets.size * CHUNK_ENTRY_BYTES
    for i in range(entry_offsets.size):
        _put_chunk_entry(
            scratch, i * CHUNK_ENTRY_BYTES, offsets[i], nbytes[i], np.int64(crcs[i]), writer_epoch, seed
        )
    address = address_of(scratch)
    first = 0
    while first < entry_offsets.size:
        stop = first + 1
        while (
            stop < entry_offsets.size and entry_offsets[stop] == entry_offsets[stop - 1] + CHUNK_ENTRY_BYTES
        ):
            stop += 1
        number = write_at(
            descriptor,
            address + first * CHUNK_ENTRY_BYTES,
            (stop - first) * CHUNK_ENTRY_BYTES,
            entry_offsets[first],
        )
        if number != 0:
            return int(number)
        first = stop
    return 0


@njit(nogil=True, cache=CACHE)
def _seal_record(record: Any, address: int, pixels_crc: Any, seed: int) -> None:
    """Sets the two checksums of the record (uint8[rb]) at ``address``."""
    end = record.size - RECORD_CRC_BYTES
    put_u32(record, end - PIXELS_CRC_BYTES, pixels_crc)
    put_u32(record, end, np.int64(crc32c_from(seed, address, end)))


@njit(nogil=True, cache=CACHE)
def journal_frames(descriptor: int, offset: int, records: Any, filled: Any, seed: int, scratch: Any) -> int:
    """Writes the frame records of one slab at ``offset`` of the journal, in one write.

    records     uint8[P,rb]  frame records in the slab's storage order; not changed: the checksums are set in
                the copy that is written (``pixels_crc`` is 0 here)
    filled      bool[P]      False where no frame came: zeros are written there
    scratch     uint8[>= P * rb]
    """
    count, record_bytes = records.shape
    assert scratch.size >= count * record_bytes
    for i in range(count):
        record = scratch[i * record_bytes : (i + 1) * record_bytes]
        address = address_of(record)
        if filled[i]:
            memcpy(address, address_of(records[i]), record_bytes)
            _seal_record(record, address, int(np.int64(0)), seed)
        else:
            memset(address, 0, record_bytes)
    return write_at(descriptor, address_of(scratch), count * record_bytes, offset)


@njit(nogil=True, cache=CACHE)
def stage_frames(
    descriptor: int,
    addresses: Any,
    frame_bytes: int,
    data_offsets: Any,
    entry_offsets: Any,
    records: Any,
    seed: int,
) -> int:
    """Writes whole frames into the staging area: each frame's pixels, then its record, so that no record
    precedes its pixels. Where these lie in their chunks already, only the record.

    addresses       int64[n]    of each frame's ``frame_bytes`` bytes of pixels
    data_offsets     int64[n]    ``StagingArea.data_offset`` of each; -1: the pixels are elsewhere
    entry_offsets    int64[n]    ``StagingArea.entry_offset`` of each
    records         uint8[n,rb] in and out: frame records; ``pixels_crc`` and ``record_crc`` are set
    """
    for i in range(addresses.size):
        if data_offsets[i] >= 0:
            number = write_at(descriptor, addresses[i], frame_bytes, data_offsets[i])
            if number != 0:
                return int(number)
        record = records[i]
        address = address_of(record)
        _seal_record(record, address, np.int64(crc32c_at(addresses[i], frame_bytes)), seed)
        number = write_at(descriptor, address, record.size, entry_offsets[i])
        if number != 0:
            return int(number)
    return 0
