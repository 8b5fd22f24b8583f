"""Reopens a shard row that was sealed before it was full: the acquisition ended early and was then resumed.

New files in progress get every chunk of the sealed shards except those of the reloaded slabs. The frames of
these are decoded into the staging area, or stay in their chunks (``shard.frames_in_place``), and are then
like any other frame of a slab that collects. Once all of that is durable the new files take their names, the
journal last. The old shards keep the final names until the shard row is sealed again, so readers miss
nothing. A crash before the journal has its name leaves the shard row as it was; a later crash costs no more
than with any open one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.codecs.chain import written_codecs
from shardwright.codecs.decode import decode_chunk
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.shard.frames_in_place import gather_frame
from shardwright.shard.layout import chunks_of_slab
from shardwright.shard.sealed_shard_row import SealedShardRow

from .closed_shard_rows import split_by_slab
from .commands import ReopenedShardRow
from .encoding import joined_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.shard.layout import ArrayLayout
    from shardwright.shard.shard_row_files import Placement, ShardRowFiles
    from shardwright.store.store_folder import StoreFolder

    from .commands import Joined, SlabReload
    from .encoding import SlabEncoder


def reopen_row(
    folder: StoreFolder,
    layout: ArrayLayout,
    shard_row: int,
    reload: SlabReload,
    create: Callable[[Placement], ShardRowFiles],
    encoder: SlabEncoder,
) -> ReopenedShardRow:
    """Reopens a shard row. ``create`` makes new files with ``REWRITE_SUFFIX``; ``encoder``: of its image.
    Raises ``ShardFormatError`` when the sealed shards cannot be read, or are not those that were sealed,
    ``StorageError``; the shard row then stays as it was sealed."""
    with SealedShardRow(
        layout,
        shard_row,
        folder.placements(),
        inner_checksum=folder.spec.arrays[layout.grid.image].chunk_checksum,
    ) as old:
        new = create(old.placement)
        try:
            made = _Reopening(folder, layout, encoder, old, new).run(reload)
            old.check()
            new.continue_behind(old.used() if new.live else None)
            new.sync()
            new.take_names(folder.owner.may_rename)
        except BaseException:
            with suppress(StorageError):
                new.discard_rewrite()
            raise
    return made


class _Reopening:
    """The reopening of one shard row: from its sealed shards (``old``) to ``new`` files."""

    def __init__(
        self,
        folder: StoreFolder,
        layout: ArrayLayout,
        encoder: SlabEncoder,
        old: SealedShardRow,
        new: ShardRowFiles,
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._encoder = encoder
        self._old = old
        self._new = new
        self._spec = folder.spec.arrays[layout.grid.image]
        self._codecs = written_codecs(self._spec)
        # by slab that is reloaded, of frames that stay in chunks
        self._joined: dict[int, Joined] | None = {} if folder.spec.grids.in_place else None

    def run(self, reload: SlabReload) -> ReopenedShardRow:
        grid = self._layout.grid
        records = self._folder.log.shard_row_records(self._old.shard_row)
        by_slab = split_by_slab(self._folder.spec.grids, records)
        staging, slots, taken, staged = self._folder.staging, reload.slots, [], []
        for slab in reload.slabs:
            mine, in_slab = by_slab[slab]
            with suppress(ShardFormatError):  # damaged: it stays as it is and remains closed
                stage = self._stage if self._joined is None else self._put_in_place
                stage(slab, records[mine], in_slab, slots[: mine.size])
                staged.append((records[mine], slots[: mine.size]))
                taken.append(slab)
                slots = slots[mine.size :]
        if taken and staging is not None:
            staging.sync()
        copied = 0
        for slab, (mine, in_slab) in by_slab.items():
            if slab not in taken:
                table = np.zeros(grid.frames_per_slab, records.dtype)
                table[in_slab] = records[mine]
                copied += self._old.copy_slab(slab, table, self._new)
        used = np.concatenate([reload.slots[:0], *(used for _, used in staged)])
        return ReopenedShardRow(
            self._new,
            frozenset(taken),
            np.concatenate([records[:0], *(found for found, _ in staged)]),
            used,
            self._folder.staged_at(used),
            slots,
            self._old.shards,
            self._old.allocated_bytes,
            copied,
            self._joined,
        )

    def _stage(self, slab: int, records: np.ndarray, in_slab: np.ndarray, slots: np.ndarray) -> None:
        """Decodes the frames of one slab, at ``in_slab``, into the staging area. It takes one band of chunks
        at a time for all frames: a whole slab may be larger than the memory limit. Raises
        ``ShardFormatError``, ``StorageError``."""
        staging, plane = self._folder.staging, self._layout.plane
        image = plane.levels[0]  # the levels above it are made from its frames again
        assert staging is not None, "slabs of several frames have one"
        where = chunks_of_slab(self._layout, slab)
        crcs = [0] * in_slab.size
        tops = plane.geometry[: image.stop, 0]
        for top in np.unique(tops).tolist():
            mine = np.flatnonzero(tops == top)
            rows = int(plane.geometry[mine[0], 2])
            band = self._fill(in_slab.size, rows)
            for i, chunk in zip(mine.tolist(), self._old.chunks(where.only(mine)), strict=True):
                _, left, _, width = plane.geometry[i].tolist()
                if chunk is not None:
                    pixels = decode_chunk(chunk, self._codecs, self._layout.grid.chunk_bytes)
                    tiles = pixels.reshape(-1, image.chunk_rows, image.row_bytes)
                    band[:, :, left : left + width] = tiles[in_slab, :rows, :width]
            for k, slot in enumerate(slots.tolist()):
                data = band[k].tobytes()
                staging.put_pixels(slot, top * image.frame_row_bytes, data)
                crcs[k] = crc32c.crc32c(data, crcs[k])
        for k, slot in enumerate(slots.tolist()):
            staging.put_record(slot, records[k], crcs[k])

    def _put_in_place(self, slab: int, records: np.ndarray, in_slab: np.ndarray, slots: np.ndarray) -> None:
        """Copies the chunks of one slab to their slots, from which its frames are then in place. It has a
        chunk in memory, then a frame. Raises as ``_stage`` does."""
        staging, new, where = self._folder.staging, self._new, chunks_of_slab(self._layout, slab)
        assert staging is not None, "slabs of several frames have one"
        assert self._joined is not None, "frames are in place"
        offsets = new.offsets(where.file, where.slot).tolist()
        for file, offset, chunk in zip(where.file.tolist(), offsets, self._old.chunks(where), strict=True):
            if chunk is not None:
                new.slots[file].copy_in(offset, chunk)
        for record, index_in_slab, slot in zip(records, in_slab.tolist(), slots.tolist(), strict=True):
            pixels = gather_frame(
                self._layout,
                int(record["position"]),
                new.offsets,
                lambda file, offset, nbytes: new.slots[file].read(offset, nbytes),
            )
            assert pixels is not None, "the files have room for all chunks"
            adds = self._encoder.join(pixels, index_in_slab)
            self._joined[slab] = joined_with(self._joined.get(slab), adds)
            staging.put_record(slot, record, crc32c.crc32c(pixels.data))

    def _fill(self, frames: int, rows: int) -> np.ndarray:
        row_bytes = self._layout.plane.levels[0].frame_row_bytes
        row = np.frombuffer(self._spec.fill_bytes() * (row_bytes // self._spec.itemsize), np.uint8)
        return np.tile(row, (frames, rows, 1))
