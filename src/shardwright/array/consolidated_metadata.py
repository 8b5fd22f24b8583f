"""Consolidated metadata, as zarr-python writes it into a group's zarr.json: a copy of the zarr.json of all
nodes below.

    "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": {"0": {...}, "frames":
    {...}, "frames/status": {...}}}

Readers use only the copy: a wrong copy makes them read wrong pixels, or hides nodes that it does not name.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError

from .document import encode_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FIELD = "consolidated_metadata"
_DEFAULTS: dict[str, Any] = {"attributes": {}, "storage_transformers": [], "dimension_names": None}
_EXTENSIONS = ("chunk_grid", "chunk_key_encoding", "codecs")


def consolidated_metadata(group: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a group's consolidated metadata: zarr.json of all nodes below it by path; None without any.
    Raises ``ShardFormatError`` for another kind."""
    field = group.get(FIELD)
    if field is None:
        return None
    if (
        not isinstance(field, dict)
        or field.get("kind") != "inline"
        or not isinstance(field.get("metadata"), dict)
    ):
        raise ShardFormatError(f"{FIELD} is of an unknown kind", expected="inline", got=repr(field)[:80])
    metadata: dict[str, Any] = field["metadata"]
    return metadata


def consolidated(group: dict[str, Any], nodes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns ``group`` with a copy of ``nodes``: all nodes below it by path."""
    metadata = {path: copy.deepcopy(node) for path, node in sorted(nodes.items())}
    for node in metadata.values():
        if node["node_type"] == "group":
            node[FIELD] = _inline({})
    return {**group, FIELD: _inline(metadata)}


def encode_consolidated(group: dict[str, Any], nodes: Mapping[str, dict[str, Any]]) -> bytes:
    """Returns the bytes of a group's zarr.json with a copy of ``nodes``. Without any where they would be more
    than are read: an older copy would be wrong, and without one readers look at the nodes themselves."""
    try:
        return encode_document(consolidated(group, nodes), foreign=True)
    except ShardFormatError:
        alone = {name: value for name, value in group.items() if name != FIELD}
        return encode_document(alone, foreign=True)


def _inline(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "inline", "must_understand": False, "metadata": metadata}


def differences(copies: Mapping[str, Any], nodes: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields (path, difference) for each node that its copy in ``copies`` does not describe as it is."""
    for path in sorted(copies.keys() | nodes.keys()):
        if path not in nodes:
            yield path, "is listed but does not exist"
        elif path not in copies:
            yield path, "is not listed: readers do not see it"
        elif not isinstance(copies[path], dict):
            yield path, "is not described by an object"
        else:
            copied, found = copies[path], nodes[path]
            fields = [
                name
                for name in sorted((copied.keys() | found.keys()) - {FIELD})
                if not _same(name, copied, found)
            ]
            if fields:
                yield path, f"is described with a different {', '.join(fields)}"


def _same(field: str, copied: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    values = [document.get(field, _DEFAULTS.get(field)) for document in (copied, found)]
    return _same_extension(*values) if field in _EXTENSIONS else values[0] == values[1]


def _same_extension(one: Any, other: Any) -> bool:
    """Returns whether two extensions are equal; writers may leave out a configuration, or a default in it."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_extension, one, other))
    one, other = ({"name": value} if isinstance(value, str) else value for value in (one, other))
    if not (isinstance(one, dict) and isinstance(other, dict) and {"name"} <= one.keys() & other.keys()):
        return bool(one == other)
    configurations = [value.get("configuration", {}) for value in (one, other)]
    if one["name"] != other["name"] or not all(isinstance(value, dict) for value in configurations):
        return False
    both = configurations[0].keys() & configurations[1].keys()
    return all(
        _same_extension(configurations[0][key], configurations[1][key])
        if key in ("codecs", "index_codecs")
        else configurations[0][key] == configurations[1][key]
        for key in both
    )
