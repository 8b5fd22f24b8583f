"""A daemon's configuration on a given disk, with heartbeats and intervals short enough for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardwright.disk.filesystems import memory_filesystem

from .run_folder import roomy_memory

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """\
output: {{root: {root}, ballast: {ballast}, low_water: 4KiB, in_memory: true{output}}}
ingest:
  endpoints: ["ipc://./in.sock"]
  heartbeat_ms: {heartbeat_ms}
  session_timeout_ms: {session_timeout_ms}
workers: {{threads: 2}}
memory: {{budget: 2GiB}}
reliability: {{{reliability}}}
streams:
  - name: cam
    ring_frames: {ring_frames}
    array:
      dtype: uint16
      dimensions:
        - {{name: t, chunk_size: {slab_frames}, shard_size_chunks: {slabs}}}
        - {{name: y, count: {height}, chunk_size: {half}, shard_size_chunks: 1}}
        - {{name: x, count: {width}, chunk_size: {width}, shard_size_chunks: 1}}
"""


def tmpfs_for_a_daemon() -> Path:
    """A folder in memory that has room for what ``write_config`` plans; without one the test is skipped."""
    memory = roomy_memory(256 << 20)
    if memory is None or memory_filesystem(memory) is None:
        pytest.skip("NOT TESTED: /dev/shm is no tmpfs with 256 MiB free")
    return memory


def write_config(
    folder: Path,
    root: Path,
    *,
    shape: tuple[int, int] = (32, 48),
    slab_frames: int = 4,
    slabs: int = 2,
    ring_frames: int | str = "auto",
    heartbeat_ms: int = 50,
    session_timeout_ms: int = 10_000,
    ballast: str = "1MiB",
    output: str = "",
    **reliability: object,
) -> Path:
    """``reliability``: the fields of that section. ``output``: more of its section, from ", " on."""
    told = {"store_within_ms": 50, "sync_interval_ms": 50, **reliability}
    path = folder / "rig.yaml"
    path.write_text(
        CONFIG.format(
            root=root,
            ballast=ballast,
            output=output,
            heartbeat_ms=heartbeat_ms,
            session_timeout_ms=session_timeout_ms,
            reliability=", ".join(f"{name}: {value}" for name, value in told.items()),
            ring_frames=ring_frames,
            slab_frames=slab_frames,
            slabs=slabs,
            height=shape[0],
            half=shape[0] // 2,
            width=shape[1],
        ),
        encoding="utf-8",
    )
    return path
