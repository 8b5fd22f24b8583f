"""A small acquisition, tasks for its shards, and what lies in its folders."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

import shardwright as sw

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.read.store import StoredArray

FRAMES = 6


def spec(codec: sw.Blosc | sw.Zstd | sw.Gzip | None = sw.Blosc(), **fields) -> sw.ArraySpec:
    """Two shards of two layers of 2x2 chunks along t (the second one cut by the array's end) by two along
    x."""
    dimensions = (
        sw.Dimension(name="t", count=FRAMES, chunk_size=2, shard_size_chunks=2),
        sw.Dimension(name="y", count=30, chunk_size=16, shard_size_chunks=2),
        sw.Dimension(name="x", count=52, chunk_size=16, shard_size_chunks=2),
    )
    return sw.ArraySpec(dtype="uint16", dimensions=dimensions, codec=codec, **fields)


def frame(number: int) -> np.ndarray:
    """Dim noise on a slope; the lower left is empty, so that some chunks are absent."""
    pixels = np.random.default_rng(number).poisson(20, (30, 52)).astype(np.uint16) + np.arange(
        52, dtype=np.uint16
    )
    pixels[16:, :16] = 0
    return pixels


def task(array: StoredArray, *shard: int, order: str = "row_major", **fields) -> dict:
    return {
        "kind": "pack",
        "array": str(array.path),
        "shard": list(shard),
        "order": order,
        "throttle": {"idle": False},
        **fields,
    }


def shard_files(array: StoredArray) -> dict[str, str]:
    """Key -> hash of each shard file."""
    return {
        key: hashlib.sha256((array.path / key).read_bytes()).hexdigest() for key, _ in array.shard_files()
    }


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob("*.packed"))
