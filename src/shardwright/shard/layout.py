"""The layout of a shard file: pure arithmetic from the chunk grid and the codec's worst case, known before
any pixel arrives.

    index at the end:    | slot 0 | slot 1 | ... | slot n-1 | room for the index |
                         sealed: the index follows the last chunk, the tail is cut
    index at the start:  | index, to a page edge | slot 0 | slot 1 | ... | slot n-1 |
    without shards:      | slot 0 |
                         sealed: the tail is cut, so that the file is the encoded chunk

A *layer* is the set of one slab's chunks in one shard file: they are neighbours in slot order, so that a slab
is written as one run. Slots exist only for chunks that touch the array; chunks past its edge have an index
entry (absent) but no slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.acquisition_spec import ARRAY_NAME, level_path
from shardwright.array.grid import image_of
from shardwright.model.write_options import live_form

from .chunk_order import chunk_ranks
from .index import LITTLE_ENDIAN, LITTLE_ENDIAN_CRC32C, ShardIndex

if TYPE_CHECKING:
    from shardwright.array.grid import Grid, Grids
    from shardwright.array.spec import ArraySpec, IndexLocation
    from shardwright.model.write_options import LiveMode

    from .chunk_order import Order
    from .index import IndexCodec

# Slots never share a page of the page cache or a block of the usual filesystems: workers fill neighbours at
# once without a lock, O_DIRECT takes whole pages alone, and where preallocation covers the first write of a
# page alone (btrfs) a second one could find the disk full.
PAGE_BYTES = 4096


def page_aligned(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class ShardLayout:
    """Layout of one shard file. ``chunks`` counts index entries (the whole shard), ``slots`` the chunks that
    touch the array."""

    chunks: int
    slots: int
    slot_bytes: int
    index_location: IndexLocation
    index_codec: IndexCodec = LITTLE_ENDIAN_CRC32C

    @property
    def index(self) -> ShardIndex:
        return ShardIndex(self.chunks, self.index_location, self.index_codec, self.slot_bytes)

    @property
    def index_bytes(self) -> int:
        return self.index.nbytes

    @property
    def data_start(self) -> int:
        return page_aligned(self.index.before_bytes)

    @property
    def file_bytes(self) -> int:
        """The preallocated size: every slot and the index."""
        return self.data_start + self.slots * self.slot_bytes + page_aligned(self.index.behind_bytes)


def largest_shard(grid: Grid, max_encoded_bytes: int, index_location: IndexLocation) -> ShardLayout:
    """Returns the layout of the largest shard file of an array, without building any table."""
    # The limits are derived from this. Tables of a hostile grid would take the memory before the budget is
    # looked at.
    layers = math.prod(grid.shard_chunks)
    return ShardLayout(
        layers * math.prod(grid.plane_shard_chunks),
        layers
        * math.prod(min(s, n) for s, n in zip(grid.plane_shard_chunks, grid.plane_chunks, strict=True)),
        page_aligned(max_encoded_bytes),
        index_location,
    )


def plane_table_bytes(grid: Grid) -> int:
    """Returns the memory of an array's ``PlaneChunks``, and as much again while they are built and used."""
    chunks = sum(math.prod(level.plane_chunks) for level in (grid, *grid.levels))
    return 2 * (4 + 3) * 8 * chunks  # four numbers of the geometry; file, entry and slot


@dataclass(frozen=True)
class PlaneLevel:
    """The part of a level in the tables of ``PlaneChunks``: chunks [first, stop), files from ``first_file``
    on.

    chunk_rows, row_bytes, frame_row_bytes: the rows in which the kernels copy. A chunk as wide as the frame
                is copied a frame at a time.
    """

    grid: Grid
    first: int
    stop: int
    first_file: int
    chunk_rows: int
    row_bytes: int
    frame_row_bytes: int


@dataclass(frozen=True)
class PlaneChunks:
    """The inner chunks that cover one frame, of the image and then of each level above it, as tables, file by
    file, row-major within a file. Equal for every slab of an array.

    Chunks of one file are neighbours, so that what a task encodes for it can be written as one run. Files of
    all levels are numbered through.

    geometry    int64[n,4]  offset of each chunk in the frame, as ``kernels.gather`` takes it: top row, left
                byte, rows, width in bytes
    file        int64[n]    the shard file of the shard row that holds the chunk
    entry       int64[n]    its index entry within a layer of that file
    slot        int64[n]    its slot within a layer of that file
    layer_slots int64[files]  slots of one layer in each file
    layer_entries           index entries of one layer in every file
    levels                  the image itself first
    """

    geometry: np.ndarray
    file: np.ndarray
    entry: np.ndarray
    slot: np.ndarray
    layer_slots: np.ndarray
    layer_entries: int
    levels: tuple[PlaneLevel, ...]

    @classmethod
    def of(cls, grid: Grid) -> PlaneChunks:
        levels: list[PlaneLevel] = []
        tables, layer_slots, first, files = [], [], 0, 0
        for level in (grid, *grid.levels):
            geometry, rows = _geometry(level)
            file, entry, slot, slots = _chunk_slots(level)
            # Stable: within a file they stay row-major, as the slots are, so that a task's chunks of a file
            # are neighbours there as well.
            order = np.argsort(file, kind="stable")
            levels.append(PlaneLevel(level, first, first + order.size, files, *rows))
            tables.append([geometry[order], file[order] + files, entry[order], slot[order]])
            layer_slots.append(slots)
            first, files = first + order.size, files + slots.size
        geometry, file, entry, slot = (np.concatenate(t).astype(np.int64) for t in zip(*tables, strict=True))
        layer_entries = math.prod(grid.plane_shard_chunks)
        return cls(geometry, file, entry, slot, np.concatenate(layer_slots), layer_entries, tuple(levels))

    def level_of(self, file: int) -> int:
        """Returns the level to which a shard file belongs, 0 for the image itself."""
        return sum(level.first_file <= file for level in self.levels) - 1


def _geometry(grid: Grid) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Returns the offsets of the chunks in a frame, row-major, and (chunk_rows, row_bytes,
    frame_row_bytes)."""
    (rows, columns), (cy, cx), itemsize = grid.frame_shape, grid.plane_chunk, grid.itemsize
    ny, nx = grid.plane_chunks
    gy, gx = (axis.ravel() for axis in np.mgrid[0:ny, 0:nx])
    # Rows of such a chunk follow each other in the frame: one copy in place of one for each row. Not where
    # the last chunk has rows past the frame's edge: these are fill value, not the memory behind the frame.
    if cx == columns and rows % cy == 0:
        band = cy * cx * itemsize
        return np.stack([gy, 0 * gy, 0 * gy + 1, 0 * gy + band], axis=1), (1, band, band)
    height, width = np.minimum(cy, rows - gy * cy), np.minimum(cx, columns - gx * cx)
    geometry = np.stack([gy * cy, gx * cx * itemsize, height, width * itemsize], axis=1)
    return geometry, (cy, cx * itemsize, columns * itemsize)


def _chunk_slots(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns file, entry and slot of each chunk, row-major, and the slots of a layer of each file."""
    (sy, sx), (ny, nx), (shards_y, shards_x) = grid.plane_shard_chunks, grid.plane_chunks, grid.plane_shards
    gy, gx = (axis.ravel() for axis in np.mgrid[0:ny, 0:nx])
    live_y = np.minimum(sy, ny - np.arange(shards_y) * sy)
    live_x = np.minimum(sx, nx - np.arange(shards_x) * sx)
    return (
        (gy // sy) * shards_x + gx // sx,
        (gx % sx) * sy + gy % sy if grid.is_transposed else (gy % sy) * sx + gx % sx,
        (gy % sy) * live_x[gx // sx] + gx % sx,
        np.multiply.outer(live_y, live_x).ravel().astype(np.int64),
    )


@dataclass(frozen=True)
class ArrayLayout:
    """Layout of every shard of one array and of its levels: combines the grid, the plane tables and the slot
    size. ``path``: of the array in its store."""

    grid: Grid
    plane: PlaneChunks
    slot_bytes: int
    index_location: IndexLocation
    index_codec: IndexCodec = LITTLE_ENDIAN_CRC32C
    path: str = ARRAY_NAME

    @classmethod
    def of(
        cls,
        grid: Grid,
        max_encoded_bytes: int,
        index_location: IndexLocation,
        index_codec: IndexCodec = LITTLE_ENDIAN_CRC32C,
    ) -> ArrayLayout:
        return cls(grid, PlaneChunks.of(grid), page_aligned(max_encoded_bytes), index_location, index_codec)

    def live(self, live: LiveMode) -> LiveMode:
        """Returns ``live_form`` of this array in a store of that ``live``."""
        return live_form(live, shards=self.index_location != "none")

    @classmethod
    def of_spec(cls, spec: ArraySpec, grid: Grid, max_encoded_bytes: int) -> ArrayLayout:
        """Returns the layout of a specified array, whose codec makes a chunk of at most so many bytes."""
        index_codec = LITTLE_ENDIAN_CRC32C if spec.index_checksum else LITTLE_ENDIAN
        return cls.of(grid, max_encoded_bytes, spec.actual_index_location, index_codec)

    def image(self, grid: Grid, path: str) -> ArrayLayout:
        """Returns the layout of another image with the same array, at ``path``."""
        # The tables are shared: of a plate there are thousands of these.
        return replace(self, grid=grid, path=path)

    @property
    def index_bytes(self) -> int:
        """The size of one shard's index."""
        return ShardIndex(self.chunks_per_shard, self.index_location, self.index_codec).nbytes

    @property
    def files_per_slab(self) -> int:
        return len(self.plane.layer_slots)

    def files_of(self, shard_row: int) -> int:
        """Returns the number of files of a shard row. If it is split, those of its first slab come first, and
        so on; there are fewer at the array's far edges."""
        grid = self.grid
        shards = math.prod(grid.shard_row_extent_chunks(shard_row)) if grid.is_split else 1
        return self.files_per_slab * shards

    @property
    def chunks_per_shard(self) -> int:
        return math.prod(self.grid.shard_chunks) * self.plane.layer_entries

    def shard(self, shard_row: int, file: int) -> ShardLayout:
        """Returns the layout of one file of a shard row; smaller at the array's far edges."""
        layers = 1 if self.grid.is_split else math.prod(self.grid.shard_row_extent_chunks(shard_row))
        return ShardLayout(
            self.chunks_per_shard,
            layers * int(self.plane.layer_slots[file % self.files_per_slab]),
            self.slot_bytes,
            self.index_location,
            self.index_codec,
        )

    def slot_ranks(self, shard_row: int, order: Order) -> np.ndarray | None:
        """Returns int64[files, slots]: the rank of each slot's chunk among those of its file in an
        ``order``, which is that of the whole shard (``chunk_order``), without the chunks that have no slot.
        None if all slots are in that order by their numbers."""
        grid = self.grid
        whole, live = grid.stored(grid.shard_chunks), grid.stored(grid.shard_row_extent_chunks(shard_row))
        layers = np.zeros(1, np.int64)
        for along, most in zip((1,) * len(whole) if grid.is_split else live, whole, strict=True):
            layers = np.add.outer(layers * most, np.arange(along)).ravel()
        rank = chunk_ranks(order, self._shard_chunks)
        ranks = np.zeros((self.files_per_slab, layers.size * int(self.plane.layer_slots.max())), np.int64)
        in_order = True
        for file in range(self.files_per_slab):
            mine = self.plane.file == file
            entries = self.plane.entry[mine][np.argsort(self.plane.slot[mine])]
            of_slot = rank[np.add.outer(layers * self.plane.layer_entries, entries).ravel()]
            ranks[file, np.argsort(of_slot)] = np.arange(of_slot.size)
            in_order = in_order and bool((np.diff(of_slot) > 0).all())
        # None also says that slot k lies at its number: the journal is then of version 1, which earlier
        # releases read.
        return None if in_order else np.tile(ranks, (self.files_of(shard_row) // self.files_per_slab, 1))

    @property
    def _shard_chunks(self) -> tuple[int, ...]:
        """Inner chunks of a shard along each axis of the array, in storage order."""
        rows, columns = self.grid.plane_shard_chunks
        plane = (columns, rows) if self.grid.is_transposed else (rows, columns)
        return (*self.grid.stored(self.grid.shard_chunks), *plane)

    def layer_of_slab(self, slab: int) -> tuple[int, int]:
        """Returns (rank among index layers, rank among slot layers) of a slab within its shard row, both in
        storage order. If that is split the latter is the rank of the slab's own shards as well."""
        grid = self.grid
        shard_row = grid.shard_row_of_slab(slab)
        inside = grid.stored(
            tuple(g % s for g, s in zip(grid.slab_coordinates(slab), grid.row_slabs, strict=True))
        )
        whole, live = grid.stored(grid.shard_chunks), grid.stored(grid.shard_row_extent_chunks(shard_row))
        index_layer = slot_layer = 0
        for i, all_of_axis, live_of_axis in zip(inside, whole, live, strict=True):
            index_layer = index_layer * all_of_axis + i
            slot_layer = slot_layer * live_of_axis + i
        return (0 if grid.is_split else index_layer), slot_layer

    def array_path(self, file: int) -> str:
        """The path in the store of the array to which a file of a shard row belongs, e.g. ``0``, or ``2`` for
        level 2."""
        return level_path(self.path, self.plane.level_of(file % self.files_per_slab))

    def paths_of_files(self, shard_row: int) -> list[str]:
        """Returns ``array_path`` of each file of a shard row."""
        of_slab = [self.array_path(file) for file in range(self.files_per_slab)]
        return of_slab * (self.files_of(shard_row) // self.files_per_slab)

    def shard_key(self, shard_row: int, file: int) -> str:
        """The Zarr chunk key of one file in its array, e.g. ``c/0/0/1``."""
        slot_layer, file = divmod(file, self.files_per_slab)
        level = self.plane.levels[self.plane.level_of(file)]
        shards_x = level.grid.plane_shards[1]
        y, x = divmod(file - level.first_file, shards_x)
        plane = (x, y) if self.grid.is_transposed else (y, x)
        return "/".join(["c", *map(str, (*self._shard_coordinates(shard_row, slot_layer), *plane))])

    def chunk_place(self, slab: int, chunk: int) -> tuple[str, list[int]]:
        """Returns the path of the array in which a chunk of a slab is, and the chunk's coordinates there;
        ``chunk`` as ``plane`` numbers it."""
        number = self.plane.level_of(int(self.plane.file[chunk]))
        level, (top, left) = self.plane.levels[number], self.plane.geometry[chunk, :2].tolist()
        y, x = top // level.chunk_rows, left // level.row_bytes
        ends = (x, y) if self.grid.is_transposed else (y, x)
        return level_path(self.path, number), [*self.grid.stored(self.grid.slab_coordinates(slab)), *ends]

    def _shard_coordinates(self, shard_row: int, slot_layer: int) -> list[int]:
        """Returns the coordinates of a shard along the frame axes, in storage order. ``slot_layer``: of its
        slab, if the shard row is split."""
        grid = self.grid
        corner = [h * n for h, n in zip(grid.shard_row_coordinates(shard_row), grid.row_shards, strict=True)]
        coordinates = list(grid.stored(tuple(corner)))
        if grid.is_split:
            live = grid.stored(grid.shard_row_extent_chunks(shard_row))
            for axis in range(len(live) - 1, -1, -1):
                slot_layer, within = divmod(slot_layer, live[axis])
                coordinates[axis] += within
        return coordinates

    def file_of_shard(self, level: int, shard: tuple[int, ...]) -> tuple[int, int] | None:
        """Returns the shard row and the number of its file that a shard of the array, or of a level of it,
        is; None outside the array. Inverse of ``shard_key``."""
        grid, plane = self.grid, self.plane.levels[level]
        acquired = [0] * len(grid.counts)
        for axis, i in zip(grid.stored_axes, shard[:-2], strict=True):
            acquired[axis] = i
        if min(shard, default=0) < 0:
            return None
        row = grid.shard_row_at(tuple(i // n for i, n in zip(acquired, grid.row_shards, strict=True)))
        rows, columns = plane.grid.plane_shards
        y, x = reversed(shard[-2:]) if grid.is_transposed else shard[-2:]
        if row is None or y >= rows or x >= columns:
            return None
        slot_layer, live = 0, grid.shard_row_extent_chunks(row)
        if grid.is_split:
            for axis in grid.stored_axes:
                within = acquired[axis] % grid.row_shards[axis]
                if within >= live[axis]:
                    return None
                slot_layer = slot_layer * live[axis] + within
        return row, slot_layer * self.files_per_slab + plane.first_file + y * columns + x

    def shard_path(self, shard_row: int, file: int) -> str:
        """The path of one file in its store, e.g. ``0/c/0/0/1``."""
        return f"{self.array_path(file)}/{self.shard_key(shard_row, file)}"

    def shard_paths(self, shard_row: int) -> list[str]:
        """Returns ``shard_path`` of each file of a shard row."""
        return [self.shard_path(shard_row, file) for file in range(self.files_of(shard_row))]


@dataclass(frozen=True)
class StoreLayout:
    """The layouts of all arrays of a store, by the numbers of their images."""

    arrays: tuple[ArrayLayout, ...]
    grids: Grids

    def of(self, number: int) -> ArrayLayout:
        """Returns the layout of the image to which a position, a slab or a shard row belongs."""
        return self.arrays[image_of(number)]


@dataclass(frozen=True)
class SlabChunks:
    """One slab of a shard row. ``file``, ``slot``, ``entry``: int64[n], one element for each of its
    chunks."""

    slab: int
    slot_layer: int
    file: np.ndarray
    slot: np.ndarray
    entry: np.ndarray

    def only(self, chunks: np.ndarray) -> SlabChunks:
        """Returns some of its chunks, given by their numbers."""
        return SlabChunks(
            self.slab, self.slot_layer, self.file[chunks], self.slot[chunks], self.entry[chunks]
        )


def slabs_of_shard_row(layout: ArrayLayout, shard_row: int) -> list[int]:
    """Returns every slab of a shard row that lies inside the array, in acquisition order."""
    grid = layout.grid
    corner = [h * s for h, s in zip(grid.shard_row_coordinates(shard_row), grid.row_slabs, strict=True)]
    slabs = [0]
    for first, extent, count in zip(
        corner, grid.shard_row_extent_chunks(shard_row), grid.slab_counts, strict=True
    ):
        slabs = [slab * count + first + i for slab in slabs for i in range(extent)]
    return [grid.first + slab for slab in slabs]


def frames_of_shard_row(layout: ArrayLayout, shard_row: int) -> int:
    """Returns the number of places for frames in a shard row, inside the array."""
    return sum(map(layout.grid.frames_in_slab, slabs_of_shard_row(layout, shard_row)))


def chunks_of_slab(layout: ArrayLayout, slab: int, part: slice = slice(None)) -> SlabChunks:
    """Returns where a slab's chunks, or a part of them, are: files, slots, index entries."""
    plane, (index_layer, slot_layer) = layout.plane, layout.layer_of_slab(slab)
    file, slot, entry = plane.file[part], plane.slot[part], plane.entry[part]
    if layout.grid.is_split:
        return SlabChunks(slab, slot_layer, slot_layer * layout.files_per_slab + file, slot, entry)
    slot = slot_layer * plane.layer_slots[file] + slot
    return SlabChunks(slab, slot_layer, file, slot, index_layer * plane.layer_entries + entry)
