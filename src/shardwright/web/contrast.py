"""The grey levels between which to show an image: ``python -m shardwright.web.contrast STORE`` prints [LOW,
HIGH], from a few chunks of its first channel; nothing if none can be read.

A program of its own, run when the viewer is opened: the web process then does not keep the decoder's memory
for days, and a store that cannot be decoded costs only this program.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shardwright.array.contrast_window import contrast_window
from shardwright.model.errors import ShardwrightError
from shardwright.read.chunk_samples import channel_samples
from shardwright.read.store import StoredArray, open_store

CHUNKS = 4


def grey_levels(array: StoredArray) -> tuple[float, float] | None:
    """Returns (low, high), None if no chunk can be read."""
    names = array.dimension_names or ()
    samples = channel_samples(array, names.index("c") if "c" in names else None, [0], CHUNKS)
    window = contrast_window(samples[0]) if samples else None
    return None if window is None else (window.start, window.end)


def main() -> int:
    try:
        levels = grey_levels(open_store(Path(sys.argv[1])).arrays[0])
    except (ShardwrightError, IndexError) as error:
        print(error, file=sys.stderr)
        return 1
    if levels is not None:
        print(json.dumps(levels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
