"""Frames to slabs: every position against the twin and against plain NumPy, batches against a dictionary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.array.grid import IMAGE_SHIFT, Grid, Grids
from shardwright.kernels.place import DUPLICATE, place_frames, slab_and_index, slabs_and_indices


@st.composite
def grids(draw):
    axes = draw(st.integers(0, 3))
    counts = [draw(st.integers(1, 7)) for _ in range(axes)]
    if axes and draw(st.booleans()):
        counts[0] = 0
    return Grid(
        counts=tuple(counts),
        chunk=tuple(draw(st.integers(1, 4)) for _ in range(axes)),
        shard_chunks=(1,) * axes,
        stored_axes=tuple(draw(st.permutations(range(axes)))),
        frame_shape=(1, 1),
        plane_chunk=(1, 1),
        plane_shard_chunks=(1, 1),
        itemsize=1,
    )


def tables(grid: Grid) -> tuple[np.ndarray, ...]:
    return Grids((grid,)).tables


def some_positions(grid: Grid) -> int:
    return grid.total_frames or 5 * int(np.prod(grid.counts[1:], dtype=int))


@given(grid=grids())
def test_slab_and_place_equals_its_twin_and_numpy(grid):
    for position in range(some_positions(grid)):
        slab, place = slab_and_index(position, *tables(grid))
        plain = ([grid.counts], [grid.chunk], [grid.slab_counts], [grid.slab_strides])
        assert (slab, place) == reference.slab_and_index(position, *plain)
        if grid.counts:
            index = grid.index_of(position)
            stored_chunk = grid.stored(grid.chunk)
            inner = tuple(i % c for i, c in zip(grid.stored(index), stored_chunk, strict=True))
            assert place == np.ravel_multi_index(inner, stored_chunk)
            coordinates = tuple(i // c for i, c in zip(index, grid.chunk, strict=True))
            assert slab == np.ravel_multi_index(coordinates, (10**3, *grid.slab_counts[1:]))


@given(grid=grids())
def test_many_positions_are_those_of_each(grid):
    positions = np.arange(some_positions(grid))
    plain = ([grid.counts], [grid.chunk], [grid.slab_counts], [grid.slab_strides])
    slabs, places = slabs_and_indices(positions, *tables(grid))
    assert list(zip(slabs.tolist(), places.tolist(), strict=True)) == [
        reference.slab_and_index(position, *plain) for position in positions.tolist()
    ]


@given(parts=st.lists(grids(), min_size=1, max_size=4), data=st.data())
def test_a_position_is_placed_in_its_own_image(parts, data):
    """Whatever axes the other images have."""
    images = Grids(tuple(replace(grid, image=number) for number, grid in enumerate(parts)))
    number = data.draw(st.integers(0, len(parts) - 1))
    place = data.draw(st.integers(0, some_positions(parts[number]) - 1))
    slab, slab_place = slab_and_index((number << IMAGE_SHIFT) + place, *images.tables)
    alone = slab_and_index(place, *Grids((parts[number],)).tables)
    assert (slab - (number << IMAGE_SHIFT), slab_place) == alone
    grid = images.grids[number]
    assert slab == images.slab_of_position(grid.first + place) == grid.slab_of_position(grid.first + place)
    assert grid.position_of(grid.index_of(grid.first + place)) == grid.first + place
    twin = tuple(table.tolist() for table in images.tables)
    assert reference.slab_and_index(grid.first + place, *twin) == (slab, slab_place)


@given(grid=grids(), data=st.data())
def test_place_frames_equals_its_twin(grid, data):
    """Rows for some slabs only, duplicates, and a batch that is continued after each row that had to be
    opened."""
    most = some_positions(grid)
    positions = data.draw(st.lists(st.integers(0, most - 1), max_size=40))
    frames = [(position, i, 1000 + 8 * i) for i, position in enumerate(positions)]
    count = 64
    per_slab = grid.frames_per_slab
    slab = np.full(count, -1, np.int64)
    addresses, sequences = np.zeros((count, per_slab), np.int64), np.zeros((count, per_slab), np.int64)
    records = np.zeros((count, per_slab, 2), np.int64)
    held, expected = np.zeros(count, np.int64), np.zeros(count, np.int64)
    statuses, completed = np.full(len(frames), 9, np.uint8), np.zeros(count, np.int64)
    batch = [np.array([f[k] for f in frames], np.int64) for k in range(3)]
    batch.append(np.array([(f[1], -f[1]) for f in frames], np.int64).reshape(-1, 2))
    rows: dict[int, reference.SlabRow] = {}
    first = opened = 0
    while True:
        table = (slab, addresses, sequences, records, held, expected)
        done, done_rows, missing = place_frames(first, tuple(batch), tables(grid), table, statuses, completed)
        twin = reference.place_frames(rows, first, frames, tuple(t.tolist() for t in tables(grid)))
        assert (done, [int(slab[r]) for r in completed[:done_rows]], missing) == twin[:3]
        assert {i: statuses[i] == DUPLICATE for i in range(first, done)} == twin[3]
        if missing < 0:
            break
        row = opened
        opened += 1
        slab[row], expected[row] = missing, grid.frames_in_slab(missing)
        rows[missing] = reference.SlabRow(grid.frames_in_slab(missing), {})
        first = done
    for row in range(opened):
        twin_row = rows[int(slab[row])]
        assert held[row] == len(twin_row.frames)
        for place in range(per_slab):
            sequence, address = twin_row.frames.get(place, (0, 0))
            assert (sequences[row, place], addresses[row, place]) == (sequence, address)
