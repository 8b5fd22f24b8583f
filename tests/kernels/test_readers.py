"""Chunks whose planes are written as runs, searched and stored, as three readers see them: each chunk is a
file of a Zarr array without shards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tensorstore
import zarr

from shardwright.array.metadata import inner_codecs
from shardwright.array.spec import Blosc
from shardwright.codecs.decode import ChunkCodecs, decode_chunk
from shardwright.codecs.parameters import CodecParameters

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (3, 200, 256)  # two blocks of 16-bit pixels and a shorter one


def pixels(kind: str, dtype: str) -> np.ndarray:
    rng, count = np.random.default_rng(4), int(np.prod(SHAPE))
    made = {
        "constant": lambda: np.full(count, 300),
        "runs": lambda: np.repeat(rng.integers(0, 2**16, count), rng.integers(1, 40, count))[:count],
        "flips": lambda: rng.poisson(rng.integers(200, 300, count // 256).repeat(256)),
        "a missing frame": lambda: rng.integers(0, 2**16, count) * (np.arange(count) // (count // 3) != 1),
        "alternating": lambda: np.arange(count) // 7 % 2 * 257,
    }[kind]()
    return made.astype(dtype).reshape(SHAPE)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("kind", ["constant", "runs", "flips", "a missing frame", "alternating"])
def test_readers_see_the_pixels(tmp_path: Path, one_piece, encode, kind, dtype):
    data = pixels(kind, dtype)
    blosc, itemsize = Blosc(cname="lz4", clevel=1, shuffle="shuffle"), data.dtype.itemsize
    codec = CodecParameters.of_codec(blosc, itemsize=itemsize, checksum=True, chunk_bytes=data.nbytes)
    ((encoded, _),) = encode(one_piece(data.tobytes()), codec)
    chunk = tmp_path / "c" / "0" / "0" / "0"
    chunk.parent.mkdir(parents=True)
    chunk.write_bytes(encoded)
    (tmp_path / "zarr.json").write_text(
        json.dumps(array_metadata(dtype, inner_codecs(blosc, itemsize, True)))
    )

    assert decode_chunk(encoded, ChunkCodecs("blosc", checksum=True), data.nbytes).tobytes() == data.tobytes()
    assert np.array_equal(zarr.open_array(tmp_path, mode="r")[:], data)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        assert np.array_equal(zarr.open_array(tmp_path, mode="r")[:], data)
    kvstore = {"driver": "file", "path": str(tmp_path)}
    opened = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True).result()
    assert np.array_equal(opened.read().result(), data)


def array_metadata(dtype: str, codecs: list) -> dict:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHAPE}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
    }
