"""ArraySpec and its parts: a user's specification of an array, validated once at the border and frozen.

Names follow ome-writers and acquire-zarr. The same models are read from YAML, sent as JSON over the wire and
built in Python.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from shardwright.model.display_text import FactSheet
from shardwright.model.errors import SpecError
from shardwright.model.json_text import parse_json
from shardwright.model.write_options import BLOSC_NAMES, DTYPES, check_options
from shardwright.wire.descriptor import (
    JSON_FIELD,
    MAX_FRAME_JSON_BYTES,
    METADATA_FIELDS,
    descriptor_dtype,
)

from .as_written import COLOR_PATTERN, COLORS, hex_color, ome_unit, plain_value
from .fields import is_finite
from .level_shapes import HALVED, MAX_FACTOR, LevelShape, level_shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic_core import ErrorDetails

POSITIONS_AXIS = "p"  # the images of an acquisition, in its ``order``
# c-blosc counts a chunk's bytes in an int32 and keeps 16 for its header; gzip and LZ4 are within that bound
# too.
MAX_CHUNK_BYTES = 2**31 - 1 - 16
MAX_FRAMES = 2**48  # of a whole array: the places that the protocol can name, far below int64's limit
# elements along a frame axis without a count other than the first: frames are numbered as if it had so many
MOST_GROWN = 2**16
LEAST_STEPS = 2**10  # along a first axis without a count, where that leaves so few of ``MAX_FRAMES``
MAX_FRAME_BYTES = 2**36
MAX_CHUNKS_OF_FRAME = 2**24  # a table row each, in memory
MAX_CHUNKS_PER_SHARD = 2**24  # an index entry each; readers refuse more
MAX_FRAMES_PER_SHARD = 2**31  # a record each, in the journal of the shards that are filled together
MAX_ATTRIBUTES_BYTES = 2**20  # as written in zarr.json, which every reader loads into memory
MAX_ATTRIBUTES_DEPTH = 64  # of nested lists and objects; many JSON readers allow only 100 to 200
OWN_ATTRIBUTE = "shardwright"  # of any node: what ours recorded of it
OWN_ATTRIBUTES = ("ome", OWN_ATTRIBUTE)  # of groups
MAX_UNIT_CHARACTERS = 128
MAX_FRAME_FIELDS = 32
MAX_LEVELS = 32
MAX_SHARD_JSON_BYTES = 2**26  # of the frames of the shards that are filled together, in memory when sealed
MAX_CHANNELS = 1024  # the most that are described one by one
COLOR_COUNTS = (3, 4)  # of a frame with its channels last: red, green, blue, and how opaque
MAX_CHANNEL_NAME_CHARACTERS = 64  # so that a thousand of them fit into a message, whatever the script
RESERVED_COLUMNS = frozenset(  # without ``status``: see ``frame_table_format``
    {
        "frame_id",
        "sequence",
        "camera_ns",
        "monotonic_ns",
        "arrival_ns",
        "arrival_monotonic_ns",
        "client_epoch",
        "fate",
        "reason",
    }
)
_DTYPE_NAME = re.compile(r"[<>=|]?[A-Za-z?]+[0-9]*")  # NumPy takes more: "\n" is its type number 10
_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

AxisType = Literal["time", "channel", "space", "other"]
IndexLocation = Literal["end", "start", "none"]  # where shards have their index; "none": there are no shards
Method = Literal["mean", "min", "max", "nearest"]
METHODS: tuple[Method, ...] = get_args(Method)
_TYPE_BY_NAME: dict[str, AxisType] = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
_TYPE_BY_NAME |= {"time": "time"}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _lists_pass(cls, value: Any) -> Any:
        """Turns a list into a tuple. Below a validator that turns JSON into Python values, such as
        ``images_by_name``, strict rules would refuse it."""
        return tuple(value) if isinstance(value, list) else value


class Dimension(_Frozen):
    """One axis, in the order frames are acquired. ``count=None``: as long as frames make it, which must then
    name their index, unless only the first axis has no count; further ones have at most 65,536 elements.
    ``scale`` is in ``unit`` per pixel or step; of "um", "sec" and the like OME-Zarr's word is taken,
    "micrometer" and "second". ``shard_size_chunks=None``, for every axis of an array: there are no shards,
    each chunk is a file.

    ``scale=0`` stands for *unknown*, as acquisition programs report an uncalibrated pixel size. OME-Zarr has
    no unknown scale and allows none of 0, so it becomes its neutral one: ``scale`` 1.0 and no ``unit``, which
    claims no size.
    """

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")
    count: int | None = Field(default=None, gt=0, le=MAX_FRAMES)
    chunk_size: int = Field(gt=0, le=MAX_CHUNK_BYTES)
    shard_size_chunks: int | None = Field(default=1, gt=0, le=MAX_CHUNKS_PER_SHARD)
    type: AxisType | None = None
    unit: str | None = Field(default=None, max_length=MAX_UNIT_CHARACTERS)
    scale: float = Field(default=1.0, ge=0, allow_inf_nan=False)

    _ome_unit = field_validator("unit", mode="before")(ome_unit)

    @model_validator(mode="after")
    def _without_unknown_scale(self) -> Dimension:
        if self.scale == 0:
            self.__dict__.update(scale=1.0, unit=None)
        return self

    @property
    def axis_type(self) -> AxisType:
        """The OME axis type: as given, else by the usual name (t or time, c, z, y, x)."""
        return self.type or _TYPE_BY_NAME.get(self.name.lower(), "other")

    @property
    def shard_chunks(self) -> int:
        """Chunks along this axis in one file: a shard, or a chunk alone."""
        return self.shard_size_chunks or 1

    @property
    def shard_size(self) -> int:
        """Elements along this axis in one file."""
        return self.chunk_size * self.shard_chunks


def visible_name(value: str) -> str:
    """Returns the name of an image or channel, if people can read it. Raises ``ValueError``."""
    if not value.isprintable() or not value.strip():
        raise ValueError(f"name: expected one line of printable characters, got {_short(value)}")
    return value


class Channel(_Frozen):
    """One channel of an image, as viewers show it. ``name``, or ``label`` as OME-Zarr calls it. ``color``:
    six hexadecimal digits, red, green, blue, also behind a ``#``, in YAML with quotes, "00FF00"; or a word,
    such as "green". ``window``: the pixel values that are shown as black and as the full colour;
    None: percentiles 0.1 and 99.9 of the pixels, the same for all wells of a plate."""

    name: str = Field(min_length=1, max_length=MAX_CHANNEL_NAME_CHARACTERS)
    color: str | None = Field(default=None, pattern=COLOR_PATTERN)
    window: tuple[float, float] | None = None
    emission_nm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    excitation_nm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    exposure_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _by_label(cls, value: Any) -> Any:
        if isinstance(value, dict) and "label" in value and "name" not in value:
            return {("name" if field == "label" else field): each for field, each in value.items()}
        return value

    @field_validator("color", mode="before")
    @classmethod
    def _hex_color(cls, value: Any) -> Any:
        if isinstance(value, str) and not re.fullmatch(COLOR_PATTERN, value):
            raise ValueError(
                f"color: expected six hexadecimal digits, such as '00FF00', or one of {', '.join(COLORS)}; "
                f"got {_short(value)}"
            )
        return hex_color(value)

    _visible = field_validator("name")(visible_name)

    @field_validator("window")
    @classmethod
    def _not_empty(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not (all(map(math.isfinite, value)) and value[0] < value[1]):
            raise ValueError(f"window: expected (low, high) with low < high, got {value}")
        return value


class Levels(_Frozen):
    """The levels of lower resolution that are written with an image: ``count`` beside the image itself, each
    made by ``method`` from the one below, of windows of as many elements as ``factors`` says by axis. An axis
    that is not named keeps its elements."""

    count: int = Field(gt=0, le=MAX_LEVELS)
    method: Method = "mean"
    factors: dict[str, Annotated[int, Field(ge=1, le=MAX_FACTOR, strict=True)]] = Field(
        default=dict(HALVED), min_length=1, max_length=12
    )


class Blosc(_Frozen):
    """Zarr v3 ``blosc`` (the Blosc 1 format). ``clevel`` 1 is the fast setting for cameras."""

    name: Literal["blosc"] = "blosc"
    cname: Literal["lz4", "lz4hc", "zstd", "zlib"] = "lz4"
    clevel: int = Field(default=1, ge=0, le=9)
    shuffle: Literal["noshuffle", "shuffle", "bitshuffle"] = "shuffle"


class Zstd(_Frozen):
    """Zarr v3 ``zstd``: one standard zstd frame a chunk."""

    name: Literal["zstd"] = "zstd"
    level: int = Field(default=1, ge=-7, le=19)


class Gzip(_Frozen):
    """Zarr v3 ``gzip``: one gzip member a chunk."""

    name: Literal["gzip"] = "gzip"
    level: int = Field(default=1, ge=0, le=9)


def _codec_tag(value: Any) -> str:
    return str(value.get("name", "blosc") if isinstance(value, dict) else getattr(value, "name", value))


Codec = Annotated[
    Annotated[Blosc, Tag("blosc")] | Annotated[Zstd, Tag("zstd")] | Annotated[Gzip, Tag("gzip")],
    Discriminator(_codec_tag),
]


def json_attributes(value: dict[str, Any]) -> dict[str, Any]:
    """Returns attributes that may be written to a zarr.json, NumPy's numbers as Python's. Raises
    ``ValueError``."""
    try:
        check_depth(value)
    except ValueError as error:
        raise ValueError(f"attributes: {error}") from None
    try:
        text = json.dumps(value, indent=2, allow_nan=False, default=plain_value)
        length, value = len(text), parse_json(text)
        # half of a pair of surrogates would be escaped, which few other programs read
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"attributes: must be plain JSON, since they go into zarr.json: {error}") from None
    if length > MAX_ATTRIBUTES_BYTES:
        raise ValueError(
            f"attributes: too long, expected at most {MAX_ATTRIBUTES_BYTES} bytes in zarr.json, got {length}"
        )
    return value


def group_attributes(value: dict[str, Any]) -> dict[str, Any]:
    """Returns attributes that may be written to the zarr.json of a group, beside ours. Raises
    ``ValueError``."""
    for name in OWN_ATTRIBUTES:
        if name in value:
            raise ValueError(f"attributes: {name!r} is written by shardwright, choose another name")
    return json_attributes(value)


class ArraySpec(FactSheet, _Frozen):
    """One image array: dtype, axes in acquisition order (the last two are the frame's rows and columns),
    codec and layout. An axis whose ``scale`` is not known is given ``scale=0`` (``Dimension``).

    ``storage_order`` names all axes in the order they are stored; the last two stay the frame's own, in
    either order (columns before rows: the codec ``transpose``, bytes are as without it). The
    ``order`` of an acquisition makes it of dimensions that are given as they are stored.
    ``fill_value`` stands where no frame came; for floats also ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
    ``codec`` may be a name, ``"blosc"``, ``"zstd"`` or ``"gzip"``, for its default settings, ``"lz4"`` for
    Blosc's; None or ``"none"`` stores chunks as they are. ``frame_fields`` names further numbers that every
    frame may bring as metadata, beside those of ``wire.METADATA_FIELDS``; each becomes a column of the frame
    table.
    ``frame_json_bytes``: the most bytes of JSON, as UTF-8, of all other metadata of a frame, text included;
    they become the column ``json``. 0: a frame brings no others. Every frame takes that room in the journal.
    JSON that is longer is left out as a whole, and counted in the receipt (``frame_json_dropped``).
    ``channels`` describes each element of the channel axis, or the only channel of an array without one.
    Where that axis has no count, zarr.json describes channels only once the acquisition has ended.
    ``interleaved``: frames come from a colour camera, (rows, columns, 3 or 4). The axis before rows and
    columns is that of the 3 or 4 channels: each frame has a place for each of them, one after the other.
    ``levels``: levels of lower resolution, written as frames come; a number is that many of means.

    Examples
    --------
    Chunks of 8 x 256 x 256, in shards of 32 whole frames. ``default_layout`` chooses sizes for a shape.

    >>> spec = sw.ArraySpec(
    ...     dtype="uint16",
    ...     dimensions=[
    ...         sw.Dimension(name="t", type="time", count=None, chunk_size=8, shard_size_chunks=4),
    ...         sw.Dimension(name="y", type="space", count=2048, chunk_size=256, shard_size_chunks=8),
    ...         sw.Dimension(name="x", type="space", count=2048, chunk_size=256, shard_size_chunks=8),
    ...     ],
    ...     codec=sw.Blosc(cname="zstd", clevel=1, shuffle="bitshuffle"),
    ... )
    >>> spec.frame_shape
    (2048, 2048)
    """

    dtype: str
    dimensions: tuple[Dimension, ...] = Field(min_length=2, max_length=12)
    codec: Codec | None = Blosc()
    index_location: Literal["end", "start"] = "end"
    index_checksum: bool = True
    chunk_checksum: bool = False
    write_empty_chunks: bool = False
    fill_value: bool | int | float | str = 0
    storage_order: tuple[str, ...] | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    frame_fields: tuple[str, ...] = Field(default=(), max_length=MAX_FRAME_FIELDS)
    frame_json_bytes: int = Field(default=0, ge=0, le=MAX_FRAME_JSON_BYTES)
    channels: tuple[Channel, ...] = Field(default=(), max_length=MAX_CHANNELS)
    levels: Levels | None = None
    interleaved: bool = False

    @field_validator("levels", mode="before")
    @classmethod
    def _by_count(cls, value: Any) -> Any:
        """Turns a number alone into that many levels of means; 0 is none."""
        if isinstance(value, int) and not isinstance(value, bool):
            return {"count": value} if value else None
        return value

    @field_validator("dtype", mode="before")
    @classmethod
    def _known_dtype(cls, value: Any) -> str:
        name = str(value)
        plain = isinstance(value, str) and _DTYPE_NAME.fullmatch(value)
        if plain or not isinstance(value, str | list | tuple | dict | None):  # NumPy reads None as float64
            with suppress(TypeError):  # no type: reported as it came
                name = str(np.dtype(value).newbyteorder("=").name)
        if name not in DTYPES:
            raise ValueError(f"dtype {_short(name)} is not one of {', '.join(DTYPES)}")
        return name

    @field_validator("codec", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """Turns a name alone into that codec with its default settings."""
        if not isinstance(value, str):
            return value
        name = value.lower()
        if name == "none":
            return None
        return {"name": "blosc", "cname": name} if name in BLOSC_NAMES else {"name": name}

    @field_validator("fill_value", mode="before")
    @classmethod
    def _plain_number(cls, value: Any) -> Any:
        """Turns non-finite floats into their names in JSON, so that a spec survives the wire, and NumPy
        scalars into Python's."""
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value

    _json_ready = field_validator("attributes")(json_attributes)

    @field_validator("frame_fields")
    @classmethod
    def _column_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for i, name in enumerate(value):
            if (
                not _FIELD_NAME.fullmatch(name)
                or name in METADATA_FIELDS
                or name in RESERVED_COLUMNS
                or name.startswith("index_")
            ):
                raise ValueError(
                    f"frame_fields: {name!r} is taken or no plain name (a to z, digits, _), "
                    f"expected a name that no column has yet"
                )
            if name in value[:i]:
                raise ValueError(f"frame_fields: names must differ, got {name!r} twice")
        return value

    def _facts(self) -> dict[str, object]:
        """Returns the layout by the names of ``create``'s arguments, and other fields that are given."""
        axes, sharded = self.dimensions, self.actual_index_location != "none"
        names = [d.name for d in axes]
        facts: dict[str, object] = {
            "axes": "".join(names) if all(len(name) == 1 for name in names) else tuple(names),
            "shape": tuple(d.count for d in axes),
            "dtype": self.dtype,
            "chunks": tuple(d.chunk_size for d in axes),
            "shards": tuple(d.shard_size for d in axes) if sharded else False,
            "scales": {
                d.name: f"{d.scale:g} {d.unit or ''}".rstrip() for d in axes if d.unit or d.scale != 1
            },
            "codec": "none" if self.codec is None else " ".join(map(str, dict(self.codec).values())),
            "channels": [channel.name for channel in self.channels],
        }
        for name, field in type(self).model_fields.items():
            if name not in {"dimensions", *facts} and getattr(self, name) != field.default:
                facts[name] = getattr(self, name)
        return {name: value for name, value in facts.items() if value not in ({}, [])}

    @property
    def metadata_fields(self) -> tuple[str, ...]:
        """The names of all numbers that a frame may bring: the known ones, then this array's own."""
        return (*METADATA_FIELDS, *self.frame_fields)

    @property
    def frame_descriptor(self) -> np.dtype[np.void]:
        """The descriptor of this array's frames."""
        return descriptor_dtype(len(self.frame_fields), self.frame_json_bytes)

    @model_serializer(mode="wrap")
    def _without_what_is_new(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out fields that are as they were before there was a choice: earlier releases refuse one that
        they do not know. And ``index_location`` where nobody gave it: whoever reads the JSON may still place
        the index (``with_index_for``)."""
        facts: dict[str, Any] = dump(self)
        if "index_location" not in self.model_fields_set:
            facts.pop("index_location", None)
        for name in ("channels", "levels", "frame_json_bytes", "index_checksum", "interleaved"):
            if getattr(self, name) == type(self).model_fields[name].default:
                facts.pop(name, None)
        return facts

    @field_serializer("dimensions")
    def _dump_dimensions(self, value: tuple[Dimension, ...]) -> list[dict[str, Any]]:
        return [d.model_dump(exclude_none=False) for d in value]

    @model_validator(mode="after")
    def _consistent(self) -> ArraySpec:
        names = [d.name for d in self.dimensions]
        if len(set(names)) != len(names):
            raise ValueError(f"dimensions: names must differ, got {names}")
        if any(d.count is None for d in self.dimensions[-2:]):
            raise ValueError("dimensions: the two axes of the frame itself need a count")
        colors = self.dimensions[-3] if self.interleaved and len(names) > 2 else None
        if self.interleaved and (
            colors is None or colors.axis_type != "channel" or colors.count not in COLOR_COUNTS
        ):
            raise ValueError(
                f"interleaved: frames of colours need an axis of 3 or 4 channels before their rows and "
                f"columns, got {names} of {[d.count for d in self.dimensions]}"
            )
        self._check_growing()
        self._check_sharding()
        if self.storage_order is not None:
            if sorted(self.storage_order) != sorted(names):
                raise ValueError(
                    f"storage_order: must name every axis once, expected the axes {names}, got "
                    f"{list(self.storage_order)}"
                )
            if sorted(self.storage_order[-2:]) != sorted(names[-2:]):
                raise ValueError(
                    f"storage_order: must end with the frame's own axes {names[-2:]} in either order, got "
                    f"{list(self.storage_order)}"
                )
        if self.channels and len(self.channels) != self.channel_count:
            raise ValueError(
                f"channels: expected one for each of the {self.channel_count} elements of the channel axis, "
                f"got {len(self.channels)}"
            )
        if self.frame_json_bytes and JSON_FIELD in self.frame_fields:
            raise ValueError(
                f"frame_fields: {JSON_FIELD!r} is a column of the frame table already, of frame_json_bytes"
            )
        self._check_sizes()
        self.fill_bytes()  # raises when the fill value does not fit the dtype
        self._check_levels()
        return self

    def _check_growing(self) -> None:
        """While an axis without a count grows, a chunk or shard that spans steps of a slower axis would stay
        incomplete at each of its elements."""
        first, *others = self.frame_counts or (1,)
        steps = MAX_FRAMES // math.prod(others)
        if first == 0 and len(self.growing_axes) > 1 and steps < LEAST_STEPS:
            raise ValueError(
                f"dimensions: {self.dimensions[0].name!r} would end at {steps}, since each further axis "
                f"without a count takes {MOST_GROWN} of the {MAX_FRAMES} places for frames; give one a count"
            )
        for axis, d in enumerate(self.dimensions):
            if axis and d.count is None and d.axis_type == "channel":
                raise ValueError(
                    f"dimensions: {d.name!r} is a channel axis and needs a count: viewers are told of each "
                    f"channel; only an axis that changes slowest may be one without"
                )
            for slower in self.dimensions[:axis] if d.count is None else ():
                if slower.shard_size > 1 and slower.count != 1:
                    raise ValueError(
                        f"dimensions: {d.name!r} has no count and changes faster than {slower.name!r}, which "
                        f"therefore needs chunk_size 1 and shard_size_chunks 1; got {slower.chunk_size} and "
                        f"{slower.shard_chunks}"
                    )

    def _check_sharding(self) -> None:
        without = [d.name for d in self.dimensions if d.shard_size_chunks is None]
        if without and len(without) < len(self.dimensions):
            raise ValueError(
                f"dimensions: shard_size_chunks is null along {', '.join(without)} and not along others, "
                f"expected a number for each axis (1: shards of one chunk), or null for each (no shards)"
            )
        check_options(
            shards=not without, index_location=self.index_location, index_checksum=self.index_checksum
        )

    def _check_sizes(self) -> None:
        """Checks every product of the axes' numbers for which an array, a table or a file is made. The limits
        of memory are checked elsewhere (``acquire.limits``)."""
        frame_axes, plane = self.dimensions[:-2], self.dimensions[-2:]
        chunk_bytes = math.prod(d.chunk_size for d in self.dimensions) * self.itemsize
        if chunk_bytes > MAX_CHUNK_BYTES:
            raise ValueError(
                f"dimensions: one inner chunk would have {chunk_bytes} bytes, the codecs end at "
                f"{MAX_CHUNK_BYTES}{_smaller(self.dimensions, 'chunk_size', chunk_bytes, MAX_CHUNK_BYTES)}"
            )
        for what, most, size, axes in (
            ("frames in the array", MAX_FRAMES, math.prod(max(1, n) for n in self.frame_counts), None),
            ("bytes in a frame", MAX_FRAME_BYTES, self.frame_bytes, None),
            (
                "inner chunks in a frame",
                MAX_CHUNKS_OF_FRAME,
                math.prod(-(-(d.count or 1) // d.chunk_size) for d in plane),
                None,
            ),
            (
                "inner chunks in a shard",
                MAX_CHUNKS_PER_SHARD,
                math.prod(d.shard_chunks for d in self.dimensions),
                self.dimensions,
            ),
            (
                "frames in a shard",
                MAX_FRAMES_PER_SHARD,
                math.prod(d.shard_size for d in frame_axes),
                frame_axes,
            ),
            (
                "bytes of frame_json_bytes in a shard",
                MAX_SHARD_JSON_BYTES,
                math.prod(d.shard_size for d in frame_axes) * self.frame_json_bytes,
                frame_axes,
            ),
        ):
            if size > most:
                better = "" if axes is None else _smaller(axes, "shard_size_chunks", size, most)
                raise ValueError(f"dimensions: too many {what}, expected at most {most}, got {size}{better}")

    def _check_levels(self) -> None:
        check_options(levels=self.levels is not None, dtype=self.dtype)
        if self.levels is not None and self.dtype == "float64" and isinstance(self.fill_value, int | float):
            window = math.prod(self.levels.factors.values())
            if self.levels.method == "mean" and not is_finite(self.fill_value * window):
                raise ValueError("levels: a sum of fill values overflows, choose another fill_value")
        assert len(self.level_shapes) == self.level_count, "or it has raised"

    @property
    def frame_counts(self) -> tuple[int, ...]:
        """The elements along each frame axis by which frames are numbered; 0: a first axis without a
        count."""
        return tuple(d.count or (MOST_GROWN if axis else 0) for axis, d in enumerate(self.dimensions[:-2]))

    @property
    def growing_axes(self) -> tuple[int, ...]:
        """The frame axes whose extent follows from the frames that came: the first one, and those without a
        count."""
        return tuple(axis for axis, d in enumerate(self.dimensions[:-2]) if axis == 0 or d.count is None)

    @property
    def actual_index_location(self) -> IndexLocation:
        """Where its shards have their index; ``none`` without shards, whatever the field says."""
        return "none" if self.dimensions[0].shard_size_chunks is None else self.index_location

    @property
    def is_transposed(self) -> bool:
        """True if the array on disk has the columns of a frame before its rows."""
        return self.storage_order is not None and self.storage_order[-1] == self.dimensions[-2].name

    @property
    def level_count(self) -> int:
        """The number of levels above the image that are written with it."""
        return self.levels.count if self.levels else 0

    @property
    def level_shapes(self) -> tuple[LevelShape, ...]:
        """The shapes of the levels above the image, by the axes in the order of acquisition."""
        if self.levels is None:
            return ()
        names, counts, chunk = zip(
            *((d.name, d.count or 0, d.chunk_size) for d in self.dimensions), strict=True
        )
        return level_shapes(names, counts, chunk, self.levels.factors, self.levels.count)

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def frame_shape(self) -> tuple[int, int]:
        """(rows, columns) of one frame."""
        y, x = self.dimensions[-2].count, self.dimensions[-1].count
        assert y is not None, "validated"
        assert x is not None, "likewise"
        return y, x

    @property
    def frame_places(self) -> int:
        """The number of places that one frame of the user takes: 3 or 4 of a colour camera's, else 1."""
        return (self.dimensions[-3].count or 1) if self.interleaved else 1

    @property
    def given_shape(self) -> tuple[int, ...]:
        """The shape of a frame as the user gives it: rows, columns, and of a colour camera channels."""
        return (*self.frame_shape, self.frame_places) if self.interleaved else self.frame_shape

    @property
    def frame_bytes(self) -> int:
        y, x = self.frame_shape
        return y * x * self.itemsize

    @property
    def channel_count(self) -> int:
        """The number of elements of the channel axis; 1 without one, or while it is unlimited."""
        axis = self.channel_dimension
        return 1 if axis is None else axis.count or 1

    @property
    def channels_grow(self) -> bool:
        """True if the channel axis has no count: it is then the first one, and its extent is known at the
        end."""
        return self.channel_dimension is not None and self.channel_dimension.count is None

    @property
    def channel_dimension(self) -> Dimension | None:
        """The (first) channel axis, which may be one of the frame's own; None without one."""
        return next((d for d in self.stored_dimensions if d.axis_type == "channel"), None)

    @property
    def stored_dimensions(self) -> tuple[Dimension, ...]:
        """The axes in the order of the array on disk."""
        if self.storage_order is None:
            return self.dimensions
        by_name = {d.name: d for d in self.dimensions}
        return tuple(by_name[name] for name in self.storage_order)

    def fill_bytes(self) -> bytes:
        """Returns the fill value as one little-endian element. Raises ``ValueError`` when the dtype cannot
        hold it (floats are rounded to it)."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        value = self.fill_value
        if isinstance(value, str):
            special = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
            if dtype.kind != "f" or value not in special:
                raise ValueError(f"fill_value: {_short(value)} is not a {self.dtype}")
            return np.array(special[value], dtype).tobytes()
        if dtype.kind == "b" and value not in (0, 1):
            raise ValueError(f"fill_value: {value!r} is not a bool")
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            if value != int(value) or not info.min <= value <= info.max:
                raise ValueError(f"fill_value: {value!r} is not a {self.dtype}")
            value = int(value)
        return _as_element(value, dtype)


def parse_spec(facts: ArraySpec | dict[str, Any] | None) -> ArraySpec:
    """Returns the specification, ``facts`` itself if it is one. Raises ``SpecError`` naming the first few
    wrong fields."""
    try:
        return ArraySpec.model_validate(facts)
    except ValidationError as error:
        raise SpecError("the array specification is wrong", got=problems_of(error)) from None


def problems_of(error: ValidationError) -> str:
    """Returns the first few wrong fields, in one line."""
    problems = [_problem_of(problem) for problem in error.errors(include_url=False)[:4]]
    return "; ".join(problems)[:800]


def own_message(problem: ErrorDetails) -> str:
    """Returns the message of one of our validators, without pydantic's words before it and without the name
    of the field at the end of its path."""
    message = problem["msg"].removeprefix("Value error, ")
    return message.removeprefix(f"{problem['loc'][-1]}: ") if problem["loc"] else message


def _problem_of(problem: ErrorDetails) -> str:
    field, message = ".".join(map(str, problem["loc"])), own_message(problem)
    return f"{field}: {message}" if field else message


def check_depth(values: Any) -> None:
    """Raises ``ValueError`` for JSON values that are nested too deep, or that are too many. Not by recursion:
    too deep nesting would exhaust this process's stack."""
    level = [values]
    for _ in range(MAX_ATTRIBUTES_DEPTH + 1):
        level = [value for values in level for value in _inner(values)]
        if not level:
            return
        if len(level) > MAX_ATTRIBUTES_BYTES:
            raise ValueError(f"too long, expected at most {MAX_ATTRIBUTES_BYTES} bytes in zarr.json")
    raise ValueError(
        f"nested too deep, expected at most {MAX_ATTRIBUTES_DEPTH} lists and objects in each other"
    )


def _inner(value: Any) -> Iterable[Any]:
    """Returns what is in a value of JSON, or in one of NumPy, whose objects may be lists again."""
    if isinstance(value, np.ndarray | np.void) and not value.ndim:
        return [value.item()]
    if isinstance(value, np.ndarray):
        return iter(value) if value.dtype.hasobject else ()
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


def _smaller(axes: Sequence[Dimension], field: str, size: int, most: int) -> str:
    """Returns the values of a field of as few axes as need be, with which ``size``, a multiple of all of
    them, is at most ``most``."""
    better = []
    for d in sorted(axes, key=lambda d: -getattr(d, field)):
        value = getattr(d, field)
        fits = max(1, value // -(-size // most))
        better.append(f"{fits} along {d.name}")
        size = size // value * fits
        if size <= most:
            break
    return f"; better is {field} of at most {', '.join(better)}"


def _short(value: str) -> str:
    """Returns any text, shortened for a message."""
    return repr(value[:80]) + ("..." if len(value) > 80 else "")


def _as_element(value: float, dtype: np.dtype[Any]) -> bytes:
    try:
        with np.errstate(over="ignore"):
            element = np.array(value, dtype)
    except OverflowError:
        element = np.array(math.inf, dtype)
    if dtype.kind == "f" and not np.isfinite(element):
        raise ValueError(f"fill_value: {value!r} is out of a {dtype.name}'s range")
    return element.tobytes()
