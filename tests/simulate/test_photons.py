"""Simulated frames: regenerable, different from each other, noisy like a camera's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.model.write_options import DTYPES
from shardwright.simulate.photons import STAMP_PIXELS, PhotonFrames


def stamped_index(frame: np.ndarray) -> int:
    """The low bits of the index, in a frame of fewer than 64 pixels."""
    bits = frame.reshape(-1)[:STAMP_PIXELS] != 0
    return sum(1 << i for i, bit in enumerate(bits) if bit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_frame_depends_on_seed_and_index_only(dtype: str) -> None:
    first, second = PhotonFrames((24, 40), dtype, seed=5), PhotonFrames((24, 40), dtype, seed=5)
    for index in (7, 0, 1000, 3):
        frame = first.frame(index)
        assert frame.dtype == dtype
        assert frame.shape == (24, 40)
        np.testing.assert_array_equal(frame, second.frame(index))
    assert not np.array_equal(first.frame(3), PhotonFrames((24, 40), dtype, seed=6).frame(3))


@settings(max_examples=30, deadline=None)
@given(shape=st.tuples(st.integers(1, 30), st.integers(1, 30)), index=st.integers(0, 2**40))
def test_the_stamp_names_the_frame(shape: tuple[int, int], index: int) -> None:
    frame = PhotonFrames(shape, "uint8").frame(index)
    bits = min(STAMP_PIXELS, shape[0] * shape[1])
    assert stamped_index(frame) == index % 2**bits


def test_frames_differ_in_their_pixels_and_not_only_in_the_stamp() -> None:
    source = PhotonFrames((64, 64))
    pixels = {source.frame(i)[2:].tobytes() for i in range(200)}
    assert len(pixels) == 200


def test_a_given_buffer_is_filled() -> None:
    source = PhotonFrames((16, 16))
    out = np.zeros((16, 16), np.uint16)
    assert source.frame(9, out) is out
    np.testing.assert_array_equal(out, source.frame(9))


def test_the_noise_is_photon_noise() -> None:
    """Two exposures of one sample differ by a variance of twice the mean count, which is what Poisson noise
    means."""
    source = PhotonFrames((128, 128), seed=3)
    a, b = (source._pool[k, : 128 * 128].astype(float) for k in (0, 1))
    photons = (a + b).mean() / 2 - 100
    assert np.var(a - b) == pytest.approx(2 * photons, rel=0.1)


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one pixel"):
        PhotonFrames((0, 4))
