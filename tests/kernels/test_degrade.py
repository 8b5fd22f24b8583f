"""Every level of every codec: opened by decoders that know nothing of us, within the bound that slots are
made for, and each faster than the last."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels import reference

from shardwright.codecs.degrade import DegradeLevel, degrade_ladder
from shardwright.codecs.parameters import (
    BLOSC_LZ4,
    FILTER_SHUFFLE,
    KIND_BLOSC,
    KIND_GZIP,
    KIND_NONE,
    KIND_ZSTD,
    LEVEL_STORED,
)
from shardwright.kernels.encode import COMPRESSED, STORED

SIZES = [8, 4096, 131072 - 8, 2 * 131072 + 8 * 37]


def contents(count: int, typesize: int) -> dict[str, bytes]:
    rng = np.random.default_rng(count)
    return {
        "noise": rng.bytes(count),
        "photons": rng.poisson(40, -(-count // 2)).astype("<u2").tobytes()[:count],
        "fill": bytes(count),
    }


def twin(data: bytes, codec) -> bytes:
    return {
        KIND_NONE: lambda: reference.store_plain(data),
        KIND_BLOSC: lambda: reference.store_blosc(data, codec.typesize, codec.format, codec.block_bytes),
        KIND_ZSTD: lambda: reference.store_zstd(data),
        KIND_GZIP: lambda: reference.store_gzip(data),
    }[codec.kind]()


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("typesize", [1, 2, 4, 8])
def test_every_level_of_every_codec(one_piece, encode, decode, codecs_of, typesize, count):
    """``encode`` holds each to its slot and scratch of the configured codec's size. The uncompressed level is
    the twin's, byte for byte."""
    for kind, data in contents(count, typesize).items():
        source = one_piece(data)
        for name, codec in codecs_of(typesize, count).items():
            if "9" in name or "lz4hc" in name:  # slow, and their ladders are those of the others
                continue
            for level, degraded in degrade_ladder(codec).items():
                assert (degraded.max_encoded_bytes, degraded.scratch_bytes) == (
                    codec.max_encoded_bytes,
                    codec.scratch_bytes,
                ), name
                ((encoded, form),) = encode(source, degraded)
                assert decode(encoded, codec) == data, (name, kind, level)
                if level is DegradeLevel.UNCOMPRESSED:
                    assert form == STORED, (name, kind)
                    assert encoded[: len(encoded) - 4 * codec.checksum] == twin(data, codec), (name, kind)


def test_ladders(codecs_of):
    """What the levels are: their order, their framing, and where there is nothing to make faster."""
    for name, codec in codecs_of(2, 4096).items():
        ladder = degrade_ladder(codec)
        assert list(ladder) == sorted(ladder), name
        assert ladder[DegradeLevel.CONFIGURED] == codec, name
        framing = {(each.kind, each.checksum, each.chunk_bytes, each.typesize) for each in ladder.values()}
        assert len(framing) == 1, name
        if codec.kind == KIND_NONE or codec.level == LEVEL_STORED:
            assert len(ladder) == 1, name
        else:
            assert ladder[DegradeLevel.UNCOMPRESSED].level == LEVEL_STORED, name
        faster = ladder.get(DegradeLevel.FASTER)
        if faster is not None and codec.kind == KIND_BLOSC:
            assert (faster.compressor, faster.format, faster.filter) == (BLOSC_LZ4, 1, FILTER_SHUFFLE), name
        elif faster is not None:
            assert faster.level < codec.level, name
    fastest = ("blosc lz4 shuffle 1", "gzip 1", "zstd -7")
    assert all(DegradeLevel.FASTER not in degrade_ladder(codecs_of(2, 4096)[name]) for name in fastest)
    slower = (
        "blosc lz4 noshuffle 1",
        "blosc zstd shuffle 1",
        "blosc zlib shuffle 1",
        "gzip 6",
        "zstd 1",
        "zstd 6",
    )
    assert all(DegradeLevel.FASTER in degrade_ladder(codecs_of(2, 4096)[name]) for name in slower)
    assert degrade_ladder(codecs_of(2, 4096)["zstd 6"])[DegradeLevel.FASTER].level == 1
    assert degrade_ladder(codecs_of(2, 4096)["zstd 1"])[DegradeLevel.FASTER].level < 0


def test_faster_still_compresses(one_piece, encode, codecs_of, has_native):
    if not has_native:
        pytest.skip("nothing compresses without the library")
    data = contents(65536, 2)["photons"]
    for name in ("blosc zstd shuffle 5", "blosc zlib noshuffle 1", "zstd 6", "gzip 6"):
        ladder = degrade_ladder(codecs_of(2, len(data), [name])[name])
        ((encoded, form),) = encode(one_piece(data), ladder[DegradeLevel.FASTER])
        assert (form, len(encoded) < 0.95 * len(data)) == (COMPRESSED, True), name
