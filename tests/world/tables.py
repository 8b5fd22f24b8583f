"""The files of an unfinished store that say what is stored, and the frames that a byte of them is about."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.model.names import WORKSPACE
from shardwright.scan.unfinished_store import store_layout
from shardwright.shard.file_header import file_seed
from shardwright.shard.frame_log import (
    _BLOCK_HEADER,
    _BLOCK_MAGIC,
    _FILE_HEADER,
    BLOCK_HEADER_BYTES,
    HEADER_PAGE_BYTES,
)
from shardwright.shard.frame_record import record_of
from shardwright.shard.journal import CHUNK_ENTRY, JournalLayout
from shardwright.shard.layout import PAGE_BYTES, page_aligned, slabs_of_shard_row
from shardwright.shard.row_checksum import checked_rows
from shardwright.shard.shard_row_files import (
    JOURNAL_SUFFIX,
    LOG_NAME,
    STAGING_NAME,
    WORKING_SUFFIX,
    shard_of_working,
)
from shardwright.shard.shared_journal import is_shared, read_header
from shardwright.shard.staging import _EVERY_SHARD_ROW, _HEADER, StagingHeader, _data_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.shard.layout import ArrayLayout

    from .story import Frame


def staged_at(descriptor: int, place: int, spec: AcquisitionSpec, *, by_record: bool) -> set[int]:
    """Returns the sequence of the frame in a staging area whose pixels lie at ``place``, or (``by_record``)
    its record; none if there are no pixels or no record."""
    header = StagingHeader(*_HEADER.unpack(os.pread(descriptor, _HEADER.size, 0)))
    record = record_of(spec)
    start = _data_start(header.slots, record)
    if place < start:
        slot = (place - PAGE_BYTES) // record.itemsize if by_record else -1
    else:
        slot = (place - start) // page_aligned(header.frame_bytes) if header.frame_bytes else -1
    if not 0 <= slot < header.slots:
        return set()
    data = os.pread(descriptor, record.itemsize, PAGE_BYTES + slot * record.itemsize)
    return {int(np.frombuffer(data, record)["sequence"][0])}


def tables_in(store: Path) -> list[Path]:
    """Returns the journals, the staging area and the frame log."""
    paths = sorted((store / WORKSPACE).rglob("*"))
    return [path for path in paths if path.name in (LOG_NAME, STAGING_NAME) or _is_journal(path)]


def _is_journal(path: Path) -> bool:
    return path.name.endswith(JOURNAL_SUFFIX)


def written_places(path: Path) -> np.ndarray:
    """Returns int64[n]: the places of bytes that are not 0. Only of journals those of the header are among
    them: with another one of the others damaged the store is left as it is."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    first = 0 if _is_journal(path) else PAGE_BYTES
    return first + np.flatnonzero(data[first:])


def blocks_behind(path: Path, place: int, spec: AcquisitionSpec) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (shard row, frame records) of each whole block of a frame log that ends behind ``place``: what
    follows a damaged block is cut off. The shard row is -1 for events."""
    data, record = path.read_bytes(), record_of(spec)
    seed = crc32c.crc32c(np.frombuffer(data, _FILE_HEADER, 1)["identity"][0].tobytes())
    at = HEADER_PAGE_BYTES
    while len(head := data[at : at + BLOCK_HEADER_BYTES]) == BLOCK_HEADER_BYTES:
        magic, _, _, shard_row, count, payload_crc, header_crc = _BLOCK_HEADER.unpack(head)
        if magic != _BLOCK_MAGIC or crc32c.crc32c(head[:-4], seed) != header_crc:
            return
        start, at = at + BLOCK_HEADER_BYTES, at + BLOCK_HEADER_BYTES + count * record.itemsize
        if crc32c.crc32c(data[start:at], seed) != payload_crc:
            return
        if at > place:
            yield shard_row, np.frombuffer(data[start:at], record)


def rows_at(
    path: Path,
    place: int,
    spec: AcquisitionSpec,
    frames: tuple[Frame, ...],
    sent: Iterable[int],
    *,
    is_written: bool,
) -> set[int]:
    """Returns the shard rows of which a frame log or a journal may say nothing any more with a byte damaged:
    a journal with one of its header. The arguments are those of ``frames_at``."""
    if path.name == LOG_NAME and is_written:
        return {spec.grids.shard_row_of_slab(spec.grids.slab_of_position(frames[n].position)) for n in sent}
    if path.name == LOG_NAME:
        return {row for row, _ in blocks_behind(path, place, spec) if row >= 0}
    if not _is_journal(path) or place >= PAGE_BYTES:
        return set()
    # of a shared one also rows that have ended, which a power cut may have kept with the file
    return {*_bases(path, spec), *(_rows_in(path) if is_shared(path.name) else ())}


def _rows_in(path: Path) -> list[int]:
    page = path.read_bytes()[:PAGE_BYTES]
    (count,) = struct.unpack_from("<I", page, 44)
    return [row for row, _ in struct.iter_unpack("<qq", page[64 : 64 + 16 * count])]


def _bases(path: Path, spec: AcquisitionSpec) -> dict[int, int]:
    """Returns the shard rows that a journal has, and how far behind their places in one of their own its
    tables lie."""
    if not is_shared(path.name):
        return {int(path.name.removesuffix(JOURNAL_SUFFIX)): 0}
    identity = path.read_bytes()[16:32]
    try:
        return read_header(path, identity, record_of(spec).itemsize, lambda _: True).bases
    except ShardFormatError:
        return {}  # not begun


def frames_of_shard(
    path: Path, spec: AcquisitionSpec, frames: tuple[Frame, ...], sent: Iterable[int]
) -> set[int] | None:
    """Returns which of the sequences that were ``sent`` may have a chunk in a shard in progress, and nothing
    else: of a shard row that is split those of its slab alone. None if no frame was sent to its shard
    row."""
    layouts, shard = store_layout(spec), shard_of_working(path.name)
    rows = {spec.grids.shard_row_of_slab(spec.grids.slab_of_position(frames[n].position)) for n in sent}
    for row in rows:
        layout, names = layouts.of(row), layouts.of(row).shard_paths(row)
        if shard in names:
            slabs = set(slabs_of_shard_row(layout, row))
            if layout.grid.is_split:
                layer = names.index(shard) // layout.files_per_slab
                slabs = {slab for slab in slabs if layout.layer_of_slab(slab)[1] == layer}
            return _of_slabs(slabs, frames, sent, spec) - _staged_beside(path, row, spec)
    return None


def frames_at(
    path: Path,
    place: int,
    spec: AcquisitionSpec,
    frames: tuple[Frame, ...],
    sent: Iterable[int],
    *,
    is_written: bool,
) -> set[int]:
    """Returns which of the sequences that were ``sent`` may be lost with a byte: that of the staged frame,
    those of a slab whose records or entries a journal has there, all of its shard row with its header, and of
    the frame log those in its block and in later ones. ``is_written``: an old writer goes on behind the byte,
    and moves frames from the staging area into journals, and from these into the frame log."""
    if path.name == STAGING_NAME:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return staged_at(descriptor, place, spec, by_record=True)
        finally:
            os.close(descriptor)
    if path.name == LOG_NAME and is_written:
        return set(sent)
    if path.name == LOG_NAME:
        return {n for _, records in blocks_behind(path, place, spec) for n in records["sequence"].tolist()}
    all_lost: set[int] = set()
    for row, base in _bases(path, spec).items():
        # the pages of the header and of the states, before the tables of the first row
        within = place if place < PAGE_BYTES else place - base if place >= base + PAGE_BYTES else -1
        lost = _of_slabs(_slabs_at(within, row, spec), frames, sent, spec)
        # a row that the log has as sealed may have no shard: all of it is fill value
        is_closed = place < PAGE_BYTES and row in _logged(path.with_name(LOG_NAME), spec)
        all_lost |= lost if is_written or is_closed else lost - _staged_beside(path, row, spec)
    return all_lost


def _logged(log: Path, spec: AcquisitionSpec) -> set[int]:
    """Returns the shard rows that a frame log has as sealed."""
    return {row for row, _ in blocks_behind(log, 0, spec)} if log.exists() else set()


def _slabs_at(place: int, row: int, spec: AcquisitionSpec) -> set[int]:
    """Returns the slabs of which a journal has something at ``place``: all of them with its header there."""
    layout = store_layout(spec).of(row)
    tables, slabs = JournalLayout.of(layout, row, record_of(spec)), slabs_of_shard_row(layout, row)
    if 0 <= place < PAGE_BYTES:
        return set(slabs)
    found = set()
    for slab in slabs:
        layer = layout.layer_of_slab(slab)[1]
        parts = [(tables.frame_records_offset(layer), tables.slab_record_bytes)]
        parts += [
            (tables.chunk_entry_offset(file, slot), slots * CHUNK_ENTRY.itemsize)
            for file, slot, slots in tables.slots_of_slab(layer)
        ]
        if any(start <= place < start + nbytes for start, nbytes in parts):
            found.add(slab)
    return found


def _of_slabs(
    slabs: set[int], frames: tuple[Frame, ...], sent: Iterable[int], spec: AcquisitionSpec
) -> set[int]:
    return {n for n in sent if spec.grids.slab_of_position(frames[n].position) in slabs}


def _staged_beside(path: Path, row: int, spec: AcquisitionSpec) -> set[int]:
    """Returns the sequences of the frames in the staging area beside a file of a shard row that are there
    with their pixels: they are taken from there. Not those of which a shard may have its name, their own in a
    row of many shards, or else any of the row: their slab takes no frame any more. A power cut may leave it
    both names, and a row that is opened again keeps the sealed ones: without its journal nobody knows that it
    is open, and frames that are staged for it are lost."""
    layout = store_layout(spec).of(row)
    area, working = path.with_name(STAGING_NAME), path.parent.glob(f"*{WORKING_SUFFIX}")
    store = next(folder.parent for folder in path.parents if folder.name == WORKSPACE)
    names = {name for each in working if not (store / (name := shard_of_working(each.name))).exists()}
    if not area.exists():
        return set()
    data, record = area.read_bytes(), record_of(spec)
    header = StagingHeader(*_HEADER.unpack_from(data))
    if not header.frame_bytes:  # their pixels are in their chunks
        return set()
    records = np.frombuffer(data, record, header.slots, PAGE_BYTES)
    start, found = _data_start(header.slots, record), set()
    for slot in np.flatnonzero(checked_rows(records, file_seed(header.identity, _EVERY_SHARD_ROW))).tolist():
        at, position = start + slot * page_aligned(header.frame_bytes), int(records["position"][slot])
        slab = spec.grids.slab_of_position(position)
        if spec.grids.shard_row_of_slab(slab) == row and not names.issuperset(_shards_of(slab, row, layout)):
            continue
        if crc32c.crc32c(data[at : at + spec.grids.of(position).frame_bytes]) == records["pixels_crc"][slot]:
            found.add(int(records["sequence"][slot]))
    return found


def _shards_of(slab: int, row: int, layout: ArrayLayout) -> list[str]:
    """Returns the paths of all shards of a shard row that have a part of a slab."""
    if not layout.grid.is_split:
        return layout.shard_paths(row)
    first = layout.layer_of_slab(slab)[1] * layout.files_per_slab
    return layout.shard_paths(row)[first : first + layout.files_per_slab]
