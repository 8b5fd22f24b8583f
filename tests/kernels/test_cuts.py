"""Cuts of decoded chunks: as the twin finds and lays them, for every codec; what does not decode is left
undone."""

from __future__ import annotations

import struct
from typing import Any

import crc32c
import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.codecs import native_library
from shardwright.kernels.cuts import BLOSC, OTHER, PLAIN, ZSTD, cut_boxes, decode_cuts

ENCODERS: dict[str, tuple[int, Any]] = {
    "plain": (PLAIN, bytes),
    "lz4": (BLOSC, numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.SHUFFLE, blocksize=256).encode),
    "zstd in blosc": (BLOSC, numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.BITSHUFFLE).encode),
    "stored": (BLOSC, numcodecs.Blosc("lz4", clevel=0).encode),
    "zstd": (ZSTD, numcodecs.Zstd(1).encode),
}
COMPRESSED = [name for name in ENCODERS if name not in ("plain", "stored")]


def decode(
    encoded: list[bytes], kind: int, cuts: np.ndarray, chunk: np.ndarray, box: np.ndarray, *, checksum: bool
) -> np.ndarray:
    """Lays cuts of chunks like ``chunk`` into ``box``; returns which are done."""
    data = [np.frombuffer(each, np.uint8) for each in encoded]
    sources = np.array([each.ctypes.data for each in data], np.int64)
    nbytes = np.array([each.size for each in data], np.int64)
    shapes = np.array([chunk.shape, box.shape], np.int64)
    done, scratch = np.zeros(len(data), np.bool_), np.zeros(chunk.nbytes, np.uint8)
    form = kind, checksum, chunk.itemsize
    decode_cuts(sources, nbytes, form, cuts, shapes, box.ctypes.data, scratch, done)
    return done


def with_checksum(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c.crc32c(data))


@given(
    st.sampled_from(sorted(ENCODERS)),
    st.sampled_from(["uint8", "uint16", "float32", "uint64"]),
    st.booleans(),
    st.lists(st.tuples(*[st.integers(1, 9)] * 4), min_size=2, max_size=4),
    st.integers(0, 2**32),
)
def test_it_equals_its_twin(codec, dtype, checksum, axes, seed):
    """Each axis: elements of the chunk, and from these the cut and its place in a larger box."""
    rng = np.random.default_rng(seed)
    kind, encode = ENCODERS[codec]
    if not native_library.available() and codec in COMPRESSED:
        return
    shape = [n for n, *_ in axes]
    first = np.array([a % n for n, a, *_ in axes])
    count = np.array([1 + b % (n - f) for (n, _, b, _), f in zip(axes, first, strict=True)])
    in_box = np.array([c % 3 for *_, c in axes])
    chunks = [rng.integers(0, 200, shape).astype(dtype) for _ in range(2)]
    boxes = [np.full([*(count + in_box + seed % 2)], 7, dtype) for _ in range(2)]
    cuts = np.array([[first, count, in_box], [first, count, in_box * 0]], np.int64)
    encoded = [bytes(encode(np.ascontiguousarray(chunk))) for chunk in chunks]
    if checksum:
        encoded = [with_checksum(each) for each in encoded]
    for i in range(2):
        done = decode(encoded[i : i + 1], kind, cuts[i : i + 1], chunks[i], boxes[0], checksum=checksum)
        assert done.tolist() == [True]
        reference.lay_cut(chunks[i], cuts[i], boxes[1])
        np.testing.assert_array_equal(boxes[0], boxes[1])


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=3),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_the_chunks_of_boxes_are_those_of_the_twin(axes, count, seed):
    """Each axis: elements of a chunk, chunks of a shard. Without axes there is one chunk."""
    rng = np.random.default_rng(seed)
    chunk_shape, shard_chunks = [n for n, _ in axes], [n for _, n in axes]
    boxes = np.zeros((count, 3, len(axes)), np.int64)
    for axis, (chunk, chunks) in enumerate(axes):
        boxes[:, 0, axis] = rng.integers(0, chunk * chunks, count)
        boxes[:, 1, axis] = [rng.integers(low + 1, chunk * chunks + 1) for low in boxes[:, 0, axis]]
        boxes[:, 2, axis] = rng.integers(0, 9, count)
    expected = reference.cut_boxes(boxes, chunk_shape, shard_chunks)
    n = len(expected[0])
    numbers, cuts = np.full(n, -1), np.full((n, 3, len(axes)), -1)
    cut_boxes(boxes, np.array([chunk_shape, shard_chunks], np.int64), numbers, cuts)
    assert (numbers.tolist(), cuts.tolist()) == expected


CHUNK = np.arange(4 * 32, dtype=np.uint16).reshape(4, 32)
WHOLE = np.array([[[0, 0], [4, 32], [0, 0]]], np.int64)


@pytest.mark.parametrize("codec", sorted(ENCODERS))
def test_bytes_of_another_length_are_left_undone(codec):
    kind, encode = ENCODERS[codec]
    data = bytes(encode(CHUNK))
    for wrong in (data[:-1], data + b"\0", data[:9], b""):
        box = np.zeros_like(CHUNK)
        if decode([wrong], kind, WHOLE, CHUNK, box, checksum=False).all():
            pytest.fail(f"{codec}: {len(wrong)} of {len(data)} bytes")


@pytest.mark.parametrize("codec", ["lz4", "stored", "zstd in blosc"])
@pytest.mark.parametrize("byte", [0, 2, 3, 4, 8, 11, 12])
def test_a_blosc_header_that_is_not_right_is_left_undone(codec, byte):
    data = bytearray(ENCODERS[codec][1](CHUNK))
    data[byte] = 0x0C if byte == 2 else 0 if byte == 3 else data[byte] ^ 0xFF
    assert not decode([bytes(data)], BLOSC, WHOLE, CHUNK, np.zeros_like(CHUNK), checksum=False).any()


def test_a_checksum_that_does_not_fit_and_unknown_codecs_are_left_undone():
    good = with_checksum(CHUNK.tobytes())
    bad = bytes([good[0] ^ 1, *good[1:]])
    cuts, box = np.repeat(WHOLE, 3, axis=0), np.zeros_like(CHUNK)
    assert decode([bad, good, b"xy"], PLAIN, cuts, CHUNK, box, checksum=True).tolist() == [False, True, False]
    np.testing.assert_array_equal(box, CHUNK)
    assert not decode([good], OTHER, WHOLE, CHUNK, box, checksum=True).any()
