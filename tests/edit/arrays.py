"""Small arrays of gzip chunks, whose lengths vary with what they hold; a reader of shards that knows nothing
of ours."""

from __future__ import annotations

import gzip
import json
import struct
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.read.store import parse_array
from shardwright.shard.index import empty_index
from shardwright.shard.shard_sums import SUMS_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.read.store import StoredArray

NOTHING = (1 << 64) - 1


def make_array(
    folder: Path,
    *,
    chunks: tuple[int, int] = (2, 3),
    shards: int = 2,
    index: str = "end",
    index_checksum: bool = True,
    index_endian: str = "little",
    chunk_checksum: bool = False,
    recorded: bool = False,
    sharded: bool = True,
    side: int = 16,
) -> StoredArray:
    """An array without a shard, of uint8; ``chunks``: of a shard along each axis; ``side``:
    elements of a chunk along each."""
    pairs = {"name": "bytes", "configuration": {"endian": index_endian}}
    check = {"name": "crc32c"}
    inner = [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 6}}, *[check] * chunk_checksum]
    shape = [side * chunks[0] * shards, side * chunks[1]]
    shard_shape = [side * chunks[0], side * chunks[1]]
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [side, side],
            "codecs": inner,
            "index_codecs": [pairs, *[check] * index_checksum],
            "index_location": index,
        },
    }
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": shard_shape if sharded else [side, side]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [sharding] if sharded else inner,
        "attributes": {},
    }
    folder.mkdir(parents=True)
    (folder / "zarr.json").write_text(json.dumps(document))
    if recorded:
        (folder / SUMS_NAME).write_bytes(b"")
    return parse_array(folder)


def encoded(array: StoredArray, value: int, noise: int = 0) -> bytes:
    """An encoded chunk of ``value``, longer with more ``noise``: the number of its random elements."""
    pixels = np.full(array.chunk_bytes, value, np.uint8)
    pixels[:noise] = np.random.default_rng(value * 1000 + noise).integers(0, 256, noise)
    data = gzip.compress(pixels.tobytes(), 6, mtime=0)
    return data + struct.pack("<I", crc32c.crc32c(data)) * array.codecs.checksum


def contents(array: StoredArray, *shard: int) -> dict[int, bytes]:
    """The encoded chunks of a shard by number; {} without a file. Raises ``ValueError`` for an index that
    fails its checksum."""
    path = array.path / array.shard_key(shard)
    if not path.exists():
        return {}
    return chunks_in(path.read_bytes(), array)


def chunks_in(data: bytes, array: StoredArray) -> dict[int, bytes]:
    count, checked = array.chunks_per_shard, array.index.codec.has_checksum
    size = 16 * count + 4 * checked
    index = data[:size] if array.index_location == "start" else data[-size:]
    if checked and crc32c.crc32c(index[:-4]) != struct.unpack("<I", index[-4:])[0]:
        raise ValueError("the index fails its checksum")
    document = json.loads((array.path / "zarr.json").read_text())
    [pair, *_] = document["codecs"][0]["configuration"]["index_codecs"]
    order = "<" if pair["configuration"]["endian"] == "little" else ">"
    pairs = struct.iter_unpack(f"{order}QQ", index[: 16 * count])
    return {
        number: data[offset : offset + nbytes]
        for number, (offset, nbytes) in enumerate(pairs)
        if (offset, nbytes) != (NOTHING, NOTHING)
    }


def put_slots(array: StoredArray, chunks: dict[int, bytes], *shard: int) -> None:
    """The shard as our writers seal it from mapped memory: each chunk at the start of its slot of a page, an
    encoder's remains behind it, the end cut off."""
    at_start = array.index_location == "start"
    start = -(-array.index_bytes // 4096) * 4096 if at_start else 0
    data = bytearray(start)
    entries = empty_index(array.chunks_per_shard)
    for number, chunk in sorted(chunks.items()):
        slot = start + number * 4096
        data += bytes(slot - len(data))
        entries[number] = (slot, len(chunk))
        data += chunk + b"remains" * (number < max(chunks))
    index = array.index.encode(entries)
    if at_start:
        data[: len(index)] = index
    else:
        data += index
    path = array.path / array.shard_key(shard)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
