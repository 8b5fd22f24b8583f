"""What the camera's side imports: nothing that only the daemon's machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import shardwright

FORBIDDEN = (
    "numba",
    "llvmlite",
    "blosc2",
    "fcntl",
    "crc32c",
    "yaml",
    "zarr",
    "shardwright.ingest",
    "shardwright.acquire",
    "shardwright.disk",
)


def run(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(shardwright.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_client_loads_nothing_of_the_daemon():
    loaded = run("import sys, shardwright.client; print(*sys.modules)").split()
    assert "zmq" in loaded
    assert [
        name for name in loaded if name in FORBIDDEN or name.startswith(tuple(f"{f}." for f in FORBIDDEN))
    ] == []


def test_the_client_works_where_those_modules_do_not_exist():
    """Up to a real attempt to connect."""
    script = f"""
import sys
sys.modules.update(dict.fromkeys({FORBIDDEN!r}))
import shardwright as sw
try:
    sw.connect("tcp://127.0.0.1:1", timeout_ms=50)
except sw.errors.SessionLostError as error:
    print("no daemon answered" in str(error))
"""
    assert run(script) == "True\n"
