"""Planes of runs as LZ4 blocks: read by LZ4 itself and by a plain decoder, within the capacity, whatever the
lengths of runs and the end of the plane."""

from __future__ import annotations

import struct

import numcodecs.lz4
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.kernels.runs import LEAST_BYTES, PART_BYTES, WORK_WORDS, compress_runs, has_constant_part

AROUND_A_LIMIT = [
    k + d for k in (4, 5, 8, 15, 19, 64, 128, 255, 270, 274, 510, 765, PART_BYTES) for d in range(-2, 3)
]
VALUES = (0, 1, 2, 255)


@st.composite
def planes(draw) -> bytes:
    """Runs of a few values, of all the lengths at which an encoder does something else; single bytes and
    short noise between them."""
    lengths = st.one_of(st.integers(1, 20), st.sampled_from(AROUND_A_LIMIT), st.integers(1, 3000))
    run = st.tuples(st.sampled_from(VALUES), lengths).map(lambda one: bytes([one[0]]) * one[1])
    noise = st.binary(min_size=1, max_size=40)
    flips = st.tuples(st.integers(1, 30), st.integers(1, 40)).map(
        lambda one: (b"\1" + bytes(one[0])) * one[1]
    )
    plane = b"".join(draw(st.lists(st.one_of(run, flips, noise), min_size=1, max_size=40)))
    return plane + bytes(max(0, LEAST_BYTES - len(plane)))


@pytest.fixture(scope="module")
def compress(guarded):
    """Compresses a plane into a capacity; checks all that is promised beside the block itself."""
    work = guarded(8 * WORK_WORDS + 8)

    def run(plane: bytes, capacity: int) -> bytes:
        source, target = guarded(len(plane)), guarded(capacity)
        source.view[:] = np.frombuffer(plane, np.uint8)
        size = compress_runs(
            source.address, len(plane), target.address, capacity, work.address + -work.address % 8
        )
        assert 0 <= size <= capacity
        assert source.view.tobytes() == plane
        for memory in (source, target, work):
            assert memory.untouched_outside()
        return target.view[:size].tobytes()

    return run


def read(block: bytes, count: int) -> bytes:
    """The bytes of a block as LZ4 reads them, which are also those of the plain decoder."""
    data = bytes(numcodecs.lz4.decompress(struct.pack("<I", count) + block))
    assert reference.lz4_bytes(block) == data
    return data


@settings(max_examples=300)
@given(plane=planes())
def test_any_runs_read_back(compress, plane):
    block = compress(plane, 2 * len(plane) + 64)
    assert read(block, len(plane)) == plane


@settings(max_examples=200)
@given(plane=planes(), data=st.data())
def test_no_capacity_is_exceeded(compress, plane, data):
    whole = compress(plane, 2 * len(plane) + 64)
    capacity = data.draw(st.integers(0, len(whole) + 64))
    block = compress(plane, capacity)
    assert block in (b"", whole)
    assert block == whole or capacity < len(whole) + 64


@settings(max_examples=60)
@given(low=planes(), high=planes(), level=st.sampled_from([1, 9]))
def test_planes_of_pixels_read_back(one_piece, encode, decode, codecs_of, low, high, level):
    """As the two bytes of 16-bit pixels, repeated to blocks that are sampled and ones that are not."""
    pixels = np.stack([np.resize(np.frombuffer(plane, np.uint8), 9 * 65536) for plane in (low, high)], axis=1)
    codec = codecs_of(2, pixels.nbytes, [name := f"blosc lz4 shuffle {level}"])[name]
    ((encoded, _),) = encode(one_piece(pixels.tobytes()), codec)
    assert decode(encoded, codec) == pixels.tobytes()


@pytest.mark.parametrize("end", range(24))
@pytest.mark.parametrize(
    "count", [LEAST_BYTES, LEAST_BYTES + 63, 4 * LEAST_BYTES, PART_BYTES - 1, PART_BYTES]
)
def test_a_last_run_of_any_length(compress, count, end):
    """The last five bytes are literals, and no match begins in the last twelve (``lz4_bytes`` says so)."""
    plane = bytes(count - end) + b"\7" * end
    assert read(compress(plane, count), count) == plane
    plane = bytes(count - end - 1) + b"\7" + bytes(end)
    assert read(compress(plane, count), count) == plane


@pytest.mark.parametrize("period", [*range(1, 24), 63, 64, 65, 257])
def test_runs_of_one_length(compress, period):
    """Alternating ones: each begins at another bit of a vector. Runs of six bytes become matches."""
    plane = (np.arange(3 * PART_BYTES + 17) // period % 2).astype(np.uint8).tobytes()
    block = compress(plane, 2 * len(plane))
    assert read(block, len(plane)) == plane
    assert (len(reference.lz4_sequences(block)) > 1) == (period >= 6)


def test_a_plane_of_one_byte_is_one_match(compress):
    block = compress(b"\5" * 65536, 65535)
    assert [(a, b) for a, b, _ in reference.lz4_sequences(block)] == [(b"\5", 1), (b"\5" * 5, 0)]
    assert len(block) < 270


def test_a_run_is_a_copy_of_a_longer_one_and_the_bytes_before_it(compress):
    """A flip and the run that follows take a sequence of three bytes, and no literal."""
    plane = bytes(100) + b"\1" + bytes(200) + (b"\1" + bytes(40)) * 100 + bytes(300)
    sequences = reference.lz4_sequences(compress(plane, len(plane)))
    assert sum(literals == b"" and distance > 1 for literals, distance, _ in sequences) >= 99


@pytest.mark.parametrize("between", [65535 - 201, 65535 - 200, 65535 - 199, 65536, 80000])
def test_no_match_is_farther_away_than_its_distance_can_say(compress, between):
    noise = np.random.default_rng(1).bytes(between)
    plane = (
        b"12345678" + bytes(200) + noise + b"12345678" + bytes(150) + b"12345678" + bytes(100) + b"end" * 20
    )
    assert read(compress(plane, 2 * len(plane)), len(plane)) == plane


@given(plane=planes())
def test_constant_parts_equal_their_twin(guarded, plane):
    memory = guarded(len(plane))
    memory.view[:] = np.frombuffer(plane, np.uint8)
    assert has_constant_part(memory.address, len(plane)) == reference.has_constant_part(plane)
    assert memory.untouched_outside()


def test_noise_has_no_constant_part(guarded):
    memory = guarded(65536)
    memory.view[:] = np.random.default_rng(1).poisson(100, 65536)
    assert not has_constant_part(memory.address, memory.count)
    memory.view[30000:38000] = 255
    assert has_constant_part(memory.address, memory.count)
