"""The byte and bit filters of the native library, as the kernels call them, against their twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.codecs.parameters import FILTER_BITSHUFFLE, FILTER_NONE, FILTER_SHUFFLE
from shardwright.kernels.compressed_forms import filter_block


@given(elements=st.integers(1, 700), typesize=st.sampled_from([1, 2, 4, 8]), seed=st.integers(0, 99))
def test_filters_equal_their_twins(guarded, has_native, elements, typesize, seed):
    if not has_native:
        pytest.skip("the library is taken away in this run: nothing is filtered then")
    data = np.random.default_rng(seed).bytes(elements * typesize)
    source = guarded(len(data))
    source.view[:] = np.frombuffer(data, np.uint8)
    for kind, expected in (
        (FILTER_NONE, data),
        (FILTER_SHUFFLE, reference.shuffle(data, typesize)),
        (FILTER_BITSHUFFLE, reference.bitshuffle(data, typesize)),
    ):
        target = guarded(len(data))
        where = filter_block(kind, typesize, len(data), source.address, target.address)
        if kind == FILTER_NONE:
            assert where == source.address  # nothing is copied
        else:
            assert where == target.address
            assert target.view.tobytes() == expected
        assert target.untouched_outside()
