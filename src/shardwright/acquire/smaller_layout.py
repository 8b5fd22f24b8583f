"""Finds sizes with which an acquisition fits a memory budget, for the message that refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.default_layout import sizes_text
from shardwright.model.errors import BudgetError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec, Dimension

    from .limits import Limits


def ring_that_fits(
    spec: AcquisitionSpec, limits: Limits, budget_bytes: int, least: int, derive: Callable[..., Limits]
) -> str | None:
    """Returns a sentence with a number of frames for the ring, None if not even the ``least`` fits.
    ``derive`` returns the limits of a specification (and ``ring_frames``), whatever the budget."""
    frames = limits.ring_frames
    while frames > least:
        frames = max(least, frames // 2)
        if derive(spec, ring_frames=frames).memory_bytes <= budget_bytes:
            return f"ring_frames {frames} fits"
    return None


def sizes_that_fit(
    spec: AcquisitionSpec, limits: Limits, budget_bytes: int, derive: Callable[..., Limits]
) -> str:
    """Returns a sentence with chunks and shards, halved as often as need be, and with the budget that is
    needed. ``derive`` as above. Only images of one array have one answer."""
    needed = f"A budget of {-(-limits.memory_bytes >> 20):,} MiB is enough"
    if len(spec.distinct_arrays) > 1:
        return needed
    (array,), found = spec.distinct_arrays, limits
    several = {"images": [image.name for image in spec.images], "plate": spec.plate, "order": spec.order}
    while found.memory_bytes > budget_bytes:
        smaller = _smaller(array, shards=found.shard_table_bytes > max(found.ring_bytes, found.worker_bytes))
        if smaller is None:
            return f"{needed}, and no smaller chunks are"
        array = smaller
        try:
            found = derive(parse_acquisition({"array": array, **several}))
        except (BudgetError, SpecError):
            return needed  # smaller ones would be too many
    sizes = sizes_text([(d.name, d.chunk_size, d.shard_size_chunks) for d in array.dimensions])
    return f"{sizes} need {-(-found.memory_bytes >> 20):,} MiB. {needed}"


def _smaller(array: ArraySpec, *, shards: bool) -> ArraySpec | None:
    """Returns the array with shards, or with chunks in shards as long as before, of half the size along one
    axis; None if there are none. Of chunks the frame axes go first: their depth is how many frames are
    held."""
    *frame_axes, y, x = array.dimensions
    for axes in ([*frame_axes, y, x],) if shards else (frame_axes, [y, x]):
        largest = max(axes, key=lambda d: d.shard_chunks if shards else d.chunk_size, default=None)
        half = None if largest is None else _half(largest, shards=shards)
        if half is not None:
            dimensions = tuple(half if d is largest else d for d in array.dimensions)
            return array.model_copy(update={"dimensions": dimensions})
    return None


def _half(d: Dimension, *, shards: bool) -> Dimension | None:
    chunk, shard = d.chunk_size, d.shard_chunks
    if shards:
        return d.model_copy(update={"shard_size_chunks": shard // 2}) if shard > 1 else None
    longer = None if d.shard_size_chunks is None else shard * 2
    half = d.model_copy(update={"chunk_size": chunk // 2, "shard_size_chunks": longer})
    return half if chunk > 1 else None
