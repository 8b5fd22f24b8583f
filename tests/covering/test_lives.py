"""Whatever options meet: a store is written, its writer dies, another one goes on, and three readers see each
frame. The rows have every pair of values, see ``test_table``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.daemon import commands
from tests.harness.stored import leftovers, listed_images
from tests.properties.acquisitions import bits
from tests.properties.readers import with_tensorstore, with_zarr_python

import shardwright as sw
from shardwright.model.frame_status import FrameStatus
from shardwright.read.verify_store import verify_store

from .lives import LIFE, Life, go_on, is_refused, write_and_die
from .rows import covering_rows

if TYPE_CHECKING:
    from tests.harness.fork_server import ForkServer

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
KILLED = -9


def lives(strength: int) -> list[Life]:
    return [Life(row, number) for number, row in enumerate(covering_rows(LIFE, is_refused, strength))]


PAIRS = lives(2)


def with_our_store(array: Path) -> np.ndarray:
    """A store's array through ``sw.open``."""
    store = next(folder for folder in array.parents if folder.name.endswith(".ome.zarr"))
    return np.asarray(zarr.open_array(sw.open(store), path=str(array.relative_to(store)), mode="r")[...])


READERS = {"sw.open": with_our_store, "zarr-python": with_zarr_python, "tensorstore": with_tensorstore}


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return commands()


def live(life: Life, folder: Path, server: ForkServer) -> None:
    child = server.start(write_and_die, life, folder)
    said, status = child.drain(), child.wait()
    assert status == (KILLED if life.row["death"] == "as it closes" else status), said
    assert status in (0, KILLED), said
    assert len(said) == 1, said
    path = Path(said[0])
    check_promised(life, path)
    receipt = go_on(life, path)
    check_finished(life, path, receipt)
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


def check_finished(life: Life, path: Path, receipt: sw.Receipt) -> None:
    for image, model in life.expected(life.frames).items():
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
    if life.row["death"] != "at a storage call":  # there, frames were on their way
        assert (receipt.frames_lost, receipt.frames_late, receipt.frames_duplicate) == (0, 0, 0)
    assert (receipt.frames_missing, receipt.frames_dropped) == (0, 0)
    if not life.spec.is_single:
        assert listed_images(path) == [each.rpartition("/")[0] for each in life.spec.paths]
    check_table(life, path)


def check_table(life: Life, path: Path) -> None:
    """A row for each frame, with its image, its index and its own metadata."""
    table, spec = sw.frame_table(path), life.spec
    stored = table[table["fate"] == FrameStatus.STORED.name.lower()]
    axes = [f"index_{d.name}" for d in spec.arrays[0].dimensions[:-2]]
    found = zip(
        [spec.names[0]] * len(stored) if spec.is_single else stored["image"],
        zip(*(stored[name] for name in axes), strict=True) if axes else [()] * len(stored),
        map(note_of, stored["json"]) if "json" in stored else [None] * len(stored),
        strict=True,
    )
    has_note = life.row["frame_json_bytes"] > 0
    sent = [(spec.names[f.image], life.index(f), f.seed if has_note else None) for f in life.frames]
    assert sorted(found) == sorted(sent)


def note_of(text: str) -> int:
    note: int = json.loads(text)["note"]
    return note


@pytest.mark.parametrize("life", PAIRS, ids=lambda life: f"{life.number}")
def test_a_life(life: Life, tmp_path: Path, server: ForkServer) -> None:
    live(life, tmp_path, server)


@pytest.mark.slow
def test_every_three_values(tmp_path: Path, server: ForkServer) -> None:
    failed = []
    for life in lives(3):
        folder = tmp_path / str(life.number)
        folder.mkdir()
        try:
            live(life, folder, server)
        except Exception as error:
            failed.append((life.row, str(error)[:400]))
        shutil.rmtree(folder)
    assert not failed, failed[:3]
