"""Small arrays made by independent writers, with shards and without, and the tools to damage them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import tensorstore
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EMPTY = 2**64 - 1
INDEX_ENTRY = np.dtype([("offset", "<u8"), ("nbytes", "<u8")])
COMPRESSORS = ("blosc", "zstd", "gzip", None)


@dataclass(frozen=True)
class Layout:
    """``index_location``: "none" makes an array without shards, of the same chunks."""

    compressor: str | None = "blosc"
    checksum: bool = False
    index_location: str = "end"
    shape: tuple[int, ...] = (5, 7, 6)
    shards: tuple[int, ...] = (4, 4, 8)
    chunks: tuple[int, ...] = (2, 4, 4)
    dtype: str = "uint16"


def pixels(layout: Layout) -> np.ndarray:
    return np.random.default_rng(4).poisson(30, layout.shape).astype(layout.dtype)


def write_with_zarr_python(path: Path, layout: Layout) -> None:
    serializer: Any = BytesCodec()
    compressors: Any = {
        "blosc": [BloscCodec(cname="zstd")],
        "zstd": [ZstdCodec(level=1)],
        "gzip": [GzipCodec(level=1)],
        None: [],
    }[layout.compressor]
    compressors += [Crc32cCodec()] if layout.checksum else []
    chunks = layout.chunks
    if layout.index_location != "none":
        codecs = [serializer, *compressors]
        serializer = ShardingCodec(
            chunk_shape=layout.chunks, codecs=codecs, index_location=layout.index_location
        )
        chunks, compressors = layout.shards, None
    names = ["t", "c", "y", "x"] if len(layout.shape) == 4 else ["t", "y", "x"][-len(layout.shape) :]
    array = zarr.create_array(
        path,
        shape=layout.shape,
        chunks=chunks,
        dtype=layout.dtype,
        serializer=serializer,
        filters=None,
        compressors=compressors or None,
        dimension_names=names,
    )
    array[...] = pixels(layout)


def write_with_tensorstore(path: Path, layout: Layout) -> None:
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs += {
        "blosc": [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}}],
        "zstd": [{"name": "zstd", "configuration": {"level": 1}}],
        "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
        None: [],
    }[layout.compressor]
    codecs += [{"name": "crc32c"}] if layout.checksum else []
    chunks = layout.chunks
    if layout.index_location != "none":
        sharding = {
            "chunk_shape": layout.chunks,
            "codecs": codecs,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            "index_location": layout.index_location,
        }
        chunks, codecs = layout.shards, [{"name": "sharding_indexed", "configuration": sharding}]
    metadata = {
        "shape": layout.shape,
        "data_type": layout.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "codecs": codecs,
    }
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": metadata,
        "create": True,
    }
    tensorstore.open(spec).result().write(pixels(layout)).result()


WRITERS = {"zarr-python": write_with_zarr_python, "tensorstore": write_with_tensorstore}


def wrap_in_group(root: Path, layout: Layout | None = None, *, datasets: Sequence[str] = ("0",)) -> None:
    """An OME-Zarr group around an array ``0``. ``datasets``: the paths that its metadata names."""
    root.mkdir()
    axes = [{"name": "t", "type": "time"}, {"name": "y", "type": "space"}, {"name": "x", "type": "space"}]
    named = [
        {"path": path, "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 1]}]}
        for path in datasets
    ]
    ome = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": named}]}
    (root / "zarr.json").write_text(
        json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}})
    )
    write_with_zarr_python(root / "0", layout or Layout())


def edit_json(path: Path, change: Any) -> None:
    """Apply ``change`` to a zarr.json in place."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


class ShardBytes:
    """One shard file taken apart by the format's own text, so that entries can be set to anything and the
    index's crc32c made right again."""

    def __init__(self, path: Path, chunks: int, index_location: str = "end") -> None:
        self.path = path
        size = 16 * chunks + 4
        data = bytearray(path.read_bytes())
        self._at_start = index_location == "start"
        index, self.data = (data[:size], data[size:]) if self._at_start else (data[-size:], data[:-size])
        self.entries = np.frombuffer(index[:-4], INDEX_ENTRY).copy()

    def live(self) -> list[int]:
        return np.flatnonzero(self.entries["offset"] != EMPTY).tolist()

    def write(self) -> None:
        index = self.entries.tobytes()
        index += crc32c.crc32c(index).to_bytes(4, "little")
        self.path.write_bytes(index + self.data if self._at_start else bytes(self.data) + index)
