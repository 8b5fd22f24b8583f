"""Samples of frames: bit for bit as the twin takes them, over the whole field."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.kernels.gather import sample_pixels


def sampled(frames: list[np.ndarray], count: int, first: int) -> np.ndarray:
    addresses = np.array([frame.ctypes.data for frame in frames], np.int64)
    sample = np.zeros(count, frames[0].dtype)
    sample_pixels(addresses, frames[0].size, sample.itemsize, first, sample.view(np.uint8))
    return sample


@given(
    st.sampled_from(["bool", "uint8", "int16", "float16", "float32", "uint64"]),
    st.integers(1, 4),
    st.integers(1, 300),
    st.integers(0, 100),
    st.integers(0, 2**63 - 101),
)
def test_it_equals_its_twin(dtype, frames, pixels, count, first):
    rng = np.random.default_rng(pixels)
    stack = [rng.integers(0, 100, pixels).astype(dtype) for _ in range(frames)]
    assert np.array_equal(
        sampled(stack, count, first % 2**40), reference.sample_pixels(stack, count, first % 2**40)
    )


@pytest.mark.parametrize("shape", [(64, 64), (100, 2048), (2048, 100)])
def test_places_are_spread_over_rows_and_columns(shape):
    rows, columns = np.divmod(sampled([np.arange(np.prod(shape), dtype=np.int32)], 512, 12345), shape[1])
    for places, size in ((rows, shape[0]), (columns, shape[1])):
        in_each_eighth = np.bincount(places * 8 // size, minlength=8)
        assert in_each_eighth.min() >= 32, "half of what an even spread has"


def test_a_frame_with_fewer_pixels_than_the_sample():
    assert set(sampled([np.arange(4, dtype=np.uint8)], 64, 7)) == {0, 1, 2, 3}
