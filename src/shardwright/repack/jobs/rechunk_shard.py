"""One shard of a new array from whatever chunks of the old one touch it: the same values, in other chunks.
Region by region, in bounded memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError
from shardwright.read.store import parse_array

from .chunk_encoder import ChunkEncoder
from .make_shard import make_shard
from .new_shard import NewShard
from .region_plan import DEFAULT_MEMORY_BYTES, RegionPlan, plan_regions
from .region_reader import RegionReader

if TYPE_CHECKING:
    from shardwright.read.store import StoredArray
    from shardwright.repack.runtime.throttle import Throttle


def plan_rechunk(source: StoredArray, target: StoredArray, memory_bytes: int) -> RegionPlan:
    """The regions in which each shard of ``target`` is made. Raises ``BudgetError``."""
    fixed = RegionReader.peak_bytes(source) + ChunkEncoder.peak_bytes(target) + NewShard.peak_bytes(target)

    def peak_bytes(shape: tuple[int, ...]) -> int:
        return fixed + math.prod(map(min, shape, target.shape)) * target.dtype.itemsize

    return plan_regions(target.chunk_shape, target.shard_chunks, source.chunk_shape, peak_bytes, memory_bytes)


def write_shard(task: dict[str, Any], throttle: Throttle) -> dict[str, Any]:
    """The task {kind: "rechunk", source, array, shard, work, memory_bytes}: folders of the old and the new
    array, coordinates of the new shard, the folder for its working file. The result adds chunks, file_bytes
    and peak_bytes."""
    source, target = parse_array(Path(task["source"])), parse_array(Path(task["array"]))
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ShardFormatError(
            "the new array has another shape or dtype",
            expected=(source.shape, source.dtype),
            got=(target.shape, target.dtype),
        )
    plan = plan_rechunk(source, target, int(task.get("memory_bytes") or DEFAULT_MEMORY_BYTES))
    reader = RegionReader(source, throttle)
    try:
        made = make_shard(target, tuple(task["shard"]), plan, reader.read, Path(task["work"]), throttle)
    finally:
        reader.close()
    return {**made, "bytes_read": reader.bytes_read}
