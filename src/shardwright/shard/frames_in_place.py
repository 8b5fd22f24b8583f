"""Frames whose pixels lie in the chunks of their slab before the others of it came: uncompressed partial
chunks. FORMAT.md, "Partial chunks in place".

A chunk without a codec is its frames' parts, one behind the other in storage order, each the rows and columns
that the chunk has of that frame, with fill value past the frame's edge. So a frame's part has a place in the
slot of each chunk, and readers of a shard in progress find it there.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import crc32c
import numpy as np

from shardwright.storage.files import open_regular, read_all, storage_errors

from .layout import slab_places

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .layout import ArrayLayout, StoreLayout
    from .shard_row_files import Placement

SLOT_ORDER: Final = "row_major"  # of the chunks in such a shard; never another, so that parts are found


def part_bytes(layout: ArrayLayout) -> int:
    """The size of one frame's part of a chunk."""
    image = layout.plane.levels[0]
    return image.chunk_rows * image.row_bytes


class FramesInPlace:
    """Reads frames from their parts in shards in progress, in any of ``placements``."""

    def __init__(self, layout: StoreLayout, placements: Sequence[Placement]) -> None:
        self._layout = layout
        self._placements = placements
        self._ranks: tuple[int, np.ndarray | None] = (-1, None)  # of the shard row that was read last

    def read(self, position: int) -> np.ndarray | None:
        """Returns uint8[frame_bytes], the pixels at a position; None if its shard row has no shards in
        progress (any more). Nothing says that they are those of a frame. Raises ``StorageError``."""
        layout = self._layout.of(position)
        grid, image = layout.grid, layout.plane.levels[0]
        slab, size = grid.slab_of_position(position), part_bytes(layout)
        shard_row = grid.shard_row_of_slab(slab)
        places = slab_places(layout, slab)
        offsets = self._offsets(shard_row, places.file, places.slot) + size * grid.place_in_slab(position)
        frame = np.empty((grid.frame_bytes // image.frame_row_bytes, image.frame_row_bytes), np.uint8)
        with ExitStack() as stack:
            files = {}
            for file in np.unique(places.file).tolist():
                path = self._working(shard_row, file)
                if path is None:
                    return None
                with storage_errors("open", path), suppress(FileNotFoundError):
                    files[file] = stack.enter_context(open_regular(path, buffering=0)).fileno(), path
            if len(files) < np.unique(places.file).size:
                return None
            for k, (file, offset) in enumerate(zip(places.file.tolist(), offsets.tolist(), strict=True)):
                descriptor, path = files[file]
                with storage_errors("read", path):
                    part = read_all(descriptor, offset, size)
                if len(part) < size:
                    return None
                top, left, rows, width = layout.plane.geometry[k].tolist()
                pixels = np.frombuffer(part, np.uint8).reshape(image.chunk_rows, image.row_bytes)
                frame[top : top + rows, left : left + width] = pixels[:rows, :width]
        return frame.ravel()

    def read_checked(self, position: int, pixels_crc: int) -> np.ndarray | None:
        """As ``read``; None as well if the pixels are not those of this checksum."""
        frame = self.read(position)
        return frame if frame is not None and crc32c.crc32c(frame.data) == pixels_crc else None

    def _working(self, shard_row: int, file: int) -> Path | None:
        path = self._layout.of(shard_row).shard_path(shard_row, file)
        working = [placement.working(path) for placement in self._placements]
        return next((each for each in working if each.exists()), None)

    def _offsets(self, shard_row: int, file: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """As ``ShardRowFiles.offsets``."""
        layout = self._layout.of(shard_row)
        if self._ranks[0] != shard_row:
            self._ranks = shard_row, layout.slot_ranks(shard_row, SLOT_ORDER)
        ranks = self._ranks[1]
        rank = slot if ranks is None else ranks[file, slot]
        return layout.shard(shard_row, 0).data_start + rank * layout.slot_bytes
