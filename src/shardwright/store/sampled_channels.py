"""The channels that are sampled for their contrast windows, the images that share samples, and the memory
that these take: planned with every other limit before anything is allocated.

Each image has samples of its own, and the images of a plate with the same array share them. Where that would
be too many channels, all images with the same array share them, then all whose channels are alike; of what is
still too much the last images have none.
"""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardwright.array.grid import number_in_image
from shardwright.array.spec import MAX_CHANNELS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.grid import Grid
    from shardwright.array.spec import ArraySpec

SLABS = 16  # of which each channel keeps pixels
_MOST_PIXELS, _LEAST_PIXELS = 1024, 16  # of a channel in one slab
_MOST_BYTES = 4 << 20  # of all pixels, unless they are of 64 bits or more
_MOST_CHANNELS = 4096  # with samples
RESERVOIR_BYTES = 1 << 10  # objects around the arrays of one image; measured: 0.5 KiB


class ChannelForm(NamedTuple):
    """The properties that the channels of images that share samples have in common. ``found``: those whose
    window is to be found, since the user has given none. ``rows``: the channels that a slab covers, inside
    the array. ``per_slab``: those of a chunk, which may reach beyond it. ``blocks``: slabs along the channel
    axis."""

    dtype: np.dtype[np.generic]
    found: tuple[int, ...]
    rows: int
    per_slab: int
    blocks: int


class Channels:
    """The channels of one array. ``are_colors``: of a colour camera, whose windows must be one, or whites
    would not be white."""

    __slots__ = ("_slabs_per_block", "_stride", "are_colors", "form", "frame_pixels", "stored_axis")

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        dtype = np.dtype(spec.dtype).newbyteorder("<")
        self.frame_pixels = math.prod(spec.frame_shape)
        found: tuple[int, ...] = ()
        if dtype.kind != "b" and spec.channel_count <= MAX_CHANNELS:
            given = [channel.window for channel in spec.channels] or [None] * spec.channel_count
            found = tuple(i for i, window in enumerate(given) if window is None)
        self.are_colors = spec.interleaved
        if self.are_colors:
            found = tuple(i for i in found if i < 3)
        self.stored_axis, axis = _channel_axes(spec)
        blocks, per_slab, self._slabs_per_block, self._stride = 1, 1, 1, 1
        if axis is not None:
            blocks, per_slab = grid.slab_counts[axis], grid.chunk[axis]
            self._slabs_per_block = math.prod(grid.slab_counts[axis + 1 :])
            self._stride = grid.slab_strides[axis]
        self.form = ChannelForm(dtype, found, min(per_slab, spec.channel_count), per_slab, blocks)

    def block_of(self, slab: int) -> int:
        """Returns the block of a slab along the channel axis."""
        return number_in_image(slab) // self._slabs_per_block % self.form.blocks

    def channels_in_slab(self, frames_per_slab: int) -> np.ndarray:
        """Returns the channel, within its slab, of the frame at each index."""
        return np.arange(frames_per_slab) // self._stride % self.form.per_slab


def _channel_axes(spec: ArraySpec) -> tuple[int | None, int | None]:
    """Returns the number of the channel axis among the stored axes, and among those in acquisition order;
    None without one, or if it is unlimited or one of the frame's own."""
    axis = spec.channel_dimension
    if axis is None or axis.count is None or axis in spec.dimensions[-2:]:
        return None, None
    return spec.stored_dimensions.index(axis), spec.dimensions.index(axis)


def _slab_record(form: ChannelForm, most_bytes: int) -> np.dtype[np.void]:
    pixels = max(_LEAST_PIXELS, min(_MOST_PIXELS, most_bytes // form.dtype.itemsize))
    return np.dtype(
        [("key", "<u8"), ("filled", "?", (form.rows,)), ("values", form.dtype, (form.rows, pixels))]
    )


class SampledChannels:
    """Those of one acquisition. ``of_image``: the channels of each image; ``shared``: the first image with
    which it shares samples, None where it has none."""

    def __init__(self, spec: AcquisitionSpec) -> None:
        of_array: dict[int, Channels] = {}  # by the id of the array's specification
        forms: dict[ChannelForm, ChannelForm] = {}
        for array, grid in zip(spec.arrays, spec.grids.grids, strict=True):
            if id(array) not in of_array:
                channels = of_array[id(array)] = Channels(array, grid)
                channels.form = forms.setdefault(channels.form, channels.form)
        self.of_image = [of_array[id(array)] for array in spec.arrays]
        alike: list[Sequence[Hashable]] = [
            range(len(self.of_image)),
            [id(array) for array in spec.arrays],
            [id(channels.form) for channels in self.of_image],
        ]
        for keys in alike if spec.plate is None else alike[1:]:
            firsts: dict[Hashable, int] = {}
            for image, key in enumerate(keys):
                if self.of_image[image].form.found:
                    firsts.setdefault(key, image)
            if self._count(firsts.values()) <= _MOST_CHANNELS:
                break
        self.firsts = self._within_bound(firsts.values())
        has_samples = set(self.firsts)
        self.shared = [first if (first := firsts.get(key)) in has_samples else None for key in keys]
        most_bytes = _MOST_BYTES // max(1, self._count(self.firsts)) // SLABS  # of a channel in one slab
        # by the id of the form: one object for each, since a dtype takes more than a small sample
        self._records = {id(form): _slab_record(form, most_bytes) for form in forms}
        self._most_bytes = most_bytes

    def with_more(self, spec: AcquisitionSpec) -> SampledChannels:
        """Returns them with the images that ``spec`` has more. What the others share stays as it is, since
        samples are there already."""
        more = copy(self)
        more.take_images(spec)
        return more

    def take_images(self, spec: AcquisitionSpec) -> None:
        """Takes the specification with images that were added. One has samples of its own while these keep
        to the bound, else those of an image with the same channels; wells of a plate share them anyway."""
        self.of_image, self.shared, self.firsts = [*self.of_image], [*self.shared], [*self.firsts]
        self._records = dict(self._records)
        of_array = dict(zip(map(id, spec.arrays), self.of_image, strict=False))
        for image in range(len(self.of_image), len(spec.arrays)):
            array = spec.arrays[image]
            if id(array) not in of_array:
                of_array[id(array)] = Channels(array, spec.grids.grids[image])
            channels = of_array[id(array)]
            forms = (self.of_image[first].form for first in self.firsts)
            channels.form = form = next((form for form in forms if form == channels.form), channels.form)
            self._records.setdefault(id(form), _slab_record(form, self._most_bytes))
            self.of_image.append(channels)
            alike = [first for first in self.firsts if self.of_image[first].form is form]
            if form.found and not (spec.plate is not None and alike):
                self.firsts.append(image)
                if self.memory_bytes <= _MOST_BYTES and self._count(self.firsts) <= _MOST_CHANNELS:
                    alike = [image]
                else:
                    self.firsts.pop()
            self.shared.append(alike[0] if alike else None)

    def slab_record(self, form: ChannelForm) -> np.dtype[np.void]:
        """The record of one slab that is kept: its random number; whether a frame of each channel came; and
        their pixels, [rows, pixels]."""
        return self._records[id(form)]

    @property
    def memory_bytes(self) -> int:
        """The most that all samples take."""
        forms = [self.of_image[image].form for image in self.firsts]
        return sum(
            RESERVOIR_BYTES + form.blocks * (8 + SLABS * self.slab_record(form).itemsize) for form in forms
        )

    def _count(self, images: Iterable[int]) -> int:
        """The number of channels of ``images``, those of whole slabs."""
        return sum(form.blocks * form.rows for form in (self.of_image[image].form for image in images))

    def _within_bound(self, images: Iterable[int]) -> list[int]:
        """Returns the first of ``images``, as many as have at most so many channels together."""
        kept, count = [], 0
        for image in images:
            count += self._count([image])
            if count <= _MOST_CHANNELS:
                kept.append(image)
        return kept
