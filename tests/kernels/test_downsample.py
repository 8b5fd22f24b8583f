"""Levels of a pyramid, held to their NumPy twin: every dtype and method, odd edges, any axes, the ends of the
number ranges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.array.level_shapes import MAX_FACTOR, MAX_WINDOW, table_entries
from shardwright.array.spec import METHODS
from shardwright.kernels.downsample import downsample, downsample_frames, shape_above
from shardwright.model.write_options import DTYPES

FACTORS = st.sampled_from([1, 2, 2, 3, 4, 5, MAX_FACTOR])


def level(source: np.ndarray, factors: tuple[int, ...], method: str) -> np.ndarray:
    guard = np.full(shape_above(source.shape, factors), 77 if source.dtype != np.bool_ else 1, source.dtype)
    downsample(source, guard, factors, method)
    return guard


def random_values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Bit patterns of all kinds, the ends of the range among them; for floats also NaN and infinities."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        ends = np.array([info.min, info.max, info.min + 1, info.max - 1, 0, 1], kind)
        values = rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
        return np.where(rng.random(shape) < 0.3, rng.choice(ends, shape), values)
    ends = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(kind).max, np.finfo(kind).tiny], kind)
    return np.where(
        rng.random(shape) < 0.1, rng.choice(ends, shape), (1000 * rng.standard_normal(shape)).astype(kind)
    )


@pytest.mark.parametrize(("dtype", "method"), list(itertools.product(DTYPES, METHODS)))
def test_every_dtype_and_method_equals_its_twin(dtype: str, method: str) -> None:
    for seed, (shape, factors) in enumerate(
        [
            ((5, 7, 9), (2, 2, 2)),
            ((4, 6), (1, 2)),
            ((3, 5), (2, 1)),
            ((2, 1, 3, 1, 5), (1, 2, 2, 1, 2)),
            ((1, 1), (2, 2)),
            ((5, 7, 20), (3, 5, 8)),
            ((7, 19), (4, 6)),
            ((3, 17), (2, 3)),
            ((9, 11), (7, 2)),
            ((3, 12), (1, 4)),
        ]
    ):
        source = random_values(dtype, shape, seed)
        with np.errstate(all="ignore"):
            expected = reference.downsample(source, factors, method)
            found = level(source, factors, method)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == source.dtype


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4), data=st.data())
def test_any_shape_and_axes(shape: list[int], data) -> None:
    factors = tuple(data.draw(st.lists(FACTORS, min_size=len(shape), max_size=len(shape))))
    method = data.draw(st.sampled_from(METHODS))
    dtype = data.draw(st.sampled_from(["uint16", "int8", "uint32", "int64"]))
    source = random_values(dtype, tuple(shape), data.draw(st.integers(0, 99)))
    np.testing.assert_array_equal(
        level(source, factors, method), reference.downsample(source, factors, method)
    )


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
def test_levels_of_a_slab_equal_their_twin(method: str, data) -> None:
    """Windows over several frames, some of which never came."""
    dtype = data.draw(st.sampled_from([each for each in DTYPES if each != "float16"]))
    frames, rows, columns = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 9)))
    factors = data.draw(st.tuples(*[FACTORS] * 3))
    came = data.draw(st.lists(st.booleans(), min_size=frames, max_size=frames))
    source = random_values(dtype, (frames, rows, columns), data.draw(st.integers(0, 99)))
    source[~np.array(came)] = fill = 3 if dtype != "bool" else True
    out = np.zeros(shape_above(source.shape, factors), dtype)
    windows = np.full((out.shape[0], factors[0]), -1, np.int64)
    for frame in range(frames):
        windows[frame // factors[0], frame % factors[0]] = frame
    addresses = np.array([image.ctypes.data * there for image, there in zip(source, came, strict=True)])
    lines = out.shape[0] * out.shape[1]
    table = np.zeros(table_entries(lines, factors[0] * factors[1], columns), np.int64)
    fill_row = np.full(columns, fill, dtype)
    found = downsample_frames(addresses, windows, (rows, columns), factors[1:], method, fill_row, out, table)
    with np.errstate(all="ignore"):
        expected = reference.downsample(source, factors, method)
    for number, address in enumerate(found.tolist()):
        if any(came[number * factors[0] : (number + 1) * factors[0]]):
            assert address == out[number].ctypes.data
            np.testing.assert_array_equal(out[number], expected[number])
        else:
            assert address == 0, "a frame of which nothing came is left out"


def test_the_mean_is_numpys() -> None:
    """Full windows, in NumPy's own words."""
    source = random_values("uint16", (8, 10, 12), 1)
    windows = source.reshape(4, 2, 5, 2, 6, 2).astype(np.float64)
    np.testing.assert_array_equal(
        level(source, (2, 2, 2), "mean"), np.rint(windows.mean(axis=(1, 3, 5))).astype(np.uint16)
    )
    np.testing.assert_array_equal(level(np.array([[1, 2, 3, 4, 0, 1]], np.int8), (1, 2), "mean"), [[2, 4, 0]])
    np.testing.assert_array_equal(
        level(np.array([[-1, -2, -3, -4, 0, -1]], np.int8), (1, 2), "mean"), [[-2, -4, 0]]
    )


@pytest.mark.parametrize("dtype", [each for each in DTYPES if np.dtype(each).kind in "iu"])
def test_the_mean_of_the_largest_window_does_not_overflow(dtype: str) -> None:
    shape = (8, 8, 8, 8)
    info, places = np.iinfo(dtype), np.arange(MAX_WINDOW).reshape(shape)
    least, most = np.array([info.min, info.max], dtype)
    assert places.size == MAX_WINDOW
    for odd in (1, 2, 3):
        ends = np.where(places % odd, least, most)
        for source in (ends, np.full(shape, least), np.full(shape, most)):
            np.testing.assert_array_equal(
                level(source, shape, "mean"), reference.downsample(source, shape, "mean")
            )


def test_one_nan_makes_the_window_nan_and_nearest_takes_the_first() -> None:
    source = np.array([[1, np.nan, 3, 4, 5]], np.float32)
    for method in ("mean", "min", "max"):
        assert np.isnan(level(source, (1, 2), method)[0, 0])
    np.testing.assert_array_equal(level(source, (1, 2), "nearest"), np.array([[1, 3, 5]], np.float32))
