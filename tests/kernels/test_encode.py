"""From frames to encoded chunks: whatever codec, size and content, independent decoders get back exactly the
twin's bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.codecs.decode import ChunkCodecs, decode_chunk
from shardwright.codecs.parameters import (
    BLOSC_BLOCK_BYTES,
    FILTER_BITSHUFFLE,
    FILTER_NONE,
    FILTER_SHUFFLE,
    KIND_BLOSC,
    KIND_GZIP,
    KIND_NONE,
    KIND_ZSTD,
)
from shardwright.kernels.encode import ABSENT, COMPRESSED, PAGE_BYTES, STORED, encode_chunks, room_for
from shardwright.kernels.encode_check import CHECK_SAMPLE

TYPESIZES = (1, 2, 4, 8)


def content(kind: str, count: int, typesize: int) -> bytes:
    rng = np.random.default_rng(count)
    if kind == "noise":
        return rng.bytes(count)
    if kind == "ramp":
        return (np.arange(-(-count // 4), dtype=np.uint32) // 7).tobytes()[:count]
    if kind == "noise then zeros":  # the first blocks do not shrink, the last ones do
        return rng.bytes(count // 2) + bytes(count - count // 2)
    assert kind == "photons"
    return rng.poisson(40, -(-count // 2)).astype("<u2").tobytes()[:count]


CONTENTS = ("noise", "ramp", "noise then zeros", "photons")


@st.composite
def slabs(draw):
    typesize = draw(st.sampled_from(TYPESIZES))
    rows, columns, chunk_rows, chunk_columns = (draw(st.integers(1, 24)) for _ in range(4))
    present = draw(st.lists(st.booleans(), min_size=1, max_size=4))
    kind = draw(st.sampled_from([*CONTENTS, "fill"]))
    fill = np.frombuffer(
        content("noise", typesize, typesize) if draw(st.booleans()) else bytes(typesize), np.uint8
    )
    pixels = rows * columns * typesize
    frames = []
    for i, here in enumerate(present):
        data = (
            fill.tobytes() * (rows * columns)
            if kind == "fill"
            else content(kind, pixels + i * typesize, typesize)[:pixels]
        )
        frames.append(np.frombuffer(data, np.uint8).reshape(rows, -1) if here else None)
    plane = [
        (top, left * typesize, min(chunk_rows, rows - top), min(chunk_columns, columns - left) * typesize)
        for top in range(0, rows, chunk_rows)
        for left in range(0, columns, chunk_columns)
    ]
    return typesize, (
        frames,
        np.array(plane),
        chunk_rows,
        chunk_columns * typesize,
        np.tile(fill, chunk_columns),
    )


@settings(max_examples=60)
@given(slab=slabs(), pick=st.integers(0, 10**6), keep_empty=st.booleans())
def test_slabs_of_any_shape(source_of, encode, decode, codecs_of, slab, pick, keep_empty):
    typesize, parts = slab
    source = source_of(*parts)
    codecs = list(codecs_of(typesize, source.chunk_bytes).values())
    codec = codecs[pick % len(codecs)]
    for chunk, (data, form) in zip(source.plane, encode(source, codec, keep_empty), strict=True):
        where = (source.frames, chunk, source.chunk_rows, source.row_bytes, source.fill_row)
        if not keep_empty and reference.is_all_fill(*where):
            assert (data, form) == (b"", ABSENT)
        else:
            assert form in (COMPRESSED, STORED)
            assert decode(data, codec) == reference.chunk_bytes(*where)


@settings(max_examples=60)
@given(slab=slabs(), pick=st.integers(0, 10**6), keep_empty=st.booleans(), data=st.data())
def test_packed_chunks_are_the_same_back_to_back(
    source_of, encode, codecs_of, contexts, slab, pick, keep_empty, data
):
    """One behind the other as the twin says, absent ones taking no room, another file's at a page; nothing
    behind the last one's slot."""
    typesize, parts = slab
    source = source_of(*parts)
    codecs = list(codecs_of(typesize, source.chunk_bytes).values())
    codec = codecs[pick % len(codecs)]
    expected = encode(source, codec, keep_empty)
    count, capacity = len(source.plane), -(-codec.max_encoded_bytes // PAGE_BYTES) * PAGE_BYTES
    files = np.sort(
        np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), np.int64)
    )
    room = np.full((count + 1) * capacity + PAGE_BYTES, 0xA5, np.uint8)
    base = -room.ctypes.data % PAGE_BYTES
    slots, scratch = (
        np.full(count, room.ctypes.data + base, np.int64),
        np.zeros(codec.scratch_bytes, np.uint8),
    )
    nbytes, forms, _ = packed = room_for(count)
    encode_chunks(
        source.addresses,
        source.plane,
        source.cut(keep_empty),
        codec.as_array(),
        slots,
        capacity,
        files,
        (contexts.addresses, scratch),
        (CHECK_SAMPLE, pick),
        packed,
    )
    assert [(n, f) for n, f in zip(nbytes.tolist(), forms.tolist(), strict=True)] == [
        (len(encoded), form) for encoded, form in expected
    ]
    places = slots - room.ctypes.data - base
    assert places.tolist() == reference.packed_starts(nbytes.tolist(), files.tolist(), PAGE_BYTES)
    for place, (encoded, _) in zip(places.tolist(), expected, strict=True):
        assert room[base + place : base + place + len(encoded)].tobytes() == encoded
    assert (room[:base] == 0xA5).all()
    assert (room[base + count * capacity :] == 0xA5).all()


EDGES = sorted(
    {BLOSC_BLOCK_BYTES * k + d for k, d in itertools.product((1, 2), (-8, 0, 8, 24, -72, 64))}
    | {8, 56, 64, 72}
)


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("typesize", TYPESIZES)
def test_chunk_sizes_around_a_block(one_piece, encode, decode, codecs_of, typesize, kind):
    """Just below, at and above a block; last blocks whose elements are no multiple of 8. Levels that differ
    only in effort are left out."""
    for count in EDGES:
        data = content(kind, count, typesize)
        source = one_piece(data)
        for name, codec in codecs_of(typesize, count).items():
            if name.split()[-1] == "crc32c" or "9" in name or "lz4hc" in name:
                continue
            ((encoded, _),) = encode(source, codec)
            assert decode(encoded, codec) == data, (name, count)


@pytest.mark.parametrize("typesize", TYPESIZES)
def test_every_codec_and_checksum(one_piece, encode, decode, codecs_of, typesize):
    data = content("noise then zeros", BLOSC_BLOCK_BYTES + 8 * 37, typesize)
    source = one_piece(data)
    for name, codec in codecs_of(typesize, len(data)).items():
        ((encoded, form),) = encode(source, codec)
        assert decode(encoded, codec) == data, name
        assert form in (COMPRESSED, STORED)


@pytest.mark.parametrize("shuffle", ["noshuffle", "shuffle", "bitshuffle"])
@pytest.mark.parametrize("typesize", TYPESIZES)
def test_blosc_framing(one_piece, encode, codecs_of, has_native, typesize, shuffle):
    """The header says what was done, blocks lie one after the other, and a block that did not shrink holds
    the filtered bytes themselves."""
    name = f"blosc lz4 {shuffle} 1"
    data = content("noise then zeros", 2 * BLOSC_BLOCK_BYTES + 8 * 3, typesize)
    codec = codecs_of(typesize, len(data), [name])[name]
    ((encoded, form),) = encode(one_piece(data), codec)
    chunk = reference.parse_blosc(encoded)
    assert (chunk.version, chunk.format_version, chunk.typesize, chunk.nbytes) == (2, 1, typesize, len(data))
    assert (chunk.block_bytes, chunk.encoded_bytes) == (BLOSC_BLOCK_BYTES, len(encoded))
    if not has_native:
        assert (form, chunk.memcpyed) == (STORED, True)
        return
    assert form == COMPRESSED
    filter_flags = {FILTER_NONE: 0, FILTER_SHUFFLE: 0x01, FILTER_BITSHUFFLE: 0x04}[codec.filter]
    split = codec.filter == FILTER_SHUFFLE
    assert chunk.flags == filter_flags | (0 if split else 0x10) | 1 << 5  # LZ4's format
    twin = {
        FILTER_NONE: lambda block, _: block,
        FILTER_SHUFFLE: reference.shuffle,
        FILTER_BITSHUFFLE: reference.bitshuffle,
    }[codec.filter]
    assert [len(streams) for streams in chunk.blocks] == ([typesize, typesize, 1] if split else [1, 1, 1])
    assert b"".join(chunk.blocks[0]) == twin(data[:BLOSC_BLOCK_BYTES], typesize)
    assert sum(map(len, chunk.blocks[1])) < BLOSC_BLOCK_BYTES


def noise_in_the_samples(rest: np.ndarray) -> np.ndarray:
    """Pixels of one block whose low bytes are noise at the start and in the middle, ``rest`` elsewhere."""
    low, half = rest.astype(np.uint8), rest.size // 2
    noise = np.random.default_rng(3).integers(0, 256, 2 * 8192, dtype=np.uint8)
    low[:8192], low[half : half + 8192] = noise[:8192], noise[8192:]
    return np.stack([low, np.zeros_like(low)], axis=1)


@pytest.mark.parametrize("rest", ["zero", "ramp"])
def test_planes_that_are_noise_in_the_samples_alone(one_piece, encode, decode, codecs_of, has_native, rest):
    """Their runs are seen all the same. What else LZ4 would find is not: such a plane is stored, and reads
    back the same."""
    name = "blosc lz4 shuffle 1"
    places = np.arange(BLOSC_BLOCK_BYTES // 2)
    pixels = noise_in_the_samples(places % 256 if rest == "ramp" else 0 * places)
    data = pixels.tobytes()
    codec = codecs_of(2, len(data), [name])[name]
    ((encoded, _),) = encode(one_piece(data), codec)
    assert decode(encoded, codec) == data
    if has_native:
        low, high = reference.parse_blosc(encoded).blocks[0]
        assert (low == pixels[:, 0].tobytes()) == (rest == "ramp")
        assert len(low) < 3 * 8192 or rest == "ramp"
        assert len(high) < 1024


CAMERA_BLOCKS = ("noise", "fill", "runs", "flips", "ramp", "saturated")


def camera_block(kind: str, pixels: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "noise":
        return rng.integers(0, 2**16, pixels)
    if kind == "fill":
        return np.full(pixels, seed % 2**16)
    if kind == "runs":
        return np.repeat(rng.integers(0, 2**16, pixels), rng.integers(1, 40, pixels))[:pixels]
    if kind == "flips":  # photons around the step of the high byte
        return rng.poisson(rng.integers(200, 300), pixels)
    if kind == "ramp":
        return np.arange(pixels) % 2**16
    assert kind == "saturated"
    return np.minimum(rng.poisson(4000, pixels), 4095)


@settings(max_examples=40)
@given(
    kinds=st.lists(st.sampled_from(CAMERA_BLOCKS), min_size=1, max_size=20),
    typesize=st.sampled_from([2, 4, 8]),
    last=st.integers(1, 8000),
    level=st.sampled_from([1, 9]),
    seed=st.integers(0, 2**20),
)
def test_blocks_that_differ_from_those_that_were_sampled(
    one_piece, encode, decode, codecs_of, kinds, typesize, last, level, seed
):
    """A plane's plan is made in one block, and followed in others of another content, and a shorter last
    one."""
    name = f"blosc lz4 shuffle {level}"
    elements = BLOSC_BLOCK_BYTES // typesize
    sizes = [elements] * (len(kinds) - 1) + [min(8 * last, elements)]
    blocks = [camera_block(k, n, seed + i) for i, (k, n) in enumerate(zip(kinds, sizes, strict=True))]
    data = np.concatenate(blocks).astype(f"<u{typesize}").tobytes()
    codec = codecs_of(typesize, len(data), [name])[name]
    ((encoded, _),) = encode(one_piece(data), codec)
    assert decode(encoded, codec) == data
    ours = decode_chunk(encoded, ChunkCodecs("blosc", checksum=False), len(data))
    assert ours.tobytes() == data


def stored_by_twin(data: bytes, codec) -> bytes:
    return {
        KIND_NONE: lambda: reference.store_plain(data),
        KIND_BLOSC: lambda: reference.store_blosc(data, codec.typesize, codec.format, codec.block_bytes),
        KIND_ZSTD: lambda: reference.store_zstd(data),
        KIND_GZIP: lambda: reference.store_gzip(data),
    }[codec.kind]()


@pytest.mark.parametrize("count", [8, 65528, 65536, 131072, 2 * 131072 + 64])
def test_incompressible_chunks_take_the_stored_form(one_piece, encode, decode, codecs_of, count):
    """And fill exactly ``max_encoded_bytes``, the size that slots are made for; guard bytes behind it
    stay."""
    data = content("noise", count, 2)
    source = one_piece(data)
    for name, codec in codecs_of(2, count).items():
        ((encoded, form),) = encode(source, codec)
        body = encoded[:-4] if codec.checksum else encoded
        if form == STORED:
            assert body == stored_by_twin(data, codec), name
            assert len(encoded) == codec.max_encoded_bytes, name
        else:
            # zlib and zstd may frame noise in fewer bytes than our stored form; Blosc counts that as "did not
            # shrink".
            assert codec.kind in (KIND_ZSTD, KIND_GZIP), name
        assert decode(encoded, codec) == data, name


def test_without_the_library_everything_is_stored(one_piece, encode, decode, codecs_of, has_native):
    """With it, this content shrinks under every compressor; without it, nothing is lost but compression."""
    data = content("ramp", 4096, 4)
    for name, codec in codecs_of(4, len(data)).items():
        ((encoded, form),) = encode(one_piece(data), codec)
        shrinks = (
            has_native
            and codec.kind != KIND_NONE
            and not name.startswith(
                ("blosc lz4 noshuffle 0", "blosc lz4 shuffle 0", "blosc lz4 bitshuffle 0", "gzip 0")
            )
        )
        assert (form == COMPRESSED and len(encoded) < len(data)) == shrinks, name
        assert decode(encoded, codec) == data, name
