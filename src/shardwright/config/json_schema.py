"""The JSON Schema (draft 2020-12) of a configuration: exactly what the loader accepts, for editors and for
error messages."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from shardwright.array.as_written import any_case
from shardwright.array.plate import MAX_PLATE_SIDE, TIME_PATTERN, WELL_NAME_PATTERN
from shardwright.array.spec import MAX_LEVELS, OWN_ATTRIBUTES
from shardwright.model.names import IMAGE_PATH_PATTERN
from shardwright.model.write_options import BLOSC_NAMES, CODEC_NAMES, DTYPES
from shardwright.wire.messages import MAX_IMAGES

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
    spec = definitions["ArraySpec"]
    spec["description"] = spec["description"].partition("\n\nExamples\n")[0]  # which are of Python
    array = spec["properties"]
    codecs = [*CODEC_NAMES, *BLOSC_NAMES]  # an editor offers these
    array["codec"]["anyOf"] += [{"enum": codecs}, {"type": "string", "pattern": f"^({any_case(codecs)})$"}]
    channel = definitions["Channel"]  # has one of two names for its name
    channel["properties"]["label"] = channel["properties"]["name"]
    channel["allOf"] = [{"oneOf": [{"required": [name]} for name in ("name", "label")]}]
    del channel["required"]
    array["dtype"] = {"title": "Dtype", "enum": list(DTYPES)}
    array["levels"]["anyOf"].append({"type": "integer", "minimum": 0, "maximum": MAX_LEVELS})
    _allow_names_of_images(definitions)
    plate = definitions["Plate"]["properties"]
    for side, most in (("rows", MAX_PLATE_SIDE), ("columns", MAX_PLATE_SIDE), ("fields", MAX_IMAGES)):
        plate[side] |= _names_or_their_number(most)
        for key in ("type", "items", "minItems", "maxItems"):
            plate[side].pop(key, None)
    taken = definitions["PlateAcquisition"]["properties"]
    for side in ("start", "end"):
        taken[side]["anyOf"].append({"type": "string", "pattern": f"^{TIME_PATTERN}$"})
    definitions["Image"]["properties"]["path"]["anyOf"][0]["pattern"] = f"^{IMAGE_PATH_PATTERN}$"
    for name in ("StreamConfig", "Image"):
        definitions[name]["properties"]["attributes"]["propertyNames"] = {
            "not": {"enum": list(OWN_ATTRIBUTES)}
        }
    return {"$schema": DIALECT, **schema}


def _allow_names_of_images(definitions: dict[str, Any]) -> None:
    """Images may be names alone, or a mapping of names to arrays."""
    images = definitions["StreamConfig"]["properties"]["images"]
    name = {key: value for key, value in definitions["Image"]["properties"]["name"].items() if key != "title"}
    several = {key: images.pop(key) for key in ("type", "items", "maxItems")}
    array = {"$ref": "#/$defs/ArraySpec"}
    images["anyOf"] = [
        {**several, "items": {"anyOf": [several["items"], name]}},
        {
            "type": "object",
            "propertyNames": name,
            "maxProperties": MAX_IMAGES,
            "additionalProperties": {"anyOf": [array, {"type": "null"}]},
        },
    ]


def _names_or_their_number(most: int) -> dict[str, Any]:
    """Rows, columns and fields may be a number, which stands for the usual names."""
    name = {"type": "string", "pattern": f"^{WELL_NAME_PATTERN}$"}
    names = {"type": "array", "items": name, "minItems": 1, "maxItems": most, "uniqueItems": True}
    return {"anyOf": [names, {"type": "integer", "minimum": 1, "maximum": most}]}


def schema_text() -> str:
    """Returns the committed form: indented, with a final newline."""
    return json.dumps(json_schema(), indent=2) + "\n"


def field_schema(path: FieldPath, data: Any) -> dict[str, Any]:
    """Returns the schema of one field. ``data``, the whole file, decides which codec is meant. Empty for
    a field that is not in the schema."""
    node = json_schema()
    for part in path:
        node = _structure(node, data)
        node = _inside(node, part)
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


def _inside(node: dict[str, Any], part: str | int) -> dict[str, Any]:
    """Returns the schema of an item or of a property; empty if there is none."""
    found = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
    found = found or (node.get("additionalProperties") if isinstance(part, str) else None)
    return found if isinstance(found, dict) else {}


def _structure(node: dict[str, Any], data: Any) -> dict[str, Any]:
    """Returns the schema that lists the properties or items, with references followed, the codec chosen by
    its name, and otherwise a list or a mapping as ``data`` has it."""
    if "$ref" in node:
        return _structure(json_schema()["$defs"][node["$ref"].rpartition("/")[2]], data)
    choices = [_structure(choice, data) for choice in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
    if not choices:
        return node
    name = data.get("name", "blosc") if isinstance(data, dict) else None
    named = [c for c in choices if c.get("properties", {}).get("name", {}).get("const") == name]
    kind = "array" if isinstance(data, list) else "object" if isinstance(data, dict) else None
    fitting = [c for c in choices if kind is not None and c.get("type") == kind]
    return (named or fitting or [c for c in choices if "properties" in c or "items" in c] or choices)[0]
