"""Many frames at once are described as each of them would be, and what is wrong with one is said before any
is taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.array.frame_check import FrameCheck
from shardwright.array.grid import Grid
from shardwright.model.errors import FrameDtypeError, FrameIndexError, FrameShapeError, MetadataError
from shardwright.wire.messages import MAX_POSITION


@pytest.fixture
def spec(spec_of):
    return spec_of(
        ("t", None, 2, 2),
        ("z", 5, 2, 1),
        ("c", 3, 1, 1),
        ("y", 4, 4, 1),
        ("x", 6, 6, 1),
        frame_fields=("laser_mw", "stage"),
    )


def test_ids_places_and_metadata_stand_in_their_columns(spec):
    grid = Grid.of(spec)
    indices = [(0, 0, 0), (7, 4, 2)]
    records = FrameCheck(spec, grid).records(
        2,
        indices,
        [5, MAX_POSITION],
        {"delta_t": 0.5, "stage": [1, 2], "position_z": np.array([3.0, np.nan])},
    )
    assert records["frame_id"].tolist() == [5, MAX_POSITION]
    assert records["position"].tolist() == [grid.position_of(index) for index in indices]
    assert records["delta_t"].tolist() == [0.5, 0.5]
    assert records["further"][:, 1].tolist() == [1.0, 2.0]
    assert np.isnan(records["further"][:, 0]).all()
    assert records["position_z"][0] == 3.0
    assert np.isnan([records["position_z"][1], *records["exposure_time"], *records["position_x"]]).all()


def test_ids_alone_are_places(spec):
    records = FrameCheck(spec, Grid.of(spec)).records(3, None, np.array([9, 8, 2], np.uint8), None)
    assert records["position"].tolist() == records["frame_id"].tolist() == [9, 8, 2]
    assert FrameCheck(spec, Grid.of(spec)).records(2, None, None, None)["frame_id"].tolist() == [-1, -1]


@given(st.data())
def test_places_of_many_are_the_places_of_each(data):
    counts = data.draw(st.lists(st.integers(1, 6), min_size=0, max_size=3))
    unlimited = data.draw(st.booleans()) and bool(counts)
    grid = Grid(
        (0, *counts[1:]) if unlimited else tuple(counts),
        (1,) * len(counts),
        (1,) * len(counts),
        tuple(range(len(counts))),
        (1, 1),
        *((1, 1),) * 2,
        1,
    )
    axes = [st.integers(-1, 7) | st.sampled_from([MAX_POSITION, 2**62]) for _ in counts]
    indices = data.draw(st.lists(st.tuples(*axes), min_size=1, max_size=8))
    array = np.array(indices, np.int64).reshape(len(indices), len(counts))
    outcomes = [outcome(grid.position_of, index) for index in indices]
    errors = [error for error in outcomes if isinstance(error, str)]
    assert outcome(lambda places: grid.positions_of(places).tolist(), array) == (
        errors[0] if errors else outcomes
    )


def outcome(place, index):
    """What it returns, or the words of its refusal."""
    try:
        return place(index)
    except FrameIndexError as error:
        return str(error)


@pytest.mark.parametrize(
    ("indices", "frame_ids", "message"),
    [
        (None, [0], "frame ids that do not fit"),
        (None, [[0, 1]], "frame ids that do not fit"),
        (None, [0.0, 1.0], "frame ids that do not fit"),
        (None, [0, -1], "outside the array"),
        (None, np.array([0, 2**64 - 1], np.uint64), "outside the array"),
        (None, [0, MAX_POSITION + 1], "outside the array"),
        ([(0, 0, 0)], None, "indices that do not fit"),
        ([(0, 0), (0, 0)], None, "indices that do not fit"),
        ([(0, 0, 0), (0, 5, 0)], None, "along axis 1"),
        ([(0, 0, 0), (-1, 0, 0)], None, "along axis 0"),
        ([(0, 0, 0), (MAX_POSITION, 0, 0)], None, "outside the array"),
        ([(0, 0, 0), (0, 0, 1)], [0, -1], "frame id"),
    ],
)
def test_places_that_are_none_are_refused(spec, indices, frame_ids, message):
    with pytest.raises(FrameIndexError, match=message):
        FrameCheck(spec, Grid.of(spec)).records(2, indices, frame_ids, None)


@pytest.mark.parametrize(
    "metadata",
    [
        {"colour": 1.0},
        {"delta_t": [1.0]},
        {"delta_t": [1.0, 2.0, 3.0]},
        {"delta_t": "soon"},
        {"stage": [[1.0, 2.0]]},
        {"delta_t": [10**400, 1.0]},
    ],
)
def test_metadata_that_does_not_fit_is_refused(spec, metadata):
    with pytest.raises(MetadataError):
        FrameCheck(spec, Grid.of(spec)).records(2, None, None, metadata)


def test_a_stack_is_taken_as_it_is_and_nothing_else_is(spec):
    check = FrameCheck(spec, Grid.of(spec))
    frames = np.zeros((3, 4, 6), np.uint16)
    assert check.stack(frames) is frames
    for wrong in (frames[0], frames[:, :3], np.zeros((3, 4, 6, 1), np.uint16)):
        with pytest.raises(FrameShapeError):
            check.stack(wrong)
    for dtype in ("int16", "uint8", ">u2"):
        with pytest.raises(FrameDtypeError, match=f"expected uint16; got {dtype}$"):
            check.stack(frames.astype(dtype))


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_field_of_one_frame_that_no_double_holds_is_refused(spec, digits):
    with pytest.raises(MetadataError, match="'delta_t' is too large"):
        FrameCheck(spec, Grid.of(spec)).metadata({"delta_t": -(10**digits)})
