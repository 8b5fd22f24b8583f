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
from shardwright.array.frame_admission import FrameAdmission
from shardwright.array.grid import image_of
from shardwright.model import errors

PIXELS = np.zeros((2, 3), np.uint8)


def array(counts: dict[str, int | None], shape: tuple[int, int] = (2, 3)) -> sw.ArraySpec:
    axes = [sw.Dimension(name=name, count=count, chunk_size=1) for name, count in counts.items()]
    axes += [sw.Dimension(name=n, count=c, chunk_size=c) for n, c in zip("yx", shape, strict=True)]
    return sw.ArraySpec(dtype="uint8", dimensions=tuple(axes))


def places(spec: sw.AcquisitionSpec, count: int, done: int = 0) -> list[tuple[str, tuple[int, ...]]]:
    """Of the next frames, each as (image, index)."""
    admission = FrameAdmission(spec, done, lambda _: pytest.fail("there is an order"))
    positions = [admission.one(PIXELS, None, None, None, None).position for _ in range(count)]
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


def test_images_keep_what_they_have_where_an_order_turns_their_axes():
    """Given as models or as JSON."""
    own = sw.Image(name="a", array=array({"t": 2, "z": 3}), attributes={"k": 1})
    for image in (own, own.model_dump()):
        spec = parse_acquisition(
            {"images": [image, "b"], "array": array({"t": 2, "z": 3}), "order": ("z", "t", "p")}
        )
        assert spec.images[0].attributes == {"k": 1}
        assert [d.name for d in spec.arrays[0].dimensions] == ["z", "t", "y", "x"]


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


def images_of(records: np.ndarray) -> list[int]:
    return [image_of(p) for p in records["position"].tolist()]


def test_a_frame_that_is_refused_takes_no_place():
    spec = sw.AcquisitionSpec(array=array({"t": 2}), images=["a", "b"], order=("t", "p"))
    admission = FrameAdmission(spec, 0, lambda _: 0)
    for wrong in (np.zeros((3, 2), np.uint8), np.zeros((2, 2, 3), np.uint8), np.zeros((), np.uint8)):
        with pytest.raises(errors.FrameShapeError):
            admission.one(wrong, None, None, None, None)
    for wrong in (PIXELS, np.zeros((1, 3, 2), np.uint8), np.zeros((), np.uint8)):
        with pytest.raises(errors.FrameShapeError):
            admission.many(wrong, None, None, None, None)
    with pytest.raises(errors.FrameDtypeError):
        admission.one(PIXELS.astype(np.uint16), None, None, None, None)
    with pytest.raises(errors.MetadataError):
        admission.one(PIXELS, None, None, None, {"laser": 1.0})
    with pytest.raises(errors.UnknownImageError):
        admission.one(PIXELS, "typo", (0,), None, None)
    with pytest.raises(errors.FrameIndexError):
        admission.many(np.zeros((1, 2, 3), np.uint8), "a", [[7]], None, None)
    with pytest.raises(errors.FrameIndexError, match="at most 4 more; got 5"):
        admission.many(np.zeros((5, 2, 3), np.uint8), None, None, None, None)
    _, records, counted, named = admission.many(np.zeros((4, 2, 3), np.uint8), None, None, None, None)
    assert not counted
    assert not named
    assert images_of(records) == [0, 1, 0, 1]
    with pytest.raises(errors.FrameIndexError, match="at most 0 more"):
        admission.one(PIXELS, None, None, None, None)
    with pytest.raises(errors.FrameIndexError, match="name their places, or none does"):
        admission.one(PIXELS, "a", (0,), None, None)


@pytest.mark.parametrize(
    ("index", "frame_id", "metadata", "error"),
    [
        (0.5, None, None, errors.FrameIndexError),
        ((0.5,), None, None, errors.FrameIndexError),
        (None, "first", None, errors.FrameIndexError),
        ((0,), "first", None, errors.FrameIndexError),
        (None, None, "text", errors.MetadataError),
        (None, None, ["text"], errors.MetadataError),
        (None, None, {1: 2.0}, errors.MetadataError),
    ],
)
def test_what_is_no_index_and_no_metadata_is_a_typed_error(index, frame_id, metadata, error):
    admission = FrameAdmission(parse_acquisition(array({"t": 3})), 0, lambda _: 0)
    with pytest.raises(error):
        admission.one(PIXELS, None, index, frame_id, metadata)
    if metadata is not None:
        with pytest.raises(error):
            admission.many(PIXELS[None], None, None, None, metadata)
    assert admission.one(PIXELS, None, (0,), None, None).position == 0


def test_places_that_no_frame_took_are_given_again():
    spec = sw.AcquisitionSpec(array=array({"t": 3}), images=["a", "b"], order=("t", "p"))
    admission = FrameAdmission(spec, 0, lambda _: 0)
    first = admission.one(PIXELS, None, None, None, None)
    _, rest, _, _ = admission.many(np.zeros((3, 2, 3), np.uint8), None, None, None, None)
    admission.give_back(rest["position"][1:].tolist())
    admission.give_back([first.position])
    _, again, _, _ = admission.many(np.zeros((4, 2, 3), np.uint8), None, None, None, None)
    assert images_of(again) == [0, 0, 1, 0], "those that were given back, in their order, then the next one"


def test_without_an_order_the_frames_of_each_image_are_counted():
    spec = sw.AcquisitionSpec(array=array({"t": 5}), images=["a", "b"])
    admission = FrameAdmission(spec, 0, lambda image: 2 * image)
    assert admission.one(PIXELS, "a", None, None, None).position == spec.grids.grids[0].first
    placed = admission.one(PIXELS, "b", None, None, None)
    assert placed.position == spec.grids.grids[1].first + 2
    admission.give_back([placed.position])
    with pytest.raises(errors.FrameIndexError):
        admission.many(np.zeros((4, 2, 3), np.uint8), "b", None, None, None)
    _, records, _, named = admission.many(np.zeros((3, 2, 3), np.uint8), "b", None, None, None)
    assert (records["position"] - spec.grids.grids[1].first).tolist() == [2, 3, 4]
    assert not named
    assert admission.one(PIXELS, "a", (3,), None, None).named


def test_a_full_image_says_so_to_frames_that_are_counted():
    several = sw.AcquisitionSpec(array=array({"t": 2}), images=["a", "b"])
    admission = FrameAdmission(several, 0, lambda _: 0)
    admission.one(PIXELS, "b", None, None, None)
    full = r"the image is full.*expected at most 2 frames; got frame 3\. Give its first axis a larger count"
    with pytest.raises(errors.FrameIndexError, match=full):
        admission.many([PIXELS] * 2, "b", None, None, None)
    admission.one(PIXELS, "b", None, None, None)
    with pytest.raises(errors.FrameIndexError, match=full):
        admission.one(PIXELS, "b", None, None, None)
    with pytest.raises(errors.FrameIndexError, match="frame id outside the array; expected 0 to 1; got 2"):
        admission.one(PIXELS, "b", None, 2, None)
    alone = FrameAdmission(parse_acquisition(array({"t": 2})), 0, lambda _: 0)
    with pytest.raises(errors.FrameIndexError, match=full):
        alone.check_count(2)


def test_with_an_order_all_frames_name_their_places_or_none_does():
    spec = sw.AcquisitionSpec(array=array({"t": 5}), images=["a", "b"], order=("t", "p"))
    unnamed, naming = FrameAdmission(spec, 0, lambda _: 0), FrameAdmission(spec, 0, lambda _: 0)
    unnamed.one(PIXELS, None, None, None, None)
    with pytest.raises(errors.FrameIndexError, match="expected neither image, index nor id"):
        unnamed.one(PIXELS, "a", (3,), None, None)
    naming.one(PIXELS, "a", (3,), None, None)
    with pytest.raises(errors.FrameIndexError, match="expected an image and an index"):
        naming.many(PIXELS[None], None, None, None, None)


def test_frames_at_once_must_fit_every_image_that_they_are_of():
    images = {"a": array({"t": 2}), "b": array({"t": 2}, (4, 4))}
    spec = sw.AcquisitionSpec(images=images, order=("t", "p"))
    admission = FrameAdmission(spec, 0, lambda _: 0)
    with pytest.raises(errors.FrameShapeError):
        admission.many(np.zeros((2, 2, 3), np.uint8), None, None, None, None)
    assert admission.one(PIXELS, None, None, None, None).position == 0
