"""The first start with an empty cache, in processes of their own: it is told, kernels are compiled once and
for one type of arguments each, however many start at once, and a start that was killed is completed by the
next one. Nothing is compiled, nor loaded, once an acquisition is there: a frame would wait for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from numba.core.registry import CPUDispatcher
from tests.harness.json_process import wait_for

from shardwright.kernels import downsample
from shardwright.kernels.warm_up import COMPILING

if TYPE_CHECKING:
    from pathlib import Path

OF_LEVELS = {name for name, found in vars(downsample).items() if isinstance(found, CPUDispatcher)}
# every way to write a store, and each kernel of levels for one type of pixels
START = """
import gc, json, sys
import numpy as np
from numba.core.registry import CPUDispatcher
import shardwright as sw

def kernels():
    return {
        kernel.py_func.__name__: (len(kernel.overloads), sum(kernel.stats.cache_misses.values()))
        for kernel in gc.get_objects()
        if isinstance(kernel, CPUDispatcher) and kernel.py_func.__module__.startswith("shardwright.")
    }

late = {}
for number, (dtype, options) in enumerate([
    ("uint16", {"codec": "zstd", "settings": sw.WriteSettings(store_within_ms=1)}),
    ("uint16", {"codec": "gzip", "settings": sw.WriteSettings(io="mmap")}),
    ("uint16", {"shards": False, "settings": sw.WriteSettings(io="pwrite")}),
    ("uint16", {"levels": 1, "live": "index"}),
    ("float32", {"levels": 1, "live": "append"}),
    ("uint8", {"levels": sw.Levels(method="max", count=1)}),
    ("bool", {"levels": sw.Levels(method="nearest", count=1), "codec": "none"}),
]):
    layout = {"shape": (None, 64, 64), "axes": "tyx", "chunks": {"t": 1, "y": 64, "x": 64}}
    with sw.create(f"{sys.argv[1]}/{number}.ome.zarr", dtype=dtype, **layout, **options) as writer:
        before = kernels()
        writer.append_many(np.ones((3, 64, 64), dtype))
        writer.flush()
        writer.append(np.ones((64, 64), dtype))
    late |= {name: options for name, found in kernels().items() if found != before[name]}
print(json.dumps({"kernels": kernels(), "late": {name: repr(options) for name, options in late.items()}}))
"""


def start(cache: Path, stores: Path) -> subprocess.Popen[str]:
    stores.mkdir()
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", START, stores],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def compiled(process: subprocess.Popen[str], *, tells: bool) -> set[str]:
    """The kernels that a process has compiled itself, once it has ended."""
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert told.splitlines() == ([COMPILING] if tells else [])
    found = json.loads(out)
    assert found["late"] == {}
    kernels = found["kernels"]
    assert {name: types for name, (types, _) in kernels.items() if types > 1} == {}
    assert kernels["encode_chunks"][0] == kernels["place_frames"][0] == 1
    return {name for name, (_, misses) in kernels.items() if misses}


def test_an_empty_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    killed = start(cache, tmp_path / "killed")
    wait_for(lambda: any(cache.rglob("*.nbi")), "the first kernel")
    killed.kill()
    killed.communicate()
    both = [start(cache, tmp_path / "one"), start(cache, tmp_path / "other")]
    quick, slow = sorted((compiled(process, tells=True) for process in both), key=len)
    assert quick <= OF_LEVELS, "loaded what the other one compiled"
    assert "encode_chunks" in slow
    assert not slow & {"journal_chunks", "place_frames", "write_runs"}, "compiled beside it, by a third"
    assert compiled(start(cache, tmp_path / "next"), tells=False) == set()
