"""Whatever options meet: a store is written, its writer meets a full disk, a full ring and a duplicate and
dies, another one goes on, and readers see each frame. The rows have every pair of values, see
``test_table``."""

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
from tests.harness.ome_forms import check_ome_forms
from tests.harness.python import commands
from tests.harness.store_contents import leftovers, listed_images
from tests.properties.acquisitions import bits
from tests.properties.readers import (
    IS_FUSED,
    keys_that_zarr_python_misses,
    regions,
    with_fused_pipeline,
    with_tensorstore,
    with_zarr_python,
)
from tests.repack.images import run_here

import shardwright as sw
from shardwright.model.frame_status import FrameStatus
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.rework.jobs.merge_shards import merge_shards
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.throttle import Throttle

from .lives import GROUPS, LIFE, Frame, Life, go_on, is_refused, write_and_die
from .rows import covering_rows
from .trouble import Met

if TYPE_CHECKING:
    from tests.harness.fork_server import ForkServer

    from shardwright.acquire.workers import WorkerPool
    from shardwright.recovery.recover_store import Recovery

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
DEATHS = {"flushed": 0, "at a storage call": -9, "as it closes": -9}


def lives(groups: list[tuple[str, ...]]) -> list[Life]:
    return [Life(row, number) for number, row in enumerate(covering_rows(LIFE, groups, is_refused))]


LIVES = lives(GROUPS)


def with_our_store(array: Path) -> np.ndarray:
    """A store's array through ``sw.open``."""
    store = next(folder for folder in array.parents if folder.name.endswith(".ome.zarr"))
    return np.asarray(zarr.open_array(sw.open(store), path=str(array.relative_to(store)), mode="r")[...])


READERS = {"sw.open": with_our_store, "zarr-python": with_zarr_python, "tensorstore": with_tensorstore}
if IS_FUSED:
    READERS["fused pipeline"] = with_fused_pipeline


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return commands()


def live(life: Life, folder: Path, server: ForkServer, pool: WorkerPool) -> None:
    child = server.start(write_and_die, life, folder)
    said, status = child.drain(), child.wait()
    assert status == DEATHS[life.row["death"]], said
    met, *closes = said
    check_disk(life, met)
    check_crowd(life, met)
    path, spilled = Path(met.path), folder / "second"
    check_promised(life, path, life.frames[: met.stored])
    if life.row["ends"] == "recovered":
        check_recovered(life, path, recover_store(path, pool, threads=2), met)
    else:
        later, frames = Met(), life.frames
        check_receipt(life, go_on(life, path, met, later), met, later)
        check_crowd(life, later, goes_on=True)
        if later.lost and life.row["named"] == "nothing":
            frames = frames[: met.stored] + frames[met.stored + 1 :]
        check_store(life, path, frames, came=life.frames)
        # Else readers may have had a sealed shard open, whose chunks stay where they are: of a writer that
        # closed, also by itself since the disk was full.
        if life.row["live"] == "none" or not (closes or met.full):
            check_order(life, path)
    assert not leftovers(path)
    assert not spilled.exists() or not leftovers(spilled)
    check_merged(path)


def check_disk(life: Life, met: Met) -> None:
    """A full disk is met where more shards than the first are needed, and does what ``on_full`` says."""
    on_full = life.row["on_full"]
    if on_full == "fail":
        is_met = not met.beyond[0] and any(met.beyond)
        assert met.stored == (met.beyond.index(True) if is_met else life.before)
        assert bool(met.full) == is_met
        return
    assert met.no_room or not any(met.beyond)
    assert met.stored == life.before
    needs = {"block": {"disk_full", "disk_has_room"}, "spill": {"spilling"}}[on_full]
    assert needs <= {*met.events} or not met.needs_files


def check_crowd(life: Life, met: Met, *, goes_on: bool = False) -> None:
    """One more frame than there are buffers is what ``overload`` says, and one for a place that is taken what
    ``on_duplicate`` does."""
    row, what = life.row, life.row["overload"]
    by_number, is_last = row["named"] == "nothing", goes_on or row["ends"] == "recovered"
    assert met.crowded or goes_on or not life.is_crowded
    assert met.waited == (met.crowded and what in ("block", "degrade"))
    assert met.dropped == (met.crowded and what == "drop")
    assert met.overloads == (met.crowded and what == "fail")
    is_faster = what == "degrade" and row["codec"] != "none"
    assert ("overload_level" in met.events) == (met.crowded and is_faster)
    # the last frame may be the one that meets a full disk, before or behind the one more
    either = by_number and row["ends"] == "recovered" and met.full and met.stored == life.before - 1
    assert either or bool(met.duplicates) == (not by_number or (is_last and not met.full))
    counts = goes_on and row["death"] == "at a storage call"
    assert met.refused == (0 if counts or row["on_duplicate"] == "count" else met.duplicates)


def check_promised(life: Life, path: Path, frames: list[Frame]) -> None:
    """What lies there: each frame that was stored is seen through ``sw.open``."""
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


def check_receipt(life: Life, receipt: sw.Receipt, met: Met, later: Met) -> None:
    assert receipt.frames_dropped == met.dropped + later.dropped
    if life.row["death"] == "at a storage call":
        return  # frames on their way there may be lost, and come again
    assert receipt.frames_late == 0
    assert receipt.frames_lost == later.lost
    assert receipt.frames_duplicate == met.duplicates + later.duplicates
    missing = later.lost if life.row["named"] == "nothing" else 0
    if life.row["axes"] == "ragged":  # counted there though their places have others
        missing = receipt.frames_dropped + later.lost
    assert receipt.frames_missing == missing


def check_recovered(life: Life, path: Path, recovery: Recovery, met: Met) -> None:
    """Every frame that was stored, and none that was not sent."""
    stored = set(stored_rows(life, path))
    frames = [frame for frame in life.frames if life.row_of(frame) in stored]
    assert frames[: met.stored] == life.frames[: met.stored]
    assert life.row["death"] == "at a storage call" or len(frames) == met.stored
    assert recovery.frames_kept == len(frames)
    check_store(life, path, frames, came=[*frames, *life.frames[met.stored : met.stored + bool(met.full)]])


def check_merged(path: Path) -> None:
    """Whatever a store was written with, its shards become one, and every pixel stays; but for shards that
    lie on another disk."""
    arrays = [array.path for array in open_store(path).arrays]
    before = {array: np.asarray(zarr.open_array(array, mode="r")[...]) for array in arrays}
    sizes = dict.fromkeys("tpcyxz", 1 << 20)
    report = merge_shards(open_store(path), sizes, run_here, Throttle(idle=False), no_progress)
    assert not report.failures
    assert all("another disk" in why for why in report.unmerged.values()), report.unmerged
    for array, values in before.items():
        found = np.asarray(zarr.open_array(array, mode="r")[...])
        assert np.array_equal(bits(found), bits(values)), array
        left = array.relative_to(path).as_posix() in report.unmerged
        assert left or parse_array(array).shards_in_shape <= 1
    report_after = verify_store(path, threads=1)
    assert report_after.ok, report_after.problems


def check_store(life: Life, path: Path, frames: list[Frame], came: list[Frame]) -> None:
    """By every reader; and by its own sums and tables. ``came``: an image, and the end of an axis, may be
    there for the sake of a frame that is not."""
    models, others = life.expected(frames), life.expected(came)
    for image, model in models.items():
        for level, array in enumerate(model.arrays):
            at = life.spec.level_paths(image)[level]
            if zarr.open_array(path / at, mode="r").shape == others[image].arrays[level].shape:
                array = padded(array, others[image].arrays[level].shape, life.row["fill_value"])
            for name, read in READERS.items():
                found = read(path / at)
                assert (found.shape, found.dtype) == (array.shape, array.dtype), (name, at)
                # which NaN the mean of several is, nobody promises
                assert np.array_equal(bits(found), bits(array)) or (
                    level and np.array_equal(found, array, equal_nan=array.dtype.kind == "f")
                ), (name, at)
            mine = [frame for frame in frames if frame.image == image]
            check_keys(life, path / at, array, None if level else mine)
    check_what_the_end_writes(life, path, {frame.image for frame in frames})
    report = verify_store(path, threads=1)
    assert report.ok, report.problems
    check_ome_forms(path, life.row["ome_version"])
    if not life.spec.is_single:
        listed = [
            [life.spec.paths[image].rpartition("/")[0] for image in sorted({frame.image for frame in those})]
            for those in (frames, came)
        ]
        assert listed_images(path) in listed
    assert sorted(stored_rows(life, path)) == sorted(map(life.row_of, frames))


def check_what_the_end_writes(life: Life, path: Path, images: set[int]) -> None:
    """``frames.parquet``, which ``verify`` compares with the table; the block of the profile, with a time for
    each time point."""
    assert (path / "frames.parquet").exists() == life.row["frame_parquet"]
    for image in images:
        array = path / life.spec.paths[image]
        attributes = json.loads((array.parent / "zarr.json").read_text())["attributes"]
        assert ("dca" in attributes) == (life.row["profile"] == "dynamic-cell-atlas")
        if "dca" in attributes and life.row["axes"] != "plane":
            stored = [d.name for d in life.spec.arrays[image].stored_dimensions]
            shape = json.loads((array / "zarr.json").read_text())["shape"]
            times = attributes["dca"]["acquisition"]["timestamps"]
            assert len(times) == shape[stored.index("t")]
            assert times == sorted(times)


def padded(array: np.ndarray, shape: tuple[int, ...], fill_value: float) -> np.ndarray:
    found = np.full(shape, fill_value, array.dtype)
    found[tuple(map(slice, array.shape))] = array
    return found


def check_keys(life: Life, path: Path, array: np.ndarray, frames: list[Frame] | None) -> None:
    """A shard, or a chunk without one, is left out where all of it is fill value, or, if that is written,
    where no frame came. ``frames`` of the array; None of a level."""
    row, absent = life.row, []
    is_fill = bits(array) == bits(np.array(row["fill_value"], array.dtype))
    # other fill value than zero lies there before frames are put in place, and may stay
    may_stay = row["partial_chunks"] == "in_place" and row["fill_value"] != 0
    came = None if frames is None else pixels_of(life, array.shape, frames)
    for key, region in regions(zarr.open_array(path, mode="r")):
        is_there, is_empty = (path / key).exists(), bool(is_fill[region].all())
        absent += [key] * (not is_there)
        assert is_there or is_empty, key
        if row["write_empty_chunks"]:
            assert came is None or is_there == came[region].any(), key
        else:
            assert may_stay or is_there != is_empty, key
    assert not IS_FUSED or keys_that_zarr_python_misses(path) == absent


def pixels_of(life: Life, shape: tuple[int, ...], frames: list[Frame]) -> np.ndarray:
    """bool[shape] of an array: which are of these frames."""
    spec, found = life.spec.arrays[frames[0].image], np.zeros(shape, bool)
    stored = [d.name for d in spec.stored_dimensions]
    as_acquired = found.transpose([stored.index(d.name) for d in spec.dimensions])
    for frame in frames:
        as_acquired[life.index(frame)] = True
    return found


def check_order(life: Life, path: Path) -> None:
    """Chunks lie in the order that was asked for."""
    row = life.row
    if row["shards"] and row["chunk_order"] != "arrival" and row["chunk_order_after"] == "same":
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
