"""The check of metadata with which a user updates those of a store or of an image. The same for the client,
the daemon and the writer in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardwright.model.errors import MetadataError
from shardwright.model.json_text import parse_json

from .frame_check import plain_value
from .spec import check_depth, group_attributes


def checked_update(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes as JSON values. Raises ``MetadataError`` when they are none, are too long, or
    have a name that is ours."""
    if not isinstance(attributes, Mapping) or not all(isinstance(name, str) for name in attributes):
        raise MetadataError("metadata by name are needed", expected="a dict", got=repr(attributes)[:80])
    values = dict(attributes)
    try:
        check_depth(values)
        return group_attributes(_as_json(values))
    except MetadataError:
        raise
    except ValueError as error:  # it says what is wrong, and what is allowed
        why = str(error).removeprefix("attributes: ")
        raise MetadataError(f"metadata that cannot be attributes: {why}"[:320]) from None


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(values, ensure_ascii=False, allow_nan=False, default=plain_value)
        plain: dict[str, Any] = parse_json(text.encode())
    except (TypeError, ValueError) as error:
        raise MetadataError(
            "metadata that cannot be attributes",
            expected="text, finite numbers, booleans, None, and lists and dicts of them",
            got=str(error)[:240],
        ) from None
    return plain
