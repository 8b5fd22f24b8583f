"""The values between which to show images: ``python -m shardwright.web.contrast STORE IMAGE...`` prints for
each a list: [LOW, HIGH] of each of its first channels. It is the contrast window in its metadata, or that of
a few chunks if there is none, or if it is the whole range of the dtype, as earlier releases wrote it; null
where nothing can be read. IMAGE is the folder of the image in the store, empty for a store that is one image.

A program of its own, run when the viewer is opened: the web process then does not keep the decoder's memory
for days, and a store that cannot be decoded costs only this program. Of a store that is being written the web
process asks ``live_windows`` itself: its chunks are ours, and on a busy machine such a program, which starts
a Python, came too late again and again, so that a running acquisition was shown black.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.array.contrast_window import contrast_window
from shardwright.array.ome import stated_window
from shardwright.model.errors import ShardwrightError
from shardwright.read.chunk_samples import channel_samples
from shardwright.read.store import Store, StoredArray, open_store

from .viewer_state import MOST_CHANNELS, Window

if TYPE_CHECKING:
    from shardwright.read.live_view import LiveView

CHUNKS = 4


def windows(image: Store) -> list[Window | None]:
    """Returns (low, high) of each of the first channels; None if neither the metadata nor the pixels say it.
    Raises ``IndexError`` without an array."""
    array = image.arrays[0]
    names = array.dimension_names or ()
    axis = names.index("c") if "c" in names else None
    count = 1 if axis is None else min(array.shape[axis], MOST_CHANNELS)
    stated = partial(_stated_window, image.group, array.dtype.name)
    return [stated(n) or _measured_window(array, axis, n) for n in range(count)]


def _stated_window(attributes: dict[str, Any] | None, dtype: str, channel: int) -> Window | None:
    try:
        look = (attributes or {})["ome"]["omero"]["channels"][channel]
    except (LookupError, TypeError):
        return None
    return stated_window(look, dtype)


def _measured_window(array: StoredArray, axis: int | None, channel: int) -> Window | None:
    samples = channel_samples(array, axis, [channel], CHUNKS)
    window = contrast_window(samples[channel]) if samples else None
    return None if window is None else (window.start, window.end)


def live_windows(view: LiveView, image_path: str) -> list[Window | None]:
    """Returns (low, high) of each of the first channels of an image that is being written, as of its newest
    frames; none if it is finished by now. Raises ``ShardwrightError``."""
    acquiring, _ = view.look()
    path = f"{image_path}/0" if image_path else "0"
    image, _ = (None, 0) if acquiring is None else acquiring.arrays.get(path, (None, 0))
    if acquiring is None or image is None or not acquiring.has_frames(image):
        return []
    attributes = (view.document(image_path) or {}).get("attributes")
    grid, spec = acquiring.spec.grids.grids[image], acquiring.spec.arrays[image]
    newest = grid.index_of(grid.first + int(acquiring.extents.newest[image]))
    axis = next((i for i, d in enumerate(spec.dimensions[:-2]) if d.axis_type == "channel"), None)
    found: list[Window | None] = []
    for channel in range(1 if axis is None else min(spec.channel_count, MOST_CHANNELS)):
        index = newest if axis is None else (*newest[:axis], channel, *newest[axis + 1 :])
        # the newest of this channel is a step back, if it did not come yet
        indices = [grid.stored(at) for at in (index, (index[0] - 1, *index[1:])) if min(at) >= 0]
        frames = (view.read_frames(path, [each])[0] for each in indices)
        window = next((contrast_window(frame) for frame in frames if frame.any()), None)
        measured = None if window is None else (window.start, window.end)
        found.append(_stated_window(attributes, spec.dtype, channel) or measured)
    return found


def main() -> int:
    path, found = Path(sys.argv[1]), []
    for image_path in sys.argv[2:]:
        try:
            found.append(windows(open_store(path / image_path)))
        except (ShardwrightError, IndexError) as error:
            print(error, file=sys.stderr)
            found.append([])
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
