"""The zarr.json of the array and of its group (Zarr v3 core; OME-Zarr 0.5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .document import encode_document
from .ome import ome_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spec import ArraySpec, IndexPlace

CREATOR_ATTRIBUTE = "shardwright"


def fill_value_json(spec: ArraySpec) -> bool | int | float | str:
    """Returns the fill value as Zarr v3 writes it: non-finite floats by name, floats as numbers, bools as
    bools."""
    if spec.dtype == "bool":
        return bool(spec.fill_value)
    if not spec.dtype.startswith("float"):
        return int(spec.fill_value)
    value = float(np.frombuffer(spec.fill_bytes(), np.dtype(spec.dtype).newbyteorder("<"))[0])
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def array_shape(spec: ArraySpec, extents: Sequence[int]) -> list[int]:
    """Returns the shape on disk (storage order) when the ``growing_axes`` have so many elements."""
    grown = {spec.dimensions[axis].name: n for axis, n in zip(spec.growing_axes, extents, strict=False)}
    return [grown.get(d.name, d.count or 0) for d in spec.stored_dimensions]


INDEX_CODECS: list[dict[str, Any]] = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
]


def index_codecs(spec: ArraySpec) -> list[dict[str, Any]]:
    """Returns the codecs of the index of each shard."""
    return INDEX_CODECS if spec.index_checksum else INDEX_CODECS[:1]


def array_codecs(
    index_place: IndexPlace,
    chunk_shape: Sequence[int],
    chunk_codecs: list[Any],
    index_codecs: list[Any] | None = None,
) -> list[dict[str, Any]]:
    """Returns the codecs of an array: those of its chunks, within the one of its shards if it has any.
    ``index_codecs``: None for ours."""
    if index_place == "none":
        return chunk_codecs
    sharding = {
        "chunk_shape": list(chunk_shape),
        "codecs": chunk_codecs,
        "index_codecs": index_codecs or INDEX_CODECS,
        "index_location": index_place,
    }
    return [{"name": "sharding_indexed", "configuration": sharding}]


def array_metadata(spec: ArraySpec, extents: Sequence[int], chunk_codecs: list[dict[str, Any]]) -> bytes:
    """Returns zarr.json of the image array. ``chunk_codecs`` are the codecs of a chunk."""
    stored = spec.stored_dimensions
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array_shape(spec, extents),
        "data_type": spec.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [d.shard_size for d in stored]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value_json(spec),
        "codecs": array_codecs(
            spec.index_place, [d.chunk_size for d in stored], chunk_codecs, index_codecs(spec)
        ),
        "attributes": spec.attributes,
        "dimension_names": [d.name for d in stored],
    }
    return encode_document(document)


def group_document(spec: ArraySpec, name: str, attributes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns zarr.json of the OME-Zarr group that holds the image. ``attributes`` stand beside ours."""
    both = {**(attributes or {}), "ome": ome_attributes(spec, name)}
    return {"zarr_format": 3, "node_type": "group", "attributes": both}
