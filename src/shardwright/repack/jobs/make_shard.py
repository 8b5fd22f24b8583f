"""The loop that all new shards share: fill a region's values, encode its chunks, append them, until the shard
is whole; then publish it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import OutputExistsError

from .chunk_encoder import ChunkEncoder
from .new_shard import NewShard, already_there, finished

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.read.store import StoredArray
    from shardwright.repack.runtime.throttle import Throttle

    from .region_plan import RegionPlan

# Fills an array with the values of the region that begins at these coordinates of the new array.
FillRegion = Callable[[tuple[int, ...], npt.NDArray[Any]], None]


def make_shard(
    array: StoredArray,
    shard: tuple[int, ...],
    plan: RegionPlan,
    fill_region: FillRegion,
    work_folder: Path,
    throttle: Throttle,
) -> dict[str, Any]:
    """The result of a task but for what was read. A shard that is there already is left as it is: only
    complete ones have their name."""
    result = {"ok": True, "peak_bytes": plan.peak_bytes, "chunks": 0, "file_bytes": 0, "bytes_written": 0}
    if finished(array, shard):
        return {**result, "skipped": True}
    low = tuple(i * s for i, s in zip(shard, array.shard_shape, strict=True))
    high = tuple(min(a + s, n) for a, s, n in zip(low, array.shard_shape, array.shape, strict=True))
    extent = tuple(min(r, b - a) for r, a, b in zip(plan.shape, low, high, strict=True))
    # one for all regions: fresh memory is dear
    memory = np.empty(np.prod(extent, dtype=np.int64), array.dtype)
    encoder = ChunkEncoder(array)
    try:
        with NewShard(array, shard, work_folder, throttle) as new:
            for start in itertools.product(
                *(range(a, b, r) for a, b, r in zip(low, high, plan.shape, strict=True))
            ):
                shape = tuple(min(r, b - a) for r, a, b in zip(plan.shape, start, high, strict=True))
                values = memory[: np.prod(shape, dtype=np.int64)].reshape(shape)
                fill_region(start, values)
                first_chunk = tuple(
                    (a - b) // c for a, b, c in zip(start, low, array.chunk_shape, strict=True)
                )
                for chunks in encoder.encode(values, first_chunk):
                    new.append(chunks)
            try:
                nbytes = new.publish()
            except OutputExistsError as error:
                if not already_there(error, new):
                    raise
                return {**result, "skipped": True}
            return {**result, "chunks": new.chunks, "file_bytes": nbytes, "bytes_written": nbytes}
    finally:
        encoder.close()
