"""A streaming copy leaves the bytes that memcpy would, and touches nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.kernels.copy import LINE_BYTES, copy_streaming


@given(
    st.integers(0, 5 * LINE_BYTES), st.integers(0, LINE_BYTES), st.integers(0, LINE_BYTES), st.integers(0, 99)
)
def test_any_length_at_any_alignment(count, to, source, seed):
    rng = np.random.default_rng(seed)
    given_bytes = rng.integers(0, 256, 8 * LINE_BYTES, np.uint8)
    out = rng.integers(0, 256, 8 * LINE_BYTES, np.uint8)
    expected = out.copy()
    expected[to : to + count] = given_bytes[source : source + count]
    copy_streaming(int(out.ctypes.data) + to, int(given_bytes.ctypes.data) + source, count)
    assert np.array_equal(out, expected)
