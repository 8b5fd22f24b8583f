"""The grey levels between which to show an image: ``python -m shardwright.web.contrast IMAGE`` prints [LOW,
HIGH] of its first channel: the contrast window in its metadata, or that of a few chunks if there is none, or
if it is the whole range of the dtype, as earlier releases wrote it. Nothing if no chunk can be read.

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

CHUNKS = 4


def grey_levels(image: Store) -> tuple[float, float] | None:
    """Returns (low, high); None if neither the metadata nor the pixels say it. Raises ``IndexError`` without
    an array."""
    return _stated_levels(image) or _measured_levels(image.arrays[0])


def _stated_levels(image: Store) -> tuple[float, float] | None:
    try:
        window = (image.group or {})["ome"]["omero"]["channels"][0]["window"]
        low, high = float(window["start"]), float(window["end"])
    except (LookupError, TypeError, ValueError):
        return None
    whole = display_range(image.arrays[0].dtype.name)
    return (low, high) if math.isfinite(high - low) and low < high and (low, high) != whole else None


def _measured_levels(array: StoredArray) -> tuple[float, float] | None:
    names = array.dimension_names or ()
    samples = channel_samples(array, names.index("c") if "c" in names else None, [0], CHUNKS)
    window = contrast_window(samples[0]) if samples else None
    return None if window is None else (window.start, window.end)


def main() -> int:
    try:
        levels = grey_levels(open_store(Path(sys.argv[1])))
    except (ShardwrightError, IndexError) as error:
        print(error, file=sys.stderr)
        return 1
    if levels is not None:
        print(json.dumps(levels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
