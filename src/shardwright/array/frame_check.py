"""The check of what a user gives an acquisition: frames (shape, dtype, place and metadata), one or many at
once, before any is taken, and metadata that update those of the store. The same for the client, the daemon
and the writer in this process."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import FrameDtypeError, FrameIndexError, FrameShapeError, MetadataError
from shardwright.model.json_text import parse_json
from shardwright.wire.descriptor import JSON_FIELD, JSON_LEFT_OUT, METADATA_FIELDS
from shardwright.wire.messages import MAX_POSITION

from .as_written import frame_index, plain_value
from .grid import number_in_image
from .metadata_update import MAY_BE_REMOVED, OME, MetadataUpdate, checked_additions, checked_removal
from .spec import COLOR_COUNTS, check_depth, group_attributes, json_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from .as_written import Index
    from .grid import Grid
    from .spec import ArraySpec
    from .stage_position import StagePosition

# of one frame: a float for each of ``ArraySpec.metadata_fields``, NaN where none is given; behind them its
# JSON as UTF-8, if the array has ``frame_json_bytes``
Columns = tuple[float | bytes, ...]


class FrameCheck:
    """Checks frames of one array. Changes nothing, so any thread may call it.

    ``no_metadata``: what ``metadata`` returns for a frame that has none. ``form``: an array of a frame's
    shape and dtype, without memory for its pixels.
    """

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        self._shape = spec.given_shape
        self._places = spec.frame_places
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self.form: npt.NDArray[Any] = np.broadcast_to(np.zeros((), self._dtype), self._shape)
        self._frame_fields = spec.frame_fields
        self._fields = spec.metadata_fields
        self._json_bytes = spec.frame_json_bytes
        self._descriptor = spec.frame_descriptor
        # of an index: a frame of colours has a place for each channel
        self._frame_axes = tuple(d.name for d in spec.dimensions[: -3 if spec.interleaved else -2])
        self._channels = spec.channel_count
        self._grid = grid
        self._last_id = number_in_image(grid.last_position) // self._places  # where it is the place
        self.no_metadata: Columns = (math.nan,) * len(self._fields) + ((b"",) if self._json_bytes else ())

    def of_image(self, grid: Grid) -> FrameCheck:
        """Returns the check of frames of another image of the same array."""
        twin = copy(self)
        vars(twin).update(_grid=grid)
        return twin

    def position(self, pixels: npt.NDArray[Any], index: Index | None, frame_id: int | None) -> int | None:
        """Returns the position of the frame, of one of colours that of its first channel: that of ``index``
        (acquisition order), else ``frame_id``; None if neither is given, since its position is then the count
        of frames. Raises ``FrameShapeError``,
        ``FrameDtypeError``, ``FrameIndexError``."""
        if pixels.shape != self._shape:
            raise wrong_shape(self._shape, pixels.shape, self._channels)
        if pixels.dtype != self._dtype:
            raise wrong_dtype(self._dtype, pixels.dtype)
        try:
            if index is None:
                self._check_regular()
                if frame_id is None:
                    return None
                place = operator.index(frame_id)
                if not 0 <= place <= self._last_id:
                    raise _wrong_id(self._last_id, place)
                return self._grid.first + place * self._places
            if frame_id is not None and not 0 <= operator.index(frame_id) <= MAX_POSITION:
                raise _wrong_id(MAX_POSITION, frame_id)
            if type(index) is tuple:  # at once: this is called for each frame
                at = tuple(operator.index(i) for i in index)
            else:
                at = frame_index(index, self._frame_axes)
        except TypeError:
            raise FrameIndexError(
                "an index or frame id that is no whole number",
                expected=f"an index of {len(self._grid.counts)} whole numbers, an id of one",
                got=repr(frame_id if index is None else index)[:80],
            ) from None
        return self._grid.position_of(at if self._places == 1 else self._of_channel_0(at))

    def _of_channel_0(self, at: tuple[int, ...]) -> tuple[int, ...]:
        if len(at) != len(self._frame_axes):
            raise FrameIndexError(
                "the index of a frame of colours is that of all its channels",
                expected=f"a number for each of {', '.join(self._frame_axes) or 'no axis'}",
                got=at,
            )
        return (*at, 0)

    def _check_regular(self) -> None:
        """Raises ``FrameIndexError`` if only an index can say where a frame belongs."""
        if self._grid.is_ragged:
            raise FrameIndexError(
                "a frame without an index, in an array with several axes without a count",
                expected="an index for each frame",
                hint="Give index=(...): nothing else says when a faster axis ends",
            )

    def counted_position(self, count: int) -> int:
        """Returns the position of the frame before which ``count`` places were taken. Raises
        ``FrameIndexError`` when the image is full."""
        return self._grid.check_count(count)

    def metadata(self, metadata: Mapping[str, Any]) -> Columns:
        """Returns the columns of a frame; names that are no field of the array go into its JSON. Raises
        ``MetadataError`` for a field that is no number, for others that are no JSON, and for any other name
        where the array has no ``frame_json_bytes``."""
        values, others = {}, {}
        for name, value in _checked_mapping(metadata).items():
            if not self._is_field(name):
                others[name] = value
                continue
            try:
                values[name] = float(value)
            except (TypeError, ValueError):
                raise MetadataError(
                    f"metadata field {name!r} is not a number", expected="a number", got=repr(value)[:80]
                ) from None
            except OverflowError:
                raise _too_large(name) from None
        numbers = tuple(values.get(name, math.nan) for name in self._fields)
        return (*numbers, self._json(others)) if self._json_bytes else numbers

    def stack(self, frames: npt.ArrayLike) -> npt.NDArray[Any]:
        """Returns ``frames`` as one array, a count before the shape of a frame, uncopied where it is one.
        Raises ``FrameShapeError``, ``FrameDtypeError``."""
        try:
            pixels = frames if type(frames) is np.ndarray else np.asarray(frames)
        except ValueError:  # of frames that are not alike
            pixels = np.empty(0, object)
        if not pixels.ndim or pixels.shape[1:] != self._shape:
            is_array = pixels.dtype != object
            raise FrameShapeError(
                "wrong shape of several frames",
                expected=f"an array (count, {', '.join(map(str, self._shape))})",
                got=pixels.shape if is_array else f"a {type(frames).__name__}",
                hint=None if is_array else "`for frame in frames: writer.append(frame)` takes one by one",
            )
        if pixels.dtype != self._dtype:
            raise wrong_dtype(self._dtype, pixels.dtype)
        return pixels

    def records(
        self,
        count: int,
        indices: npt.ArrayLike | None,
        frame_ids: npt.ArrayLike | None,
        metadata: Mapping[str, Any] | None,
    ) -> npt.NDArray[np.void]:
        """Returns a descriptor for each place of the frames, complete but for sequence, flags and times;
        without ``indices`` and ``frame_ids`` also but for the position.

        Raises ``FrameIndexError``, ``MetadataError``.
        """
        if indices is None:
            self._check_regular()
        records = np.zeros(count, self._descriptor)
        records["frame_id"] = -1
        if frame_ids is not None:
            last = MAX_POSITION if indices is not None else self._last_id
            records["frame_id"] = _checked_ids(frame_ids, count, last)
            records["position"] = self._grid.first + records["frame_id"] * self._places
        if indices is not None:
            at = _integers(indices, "indices", (count, len(self._frame_axes)))
            if self._places > 1:
                at = np.pad(at, ((0, 0), (0, 1)))
            records["position"] = self._grid.positions_of(at)
        for name in METADATA_FIELDS:
            records[name] = np.nan
        if self._frame_fields:
            records["further"] = np.nan
        others = {}
        for name, values in _checked_mapping({} if metadata is None else metadata).items():
            if not self._is_field(name):
                others[name] = _each(name, values, count)
                continue
            column = self._column(name, values, count)
            if name in METADATA_FIELDS:
                records[name] = column
            else:
                records["further"][:, self._frame_fields.index(name)] = column
        if others:
            records[JSON_FIELD] = [
                self._json(dict(zip(others, values, strict=True)))
                for values in zip(*others.values(), strict=True)
            ]
        if self._places > 1:
            records = np.repeat(records, self._places)
            records["position"] += np.tile(np.arange(self._places), count)
        return records

    def _column(self, name: str, values: npt.ArrayLike, count: int) -> npt.NDArray[np.float64]:
        """Returns one number for all frames, or one for each."""
        try:
            column = np.asarray(values, np.float64)
        except OverflowError:
            raise _too_large(name) from None
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

    def _is_field(self, name: str) -> bool:
        """Returns whether a value has a column of its own; else it goes into the JSON. Raises
        ``MetadataError`` if there is none."""
        if name in self._fields:
            return True
        if not self._json_bytes:
            raise MetadataError(
                "unknown metadata field",
                expected=f"one of {', '.join(self._fields)}",
                got=repr(name)[:80],
                hint="Name it in the array's frame_fields to give it a column of numbers, or set "
                "frame_json_bytes, such as 1024, to keep any others as JSON",
            )
        return False

    def _json(self, values: dict[str, Any]) -> bytes:
        """Returns the JSON of one frame, none for no values, and ``JSON_LEFT_OUT`` if it is too long: a long
        comment must not cost its frame."""
        if not values:
            return b""
        text = _json_text(values, "metadata that are no JSON")
        return text if len(text) <= self._json_bytes else JSON_LEFT_OUT


def checked_update(
    attributes: Mapping[str, Any],
    position: StagePosition | None = None,
    image: ArraySpec | None = None,
    remove: Iterable[str] = (),
) -> MetadataUpdate:
    """Returns metadata with which a user updates those of a store or of an ``image``, as JSON values:
    ``attributes`` by name, in ``ome`` additions to ours, and names to ``remove``. Raises ``MetadataError``
    when they are none, are too long, or have a name that is ours, for a position or additions of no image,
    and for a position along axes without a length as their unit."""
    if position is not None and image is None:
        raise MetadataError("the position is of one image", expected="its name", got="none")
    if position is not None and image is not None and (axes := position.unplaced(image)):
        raise MetadataError(
            "a position along axes without a unit",
            expected=f"a length as the unit of {', '.join(axes)}, declared with the array",
            got=repr({axis: getattr(position, axis) for axis in axes}),
        )
    count = None if image is None or image.channels_grow else image.channel_count
    told = checked_attributes(attributes, has_image=image is not None, channels=count, remove=remove)
    return replace(told, position=position)


def checked_attributes(
    attributes: Mapping[str, Any], *, has_image: bool, channels: int | None, remove: Iterable[str] = ()
) -> MetadataUpdate:
    """As ``checked_update``, without a position. ``has_image``: the group is that of an image; ``channels``
    as ``checked_additions`` takes them."""
    if not isinstance(attributes, Mapping) or not all(isinstance(name, str) for name in attributes):
        raise MetadataError("metadata by name are needed", expected="a dict", got=repr(attributes)[:80])
    values = parse_json(_json_text(dict(attributes), "metadata that cannot be attributes"))
    removed = checked_removal(remove, values)
    ome = checked_additions(values.pop(OME), channels) if OME in values else {}
    if not has_image and (ome or not removed.isdisjoint(MAY_BE_REMOVED)):
        raise MetadataError(f"additions to {OME!r} are of one image", expected="its name", got="none")
    try:
        json_attributes({**group_attributes(values), **({OME: ome} if ome else {})})
    except ValueError as error:  # it says what is wrong, and what is allowed
        why = str(error).removeprefix("attributes: ")
        raise MetadataError(f"metadata that cannot be attributes: {why}"[:320]) from None
    return MetadataUpdate(values, ome, remove=removed)


def wrong_shape(expected: tuple[int, ...], got: tuple[int, ...], channels: int = 1) -> FrameShapeError:
    """Returns the error for a frame whose shape differs from that of the array's, which has so many
    channels."""
    hint = color_hint(expected, got, channels)
    if got[1:] == expected:
        hint = "`append_many` takes several frames at once"
    return FrameShapeError("wrong frame shape", expected=expected, got=got, hint=hint)


def color_hint(expected: tuple[int, ...], got: tuple[int, ...], channels: int = 1) -> str | None:
    """Returns what to do with a frame of colours; None for any other shape."""
    if len(got) != 3 or got[:2] != expected or got[2] not in COLOR_COUNTS:
        return None
    by_channel = ", or append frame[:, :, c] of each channel" if got[2] == channels else ""
    return f'Frames of colours are taken as they come with shape={(None, *got)} and axes="tyxc"{by_channel}'


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
    well. Of an only axis an integer for each is enough."""
    try:
        array = np.asarray(values)
    except ValueError:  # of lists of several lengths
        array = np.empty(0, object)
    if shape[1:] == (1,) and array.ndim == 1:
        array = array[:, None]
    if array.shape != shape or (array.size and array.dtype.kind not in "iu"):
        raise FrameIndexError(
            f"{name} that do not fit the frames",
            expected=f"integers of shape {shape}",
            got=f"{array.dtype} of shape {array.shape}" if array.dtype != object else repr(values)[:80],
        )
    return array.astype(np.int64)


def _too_large(name: str) -> MetadataError:
    """Names the field and not the integer, which may have more digits than Python prints."""
    return MetadataError(f"metadata field {name!r} is too large", expected="a number that a double holds")


def _checked_mapping(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(metadata, Mapping) or not all(isinstance(name, str) for name in metadata):
        raise MetadataError(
            "metadata that are no values by name",
            expected='such as {"exposure_time": 0.01}',
            got=repr(metadata)[:80],
        )
    return metadata


def _json_text(values: dict[str, Any], problem: str) -> bytes:
    """Raises ``MetadataError``, which begins with ``problem``."""
    try:
        check_depth(values)
        return json.dumps(
            values, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain_value
        ).encode()
    except (TypeError, ValueError) as error:
        raise MetadataError(
            problem,
            expected="text, finite numbers, booleans, None, and lists and dicts of them",
            got=str(error)[:240],
        ) from None


def _each(name: str, values: Any, count: int) -> Sequence[Any]:
    """Returns one value for each frame: those of a list or array, else the same for all."""
    if isinstance(values, np.ndarray) and values.ndim:
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise MetadataError(
            f"metadata field {name!r} does not fit the frames",
            expected=f"a list of {count} values, or one that is no list",
            got=f"{len(values)} values",
        )
    return values
