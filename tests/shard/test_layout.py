"""Where things lie in a shard file: relations that must hold for every layout, checked slot by slot."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.array.grid import Grid
from shardwright.shard.layout import (
    PAGE_BYTES,
    ArrayLayout,
    PlaneChunks,
    chunks_of_slab,
    largest_shard,
    page_aligned,
)


@st.composite
def grids(draw, limited=False):
    axes = draw(st.integers(0, 3))
    counts = [draw(st.integers(1, 6)) for _ in range(axes)]
    if axes and not limited and draw(st.booleans()):
        counts[0] = 0
    small = st.integers(1, 3)
    return Grid(
        counts=tuple(counts),
        chunk=tuple(draw(small) for _ in range(axes)),
        shard_chunks=tuple(draw(small) for _ in range(axes)),
        stored_axes=tuple(draw(st.permutations(range(axes)))),
        frame_shape=(draw(st.integers(1, 9)), draw(st.integers(1, 9))),
        plane_chunk=(draw(st.integers(1, 4)), draw(st.integers(1, 10))),
        plane_shard_chunks=(draw(small), draw(small)),
        itemsize=draw(st.sampled_from([1, 2, 4, 8])),
    )


def slabs_of_shard_row(grid: Grid, shard_row: int) -> list[int]:
    """Brute force: every slab of a few whose shard row this is."""
    most = (
        math.prod(grid.slab_counts)
        if not grid.unlimited
        else 4 * max(1, math.prod(grid.slab_counts[1:])) * grid.row_slabs[0]
    )
    return [slab for slab in range(most) if grid.shard_row_of_slab(slab) == shard_row]


@given(
    grid=grids(),
    max_encoded=st.integers(1, 3 * PAGE_BYTES),
    place=st.sampled_from(["end", "start"]),
    data=st.data(),
)
def test_slots_of_a_shard_tile_it(grid, max_encoded, place, data):
    layout = ArrayLayout.of(grid, max_encoded, place)
    shard_rows = (
        math.prod(grid.shard_row_counts)
        if not grid.unlimited
        else 3 * max(1, math.prod(grid.shard_row_counts[1:]))
    )
    shard_row = data.draw(st.integers(0, shard_rows - 1))
    plane = layout.plane
    for file in range(layout.files_of(shard_row)):
        shard = layout.shard(shard_row, file)
        slots, entries = [], []
        for slab in slabs_of_shard_row(grid, shard_row):
            index_layer, slot_layer = layout.layer_of_slab(slab)
            mine = plane.file == file
            slots += (slot_layer * plane.layer_slots[file] + plane.slot[mine]).tolist()
            entries += (index_layer * plane.layer_entries + plane.entry[mine]).tolist()
        assert sorted(slots) == list(range(shard.slots)), "every slot belongs to exactly one chunk"
        assert len(set(entries)) == len(entries) == shard.slots
        assert (
            max(entries) < shard.chunks == math.prod(grid.shard_chunks) * math.prod(grid.plane_shard_chunks)
        )
        assert [e for _, e in sorted(zip(slots, entries, strict=True))] == sorted(entries), (
            "slots lie in the order of the index"
        )
        assert shard.slot_bytes % PAGE_BYTES == 0
        assert max_encoded <= shard.slot_bytes < max_encoded + PAGE_BYTES
        assert shard.data_start % PAGE_BYTES == 0
        assert (shard.data_start >= shard.index_bytes) == (place == "start")
        room_behind = shard.file_bytes - shard.data_start - shard.slots * shard.slot_bytes
        assert room_behind == (0 if place == "start" else page_aligned(shard.index_bytes))
        largest = largest_shard(grid, max_encoded, place)
        assert shard.slots <= largest.slots == math.prod(grid.shard_chunks) * max(layout.plane.layer_slots)
        assert (shard.chunks, shard.slot_bytes) == (largest.chunks, largest.slot_bytes)
        assert shard.file_bytes <= largest.file_bytes


@given(grid=grids(limited=True))
def test_keys_and_entries_are_those_of_the_zarr_grid(grid):
    """Each chunk's shard key and index entry against plain arithmetic on the chunk's coordinates in storage
    order."""
    layout = ArrayLayout.of(grid, 1, "end")
    plane = layout.plane
    stored_shard = (*grid.stored(grid.shard_chunks), *grid.plane_shard_chunks)
    chunks_y, chunks_x = grid.plane_chunks
    for slab in range(math.prod(grid.slab_counts)):
        frame_chunk = grid.stored(grid.slab_coordinates(slab))
        index_layer, _ = layout.layer_of_slab(slab)
        places = list(itertools.product(range(chunks_y), range(chunks_x)))
        shards_y, shards_x = grid.plane_shard_chunks
        # file by file, row-major within one
        places.sort(key=lambda place: (place[0] // shards_y, place[1] // shards_x))
        for i, (y, x) in enumerate(places):
            chunk = (*frame_chunk, y, x)
            assert layout.chunk_place(slab, i) == (layout.path, list(chunk))
            key = "/".join(["c", *(str(c // s) for c, s in zip(chunk, stored_shard, strict=True))])
            inside = tuple(c % s for c, s in zip(chunk, stored_shard, strict=True))
            assert layout.shard_key(grid.shard_row_of_slab(slab), int(plane.file[i])) == key
            assert index_layer * plane.layer_entries + plane.entry[i] == np.ravel_multi_index(
                inside, stored_shard
            )


@given(grid=grids())
def test_plane_geometry_covers_each_pixel_once(grid):
    above = replace(grid, frame_shape=(3, 2), plane_chunk=(2, 2))  # as a level: files and chunks go on
    plane = PlaneChunks.of(replace(grid, levels=(above,)))
    for number, level in enumerate(plane.levels):
        rows, columns = level.grid.frame_shape
        seen = np.zeros(rows * columns * grid.itemsize, int)
        for top, left, height, width in plane.geometry[level.first : level.stop].tolist():
            assert 1 <= height <= level.chunk_rows
            assert 1 <= width <= level.row_bytes
            for row in range(top, top + height):
                seen[row * level.frame_row_bytes + left : row * level.frame_row_bytes + left + width] += 1
        assert (seen == 1).all()
        assert level.chunk_rows * level.row_bytes == math.prod(level.grid.plane_chunk) * grid.itemsize
        files = np.unique(plane.file[level.first : level.stop])
        assert files.tolist() == list(range(level.first_file, level.first_file + files.size))
        assert [plane.level_of(file) for file in files] == [number] * files.size
    assert plane.layer_slots.sum() == len(plane.file) == plane.levels[-1].stop


def test_edge_shards_are_smaller():
    grid = Grid((5,), (2,), (2,), (0,), (5, 4), (2, 2), (2, 1), 1)
    layout = ArrayLayout.of(grid, 100, "end")
    # 3 slabs in shard rows of 2; 3 x 2 chunks a frame in files of 2 x 1: shard row 0 and shard row 1, upper
    # and lower files
    assert [[layout.shard(shard_row, file).slots for file in range(4)] for shard_row in range(2)] == [
        [4, 4, 2, 2],
        [2, 2, 1, 1],
    ]
    assert {layout.shard(shard_row, file).chunks for file in range(4) for shard_row in range(2)} == {4}


@given(
    grid=grids(),
    shards=st.integers(2, 9),
    slower=st.integers(0, 2),
    across=st.integers(1, 9),
    data=st.data(),
)
def test_a_split_shard_row_has_shards_of_its_own_for_each_slab(grid, shards, slower, across, data):
    whole = replace(grid, shard_chunks=(1,) * len(grid.chunk))
    grid = whole.split_row(shards, slower, across)
    assert math.prod(grid.row_shards) <= shards
    if math.prod(grid.row_shards[:slower]) > 1:
        assert math.prod(grid.row_shards) <= across, "it stays open while frames of other images come"
    assert whole.split_row(math.prod(grid.row_shards), slower, across) == grid, "what the manifest keeps"
    layout = ArrayLayout.of(grid, 100, "end")
    shard_row = data.draw(st.integers(0, min(5, max(1, math.prod(grid.shard_row_counts)) - 1)))
    slabs = slabs_of_shard_row(grid, shard_row)
    files = layout.files_per_slab * (len(slabs) if grid.is_split else 1)
    assert layout.files_of(shard_row) == files
    keys = {}
    for slab in slabs:
        places = chunks_of_slab(layout, slab)
        for file in np.unique(places.file).tolist():
            mine = np.sort(places.slot[places.file == file])
            assert mine.tolist() == list(range(layout.shard(shard_row, file).slots))
            assert not grid.is_split or file // layout.files_per_slab == places.slot_layer
            keys[file] = layout.shard_key(shard_row, file)
            shard = tuple(int(part) for part in keys[file].split("/")[1:])
            assert layout.file_of_shard(0, shard) == (shard_row, file)
            assert shard[:-2] == grid.stored(grid.slab_coordinates(slab)), "a shard is one slab deep"
    assert len(set(keys.values())) == len(keys)
