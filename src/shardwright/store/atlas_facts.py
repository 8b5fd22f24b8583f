"""The facts for the block ``dca`` of images when an acquisition ends (``array.atlas_block``): when each time
point began, from the frame log, and statistics of the pixels, from samples of the sealed shards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.atlas_block import MOST_TIMES, TimePoints, intensity_statistics, step_s, time_axis
from shardwright.array.grid import image_of, number_in_image
from shardwright.array.metadata import array_shape
from shardwright.array.spec import MAX_CHANNELS
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read.chunk_samples import SampleBudget, channel_samples
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

# 128 MiB: the time points that one pass over the log looks for, and the passes. A plate of 1,536 fields of
# 65,536 time points takes six; images for which none is left have no times.
_MOST_POINTS, _MOST_PASSES = 1 << 24, 8
_SOME_POINTS = 1 << 10  # of an image that has too many: their median step is that of all
_CHUNKS = 16  # of each channel
_NEVER = np.iinfo(np.int64).max


def times_of(
    log: FrameLog, spec: AcquisitionSpec, extents: Sequence[tuple[int, ...]], images: Sequence[int]
) -> Iterator[dict[int, TimePoints]]:
    """Yields when each time point of these images began, of some images at a time; each dict is emptied when
    the next one is asked for. The time is that of the camera of the first frame, of any channel or plane,
    and whether or not that was stored. ``extents``: by image, along their growing axes.

    Of an image with more than ``MOST_TIMES`` time points a few are looked at if its axis has no unit, else
    none; none of the last images of more than 134,217,728 time points in all. Raises ``StorageError``,
    ``ShardFormatError`` when the log is damaged."""
    counts = {image: _time_points(spec.arrays[image], extents[image]) for image in images}
    for some in _read_together({image: _looked_at(spec.arrays[image], n) for image, n in counts.items()}):
        times = {image: np.full(points, _NEVER, np.int64) for image, points in some.items() if points}
        for _, _, records in log.blocks(of_images=times) if times else ():
            _note(times, spec, records)
        none = np.zeros(0, np.int64)
        for ns in times.values():
            ns[ns == _NEVER] = 0
        found = {image: TimePoints(times.get(image, none), counts[image]) for image in some}
        yield found
        found.clear()  # also the caller's: before those of the next pass are made
        times.clear()


def _time_points(array: ArraySpec, extents: tuple[int, ...]) -> int:
    if (axis := time_axis(array)) is None:
        return 0
    stored = [d.name for d in array.stored_dimensions].index(array.dimensions[axis].name)
    return array_shape(array, extents)[stored]


def _looked_at(array: ArraySpec, count: int) -> int:
    if count <= MOST_TIMES:
        return count
    return 0 if step_s(array) is not None else _SOME_POINTS


def _read_together(looked_at: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Yields the time points of as many images as are in memory at once; none of images that come too late
    for the last pass."""
    some: dict[int, int] = {}
    held, passes = 0, 1
    for image, points in looked_at.items():
        if held + points > _MOST_POINTS and passes < _MOST_PASSES:
            yield some
            some, held, passes = {}, 0, passes + 1
        some[image] = points if held + points <= _MOST_POINTS else 0
        held += some[image]
    yield some


def _note(times: Times, spec: AcquisitionSpec, records: np.ndarray) -> None:
    usable = (records["position"] >= 0) & (records["camera_ns"] > 0)
    positions, camera_ns = records["position"][usable], records["camera_ns"][usable]
    images = image_of(positions)
    for image in np.unique(images).tolist():
        if image not in times:
            continue
        mine, counts = images == image, spec.grids.grids[image].counts
        axis = time_axis(spec.arrays[image])
        assert axis is not None, "it has times"
        points = number_in_image(positions[mine]) // math.prod(counts[axis + 1 :])
        points = points % counts[axis] if axis else points
        inside = points < times[image].size
        np.minimum.at(times[image], points[inside], camera_ns[mine][inside])


def statistics_of(store: Path, spec: AcquisitionSpec, images: Sequence[int]) -> dict[int, Statistics]:
    """Returns statistics of the pixels of each channel of these images, of up to 16 chunks of it that lie
    anywhere, without what is all fill value. Of many images they are of fewer chunks, so that all have some;
    the last ones have none where one of each channel is more than ``SampleBudget`` has. Never raises for a
    damaged store."""
    budget = SampleBudget()
    found: dict[int, Statistics] = {}
    needs = {image: _one_of_each(spec.arrays[image]) for image in images}
    chunks, nbytes = (sum(each) for each in zip((0, 0), *needs.values(), strict=True))
    for image in images:
        share = budget.times(chunks, nbytes)  # this image's, and that of each later one
        chunks, nbytes = chunks - needs[image][0], nbytes - needs[image][1]
        try:
            array = parse_array(store / spec.paths[image])
        except (ShardFormatError, StorageError):
            continue
        axis = _channel_axis(spec.arrays[image])
        count = 1 if axis is None else array.shape[axis]
        most = budget.times(count, count * array.chunk_bytes)
        if count > MAX_CHANNELS or not most:
            continue
        samples = channel_samples(array, axis, range(count), min(_CHUNKS, most, max(1, share)), budget)
        found[image] = {
            channel: statistics
            for channel, values in samples.items()
            if (statistics := intensity_statistics(values))
        }
    return found


def _one_of_each(array: ArraySpec) -> tuple[int, int]:
    """Returns the number and the bytes of one chunk of each channel."""
    axis = _channel_axis(array)
    count = 1 if axis is None else array.stored_dimensions[axis].count or 1
    return count, count * math.prod(d.chunk_size for d in array.dimensions) * array.itemsize


def _channel_axis(array: ArraySpec) -> int | None:
    """Returns the number of the channel axis among the stored axes; None without one, or if it is one of the
    frame's own."""
    axis = array.channel_dimension
    if axis is None or axis in array.dimensions[-2:]:
        return None
    return array.stored_dimensions.index(axis)
