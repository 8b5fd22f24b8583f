"""The JSON Schema (draft 2020-12) of a configuration: exactly what the loader accepts, for editors and for
error messages."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from shardwright.array.spec import CODEC_NAMES, DTYPES

from .model import Config

if TYPE_CHECKING:
    from .source import FieldPath

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@cache
def json_schema() -> dict[str, Any]:
    """Returns the schema as plain data; callers must not change it."""
    schema = Config.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    # The loader takes a codec without a name for blosc; oneOf must then match only that one.
    for name in ("Zstd", "Gzip"):
        definitions[name]["required"] = ["name"]
    array = definitions["ArraySpec"]["properties"]
    array["codec"]["anyOf"].append({"enum": list(CODEC_NAMES)})
    array["dtype"] = {"title": "Dtype", "enum": list(DTYPES)}
    return {"$schema": DIALECT, **schema}


def schema_text() -> str:
    """Returns the committed form: indented, with a final newline."""
    return json.dumps(json_schema(), indent=2) + "\n"


def field_schema(path: FieldPath, data: Any) -> dict[str, Any]:
    """Returns the schema of one field. ``data``, the whole file, decides which codec is meant. Empty for
    a field that is not in the schema."""
    node = json_schema()
    for part in path:
        node = _structure(node, data)
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
        data = data[part] if has(data, part) else None
    return node


def known_keys(path: FieldPath, data: Any) -> list[str]:
    """Returns the keys that the mapping at ``path`` may have."""
    node = field_schema(path, data)
    for part in path:
        data = data[part] if has(data, part) else None
    return list(_structure(node, data).get("properties", {}))


def has(data: Any, part: str | int) -> bool:
    """True if plain data has a key or an item ``part``."""
    return (isinstance(data, dict) and part in data) or (
        isinstance(data, list) and isinstance(part, int) and part < len(data)
    )


def _structure(node: dict[str, Any], data: Any) -> dict[str, Any]:
    """Returns the schema that lists the properties or items, with references followed and the codec chosen by
    its name."""
    if "$ref" in node:
        return _structure(json_schema()["$defs"][node["$ref"].rpartition("/")[2]], data)
    choices = [_structure(choice, data) for choice in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
    if not choices:
        return node
    name = data.get("name", "blosc") if isinstance(data, dict) else None
    named = [c for c in choices if c.get("properties", {}).get("name", {}).get("const") == name]
    return (named or [c for c in choices if "properties" in c or "items" in c] or choices)[0]
