"""Decoding one chunk: right for what independent encoders wrote, and a typed error for anything else."""

from __future__ import annotations

import gzip
import struct

import crc32c
import numcodecs
import numpy as np
import pytest

from shardwright.array.codec_chain import parse_chain
from shardwright.codecs.decode import HEAD_BYTES, ChunkCodecs, decode_chunk, describe_chunk
from shardwright.model.errors import ShardFormatError

CHUNK_BYTES = 6000
SHUFFLES = {
    "noshuffle": numcodecs.Blosc.NOSHUFFLE,
    "shuffle": numcodecs.Blosc.SHUFFLE,
    "bitshuffle": numcodecs.Blosc.BITSHUFFLE,
}


def values(nbytes: int = CHUNK_BYTES) -> bytes:
    return np.random.default_rng(1).poisson(20, nbytes // 2).astype("<u2").tobytes()


def noise(nbytes: int = CHUNK_BYTES) -> bytes:
    return np.random.default_rng(2).bytes(nbytes)


def blosc(data: bytes, cname: str = "lz4", shuffle: str = "shuffle", clevel: int = 5) -> bytes:
    return bytes(numcodecs.Blosc(cname, clevel, SHUFFLES[shuffle]).encode(np.frombuffer(data, "<u2")))


def zstd(data: bytes) -> bytes:
    return bytes(numcodecs.Zstd(level=1, checksum=True).encode(data))


def with_checksum(data: bytes) -> bytes:
    return data + crc32c.crc32c(data).to_bytes(4, "little")


ENCODERS = {None: bytes, "blosc": blosc, "zstd": zstd, "gzip": gzip.compress}


@pytest.mark.parametrize("cname", ["lz4", "lz4hc", "zstd", "zlib", "blosclz"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("nbytes", [2, 62, CHUNK_BYTES, 1_000_002])
def test_blosc_of_numcodecs(cname: str, shuffle: str, nbytes: int) -> None:
    data = values(nbytes)
    assert (
        decode_chunk(blosc(data, cname, shuffle), ChunkCodecs("blosc", checksum=False), nbytes).tobytes()
        == data
    )


@pytest.mark.parametrize("compressor", ENCODERS)
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize(
    "data",
    [values(), noise(), bytes(CHUNK_BYTES), noise(300_000), bytes(300_000)],
    ids=["values", "noise", "zeros", "long", "long zeros"],
)
def test_every_codec(compressor: str | None, checksum: bool, data: bytes) -> None:
    encoded = ENCODERS[compressor](data)
    encoded = with_checksum(encoded) if checksum else encoded
    assert decode_chunk(memoryview(encoded), ChunkCodecs(compressor, checksum), len(data)).tobytes() == data


@pytest.mark.parametrize("compressor", ENCODERS)
@pytest.mark.parametrize("wrong_by", [-2, -1, 1, 2, 5000])
def test_another_size_is_refused(compressor: str | None, wrong_by: int) -> None:
    encoded = ENCODERS[compressor](values())
    with pytest.raises(ShardFormatError, match=r"size|length|into"):
        decode_chunk(encoded, ChunkCodecs(compressor, checksum=False), CHUNK_BYTES + wrong_by)


@pytest.mark.parametrize("compressor", ENCODERS)
def test_every_truncation_and_any_tail_is_refused(compressor: str | None) -> None:
    encoded = ENCODERS[compressor](values(200))
    codecs = ChunkCodecs(compressor, checksum=False)
    for length in range(len(encoded)):
        with pytest.raises(ShardFormatError):
            decode_chunk(encoded[:length], codecs, 200)
    for tail in (b"\0", b"tail", encoded):
        with pytest.raises(ShardFormatError):
            decode_chunk(encoded + tail, codecs, 200)


@pytest.mark.parametrize("compressor", ENCODERS)
def test_every_flipped_bit_under_a_checksum_is_found(compressor: str | None) -> None:
    encoded = with_checksum(ENCODERS[compressor](values(200)))
    codecs = ChunkCodecs(compressor, checksum=True)
    for bit in range(8 * len(encoded)):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ShardFormatError, match="crc32c"):
            decode_chunk(damaged, codecs, 200)


@pytest.mark.parametrize("cname", ["lz4", "zstd", "zlib"])
@pytest.mark.parametrize("shuffle", ["shuffle", "bitshuffle"])
def test_damage_without_a_checksum_never_escapes_as_another_error(cname: str, shuffle: str) -> None:
    """Random bytes anywhere in a chunk: other pixels of the right size, or a typed error; no crash, nothing
    else."""
    encoded = blosc(values(), cname, shuffle)
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(2000):
        damaged = bytearray(encoded)
        for place in rng.integers(0, len(encoded), rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        try:
            assert (
                decode_chunk(damaged, ChunkCodecs("blosc", checksum=False), CHUNK_BYTES).nbytes == CHUNK_BYTES
            )
        except ShardFormatError:
            found += 1
    assert found > 0


@pytest.mark.parametrize("compressor", ["zstd", "gzip"])
def test_frames_with_their_own_checksum_show_every_flipped_content_bit(compressor: str) -> None:
    """zstd (with its checksum on) and gzip protect the content themselves: a flipped bit either is refused or
    changes no pixel."""
    data = values(200)
    encoded = ENCODERS[compressor](data)
    for bit in range(8 * len(encoded)):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert decode_chunk(damaged, ChunkCodecs(compressor, checksum=False), 200).tobytes() == data
        except ShardFormatError:
            continue


def test_a_bomb_does_not_unfold() -> None:
    """256 MiB of zeros in a gzip member of 256 KiB: refused after at most one byte more than the chunk's
    size."""
    import tracemalloc
    import zlib

    stream = zlib.compressobj(9, wbits=31)
    bomb = b"".join([*(stream.compress(bytes(1 << 20)) for _ in range(256)), stream.flush()])
    tracemalloc.start()
    with pytest.raises(ShardFormatError, match="more than 4096"):
        decode_chunk(bomb, ChunkCodecs("gzip", checksum=False), 4096)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_sizes_in_a_blosc_header_are_not_believed() -> None:
    encoded = blosc(values())
    for field, what in ((4, "another size"), (8, "block size"), (12, "encoded size")):
        damaged = bytearray(encoded)
        struct.pack_into("<I", damaged, field, 0x7FFFFFFF)
        with pytest.raises(ShardFormatError, match=what):
            decode_chunk(damaged, ChunkCodecs("blosc", checksum=False), CHUNK_BYTES)


def test_blosc_2_is_not_blosc() -> None:
    import blosc2

    encoded = blosc2.compress2(values(), typesize=2)
    with pytest.raises(ShardFormatError, match="Blosc 1"):
        decode_chunk(encoded, ChunkCodecs("blosc", checksum=False), CHUNK_BYTES)


@pytest.mark.parametrize(
    ("encoded", "compressor", "form"),
    [
        (blosc(values()), "blosc", "blosc lz4 shuffle"),
        (blosc(values(), "zstd", "bitshuffle"), "blosc", "blosc zstd bitshuffle"),
        (blosc(values(), "zlib", "noshuffle"), "blosc", "blosc zlib noshuffle"),
        (blosc(noise()), "blosc", "blosc lz4 stored"),
        (zstd(values()), "zstd", "zstd"),
        (zstd(noise()), "zstd", "zstd stored"),
        (gzip.compress(values()), "gzip", "gzip"),
        (gzip.compress(noise(), 0), "gzip", "gzip stored"),
        (noise(), None, "none stored"),
    ],
)
@pytest.mark.parametrize("checksum", [False, True])
def test_describe_chunk(encoded: bytes, compressor: str | None, form: str, checksum: bool) -> None:
    encoded = with_checksum(encoded) if checksum else encoded
    assert (
        str(
            describe_chunk(encoded[:HEAD_BYTES], len(encoded), ChunkCodecs(compressor, checksum), CHUNK_BYTES)
        )
        == form
    )


@pytest.mark.parametrize("compressor", ["blosc", "zstd", "gzip"])
@pytest.mark.parametrize("head", [b"", b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08", bytes(64), b"\xff" * 64])
def test_describe_nonsense(compressor: str, head: bytes) -> None:
    with pytest.raises(ShardFormatError):
        describe_chunk(head, 100, ChunkCodecs(compressor, checksum=False), CHUNK_BYTES)


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


@pytest.mark.parametrize(
    ("codecs", "itemsize", "result"),
    [
        ([LITTLE], 2, ChunkCodecs(None, checksum=False)),
        ([{"name": "bytes"}, {"name": "crc32c"}], 1, ChunkCodecs(None, checksum=True)),
        (["bytes", "crc32c"], 1, ChunkCodecs(None, checksum=True)),
        ([LITTLE, {"name": "zstd", "configuration": {"level": 1}}], 2, ChunkCodecs("zstd", checksum=False)),
        (
            [LITTLE, {"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}],
            2,
            ChunkCodecs("gzip", checksum=True),
        ),
        (
            [{"name": "transpose", "configuration": {"order": [1, 0]}}, {**LITTLE, "name": "endian"}],
            2,
            ChunkCodecs(None, checksum=False, order=(1, 0)),
        ),
    ],
)
def test_codec_lists(codecs: list, itemsize: int, result: ChunkCodecs) -> None:
    assert ChunkCodecs.of(parse_chain("codecs", codecs, (4, 4), itemsize)) == result


@pytest.mark.parametrize(
    ("codecs", "names"),
    [
        ([], "list of codecs"),
        ([{"name": "zstd"}], "zstd"),
        ([{"name": "bytes"}], "endian"),
        ([{"name": "bytes", "configuration": {"endian": "middle"}}], "middle"),
        ([LITTLE, {"name": "gzip", "configuration": {"level": 10}}], "level"),
        ([LITTLE, LITTLE], "exactly one"),
        ([{"name": "zstd"}, LITTLE], "wrong order"),
        ([LITTLE, {"name": "transpose", "configuration": {"order": [1, 0]}}], "wrong order"),
        ([{"name": "transpose", "configuration": {"order": [1, 1]}}, LITTLE], "order of the axes"),
        ([5], "codecs.0."),
        ([{"name": "bytes", "configuration": 3}], "codecs.0."),
    ],
)
def test_illegal_codec_lists_are_named_and_refused(codecs: list, names: str) -> None:
    with pytest.raises(ShardFormatError, match=names):
        parse_chain("codecs", codecs, (4, 4), 2)


@pytest.mark.parametrize(
    "codecs",
    [
        [{"name": "bytes", "configuration": {"endian": "big"}}],
        [LITTLE, {"name": "lzma"}],
        [LITTLE, {"name": "crc32c"}, {"name": "zstd"}],
        [LITTLE, {"name": "zstd"}, {"name": "gzip", "configuration": {"level": 1}}],
    ],
)
def test_other_legal_codec_lists_are_not_ours(codecs: list) -> None:
    assert ChunkCodecs.of(parse_chain("codecs", codecs, (4, 4), 2)) is None
