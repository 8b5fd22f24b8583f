"""Names of stores beside our own files: any name works in every way, or is refused before a file is made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.python import run_python
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.disk import failpoints
from shardwright.model.errors import ConfigError, InvalidNameError, OutputExistsError
from shardwright.model.names import DAMAGED, EDIT_FOLDER, WORK_FOLDER, WORKSPACE
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.rework.jobs.rechunk_store import working_folder
from shardwright.rework.jobs.rechunk_transfer import staging_folder
from shardwright.rework.runtime.throttle import RIG_PAUSE_NAME, ROOM_PAUSE_NAME
from shardwright.rework.transfer.address import open_destination
from shardwright.store.new_store import abandoned, remove_abandoned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYOUT: dict[str, Any] = {
    "shape": (None, 16, 16),
    "dtype": "uint8",
    "axes": "tyx",
    "chunks": {"t": 1},
    "shards": {"t": 2},
    "threads": 1,
}
FRAMES = 3
KILLED = f"""
import os, sys, numpy as np, shardwright as sw
writer = sw.create(sys.argv[1], **{LAYOUT!r}, overwrite=sys.argv[2] == "overwrite",
                   settings=sw.WriteSettings(store_within_ms=10))
if sys.argv[2] == "write":
    for i in range({FRAMES}):
        writer.append(np.full((16, 16), i + 1, np.uint8))
    while writer.watermark.stored < {FRAMES}:
        pass
os._exit(0)
"""
# Names of ours within a store, of a lock beside it, of other formats, and names that need quoting.
WORK = [
    *("lock", ".lock", "frames", "0", "c", "OME", "ballast", "boot", "queued", "pause", "move.lock", "live"),
    *("x.new", ".zarr.json.new", "x.copy", "x.partial", "x.rewrite", "x.making", "x.rechunk", "meta", "data"),
    *("a b", "ä", "a#?%2F&", "a[1]*", "a\nb", "-rf", "...", os.fsdecode(b"a\xff"), "x" * 255),
]
REFUSED = [
    WORKSPACE,
    DAMAGED,
    EDIT_FOLDER,
    RIG_PAUSE_NAME,
    ROOM_PAUSE_NAME,
    WORK_FOLDER,
    ".shardwright-0123456789abcdef.making",
    ".shardwright-0123456789abcdef.replaced",
    ".shardwright-plan-abc",
    *("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"),
]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def write(path: Path, value: int = 1, **settings: Any) -> None:
    with sw.create(path, **LAYOUT, **how(**settings)) as writer:
        for i in range(FRAMES):
            writer.append(np.full((16, 16), value + i, np.uint8))


def killed(path: Path, what: str) -> None:
    run_python("-c", KILLED, path, what, check=True)


def holds(path: Path, value: int = 1) -> None:
    for pixels in (
        zarr.open_array(sw.open(path), path="0", mode="r")[:],
        zarr.open_array(path / "0", mode="r")[:],
    ):
        assert pixels.max(axis=(1, 2)).tolist() == [value + i for i in range(FRAMES)]
    assert len(sw.frame_table(path)) == FRAMES
    assert verify_store(path, threads=1).ok


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(1)
    pool.start()
    yield pool
    pool.stop()


@pytest.mark.parametrize("name", WORK, ids=ascii)
def test_a_store_of_any_name_is_written_read_overwritten_and_changed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path)
    holds(path)
    write(path, 5, overwrite=True)
    holds(path, 5)
    sw.update(path, {"t": 0}, 9)
    assert zarr.open_array(path / "0", mode="r")[0].min() == 9
    assert unfinished_stores(tmp_path) == []
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["lock", ".lock", "frames", "a\nb"], ids=ascii)
def test_what_a_kill_leaves_of_it_is_recovered(name: str, tmp_path: Path, pool: WorkerPool) -> None:
    path = tmp_path / name
    killed(path, "write")
    for expected, what in (([path], "overwrite"), (None, "")):
        found = unfinished_stores(tmp_path)
        assert expected is None or found == expected
        for store in found:
            recover_store(store, pool, threads=1)
        holds(path)
        assert names(tmp_path) == [name]
        if what:
            killed(path, what)  # before a frame: the old store gets its name again


def test_a_folder_in_which_a_store_named_lock_is_made_is_held(tmp_path: Path) -> None:
    """Its lock has another name, for which other creations must ask as well."""
    seen: list[list[Path]] = []
    failpoints.set_hook("store.before_rename", lambda: seen.append(abandoned(tmp_path)))
    try:
        write(tmp_path / "lock")
    finally:
        failpoints.set_hook("store.before_rename", None)
    assert seen == [[]]


@pytest.mark.parametrize("name", ["lock", ".lock"])
def test_a_folder_that_a_killed_creation_left_is_removed(name: str, tmp_path: Path) -> None:
    folder = tmp_path / ".shardwright-0123456789abcdef.making"
    (folder / name / WORKSPACE).mkdir(parents=True)
    assert abandoned(tmp_path) == [folder]
    remove_abandoned(folder)
    assert not names(tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_of_ours_is_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    """Recovery would remove such a store, or continue it as a file in progress; readers would take it for
    metadata of the folder above."""
    for make in (
        lambda path: sw.create(path, **LAYOUT),
        lambda path: sw.create(path, **LAYOUT, overwrite=True),
        lambda path: sw.create(path, **LAYOUT, **how(name_taken="increment")),
        lambda path: open_destination(str(path)),
    ):
        with pytest.raises(InvalidNameError, match="would be taken for files in progress, or for metadata"):
            make(tmp_path / name)
    assert not names(tmp_path)


def test_the_folders_of_a_job_beside_stores_are_such_names(tmp_path: Path) -> None:
    for folder in (working_folder(tmp_path / "a.zarr"), staging_folder(tmp_path / "a.zarr", "s3://a/b")):
        with pytest.raises(InvalidNameError):
            sw.create(folder, **LAYOUT)


def test_a_spill_root_is_another_place(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    (tmp_path / "link").symlink_to(tmp_path)
    for spill_root in (tmp_path, tmp_path / "link", path, path / "spilled"):
        with pytest.raises(ConfigError, match="spill_root: must be another folder than that of the stores"):
            sw.create(path, **LAYOUT, on_full="spill", **how(spill_root=spill_root))
    assert names(tmp_path) == ["link"]


def test_stores_of_one_name_do_not_share_a_folder_of_spilled_shards(tmp_path: Path) -> None:
    """The end of the one would remove the working files of the other."""
    spill: dict[str, Any] = {"on_full": "spill", "spill_root": tmp_path / "spilled"}
    with sw.create(tmp_path / "one" / "a.zarr", **LAYOUT, **how(**spill)) as first:
        first.append(np.ones((16, 16), np.uint8))
        with pytest.raises(OutputExistsError, match=r"spilled shards of another store.*spilled/a\.zarr"):
            sw.create(tmp_path / "two" / "a.zarr", **LAYOUT, **how(**spill))
        assert (tmp_path / "spilled" / "a.zarr" / WORKSPACE).is_dir()
        with sw.create(
            tmp_path / "two" / "a.zarr", **LAYOUT, **how(**spill, name_taken="increment")
        ) as second:
            assert second.path.name == "a_2.zarr"
    write(tmp_path / "two" / "a.zarr", **spill)
    assert not list((tmp_path / "spilled").iterdir())
