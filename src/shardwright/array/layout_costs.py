"""Finds what makes a layout slow to read, with the figure, from its sizes alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEAST_CHUNK_BYTES = 16 << 10
MOST_CHUNK_BYTES = 64 << 20
LEAST_INDEX_BYTES, MOST_INDEX_BYTES = 128 << 10, 1 << 20
MOST_REQUESTS, USUAL_POINTS = 1000, 1000
DEEP, SHALLOW, STEPS_BYTES = 16, 4, 128 << 20
TIME_AXES = ("t", "time")


class LayoutAxis(NamedTuple):
    """An axis of a layout. ``elements``: None if it is unlimited. ``shard_chunks``: chunks of a shard, None
    without shards."""

    name: str
    elements: int | None
    chunk_size: int
    shard_chunks: int | None


class LayoutCost(NamedTuple):
    """A reason why a layout is slow to read. ``figure``: bytes for "small_chunks" and "large_chunks", index
    bytes per chunk byte for "large_index", requests for "line_through_time". ``text``: one sentence with the
    figure and what to set."""

    kind: str
    figure: float
    text: str


def layout_costs(
    axes: Sequence[LayoutAxis], itemsize: int, index_bytes: int, time: str | None
) -> list[LayoutCost]:
    """Returns what is poor in a layout; nothing for one that readers read well. ``axes``: at least one, in
    storage order, rows and columns last. ``itemsize``: bytes of an element. ``index_bytes``: of a shard, 0
    without shards. ``time``: the axis of time, None without one.

    The limits follow from two facts: a request to a server takes as long as 100 KB to 1 MB of data, and
    readers such as zarr-python load a shard's whole index, and decode a whole chunk, for one element.

    - Chunks below 16 KiB: the fixed cost of a chunk (its index entry, header, calls, and a request of a
      reader that takes chunk by chunk) is larger than that of its pixels. Nothing is said of frames that are
      small themselves: the depth of their chunks is how long they wait.
    - Chunks above 64 MiB: at 1 Gbit/s more than half a second for each element that is looked at.
    - An index above 128 KiB takes longer than a request, so it counts; it is poor if it is larger than the
      chunk that it is loaded for. Above 1 MiB it takes longer than the dearest request, whatever the chunk.
    - A pixel through all time in more than 1000 requests (one for each chunk, and one for the index of each
      shard) takes a minute and more at 50 ms each. It is said where chunks of 16 steps are affordable: a step
      is one frame, and 16 have at most 128 MiB, which the writer holds meanwhile. With an unlimited axis: of
      1000 steps, and only if each step is a file of its own.
    """
    found: list[LayoutCost] = []
    chunk_bytes = math.prod(axis.chunk_size for axis in axes) * itemsize
    frame_bytes = math.prod(axis.elements or 1 for axis in axes[-2:]) * itemsize
    if chunk_bytes < LEAST_CHUNK_BYTES <= frame_bytes:
        text = (
            f"chunk_size: an inner chunk has only {chunk_bytes} bytes, so that its fixed cost is larger than "
            f"that of its pixels"
        )
        found.append(LayoutCost("small_chunks", chunk_bytes, text))
    if chunk_bytes > MOST_CHUNK_BYTES:
        text = (
            f"chunk_size: an inner chunk has {_mib(chunk_bytes)}, which a reader loads and decodes for a "
            f"single pixel; set chunks of 1 to {MOST_CHUNK_BYTES >> 20} MiB"
        )
        found.append(LayoutCost("large_chunks", chunk_bytes, text))
    found += _index_cost(axes, chunk_bytes, index_bytes)
    found += _time_cost(axes, itemsize, frame_bytes, time)
    return found


def _index_cost(axes: Sequence[LayoutAxis], chunk_bytes: int, index_bytes: int) -> Iterator[LayoutCost]:
    if index_bytes <= MOST_INDEX_BYTES and index_bytes <= max(LEAST_INDEX_BYTES, chunk_bytes):
        return
    ratio = index_bytes / chunk_bytes
    chunks = math.prod(axis.shard_chunks or 1 for axis in axes)
    limit = min(MOST_INDEX_BYTES, max(LEAST_INDEX_BYTES, chunk_bytes))
    yield LayoutCost(
        "large_index",
        ratio,
        f"shard_size_chunks: a shard of {chunks} chunks has an index of {_mib(index_bytes)}, {ratio:.3g} "
        f"bytes for each byte of a chunk, which a reader loads for a single chunk; set at most "
        f"{chunks * limit // index_bytes} chunks in a shard, or larger chunks",
    )


def _time_cost(
    axes: Sequence[LayoutAxis], itemsize: int, frame_bytes: int, time: str | None
) -> Iterator[LayoutCost]:
    axis = next((axis for axis in axes if axis.name == time), None)
    if axis is None or axis.chunk_size >= SHALLOW:
        return
    step_bytes = math.prod(a.elements or 1 for a in axes if a is not axis) * itemsize
    if step_bytes > frame_bytes or step_bytes * DEEP > STEPS_BYTES:
        return
    points, shard_size = axis.elements or USUAL_POINTS, axis.chunk_size * (axis.shard_chunks or 1)
    chunks = -(-points // axis.chunk_size)
    shards = 0 if axis.shard_chunks is None else -(-points // shard_size)
    if chunks + shards <= MOST_REQUESTS:
        return
    if axis.elements is None and (shard_size > 1 or frame_bytes < LEAST_CHUNK_BYTES):
        return
    files = "" if axis.shard_chunks is None else f" in {shards} shards"
    yield LayoutCost(
        "line_through_time",
        chunks + shards,
        f"chunk_size: one pixel through {points} steps of {time} is {chunks} chunks{files}, which takes "
        f"{chunks + shards} requests; set chunk_size {DEEP} along {time}",
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"
