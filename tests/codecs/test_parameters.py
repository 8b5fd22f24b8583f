"""Codecs as numbers: worst cases, block sizes and levels."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.array.spec import ArraySpec, Blosc, Dimension, Gzip, Zstd
from shardwright.codecs import native_library
from shardwright.codecs.parameters import (
    BLOSC_BLOCK_BYTES,
    FILTER_BITSHUFFLE,
    FILTER_NONE,
    FILTER_SHUFFLE,
    LEVEL_STORED,
    CodecParameters,
)
from shardwright.kernels.compressed_forms import CONTEXT_ZSTD, CompressorContexts
from shardwright.kernels.encode_planes import encode_whole


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


@pytest.mark.parametrize(
    "codec", [Zstd(level=level) for level in (-5, 1, 3, 9)] + [Blosc(cname="zstd", clevel=c) for c in (1, 7)]
)
@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_what_a_zstd_context_holds_is_planned(codec, size):
    made, library = parameters(codec, size), native_library.library()
    library.ZSTD_sizeof_CCtx.argtypes, library.ZSTD_sizeof_CCtx.restype = (
        (ctypes.c_void_p,),
        ctypes.c_size_t,
    )
    contexts = CompressorContexts()
    chunk = np.random.default_rng(1).integers(0, 99, size, dtype=np.uint8)
    slot, scratch = np.zeros(made.max_encoded_bytes, np.uint8), np.zeros(made.scratch_bytes, np.uint8)
    encode_whole(chunk, made, slot, (contexts.addresses, scratch))
    held = library.ZSTD_sizeof_CCtx(int(contexts.addresses[CONTEXT_ZSTD]))
    contexts.close()
    assert held <= made.context_bytes < 1.3 * held


def test_other_codecs_have_no_zstd_context():
    stored = Blosc(cname="zstd", clevel=0)
    assert [parameters(c, 4096).context_bytes for c in (None, Blosc(cname="lz4"), Gzip(), stored)] == [0] * 4


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
