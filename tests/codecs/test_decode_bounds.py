"""Chunks that ask for far more memory than their array has are refused before zarr-python decodes them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from typing import TYPE_CHECKING, Any

import blosc2
import numcodecs
import numpy as np
import pytest

from shardwright.array.codec_chain import parse_chain
from shardwright.codecs.zarr_chunks import ZarrChunks
from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

BIG: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "big"}}
BOMB = bytes(64 << 20)
LZ4 = numcodecs.LZ4()

COMPRESSORS: dict[str, tuple[dict[str, Any], Callable[[bytes], bytes]]] = {
    "gzip": ({"name": "gzip", "configuration": {"level": 9}}, gzip.compress),
    "zstd": (
        {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
        numcodecs.Zstd(level=1).encode,
    ),
    "blosc": (
        {
            "name": "blosc",
            "configuration": {
                "cname": "zstd",
                "clevel": 1,
                "shuffle": "noshuffle",
                "blocksize": 0,
            },
        },
        numcodecs.Blosc("zstd", 1, 0).encode,
    ),
    "zlib": ({"name": "numcodecs.zlib", "configuration": {"level": 9}}, zlib.compress),
    "bz2": ({"name": "numcodecs.bz2", "configuration": {"level": 9}}, bz2.compress),
    "lzma": ({"name": "numcodecs.lzma", "configuration": {}}, lzma.compress),
    "lz4": ({"name": "numcodecs.lz4", "configuration": {"acceleration": 1}}, LZ4.encode),
}


def chunks(*codecs: dict[str, Any]) -> ZarrChunks:
    return ZarrChunks(parse_chain("codecs", [BIG, *codecs], (8, 8), 2), (8, 8), "uint16", 0)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_bomb_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec, compress = COMPRESSORS[name]
    made = chunks(codec)
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    assert (made.decode(compress(values.astype(">u2").tobytes())) == values).all()
    # it does not reach zarr-python
    monkeypatch.setattr(ZarrChunks, "_array", lambda self: pytest.fail("decoded"))
    with pytest.raises(ShardFormatError, match="decode"):
        made.decode(bytes(compress(BOMB)))


@pytest.mark.parametrize("outer", ["gzip", "zstd", "bz2"])
@pytest.mark.parametrize("inner", COMPRESSORS)
def test_one_within_another_is_refused_and_so_is_one_before_a_checksum(
    outer: str, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codecs = [COMPRESSORS[inner][0], COMPRESSORS[outer][0], {"name": "numcodecs.crc32", "configuration": {}}]
    made = chunks(*codecs)
    monkeypatch.setattr(ZarrChunks, "_array", lambda self: pytest.fail("decoded"))
    data = COMPRESSORS[outer][1](bytes(COMPRESSORS[inner][1](BOMB)))
    with pytest.raises(ShardFormatError, match="decode"):
        made.decode(bytes(4) + bytes(data))


def nested(codecs: list[dict[str, Any]], index: list[dict[str, Any]], place: str) -> dict[str, Any]:
    facts = {"chunk_shape": [4, 4], "codecs": codecs, "index_codecs": index, "index_location": place}
    return {"name": "sharding_indexed", "configuration": facts}


def shard(chunk: bytes, place: str, order: str) -> bytes:
    """A shard of four chunks, of which the last one is there."""
    start = 64 if place == "start" else 0
    index = np.array([(2**64 - 1, 2**64 - 1)] * 3 + [(start, len(chunk))], f"{order}u8").tobytes()
    return index + chunk if place == "start" else chunk + index


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize(("place", "order"), [("start", "<"), ("end", ">")])
def test_a_bomb_in_a_shard_within_a_chunk_is_refused(
    name: str, place: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, compress = COMPRESSORS[name]
    index = [{"name": "bytes", "configuration": {"endian": "little" if order == "<" else "big"}}]
    made = ZarrChunks(
        parse_chain("codecs", [nested([BIG, codec], index, place)], (8, 8), 2), (8, 8), "uint16", 0
    )
    values = np.arange(16, dtype=np.uint16).reshape(4, 4)
    sound = shard(bytes(compress(values.astype(">u2").tobytes())), place, order)
    assert (made.decode(sound)[4:, 4:] == values).all()
    decoded = ZarrChunks._array
    monkeypatch.setattr(  # of the index alone
        ZarrChunks,
        "_array",
        lambda self: pytest.fail("decoded") if self is made else decoded(self),
    )
    with pytest.raises(ShardFormatError, match="decode"):
        made.decode(shard(bytes(compress(BOMB)), place, order))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_does_not_decode_is_refused(name: str) -> None:
    for data in (b"", b"\x01", bytes(64), b"\xff" * 64):
        with pytest.raises(ShardFormatError):
            chunks(COMPRESSORS[name][0]).decode(data)


def test_blosc_of_our_own_library_is_bounded_too() -> None:
    blosc2.set_nthreads(1)
    with pytest.raises(ShardFormatError, match="blosc"):
        chunks(COMPRESSORS["blosc"][0]).decode(numcodecs.Blosc("lz4", 5, 1).encode(BOMB))
