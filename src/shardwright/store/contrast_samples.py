"""Samples of the pixels of each channel while they are written, from which its contrast window comes.

Workers add to them: a worker that has stored the first chunks of a slab takes some pixels of its frames,
which are in memory. The sealer's thread reads them when it writes the metadata of an image. The core knows
nothing of it, since no frame's way depends on it.

Of all slabs with a channel those are kept that have the highest of random numbers: a hash of the slab's
number. So they are spread over the acquisition without any period, whatever comes in which order or again,
and n slabs cost about 16 ln(n) samples, ever fewer as it goes on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.array.contrast_window import ContrastWindow, contrast_window
from shardwright.array.grid import image_of
from shardwright.kernels.gather import sample_pixels
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read.chunk_samples import channel_samples
from shardwright.read.store import parse_array

from .sampled_channels import SLABS, SampledChannels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec

    Windows = dict[int, ContrastWindow]  # by number of the channel

_CHUNKS = 8  # of each channel, read back after a crash
_MOST_CHUNKS, _MOST_READ_BYTES = 2048, 1 << 30  # read back of all channels
_MASK_64 = (1 << 64) - 1


class _Reservoir:
    """The samples that some images share: ``slabs`` [blocks, SLABS] of ``slab_record``, those with the
    highest keys of each block. ``lowest``: uint64[blocks], the lowest key that is kept, 0 while there is
    room."""

    __slots__ = ("lowest", "slabs")

    def __init__(self, blocks: int, record: np.dtype[np.void]) -> None:
        self.slabs = np.zeros((blocks, SLABS), record)
        self.lowest = np.zeros(blocks, np.uint64)

    def is_closed_to(self, block: int, key: int) -> bool:
        """True if enough slabs with higher keys are kept. From any thread."""
        return key < self.lowest.item(block)

    def put(self, block: int, slab: npt.NDArray[np.void]) -> None:
        if self.is_closed_to(block, slab["key"].item()):
            return
        slabs = self.slabs[block]
        again = np.flatnonzero(slabs["key"] == slab["key"])  # encoded again
        slabs[again[0] if again.size else slabs["key"].argmin()] = slab
        self.lowest[block] = slabs["key"].min()

    def of(self, block: int, channel: int) -> npt.NDArray[Any]:
        slabs = self.slabs[block]
        kept: npt.NDArray[Any] = slabs["values"][:, channel][slabs["filled"][:, channel]]
        return kept


class ContrastSamples:
    """The samples of one acquisition. Images of a plate with the same array share them, and so their windows:
    wells compare. ``add`` from any worker's thread, the rest from the sealer's."""

    def __init__(self, spec: AcquisitionSpec) -> None:
        self._spec = spec
        self._sampled = SampledChannels(spec)
        self._lock = threading.Lock()
        # by the first image that shares it; changed under _lock
        self._kept: dict[int, _Reservoir] = {}

    def take_images(self, spec: AcquisitionSpec) -> None:
        """Takes the specification with images that were added. In one step: workers read it meanwhile."""
        self._sampled, self._spec = self._sampled.with_more(spec), spec

    def bytes_with(self, spec: AcquisitionSpec) -> int:
        """Returns the most that all samples take with the images that ``spec`` has more."""
        return self._sampled.with_more(spec).memory_bytes

    @property
    def memory_bytes(self) -> int:
        """As ``SampledChannels.memory_bytes``."""
        return self._sampled.memory_bytes

    def add(self, slab: int, frames: npt.NDArray[np.int64], *, first: int = 0) -> None:
        """Takes a sample of a slab's ``frames``, int64[frames_per_slab] addresses of their pixels, 0 where
        none came; unless enough others are kept. ``first``: the first index in the slab, where other frames
        of the slab are not in memory and make samples of their own."""
        image = image_of(slab)
        if (number := self._sampled.shared[image]) is None:
            return
        channels, mixed = self._sampled.of_image[image], _mixed(_mixed(slab) + first if first else slab)
        block, key = channels.block_of(slab), mixed ^ _MASK_64
        if (kept := self._kept.get(number)) is not None and kept.is_closed_to(block, key):
            return
        sample = np.zeros((), self._sampled.slab_record(channels.form))
        sample["key"] = key
        values, channels_in_slab = sample["values"], channels.channels_in_slab(frames.size)
        for channel in range(channels.form.rows):
            came = frames[(frames != 0) & (channels_in_slab == channel)]
            if came.size:
                pixels = values[channel].view(np.uint8)
                sample_pixels(came, channels.frame_pixels, values.itemsize, mixed >> 32, pixels)
                sample["filled"][channel] = True
        with self._lock:
            if number not in self._kept:
                self._kept[number] = _Reservoir(channels.form.blocks, sample.dtype)
            self._kept[number].put(block, sample)

    def windows(self, image: int) -> Windows:
        """Returns the contrast windows of an image's channels, as far as there are samples; none for those
        whose window the user has given."""
        windows: Windows = {}
        number, form = self._sampled.shared[image], self._sampled.of_image[image].form
        kept = None if number is None else self._kept.get(number)
        if kept is None:
            return windows
        for channel in form.found:
            with self._lock:
                values = kept.of(*divmod(channel, form.per_slab))
            window = contrast_window(values)
            if window is not None:
                windows[channel] = window
        return self._of_colors(image, windows)

    def _of_colors(self, image: int, windows: Windows) -> Windows:
        """Returns the windows, of a colour camera the one that holds all of them."""
        if not windows or not self._sampled.of_image[image].are_colors:
            return windows
        least, most, start, end = zip(*windows.values(), strict=True)
        return dict.fromkeys(windows, ContrastWindow(min(least), max(most), min(start), max(end)))

    def sealed_windows(self, path: Path, images: Sequence[int]) -> dict[int, Windows]:
        """Returns the contrast windows of ``images`` from what is sealed in the store at ``path``: for an
        acquisition that was resumed, whose earlier samples are gone. Reads a few chunks, and none of the last
        images if there are very many; never raises for a damaged store."""
        found_of = {image: self._sampled.of_image[image].form.found for image in images}
        chunks = _MOST_CHUNKS // max(1, sum(map(len, found_of.values())))
        left, left_bytes = _MOST_CHUNKS, _MOST_READ_BYTES
        pixels: dict[int, dict[int, list[npt.NDArray[Any]]]] = {}
        for image, found in found_of.items():
            number = self._sampled.shared[image]
            if number is None or left <= 0 or left_bytes <= 0:
                continue
            try:
                array = parse_array(path / self._spec.paths[image])
            except (ShardFormatError, StorageError):
                continue
            few = max(1, min(_CHUNKS, chunks, left_bytes // (len(found) * array.chunk_bytes)))
            left -= few * len(found)
            left_bytes -= few * len(found) * array.chunk_bytes
            axis = self._sampled.of_image[image].stored_axis
            for channel, values in channel_samples(array, axis, found, few).items():
                pixels.setdefault(number, {}).setdefault(channel, []).append(values)
        windows = {number: _windows_of(parts) for number, parts in pixels.items()}
        shared = {image: self._sampled.shared[image] for image in images}
        return {
            image: {} if number is None else self._of_colors(image, windows.get(number, {}))
            for image, number in shared.items()
        }


def _windows_of(pixels: dict[int, list[npt.NDArray[Any]]]) -> Windows:
    windows = {channel: contrast_window(np.concatenate(parts)) for channel, parts in pixels.items()}
    return {channel: window for channel, window in windows.items() if window is not None}


def _mixed(number: int) -> int:
    """Returns 64 random bits that belong to a number alone (the finalizer of SplitMix64)."""
    number = (number * 0x9E3779B97F4A7C15) & _MASK_64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return number ^ (number >> 31)
