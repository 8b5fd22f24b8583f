"""Describes many frames at once as one array of descriptors: the arguments of ``append_many``, checked as a
whole before any frame is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import FrameDtypeError, FrameIndexError, FrameShapeError
from shardwright.wire.descriptor import METADATA_FIELDS, descriptor_dtype
from shardwright.wire.messages import MAX_POSITION
from shardwright.wire.metadata import checked_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from .grid import Grid
    from .spec import ArraySpec


def checked_stack(frames: npt.ArrayLike, shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns ``frames`` as one array (count, rows, columns), not copied if it is one. Raises
    ``FrameShapeError``, ``FrameDtypeError``."""
    pixels = frames if type(frames) is np.ndarray else np.asarray(frames)
    if pixels.ndim != 3 or pixels.shape[1:] != shape:
        raise FrameShapeError(
            "wrong shape of several frames", expected=f"(count, {shape[0]}, {shape[1]})", got=pixels.shape
        )
    if pixels.dtype != dtype:
        raise FrameDtypeError("wrong frame dtype", expected=dtype, got=pixels.dtype)
    return pixels


def described(
    spec: ArraySpec,
    grid: Grid,
    count: int,
    indices: npt.ArrayLike | None,
    frame_ids: npt.ArrayLike | None,
    metadata: Mapping[str, npt.ArrayLike] | None,
) -> npt.NDArray[np.void]:
    """Returns descriptor_dtype[count], complete except for sequence, flags and times; without ``indices`` and
    ``frame_ids`` also without the position.

    Raises ``FrameIndexError``, ``MetadataError``.
    """
    records = np.zeros(count, descriptor_dtype(len(spec.frame_fields)))
    records["frame_id"] = -1
    if frame_ids is not None:
        records["frame_id"] = records["position"] = _checked_ids(
            frame_ids, count, MAX_POSITION if indices is not None else grid.last_position
        )
    if indices is not None:
        records["position"] = grid.positions_of(_integers(indices, "indices", (count, len(grid.counts))))
    for name in METADATA_FIELDS:
        records[name] = np.nan
    if spec.frame_fields:
        records["further"] = np.nan
    for name, values in checked_columns(metadata or {}, count, spec.metadata_fields).items():
        if name in METADATA_FIELDS:
            records[name] = values
        else:
            records["further"][:, spec.frame_fields.index(name)] = values
    return records


def _checked_ids(frame_ids: npt.ArrayLike, count: int, last: int) -> npt.NDArray[np.int64]:
    ids = _integers(frame_ids, "frame ids", (count,))
    outside = (ids < 0) | (ids > last)
    if outside.any():
        raise FrameIndexError("frame id outside the array", expected=f"0 to {last}", got=int(ids[outside][0]))
    return ids


def _integers(values: npt.ArrayLike, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Returns ``values`` as int64; an unsigned number that is too large becomes negative, which is refused
    too."""
    array = np.asarray(values)
    if array.shape != shape or (array.size and array.dtype.kind not in "iu"):
        raise FrameIndexError(
            f"{name} that do not fit the frames",
            expected=f"integers of shape {shape}",
            got=f"{array.dtype} of shape {array.shape}",
        )
    return array.astype(np.int64)
