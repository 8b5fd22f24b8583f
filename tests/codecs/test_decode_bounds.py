"""Chunks that ask for far more memory than their array has are refused before zarr-python decodes them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import blosc2
import numcodecs
import numpy as np
import pytest
import zarr.codecs
from zarr.abc.codec import BytesBytesCodec

from shardwright.array.codec_chain import parse_chain
from shardwright.codecs import decode_bounds
from shardwright.codecs.zarr_chunks import ZarrChunks
from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

BIG: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "big"}}
BOMB = bytes(64 << 20)
SMALL_BOMB = bytes(1 << 20)  # compressed it is no longer than a chunk may be
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


def of_numcodecs(name: str, **settings: Any) -> tuple[dict[str, Any], Callable[[bytes], bytes]]:
    codec = numcodecs.get_codec({"id": name, **settings})
    return {"name": f"numcodecs.{name}", "configuration": settings}, codec.encode


RAW = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 1}]}
# codecs that a bomb is looked for behind
BEHIND = {
    "blosc": COMPRESSORS["blosc"],
    "lz4": COMPRESSORS["lz4"],
    "crc32 at the end": of_numcodecs("crc32", location="end"),
    "adler32 at the start": of_numcodecs("adler32", location="start"),
    "crc32c at the start": of_numcodecs("crc32c", location="start"),
    "crc32c": of_numcodecs("crc32c"),
    "fletcher32": of_numcodecs("fletcher32"),
    "jenkins_lookup3": of_numcodecs("jenkins_lookup3"),
    "shuffle": of_numcodecs("shuffle", elementsize=1),
    "raw lzma": of_numcodecs("lzma", **RAW),
}


@pytest.mark.parametrize("outer", BEHIND)
def test_no_codec_hides_one_that_lies_behind_it(outer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec, encode = BEHIND[outer]
    made = chunks(COMPRESSORS["gzip"][0], codec)
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    sound = made.encode(values, lossy=False)
    assert sound is not None
    assert (made.decode(sound) == values).all()
    monkeypatch.setattr(ZarrChunks, "_array", lambda self: pytest.fail("decoded"))
    with pytest.raises(ShardFormatError, match="gzip decodes to another size"):
        made.decode(bytes(encode(gzip.compress(SMALL_BOMB))))


@pytest.mark.parametrize("settings", [{}, {"elementsize": 4}])
def test_what_is_shuffled_is_looked_at_in_its_order(
    settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """zarr-python gives the codec the size of an element of the array, if its settings do not."""
    made = chunks(COMPRESSORS["lz4"][0], {"name": "numcodecs.shuffle", "configuration": settings})
    monkeypatch.setattr(ZarrChunks, "_array", lambda self: pytest.fail("decoded"))
    data = bytes(LZ4.encode(SMALL_BOMB))
    shuffle = numcodecs.Shuffle(**({"elementsize": 2} | settings))
    with pytest.raises(ShardFormatError, match="lz4 decodes to another size"):
        made.decode(bytes(shuffle.encode(data + bytes(-len(data) % 4))))


@pytest.mark.parametrize("name", ["gzip", "bz2", "lzma"])
def test_all_members_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec, compress = COMPRESSORS[name]
    made = chunks(codec)
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    data = values.astype(">u2").tobytes()
    assert (made.decode(compress(data[:50]) + compress(data[50:])) == values).all()
    monkeypatch.setattr(ZarrChunks, "_array", lambda self: pytest.fail("decoded"))
    half = bytes(made.most_bytes((8, 8)) // 2 + 1)
    for members in ((b"", SMALL_BOMB), (half, half)):
        with pytest.raises(ShardFormatError, match=f"{name} decodes to another size"):
            made.decode(b"".join(map(compress, members)))


def test_every_bytes_codec_that_zarr_python_has_is_known() -> None:
    """Behind one that is not, nothing is looked at."""
    kinds = [kind for kind in vars(zarr.codecs).values() if isinstance(kind, type)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of numcodecs are in no specification
        names = {kind().to_dict()["name"] for kind in kinds if issubclass(kind, BytesBytesCodec)}
    assert {"gzip", "numcodecs.bz2"} < names <= set(decode_bounds._DECODERS)


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
