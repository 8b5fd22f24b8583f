"""The part ``reading``: ``shardwright.open_array`` against other readers of the same finished store:
tensorstore, zarrs (zarr-python with its codec pipeline) and zarr-python by itself; and zarr-python over
``shardwright.open`` against zarr-python by itself.

Each layout is read whole, a frame, a cube of 64 and a line through time; from the page cache, and after the
shards were dropped from it. Rounds are interleaved; values are compared before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tensorstore
import zarr
import zarrs  # noqa: F401  (registers its pipeline)

import shardwright as sw
from benchmarks.processes import say
from benchmarks.testbed import Places

from . import Asked, Case, emptied, least_and_most

LAYOUTS = {
    "deep": Case(frames=128, shape=(1024, 1024), chunk=(16, 256, 256), shard=(128, 1024, 1024)),
    "flat": Case(frames=128, shape=(1024, 1024), chunk=(1, 1024, 1024), shard=(32, 1024, 1024)),
    "small": Case(frames=128, shape=(1024, 1024), chunk=(4, 64, 64), shard=(64, 1024, 1024)),
}
SELECTIONS: dict[str, Any] = {
    "whole": np.s_[:],
    "frame": np.s_[77],
    "cube": np.s_[30:94, 500:564, 300:364],
    "line": np.s_[:, 511, 733],
}
ROUNDS = {"whole": 5}
OTHER_ROUNDS = 25
ZARRS, BY_ITSELF = "zarrs.ZarrsCodecPipeline", zarr.config.get("codec_pipeline.path")
OURS, OVER_OURS, PLAIN = "shardwright", "shardwright.open", "zarr-python"
ASKED = (
    Asked("of_fastest", "reading: at least as fast as the fastest reader", 1.0, at_least=True),
    Asked("of_zarr_python", "reading by `sw.open`: of zarr-python's speed by itself", 0.9, at_least=True),
)
COLUMNS = {
    "ours ms": "ms.shardwright",
    "tensorstore": "ms.tensorstore",
    "zarrs": "ms.zarrs",
    "zarr-python": "ms.zarr-python",
    "of the fastest": "of_fastest",
    "least": "of_fastest_spread.least",
    "most": "of_fastest_spread.most",
    "sw.open": "of_zarr_python",
}
Read = Callable[[Any], Any]


def measure(places: Places, quick: bool) -> dict[str, Any]:
    """One row for each layout, selection and state of the page cache."""
    rows = []
    for name, case in LAYOUTS.items():
        with emptied(places.disk / "reading") as folder:
            path = folder / "reading.ome.zarr"
            _write(path, case)
            for selection, cache in product(SELECTIONS, ("warm", "cold")):
                rounds = 2 if quick else ROUNDS.get(selection, OTHER_ROUNDS)
                row = _one(path, SELECTIONS[selection], rounds, cold=cache == "cold")
                rows.append({"name": f"{name}/{selection}/{cache}", "headline": cache == "warm", **row})
                over = f"sw.open {row['of_zarr_python']:.2f} of zarr-python"
                say(f"{rows[-1]['name']}: {row['of_fastest']:.2f} of the fastest, {over}")
    return {"settings": {"frames": case.frames, "shape": list(case.shape)}, "rows": rows}


def _write(path: Path, case: Case) -> None:
    frames = case.draw()
    with sw.create(path, case.spec()) as writer:
        for i in range(case.frames):
            writer.append(frames[i % len(frames)])


def readers_of(path: Path) -> dict[str, Read]:
    """The array, opened by each reader."""
    with zarr.config.set({"codec_pipeline.path": BY_ITSELF}):
        plain = zarr.open_array(path / "0", mode="r")
    with zarr.config.set({"codec_pipeline.path": ZARRS}):
        by_zarrs = zarr.open_array(path / "0", mode="r")
    with zarr.config.set({"codec_pipeline.path": BY_ITSELF}):
        over_ours = zarr.open_array(sw.open(path), path="0", mode="r")
    ours = sw.open_array(path)
    kvstore = {"driver": "file", "path": str(path / "0")}
    other = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, read=True).result()
    return {
        OURS: lambda wanted: ours[wanted],
        "tensorstore": lambda wanted: other[wanted].read().result(),
        "zarrs": lambda wanted: by_zarrs[wanted],
        PLAIN: lambda wanted: plain[wanted],
        OVER_OURS: lambda wanted: over_ours[wanted],
    }


def _one(path: Path, wanted: Any, rounds: int, *, cold: bool) -> dict[str, Any]:
    readers = readers_of(path)
    expected = readers[PLAIN](wanted)
    for read in readers.values():
        np.testing.assert_array_equal(read(wanted), expected)
    ms: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, read in readers.items():
            if cold:
                drop_from_cache(path)
            begin_s = time.perf_counter()
            read(wanted)
            ms[name].append((time.perf_counter() - begin_s) * 1000)
    medians = {name: median(values) for name, values in ms.items()}
    others = [name for name in readers if name not in (OURS, OVER_OURS)]
    ratios = [min(ms[name][i] for name in others) / ms[OURS][i] for i in range(rounds)]
    over = [ms[PLAIN][i] / ms[OVER_OURS][i] for i in range(rounds)]
    return {
        "ms": {name: float(f"{value:.6g}") for name, value in medians.items()},
        "of_fastest": min(medians[name] for name in others) / medians[OURS],
        "of_fastest_spread": least_and_most(ratios),
        "of_zarr_python": medians[PLAIN] / medians[OVER_OURS],
        "of_zarr_python_spread": least_and_most(over),
    }


def drop_from_cache(path: Path) -> None:
    """Its shards, which are synced, are then read from the disk."""
    for file in path.glob("0/c/**/*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
