"""The shapes of an array's levels that are written while frames come: pure arithmetic.

Level n has 1/f of the elements of level n-1 along each axis of factor f. A slab of level n holds the same
frames as the slab of level 0 with its number: along a frame axis the chunks get smaller with the array, so
that no window reaches into another slab. Rows and columns of a chunk stay as they are, as far as the level
has that many.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FRAME_AXES = 2  # the last ones: rows and columns of a frame
HALVED = MappingProxyType({"y": 2, "x": 2})  # the factors where none are given
MAX_FACTOR = 8
MAX_WINDOW = 2**12  # elements: the kernels' sums of as many 16-bit pixels fit into 32 bits


class LevelShape(NamedTuple):
    """One level, along each axis in the order of acquisition. ``factors``: from the level below; ``counts``:
    elements, 0 for an unlimited axis; ``chunk``: elements of a chunk."""

    factors: tuple[int, ...]
    counts: tuple[int, ...]
    chunk: tuple[int, ...]


def table_entries(target_rows: int, source_rows: int, width: int) -> int:
    """Returns the int64 elements of a table of ``kernels.downsample`` for as many rows of a level, each made
    of ``source_rows`` of ``width`` elements, and of the sums behind it."""
    return target_rows * source_rows + 4 * width


def check_factors(names: Sequence[str], factors: Mapping[str, int]) -> None:
    """Raises ``ValueError`` for factors of which an array with the axes ``names`` can have no level."""
    if unknown := [name for name in factors if name not in names]:
        raise ValueError(f"factors: there is no axis {unknown[0]!r}, expected some of {', '.join(names)}")
    for name, factor in factors.items():
        if not 1 <= factor <= MAX_FACTOR:
            raise ValueError(f"factors: expected 1 to {MAX_FACTOR} along {name}, got {factor}")
    if (size := math.prod(factors.values())) > MAX_WINDOW:
        raise ValueError(
            f"factors: a window has too many elements, expected at most {MAX_WINDOW}, got {size}"
        )


def factors_above(names: Sequence[str], counts: Sequence[int], factors: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the factor of each axis, 1 where ``factors`` names none, from an array with ``counts`` elements
    to the level above; at most the elements that there are, and 1 along an unlimited axis (0)."""
    return tuple(max(1, min(factors.get(name, 1), n)) for name, n in zip(names, counts, strict=True))


def level_shapes(
    names: Sequence[str],
    counts: Sequence[int],
    chunk: Sequence[int],
    factors: Mapping[str, int],
    levels: int,
) -> tuple[LevelShape, ...]:
    """Returns ``levels`` levels above an array with ``counts`` (0: unlimited) and ``chunk`` elements along
    the axes ``names``. Raises ``ValueError``."""
    check_factors(names, factors)
    _check_frame_axes(names, counts, chunk, factors, levels)
    shapes: list[LevelShape] = []
    below = LevelShape((1,) * len(names), tuple(counts), tuple(chunk))
    planes = (*[False] * (len(names) - FRAME_AXES), *[True] * FRAME_AXES)
    for number in range(levels):
        steps = factors_above(names, below.counts, factors)
        if max(steps) == 1:
            raise ValueError(f"levels: too many, no axis is left to reduce; expected at most {number}")
        above = tuple(-(-n // f) for n, f in zip(below.counts, steps, strict=True))
        chunks = tuple(
            min(c, n) if plane else -(-c // f)
            for c, n, f, plane in zip(below.chunk, above, steps, planes, strict=True)
        )
        below = LevelShape(steps, above, chunks)
        shapes.append(below)
    return tuple(shapes)


def _check_frame_axes(
    names: Sequence[str],
    counts: Sequence[int],
    chunk: Sequence[int],
    factors: Mapping[str, int],
    levels: int,
) -> None:
    """Raises ``ValueError`` if a window would reach into another slab, or its size is not known yet."""
    for number, (name, n, size) in enumerate(list(zip(names, counts, chunk, strict=True))[:-FRAME_AXES]):
        factor = factors.get(name, 1)
        if factor == 1:
            continue
        if number == 0 or n == 0:
            raise ValueError(
                f"levels: {name!r} ends where the frames end, so its last window is not known yet; reduce it "
                f"later with `shardwright pyramid`"
            )
        whole = factor**levels
        if size < n and size % whole:
            better = -(-size // whole) * whole
            raise ValueError(
                f"levels: to reduce {name!r} by {factor} while frames come, {levels} times, its chunk_size "
                f"must be a multiple of {whole}, or all {n}; got {size}, better is {min(better, n)}"
            )


def fitting_shards(
    shape: tuple[int, ...], chunk_shape: tuple[int, ...], shard_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Returns the shape of shards no longer than the array needs, so that a small level has a small index; in
    whole chunks."""
    return tuple(
        min(s, math.ceil(n / c) * c) if n else s
        for n, c, s in zip(shape, chunk_shape, shard_shape, strict=True)
    )
