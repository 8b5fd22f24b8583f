"""Codecs as numbers: worst cases, block sizes and levels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.array.spec import ArraySpec, Blosc, Dimension, Gzip, Zstd
from shardwright.codecs.parameters import (
    BLOSC_BLOCK_BYTES,
    FILTER_BITSHUFFLE,
    FILTER_NONE,
    FILTER_SHUFFLE,
    LEVEL_STORED,
    CodecParameters,
)


def parameters(codec, chunk_bytes: int, dtype: str = "uint16", checksum: bool = False) -> CodecParameters:
    axes = [Dimension(name=n, count=1, chunk_size=1) for n in "yx"]
    return CodecParameters.of(
        ArraySpec(dtype=dtype, dimensions=axes, codec=codec, chunk_checksum=checksum), chunk_bytes
    )


@given(size=st.integers(1, 400_000), checksum=st.booleans())
def test_the_worst_case_is_the_stored_form(size, checksum):
    data = bytes(size)
    more = 4 if checksum else 0
    assert parameters(None, size, checksum=checksum).max_encoded_bytes == size + more
    blosc = parameters(Blosc(), size, checksum=checksum)
    assert blosc.max_encoded_bytes == len(reference.store_blosc(data, 2, 1, blosc.block_bytes)) + more
    assert (
        parameters(Zstd(), size, checksum=checksum).max_encoded_bytes
        == len(reference.store_zstd(data)) + more
    )
    assert (
        parameters(Gzip(), size, checksum=checksum).max_encoded_bytes
        == len(reference.store_gzip(data)) + more
    )


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("size", [8, 4096, BLOSC_BLOCK_BYTES, BLOSC_BLOCK_BYTES + 8, 10 * BLOSC_BLOCK_BYTES])
def test_blocks_hold_whole_groups_of_eight_elements_unless_the_chunk_is_smaller(dtype, size):
    made = parameters(Blosc(), size, dtype)
    assert made.block_bytes <= size
    assert made.block_bytes == size or made.block_bytes % (8 * np.dtype(dtype).itemsize) == 0
    assert made.scratch_bytes >= 2 * made.block_bytes


def test_blosc_levels_are_translated_as_c_blosc_does():
    assert [parameters(Blosc(cname="lz4", clevel=c), 64).level for c in range(10)] == [
        LEVEL_STORED,
        *range(9, 0, -1),
    ]
    assert [parameters(Blosc(cname="zstd", clevel=c), 64).level for c in range(10)] == [
        LEVEL_STORED,
        1,
        3,
        5,
        7,
        9,
        11,
        13,
        20,
        22,
    ]
    assert [parameters(Blosc(cname="zlib", clevel=c), 64).level for c in range(10)] == [
        LEVEL_STORED,
        *range(1, 10),
    ]
    assert [parameters(Blosc(cname="lz4hc", clevel=c), 64).level for c in range(10)] == [
        LEVEL_STORED,
        *range(1, 10),
    ]


def test_one_byte_elements_have_nothing_to_shuffle_but_bits():
    filters = {
        s: parameters(Blosc(shuffle=s), 64, "uint8").filter for s in ("noshuffle", "shuffle", "bitshuffle")
    }
    assert filters == {"noshuffle": FILTER_NONE, "shuffle": FILTER_NONE, "bitshuffle": FILTER_BITSHUFFLE}
    assert parameters(Blosc(shuffle="shuffle"), 64, "uint16").filter == FILTER_SHUFFLE
