"""Checks per-frame metadata from users: a mapping of known names to numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import MetadataError

from .descriptor import METADATA_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt


def checked_metadata(
    metadata: Mapping[str, float], fields: Sequence[str] = METADATA_FIELDS
) -> dict[str, float]:
    """Returns ``metadata`` as floats; ``fields`` are an array's ``metadata_fields``. Raises ``MetadataError``
    for another name or a value that is no number."""
    values = {}
    for name, value in metadata.items():
        _check_name(name, fields)
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            raise MetadataError(
                f"metadata field {name!r} is not a number", expected="a number", got=repr(value)[:80]
            ) from None
    return values


def checked_columns(
    metadata: Mapping[str, npt.ArrayLike], count: int, fields: Sequence[str] = METADATA_FIELDS
) -> dict[str, npt.NDArray[np.float64]]:
    """As ``checked_metadata``, for ``count`` frames: each value is one number for all of them, or one for
    each."""
    columns = {}
    for name, values in metadata.items():
        _check_name(name, fields)
        try:
            column = np.asarray(values, np.float64)
        except (TypeError, ValueError):
            raise MetadataError(
                f"metadata field {name!r} is not of numbers", expected="numbers", got=repr(values)[:80]
            ) from None
        if column.shape not in ((), (count,)):
            raise MetadataError(
                f"metadata field {name!r} does not fit the frames",
                expected=f"one number, or {count}",
                got=column.shape,
            )
        columns[name] = column
    return columns


def _check_name(name: str, fields: Sequence[str]) -> None:
    if name not in fields:
        hint = "Name it in the array's frame_fields to give it a column"
        raise MetadataError(
            "unknown metadata field", expected=f"one of {', '.join(fields)}", got=repr(name), hint=hint
        )
