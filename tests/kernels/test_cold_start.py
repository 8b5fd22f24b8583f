"""The first start with an empty cache, in processes of their own: kernels are compiled once and for one type
of arguments each, however many start at once, and a start that was killed is completed by the next one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.harness.json_process import wait_for

if TYPE_CHECKING:
    from pathlib import Path

START = """
import gc, json
from numba.core.registry import CPUDispatcher
from shardwright.kernels.warm_up import warm_up
warm_up()
print(json.dumps({
    kernel.py_func.__name__: (len(kernel.overloads), sum(kernel.stats.cache_misses.values()))
    for kernel in gc.get_objects()
    if isinstance(kernel, CPUDispatcher) and kernel.py_func.__module__.startswith("shardwright.")
}))
"""


def start(cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen([sys.executable, "-c", START], env=environment, stdout=subprocess.PIPE, text=True)


def compiled(process: subprocess.Popen[str]) -> set[str]:
    """The kernels that a process has compiled itself, once it has ended."""
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    kernels = json.loads(told)
    assert {name: types for name, (types, _) in kernels.items() if types > 1} == {}
    assert kernels["encode_chunks"][0] == kernels["place_frames"][0] == 1
    return {name for name, (_, misses) in kernels.items() if misses}


def test_an_empty_cache(tmp_path: Path) -> None:
    killed = start(tmp_path)
    wait_for(lambda: any(tmp_path.rglob("*.nbi")), "the first kernel")
    killed.kill()
    killed.communicate()
    both = [start(tmp_path), start(tmp_path)]
    quick, slow = sorted((compiled(process) for process in both), key=len)
    assert quick == set(), "loaded what the other one compiled"
    assert "encode_chunks" in slow
    assert not slow & {"journal_chunks", "place_frames", "write_runs"}, "compiled beside it, by a third"
    assert compiled(start(tmp_path)) == set()
