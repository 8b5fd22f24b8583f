"""The zarr.json of every node: its encoding, and the check of each one that is read, which refuses by name a
field that is not understood.

Zarr v3 core: a reader must refuse a field that it does not know, unless its value is an object with
``must_understand: false``. That holds, without the exception, for the fields of an extension (``chunk_grid``,
``chunk_key_encoding``, a codec): bytes would be read wrongly. Code that rewrites an array (compaction, new
levels) relies on it. Standard library only, so that the web process may use it too.
"""

from __future__ import annotations

import json
from typing import Any

from shardwright.model.errors import ShardFormatError

_COMMON = {"zarr_format", "node_type", "attributes"}
_FIELDS = {
    "group": _COMMON | {"consolidated_metadata"},
    "array": _COMMON
    | {"shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "dimension_names"}
    | {"storage_transformers"},
}
_GRIDS = {"regular": {"chunk_shape"}}
_KEY_ENCODINGS = {"default": {"separator"}}
_CODECS = {
    "bytes": {"endian"},
    "blosc": {"cname", "clevel", "shuffle", "typesize", "blocksize"},
    "zstd": {"level", "checksum"},
    "gzip": {"level"},
    "crc32c": set[str](),
    "vlen-utf8": set[str](),  # of strings, in the frame table
    "sharding_indexed": {"chunk_shape", "codecs", "index_codecs", "index_location"},
}
_EXTENSION = {"name", "configuration", "must_understand"}


def encode_document(document: dict[str, Any]) -> bytes:
    """Returns the bytes of a zarr.json."""
    return json.dumps(document, indent=2, allow_nan=False).encode()


def check_node(document: Any) -> dict[str, Any]:
    """Returns the document. Raises ``ShardFormatError`` when it is not of a group or an array at all; the
    caller names the file."""
    if (
        not isinstance(document, dict)
        or document.get("zarr_format") != 3
        or document.get("node_type") not in ("group", "array")
    ):
        raise ShardFormatError("describes no Zarr v3 group or array")
    node: dict[str, Any] = document
    return node


def check_document(document: Any) -> dict[str, Any]:
    """Returns the document. Raises ``ShardFormatError`` naming the field that is not understood; the caller
    names the file."""
    node = check_node(document)
    fields = _FIELDS[node["node_type"]]
    for name, value in node.items():
        if name not in fields and not (isinstance(value, dict) and value.get("must_understand") is False):
            raise ShardFormatError(
                f"field {name!r} is not understood",
                expected="fields of Zarr v3, or objects with must_understand: false",
            )
    if not isinstance(node.get("attributes", {}), dict):
        raise ShardFormatError(
            "attributes is of the wrong type", expected="an object", got=repr(node["attributes"])[:80]
        )
    if node["node_type"] == "array":
        _check_array(node)
    return node


def understood(document: dict[str, Any]) -> dict[str, Any]:
    """Returns only the fields of Zarr v3. Other fields describe this one array or group, and must not be
    copied to one that is made from it."""
    return {name: value for name, value in document.items() if name in _FIELDS[document["node_type"]]}


def _check_array(document: dict[str, Any]) -> None:
    if document.get("storage_transformers"):
        raise ShardFormatError(
            "storage_transformers is not supported",
            expected="none",
            got=repr(document["storage_transformers"])[:160],
        )
    for field, known in (("chunk_grid", _GRIDS), ("chunk_key_encoding", _KEY_ENCODINGS)):
        if field in document:  # a missing field is reported by the code that needs it
            _check_extension(field, document[field], known)
    if "codecs" in document:
        _check_codecs("codecs", document["codecs"])


def _check_codecs(field: str, codecs: Any) -> None:
    if not isinstance(codecs, list) or not codecs:
        raise ShardFormatError(
            f"{field} lacks a field or has one of the wrong type",
            expected="a list of codecs",
            got=repr(codecs)[:80],
        )
    for number, codec in enumerate(codecs):
        place = f"{field}[{number}]"
        configuration = _check_extension(place, codec, _CODECS)
        if configuration.keys() & {"codecs", "index_codecs"}:
            for inner in ("codecs", "index_codecs"):
                _check_codecs(f"{place}.configuration.{inner}", configuration.get(inner))


def _check_extension(field: str, value: Any, known: dict[str, set[str]]) -> dict[str, Any]:
    """Returns the configuration of an extension; a codec may be given by its name alone."""
    extension = {"name": value} if isinstance(value, str) and known is _CODECS else value
    if (
        not isinstance(extension, dict)
        or not isinstance(extension.get("name"), str)
        or not isinstance(extension.get("configuration", {}), dict)
    ):
        expected = '{"name": ..., "configuration": {...}}'
        raise ShardFormatError(
            f"{field} lacks a field or has one of the wrong type", expected=expected, got=repr(value)[:160]
        )
    name = extension["name"]
    if name not in known:
        what = f"codec not supported ({field})" if known is _CODECS else f"{field} not supported"
        raise ShardFormatError(what, expected=" or ".join(map(repr, known)), got=repr(name)[:80])
    configuration: dict[str, Any] = extension.get("configuration", {})
    unknown = [
        *(extension.keys() - _EXTENSION),
        *(f"configuration.{key}" for key in configuration.keys() - known[name]),
    ]
    if unknown:
        raise ShardFormatError(
            f"{field}.{min(unknown)} of {name!r} is not understood",
            expected=", ".join(sorted(known[name])) or "none",
        )
    return configuration
