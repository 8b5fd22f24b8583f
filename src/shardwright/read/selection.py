"""The elements that NumPy's selection takes of an array, as the boxes that hold them.

    key of a user ──▶ Selection: of each axis the elements that it needs ──▶ boxes to read ──▶ a block
                      and a key of the block, by which NumPy selects      ◀──────────────────┘

Only what is needed is read: a step, or indices, that leave chunks out make several runs along an axis, and of
points only the boxes that hold one are read. What a key means is left to NumPy, which gets one that means the
same on the block.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_SPREAD = 16  # elements of a block for each point
_SMALL_BLOCK = 1 << 22  # elements, whatever the spread

Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class AxisRun:
    """Elements along one axis that one box holds: [low, high), of which ``within`` are taken and go to
    ``at``. ``within`` None: all."""

    low: int
    high: int
    at: slice
    within: slice | np.ndarray | None = None

    @property
    def taken(self) -> np.ndarray:
        """int64[n]: the elements that are taken, counted from ``low``."""
        every = np.arange(self.high - self.low)
        return every if self.within is None else every[self.within]

    @property
    def count(self) -> int:
        count: int = self.at.stop - self.at.start
        return count

    def halves(self, chunk: int) -> tuple[AxisRun, ...]:
        """Returns two runs for this one, divided where a chunk ends; itself if it is within one."""
        first, last = self.low // chunk, (self.high - 1) // chunk
        if first == last:
            return (self,)
        border = (first + last + 1) // 2 * chunk
        if self.within is None:
            middle = self.at.start + border - self.low
            return (
                AxisRun(self.low, border, slice(self.at.start, middle)),
                AxisRun(border, self.high, slice(middle, self.at.stop)),
            )
        elements = self.low + self.taken
        count = int(np.searchsorted(elements, border))
        parts = (elements[:count], self.at.start), (elements[count:], self.at.start + count)
        return tuple(_run_of(part, at) for part, at in parts if part.size)


@dataclass(frozen=True)
class Selection:
    """The elements that a key takes of an array. ``runs``: of each axis. ``block``: the shape of all that
    they take. ``key``: of the block. ``points``: (axes, int64[n, axes]), which runs along these axes belong
    together; of the others all do."""

    runs: tuple[tuple[AxisRun, ...], ...]
    block: Coordinates
    key: tuple[Any, ...]
    points: tuple[tuple[int, ...], np.ndarray]

    @property
    def is_whole(self) -> bool:
        """True if the block is the result."""
        return all(isinstance(each, slice) and each == slice(None) for each in self.key)

    @property
    def is_reshaped(self) -> bool:
        """True if the result is the block but for axes of one element that it has or lacks."""
        taken = [each for each in self.key if each is not None]
        return all(
            isinstance(each, int) or (isinstance(each, slice) and each == slice(None)) for each in taken
        )

    @property
    def shape(self) -> Coordinates:
        """The shape of the result."""
        found: Coordinates = np.broadcast_to(np.False_, self.block)[self.key].shape
        return found

    def boxes(self) -> Iterator[tuple[AxisRun, ...]]:
        """Yields, of each box that holds something of the result, its run along each axis."""
        axes, together = self.points
        for chosen in together.tolist():
            runs = list(self.runs)
            for axis, number in zip(axes, chosen, strict=True):
                runs[axis] = (runs[axis][number],)
            yield from itertools.product(*runs)


def select(key: Any, shape: Coordinates, chunk_shape: Coordinates) -> Selection:
    """Returns what ``key`` takes of an array of this shape. Raises ``IndexError`` as NumPy does, and for
    points so far apart that a block of all combinations of their indices is far larger than they are."""
    runs: list[tuple[AxisRun, ...]] = []
    block: list[int] = []
    of_block: list[Any] = []
    indices: dict[int, np.ndarray] = {}  # by axis
    for each in _one_for_each_axis(key, len(shape)):
        if each is None:
            of_block.append(None)
            continue
        axis = len(runs)
        needed, rest = _along(each, axis, shape[axis])
        runs.append(tuple(_runs_of(needed, chunk_shape[axis])))
        block.append(len(needed))
        of_block.append(rest)
        if isinstance(rest, np.ndarray):
            indices[axis] = rest
    return Selection(tuple(runs), tuple(block), tuple(of_block), _points(indices, runs, block))


def _one_for_each_axis(key: Any, rank: int) -> list[Any]:
    """Returns the key with an item for each axis, and the ``None`` of new ones."""
    given = list(key) if isinstance(key, tuple) else [key]
    keys: list[Any] = []
    for each in given:
        if isinstance(each, (list, np.ndarray)) and not (isinstance(each, np.ndarray) and each.ndim == 0):
            keys += _indices(np.asarray(each))
        else:
            keys.append(each)
    axes = sum(each is not None and each is not Ellipsis for each in keys)
    if axes > rank:
        raise IndexError(f"too many indices: the array has {rank} axes, but {axes} were indexed")
    if sum(each is Ellipsis for each in keys) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = next((i for i, each in enumerate(keys) if each is Ellipsis), len(keys))
    return [*keys[:at], *[slice(None)] * (rank - axes), *keys[at + 1 :]]


@dataclass(frozen=True)
class _Mask:
    """One axis of a mask: the indices of its true elements, and its length."""

    indices: np.ndarray
    size: int


def _indices(array: np.ndarray) -> list[Any]:
    """Returns the indices of an array in a key: those of a mask for each of its axes."""
    if array.dtype == np.bool_:
        return [_Mask(found, size) for found, size in zip(array.nonzero(), array.shape, strict=True)]
    if array.size and array.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return [array]


def _along(key: Any, axis: int, size: int) -> tuple[range | np.ndarray, Any]:
    """Returns the elements that a key needs along an axis, ascending, and the key of these."""
    if isinstance(key, slice):
        start, stop, step = key.indices(size)
        needed = range(start, stop, step)
        return (needed, slice(None)) if step > 0 else (needed[::-1], slice(None, None, -1))
    if isinstance(key, _Mask):
        if key.size != size:
            raise IndexError(f"a mask has {key.size} elements along axis {axis}, the array {size}")
        return _unique(key.indices)
    if isinstance(key, np.ndarray) and key.ndim:
        low, high = (int(key.min()), int(key.max())) if key.size else (0, -1)
        if low < -size or high >= size:
            raise _out_of_bounds(low if low < -size else high, axis, size)
        indices = key.astype(np.int64)  # now that none is too large for it
        return _unique(np.where(indices < 0, indices + size, indices))
    if isinstance(key, (bool, np.bool_)):
        raise IndexError("a single True or False selects nothing here")
    try:
        index = operator.index(key)
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None and integer or boolean arrays are valid "
            f"indices, not {type(key).__name__}"
        ) from None
    if not -size <= index < size:
        raise _out_of_bounds(index, axis, size)
    return range(index % size, index % size + 1), 0


def _out_of_bounds(index: int, axis: int, size: int) -> IndexError:
    return IndexError(f"index {index} is out of bounds for axis {axis} with size {size}")


def _unique(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    needed, inverse = np.unique(indices, return_inverse=True)
    return needed, inverse.reshape(indices.shape)


def _runs_of(needed: range | np.ndarray, chunk: int) -> Iterator[AxisRun]:
    """Yields the runs along an axis: elements of one chunk, or of chunks side by side, are in one."""
    if not len(needed):
        return
    if isinstance(needed, range) and needed.step <= chunk:
        within = None if needed.step == 1 else slice(None, None, needed.step)
        yield AxisRun(needed[0], needed[-1] + 1, slice(0, len(needed)), within)
        return
    elements = np.asarray(needed, np.int64)
    apart = np.flatnonzero(np.diff(elements // chunk) > 1) + 1
    for first, stop in itertools.pairwise([0, *apart.tolist(), elements.size]):
        yield _run_of(elements[first:stop], first)


def _run_of(elements: np.ndarray, at: int) -> AxisRun:
    low, high = int(elements[0]), int(elements[-1]) + 1
    within = None if high - low == elements.size else elements - low
    return AxisRun(low, high, slice(at, at + elements.size), within)


def _points(
    indices: dict[int, np.ndarray], runs: Sequence[tuple[AxisRun, ...]], block: Sequence[int]
) -> tuple[tuple[int, ...], np.ndarray]:
    """Returns ``Selection.points``: of one array of indices all runs are needed."""
    if len(indices) < 2:
        return (), np.zeros((1, 0), np.int64)
    try:
        points = np.broadcast_arrays(*indices.values())
    except ValueError as error:
        raise IndexError(f"arrays of indices do not go together: {error}") from None
    wanted = points[0].size
    if math.prod(block) > _SMALL_BLOCK and math.prod(block[axis] for axis in indices) > MOST_SPREAD * wanted:
        raise IndexError(
            f"{wanted} points would need a block of {math.prod(block)} elements: read the part of the array "
            "that holds them, and index that"
        )
    run_of = [np.repeat(np.arange(len(runs[axis])), [run.count for run in runs[axis]]) for axis in indices]
    numbers = [of[each.ravel()] for of, each in zip(run_of, points, strict=True)]
    return tuple(indices), np.unique(np.stack(numbers, axis=1), axis=0)
