"""The facts for the block ``dca`` of images when an acquisition ends (``array.atlas_block``): when each time
point began, from the frame log, and statistics of the pixels, from samples of the sealed shards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.atlas_block import MOST_TIMES, intensity_statistics, time_axis
from shardwright.array.grid import image_of, number_in_image
from shardwright.array.metadata import array_shape
from shardwright.array.spec import MAX_CHANNELS
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read.chunk_samples import channel_samples
from shardwright.read.store import parse_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.shard.frame_log import FrameLog

    Times = Mapping[int, npt.NDArray[np.int64]]  # by image
    Statistics = Mapping[int, dict[str, float]]  # by channel

_MOST_POINTS = 1 << 20  # time points of which the log is read once
_CHUNKS, _MOST_CHUNKS, _MOST_READ_BYTES = 16, 2048, 1 << 30  # of each channel; of all together
_NEVER = np.iinfo(np.int64).max


def times_of(
    log: FrameLog, spec: AcquisitionSpec, extents: Sequence[tuple[int, ...]], images: Sequence[int]
) -> Iterator[dict[int, npt.NDArray[np.int64]]]:
    """Yields when each time point of these images began, of some images at a time: UTC nanoseconds, the time
    of the camera of its first frame, of whatever channel or plane, and whether or not that was stored; 0 if
    none came. None of images without a time axis. ``extents``: by image, along their growing axes. Raises
    ``StorageError``, ``ShardFormatError`` when the log is damaged."""
    for some in _read_together(spec, extents, images):
        times = {image: np.full(points, _NEVER, np.int64) for image, points in some.items()}
        for _, _, records in log.blocks() if any(some.values()) else ():
            _note(times, spec, records[(records["position"] >= 0) & (records["camera_ns"] > 0)])
        yield {image: np.where(ns == _NEVER, 0, ns) for image, ns in times.items()}


def _read_together(
    spec: AcquisitionSpec, extents: Sequence[tuple[int, ...]], images: Sequence[int]
) -> Iterator[dict[int, int]]:
    """Yields the time points of as many images as may be in memory at once."""
    some: dict[int, int] = {}
    for image in images:
        array, points = spec.arrays[image], 0
        if (axis := time_axis(array)) is not None:
            stored = [d.name for d in array.stored_dimensions].index(array.dimensions[axis].name)
            points = min(array_shape(array, extents[image])[stored], MOST_TIMES + 1)  # one more: too many
        if some and sum(some.values()) + points > _MOST_POINTS:
            yield some
            some = {}
        some[image] = points
    yield some


def _note(times: Times, spec: AcquisitionSpec, records: np.ndarray) -> None:
    positions = records["position"]
    images = image_of(positions)
    for image in np.unique(images).tolist():
        if image not in times or not times[image].size:
            continue
        mine, counts = images == image, spec.grids.grids[image].counts
        axis = time_axis(spec.arrays[image])
        assert axis is not None, "it has times"
        points = number_in_image(positions[mine]) // math.prod(counts[axis + 1 :])
        points = points % counts[axis] if axis else points
        inside = points < times[image].size
        np.minimum.at(times[image], points[inside], records["camera_ns"][mine][inside])


def statistics_of(store: Path, spec: AcquisitionSpec, images: Sequence[int]) -> dict[int, Statistics]:
    """Returns statistics of the pixels of each channel of these images, of up to 16 chunks of it that lie
    anywhere, without what is all fill value. Fewer of very many images, and none of the last ones. Never
    raises for a damaged store."""
    channels = sum(_channel_count(spec.arrays[image]) for image in images)
    few = max(1, min(_CHUNKS, _MOST_CHUNKS // max(1, channels)))
    left, left_bytes = _MOST_CHUNKS, _MOST_READ_BYTES
    found: dict[int, Statistics] = {}
    for image in images:
        try:
            array = parse_array(store / spec.paths[image])
        except (ShardFormatError, StorageError):
            continue
        axis = _channel_axis(spec.arrays[image])
        count = 1 if axis is None else array.shape[axis]
        left -= few * count
        left_bytes -= few * count * array.chunk_bytes
        if count > MAX_CHANNELS or left < 0 or (left_bytes < 0 and found):
            continue
        samples = channel_samples(array, axis, range(count), few)
        found[image] = {
            channel: statistics
            for channel, values in samples.items()
            if (statistics := intensity_statistics(values))
        }
    return found


def _channel_axis(array: ArraySpec) -> int | None:
    """Returns the number of the channel axis among the stored axes; None without one, or if it is one of the
    frame's own."""
    axis = array.channel_dimension
    if axis is None or axis in array.dimensions[-2:]:
        return None
    return array.stored_dimensions.index(axis)


def _channel_count(array: ArraySpec) -> int:
    axis = _channel_axis(array)
    return 1 if axis is None else array.stored_dimensions[axis].count or 1
