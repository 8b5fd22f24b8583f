"""The check of frames as a user gives them: shape, dtype, place and metadata, of one frame or of many at
once, before any is taken. The same for the client and for the writer in this process."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import FrameDtypeError, FrameIndexError, FrameShapeError, MetadataError
from shardwright.wire.descriptor import METADATA_FIELDS, descriptor_dtype
from shardwright.wire.messages import MAX_POSITION

from .grid import place_in_image

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from .grid import Grid
    from .spec import ArraySpec


class FrameCheck:
    """Checks frames of one array. Changes nothing, so any thread may call it.

    ``no_metadata``: what ``metadata`` returns for a frame that has none.
    """

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        self._shape = spec.frame_shape
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._frame_fields = spec.frame_fields
        self._fields = spec.metadata_fields
        self._grid = grid
        self.no_metadata = (math.nan,) * len(self._fields)

    def position(
        self, pixels: npt.NDArray[Any], index: Sequence[int] | None, frame_id: int | None
    ) -> int | None:
        """Returns the position of the frame: that of ``index`` (acquisition order), else ``frame_id``; None
        if neither is given, since its position is then the count of frames. Raises ``FrameShapeError``,
        ``FrameDtypeError``, ``FrameIndexError``."""
        if pixels.shape != self._shape:
            raise wrong_shape(self._shape, pixels.shape)
        if pixels.dtype != self._dtype:
            raise wrong_dtype(self._dtype, pixels.dtype)
        if index is None:
            return None if frame_id is None else self.nth_position(operator.index(frame_id))
        if frame_id is not None and not 0 <= operator.index(frame_id) <= MAX_POSITION:
            raise _wrong_id(MAX_POSITION, frame_id)
        return self._grid.position_of(tuple(operator.index(i) for i in index))

    def nth_position(self, place: int) -> int:
        """Returns the position of the frame at a place in acquisition order, counted from 0. Raises
        ``FrameIndexError``."""
        return self._grid.check_position(self._grid.first + place)

    def metadata(self, metadata: Mapping[str, float]) -> tuple[float, ...]:
        """Returns one float for each of the array's ``metadata_fields``, NaN where none is given. Raises
        ``MetadataError`` for another name or a value that is no number."""
        values = {}
        for name, value in metadata.items():
            self._check_name(name)
            try:
                values[name] = float(value)
            except (TypeError, ValueError):
                raise MetadataError(
                    f"metadata field {name!r} is not a number", expected="a number", got=repr(value)[:80]
                ) from None
        return tuple(values.get(name, math.nan) for name in self._fields)

    def stack(self, frames: npt.ArrayLike) -> npt.NDArray[Any]:
        """Returns ``frames`` as one array (count, rows, columns), uncopied where it is one. Raises
        ``FrameShapeError``, ``FrameDtypeError``."""
        pixels = frames if type(frames) is np.ndarray else np.asarray(frames)
        if pixels.ndim != 3 or pixels.shape[1:] != self._shape:
            raise FrameShapeError(
                "wrong shape of several frames",
                expected=f"(count, {self._shape[0]}, {self._shape[1]})",
                got=pixels.shape,
            )
        if pixels.dtype != self._dtype:
            raise wrong_dtype(self._dtype, pixels.dtype)
        return pixels

    def records(
        self,
        count: int,
        indices: npt.ArrayLike | None,
        frame_ids: npt.ArrayLike | None,
        metadata: Mapping[str, npt.ArrayLike] | None,
    ) -> npt.NDArray[np.void]:
        """Returns descriptor_dtype[count], complete but for sequence, flags and times; without ``indices``
        and ``frame_ids`` also but for the position.

        Raises ``FrameIndexError``, ``MetadataError``.
        """
        records = np.zeros(count, descriptor_dtype(len(self._frame_fields)))
        records["frame_id"] = -1
        if frame_ids is not None:
            last = MAX_POSITION if indices is not None else place_in_image(self._grid.last_position)
            records["frame_id"] = _checked_ids(frame_ids, count, last)
            records["position"] = self._grid.first + records["frame_id"]
        if indices is not None:
            shape = (count, len(self._grid.counts))
            records["position"] = self._grid.positions_of(_integers(indices, "indices", shape))
        for name in METADATA_FIELDS:
            records[name] = np.nan
        if self._frame_fields:
            records["further"] = np.nan
        for name, values in (metadata or {}).items():
            column = self._column(name, values, count)
            if name in METADATA_FIELDS:
                records[name] = column
            else:
                records["further"][:, self._frame_fields.index(name)] = column
        return records

    def _column(self, name: str, values: npt.ArrayLike, count: int) -> npt.NDArray[np.float64]:
        """Returns one number for all frames, or one for each."""
        self._check_name(name)
        try:
            column = np.asarray(values, np.float64)
        except (TypeError, ValueError):
            raise MetadataError(
                f"metadata field {name!r} is not of numbers", expected="numbers", got=repr(values)[:80]
            ) from None
        if column.shape not in ((), (count,)):
            raise MetadataError(
                f"metadata field {name!r} does not fit the frames",
                expected=f"one number, or {count}",
                got=column.shape,
            )
        return column

    def _check_name(self, name: str) -> None:
        if name not in self._fields:
            hint = "Name it in the array's frame_fields to give it a column"
            raise MetadataError(
                "unknown metadata field",
                expected=f"one of {', '.join(self._fields)}",
                got=repr(name),
                hint=hint,
            )


def wrong_shape(expected: tuple[int, int], got: tuple[int, ...]) -> FrameShapeError:
    """Returns the error for a frame whose (rows, columns) differ from the array's."""
    return FrameShapeError("wrong frame shape", expected=expected, got=got)


def wrong_dtype(expected: object, got: object) -> FrameDtypeError:
    """Returns the error for a frame whose dtype differs from the array's."""
    return FrameDtypeError("wrong frame dtype", expected=expected, got=got)


def _wrong_id(last: int, got: int) -> FrameIndexError:
    return FrameIndexError("frame id outside the array", expected=f"0 to {last}", got=got)


def _checked_ids(frame_ids: npt.ArrayLike, count: int, last: int) -> npt.NDArray[np.int64]:
    ids = _integers(frame_ids, "frame ids", (count,))
    outside = (ids < 0) | (ids > last)
    if outside.any():
        raise _wrong_id(last, int(ids[outside][0]))
    return ids


def _integers(values: npt.ArrayLike, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Returns ``values`` as int64; an unsigned number that is too large becomes negative, and is refused as
    well."""
    array = np.asarray(values)
    if array.shape != shape or (array.size and array.dtype.kind not in "iu"):
        raise FrameIndexError(
            f"{name} that do not fit the frames",
            expected=f"integers of shape {shape}",
            got=f"{array.dtype} of shape {array.shape}",
        )
    return array.astype(np.int64)
