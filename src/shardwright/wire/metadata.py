"""Per-frame metadata as users give it: a mapping of known names to numbers, checked once where it enters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.model.errors import MetadataError

from .descriptor import METADATA_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def checked_metadata(metadata: Mapping[str, float], fields: Sequence[str] = METADATA_FIELDS) -> dict[str, float]:
    """``metadata`` as floats; ``fields`` are an array's ``metadata_fields``. ``MetadataError`` for another name or a value that is no number."""
    values = {}
    for name, value in metadata.items():
        if name not in fields:
            hint = "Name it in the array's frame_fields to give it a column"
            raise MetadataError("unknown metadata field", expected=f"one of {', '.join(fields)}", got=repr(name), hint=hint)
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            raise MetadataError(f"metadata field {name!r} is not a number", expected="a number", got=repr(value)[:80]) from None
    return values
