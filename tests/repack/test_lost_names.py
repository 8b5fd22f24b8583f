"""Jobs on a disk whose answers get lost: it renames, links, deletes or makes what it was asked for, and says
that it could not. They end right, or fail typed and end right when they are run again."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import zarr
from tests.harness.lost_answers import each_lost, losing

from shardwright.model.errors import StorageError
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit.region_edit import erase, update
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer import move_store
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.destination import CLAIM_KEY
from shardwright.rework.transfer.move_plan import MoveOptions

from .images import POLITE, run_here
from .moving_store import execute


def small_store(path, value=3):
    values = np.full((4, 8, 8), value, np.uint16)
    values[1] = 7
    array = zarr.create_array(
        path,
        shape=values.shape,
        shards=(2, 8, 8),
        chunks=(1, 4, 8),
        dtype="uint16",
        fill_value=0,
        dimension_names=["t", "y", "x"],
        compressors=None,
    )
    array[...] = values
    return values


def read(path):
    return zarr.open_array(path, mode="r")[...]


def pack(path, values):
    with losing(-1):  # something to pack
        for value in (8, 3):
            update(path, {"t": 0}, np.full((8, 8), value, np.uint16), strategy="append", max_unused=1)
            update(path, {"t": 2}, np.full((8, 8), value, np.uint16), strategy="append", max_unused=1)
    for shard in ((0, 0, 0), (1, 0, 0)):
        result = run_task(
            {
                "kind": "pack",
                "array": str(path),
                "shard": list(shard),
                "order": "column_major",
                "throttle": {"idle": False},
            }
        )
        if not result["ok"]:
            raise StorageError(result["error"]["message"])
    np.testing.assert_array_equal(read(path), values)


def rechunk(path, values):
    options = RechunkOptions({"t": 4, "y": 8, "x": 4})
    new = path.with_name("new.zarr")
    report = write_new_store(plan_new_store(path, options), new, options, run_here, throttle=POLITE)
    if not report.ok:
        raise StorageError(str(report.failures))
    np.testing.assert_array_equal(read(new), values)


def send(path, values):
    """Without the source."""
    away = path.with_name("away.zarr")
    options = MoveOptions(str(away), delete_source=True, throttle=POLITE)
    report = move_store.move_store(path, options, execute)
    if not report.ok:
        raise StorageError(str(report.failures))
    np.testing.assert_array_equal(read(away), values)
    assert not path.exists()
    assert open_destination(str(away)).size(CLAIM_KEY) is None


def change(strategy):
    def job(path, values):
        values = values.copy()
        values[0, :4] = 9
        update(path, {"t": 0, "y": slice(0, 4)}, np.full((4, 8), 9, np.uint16), strategy=strategy)
        np.testing.assert_array_equal(read(path), values)

    return job


def remove(path, values):
    """Two chunks, then the shard that has only these left."""
    erase(path, {"t": slice(2, 3)})
    erase(path, {"t": slice(3, 4)})
    values = values.copy()
    values[2:] = 0
    np.testing.assert_array_equal(read(path), values)
    assert not (path / "c/1/0/0").exists()


@pytest.mark.parametrize(
    "job",
    [pack, rechunk, send, change("rewrite"), change("append"), change("in_place"), remove],
    ids=["pack", "rechunk", "move", "rewrite", "append", "in place", "erase"],
)
def test_no_lost_answer_spoils_a_job(tmp_path, job):
    runs = count()

    def run(lost):
        path = tmp_path / str(next(runs)) / "a.zarr"
        with losing(-1):
            values = small_store(path)
        try:
            job(path, values)
        except StorageError:
            assert lost == "make_folder", (
                "a folder does not tell who has made it; all else is known by its name"
            )
            job(path, values)
        if path.exists():
            assert verify_store(path).ok
        assert not [left for left in path.parent.iterdir() if left.name.startswith(".")]

    each_lost(run)
