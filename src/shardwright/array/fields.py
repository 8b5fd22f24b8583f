"""The checks that several fields of zarr.json share: lists of sizes, and extensions, which have a name and
settings (Zarr v3 core, "Extension definition"). Standard library only.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Collection

# NumPy 1.26 has 32 at most, and the index of shards has one more than the array
MAX_AXES = 31
# numbers of which an array is made in memory, of one element: longer text has a type without a length
MAX_ITEM_BYTES = 1 << 20
_SIZED_TYPE = re.compile(r"[<>|=]?([SUVar])([0-9]{1,20})")  # NumPy's, and the raw bits of Zarr v3
_MEMBERS = {"name", "configuration", "must_understand"}


def sizes(field: str, value: Any, *, least: int = 1, rank: int | None = None) -> list[int]:
    """Returns a list of sizes, one for each of ``rank`` axes. Raises ``ShardFormatError`` naming
    ``field``."""
    if (
        not isinstance(value, list)
        or len(value) > MAX_AXES
        or not all(type(n) is int and least <= n < 2**63 for n in value)
        or (rank is not None and len(value) != rank)
    ):
        count = "" if rank is None else f"{rank} "
        raise ShardFormatError(
            f"{field} not supported",
            expected=f"a list of {count}whole numbers from {least}, at most {MAX_AXES}",
            got=repr(value)[:160],
        )
    return value


def is_finite(value: Any) -> bool:
    """Returns whether a value of JSON is a number that a float holds: not NaN, an infinity, or an integer as
    10^400, of which ``float`` and ``math.isfinite`` raise an error of their own."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def extension(field: str, value: Any) -> tuple[str, dict[str, Any]]:
    """Returns the name and the settings of an extension. Raises ``ShardFormatError`` naming ``field``."""
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("name"), str)
        or not isinstance(value.get("configuration", {}), dict)
    ):
        raise ShardFormatError(
            f"{field} lacks a field or has one of the wrong type",
            expected='{"name": ..., "configuration": {...}}',
            got=repr(value)[:160],
        )
    return value["name"], value.get("configuration", {})


def check_item_bytes(field: str, value: Any) -> None:
    """Raises ``ShardFormatError`` for a data type, or settings that name one, with elements of more than
    ``MAX_ITEM_BYTES``. Before anything makes one: its fill value alone is as long."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "length_bytes" and type(inner) is int:
                _check_length(field, value, inner)
            check_item_bytes(f"{field}.{name}", inner)
    elif isinstance(value, list):
        for inner in value:
            check_item_bytes(field, inner)
    elif isinstance(value, str) and (match := _SIZED_TYPE.fullmatch(value)):
        nbytes = int(match[2]) // 8 if match[1] == "r" else int(match[2]) * (4 if match[1] == "U" else 1)
        _check_length(field, value, nbytes)


def _check_length(field: str, value: Any, nbytes: int) -> None:
    if nbytes > MAX_ITEM_BYTES:
        raise ShardFormatError(
            f"{field} not supported",
            expected=f"elements of at most {MAX_ITEM_BYTES} bytes",
            got=repr(value)[:80],
        )


def check_members(field: str, value: dict[str, Any], settings: Collection[str] | None) -> None:
    """Raises ``ShardFormatError`` for a member of an extension that is not understood. ``settings``: the
    names of those that it may have, None if they are not known."""
    unknown = [*(value.keys() - _MEMBERS)]
    if settings is not None:
        unknown += [f"configuration.{key}" for key in value.get("configuration", {}).keys() - settings]
    if unknown:
        raise ShardFormatError(
            f"{field}.{min(unknown)} of {value['name']!r} is not understood",
            expected=", ".join(sorted(settings or ())) or "none",
        )
