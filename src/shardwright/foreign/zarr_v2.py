"""Zarr v2, and the arrays of the first sharding prototype, which are Zarr v2 with two more fields.

    ARRAY/.zarray    shape, chunks, dtype, compressor, filters, order, fill_value, dimension_separator;
                     prototype: shards (chunks of a shard along each axis), shard_format
    ARRAY/.zattrs    attributes
    ARRAY/1.0        a chunk, or a shard
    GROUP/.zgroup    a group; GROUP/.zattrs

A shard of the prototype is what ZEP 2 calls one, with the index at its end and without a checksum.
"""

from __future__ import annotations

from typing import Any

from shardwright.array.fields import sizes

from .numcodecs_chain import numcodecs_chain
from .numpy_types import fill_value, numpy_type
from .older_array import OlderArray, check_fields, not_supported

ZARR_V2, PROTOTYPE = "Zarr v2", "the first sharding prototype"
_FIELDS = {"zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters"}
_MORE_FIELDS = {"dimension_separator", "shards", "shard_format"}
_DIMENSIONS = "_ARRAY_DIMENSIONS"  # xarray's attribute


def v2_array(document: Any, attributes: dict[str, Any]) -> OlderArray:
    """Returns the array of a .zarray and its .zattrs. Raises ``ShardFormatError`` naming the field."""
    check_fields("", document, _FIELDS, _MORE_FIELDS)
    if document["zarr_format"] != 2:
        raise not_supported("zarr_format", "2", document["zarr_format"])
    shape = sizes("shape", document["shape"], least=0)
    rank = len(shape)
    dtype = numpy_type("dtype", document["dtype"])
    separator = document.get("dimension_separator", ".")
    if separator not in (".", "/"):
        raise not_supported("dimension_separator", "'.' or '/'", separator)
    shards, shard_format = document.get("shards"), document.get("shard_format")
    if shards is not None:
        known: tuple[str | None, ...] = ("indexed",)
    else:  # the prototype may name its format beside "shards": null too
        known = (None, "indexed") if "shards" in document else (None,)
    if shard_format not in known:
        raise not_supported("shard_format", "'indexed', beside shards", shard_format)
    return OlderArray(
        spelling=ZARR_V2 if shards is None else PROTOTYPE,
        shape=shape,
        chunk_shape=sizes("chunks", document["chunks"], rank=rank),
        shard_chunks=None if shards is None else sizes("shards", shards, rank=rank),
        data_type=dtype.data_type,
        fill_value=fill_value("fill_value", document["fill_value"], dtype),
        codecs=numcodecs_chain(
            dtype,
            order=document["order"],
            rank=rank,
            filters=document["filters"],
            compressor=document["compressor"],
        ),
        attributes=attributes,
        dimension_names=_dimension_names(attributes, rank),
        key_head="",
        key_separator=separator,
        key_alone="0",
    )


def _dimension_names(attributes: dict[str, Any], rank: int) -> list[str] | None:
    names = attributes.get(_DIMENSIONS)
    if isinstance(names, list) and len(names) == rank and all(isinstance(name, str) for name in names):
        return names
    return None


def check_v2_group(document: Any) -> None:
    """Raises ``ShardFormatError`` for what is no .zgroup."""
    check_fields("", document, {"zarr_format"}, set())
    if document["zarr_format"] != 2:
        raise not_supported("zarr_format", "2", document["zarr_format"])
