"""Rectilinear chunk grids, whose chunks differ in length along an axis, as zarr-python 3.4 writes them.

    {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, [5, 3], 1], 4]}}

Along each axis one length, which repeats, or a list of lengths and of [length, count]. None is written here:
two readers know them. One with equal lengths along each axis is a regular grid, and is taken for that.
"""

from __future__ import annotations

from typing import Any

from shardwright.model.errors import ShardFormatError

NAME = "rectilinear"
HINT = (
    "`shardwright.open_array` reads it, and so does zarr-python 3.4 (`zarr.open(shardwright.open(PATH))`). "
    "Nothing here changes it"
)
_MOST_EDGES = 1 << 20  # of an axis

Edges = tuple[tuple[int, ...], ...]


def is_rectilinear(document: Any) -> bool:
    grid = document.get("chunk_grid") if isinstance(document, dict) else None
    return isinstance(grid, dict) and grid.get("name") == NAME


def regular_grid(lengths: list[int]) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": lengths}}


def as_regular(document: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the regular grid that a rectilinear one is, None for any other. Raises ``ShardFormatError``."""
    edges = edges_of(document)
    if any(len(set(along)) != 1 for along in edges):
        return None
    return regular_grid([along[0] for along in edges])


def edges_of(document: dict[str, Any]) -> Edges:
    """Returns the lengths of the chunks (of the shards, if there are any) along each axis, as many as cover
    the shape, at least one. Raises ``ShardFormatError``."""
    settings, shape = document["chunk_grid"].get("configuration"), document.get("shape")
    shapes = settings.get("chunk_shapes") if isinstance(settings, dict) else None
    if (
        not isinstance(settings, dict)
        or settings.keys() != {"kind", "chunk_shapes"}
        or settings["kind"] != "inline"
        or not isinstance(shapes, list)
        or not isinstance(shape, list)
        or len(shapes) != len(shape)
        or not all(_is_length(n, least=0) for n in shape)
    ):
        raise _unknown(document["chunk_grid"])
    return tuple(_along(given, n, document["chunk_grid"]) for given, n in zip(shapes, shape, strict=True))


def _along(given: Any, extent: int, grid: Any) -> tuple[int, ...]:
    runs: list[tuple[Any, ...]]
    if _is_length(given):
        runs = [(given, max(1, -(-extent // given)))]
    else:
        listed = given if isinstance(given, list) else []
        runs = [tuple(run) if isinstance(run, list) else (run, 1) for run in listed]
    if not runs or not all(len(run) == 2 and all(map(_is_length, run)) for run in runs):
        raise _unknown(grid)
    if sum(count for _, count in runs) > _MOST_EDGES:
        raise ShardFormatError("too many chunks along an axis", expected=f"at most {_MOST_EDGES}")
    edges = [length for length, count in runs for _ in range(count)]
    total = sum(edges)
    if total < extent:
        raise _unknown(grid)
    while len(edges) > 1 and total - edges[-1] >= extent:  # of an array that was cropped
        total -= edges.pop()
    return tuple(edges)


def _is_length(value: Any, least: int = 1) -> bool:
    return type(value) is int and least <= value < 2**63


def _unknown(grid: Any) -> ShardFormatError:
    return ShardFormatError(
        "chunk_grid not supported", expected="lengths that cover the shape", got=repr(grid)[:160]
    )
