"""Compaction on a disk that has no room for the copy of a shard: said before anything is begun, and done once
there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorstore
from tests.harness.daemon import run_cli

import shardwright as sw

from .disks import LoopDisk

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SHAPE = (16, 256, 256)


def write(store: Path) -> np.ndarray:
    plane = [sw.Dimension(name=axis, count=256, chunk_size=64, shard_size_chunks=4) for axis in "yx"]
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[sw.Dimension(name="t", count=None, chunk_size=4, shard_size_chunks=2), *plane],
    )
    frames = np.random.default_rng(5).poisson(40, SHAPE).astype(np.uint16)
    with sw.create(store, spec) as writer:
        for frame in frames:
            writer.append(frame)
    return frames


def compact(store: Path) -> subprocess.CompletedProcess[str]:
    # a job of idle priority waits for as long as the machine is busy
    return run_cli("compact", store, "--no-idle")


def snapshot(store: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in store.rglob("*")
        if path.is_file()
    }


def test_no_room_for_the_copy_is_an_error_before_anything_is_begun() -> None:
    with LoopDisk("ext4", 192 << 20) as disk:
        store = disk.path / "run.ome.zarr"
        frames = write(store)
        before = snapshot(store)
        disk.filler.fill()
        refused = compact(store)
        assert refused.returncode == 1
        assert f"no room to compact {store}" in refused.stderr
        assert "bytes free" in refused.stderr
        assert snapshot(store) == before
        assert not list(store.rglob(".compact"))
        disk.filler.path.unlink()
        done = compact(store)
        assert done.returncode == 0, done.stderr
        assert "2 shards packed" in done.stdout
        array = tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/0"}}
        ).result()
        np.testing.assert_array_equal(array.read().result(), frames)
