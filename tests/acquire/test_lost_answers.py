"""Acquisitions on a disk whose answers get lost: it renames, links, deletes or makes what it was asked for,
and says that it could not. They go on, or fail typed and lose no frame that was acknowledged."""

from __future__ import annotations

import shutil
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.lost_answers import each_lost, losing
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import beneath
from shardwright.model.errors import StorageError
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FRAMES = 7
OLD, NEW = (np.full((4, 6), value, np.uint16) for value in (1, 2))
OTHER = {"threads": 1, "sync_interval_ms": 3_600_000, "store_within_ms": 3_600_000}  # no calls in between


def spec(**fields) -> sw.ArraySpec:
    dimensions = [
        sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=3),
        sw.Dimension(name="y", count=4, chunk_size=4),
        sw.Dimension(name="x", count=6, chunk_size=6),
    ]
    return sw.ArraySpec(dtype="uint16", dimensions=dimensions, **fields)


def write(path: Path, **options) -> None:
    index = "start" if options.get("live") == "index" else "end"
    with sw.create(path, spec(index_location=index), **how(**OTHER, **options)) as writer:
        append(writer, FRAMES)


def append(writer: sw.Writer, frames: int) -> None:
    for _ in range(frames):
        writer.append(NEW)
        writer.flush()


def overwrite(path: Path) -> None:
    write(path, overwrite=True)


def spill(path: Path) -> None:
    write(path, on_full="spill", spill_root=path.parent / "spill")


def go_on(path: Path) -> None:
    with sw.resume(path, **how(**OTHER)) as writer:
        append(writer, FRAMES - writer.frames)


def take_over(path: Path) -> None:
    with sw.resume(path, take_over=True, **how(**OTHER)) as writer:
        append(writer, FRAMES - writer.frames)


def nothing(path: Path) -> None:
    del path


def finished(path: Path) -> None:
    with sw.create(path, spec(), **how(**OTHER)) as writer:
        writer.append(OLD)


def killed(path: Path) -> None:
    """Four frames of a writer that is gone: one shard sealed, one not."""
    whole = path.with_name("whole.ome.zarr")
    with sw.create(whole, spec(), **how(**OTHER)) as writer:
        append(writer, 4)
        shutil.copytree(whole, path)
    shutil.rmtree(whole)


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
@pytest.mark.parametrize(
    ("before", "job"),
    [
        (nothing, write),
        (nothing, lambda path: write(path, live="index")),
        (nothing, lambda path: write(path, live="append")),
        (nothing, spill),
        (finished, overwrite),
        (killed, go_on),
        (killed, take_over),
    ],
    ids=["new", "live index", "live append", "spilled", "overwrite", "resume", "take over"],
)
@pytest.mark.parametrize("disk", ["local", pytest.param("network", marks=pytest.mark.slow)])
def test_no_lost_answer_costs_a_frame(
    tmp_path: Path,
    shared_pool,
    monkeypatch,
    disk: str,
    before: Callable[[Path], None],
    job: Callable[[Path], None],
) -> None:
    runs = count()
    if disk == "network":  # it knows no rename that replaces nothing
        monkeypatch.setattr(beneath, "RENAME_NOREPLACE", 1 << 20)

    def run(lost: str | None) -> None:
        path = tmp_path / str(next(runs)) / "a.ome.zarr"
        path.parent.mkdir()
        with losing(-1):
            before(path)
        try:
            job(path)
        except StorageError:
            assert lost == "make_folder", (
                "a folder does not tell who has made it; all else is known by its name"
            )
            if unfinished_stores(path.parent):
                recover_store(path, shared_pool, threads=1)
            else:
                job(path)
        assert zarr.open_array(path / "0", mode="r")[:, 0, 0].tolist() == [2] * FRAMES
        assert {found.name for found in path.parent.iterdir()} - {"spill"} == {path.name}
        assert verify_store(path).ok

    each_lost(run)
