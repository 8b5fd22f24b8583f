"""The values between which to show an image: ``python -m shardwright.web.contrast IMAGE`` prints a list with
[LOW, HIGH] of each of its first channels: the contrast window in its metadata, or that of a few chunks if
there is none, or if it is the whole range of the dtype, as earlier releases wrote it; null where no chunk can
be read.

A program of its own, run when the viewer is opened: the web process then does not keep the decoder's memory
for days, and a store that cannot be decoded costs only this program.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from shardwright.array.contrast_window import contrast_window
from shardwright.array.ome import display_range
from shardwright.model.errors import ShardwrightError
from shardwright.read.chunk_samples import channel_samples
from shardwright.read.store import Store, StoredArray, open_store

from .viewer_state import MOST_CHANNELS, Window

CHUNKS = 4


def windows(image: Store) -> list[Window | None]:
    """Returns (low, high) of each of the first channels; None if neither the metadata nor the pixels say it.
    Raises ``IndexError`` without an array."""
    array = image.arrays[0]
    names = array.dimension_names or ()
    axis = names.index("c") if "c" in names else None
    count = 1 if axis is None else min(array.shape[axis], MOST_CHANNELS)
    return [_stated_window(image, n) or _measured_window(array, axis, n) for n in range(count)]


def _stated_window(image: Store, channel: int) -> Window | None:
    try:
        window = (image.group or {})["ome"]["omero"]["channels"][channel]["window"]
        low, high = float(window["start"]), float(window["end"])
    except (LookupError, TypeError, ValueError):
        return None
    whole = display_range(image.arrays[0].dtype.name)
    return (low, high) if math.isfinite(high - low) and low < high and (low, high) != whole else None


def _measured_window(array: StoredArray, axis: int | None, channel: int) -> Window | None:
    samples = channel_samples(array, axis, [channel], CHUNKS)
    window = contrast_window(samples[channel]) if samples else None
    return None if window is None else (window.start, window.end)


def main() -> int:
    try:
        print(json.dumps(windows(open_store(Path(sys.argv[1])))))
    except (ShardwrightError, IndexError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
