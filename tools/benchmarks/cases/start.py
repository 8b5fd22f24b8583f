"""The part ``start``: from the start of a process until ``create`` has returned, with an empty cache of
compiled kernels and with the kernels there, as after ``shardwright install``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processes import say
from benchmarks.testbed import Places

from . import Asked, least_and_most

ROUNDS = {"cold": 3, "warm": 9}
SCRIPT = """
import sys, time
import shardwright as sw
writer = sw.create(sys.argv[1], shape=(None, 512, 512), dtype="uint16", axes="tyx")
print(time.monotonic())
writer.close()
"""
ASKED = (
    Asked("cold_s", "first start, kernels compiled: at most 6 s", 6.0),
    Asked("warm_s", "any other start: at most 0.5 s", 0.5),
)
COLUMNS = {
    "cold s": "cold_s",
    "warm s": "warm_s",
    "least": "warm_s_spread.least",
    "most": "warm_s_spread.most",
}


def measure(places: Places, quick: bool) -> dict[str, Any]:
    rounds = dict.fromkeys(ROUNDS, 1) if quick else ROUNDS
    folder = places.disk / "start"
    folder.mkdir(parents=True)
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    try:
        for name, count in rounds.items():  # the cold ones leave a cache for the warm ones
            for number in range(count):
                cache = folder / (f"cache-{number}" if name == "cold" else "cache-0")
                seconds[name].append(one(folder / f"{name}-{number}.ome.zarr", cache))
    finally:
        shutil.rmtree(folder)
    row = {
        "name": "create",
        "headline": True,
        "cold_s": round(median(seconds["cold"]), 3),
        "cold_s_spread": least_and_most(seconds["cold"]),
        "warm_s": round(median(seconds["warm"]), 3),
        "warm_s_spread": least_and_most(seconds["warm"]),
    }
    say(f"cold {row['cold_s']:.2f} s, warm {row['warm_s']:.2f} s")
    return {"settings": {"rounds": rounds}, "rows": [row]}


def one(store: Path, cache: Path) -> float:
    """Seconds until ``create`` has returned in a new process."""
    begin_s = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT, store],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(child.stdout) - begin_s
