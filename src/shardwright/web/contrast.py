"""The grey levels between which to show an image: ``python -m shardwright.web.contrast STORE`` prints [LOW,
HIGH], from the middle of its first frame.

A program of its own, run when the viewer is opened: the web process then does not keep the decoder's memory
for days, and a store that cannot be decoded costs only this program.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.codecs.decode import decode_chunk
from shardwright.model.errors import ShardwrightError
from shardwright.read.shard_file import ShardFile, check_entries
from shardwright.read.store import StoredArray, open_store

PERCENTILES = (0.5, 99.8)


def grey_levels(pixels: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Returns (low, high) for any numbers or booleans; the second is always above the first."""
    values = pixels.astype(np.float64).ravel()
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = (float(value) for value in np.percentile(values, PERCENTILES))
    return low, max(high, low + (1.0 if pixels.dtype.kind in "biu" else np.spacing(abs(low)) * 4))


def first_pixels(array: StoredArray) -> np.ndarray[Any, Any]:
    """Returns the pixels of the middle chunk of the first frame, or its fill value. Raises
    ``ShardFormatError`` or ``StorageError``."""
    middle = (0,) * (len(array.shape) - 2) + tuple(count // 2 for count in array.shape[-2:])
    wanted = tuple(place // size for place, size in zip(middle, array.chunk_shape, strict=True))
    shard = tuple(chunk // per for chunk, per in zip(wanted, array.shard_chunks, strict=True))
    number = int(
        np.ravel_multi_index(
            tuple(chunk % per for chunk, per in zip(wanted, array.shard_chunks, strict=True)),
            array.shard_chunks,
        )
    )
    with ShardFile(array, array.path / array.shard_key(shard)) as file:
        entries = file.read_index()
        sound = check_entries(array, shard, entries, file.data_range).sound
        if not sound[number]:
            return array.fill_element.reshape(1)
        data = bytearray(int(entries["nbytes"][number]))
        file.read_into(int(entries["offset"][number]), memoryview(data))
    chunk = decode_chunk(data, array.codecs, array.chunk_bytes).view(array.dtype).reshape(array.chunk_shape)
    rows, columns = (
        n - w * c for n, w, c in zip(array.shape[-2:], wanted[-2:], array.chunk_shape[-2:], strict=True)
    )
    # a chunk at the edge reaches beyond the image
    plane: np.ndarray[Any, Any] = chunk[(0,) * (chunk.ndim - 2)][:rows, :columns]
    return plane


def main() -> int:
    try:
        levels = grey_levels(first_pixels(open_store(Path(sys.argv[1])).arrays[0]))
    except (ShardwrightError, IndexError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(levels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
