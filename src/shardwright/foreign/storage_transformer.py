"""The draft of Zarr v3 that the sharding storage transformer 1.0 was made for, with shards or without.

    ROOT/zarr.json                        the entry point: zarr_format is a URI
    ROOT/meta/root/GROUP/NAME.array.json  the metadata of an array; of the root itself: meta/root.array.json
    ROOT/meta/root/GROUP.group.json       of a group, which need not have any
    ROOT/data/root/GROUP/NAME/c1/0        a chunk, or a shard

A shard is what ZEP 2 calls one, with the index at its end and without a checksum.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shardwright.array.fields import sizes
from shardwright.model.errors import ShardFormatError

from .numcodecs_chain import numcodecs_chain
from .numpy_types import fill_value, numpy_type
from .older_array import OlderArray, check_fields, not_supported

if TYPE_CHECKING:
    from .numpy_types import NumpyType

DRAFT, TRANSFORMER = "a draft of Zarr v3", "the sharding storage transformer 1.0"
_PROTOCOL = re.compile(r"https?://purl\.org/zarr/spec/protocol/core/3\.0")
_CODEC = re.compile(r"https?://purl\.org/zarr/spec/codecs?/([a-z0-9_]+)/1\.0")
_SHARDING = re.compile(r"https?://purl\.org/zarr/spec/storage[-_]transformers/sharding/1\.0")
_ENTRY = {"zarr_format", "metadata_encoding", "metadata_key_suffix", "extensions"}
_FIELDS = {"shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value", "attributes"}
_MORE_FIELDS = {"compressor", "extensions", "storage_transformers", "dimension_separator"}
_FILTERS = "filters"  # zarr-python keeps them in the attributes


def metadata_suffix(entry: Any) -> str:
    """Returns the suffix of metadata files, such as ``.json``, of the entry point ROOT/zarr.json. Raises
    ``ShardFormatError``."""
    check_fields("", entry, _ENTRY, set())
    for field in ("zarr_format", "metadata_encoding"):
        if not isinstance(entry[field], str) or not _PROTOCOL.fullmatch(entry[field]):
            raise not_supported(field, "https://purl.org/zarr/spec/protocol/core/3.0", entry[field], 160)
    suffix = entry["metadata_key_suffix"]
    if not isinstance(suffix, str) or not re.fullmatch(r"(\.[A-Za-z0-9]+)*", suffix):
        raise not_supported("metadata_key_suffix", "'.json'", suffix)
    _check_extensions(entry)
    return suffix


def transformer_array(document: Any) -> OlderArray:
    """Returns the array of an .array.json. Raises ``ShardFormatError`` naming the field."""
    check_fields("", document, _FIELDS, _MORE_FIELDS)
    _check_extensions(document)
    shape = sizes("shape", document["shape"], least=0)
    rank = len(shape)
    grid = document["chunk_grid"]
    check_fields("chunk_grid", grid, {"type", "chunk_shape", "separator"}, set())
    if grid["type"] != "regular":
        raise not_supported("chunk_grid.type", "'regular'", grid["type"])
    separator = grid["separator"]
    if separator not in (".", "/") or document.get("dimension_separator", separator) != separator:
        expected = "'/' or '.', the same as dimension_separator"
        raise not_supported("chunk_grid.separator", expected, separator)
    if document["chunk_memory_layout"] not in ("C", "F"):
        raise not_supported("chunk_memory_layout", "'C' or 'F'", document["chunk_memory_layout"])
    attributes = document["attributes"]
    if not isinstance(attributes, dict):
        raise ShardFormatError("attributes is no object", got=repr(attributes)[:80])
    dtype = _data_type(document["data_type"])
    shard_chunks = _shard_chunks(document.get("storage_transformers") or [], rank)
    return OlderArray(
        spelling=DRAFT if shard_chunks is None else TRANSFORMER,
        shape=shape,
        chunk_shape=sizes("chunk_grid.chunk_shape", grid["chunk_shape"], rank=rank),
        shard_chunks=shard_chunks,
        data_type=dtype.data_type,
        fill_value=fill_value("fill_value", document["fill_value"], dtype),
        codecs=numcodecs_chain(
            dtype,
            order=document["chunk_memory_layout"],
            rank=rank,
            filters=attributes.get(_FILTERS),
            compressor=_compressor(document.get("compressor")),
        ),
        attributes={key: value for key, value in attributes.items() if key != _FILTERS},
        dimension_names=None,
        key_head="c",
        key_separator=separator,
        key_alone="c0",
    )


def _check_extensions(document: Any) -> None:
    """Raises ``ShardFormatError`` for an extension that must be understood."""
    extensions = document.get("extensions") or []
    for extension in extensions if isinstance(extensions, list) else [extensions]:
        if not isinstance(extension, dict) or extension.get("must_understand") is not False:
            raise ShardFormatError(
                "extensions are not understood", expected="none", got=repr(extension)[:160]
            )


def _data_type(value: Any) -> NumpyType:
    if value == "bool":
        value = "|b1"
    elif isinstance(value, dict):  # a data type of an extension, such as datetime64
        check_fields("data_type", value, {"extension", "type"}, {"fallback"})
        value = value["type"]
    return numpy_type("data_type", value)


def _compressor(value: Any) -> Any:
    """Returns the compressor as numcodecs names it."""
    if value is None:
        return None
    check_fields("compressor", value, {"codec"}, {"configuration"})
    settings = value.get("configuration", {})
    named = _CODEC.fullmatch(value["codec"]) if isinstance(value["codec"], str) else None
    if named is None or not isinstance(settings, dict) or "id" in settings:
        expected = "https://purl.org/zarr/spec/codec/gzip/1.0 and the like, with a configuration"
        raise not_supported("compressor", expected, value, 160)
    return {"id": named[1], **settings}


def _shard_chunks(transformers: Any, rank: int) -> list[int] | None:
    if not transformers:
        return None
    if not isinstance(transformers, list) or len(transformers) > 1:
        raise not_supported("storage_transformers", "one at most", transformers, 160)
    (transformer,) = transformers
    json_path = "storage_transformers[0]"
    check_fields(json_path, transformer, {"extension", "type", "configuration"}, set())
    for field, is_known, expected in (
        ("extension", lambda uri: isinstance(uri, str) and _SHARDING.fullmatch(uri), "sharding/1.0"),
        ("type", lambda kind: kind == "indexed", "'indexed'"),
    ):
        if not is_known(transformer[field]):
            raise not_supported(f"{json_path}.{field}", expected, transformer[field], 160)
    configuration = transformer["configuration"]
    check_fields(f"{json_path}.configuration", configuration, {"chunks_per_shard"}, set())
    return sizes(f"{json_path}.configuration.chunks_per_shard", configuration["chunks_per_shard"], rank=rank)
