"""Strategies for acquisitions of several images, and the model of each image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from tests.harness.frames import WAYS, hand_over

import shardwright as sw
from shardwright.array.acquisition_spec import POSITIONS_AXIS, AcquisitionSpec

from .acquisitions import SMALL, Acquired, Arrival, Expected, expected, pixels, places, specs

STEPS = 3  # of an unlimited axis, in an acquisition with an order


@dataclass(frozen=True)
class Frame:
    """``place`` as the model counts in the image (``acquisitions.places``)."""

    image: int
    place: int
    content: str
    seed: int


@dataclass(frozen=True)
class Images:
    """An acquisition of several images. ``named``: what each frame names: its image and index, only the
    image, or nothing."""

    spec: AcquisitionSpec
    frames: tuple[Frame, ...]
    named: str

    def send(self, writer: sw.Writer, first: int, stop: int) -> None:
        for frame in self.frames[first:stop]:
            facts = {"image": self.spec.names[frame.image], "index": self.index(frame)}
            given = {"index": ("image", "index"), "image": ("image",), "nothing": ()}[self.named]
            named = {name: facts[name] for name in given}
            hand_over(writer, self.way(frame), self.pixels(frame), **named)

    def way(self, frame: Frame) -> str:
        """How its pixels are handed over: not by claim where only its place tells their form."""
        forms = {(array.frame_shape, array.dtype) for array in self.spec.arrays}
        ways = WAYS if self.named != "nothing" or len(forms) == 1 else ("copied", "lent")
        return ways[frame.seed % len(ways)]

    def index(self, frame: Frame) -> tuple[int, ...]:
        counts = places(self.spec.arrays[frame.image])
        return tuple(int(i) for i in np.unravel_index(frame.place, counts)) if counts else ()

    def pixels(self, frame: Frame) -> np.ndarray:
        return pixels(self.spec.arrays[frame.image], frame.content, frame.seed)

    def expected(self, stop: int) -> dict[int, Expected]:
        """Of each image with one of the first ``stop`` frames."""
        found = {}
        for image in sorted({frame.image for frame in self.frames[:stop]}):
            mine = [frame for frame in self.frames[:stop] if frame.image == image]
            arrivals = tuple(Arrival("index", each.place, each.content, each.seed, None) for each in mine)
            acquired = Acquired(self.spec.arrays[image], arrivals, 1, "auto")
            found[image] = expected(acquired, [self.pixels(each) for each in mine])
        return found


@st.composite
def image_acquisitions(draw: st.DrawFn) -> Images:
    order = draw(st.none() | orders())
    if order is None:
        arrays = draw(st.lists(specs(SMALL) | specs(SMALL, ragged_axes()), min_size=1, max_size=4))
        visits = draw(in_turns([int(np.prod(places(array), dtype=int)) for array in arrays]))
    else:
        unlimited = order[0] != POSITIONS_AXIS and draw(st.booleans())
        axes = axes_of([name for name in order if name != POSITIONS_AXIS], unlimited=unlimited)
        arrays = draw(st.lists(specs(SMALL, axes), min_size=1, max_size=4))
        visits = in_order(arrays, order)
    ragged = any(len(array.growing_axes) > 1 for array in arrays)
    named = "index" if ragged else draw(st.sampled_from(["index", "image" if order is None else "nothing"]))
    if named == "index":
        visits = [visit for visit in visits if draw(st.integers(0, 9)) > 0]  # some are missing
    visits = visits[: draw(st.sampled_from([len(visits)] * 3) | st.integers(0, len(visits)))]
    seed, look = draw(st.integers(0, 2**16)), st.sampled_from(["noise", "noise", "few values", "fill"])
    frames = tuple(Frame(*visit, draw(look), seed + n) for n, visit in enumerate(visits))
    return Images(_spec(arrays, order, plate=draw(st.booleans())), frames, named)


def _spec(arrays: list[sw.ArraySpec], order: tuple[str, ...] | None, *, plate: bool) -> AcquisitionSpec:
    several = {"plate": sw.Plate(rows=1, columns=len(arrays)), "array": arrays[0]} if plate else {}
    names = [f"A/{n + 1}/0" if plate else f"position {n}" for n in range(len(arrays))]
    return AcquisitionSpec(images=dict(zip(names, arrays, strict=True)), order=order, **several)


@st.composite
def orders(draw: st.DrawFn) -> tuple[str, ...]:
    names = draw(st.lists(st.sampled_from("tcz"), unique=True, min_size=1, max_size=3))
    names.insert(draw(st.integers(0, len(names))), POSITIONS_AXIS)
    return tuple(names)


@st.composite
def axes_of(draw: st.DrawFn, names: list[str], *, unlimited: bool) -> tuple[sw.Dimension, ...]:
    """Each image has its own counts and chunks."""
    return tuple(
        sw.Dimension(
            name=name,
            count=None if unlimited and number == 0 else draw(st.integers(1, 3)),
            chunk_size=draw(st.sampled_from([1, 2, 3])),
            shard_size_chunks=draw(st.sampled_from([1, 2])),
        )
        for number, name in enumerate(names)
    )


@st.composite
def ragged_axes(draw: st.DrawFn) -> tuple[sw.Dimension, ...]:
    """Two axes without a count, and perhaps one with a count that changes slower, between them or faster."""
    chunks, pieces = st.sampled_from([1, 2, 3]), st.sampled_from([1, 2])
    axes = [("t", None), ("z", None)]
    axes[draw(st.integers(0, 2)) : 0] = draw(st.sampled_from([[], [("c", 2)]]))
    last = max(place for place, (_, count) in enumerate(axes) if count is None)
    return tuple(
        sw.Dimension(
            name=name,
            count=count,
            chunk_size=1 if place < last else draw(chunks),
            shard_size_chunks=1 if place < last else draw(pieces),
        )
        for place, (name, count) in enumerate(axes)
    )


@st.composite
def in_turns(draw: st.DrawFn, counts: list[int]) -> list[tuple[int, int]]:
    """(image, place): some of one image, then of another, each image in its own order."""
    visits, done = [], [0] * len(counts)
    while left := [image for image, count in enumerate(counts) if done[image] < count]:
        image = draw(st.sampled_from(left))
        stop = min(counts[image], done[image] + draw(st.integers(1, 8)))
        visits += [(image, place) for place in range(done[image], stop)]
        done[image] = stop
    return visits


def in_order(arrays: list[sw.ArraySpec], order: tuple[str, ...]) -> list[tuple[int, int]]:
    """(image, place) of every frame that there is. An unlimited axis is as long for all images."""
    counts = [[d.count or STEPS for d in array.dimensions[:-2]] for array in arrays]
    at = order.index(POSITIONS_AXIS)
    most = list(np.max(counts, axis=0))
    visits = []
    for step in np.ndindex(*most[:at], len(arrays), *most[at:]):
        image, index = step[at], (*step[:at], *step[at + 1 :])
        if all(i < count for i, count in zip(index, counts[image], strict=True)):
            visits.append((image, int(np.ravel_multi_index(index, places(arrays[image])))))
    return visits
