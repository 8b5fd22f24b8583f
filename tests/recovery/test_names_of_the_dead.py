"""What is found by its name may have got it, or lost it, by a process that died right then: the name is made
durable before anything is done that a power cut could keep without it."""

from __future__ import annotations

import errno
import os
from pathlib import PurePath
from typing import TYPE_CHECKING

import pytest
from tests.harness.writing import how
from tests.repack.images import POLITE, run_here, write_image
from tests.repack.stores import FRAMES, frame, spec, task

import shardwright as sw
from shardwright.disk import beneath, failpoints
from shardwright.model.names import EDIT_FOLDER, WORKSPACE
from shardwright.read.store import parse_array
from shardwright.recovery import take_over
from shardwright.recovery.leftovers import look_at, remove, row_for
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer.move_plan import MoveOptions, plan_move
from shardwright.store.new_store import new_making_name, remove_abandoned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SYNC = "directory.before_sync"


@pytest.fixture
def points() -> Iterator[list[str]]:
    """The failpoints that are reached."""
    reached: list[str] = []
    failpoints.watch_all(reached.append)
    yield reached
    failpoints.watch_all(None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(io="mmap")) as writer:
        for i in range(FRAMES):
            writer.append(frame(i))
    return path


def test_a_file_that_a_dead_worker_has_sent_is_kept(store: Path, tmp_path: Path, points: list[str]) -> None:
    """Another worker gets its task; once all are there, the source may be deleted."""
    item = next(iter(plan_move(store, MoveOptions(str(tmp_path / "away"), throttle=POLITE)).data))
    assert not run_task(item)["skipped"]
    points.clear()
    assert run_task(item)["skipped"]
    assert points.count(SYNC) == len(PurePath(item["key"]).parents)


def test_a_shard_that_a_dead_worker_has_made_is_kept(tmp_path: Path, points: list[str]) -> None:
    """Another worker gets its task; then the new store gets its name."""
    write_image(tmp_path / "a.ome.zarr", shape=(4, 8, 16))
    options, again = RechunkOptions({"z": 2}), []

    def each_twice(tasks: Iterable[dict]) -> Iterator[dict]:
        for each in tasks:
            yield from run_here([each])
            points.clear()
            again.extend((result, points.count(SYNC)) for result in run_here([each]))

    plan = plan_new_store(tmp_path / "a.ome.zarr", options)
    assert write_new_store(plan, tmp_path / "b.ome.zarr", options, each_twice, throttle=POLITE).ok
    assert again
    assert all(result["skipped"] and syncs == 4 for result, syncs in again), again


@pytest.mark.parametrize("is_there", [True, False], ids=["a folder of edits", "it is gone"])
def test_a_shard_is_packed_once_no_journal_can_come_back(
    store: Path, points: list[str], is_there: bool
) -> None:
    """An edit that died has deleted its journal, and perhaps the folder, unsynced: it would come back to
    another file."""
    if is_there:
        (store / "0" / EDIT_FOLDER).mkdir()
    packed = run_task(task(parse_array(store / "0"), 0, 0, 0))
    assert packed["ok"], packed
    held = points[points.index("sums.before_lock") :]
    assert held.count(SYNC) == 2, "before the rename, and after it"


def test_a_workspace_is_removed_once_its_manifest_is_gone_for_good(store: Path, points: list[str]) -> None:
    (store / WORKSPACE).mkdir()
    (store / WORKSPACE / "frames.log").touch()
    remove(store, row_for(look_at(store)))
    assert not (store / WORKSPACE).exists()
    assert SYNC in points[: points.index("leftovers.before_remove")]


def test_a_name_is_freed_once_the_manifest_is_gone_for_good(tmp_path: Path, points: list[str]) -> None:
    """Its removal was killed when the manifest was deleted, and that was not synced."""
    path = tmp_path / "a.ome.zarr"
    (path / WORKSPACE).mkdir(parents=True)
    (path / WORKSPACE / "frames.log").touch()
    remove(path, row_for(look_at(path)))
    assert not path.exists()
    assert SYNC in points[: points.index("store.before_take_name")]


def test_a_making_folder_is_removed_once_no_store_can_get_its_name_back(
    tmp_path: Path, points: list[str]
) -> None:
    """A withdrawn store was renamed to it."""
    folder = tmp_path / new_making_name()
    folder.mkdir()
    remove_abandoned(folder)
    assert not folder.exists()
    assert SYNC in points[: points.index("store.before_remove")]


def test_a_folder_that_gets_another_name_as_it_is_deleted_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old writer puts its frame table in place behind its last check of the fence."""
    folder = tmp_path / "frames.1.building"
    folder.mkdir()

    def renamed(path: Path) -> None:
        path.rename(tmp_path / "frames")
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(beneath, "remove_tree", renamed)
    take_over._remove(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["frames"]
