"""How large the pieces are in which a new shard is made: as much of it at once as memory allows and reading
profits from.

A region is a box of whole chunks of the new shard. Source chunks that reach past a region are decoded once
for each region they touch, so larger regions read less; ``peak_bytes`` says what a region of a given size
costs, and grows with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.model.errors import BudgetError

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_MEMORY_BYTES = 512 << 20

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RegionPlan:
    """``shape``: of one region, in elements of the new array. ``read_factor``: how often a source element is
    decoded, on average, at most. ``peak_bytes``: the most that one task holds in arrays, beside the
    interpreter and its libraries."""

    shape: Shape
    peak_bytes: int
    read_factor: float


def plan_regions(
    chunk: Shape,
    shard_chunks: Shape,
    source_chunk: tuple[float, ...],
    peak_bytes: Callable[[Shape], int],
    limit_bytes: int,
) -> RegionPlan:
    """``source_chunk``: of a source chunk, in elements of the new array. Raises ``BudgetError`` when not even
    one chunk fits ``limit_bytes``."""
    counts = [1] * len(chunk)

    def shape_of(counts: list[int]) -> Shape:
        return tuple(n * c for n, c in zip(counts, chunk, strict=True))

    least = peak_bytes(shape_of(counts))
    if least > limit_bytes:
        raise BudgetError(
            "one chunk of the new array does not fit the memory of one worker",
            expected=f"{least} bytes or more",
            got=limit_bytes,
        )
    while True:
        factors = [_read_factor(n * c, s) for n, c, s in zip(counts, chunk, source_chunk, strict=True)]
        best, gain = counts, 1.0
        for axis, (count, most) in enumerate(zip(counts, shard_chunks, strict=True)):
            for longer in {min(2 * count, most), most} - {count}:
                grown = [*counts[:axis], longer, *counts[axis + 1 :]]
                saved = factors[axis] / _read_factor(longer * chunk[axis], source_chunk[axis])
                if saved > gain and peak_bytes(shape_of(grown)) <= limit_bytes:
                    best, gain = grown, saved
        if best is counts:
            return RegionPlan(shape_of(counts), peak_bytes(shape_of(counts)), math.prod(factors))
        counts = best


def _read_factor(length: int, source: float) -> float:
    """How many source elements are decoded for one of a region of this length, at worst."""
    if length % source == 0:
        return 1.0
    touched = source if source % length == 0 else (math.ceil((length - 1) / source) + 1) * source
    return touched / length
