"""The shards of a new array that can hold anything but fill value: those that a shard of the source reaches.

The shape of an array may name any number of shards, and one wrong frame index makes it name 2^40 of them.
Work and memory therefore follow the shards that the source has, which a listing of its folder tells, and its
record: a shard that was all fill value when it was sealed has no file. All other shards read as fill value
before and after, and need no task.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import BudgetError
from shardwright.shard.shard_sums import ShardSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardwright.read.store import StoredArray

Coordinates: TypeAlias = tuple[int, ...]
Numbers: TypeAlias = npt.NDArray[np.int64]

_LEAST_MERGED = 1 << 12  # numbers
_BYTES_PER_SHARD = 32  # its number, once sorted, once as it came, and once more while both are merged


def written_shards(array: StoredArray) -> Iterator[Coordinates]:
    """Yields the coordinates of the shards that have a file or a line in the record, some twice. Raises
    ``ShardFormatError``, ``StorageError``."""
    for _, coordinates in array.shard_files():
        if coordinates is not None:
            yield coordinates
    for key, known in ShardSums(array.path).read().items():
        if None in known and (coordinates := array.coordinates_of(key)) is not None:
            yield coordinates


def shards_to_make(
    written: Iterable[Coordinates],
    source: StoredArray,
    target: StoredArray,
    factors: Sequence[int],
    memory_bytes: int,
) -> Numbers:
    """Returns the numbers (int64[n], sorted; row-major in the grid of ``target``) of the shards of ``target``
    that ``written`` shards of ``source`` reach. ``factors``: elements of the source for one of the target
    along each axis. Raises ``BudgetError`` for more of them than fit ``memory_bytes``."""
    most = memory_bytes // _BYTES_PER_SHARD
    if target.shards_in_shape >= 2**63:
        raise _too_many(target, expected="fewer than 2^63 in its shape", got=target.shards_in_shape)
    found, coming, count = np.empty(0, np.int64), [np.empty(0, np.int64)], 0
    for shard in written:
        if not source.contains_shard(shard):  # another program has cropped the array
            continue
        ranges = [
            range(i * s // f // t, (min((i + 1) * s, n) - 1) // f // t + 1)
            for i, s, n, f, t in zip(
                shard, source.shard_shape, source.shape, factors, target.shard_shape, strict=True
            )
        ]
        reached = math.prod(map(len, ranges))
        if reached <= most:
            coming.append(_numbers(ranges, target.grid_shape))
        count += reached
        if count > min(most, found.size + max(found.size, _LEAST_MERGED)):
            found, coming = np.unique(np.concatenate([found, *coming])), []
            count = found.size
        if max(count, reached) > most:
            raise _too_many(target, expected=f"at most {most} that the source fills", got=f"more than {most}")
    return np.unique(np.concatenate([found, *coming]))


def _numbers(ranges: list[range], grid_shape: Coordinates) -> Numbers:
    """Returns the numbers in a grid of the cells of a box."""
    numbers = np.zeros(1, np.int64)
    for along, length in zip(ranges, grid_shape, strict=True):
        numbers = (numbers[:, None] * length + np.arange(along.start, along.stop, dtype=np.int64)).ravel()
    return numbers


def _too_many(target: StoredArray, *, expected: str, got: object) -> BudgetError:
    return BudgetError(
        f"too many shards for the new array {target.path.name}",
        expected=expected,
        got=got,
        hint="Give more --memory, or larger --shards (--chunks of an array without shards)",
    )


def shard_coordinates(array: StoredArray, number: int) -> Coordinates:
    """Returns the coordinates of shard ``number`` of the grid, row-major."""
    return tuple(int(i) for i in np.unravel_index(number, array.grid_shape)) if array.shape else ()


def decoded_bytes(array: StoredArray, shard: Coordinates) -> int:
    """Returns the bytes of the elements of a shard that lie inside the array's shape."""
    inside = (min(s, n - i * s) for i, s, n in zip(shard, array.shard_shape, array.shape, strict=True))
    return math.prod(inside) * array.dtype.itemsize
