"""The making of a folder fails once in an acquisition, then the power goes: what was acknowledged stays."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.power_cut import disk_at, failing_folder
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import filesystems
from shardwright.model.errors import StorageError
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.world.disk import SimulatedDisk

FRAMES = 5
FRAME = np.full((4, 6), 7, np.uint16)


def spec(shards: int = 1) -> sw.ArraySpec:
    dimensions = [
        sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=3),
        sw.Dimension(name="y", count=4 * shards, chunk_size=4),
        sw.Dimension(name="x", count=6, chunk_size=6),
    ]
    return sw.ArraySpec(dtype="uint16", dimensions=dimensions)


def write(path: Path, shards: int = 1, **options) -> None:
    """Nothing happens between two calls of the program."""
    never = {"sync_interval_ms": 3_600_000, "store_within_ms": 3_600_000}
    with sw.create(path, spec(shards), threads=1, **how(**never, **options)) as writer:
        for _ in range(FRAMES):
            writer.append(np.tile(FRAME, (shards, 1)))
            writer.flush()


def cut(disk: SimulatedDisk, path: Path, shared_pool, write: Callable[[Path], None]) -> None:
    """Writes, or recovers what was written; then the power goes, and every frame is there."""
    try:
        write(path)
    except StorageError:
        if unfinished_stores(path.parent):
            recover_store(path, shared_pool, threads=1)
        else:  # no frame was acknowledged
            write(path)
    disk.lose_power()
    assert (zarr.open_array(path / "0", mode="r")[:] == 7).all()
    assert zarr.open_array(path / "0", mode="r").shape[0] == FRAMES


@pytest.mark.parametrize(
    "options", [{}, {"live": "append"}, {"on_full": "spill"}], ids=["plain", "live", "spill"]
)
@pytest.mark.parametrize("way", ["answer lost", "sync fails"])
def test_no_folder_whose_making_failed_once_goes_with_its_frames(
    tmp_path, shared_pool, monkeypatch, way, options
):
    """Of every folder that it makes; no sync of the whole filesystem, as on some, makes up for it."""
    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: False)
    for number in count():
        with disk_at(tmp_path / str(number)) as disk:
            path = disk.root / "out" / "a.ome.zarr"
            if options.get("on_full"):
                options = {**options, "spill_root": disk.root / "second"}
            with failing_folder(disk, way, number) as reached:
                cut(disk, path, shared_pool, partial(write, **options))
            if reached.count("directory.before_create") <= number:
                break
    assert number > 8, "folders of shards and of the store"
