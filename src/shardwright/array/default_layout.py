"""Chooses chunks and shards for an array of which only shape, dtype and axes are given (``default_layout``),
and finds chunks that read or write badly (``size_warnings``).

    depth   frames in an inner chunk, along the fastest frame axis if that is time or space: ``DEPTH``, or as
            many as fill the chunk where a frame is small. A slab of them is held in memory before it is
            compressed, so it has at most ``SLAB_BYTES``. Along all other frame axes a chunk has one frame:
            otherwise every combination of them would be held until the slowest axis has filled its chunk.
    plane   the chunk's rows and columns: about square, ``CHUNK_BYTES`` with the depth, and the last chunk of
            a row about as long as the others
    shard   whole frames, ``SHARD_BYTES`` of them: along the fastest frame axis, and where that ends along the
            next one, so that frames in order fill one shard after the other. A larger frame is cut.

For 2048 x 2048 frames of uint16 this gives the layout of the benchmarks: 16 x 256 x 256 in 64 x 2048 x 2048.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import SpecError

from .spec import ArraySpec, Dimension, parse_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

CHUNK_BYTES = 2 << 20
SLAB_BYTES = 128 << 20
SHARD_BYTES = 512 << 20
DEPTH, MOST_DEPTH = 16, 1024
MOST_SHARD_FRAMES = 1 << 16  # of small frames: each has a record in the journal, made before the first comes
SMALL_CHUNK_BYTES = 16 << 10  # below, the fixed cost of a chunk is larger than that of its pixels
_OME_ORDER = {"time": 0, "channel": 1, "other": 1, "space": 2}


def default_layout(
    shape: Sequence[int | None],
    dtype: npt.DTypeLike,
    axes: str | Sequence[str],
    *,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    scales: Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
    **fields: Any,
) -> ArraySpec:
    """Returns the specification of an array of ``shape`` (None: any number, first axis only), with chunks and
    shards as this module's first lines say.

    ``axes``: a name for each axis in the order in which frames come, the frame's rows and columns last, such
    as ``"tczyx"``. It is stored in the order that OME-Zarr wants (time, channel, space). ``chunks`` and
    ``shards`` override the choice along single axes, in elements: ``chunks={"z": 1}``,
    ``shards={"t": 64}``. ``scales`` and ``units`` by axis, as in ``Dimension``; ``fields`` are further ones
    of ``ArraySpec``, such as ``codec``. Raises ``SpecError``.
    """
    names = list(axes)
    if len(names) != len(shape) or len(names) < 2:
        raise SpecError(
            "shape and axes must have the same length, with the frame's rows and columns last",
            expected='for example shape=(None, 3, 2048, 2048), axes="tcyx"',
            got=f"shape={tuple(shape)!r}, axes={axes!r}"[:160],
        )
    for option, sizes in (("chunks", chunks), ("shards", shards), ("scales", scales), ("units", units)):
        if unknown := sorted(set(sizes or ()) - set(names)):
            raise SpecError(f"{option} names axes that the array does not have", expected=names, got=unknown)
    plain = parse_spec(  # which checks what the choice is made from
        {
            "dtype": dtype,
            "dimensions": [
                {"name": name, "count": count, "chunk_size": 1 if i < len(names) - 2 else 1024}
                for i, (name, count) in enumerate(zip(names, shape, strict=True))
            ],
        }
    )
    chunk = {**_default_chunk(plain), **_checked("chunks", chunks)}
    shard = {**_default_shard(plain, chunk), **_checked("shards", shards)}
    dimensions = []
    for d in plain.dimensions:
        name = d.name
        if shard[name] % chunk[name]:
            raise SpecError(
                f"the shard along {name} must hold whole chunks",
                expected=f"a multiple of {chunk[name]}",
                got=shard[name],
                hint=f"Give chunks={{{name!r}: ...}} as well, or another shards={{{name!r}: ...}}",
            )
        dimensions.append(
            Dimension(
                name=name,
                count=d.count,
                chunk_size=chunk[name],
                shard_size_chunks=shard[name] // chunk[name],
            ).model_dump()
            | {"scale": (scales or {}).get(name, 1.0), "unit": (units or {}).get(name)}
        )
    order = sorted(plain.dimensions[:-2], key=lambda d: _OME_ORDER[d.axis_type])
    if list(order) != list(plain.dimensions[:-2]):
        fields.setdefault("storage_order", tuple(d.name for d in (*order, *plain.dimensions[-2:])))
    return parse_spec({"dtype": plain.dtype, "dimensions": dimensions, **fields})


def size_warnings(spec: ArraySpec) -> list[str]:
    """Returns one sentence, with better numbers, if the chunks are so small that reading and writing them
    costs more than their pixels."""
    chunk_bytes = math.prod(d.chunk_size for d in spec.dimensions) * spec.itemsize
    if chunk_bytes >= SMALL_CHUNK_BYTES or spec.frame_bytes < SMALL_CHUNK_BYTES:
        return []
    slow = f"chunk_size: an inner chunk has only {chunk_bytes} bytes, so that its fixed cost is larger than"
    return [f"{slow} that of its pixels; better is {chunk_advice(spec)}"]


def chunk_advice(spec: ArraySpec) -> str:
    """Returns the chunk sizes that ``default_layout`` chooses for this array, such as ``t 16, y 256, x
    256``."""
    return ", ".join(f"{name} {size}" for name, size in _default_chunk(spec).items())


def _default_chunk(spec: ArraySpec) -> dict[str, int]:
    """Returns the elements of an inner chunk by axis, for an array of which only shape and dtype count."""
    *frame_axes, y, x = spec.dimensions
    chunk = {d.name: 1 for d in frame_axes}
    depth = 1
    if frame_axes and frame_axes[-1].axis_type in ("time", "space"):
        count = frame_axes[-1].count or MOST_DEPTH
        fits = max(1, SLAB_BYTES // spec.frame_bytes)
        depth = min(count, fits, max(DEPTH, CHUNK_BYTES // spec.frame_bytes), MOST_DEPTH)
        depth = depth if depth == count else _power_of_two(depth)
        chunk[frame_axes[-1].name] = depth
    rows, columns = spec.frame_shape
    pixels = max(1, CHUNK_BYTES // spec.itemsize // depth)
    edge = _power_of_two(math.isqrt(pixels))
    chunk[y.name] = _cut(rows, max(edge, _power_of_two(max(1, pixels // columns))))
    chunk[x.name] = _cut(columns, max(edge, _power_of_two(max(1, pixels // rows))))
    return chunk


def _default_shard(spec: ArraySpec, chunk: dict[str, int]) -> dict[str, int]:
    """Returns the elements of a shard by axis, whole chunks. Slower frame axes share a shard only if it holds
    all of the faster ones."""
    *frame_axes, y, x = spec.dimensions
    shard = {d.name: chunk[d.name] * -(-(d.count or 1) // chunk[d.name]) for d in (y, x)}
    plane_bytes = math.prod(shard.values()) * spec.itemsize
    for d in (y, x):  # a frame that is larger than a shard: fewer rows of chunks, then fewer columns
        pieces = -(-plane_bytes // SHARD_BYTES)
        shard[d.name] = chunk[d.name] * max(1, shard[d.name] // chunk[d.name] // pieces)
        plane_bytes = shard[y.name] * shard[x.name] * spec.itemsize
    slab_frames = math.prod(chunk[d.name] for d in frame_axes)
    room = max(1, min(SHARD_BYTES // (plane_bytes * slab_frames), MOST_SHARD_FRAMES // slab_frames))
    for d in reversed(frame_axes):
        pieces = room if d.count is None else -(-d.count // chunk[d.name])
        shard[d.name] = chunk[d.name] * -(-pieces // -(-pieces // room))
        room = max(1, room // pieces)
    return shard


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


def _checked(option: str, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """Returns sizes that a user gave, by axis. Raises ``SpecError``."""
    for name, size in (sizes or {}).items():
        if not isinstance(size, int | np.integer) or size < 1:
            raise SpecError(
                f"{option} along {name}", expected="a whole number of elements, 1 or more", got=size
            )
    return {name: int(size) for name, size in (sizes or {}).items()}
