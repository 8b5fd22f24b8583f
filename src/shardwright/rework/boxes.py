"""Boxes of elements of an array, and the cells of a grid that they touch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Box = tuple[tuple[int, int], ...]  # [start, stop) along each axis, none of them empty


def box_at(start: Sequence[int], shape: Sequence[int]) -> Box:
    return tuple((first, first + n) for first, n in zip(start, shape, strict=True))


def cells(box: Box, size: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the coordinates, row-major, of the grid cells of ``size`` that a box touches."""
    return itertools.product(
        *(range(start // n, -(-stop // n)) for (start, stop), n in zip(box, size, strict=True))
    )


def common_box(one: Box, other: Box) -> Box | None:
    """Returns the box that two have in common, None if there is none."""
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return box if all(start < stop for start, stop in box) else None


def part_of(box: Box, origin: Sequence[int]) -> tuple[slice, ...]:
    """Returns where a box lies in an array whose first element is at ``origin``."""
    return tuple(slice(start - o, stop - o) for (start, stop), o in zip(box, origin, strict=True))


def source_box(box: Box, factors: Sequence[int], shape: Sequence[int]) -> Box:
    """Returns the box of an array of this ``shape`` that a box of the level above is made of."""
    sizes = zip(box, factors, shape, strict=True)
    return tuple((start * f, min(stop * f, n)) for (start, stop), f, n in sizes)
