"""The preview: the newest frame of an acquisition, made small, with what is known of it. Taken only after a
request, and then from one frame.

any thread       ask    sets a flag; returns what was taken last
ingest thread    take   while the flag is set: every n-th pixel of the batch's newest frame, where its pixels
                 are anyway
"""

from __future__ import annotations

import base64
import ctypes
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import image_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec, Channel

MOST_PIXELS = 512  # along the longer side
MIN_INTERVAL_S = 0.1  # between two that are taken, however often it is requested
LEAST_BITS = 8  # of a camera whose pixels may be saturated below the greatest value of the dtype


@dataclass(frozen=True)
class FramePreview:
    """The preview of one frame. ``pixels``: in the array's own dtype. ``image``: its name, "" if there is
    only one. ``index``: the frame's place by the names of the axes."""

    pixels: npt.NDArray[Any]
    image: str
    index: dict[str, int]
    channel: Channel | None
    sequence: int
    frame_id: int
    taken_s: float

    @classmethod
    def of(
        cls, spec: AcquisitionSpec, described: np.void, frame: npt.NDArray[Any], taken_s: float
    ) -> FramePreview:
        """Copies every n-th pixel of a frame [rows, columns]. ``described``: its descriptor or record.
        ``taken_s``: on the monotonic clock."""
        position = int(described["position"])
        image = image_of(position)
        array = spec.arrays[image]
        numbers = spec.grids.of(position).index_of(position)
        index = dict(zip((axis.name for axis in array.dimensions), numbers, strict=False))
        # the same down and across: the picture keeps the frame's proportions
        step = -(-max(array.frame_shape) // MOST_PIXELS)
        return cls(
            frame[::step, ::step].copy(),
            spec.names[image],
            index,
            _channel(array, index),
            int(described["sequence"]),
            int(described["frame_id"]),
            taken_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON; ``data`` are the rows one after another, little-endian."""
        pixels = viewable(self.pixels)
        height, width = pixels.shape
        data = base64.b64encode(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False).tobytes()).decode()
        facts = {"width": width, "height": height, "dtype": pixels.dtype.name, "data": data}
        return {
            **facts,
            "frame": self.sequence,
            "frame_id": None if self.frame_id < 0 else self.frame_id,
            "time_s": time.monotonic() - self.taken_s,
            "image": self.image,
            "index": self.index,
            "channel": self.channel and {"name": self.channel.name, "color": self.channel.color},
            "range": value_range(self.pixels),
            "saturated": saturated(self.pixels),
        }


class PreviewTap:
    """Takes the previews of one acquisition."""

    def __init__(self, spec: AcquisitionSpec) -> None:
        self.wanted = False  # all that the ingest thread reads
        self._spec = spec
        self._last: FramePreview | None = None

    def take_images(self, spec: AcquisitionSpec) -> None:
        """Takes the specification with images that were added."""
        self._spec = spec

    def ask(self) -> FramePreview | None:
        """Returns the last preview, and requests another one of the next frame."""
        last = self._last
        if last is None or time.monotonic() - last.taken_s >= MIN_INTERVAL_S:
            self.wanted = True
        return last

    def take(self, descriptors: npt.NDArray[np.void], addresses: npt.NDArray[np.int64]) -> None:
        """Takes a preview from a batch whose pixels stay where they are until this returns; address 0: no
        pixels."""
        with_pixels = np.flatnonzero(addresses)
        if not with_pixels.size:
            return
        newest = int(with_pixels[-1])
        described = descriptors[newest]
        array = self._spec.arrays[image_of(int(described["position"]))]
        memory = (ctypes.c_uint8 * array.frame_bytes).from_address(int(addresses[newest]))
        frame = np.frombuffer(memoryview(memory), np.dtype(array.dtype).newbyteorder("<"))
        pixels = frame.reshape(array.frame_shape)
        self._last = FramePreview.of(self._spec, described, pixels, time.monotonic())
        self.wanted = False


def _channel(array: ArraySpec, index: Mapping[str, int]) -> Channel | None:
    """Returns the channel of a frame, None where the specification describes none."""
    axis = array.channel_dimension
    number = 0 if axis is None else index.get(axis.name, 0)
    return array.channels[number] if number < len(array.channels) else None


def value_range(pixels: npt.NDArray[Any]) -> list[float] | None:
    """Returns the least and the greatest value, without those that are not finite; None where none is."""
    finite = pixels[np.isfinite(pixels)]
    return [float(finite.min()), float(finite.max())] if finite.size else None


def saturated(pixels: npt.NDArray[Any]) -> float | None:
    """Returns the part of the pixels, 0 to 1, with the greatest value that a camera can give: 2^n - 1 for n
    bits, from 8 to those of the dtype. None for a dtype that has no such value."""
    if pixels.dtype.kind != "u":
        return None
    most = int(pixels.max())
    full = most + 1 >= 1 << LEAST_BITS and (most + 1).bit_count() == 1
    return float(np.mean(pixels == most)) if full else 0.0


def viewable(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``pixels`` as uint8 or uint16, which every viewer takes: those two unchanged, any other dtype scaled
    from its least to its greatest value; NaN is dark."""
    if pixels.dtype.kind == "u" and pixels.dtype.itemsize <= 2:
        return pixels
    values = pixels.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    scale = high - low or 1.0
    with np.errstate(over="ignore"):
        return (np.nan_to_num(np.clip(values / scale - low / scale, 0.0, 1.0)) * 65535).astype(np.uint16)
