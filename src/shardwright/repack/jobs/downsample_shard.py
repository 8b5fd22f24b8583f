"""One shard of level n of an image from level n-1: half the elements along some axes. Region by region, in
bounded memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.kernels.downsample import downsample, halved, work_bytes
from shardwright.model.errors import ShardFormatError
from shardwright.read.store import parse_array

from .chunk_encoder import ChunkEncoder
from .make_shard import make_shard
from .new_shard import NewShard
from .region_plan import DEFAULT_MEMORY_BYTES, RegionPlan, plan_regions
from .region_reader import RegionReader

if TYPE_CHECKING:
    from shardwright.array.levels import Method
    from shardwright.read.store import StoredArray
    from shardwright.repack.runtime.throttle import Throttle

Factors = tuple[int, ...]


def plan_level(
    source: StoredArray, target: StoredArray, factors: Factors, method: Method, memory_bytes: int
) -> RegionPlan:
    """The regions in which each shard of the level ``target`` is made. Raises ``BudgetError``."""
    fixed = RegionReader.peak_bytes(source) + ChunkEncoder.peak_bytes(target) + NewShard.peak_bytes(target)

    def peak_bytes(shape: tuple[int, ...]) -> int:
        inside = tuple(map(min, shape, target.shape))
        below = tuple(min(n * f, m) for n, f, m in zip(inside, factors, source.shape, strict=True))
        values = (math.prod(inside) + math.prod(below)) * target.dtype.itemsize
        return fixed + values + work_bytes(below, factors, target.dtype, method)

    reach = tuple(c / f for c, f in zip(source.chunk_shape, factors, strict=True))
    return plan_regions(target.chunk_shape, target.shard_chunks, reach, peak_bytes, memory_bytes)


def downsample_shard(task: dict[str, Any], throttle: Throttle) -> dict[str, Any]:
    """The task {kind: "downsample", source, array, shard, work, memory_bytes, factors, method}: folders of
    the level below and of the level itself, coordinates of its shard, the folder for the working file. The
    result adds chunks, file_bytes and peak_bytes."""
    source, target = parse_array(Path(task["source"])), parse_array(Path(task["array"]))
    factors, method = tuple(task["factors"]), task["method"]
    if target.shape != halved(source.shape, factors) or source.dtype != target.dtype:
        raise ShardFormatError(
            "the level has another shape or dtype",
            expected=(halved(source.shape, factors), source.dtype),
            got=target.shape,
        )
    plan = plan_level(source, target, factors, method, int(task.get("memory_bytes") or DEFAULT_MEMORY_BYTES))
    reader = RegionReader(source, throttle)
    below = np.empty(0, source.dtype)

    def fill_region(start: tuple[int, ...], values: npt.NDArray[Any]) -> None:
        nonlocal below
        first = tuple(i * f for i, f in zip(start, factors, strict=True))
        shape = tuple(
            min(n * f, m - i) for n, f, m, i in zip(values.shape, factors, source.shape, first, strict=True)
        )
        if below.size < math.prod(shape):
            below = np.empty(math.prod(shape), source.dtype)
        box = below[: math.prod(shape)].reshape(shape)
        reader.read(first, box)
        downsample(box, values, factors, method)

    try:
        made = make_shard(target, tuple(task["shard"]), plan, fill_region, Path(task["work"]), throttle)
    finally:
        reader.close()
    return {**made, "bytes_read": reader.bytes_read}
