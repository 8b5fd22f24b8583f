"""The order in which an acquisition goes through its images: each place once, ragged images, faults that take
no place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.frame_intake import FrameIntake
from shardwright.array.grid import image_of
from shardwright.model import errors

PIXELS = np.zeros((2, 3), np.uint8)


def array(counts: dict[str, int | None], shape: tuple[int, int] = (2, 3)) -> sw.ArraySpec:
    axes = [sw.Dimension(name=name, count=count, chunk_size=1) for name, count in counts.items()]
    axes += [sw.Dimension(name=n, count=c, chunk_size=c) for n, c in zip("yx", shape, strict=True)]
    return sw.ArraySpec(dtype="uint8", dimensions=tuple(axes))


def places(spec: sw.AcquisitionSpec, count: int, done: int = 0) -> list[tuple[str, tuple[int, ...]]]:
    """Of the next frames, each as (image, index)."""
    intake = FrameIntake(spec, done, lambda *_: pytest.fail("there is an order"))
    positions = [intake.one(PIXELS, None, None, None, None)[0] for _ in range(count)]
    return [(spec.names[image_of(p)], spec.grids.of(p).index_of(p)) for p in positions]


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (("t", "p", "c"), [("a", (0, 0)), ("a", (0, 1)), ("b", (0, 0)), ("b", (0, 1)), ("a", (1, 0))]),
        (("t", "c", "p"), [("a", (0, 0)), ("b", (0, 0)), ("a", (0, 1)), ("b", (0, 1)), ("a", (1, 0))]),
        (("p", "t", "c"), [("a", (0, 0)), ("a", (0, 1)), ("a", (1, 0)), ("a", (1, 1)), ("a", (2, 0))]),
    ],
)
def test_frames_go_through_the_images_in_the_order_that_is_given(order, first):
    spec = sw.AcquisitionSpec(array=array({"t": 3, "c": 2}), images=["a", "b"], order=order)
    assert places(spec, 5) == first
    assert places(spec, 4, done=1) == first[1:], "as a writer that resumes goes on"


def test_an_image_may_have_fewer_planes_or_end_earlier():
    images = {"a": array({"t": 2, "z": 1}), "b": array({"t": 3, "z": 2})}
    spec = sw.AcquisitionSpec(images=images, order=("t", "p", "z"))
    assert [(name, index) for name, index in places(spec, 8)] == [
        *[("a", (0, 0)), ("b", (0, 0)), ("b", (0, 1))],
        *[("a", (1, 0)), ("b", (1, 0)), ("b", (1, 1))],
        *[("b", (2, 0)), ("b", (2, 1))],
    ]


@given(
    counts=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4
    ),
    place=st.integers(0, 3),
)
def test_each_place_comes_once(counts, place):
    images = {f"{i}": array(dict(zip("tcz", each, strict=True))) for i, each in enumerate(counts)}
    order = ["t", "c", "z"]
    order.insert(place, "p")
    spec = sw.AcquisitionSpec(images=images, order=tuple(order))
    total = sum(np.prod(each) for each in counts)
    found = places(spec, total)
    every = [
        (f"{i}", index) for i, each in enumerate(counts) for index in itertools.product(*map(range, each))
    ]
    assert sorted(found) == sorted(every)
    # within an image in its own order
    assert all([p for p in found if p[0] == name] == [p for p in every if p[0] == name] for name in images)


def test_an_unlimited_axis_goes_on_for_ever():
    spec = sw.AcquisitionSpec(array=array({"t": None}), images=["a", "b"], order=("t", "p"))
    assert places(spec, 1, done=1001) == [("b", (500,))]
    with pytest.raises(errors.SpecError, match="'t' needs a count"):
        parse_acquisition(spec.model_dump() | {"order": ("p", "t")})


def test_a_frame_that_is_refused_takes_no_place():
    spec = sw.AcquisitionSpec(array=array({"t": 2}), images=["a", "b"], order=("t", "p"))
    intake = FrameIntake(spec, 0, lambda *_: 0)
    with pytest.raises(errors.FrameShapeError):
        intake.one(np.zeros((3, 2), np.uint8), None, None, None, None)
    with pytest.raises(errors.MetadataError):
        intake.one(PIXELS, None, None, None, {"laser": 1.0})
    with pytest.raises(errors.FrameIndexError, match="at most 4 more; got 5"):
        intake.many(np.zeros((5, 2, 3), np.uint8), None, None, None, None)
    _, records, counted = intake.many(np.zeros((4, 2, 3), np.uint8), None, None, None, None)
    assert not counted
    assert [image_of(p) for p in records["position"].tolist()] == [0, 1, 0, 1]
    with pytest.raises(errors.FrameIndexError, match="at most 0 more"):
        intake.one(PIXELS, None, None, None, None)


def test_frames_at_once_must_fit_every_image_that_they_are_of():
    images = {"a": array({"t": 2}), "b": array({"t": 2}, (4, 4))}
    spec = sw.AcquisitionSpec(images=images, order=("t", "p"))
    intake = FrameIntake(spec, 0, lambda *_: 0)
    with pytest.raises(errors.FrameShapeError):
        intake.many(np.zeros((2, 2, 3), np.uint8), None, None, None, None)
    assert intake.one(PIXELS, None, None, None, None)[0] == 0
