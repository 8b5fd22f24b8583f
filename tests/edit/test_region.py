"""Regions as a user names them, and values that an array can hold."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model.errors import FrameDtypeError, FrameIndexError, FrameShapeError
from shardwright.read.store import parse_array
from shardwright.rework.boxes import common_box
from shardwright.rework.edit.region import box_of, checked_values, frame_boxes

from .arrays import make_array


@pytest.fixture
def array(tmp_path):
    """uint8[64, 48], axes without names."""
    return make_array(tmp_path / "a")


@given(data=st.data())
def test_frames_are_the_places_of_their_boxes(data) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    places = np.arange(np.prod(counts))
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(places))] * 2)))
    found = np.zeros(counts, int)
    boxes = list(frame_boxes(counts, first, stop))
    for box in boxes:
        found[tuple(slice(*ends) for ends in box)] += 1
    assert np.array_equal(found.ravel(), (places >= first) & (places < stop))
    assert len(boxes) <= 2 * len(counts) - 1


def test_a_region_names_axes_and_takes_the_others_whole(array) -> None:
    assert box_of(array, {}) == (((0, 64), (0, 48)), ())
    assert box_of(array, {"1": 7}) == (((0, 64), (7, 8)), (1,))
    assert box_of(array, {"0": slice(3, None), "1": (np.int64(4), 9)}) == (((3, 64), (4, 9)), ())


@pytest.mark.parametrize(
    ("region", "what"),
    [
        ({"t": 0}, "has no axis 't'"),
        ({"0": -1}, "is not within the array"),
        ({"0": slice(-3, None)}, "is not within the array"),
        ({"0": slice(0, 65)}, "expected 0 <= start < stop <= 64"),
        ({"0": 64}, "is not within the array"),
        ({"0": slice(5, 5)}, "is not within the array"),
        ({"0": slice(0, 8, 2)}, "without a step"),
        ({"0": True}, "expected a number"),
        ({"0": 1.5}, "expected a number"),
        ({"0": (1, 2, 3)}, "expected a number"),
    ],
)
def test_other_regions_are_refused(array, region, what: str) -> None:
    with pytest.raises(FrameIndexError, match=what):
        box_of(array, region)


BOX = ((3, 4), (0, 10))


def test_values_have_the_regions_shape(array) -> None:
    for values in (np.ones((1, 10), "u1"), np.ones(10, "u1"), 1):
        assert checked_values(array, BOX, (0,), values).shape == (1, 10)
    for values in (
        np.ones((10, 1), "u1"),
        np.ones((1, 1), "u1"),
        np.ones(1, "u1"),
        np.ones((1, 1, 10), "u1"),
    ):
        with pytest.raises(FrameShapeError, match=r"expected \(1, 10\) or \(10,\)"):
            checked_values(array, BOX, (0,), values)


@pytest.mark.parametrize("value", [0, 255, 7.0, np.uint64(9), np.int8(5), True])
def test_values_that_fit_are_taken(array, value) -> None:
    assert checked_values(array, BOX, (), value).shape == (1, 10)
    assert checked_values(array, BOX, (), np.full((1, 10), value)).shape == (1, 10)


@pytest.mark.parametrize(
    "value", [-1, 256, 0.5, float("nan"), float("inf"), 1e300, 1 + 0j, "a", b"a", None, np.datetime64(1, "s")]
)
def test_values_that_do_not_fit_are_refused(array, value) -> None:
    with pytest.raises(FrameDtypeError, match="without loss"):
        checked_values(array, BOX, (), np.full((1, 10), value))


@pytest.mark.parametrize("value", [7, -1, np.int64(2**24), 0.5, float("nan"), True, 1 + 2j])
def test_real_values_that_fit_are_taken_by_a_complex_array(tmp_path, value) -> None:
    array = zarr.create_array(tmp_path / "c", shape=(4, 10), chunks=(4, 10), dtype="complex64")
    array[...] = 0
    given = np.full((1, 10), value)
    values = checked_values(parse_array(tmp_path / "c"), BOX, (), given)
    np.testing.assert_array_equal(values.astype("complex64"), given)
    with pytest.raises(FrameDtypeError, match="without loss"):
        checked_values(parse_array(tmp_path / "c"), BOX, (), np.full((1, 10), 2**24 + 1))


def test_boxes_that_do_not_meet_have_nothing_in_common() -> None:
    assert common_box(((0, 4), (0, 4)), ((4, 8), (0, 4))) is None
    assert common_box(((0, 4), (0, 4)), ((3, 8), (1, 2))) == ((3, 4), (1, 2))
