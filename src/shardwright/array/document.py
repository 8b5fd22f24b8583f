"""The zarr.json of every node: the form of those that are made, its encoding, and the check of each one that
is read, which refuses by name a field that is not understood.

Zarr v3 core: a reader must refuse a field that it does not know, unless its value is an object with
``must_understand: false``. That holds, without the exception, for the fields of an extension (``chunk_grid``,
``chunk_key_encoding``, a codec): bytes would be read wrongly. Code that rewrites an array (compaction, new
levels) relies on it. Only to encode takes more than the standard library, so that the web process may use it
too.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError
from shardwright.model.json_text import parse_json, parse_metadata

from .codec_chain import CodecChain, parse_chain
from .fields import check_item_bytes, check_members, extension, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of a metadata file, here and of older spellings. Consolidated metadata are the long ones: 15 KB for an image
# of two channels with four levels, so 60 MB for ten fields of a 384-well plate. Parsing may take 30 times the
# length in memory.
MAX_METADATA_BYTES = 64 << 20
_COMMON = {"zarr_format", "node_type", "attributes"}
_FIELDS = {
    "group": _COMMON | {"consolidated_metadata"},
    "array": _COMMON
    | {"shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "dimension_names"}
    | {"storage_transformers"},
}
_GRIDS = {"regular": {"chunk_shape"}}
_READ_ELSEWHERE = {
    "rectilinear": "zarr-python 3.4 reads it: `zarr.open(shardwright.open(PATH))`, with its setting "
    "array.rectilinear_chunks. Nothing here changes it"
}
_KEY_ENCODINGS = {"default": {"separator"}, "v2": {"separator"}}
# of the data types of Zarr v3 core
ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

_SMALL_OR_LARGE = re.compile(rb"[0-9]e-?[0-9]|0\.0000")  # json has an exponent from 1e-05 downward
_INTEGERS = {name for name in ITEM_BYTES if name.startswith(("int", "uint"))}


def group_node(attributes: dict[str, Any]) -> dict[str, Any]:
    """Returns the document of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def array_node(
    *,
    shape: Sequence[int],
    data_type: Any,
    grid: Sequence[int],
    fill_value: Any,
    codecs: list[dict[str, Any]],
    attributes: dict[str, Any],
    names: list[str] | None,
    has_keys: bool = True,
) -> dict[str, Any]:
    """Returns the document of an array. ``grid``: elements of a shard, or of a chunk without shards;
    ``names``: of its dimensions; ``has_keys``: its chunk keys are ``default_keys``."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(grid)}},
        **({"chunk_key_encoding": default_keys()} if has_keys else {}),
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": attributes,
        **({} if names is None else {"dimension_names": names}),
    }


def default_keys() -> dict[str, Any]:
    """Returns the chunk key encoding of each array that is made here."""
    return {"name": "default", "configuration": {"separator": "/"}}


def encode_document(document: dict[str, Any], *, foreign: bool = False) -> bytes:
    """Returns the bytes of a zarr.json. Raises ``ShardFormatError`` for NaN and the infinities as numbers,
    which other writers put into attributes and JSON does not have, and for more bytes than are read.
    ``foreign``: a document with attributes of others, which stay as they were."""
    try:
        text = indented_json(document, allow_nan=foreign)
    except ValueError:
        raise ShardFormatError(
            "a zarr.json cannot hold NaN, Infinity or -Infinity as a number",
            hint="Make them text in the attributes of the source, such as the name in quotes",
        ) from None
    check_length(text, "a zarr.json")
    return text


def indented_json(document: dict[str, Any], *, allow_nan: bool) -> bytes:
    """Returns what ``json.dumps`` with ``indent=2`` does, of text, numbers, lists and objects whose names are
    text. Raises ``ValueError``."""
    from pydantic_core import to_json

    # With an indent json runs in Python, for seven times as long, and hundreds of images wait for it. It is
    # asked only for what the two write differently, so that no document changes a byte: text that is not
    # printable ASCII, numbers with an exponent, those that JSON does not have.
    with suppress(ValueError):
        text = to_json(document, indent=2)
        if text.isascii() and not (
            b"\x7f" in text or _SMALL_OR_LARGE.search(text) or b"NaN" in text or b"Infinity" in text
        ):
            return text
    return json.dumps(document, indent=2, allow_nan=allow_nan).encode()


def check_length(text: bytes, file: object) -> None:
    """Raises ``ShardFormatError`` for a metadata file of more than ``MAX_METADATA_BYTES``."""
    if len(text) > MAX_METADATA_BYTES:
        raise ShardFormatError(
            f"{file} is too long", expected=f"at most {MAX_METADATA_BYTES} bytes", got=len(text)
        )


def as_read(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document as whoever reads its file gets it: lists in place of tuples, and nothing shared with
    another. Raises as ``encode_document``, before a job begins whose end would write it."""
    found: dict[str, Any] = parse_json(encode_document(document))
    return found


def decode_document(text: bytes, file: object, *, foreign: bool = False) -> dict[str, Any]:
    """Returns the group or array that the zarr.json ``file`` describes. ``foreign``: only to be copied or
    compared, so it need not be a layout that we know. Raises ``ShardFormatError`` naming the file and the
    field."""
    check_length(text, file)
    try:
        document = parse_metadata(text)
    except ValueError as error:
        raise ShardFormatError(f"{file} is not JSON: {error}") from None
    with NamingFile(file):
        return check_node(document) if foreign else check_document(document)


class NamingFile:
    """A context that puts the file's name before the message of a ``ShardFormatError``."""

    def __init__(self, file: object) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, ShardFormatError):
            raise ShardFormatError(
                f"{self._file}: {error.message}", expected=error.expected, got=error.got, hint=error.hint
            ) from None


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
        _spell_out(node)
        _check_array(node)
    return node


def _spell_out(document: dict[str, Any]) -> None:
    """Replaces the short spelling of a chunk key encoding, its name alone, and the long one of a data type
    without settings, by the usual ones (Zarr v3.1, "Extension definition": they mean the same)."""
    if isinstance(encoding := document.get("chunk_key_encoding"), str):
        document["chunk_key_encoding"] = {"name": encoding}
    data_type = document.get("data_type")
    if (
        isinstance(data_type, dict)
        and data_type.keys() <= {"name", "configuration"}
        and not data_type.get("configuration")
    ):
        document["data_type"] = data_type.get("name")


def understood(document: dict[str, Any]) -> dict[str, Any]:
    """Returns only the fields of Zarr v3. Other fields describe this one array or group, and must not be
    copied to one that is made from it."""
    return {name: value for name, value in document.items() if name in _FIELDS[document["node_type"]]}


def array_chain(document: dict[str, Any]) -> CodecChain:
    """Returns the codec chain of an array whose other fields were checked. Raises ``ShardFormatError``."""
    shape = document.get("shape")
    rank = len(shape) if isinstance(shape, list) else None
    grid = sizes("chunk_grid", document["chunk_grid"].get("configuration", {}).get("chunk_shape"), rank=rank)
    data_type = document.get("data_type")
    itemsize = ITEM_BYTES.get(data_type) if isinstance(data_type, str) else None
    return parse_chain("codecs", document["codecs"], grid, itemsize)


def _check_array(document: dict[str, Any]) -> None:
    """``dimension_names: null``, which zarr-python reads, is not refused: it can mean nothing else than no
    names (Zarr v3 core has a list there, or no such field)."""
    data_type, fill_value = document.get("data_type"), document.get("fill_value", 0)
    # whichever codecs decode the chunks. zarr-python takes 1.0 and "1" too
    if isinstance(data_type, str) and data_type in _INTEGERS and type(fill_value) is not int:
        raise ShardFormatError(
            "fill_value not supported",
            expected=f'a {data_type}, without a fraction or an exponent (Zarr v3 core, "Fill value")',
            got=repr(fill_value)[:80],
        )
    if document.get("storage_transformers"):
        raise ShardFormatError(
            "storage_transformers is not supported",
            expected="none",
            got=repr(document["storage_transformers"])[:160],
        )
    check_item_bytes("data_type", data_type)
    for field, known in (("chunk_grid", _GRIDS), ("chunk_key_encoding", _KEY_ENCODINGS)):
        if field in document:  # a missing field is reported by the code that needs it
            _check_extension(field, document[field], known)
    if "codecs" in document and "chunk_grid" in document:
        array_chain(document)


def _check_extension(field: str, value: Any, known: dict[str, set[str]]) -> None:
    name, _ = extension(field, value)
    if name not in known:
        raise ShardFormatError(
            f"{field} not supported",
            expected=" or ".join(map(repr, known)),
            got=repr(name)[:80],
            hint=_READ_ELSEWHERE.get(name),
        )
    check_members(field, value, known[name])
