"""The chunk grid against brute force on small grids."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.array.grid import Grid
from shardwright.model.errors import FrameIndexError


@st.composite
def grids(draw, unlimited: bool | None = None):
    axes = draw(st.integers(1, 4))
    counts = [draw(st.integers(1, 5)) for _ in range(axes)]
    if draw(st.booleans()) if unlimited is None else unlimited:
        counts[0] = 0
    return Grid(
        counts=tuple(counts),
        chunk=tuple(draw(st.integers(1, 4)) for _ in range(axes)),
        shard_chunks=tuple(draw(st.integers(1, 3)) for _ in range(axes)),
        stored_axes=tuple(draw(st.permutations(range(axes)))),
        frame_shape=(4, 4),
        plane_chunk=(2, 2),
        plane_shard_chunks=(1, 1),
        itemsize=1,
    )


def in_order(grid: Grid) -> list[tuple[int, ...]]:
    """Frame indices in acquisition order; of an unlimited array, whole shards enough to see every state."""
    first = grid.counts[0] or 2 * grid.chunk[0] * grid.shard_chunks[0]
    return list(itertools.product(*(range(n) for n in (first, *grid.counts[1:]))))


@given(grid=grids())
def test_position_and_index_are_inverse(grid):
    for position, index in enumerate(in_order(grid)):
        assert grid.position_of(index) == position
        assert grid.index_of(position) == index
        assert grid.check_position(position) == position


@given(grid=grids(), image=st.integers(1, 9))
def test_the_grid_of_another_image_is_as_if_made_for_it(grid, image):
    twin, made = grid.of_image(image), replace(grid, image=image)
    assert twin == made
    derived = [name for name, value in vars(Grid).items() if isinstance(value, cached_property)]
    assert {name: getattr(twin, name) for name in derived} == {name: getattr(made, name) for name in derived}
    assert grid == replace(made, image=0), "the first is as before"


@given(grid=grids(unlimited=False))
def test_outside_the_array_is_refused(grid):
    assert grid.total_frames == math.prod(grid.counts) == len(in_order(grid))
    with pytest.raises(
        FrameIndexError, match=rf"frame id outside the array; expected 0 to {grid.total_frames - 1}"
    ):
        grid.check_position(grid.total_frames)
    with pytest.raises(FrameIndexError):
        grid.check_position(-1)
    with pytest.raises(FrameIndexError, match="got 281474976710656"):
        grid.check_position(2**48)
    for axis, count in enumerate(grid.counts):
        for bad in (-1, count):
            index = [0] * len(grid.counts)
            index[axis] = bad
            with pytest.raises(FrameIndexError, match=f"along axis {axis}; expected 0 to {count - 1}"):
                grid.position_of(tuple(index))
    with pytest.raises(FrameIndexError, match="wrong number of axes"):
        grid.position_of((0,) * (len(grid.counts) + 1))


@given(grid=grids(unlimited=True))
def test_an_unlimited_array_ends_nowhere(grid):
    assert grid.total_frames is None
    assert grid.check_position(10**12) == 10**12
    index = (10**12, *(0 for _ in grid.counts[1:]))
    assert grid.index_of(grid.position_of(index)) == index
    with pytest.raises(FrameIndexError, match="expected 0 to "):
        grid.check_position(-1)


def block_of(index, size):
    return tuple(i // s for i, s in zip(index, size, strict=True))


@given(grid=grids(unlimited=False))
def test_slabs_and_shard_rows_against_brute_force(grid):
    indices = in_order(grid)
    frames = Counter(block_of(index, grid.chunk) for index in indices)
    slabs = [grid.slab_coordinates(s) for s in range(math.prod(grid.slab_counts))]
    assert set(slabs) == set(frames)
    assert {c: grid.frames_in_slab(s) for s, c in enumerate(slabs)} == frames
    last = {block_of(index, grid.chunk): position for position, index in enumerate(indices)}
    assert {c: grid.last_position_in_slab(s) for s, c in enumerate(slabs)} == last
    shard_rows: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for slab, coordinates in enumerate(slabs):
        shard_row = block_of(coordinates, grid.shard_chunks)
        assert grid.shard_row_coordinates(grid.shard_row_of_slab(slab)) == shard_row
        shard_rows.setdefault(shard_row, set()).add(coordinates)
    assert len(shard_rows) == math.prod(grid.shard_row_counts)
    for number in range(len(shard_rows)):
        extent = grid.shard_row_extent_chunks(number)
        assert math.prod(extent) == len(shard_rows[grid.shard_row_coordinates(number)])
        assert grid.next_shard_row(number) == (number + 1 if number + 1 < len(shard_rows) else None)


@given(grid=grids(), image=st.integers(0, 2))
def test_slabs_and_places_of_many_positions_are_those_of_each(grid, image):
    grid = replace(grid, image=image)
    positions = np.array([grid.position_of(index) for index in in_order(grid)])
    slabs, places = grid.slabs_and_indices(positions)
    assert slabs.tolist() == [grid.slab_of_position(position) for position in positions.tolist()]
    assert places.tolist() == [grid.index_in_slab(position) for position in positions.tolist()]
    outside = np.array([grid.first - 1, grid.last_position + 1, -1, -(2**63), 2**63 - 1])
    assert all((found == -1).all() for found in grid.slabs_and_indices(outside))


@given(grid=grids())
def test_shard_rows_are_numbered_by_their_first_frame(grid):
    shard = tuple(c * s for c, s in zip(grid.chunk, grid.shard_chunks, strict=True))
    seen: list[tuple[int, ...]] = []
    for index in in_order(grid):
        if block_of(index, shard) not in seen:
            seen.append(block_of(index, shard))
    assert [grid.shard_row_coordinates(n) for n in range(len(seen))] == seen


def most_at_once(grid: Grid, size: tuple[int, ...], whole: Counter) -> tuple[int, int]:
    """(most blocks, most frames) incomplete at once, a frame counted from its arrival until its block is
    complete."""
    arrived: Counter = Counter()
    most_blocks = most_frames = 0
    for index in in_order(grid):
        block = block_of(index, size)
        arrived[block] += 1
        most_blocks = max(most_blocks, len(arrived))
        most_frames = max(most_frames, sum(arrived.values()))
        if arrived[block] == whole[block]:
            del arrived[block]
    return most_blocks, most_frames


@given(grid=grids())
def test_open_blocks_and_held_frames_against_simulation(grid):
    """The counts of open slabs and shard rows are exact; held frames are a bound."""
    shard = tuple(c * s for c, s in zip(grid.chunk, grid.shard_chunks, strict=True))
    slabs, frames = most_at_once(grid, grid.chunk, Counter(block_of(i, grid.chunk) for i in in_order(grid)))
    shard_rows, _ = most_at_once(grid, shard, Counter(block_of(i, shard) for i in in_order(grid)))
    assert grid.open_slabs == slabs
    assert grid.open_shard_rows == shard_rows
    assert grid.held_frames >= frames


def test_a_single_image_is_one_slab():
    grid = Grid((), (), (), (), (5, 7), (2, 3), (2, 1), 2)
    assert (
        grid.total_frames,
        grid.frames_per_slab,
        grid.open_slabs,
        grid.open_shard_rows,
        grid.held_frames,
    ) == (
        1,
        1,
        1,
        1,
        1,
    )
    assert (grid.position_of(()), grid.index_of(0), grid.next_shard_row(0)) == (0, (), None)
    assert (grid.plane_chunks, grid.plane_shards) == ((3, 3), (2, 3))
    assert (grid.frame_bytes, grid.chunk_bytes) == (70, 12)
