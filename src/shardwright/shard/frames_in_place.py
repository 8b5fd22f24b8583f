"""Frames whose pixels lie in the chunks of their slab before the others of it came: uncompressed partial
chunks. FORMAT.md, "Partial chunks in place".

A chunk without a codec is its frames' parts, one behind the other in storage order, each the rows and columns
that the chunk has of that frame, with fill value past the frame's edge. So a frame's part has an offset in
the slot of each chunk, and readers of a shard in progress find it there.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.disk import beneath
from shardwright.disk.files import open_regular, read_all, storage_errors
from shardwright.model.write_options import SLOT_ORDER

from .layout import chunks_of_slab

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

    from .layout import ArrayLayout, StoreLayout
    from .shard_row_files import Placement


IN_PLACE = -1  # as the address of a frame: its pixels are in the chunks of its slab


def part_bytes(layout: ArrayLayout) -> int:
    """The size of one frame's part of a chunk."""
    image = layout.plane.levels[0]
    return image.chunk_rows * image.row_bytes


def gather_frame(
    layout: ArrayLayout,
    position: int,
    offsets: Callable[[np.ndarray, np.ndarray], np.ndarray],
    read: Callable[[int, int, int], bytes],
) -> np.ndarray | None:
    """Returns uint8[frame_bytes], the pixels at a position, from their parts. ``offsets``: as
    ``ShardRowFiles.offsets``; ``read``: bytes of a file of the shard row, by its number, offset and length,
    one file after the other; where these are fewer, None is returned."""
    grid, image, size = layout.grid, layout.plane.levels[0], part_bytes(layout)
    slab_chunks = chunks_of_slab(layout, grid.slab_of_position(position))
    starts = offsets(slab_chunks.file, slab_chunks.slot) + size * grid.index_in_slab(position)
    frame = np.empty((grid.frame_bytes // image.frame_row_bytes, image.frame_row_bytes), np.uint8)
    for k in np.argsort(slab_chunks.file, kind="stable").tolist():
        part = read(int(slab_chunks.file[k]), int(starts[k]), size)
        if len(part) < size:
            return None
        top, left, rows, width = layout.plane.geometry[k].tolist()
        pixels = np.frombuffer(part, np.uint8).reshape(image.chunk_rows, image.row_bytes)
        frame[top : top + rows, left : left + width] = pixels[:rows, :width]
    return frame.ravel()


class FramesInPlace:
    """Reads frames from their parts in shards in progress. ``placements``: one of them has the shard row's
    journal, and its shards."""

    def __init__(self, layout: StoreLayout, placements: Sequence[Placement]) -> None:
        self._layout = layout
        self._placements = placements
        self._ranks: tuple[int, np.ndarray | None] = (-1, None)  # of the shard row that was read last

    def read(self, position: int) -> np.ndarray | None:
        """Returns uint8[frame_bytes], the pixels at a position; None if its shard row has no shards in
        progress (any more). Nothing says that they are those of a frame. Raises ``StorageError``."""
        layout = self._layout.of(position)
        shard_row = layout.grid.shard_row_of_slab(layout.grid.slab_of_position(position))
        journals = {each: each.journal(shard_row) for each in self._placements}
        with storage_errors("look for", self._placements[0].journal(shard_row)):
            placement = next((each for each, path in journals.items() if beneath.exists(path)), None)
        if placement is None:
            return None
        opened: tuple[int, IO[bytes] | None] = (-1, None)  # one at a time: an array may have many

        def read(file: int, offset: int, nbytes: int) -> bytes:
            nonlocal opened
            path = placement.working(layout.shard_path(shard_row, file))
            with storage_errors("read", path):
                if opened[0] != file:
                    close()
                    opened = file, None
                    with suppress(FileNotFoundError):
                        opened = file, open_regular(path, buffering=0)
                return b"" if opened[1] is None else read_all(opened[1].fileno(), offset, nbytes)

        def close() -> None:
            if opened[1] is not None:
                opened[1].close()

        try:
            return gather_frame(layout, position, partial(self._offsets, shard_row), read)
        finally:
            close()

    def read_checked(self, position: int, pixels_crc: int) -> np.ndarray | None:
        """As ``read``; None as well if the pixels are not those of this checksum."""
        frame = self.read(position)
        return frame if frame is not None and crc32c.crc32c(frame.data) == pixels_crc else None

    def _offsets(self, shard_row: int, file: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """As ``ShardRowFiles.offsets``."""
        layout = self._layout.of(shard_row)
        if self._ranks[0] != shard_row:
            self._ranks = shard_row, layout.slot_ranks(shard_row, SLOT_ORDER)
        ranks = self._ranks[1]
        rank = slot if ranks is None else ranks[file, slot]
        return layout.shard(shard_row, 0).data_start + rank * layout.slot_bytes
