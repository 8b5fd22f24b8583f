"""The stored forms: byte for byte the twin's, and open to decoders that know nothing of us."""

from __future__ import annotations

import gzip

import numcodecs
import numpy as np
import pytest
from tests.kernels import reference

from shardwright.codecs.parameters import BLOSC_LZ4, FILTER_NONE, KIND_BLOSC, CodecParameters
from shardwright.kernels.stored_forms import store_blosc, store_gzip, store_plain, store_zstd

SIZES = [1, 7, 8, 65534, 65535, 65536, 131070, 131071, 131072, 131073, 262144, 300001]


@pytest.mark.parametrize("count", SIZES)
def test_stored_forms_equal_their_twins_and_decode(one_piece, guarded, count):
    data = np.random.default_rng(count).bytes(count)
    piece = one_piece(data)  # owns the memory
    source = piece.for_kernel(0)
    codec = CodecParameters(KIND_BLOSC, BLOSC_LZ4, 1, 5, FILTER_NONE, 1, checksum=False, chunk_bytes=count)
    parameters = codec.as_array()
    forms = {
        "plain": (lambda out, address: store_plain(address, source), reference.store_plain(data), bytes),
        "blosc": (
            lambda out, address: store_blosc(out, address, parameters, source),
            reference.store_blosc(data, 1, 1, codec.block_bytes),
            numcodecs.Blosc().decode,
        ),
        "zstd": (
            lambda out, address: store_zstd(out, address, source),
            reference.store_zstd(data),
            numcodecs.Zstd().decode,
        ),
        "gzip": (
            lambda out, address: store_gzip(out, address, source),
            reference.store_gzip(data),
            gzip.decompress,
        ),
    }
    for name, (store, expected, decode) in forms.items():
        target = guarded(len(expected))
        assert store(target.view, target.address) == len(expected), name
        assert target.view.tobytes() == expected, name
        assert target.untouched_outside(), name
        assert decode(expected) == data, name
