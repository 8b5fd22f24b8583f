"""The shapes of an array's levels that are written while frames come: pure arithmetic.

Level n has half the elements of level n-1 along the halved axes. A slab of level n holds the same frames as
the slab of level 0 with its number: along a halved frame axis the chunks are halved with the array, so that
no window reaches into another slab. Rows and columns of a chunk stay as they are, as far as the level has
that many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

FRAME_AXES = 2  # the last ones: rows and columns of a frame


class LevelShape(NamedTuple):
    """One level, along each axis in the order of acquisition. ``factors``: 1 or 2, from the level below;
    ``counts``: elements, 0 for an unlimited axis; ``chunk``: elements of a chunk."""

    factors: tuple[int, ...]
    counts: tuple[int, ...]
    chunk: tuple[int, ...]


def level_shapes(
    names: Sequence[str], counts: Sequence[int], chunk: Sequence[int], halved: Sequence[str], levels: int
) -> tuple[LevelShape, ...]:
    """Returns ``levels`` levels above an array with ``counts`` (0: unlimited) and ``chunk`` elements along
    the axes ``names``, of which those in ``halved`` are halved each time; an axis of one element stays.
    Raises ``ValueError``."""
    if unknown := [name for name in halved if name not in names]:
        raise ValueError(f"levels: there is no axis {unknown[0]!r} to halve, expected some of {list(names)}")
    _check_frame_axes(names, counts, chunk, halved, levels)
    shapes: list[LevelShape] = []
    below = LevelShape((1,) * len(names), tuple(counts), tuple(chunk))
    planes = (*[False] * (len(names) - FRAME_AXES), *[True] * FRAME_AXES)
    for number in range(levels):
        factors = tuple(
            2 if name in halved and n > 1 else 1 for name, n in zip(names, below.counts, strict=True)
        )
        if 2 not in factors:
            raise ValueError(f"levels: too many, no axis is left to halve; expected at most {number}")
        above = tuple(-(-n // f) for n, f in zip(below.counts, factors, strict=True))
        chunks = tuple(
            min(c, n) if plane else -(-c // f)
            for c, n, f, plane in zip(below.chunk, above, factors, planes, strict=True)
        )
        below = LevelShape(factors, above, chunks)
        shapes.append(below)
    return tuple(shapes)


def _check_frame_axes(
    names: Sequence[str], counts: Sequence[int], chunk: Sequence[int], halved: Sequence[str], levels: int
) -> None:
    """Raises ``ValueError`` if a window would reach into another slab, or its size is not known yet."""
    for number, (name, n, size) in enumerate(list(zip(names, counts, chunk, strict=True))[:-FRAME_AXES]):
        if name not in halved:
            continue
        if number == 0 or n == 0:
            raise ValueError(
                f"levels: {name!r} ends where the frames end, so its last window is not known yet; halve it "
                f"later with `shardwright pyramid`"
            )
        if size < n and size % 2**levels:
            raise ValueError(
                f"levels: to halve {name!r} {levels} times while frames come, its chunk_size must be a "
                f"multiple of {2**levels}, or all {n}; got {size}"
            )
