"""From frames to chunk bytes: uneven edges, missing frames, odd addresses, any byte range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.kernels.gather import VECTOR_PIXELS, gather_range, gather_shuffled_16, is_all_fill


@st.composite
def cuts(draw, itemsizes=(1, 2, 4, 8), widest=9):
    """(frames, plane, chunk rows, row bytes, fill row): a frame plane cut into chunks that reach past its
    edges. ``widest``: pixels."""
    itemsize = draw(st.sampled_from(itemsizes))
    rows, columns, chunk_rows, chunk_columns = (draw(st.integers(1, most)) for most in (9, widest) * 2)
    present = draw(st.lists(st.booleans(), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    fill = rng.integers(0, 256, itemsize, dtype=np.uint8)
    plain = np.tile(fill, (rows, columns))
    noise = draw(st.sampled_from(["none", "one pixel", "all"]))
    frames = []
    for here in present:
        frame = plain.copy()
        if noise == "all":
            frame[:] = rng.integers(0, 256, frame.shape, dtype=np.uint8)
        elif noise == "one pixel":
            frame[rng.integers(rows), rng.integers(columns * itemsize)] ^= 0xFF
        frames.append(frame if here else None)
    plane = [
        (top, left * itemsize, min(chunk_rows, rows - top), min(chunk_columns, columns - left) * itemsize)
        for top in range(0, rows, chunk_rows)
        for left in range(0, columns, chunk_columns)
    ]
    return (
        frames,
        np.array(plane, np.int64),
        chunk_rows,
        chunk_columns * itemsize,
        np.tile(fill, chunk_columns),
    )


@given(cut=cuts(), data=st.data())
def test_gather_range_equals_its_twin(source_of, guarded, cut, data):
    source = source_of(*cut)
    start = data.draw(st.integers(0, source.chunk_bytes))
    stop = data.draw(st.integers(start, source.chunk_bytes))
    for chunk in range(len(source.plane)):
        target = guarded(stop - start)
        arguments = source.for_kernel(chunk)
        gather_range(arguments, start, stop, target.address)
        expected = reference.gather_range(
            source.frames,
            source.plane[chunk],
            source.chunk_rows,
            source.row_bytes,
            source.fill_row,
            start,
            stop,
        )
        assert target.view.tobytes() == expected
        assert target.untouched_outside()


@given(cut=cuts(itemsizes=(2,), widest=3 * VECTOR_PIXELS), data=st.data())
def test_gather_shuffled_16_equals_its_twin(source_of, guarded, cut, data):
    source = source_of(*cut)
    start, stop = sorted(2 * data.draw(st.integers(0, source.chunk_bytes // 2)) for _ in range(2))
    for chunk in range(len(source.plane)):
        target = guarded(stop - start)
        arguments = source.for_kernel(chunk)
        gather_shuffled_16(arguments, start, stop, target.address)
        plain = reference.gather_range(
            source.frames,
            source.plane[chunk],
            source.chunk_rows,
            source.row_bytes,
            source.fill_row,
            start,
            stop,
        )
        assert target.view.tobytes() == reference.shuffle(plain, 2)
        assert target.untouched_outside()


@given(cut=cuts())
def test_is_all_fill_equals_its_twin(source_of, cut):
    source = source_of(*cut)
    for chunk in range(len(source.plane)):
        frames, frame_row_bytes, plane, _, _, fill, _ = source.for_kernel(chunk)
        expected = reference.is_all_fill(
            source.frames, source.plane[chunk], source.chunk_rows, source.row_bytes, source.fill_row
        )
        assert is_all_fill(frames, frame_row_bytes, plane, fill) == expected


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("byte", [0, 11])
def test_one_bit_off_the_fill_value_is_found_in_any_corner(source_of, row, byte):
    frame = np.zeros((3, 12), np.uint8)
    frame[row, byte] = 1
    source = source_of([None, frame], np.array([[0, 0, 3, 12]]), 3, 12, np.zeros(12, np.uint8))
    frames, frame_row_bytes, plane, _, _, fill, _ = source.for_kernel(0)
    assert not is_all_fill(frames, frame_row_bytes, plane, fill)


def test_minus_zero_is_not_the_fill_value_zero(source_of):
    frame = np.full((1, 2), -0.0).view(np.uint8)
    source = source_of([frame], np.array([[0, 0, 1, 16]]), 1, 16, np.zeros(16, np.uint8))
    frames, frame_row_bytes, plane, _, _, fill, _ = source.for_kernel(0)
    assert not is_all_fill(frames, frame_row_bytes, plane, fill)
