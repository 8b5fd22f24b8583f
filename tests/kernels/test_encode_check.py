"""The encode check: no changed chunk passes, no right one fails, and a sample reaches everything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import reference
from tests.kernels.test_gather import cuts

from shardwright.codecs.parameters import BLOSC_BLOCK_BYTES, KIND_NONE, LEVEL_STORED
from shardwright.kernels.encode import COMPRESSED, STORED
from shardwright.kernels.encode_check import CHECK_ALL, CHECK_NONE, CHECK_SAMPLE, decodes_to, is_due
from shardwright.kernels.gather import is_in_range

NAMES = (
    *(
        f"blosc {cname} {shuffle} 1"
        for cname in ("lz4", "zstd", "zlib")
        for shuffle in ("shuffle", "bitshuffle")
    ),
    *("blosc lz4 noshuffle 0", "zstd 1", "gzip 1", "gzip 0", "none"),
)


@given(cut=cuts(), data=st.data())
def test_what_is_gathered_is_in_range_and_nothing_else_is(source_of, guarded, cut, data):
    source = source_of(*cut)
    start = data.draw(st.integers(0, source.chunk_bytes))
    stop = data.draw(st.integers(start, source.chunk_bytes))
    for chunk in range(len(source.plane)):
        where = (source.frames, source.plane[chunk], source.chunk_rows, source.row_bytes, source.fill_row)
        target = guarded(stop - start)
        target.view[:] = np.frombuffer(reference.gather_range(*where, start, stop), np.uint8)
        assert is_in_range(source.for_kernel(chunk), start, stop, target.address)
        if stop > start:
            target.view[data.draw(st.integers(0, stop - start - 1))] ^= 1 << data.draw(st.integers(0, 7))
            assert not is_in_range(source.for_kernel(chunk), start, stop, target.address)


def says(source, codec, contexts, guarded, encoded: bytes) -> bool:
    """What the kernel says of a chunk in memory of just its length."""
    at, scratch = guarded(len(encoded)), guarded(codec.scratch_bytes)
    at.view[:] = np.frombuffer(encoded, np.uint8)
    said = decodes_to(
        at.address, len(encoded), codec.as_array(), contexts.addresses, scratch.address, source.for_kernel(0)
    )
    assert scratch.untouched_outside()
    assert at.view.tobytes() == encoded, "it reads alone"
    return bool(said)


@settings(max_examples=60)
@given(name=st.sampled_from(NAMES), data=st.data())
def test_a_changed_chunk_does_not_pass(
    one_piece, encode, decode, codecs_of, contexts, guarded, has_native, name, data
):
    if not has_native:
        pytest.skip("nothing is compressed, and nothing checked")
    count = data.draw(st.sampled_from([64, 4096, BLOSC_BLOCK_BYTES + 4096]))
    pixels = np.random.default_rng(count).poisson(3, count // 2).astype("<u2").tobytes()
    codec = codecs_of(2, count, [name])[name]
    source = one_piece(pixels)
    ((encoded, form),) = encode(source, codec)
    assert form in (COMPRESSED, STORED)
    assert says(source, codec, contexts, guarded, encoded)
    assert not says(source, codec, contexts, guarded, encoded[:-1])
    other = one_piece(pixels[:-1] + bytes([pixels[-1] ^ 1]))
    assert not says(other, codec, contexts, guarded, encoded)
    # by whatever byte it is changed: it passes only if readers find its pixels all the same
    changed = bytearray(encoded)
    changed[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if says(source, codec, contexts, guarded, bytes(changed)):
        assert decode(bytes(changed), codec) == pixels


@given(
    mode=st.sampled_from([CHECK_NONE, CHECK_SAMPLE, CHECK_ALL]),
    number=st.integers(0, 2**40),
)
def test_what_is_due_is_what_the_twin_says(mode, number):
    assert is_due(mode, number) == reference.is_due(mode, number)


@pytest.mark.parametrize("step", [1, 2, 16, 64, 100, 4096])
def test_a_sample_is_of_one_in_64_at_whatever_step(step):
    """So no place of the chunks of a frame is left out: of 64 each 64th chunk would be the same one."""
    taken = [is_due(CHECK_SAMPLE, number) for number in range(0, 6400 * step, step)]
    assert taken[0], "the first chunk of each image"
    assert 85 <= sum(taken) <= 115


@pytest.mark.parametrize("name", [*NAMES, "zstd -7", "blosc lz4hc noshuffle 4", "gzip 1 crc32c"])
@pytest.mark.parametrize("count", [64, 2 * BLOSC_BLOCK_BYTES + 8 * 37])
def test_what_does_not_shrink_by_the_least_ratio_is_stored(
    one_piece, encode, decode, codecs_of, has_native, name, count
):
    pixels = np.random.default_rng(1).poisson(40, count // 2).astype("<u2").tobytes()
    codec, source = codecs_of(2, count, [name])[name], one_piece(pixels)
    ((today, form),) = encode(source, codec)
    (stored,) = encode(source, replace(codec, level=LEVEL_STORED))
    assert stored[1] == STORED
    for least in (1.0, 1.2, 1.5, 2.0, 3.0, 50.0, 1000.0):
        ((encoded, found),) = encode(source, replace(codec, min_ratio=least))
        assert decode(encoded, codec) == pixels
        nbytes = len(today) - 4 * codec.checksum
        if least == 1:
            assert (encoded, found) == (today, form)
        elif nbytes * least >= count or form == STORED:
            assert (encoded, found) == stored
        elif count > 64 and nbytes * least < 0.98 * count:  # closer to it a compressor may find no room
            assert (found, len(encoded) == len(today)) == (COMPRESSED, True)
    compresses = has_native and codec.kind != KIND_NONE and name != "blosc lz4 noshuffle 0"
    assert form == (COMPRESSED if compresses else STORED) or count == 64
