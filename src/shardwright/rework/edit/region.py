"""Regions of an array, as a user names them: by axis, or by frames in the order of acquisition; and the
values for one.

    {"t": slice(0, 10), "y": 7}      box [0, 10) x [7, 8) x all of x
    slice(10, 20), of (t, z)         at most a box for each end along each axis, and one for what is between
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.array.as_written import check_axes, is_whole
from shardwright.model.errors import FrameDtypeError, FrameIndexError, FrameShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardwright.read.store import StoredArray
    from shardwright.rework.boxes import Box

Region = Mapping[str, Any] | int | slice | tuple[int, int]  # by axis, or of frames
_NUMBERS = "biufc"
_CHECKED_BYTES = 16 << 20  # of values that are compared at once


def axis_names(array: StoredArray) -> list[str]:
    """Returns the names of its axes; the number of an axis without one."""
    names = array.dimension_names or [None] * len(array.shape)
    return [str(axis) if name is None else name for axis, name in enumerate(names)]


def box_of(array: StoredArray, region: Mapping[str, Any]) -> tuple[Box, tuple[int, ...]]:
    """Returns the box of a region, and the axes of which it is a single element. ``region``: by axis a
    number, a slice without a step, or (start, stop); an axis that is not named is taken whole. Raises
    ``FrameIndexError``."""
    names = axis_names(array)
    check_axes(region, names, array.path)
    if twice := [name for name in region if names.count(name) > 1]:
        raise FrameIndexError(f"{array.path} has two axes {twice[0]!r}, which a region cannot tell apart")
    box = []
    for name, count in zip(names, array.shape, strict=True):
        box.append(checked_range(name, region.get(name, slice(None)), count))
    single = [axis for axis, name in enumerate(names) if is_whole(region.get(name))]
    return tuple(box), tuple(single)


def checked_range(name: str, asked: Any, count: int) -> tuple[int, int]:
    """Returns the [start, stop) that is asked for, of ``count`` elements. Raises ``FrameIndexError``."""
    start, stop = _range_of(name, asked, count)
    if not 0 <= start < stop <= count:
        raise FrameIndexError(
            f"{name} {start}:{stop} is not within the array",
            expected=f"0 <= start < stop <= {count}",
            hint="Negative numbers are not counted from the end",
        )
    return start, stop


def _range_of(name: str, asked: Any, count: int) -> tuple[int, int]:
    if is_whole(asked):
        return int(asked), int(asked) + 1
    if isinstance(asked, slice) and asked.step in (None, 1):
        asked = (0 if asked.start is None else asked.start, count if asked.stop is None else asked.stop)
    if isinstance(asked, tuple | list) and [*map(is_whole, asked)] == [True, True]:
        return operator.index(asked[0]), operator.index(asked[1])
    is_several = isinstance(asked, tuple | list) and any(isinstance(each, slice) for each in asked)
    raise FrameIndexError(
        f"a range of {name}",
        expected="a number, or start and stop without a step",
        got=repr(asked)[:80],
        hint="Several axes are given by name: {'t': slice(0, 2), 'y': 7}" if is_several else None,
    )


def frame_boxes(counts: Sequence[int], first: int, stop: int) -> Iterator[Box]:
    """Yields the boxes that hold the cells [first, stop) of a grid of ``counts``, numbered row-major."""
    if first >= stop:
        return
    if not counts:
        yield ()
        return
    inner = math.prod(counts[1:])
    low, high = -(-first // inner), stop // inner
    if low > high:  # both ends are in one step of the first axis
        parts = [(high, first - high * inner, stop - high * inner)]
    else:
        parts = [(low - 1, first - (low - 1) * inner, inner)] if first < low * inner else []
        parts += [(high, 0, stop - high * inner)] if high * inner < stop else []
    for step, begin, end in parts:
        for rest in frame_boxes(counts[1:], begin, end):
            yield ((step, step + 1), *rest)
    if low < high:
        yield ((low, high), *((0, count) for count in counts[1:]))


def frames_of_box(frames: npt.NDArray[Any], first: int, counts: Sequence[int], box: Box) -> npt.NDArray[Any]:
    """Returns those of ``frames`` that lie in a box of ``frame_boxes``, of its shape and not copied;
    ``first`` is the number of the first of them."""
    begin = int(np.ravel_multi_index([start for start, _ in box], counts)) - first if counts else 0
    shape = [stop - start for start, stop in box]
    return frames[begin : begin + math.prod(shape)].reshape(*shape, *frames.shape[1:])


def checked_values(
    array: StoredArray, box: Box, single: Sequence[int], values: npt.ArrayLike
) -> npt.NDArray[Any]:
    """Returns the values of a box, of its shape and not copied: one for all elements, or of the box's shape,
    with or without the axes of which it is a single element.

    Raises ``FrameShapeError``, and ``FrameDtypeError`` for values that the array's dtype cannot hold.
    """
    shape = tuple(stop - start for start, stop in box)
    short = tuple(n for axis, n in enumerate(shape) if axis not in single)
    if isinstance(values, np.ndarray) or _text_of(array) is None:
        found = np.asanyarray(values)
    else:  # an array of text would lose zeros at the end of each
        found = np.array(values, object)
    if found.ndim and found.shape not in (shape, short):
        raise FrameShapeError(
            "the values have another shape than the region",
            expected=" or ".join(map(str, dict.fromkeys((shape, short)))),
            got=found.shape,
            hint="Values are not repeated along an axis; one single value fills a region",
        )
    _check_dtype(array, found)
    return np.broadcast_to(found, shape) if not found.ndim else found.reshape(shape)


def _check_dtype(array: StoredArray, values: npt.NDArray[Any]) -> None:
    """Raises ``FrameDtypeError`` unless each value is one of the array's dtype."""
    dtype, text = array.dtype, _text_of(array)
    if text is not None:
        if not _are_texts(values, text, dtype):
            raise FrameDtypeError(
                "the array cannot hold these values",
                expected=f"{text.__name__} of the dtype {dtype.name}",
                got=values.dtype.name if values.size != 1 else repr(values.item())[:80],
            )
        return
    same = values.dtype == dtype or values.dtype.newbyteorder("=") == dtype.newbyteorder("=")
    if same or (values.dtype.kind in _NUMBERS and np.can_cast(values.dtype, dtype, "safe")):
        return
    if (
        values.dtype.kind in _NUMBERS
        and dtype.kind in _NUMBERS
        and "b" not in (values.dtype.kind, dtype.kind)
    ):
        rows = values.reshape(1) if not values.ndim else values
        step = max(1, _CHECKED_BYTES // max(1, rows[:1].nbytes))
        if all(_are_held(rows[i : i + step], dtype) for i in range(0, len(rows), step)):
            return
    raise FrameDtypeError(
        "the array cannot hold these values without loss",
        expected=dtype.name,
        got=values.dtype.name if values.size != 1 else repr(values.item())[:80],
        hint=f"Round or clip them first, then values.astype({dtype.name!r})",
    )


def _text_of(array: StoredArray) -> type | None:
    """Returns the type of elements that are text, str or bytes; None for any other array."""
    element = type(array.fill_element.item())
    return element if array.dtype.kind in "TOUS" and element in (str, bytes) else None


def _are_texts(values: npt.NDArray[Any], text: type, dtype: np.dtype[Any]) -> bool:
    """Returns whether all values are of the type ``text``, and none is too long for an array's dtype."""
    if values.dtype.kind == "O":
        if not all(isinstance(value, text) for value in values.flat):
            return False
        if dtype.kind in "TO":
            return True
        most = dtype.itemsize // (4 if text is str else 1)
        return all(len(value) <= most for value in values.flat)
    if values.dtype.kind not in ("UT" if text is str else "S"):
        return False
    return dtype.kind in "TO" or np.can_cast(values.dtype, dtype, "safe")


def _are_held(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    with np.errstate(all="ignore"):
        if values.dtype.kind == "c" and dtype.kind != "c":
            return False
        cast = values.astype(dtype)
        if dtype.kind in "iu":  # 2.0**64 as uint64 comes back as 2.0**64
            info = np.iinfo(dtype)
            if any(
                not info.min <= int(v) <= info.max for v in (values.min(), values.max()) if np.isfinite(v)
            ):
                return False
        if dtype.kind == "c" and values.dtype.kind != "c":
            cast = cast.real
        return bool(np.array_equal(cast.astype(values.dtype), values, equal_nan=dtype.kind in "fc"))
