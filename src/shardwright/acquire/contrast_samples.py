"""Samples of the pixels of each channel while they are written, from which its contrast window comes.

Workers add to them: a worker that has stored the first chunks of a slab takes some pixels of its frames,
which are in memory. The sealer's thread reads them when it writes the metadata of an image. The core knows
nothing of it, since no frame's way depends on it.

Of all slabs with a channel those are kept that have the lowest of random numbers: a hash of the slab's
number. So they are spread over the acquisition without any period, whatever comes in which order or again,
and n slabs cost about 16 ln(n) samples, ever fewer as it goes on.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.array.contrast_window import contrast_window
from shardwright.array.grid import image_of, place_in_image
from shardwright.array.spec import MAX_CHANNELS
from shardwright.kernels.sample_pixels import sample_pixels
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read.chunk_samples import channel_samples
from shardwright.read.store import parse_array

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.contrast_window import ContrastWindow
    from shardwright.array.grid import Grid
    from shardwright.array.spec import ArraySpec

    Windows = dict[int, ContrastWindow]  # by number of the channel

_SLABS = 16  # of which each channel keeps pixels
_MOST_PIXELS, _LEAST_PIXELS = 1024, 16  # of a channel in one slab
_MOST_BYTES = 4 << 20  # of all pixels, unless there are more than 8,192 channels of 16 bits
_CHUNKS = 8  # of each channel, read back after a crash
_MOST_CHUNKS, _MOST_READ_BYTES = 2048, 1 << 30  # read back of all channels


class _Channels:
    """The channels of one array. ``found``: those whose window is to be found, since the user has given
    none."""

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        self.dtype = np.dtype(spec.dtype).newbyteorder("<")
        self.frame_pixels = math.prod(spec.frame_shape)
        self.found: list[int] = []
        if self.dtype.kind != "b" and spec.channel_count <= MAX_CHANNELS:
            given = [channel.window for channel in spec.channels] or [None] * spec.channel_count
            self.found = [i for i, window in enumerate(given) if window is None]
        self.stored_axis, axis = _channel_axes(spec)
        self._blocks, self._slabs_per_block, self.per_slab, stride = 1, 1, 1, 1
        if axis is not None:
            self.per_slab, stride = grid.chunk[axis], grid.slab_strides[axis]
            self._blocks = grid.slab_counts[axis]
            self._slabs_per_block = math.prod(grid.slab_counts[axis + 1 :])
        self.rows = min(self.per_slab, spec.channel_count)  # a chunk may reach beyond the array
        # the channel, within its slab, of the frame at each place
        self.of_place = np.arange(grid.frames_per_slab) // stride % self.per_slab

    def block_of(self, slab: int) -> int:
        """Returns the place of a slab along the channel axis."""
        return place_in_image(slab) // self._slabs_per_block % self._blocks


def _channel_axes(spec: ArraySpec) -> tuple[int | None, int | None]:
    """Returns the place of the channel axis among the stored axes, and among those in acquisition order; None
    without one, or if it is unlimited or one of the frame's own."""
    for place, dimension in enumerate(spec.stored_dimensions[:-2]):
        if dimension.axis_type == "channel":
            return (place, spec.dimensions.index(dimension)) if dimension.count else (None, None)
    return None, None


class _Reservoir:
    """The samples of the channels that share slabs: ``values`` [slabs, channels, pixels]; ``filled``
    bool[slabs, channels]: where a frame came. ``keys``: (random number, slab) of each; ``highest``: of them,
    once there are enough: a slab with a higher one is not kept."""

    __slots__ = ("filled", "highest", "keys", "values")

    def __init__(self, channels: int, pixels: int, dtype: np.dtype[Any]) -> None:
        self.keys: list[tuple[int, int]] = []
        self.highest: tuple[int, int] | None = None
        self.values = np.zeros((_SLABS, channels, pixels), dtype)
        self.filled = np.zeros((_SLABS, channels), np.bool_)

    def is_closed_to(self, key: tuple[int, int]) -> bool:
        """From any thread."""
        return self.highest is not None and key > self.highest

    def put(self, key: tuple[int, int], values: npt.NDArray[Any], filled: npt.NDArray[np.bool_]) -> None:
        if self.is_closed_to(key):
            return
        if key in self.keys:  # encoded again
            place = self.keys.index(key)
        else:
            place = len(self.keys) if self.highest is None else self.keys.index(self.highest)
        self.keys[place : place + 1] = [key]
        self.values[place], self.filled[place] = values, filled
        if len(self.keys) == _SLABS:
            self.highest = max(self.keys)

    def of(self, channel: int) -> npt.NDArray[Any]:
        kept: npt.NDArray[Any] = self.values[:, channel][self.filled[:, channel]]
        return kept


class ContrastSamples:
    """The samples of one acquisition. Images of a plate with the same array share them, and so their windows:
    wells compare. ``add`` from any worker's thread, the rest from the sealer's."""

    def __init__(self, spec: AcquisitionSpec) -> None:
        self._spec = spec
        tables: dict[int, tuple[int, _Channels]] = {}  # by the id of the array's specification
        for image, (array, grid) in enumerate(zip(spec.arrays, spec.grids.grids, strict=True)):
            if id(array) not in tables:
                tables[id(array)] = image, _Channels(array, grid)
        self._channels = [tables[id(array)][1] for array in spec.arrays]
        # by image: the first of those that share its samples
        self._shared = [
            image if spec.plate is None else tables[id(array)][0] for image, array in enumerate(spec.arrays)
        ]
        sampled = [self._channels[image] for image in set(self._shared)]
        channels = sum(max(len(each.found), each.rows) for each in sampled if each.found)
        self._most_bytes = _MOST_BYTES // max(1, channels) // _SLABS  # of a channel in one slab
        self._lock = threading.Lock()
        # by image and block of channels; changed under _lock
        self._kept: dict[tuple[int, int], _Reservoir] = {}

    def add(self, slab: int, frames: npt.NDArray[np.int64]) -> None:
        """Takes a sample of a slab's ``frames``, int64[places] addresses of their pixels, 0 where none came;
        unless enough others are kept."""
        channels = self._channels[image_of(slab)]
        if not channels.found:
            return
        number, key = (self._shared[image_of(slab)], channels.block_of(slab)), (_mixed(slab), slab)
        if (kept := self._kept.get(number)) is not None and kept.is_closed_to(key):
            return
        pixels = max(_LEAST_PIXELS, min(_MOST_PIXELS, self._most_bytes // channels.dtype.itemsize))
        values = np.zeros((channels.rows, pixels), channels.dtype)
        filled = np.zeros(channels.rows, np.bool_)
        for channel in range(channels.rows):
            came = frames[(frames != 0) & (channels.of_place == channel)]
            if came.size:
                sample = values[channel].view(np.uint8)
                sample_pixels(came, channels.frame_pixels, channels.dtype.itemsize, key[0], sample)
                filled[channel] = True
        with self._lock:
            if number not in self._kept:
                self._kept[number] = _Reservoir(channels.rows, pixels, channels.dtype)
            self._kept[number].put(key, values, filled)

    def windows(self, image: int) -> Windows:
        """Returns the contrast windows of an image's channels, as far as there are samples; none for those
        whose window the user has given."""
        channels, windows = self._channels[image], {}
        for channel in channels.found:
            block, within = divmod(channel, channels.per_slab)
            with self._lock:
                kept = self._kept.get((self._shared[image], block))
                values = None if kept is None else kept.of(within)
            window = None if values is None else contrast_window(values)
            if window is not None:
                windows[channel] = window
        return windows

    def sealed_windows(self, path: Path, images: Sequence[int]) -> dict[int, Windows]:
        """Returns the contrast windows of ``images`` from what is sealed in the store at ``path``: for an
        acquisition that was resumed, whose earlier samples are gone. Reads a few chunks, and none of the last
        images if there are very many; never raises for a damaged store."""
        chunks = _MOST_CHUNKS // max(1, sum(len(self._channels[image].found) for image in images))
        left, left_bytes = _MOST_CHUNKS, _MOST_READ_BYTES
        pixels: dict[int, dict[int, list[npt.NDArray[Any]]]] = {}
        for image in images:
            channels = self._channels[image]
            if not channels.found or left <= 0 or left_bytes <= 0:
                continue
            try:
                array = parse_array(path / self._spec.paths[image])
            except (ShardFormatError, StorageError):
                continue
            count = len(channels.found)
            few = max(1, min(_CHUNKS, chunks, left_bytes // (count * array.chunk_bytes)))
            left -= few * count
            left_bytes -= few * count * array.chunk_bytes
            found = channel_samples(array, channels.stored_axis, channels.found, few)
            for channel, values in found.items():
                pixels.setdefault(self._shared[image], {}).setdefault(channel, []).append(values)
        windows = {number: _windows_of(found) for number, found in pixels.items()}
        return {image: windows.get(self._shared[image], {}) for image in images}


def _windows_of(pixels: dict[int, list[npt.NDArray[Any]]]) -> Windows:
    windows = {channel: contrast_window(np.concatenate(parts)) for channel, parts in pixels.items()}
    return {channel: window for channel, window in windows.items() if window is not None}


def _mixed(number: int) -> int:
    """Returns 32 random bits that belong to a number (the finalizer of SplitMix64)."""
    number = (number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number >> 32
