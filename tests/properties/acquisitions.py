"""Strategies for whole acquisitions (an array specification and the frames that arrive), and the NumPy model
of what must be readable after them."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from tests.harness.frames import WAYS
from tests.harness.plain_arrays import without_shards

import shardwright as sw
from shardwright.array.level_shapes import MAX_FACTOR
from shardwright.array.spec import METHODS, parse_spec
from shardwright.kernels.downsample import downsample, shape_above
from shardwright.model.write_options import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

# so that every frame of an array fits the reorder window: any arrival order must then come out right
MAX_FRAMES = 48

CODECS = (
    *(
        sw.Blosc(cname=cname, clevel=clevel, shuffle=shuffle)
        for cname in ("lz4", "lz4hc", "zstd", "zlib")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
        for clevel in (1, 5)
    ),
    sw.Blosc(clevel=0),
    sw.Zstd(level=1),
    sw.Zstd(level=-3),
    sw.Gzip(level=1),
    sw.Gzip(level=6),
    None,
)
CONTENTS = ("noise", "few values", "constant", "noise", "fill", "extremes")


@dataclass(frozen=True)
class Arrival:
    """One call of ``append``: the place it names (how: "index", "frame_id", "both" or "count") and what its
    pixels look like.

    ``after_refused``: what was wrong with a frame that was tried just before and had to be refused, None when
    there was none.
    """

    how: str
    position: int
    content: str
    seed: int
    after_refused: str | None

    @property
    def way(self) -> str:
        """How its pixels are handed over."""
        return WAYS[self.seed % len(WAYS)]


@dataclass(frozen=True)
class Acquired:
    """One acquisition: what is asked for and what arrives."""

    spec: sw.ArraySpec
    arrivals: tuple[Arrival, ...]
    threads: int
    io: str


def fill_values(dtype: str) -> st.SearchStrategy[Any]:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return st.booleans()
    if kind.kind == "f":
        return st.sampled_from(
            [0.0, -0.0, "NaN", "Infinity", "-Infinity", 0.5, -1.25, float(np.finfo(kind).max)]
        )
    info = np.iinfo(kind)
    return st.sampled_from([0, 0, 1, 7, int(info.min), int(info.max)])


@st.composite
def frame_axes(draw: st.DrawFn) -> tuple[sw.Dimension, ...]:
    """Up to three axes before the frame's own, in any acquisition order, of at most ``MAX_FRAMES`` frames
    together.

    Weighted towards several axes whose shards hold several chunks and reach past the array: what is hard, and
    rare by pure chance.
    """
    names = draw(st.permutations(["t", "c", "z"]))[: draw(st.sampled_from([2, 3, 1, 0, 2, 3]))]
    room, axes = MAX_FRAMES, []
    for place, name in enumerate(names):
        count = draw(st.sampled_from([n for n in (3, 4, 5, 2, 7, 9, 1) if n <= room]))
        room //= count
        unlimited = place == 0 and draw(st.booleans())
        axes.append(
            sw.Dimension(
                name=name,
                count=None if unlimited else count,
                chunk_size=draw(st.sampled_from([1, 2, 1, 2, 3, 5, 16])),
                shard_size_chunks=draw(st.sampled_from([2, 1, 3, 2])),
                unit={"t": "second", "z": "micrometer"}.get(name),
            )
        )
    return tuple(axes)


@dataclass(frozen=True)
class Sides:
    """Bounds of a frame's sides and of the inner chunks' along them, in pixels."""

    least: int
    most: int
    least_chunk: int
    most_chunk: int


SMALL = Sides(1, 9, 1, 12)
LARGE = Sides(150, 300, 70, 320)  # a chunk then spans several Blosc, zstd or deflate blocks


def plane_axis(name: str, sides: Sides) -> st.SearchStrategy[sw.Dimension]:
    return st.builds(
        sw.Dimension,
        name=st.just(name),
        count=st.integers(sides.least, sides.most),
        chunk_size=st.integers(sides.least_chunk, sides.most_chunk),
        shard_size_chunks=st.integers(1, 3),
        unit=st.just("micrometer"),
        scale=st.just(0.108),
    )


@st.composite
def levels(draw: st.DrawFn, spec: sw.ArraySpec) -> sw.ArraySpec:
    """``spec`` with as many levels as it can have of those that are drawn."""
    names = [d.name for d in spec.dimensions]
    method = draw(st.sampled_from(METHODS))
    axes = draw(st.sampled_from([("y", "x"), ("x",), names[-3:], names[1:]]))
    factors = {name: draw(st.sampled_from([2, 2, 2, 3, 4, MAX_FACTOR])) for name in axes}
    for count in range(draw(st.integers(1, 3)), 0, -1):
        drawn = {"count": count, "method": method, "factors": factors}
        with suppress(sw.errors.SpecError):
            return parse_spec({**spec.model_dump(), "levels": drawn})
    return spec


@st.composite
def specs(
    draw: st.DrawFn, sides: Sides, axes: st.SearchStrategy[tuple[sw.Dimension, ...]] | None = None
) -> sw.ArraySpec:
    """``axes``: those before the frame's own."""
    before = draw(frame_axes() if axes is None else axes)
    dtype = draw(st.sampled_from(DTYPES))
    order = [axis.name for axis in before]
    spec = sw.ArraySpec(
        dtype=dtype,
        dimensions=(*before, draw(plane_axis("y", sides)), draw(plane_axis("x", sides))),
        codec=draw(st.sampled_from(CODECS)),
        index_location=draw(st.sampled_from(["end", "start"])),
        chunk_checksum=draw(st.booleans()),
        write_empty_chunks=draw(st.booleans()),
        fill_value=draw(fill_values(dtype)),
        storage_order=draw(
            st.one_of(st.none(), st.permutations(order).map(lambda names: (*names, "y", "x")))
        ),
        attributes=draw(st.sampled_from([{}, {"sample": "embryo", "nested": {"a": [1, 2.5, None]}}])),
    )
    if draw(st.integers(0, 4)) == 4:
        spec = without_shards(spec)
    return draw(levels(spec)) if draw(st.booleans()) else spec


def places(spec: sw.ArraySpec) -> tuple[int, ...]:
    """Counts along the frame axes, unlimited ones taken as long as ``MAX_FRAMES`` allows."""
    rest = math.prod(d.count or 1 for d in spec.dimensions[1:-2])
    longest = max(1, min(9, MAX_FRAMES // rest))
    if len(spec.growing_axes) > 1:
        longest = math.isqrt(longest)
    return tuple(d.count or longest for d in spec.dimensions[:-2])


@st.composite
def in_order(draw: st.DrawFn, sides: Sides) -> Acquired:
    """Every frame of an array with frame axes, in acquisition order."""
    spec = draw(specs(sides).filter(lambda spec: len(spec.dimensions) > 2))
    total, seed = math.prod(places(spec)), draw(st.integers(0, 2**16))
    return Acquired(
        spec,
        tuple(Arrival("count", i, "noise", seed + i, None) for i in range(total)),
        draw(st.integers(1, 3)),
        "auto",
    )


@st.composite
def arrivals(draw: st.DrawFn, spec: sw.ArraySpec) -> tuple[Arrival, ...]:
    """In order up to some frame (the stream stops anywhere), or any places in any order, some missing and
    some twice."""
    total = math.prod(places(spec))
    if draw(st.booleans()):
        positions = list(
            range(draw(st.one_of(st.sampled_from([total, total, total - 1]), st.integers(0, total))))
        )
        how = st.just(draw(st.sampled_from(["count", "frame_id", "index"])))
    else:
        positions = draw(
            st.one_of(
                st.lists(st.integers(0, total - 1), max_size=30),
                st.permutations(range(total)),
                st.permutations(range(total)).map(lambda order: order[: -(-total // 2)]),
            )
        )
        how = st.sampled_from(["frame_id", "index", "both"])
    look = st.sampled_from(CONTENTS)
    before = st.sampled_from([None, None, None, None, "shape", "dtype", "index"])
    seed = draw(st.integers(0, 2**16))
    return tuple(
        Arrival(draw(how), position, draw(look), seed + i, draw(before))
        for i, position in enumerate(positions)
    )


@st.composite
def acquisitions(draw: st.DrawFn, sides: Sides) -> Acquired:
    spec = draw(specs(sides))
    return Acquired(
        spec,
        draw(arrivals(spec)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(["auto", "mmap", "pwrite", "direct"])),
    )


def pixels(spec: sw.ArraySpec, content: str, seed: int) -> np.ndarray:
    """One frame. Every bit pattern is fair for noise, NaN payloads and signed zeros included, but a bool is 0
    or 1."""
    rng = np.random.default_rng(seed)
    dtype, shape = np.dtype(spec.dtype), spec.frame_shape
    if content == "fill":
        return np.broadcast_to(fill(spec), shape).copy()
    if dtype.kind == "b":
        return (
            rng.integers(0, 2, shape).astype(bool)
            if content != "constant"
            else np.full(shape, bool(seed % 2))
        )
    if content == "noise":
        return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()
    if content == "few values":
        return rng.integers(0, 4, shape).astype(dtype)
    if content == "constant":
        return np.full(shape, seed % 100, dtype)
    extremes = (
        [np.iinfo(dtype).min, np.iinfo(dtype).max] if dtype.kind in "iu" else [-0.0, 0.0, np.nan, np.inf]
    )
    return rng.choice(np.array(extremes, dtype), shape)


def fill(spec: sw.ArraySpec) -> np.ndarray:
    """The fill value as a 0-d array of the array's dtype."""
    special = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
    value = special[spec.fill_value] if isinstance(spec.fill_value, str) else spec.fill_value
    return np.array(value, spec.dtype)


@dataclass(frozen=True)
class Expected:
    """What must be readable, in storage order, and what the receipt must say. ``arrays``: the image, then its
    levels."""

    arrays: list[np.ndarray]
    received: int
    stored: int
    missing: int
    duplicate: int


def expected(acquired: Acquired, appended: list[np.ndarray]) -> Expected:
    """The model: the first frame of each place, fill value everywhere else; each growing axis ends with the
    newest index along it."""
    spec = acquired.spec
    first: dict[int, np.ndarray] = {}
    for arrival, frame in zip(acquired.arrivals, appended, strict=True):
        first.setdefault(arrival.position, frame)
    counts = places(spec)
    indices = {position: np.unravel_index(position, counts) if counts else () for position in first}
    extent = tuple(
        1 + max((int(index[axis]) for index in indices.values()), default=-1)
        if axis in spec.growing_axes
        else count
        for axis, count in enumerate(counts)
    )
    acquired_order = np.empty((*extent, *spec.frame_shape), spec.dtype)
    acquired_order[...] = fill(spec)
    for position, frame in first.items():
        acquired_order[indices[position]] = frame
    names = [d.name for d in spec.dimensions]
    stored = np.ascontiguousarray(
        acquired_order.transpose([names.index(d.name) for d in spec.stored_dimensions])
    )
    return Expected(
        with_levels(stored, spec),
        len(appended),
        len(first),
        # nobody knows which frames were to come where several axes grow
        0 if len(spec.growing_axes) > 1 else math.prod(extent) - len(first),
        len(appended) - len(first),
    )


def with_levels(image: np.ndarray, spec: sw.ArraySpec) -> list[np.ndarray]:
    """The image and the levels that are written with it; in storage order."""
    arrays = [image]
    for level in spec.level_shapes:
        factors = in_stored_order(spec, level.factors)
        arrays.append(np.empty(shape_above(arrays[-1].shape, factors), image.dtype))
        with np.errstate(over="ignore"):
            downsample(arrays[-2], arrays[-1], factors, spec.levels.method)
    return arrays


def in_stored_order(spec: sw.ArraySpec, values: Sequence[int]) -> tuple[int, ...]:
    names = [d.name for d in spec.dimensions]
    return tuple(values[names.index(d.name)] for d in spec.stored_dimensions)


def live_chunks(spec: sw.ArraySpec, array: np.ndarray, chunk: Sequence[int]) -> int:
    """Inner chunks (of the shape ``chunk``) with an element that differs, bit for bit, from the fill
    value."""
    differs = bits(array) != bits(fill(spec))
    for axis, size in enumerate(chunk):
        edges = np.arange(0, array.shape[axis], size)
        differs = np.logical_or.reduceat(differs, edges, axis=axis) if len(edges) else differs
    return int(differs.sum())


def bits(array: np.ndarray) -> np.ndarray:
    """The same memory as unsigned integers: NaN equals NaN, and 0 differs from -0."""
    return array.view(f"u{array.dtype.itemsize}")
