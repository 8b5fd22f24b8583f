"""The checks that several fields of zarr.json share: lists of sizes, and extensions, which have a name and
settings (Zarr v3 core, "Extension definition"). Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Collection

_MEMBERS = {"name", "configuration", "must_understand"}


def sizes(field: str, value: Any, *, least: int = 1, rank: int | None = None) -> list[int]:
    """Returns a list of sizes, one for each of ``rank`` axes. Raises ``ShardFormatError`` naming
    ``field``."""
    if (
        not isinstance(value, list)
        or not all(type(n) is int and least <= n < 2**63 for n in value)
        or (rank is not None and len(value) != rank)
    ):
        count = "" if rank is None else f"{rank} "
        raise ShardFormatError(
            f"{field} not supported",
            expected=f"a list of {count}whole numbers from {least}",
            got=repr(value)[:160],
        )
    return value


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
