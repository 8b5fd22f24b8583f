"""Chooses chunks, shards and codec for an array of which only shape, dtype and axes are given
(``default_layout``), and finds what is poor in one that was chosen (``size_warnings``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shardwright.model.errors import SpecError

from .as_written import unit_kind
from .layout_costs import LEAST_CHUNK_BYTES, LEAST_INDEX_BYTES, LayoutAxis, layout_costs
from .spec import COLOR_COUNTS, MAX_SHARD_JSON_BYTES, POSITIONS_AXIS, ArraySpec, parse_spec

if TYPE_CHECKING:
    import numpy.typing as npt

    from .spec import Dimension

CHUNK_BYTES = 2 << 20
SLAB_BYTES = 128 << 20
SHARD_BYTES = 512 << 20
DEPTH, MOST_DEPTH = 16, 1024
MOST_SHARD_FRAMES = 1 << 16  # of small frames: each has a record in the journal, made before the first comes
MOST_SHARD_CHUNKS = LEAST_INDEX_BYTES // 16 - 1  # of small frames again: a reader loads the whole index
MOST_SHARE = 16  # of a shard's size, where many images have an open one: of fewer frames, files would be many
GROWN_CHUNKS = 4  # of a shard along a faster axis without a count, which may end anywhere at each step
USUAL_AXES = {2: "yx", 3: "tyx", 4: "tcyx", 5: "tczyx"}  # by their number: OME-Zarr's, time before all
OME_ORDER = {"time": 0, "channel": 1, "other": 1, "space": 2}  # of the axes, as OME-Zarr 0.5 wants it


def default_layout(
    shape: Sequence[int | None],
    dtype: npt.DTypeLike,
    axes: str | Sequence[str] | None = None,
    *,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | Literal[False] | None = None,
    scales: Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
    order: Sequence[str] | None = None,
    images: int = 1,
    **fields: Any,
) -> ArraySpec:
    """Returns the specification of an array of ``shape`` (None: any number; frames must name their index if
    another axis than the one that changes slowest has none).

    ``axes``: a name for each axis in the order in which frames come, the frame's rows and columns last, such
    as ``"tczyx"``. Left out, they follow from the number of dimensions: ``yx``, ``tyx``, ``tcyx``, ``tczyx``,
    so give ``"zyx"`` for a stack and ``"tzyx"`` for stacks. The array is stored in the order that OME-Zarr
    wants: time, channel, space. Axes that end with ``"yxc"``, of 3 or 4 channels, are those of a colour
    camera, whose frames are (rows, columns, channels): the array is ``interleaved``. With ``order``, the
    frame axes in the order in which frames come, such as ``("t", "z", "c")``, ``axes`` is the order in which
    they are stored. ``images``: how many are written with this array; they change where ``order`` has
    ``"p"``, without it at any frame. The choice:

    - depth, the frames in an inner chunk: 16 along the fastest axis if that is time or space, and more where
      frames are small. The frames of a chunk are held in memory until it is full, so they have at most 128
      MiB. Along other axes it is one frame: otherwise every combination of the faster axes would be held.
      So it is along axes that change slower than the image.
    - rows and columns of an inner chunk: about square, 2 MiB with the depth, and the last chunk of a row is
      about as long as the others.
    - shard: whole frames, 512 MiB of them, along the fastest axis, and where that ends along the next one, so
      that frames in order fill one shard after the other. A larger frame is cut. Where each image has an
      open shard, its shards are smaller, by up to 16 times. Along a faster axis without a count it is at
      most 4 chunks, since it may end anywhere: ``shards={"z": 32}`` where stacks are about so long.
    - codec: ``Blosc()``, which is LZ4 with shuffle at its fastest.

    For 2048 x 2048 frames of uint16 that is 16 x 256 x 256 in 64 x 2048 x 2048, as in the benchmarks.
    ``chunks`` and ``shards`` choose otherwise along single axes, in elements: ``chunks={"z": 1}``,
    ``shards={"t": 64}``; the others adapt. ``shards=False``: none, each chunk is a file. ``scales`` and
    ``units`` by axis, as in ``Dimension``; ``fields`` are further ones of ``ArraySpec``, such as ``codec``.
    Raises ``SpecError``.
    """
    names = _checked_axes(shape, axes)
    if are_colors(names, shape):
        names, shape, order = _by_channel(names, shape, order)
        fields["interleaved"] = True
    slower, order = _split_order(order, names)
    waiting = slower if images > 1 else []
    if order is not None:
        if "storage_order" in fields:
            raise SpecError(
                "order and storage_order say the same", hint="Give axes as they are stored, and order"
            )
        fields["storage_order"] = tuple(names)
        names, shape = _as_acquired(names, shape, order)
    if "dimensions" in fields:
        raise SpecError("dimensions follow from shape and axes", hint="Give an ArraySpec instead of a shape")
    plain = parse_spec(  # which checks what the choice is made from
        {
            "dtype": dtype,
            "frame_json_bytes": fields.get("frame_json_bytes", 0),
            "dimensions": [
                {"name": name, "count": count, "chunk_size": size}
                for name, count, size in zip(
                    names, shape, [1] * (len(names) - 2) + [1 << 10, 1 << 17], strict=True
                )
            ],
        }
    )
    chunk = _default_chunk(plain, dict.fromkeys(waiting, 1) | _sizes("chunks", chunks, names))
    shard_bytes = SHARD_BYTES // min(images if waiting else 1, MOST_SHARE)
    shard = None
    if shards is not False:
        shard = _default_shard(plain, chunk, _sizes("shards", shards, names), shard_bytes)
    scales, units = _by_axis("scales", scales, names), _by_axis("units", units, names)
    dimensions = [
        {
            "name": d.name,
            "count": d.count,
            "chunk_size": chunk[d.name],
            "shard_size_chunks": None if shard is None else shard[d.name] // chunk[d.name],
            "scale": scales.get(d.name, 1.0),
            "unit": units.get(d.name),
        }
        for d in plain.dimensions
    ]
    stored = [d.name for d in sorted(plain.dimensions[:-2], key=lambda d: OME_ORDER[d.axis_type])]
    if stored != names[:-2]:
        fields.setdefault("storage_order", (*stored, *names[-2:]))
    spec = parse_spec({**fields, "dtype": plain.dtype, "dimensions": dimensions})
    check_units(spec)
    return spec


def are_colors(axes: Sequence[str], shape: Sequence[int | None]) -> bool:
    """Returns whether axes end with those of a colour camera's frame: rows, columns, 3 or 4 channels."""
    return len(axes) > 2 and tuple(axes[-3:]) == tuple("yxc") and shape[-1] in COLOR_COUNTS


def _by_channel(
    names: list[str], shape: Sequence[int | None], order: Any
) -> tuple[list[str], list[int | None], Any]:
    """Returns axes, shape and order of frames of colours with the channels before rows and columns."""
    names, shape = [*names[:-3], "c", "y", "x"], [*shape[:-3], shape[-1], *shape[-3:-1]]
    if not isinstance(order, str | list | tuple):
        return names, shape, order
    counts = dict(zip(names, shape, strict=True))  # as they are stored
    names = [*sorted(names[:-2], key=lambda name: {"c": 1, "z": 2}.get(name, 0)), "y", "x"]
    return names, [counts[name] for name in names], [*order, *(["c"] if "c" not in order else [])]


def check_units(spec: ArraySpec) -> None:
    """Raises ``SpecError`` for a length along an axis of time, or a time along one of space. No check of
    ``ArraySpec``: earlier releases have written such, which can still be resumed."""
    for d in spec.dimensions:
        kind = None if d.unit is None else unit_kind(d.unit)
        if kind is not None and d.axis_type in ("time", "space") and kind != d.axis_type:
            raise SpecError(
                f"units: {d.name!r} is an axis of {d.axis_type}",
                expected="such as second or ms" if d.axis_type == "time" else "such as micrometer or nm",
                got=d.unit,
            )


def size_warnings(spec: ArraySpec, *, alone: bool) -> list[str]:
    """Returns one sentence for each of its ``layout_costs``, and better numbers behind the last one. Unless
    the image is ``alone``, others may come between its steps of time: nothing is said of these."""
    axes = [LayoutAxis(d.name, d.count, d.chunk_size, d.shard_size_chunks) for d in spec.stored_dimensions]
    sharded = spec.actual_index_location != "none"
    index_bytes = 16 * math.prod(d.shard_chunks for d in spec.dimensions) + 4 if sharded else 0
    time = next((d.name for d in spec.stored_dimensions if alone and d.axis_type == "time"), None)
    texts = [cost.text for cost in layout_costs(axes, spec.itemsize, index_bytes, time)]
    return [*texts[:-1], f"{texts[-1]}; better is {layout_advice(spec)}"] if texts else []


def layout_advice(spec: ArraySpec) -> str:
    """Returns what ``default_layout`` chooses for this array, such as ``chunk_size 16, 256, 256 with
    shard_size_chunks 4, 8, 8 along t, y, x``."""
    chunk = _default_chunk(spec, {})
    shard = _default_shard(spec, chunk, {})
    return sizes_text([(name, size, shard[name] // size) for name, size in chunk.items()])


def sizes_text(axes: Iterable[tuple[str, int, int | None]]) -> str:
    """Returns the sizes of a layout in words; ``axes``: (name, chunk_size, shard_size_chunks) of each."""
    names, chunks, shards = (", ".join(map(str, values)) for values in zip(*axes, strict=True))
    return f"chunk_size {chunks} with shard_size_chunks {shards} along {names}".replace("None", "null")


def default_chunk_bytes(spec: ArraySpec) -> int:
    """Returns the size of the inner chunks that ``default_layout`` chooses for this array."""
    return math.prod(_default_chunk(spec, {}).values()) * spec.itemsize


def _default_chunk(spec: ArraySpec, given: Mapping[str, int]) -> dict[str, int]:
    """Returns the elements of an inner chunk by axis, in the order of the axes. Of ``spec`` only shape and
    dtype count."""
    *frame_axes, y, x = spec.dimensions
    rows, columns = spec.frame_shape
    plane_bytes = given.get(y.name, rows) * given.get(x.name, columns) * spec.itemsize
    chunk = {d.name: given.get(d.name, 1) for d in spec.dimensions}
    depth = math.prod(chunk[d.name] for d in frame_axes)
    least = 1 if depth > 1 or {y.name, x.name} <= given.keys() else DEPTH
    faster = 1  # frames along the axes that were passed, all of which come before the next step of this one
    for d in reversed(frame_axes):
        if d.count == 1:
            continue
        if d.axis_type in ("time", "space") and d.name not in given:
            frames = max(least if depth == 1 else 1, CHUNK_BYTES // (plane_bytes * depth))
            size = min(frames, SLAB_BYTES // (spec.frame_bytes * faster), d.count or frames, MOST_DEPTH)
            chunk[d.name] = size if size == d.count else _power_of_two(max(1, size))
            depth *= chunk[d.name]
        if d.count is None or plane_bytes * depth >= LEAST_CHUNK_BYTES:
            break
        faster *= d.count
    pixels = max(1, CHUNK_BYTES // spec.itemsize // depth)
    edge = _power_of_two(math.isqrt(pixels))
    for d, count, across in ((y, rows, (x, columns)), (x, columns, (y, rows))):
        if d.name not in given:
            beside = given.get(across[0].name, across[1])  # a narrow frame has longer chunks
            chunk[d.name] = _cut(count, max(edge, _power_of_two(max(1, pixels // beside))))
    return chunk


def _default_shard(
    spec: ArraySpec, chunk: dict[str, int], given: Mapping[str, int], most_bytes: int = SHARD_BYTES
) -> dict[str, int]:
    """Returns the elements of a shard of about ``most_bytes`` by axis, whole chunks. Slower frame axes share
    a shard only if it holds all of the faster ones. Raises ``SpecError``."""
    *frame_axes, y, x = spec.dimensions
    for name, size in given.items():
        if size % chunk[name]:
            raise SpecError(
                f"shards: the shard along {name} must hold whole chunks",
                expected=f"a multiple of {chunk[name]}",
                got=size,
                hint=f"Choose chunks={{{name!r}: ...}} as well",
            )
    shard = {d.name: _covering(d, chunk) for d in (y, x)} | dict(given)
    plane_bytes = shard[y.name] * shard[x.name] * spec.itemsize
    for d in (y, x):  # a frame that is larger than a shard: fewer rows of chunks, then fewer columns
        if d.name not in given:
            pieces = -(-plane_bytes // SHARD_BYTES)
            shard[d.name] = chunk[d.name] * max(1, shard[d.name] // chunk[d.name] // pieces)
            plane_bytes = shard[y.name] * shard[x.name] * spec.itemsize
    slab_frames = math.prod(chunk[d.name] for d in frame_axes)
    chosen = math.prod(given[d.name] // chunk[d.name] for d in frame_axes if d.name in given)
    frames = min(most_bytes // plane_bytes, MOST_SHARD_FRAMES)
    if spec.frame_json_bytes:
        frames = min(frames, MAX_SHARD_JSON_BYTES // spec.frame_json_bytes)
    layer_chunks = shard[y.name] // chunk[y.name] * (shard[x.name] // chunk[x.name])
    room = max(1, min(frames // slab_frames, MOST_SHARD_CHUNKS // layer_chunks) // chosen)
    for d in reversed(frame_axes):
        pieces = room if d.count is None else _covering(d, chunk) // chunk[d.name]
        if d.count is None and d is not frame_axes[0]:
            room = pieces = min(room, GROWN_CHUNKS)
        if d.name not in given:
            shard[d.name] = chunk[d.name] * -(-pieces // -(-pieces // room))
            room = max(1, room // pieces)
        elif given[d.name] // chunk[d.name] < pieces:
            room = 1
    return shard


def _covering(d: Dimension, chunk: dict[str, int]) -> int:
    """Returns the elements of the whole chunks that cover an axis."""
    return -(-(d.count or 1) // chunk[d.name]) * chunk[d.name]


def _power_of_two(most: int) -> int:
    """Returns the largest power of two that is at most ``most``."""
    return 1 << (most.bit_length() - 1)


def _cut(count: int, edge: int) -> int:
    """Returns the size of chunks of about ``edge`` elements that cover ``count`` with little left over: a
    multiple of 16, or all of them."""
    if count <= edge:
        return count
    pieces = -(-count // edge)
    return min(edge, -(-count // pieces // 16) * 16)


def _checked_axes(shape: Any, axes: Any) -> list[str]:
    """Returns the names of the axes, the usual ones for None. Raises ``SpecError`` unless each has a
    count."""
    if axes is None and isinstance(shape, Sequence | np.ndarray):
        axes = USUAL_AXES.get(len(shape))
    sound = isinstance(axes, str | list | tuple) and isinstance(shape, Sequence | np.ndarray)
    if not sound or len(axes) != len(shape) or len(axes) < 2:
        raise SpecError(
            "shape and axes must have the same length, with the frame's rows and columns last",
            expected='for example shape=(None, 3, 2048, 2048), axes="tcyx"',
            got=f"shape={shape!r}, axes={axes!r}"[:160],
        )
    return [str(name) for name in axes]


def _split_order(order: Any, names: list[str]) -> tuple[list[str], Any]:
    """Returns the axes that change slower than the image, and the order without the image."""
    if not isinstance(order, str | list | tuple) or POSITIONS_AXIS not in order:
        return names[:-2], order
    axis = list(order).index(POSITIONS_AXIS)
    return list(order[:axis]), [name for name in order if name != POSITIONS_AXIS]


def _as_acquired(
    names: list[str], shape: Sequence[int | None], order: Any
) -> tuple[list[str], list[int | None]]:
    """Returns names and counts of the axes in the order of acquisition. Raises ``SpecError``."""
    if not isinstance(order, str | list | tuple) or sorted(map(str, order)) != sorted(names[:-2]):
        raise SpecError(
            "order names every frame axis once",
            expected=f"the axes {', '.join(names[:-2])}, the one that changes slowest first",
            got=repr(order)[:160],
        )
    counts, acquired = dict(zip(names, shape, strict=True)), [*map(str, order), *names[-2:]]
    return acquired, [counts[name] for name in acquired]


def _by_axis(option: str, values: Mapping[str, Any] | None, names: list[str]) -> dict[str, Any]:
    """Returns what a user gave for single axes. Raises ``SpecError``."""
    if not isinstance(values, Mapping | None) or not all(name in names for name in values or ()):
        raise SpecError(
            f"{option} is given by axis",
            expected=f"for example {option}={{{names[-1]!r}: ...}}, of the axes {', '.join(names)}",
            got=repr(values)[:160],
        )
    return dict(values or {})


def _sizes(option: str, values: Mapping[str, int] | None, names: list[str]) -> dict[str, int]:
    """Returns sizes that a user gave for single axes. Raises ``SpecError``."""
    sizes = _by_axis(option, values, names)
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
            raise SpecError(f"{option} along {name}", expected="a whole number, 1 or more", got=repr(size))
    return {name: int(size) for name, size in sizes.items()}
