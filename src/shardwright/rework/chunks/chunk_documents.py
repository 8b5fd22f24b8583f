"""The zarr.json of a sharded array as a store of chunks hands it out, and the way back.

    stored      chunk_grid: shards,  codecs: [sharding_indexed]
    handed out  chunk_grid: inner chunks,  codecs: those of inner chunks;  all else the same

A program that knows no shards then reads and writes the array chunk by chunk. What it writes back may have
another shape, attributes and names of dimensions; everything that says what the bytes of chunks mean must be
as it was. The same holds for arrays in the consolidated metadata of a group.
"""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated_metadata import FIELD as CONSOLIDATED
from shardwright.array.document import check_document, check_length, decode_document, encode_document
from shardwright.model.errors import ShardFormatError, SpecError
from shardwright.model.json_text import parse_json
from shardwright.model.names import DOCUMENT, key_in
from shardwright.read.store import parse_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.read.store import StoredArray

_LAYOUT = ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "storage_transformers")


def parse_node(data: bytes) -> dict[str, Any] | None:
    """Returns the zarr.json of a group or an array; None for bytes that are none, which are kept as they
    are: a program that reads or writes them here gets what it would get without us. Raises
    ``ShardFormatError`` for too many: in their form in the store they would describe shards, of which we hand
    out chunks."""
    check_length(data, DOCUMENT)
    with suppress(ShardFormatError):
        return decode_document(data, DOCUMENT, foreign=True)
    return None


def understood_array(path: Path, document: dict[str, Any]) -> StoredArray | None:
    """Returns the array that a document describes; None for a group, and for an array that is not understood,
    which is left to whoever reads it."""
    if document["node_type"] != "array":
        return None
    try:
        return parse_array(path, check_document(document))
    except ShardFormatError:
        return None


def sharded_array(path: Path, document: dict[str, Any]) -> StoredArray | None:
    """Returns the array whose inner chunks can be keys; None for any other node, also one without shards or
    with codecs around them."""
    array = understood_array(path, document)
    return array if array is not None and array.is_sharded else None


def served_form(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns what a store of chunks hands out for a zarr.json."""
    if (inline := _inline(document)) is not None:
        metadata = {name: served_form(node, path / name) for name, node in inline.items()}
        return {**document, CONSOLIDATED: {**document[CONSOLIDATED], "metadata": metadata}}
    array = sharded_array(path, document)
    return document if array is None else _of_chunks(array, document)


def _of_chunks(array: StoredArray, document: dict[str, Any]) -> dict[str, Any]:
    grid = {"name": "regular", "configuration": {"chunk_shape": list(array.chunk_shape)}}
    return {**document, "chunk_grid": grid, "codecs": array.chain.as_json}


def stored_form(data: bytes, name: str, stored: Callable[[str], dict[str, Any] | None]) -> bytes:
    """Returns the bytes to store for the zarr.json of the node ``name`` that a program wrote.

    ``stored`` returns the document that a node has now. Raises ``SpecError`` for one that would change what
    the bytes of a sharded array mean, or make a new sharded array.
    """
    document = parse_node(data)
    now = stored(name)
    if document is None and (now is None or sharded_array(Path(name), now) is None):
        return data
    if document is None:
        raise SpecError(f"the zarr.json of the sharded array {name!r} must describe an array")
    back = _stored_form(document, name, stored)
    return data if back is document else encode_document(back, foreign=True)


def _stored_form(
    document: dict[str, Any], name: str, stored: Callable[[str], dict[str, Any] | None]
) -> dict[str, Any]:
    if (inline := _inline(document)) is not None:
        metadata = {below: _stored_form(node, key_in(name, below), stored) for below, node in inline.items()}
        if all(metadata[below] is node for below, node in inline.items()):
            return document
        return {**document, CONSOLIDATED: {**document[CONSOLIDATED], "metadata": metadata}}
    now = stored(name)
    array = None if now is None else sharded_array(Path(name), now)
    if now is not None and array is not None:
        return _with_shards(document, name, now, array)
    if sharded_array(Path(name), document) is not None:
        raise SpecError(
            f"a store of chunks makes no sharded array: {name!r}",
            hint="Make it in the store itself (zarr.create_array with its path or URL), then open it here",
        )
    return document


def _with_shards(
    document: dict[str, Any], name: str, now: dict[str, Any], array: StoredArray
) -> dict[str, Any]:
    """Returns the document with the layout of the sharded array that is there. Raises ``SpecError``."""
    if document["node_type"] != "array":
        raise SpecError(f"{name!r} is a sharded array", expected="its zarr.json", got="that of a group")
    old, new = (_layout(node) for node in (_of_chunks(array, now), document))
    if old != new:
        old, new = (_normalized(node, name) for node in (_of_chunks(array, now), document))
    for field in _LAYOUT:
        if old[field] != new[field]:
            raise SpecError(
                f"{field} of the sharded array {name!r} cannot be changed: its chunks are stored by it",
                expected=json.dumps(old[field])[:300],
                got=json.dumps(new[field])[:300],
                hint="`shardwright rechunk` writes the values to a store of another layout",
            )
    shape = document.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) != len(array.shape)
        or not all(type(n) is int and 0 <= n < 2**63 for n in shape)
    ):
        raise SpecError(
            f"shape of the sharded array {name!r} cannot be changed to this",
            expected=f"{len(array.shape)} whole numbers",
            got=repr(shape)[:160],
        )
    return {**document, **{field: now[field] for field in _LAYOUT if field in now}}


def _layout(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that say what chunks mean; an empty list of transformers is none."""
    return {
        field: document.get(field) or None if field == _LAYOUT[-1] else document.get(field)
        for field in _LAYOUT
    }


def _normalized(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the layout as zarr-python spells it: it writes settings that a document may leave out. Raises
    ``SpecError``."""
    from shardwright.codecs.zarr_python import OneNode

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of codecs without a specification
            written = OneNode(json.dumps(document).encode()).written_document()
    except Exception as error:  # noqa: BLE001 (codecs of any library raise here)
        raise SpecError(f"the zarr.json of {name!r} is not understood: {error}") from None
    return _layout(parse_json(written, may_be_nan=True))


def _inline(document: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Returns the documents of nodes below a group that its own document repeats; None without any."""
    consolidated = document.get(CONSOLIDATED)
    metadata = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(metadata, dict) or not all(
        isinstance(node, dict) and node.get("node_type") in ("array", "group") for node in metadata.values()
    ):
        return None
    return metadata or None


def nodes_named(document: dict[str, Any], folder: str) -> list[str]:
    """Returns the paths of nodes that the document of the group ``folder`` names: for a server that cannot
    list. They may not exist."""
    attributes = document.get("attributes")
    ome = attributes.get("ome") if isinstance(attributes, dict) else None
    below, beside = list(_inline(document) or ()), []
    if isinstance(ome, dict):
        below += _paths(ome, "multiscales", "datasets")
        below += _paths(ome, "plate", "wells") + _paths(ome, "well", "images")
        below += ["OME"] * ("bioformats2raw.layout" in ome)
        beside = _texts(ome.get("series"))  # of the group OME, which lies beside them
    above = folder.rpartition("/")[0]
    named = [(folder, name) for name in below] + [(above, name) for name in beside]
    return list(dict.fromkeys(key_in(node_path, name) for node_path, name in named if _is_below(name)))


def _paths(ome: dict[str, Any], outer: str, inner: str) -> list[str]:
    holders = ome.get(outer)
    found = []
    for holder in holders if isinstance(holders, list) else [holders]:
        items = holder.get(inner) if isinstance(holder, dict) else None
        for item in items if isinstance(items, list) else ():
            found += _texts([item.get("path")] if isinstance(item, dict) else None)
    return found


def _texts(values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _is_below(name: str) -> bool:
    return all(part and not part.startswith(".") for part in name.split("/"))
