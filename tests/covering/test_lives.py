"""Whatever options meet: a store is written, its writer dies, another one goes on, and three readers see each
frame. The rows have every pair of values, see ``test_table``."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.chunk_orders import check_orders
from tests.harness.python import commands
from tests.harness.store_contents import leftovers, listed_images
from tests.properties.acquisitions import bits
from tests.properties.readers import with_tensorstore, with_zarr_python

import shardwright as sw
from shardwright.model.frame_status import FrameStatus
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store

from .lives import GROUPS, LIFE, Frame, Life, go_on, is_refused, write_and_die
from .rows import covering_rows

if TYPE_CHECKING:
    from tests.harness.fork_server import ForkServer

    from shardwright.acquire.workers import WorkerPool
    from shardwright.recovery.recover_store import Recovery

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
KILLED = -9


def lives(groups: list[tuple[str, ...]]) -> list[Life]:
    return [Life(row, number) for number, row in enumerate(covering_rows(LIFE, groups, is_refused))]


LIVES = lives(GROUPS)


def with_our_store(array: Path) -> np.ndarray:
    """A store's array through ``sw.open``."""
    store = next(folder for folder in array.parents if folder.name.endswith(".ome.zarr"))
    return np.asarray(zarr.open_array(sw.open(store), path=str(array.relative_to(store)), mode="r")[...])


READERS = {"sw.open": with_our_store, "zarr-python": with_zarr_python, "tensorstore": with_tensorstore}


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return commands()


def live(life: Life, folder: Path, server: ForkServer, pool: WorkerPool) -> None:
    child = server.start(write_and_die, life, folder)
    said, status = child.drain(), child.wait()
    assert status == (KILLED if life.row["death"] == "as it closes" else status), said
    assert status in (0, KILLED), said
    assert len(said) == 1, said
    path = Path(said[0])
    check_promised(life, path)
    if life.row["ends"] == "recovered":
        check_recovered(life, path, recover_store(path, pool, threads=2))
    else:
        check_receipt(life, go_on(life, path))
        check_store(life, path, life.frames)
        check_order(life, path)
    spilled = folder / "second"
    assert not leftovers(path)
    assert not spilled.exists() or not leftovers(spilled)


def check_promised(life: Life, path: Path) -> None:
    """What lies there: each frame that was stored is seen through ``sw.open``."""
    frames = life.frames[: life.before]
    for image, model in life.expected(frames).items():
        spec = life.spec.arrays[image]
        found = in_order_of_acquisition(spec, with_our_store(path / life.spec.paths[image]))
        array = in_order_of_acquisition(spec, model.arrays[0])
        for frame in frames:
            if frame.image == image:
                at = life.index(frame)
                assert np.array_equal(bits(found[at]), bits(array[at])), frame


def in_order_of_acquisition(spec: sw.ArraySpec, array: np.ndarray) -> np.ndarray:
    stored = [d.name for d in spec.stored_dimensions]
    return np.ascontiguousarray(array.transpose([stored.index(d.name) for d in spec.dimensions]))


def check_receipt(life: Life, receipt: sw.Receipt) -> None:
    trouble = (receipt.frames_lost, receipt.frames_late, receipt.frames_duplicate, receipt.frames_missing)
    assert receipt.frames_dropped == 0
    # frames on their way there may be lost, and come again
    assert life.row["death"] == "at a storage call" or trouble == (0, 0, 0, 0)


def check_recovered(life: Life, path: Path, recovery: Recovery) -> None:
    """Every frame that was stored, and none that was not sent."""
    stored = set(stored_rows(life, path))
    frames = [frame for frame in life.frames if life.row_of(frame) in stored]
    assert frames[: life.before] == life.frames[: life.before]
    assert life.row["death"] == "at a storage call" or len(frames) == life.before
    assert recovery.frames_kept == len(frames)
    check_store(life, path, frames)


def check_store(life: Life, path: Path, frames: list[Frame]) -> None:
    """By every reader; and by its own sums and tables."""
    models = life.expected(frames)
    for image, model in models.items():
        for level, array in enumerate(model.arrays):
            at = life.spec.level_paths(image)[level]
            for name, read in READERS.items():
                found = read(path / at)
                assert (found.shape, found.dtype) == (array.shape, array.dtype), (name, at)
                # which NaN the mean of several is, nobody promises
                assert np.array_equal(bits(found), bits(array)) or (
                    level and np.array_equal(found, array, equal_nan=array.dtype.kind == "f")
                ), (name, at)
    report = verify_store(path, threads=1)
    assert report.ok, report.problems
    if not life.spec.is_single:
        listed = [life.spec.paths[image].rpartition("/")[0] for image in models]
        assert listed_images(path) == listed
    assert sorted(stored_rows(life, path)) == sorted(map(life.row_of, frames))


def check_order(life: Life, path: Path) -> None:
    """Chunks lie in the order that was asked for, unless their shard took frames again while readers might
    have it open."""
    row = life.row
    is_kept = row["live"] == "none" or row["death"] != "as it closes"
    if row["shards"] and is_kept and row["chunk_order"] != "arrival" and row["chunk_order_after"] == "same":
        check_orders(path, {"fixed": "morton"}.get(row["chunk_order"], row["chunk_order"]))


def stored_rows(life: Life, path: Path) -> list[tuple[Any, ...]]:
    """(image, index, note) of each stored frame, by the frame table."""
    table, spec = sw.frame_table(path), life.spec
    stored = table[table["status"] == FrameStatus.STORED.name.lower()]
    axes = [f"index_{d.name}" for d in spec.arrays[0].dimensions[:-2]]
    images = [spec.names[0]] * len(stored) if spec.is_single else stored["image"]
    indices = zip(*(stored[name] for name in axes), strict=True) if axes else [()] * len(stored)
    notes = map(json.loads, stored["json"]) if "json" in stored else [None] * len(stored)
    return [
        (image, index, note and note["note"])
        for image, index, note in zip(images, indices, notes, strict=True)
    ]


@pytest.mark.parametrize("life", LIVES, ids=lambda life: f"{life.number}")
def test_a_life(life: Life, tmp_path: Path, server: ForkServer, shared_pool: WorkerPool) -> None:
    live(life, tmp_path, server, shared_pool)


@pytest.mark.slow
def test_any_three_values(tmp_path: Path, server: ForkServer, shared_pool: WorkerPool) -> None:
    failed = []
    for life in lives(list(itertools.combinations(LIFE, 3))):
        folder = tmp_path / str(life.number)
        folder.mkdir()
        try:
            live(life, folder, server, shared_pool)
        except Exception as error:
            failed.append((life.row, str(error)[:400]))  # its folder stays, as evidence
        else:
            shutil.rmtree(folder)
    assert not failed, failed[:3]
