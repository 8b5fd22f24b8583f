"""The name of a store that was moved away can be used again, whatever a move left there."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from tests.harness.daemon import run_cli
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.cli.compact import send_summary
from shardwright.disk import failpoints
from shardwright.model.errors import LockedError, OutputExistsError, ShardFormatError
from shardwright.model.names import EDIT_FOLDER, MOVE_LOCK_NAME, WORK_FOLDER
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.rework.runtime.throttle import Throttle
from shardwright.rework.runtime.work_folder import LOCK_NAME, locked
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_record import MoveRecord
from shardwright.rework.transfer.move_store import move_store
from shardwright.store.moved_store import is_moved_away

from .moving_store import execute

POLITE = Throttle(idle=False)
FRAMES = 6


class KilledError(BaseException):
    pass


def write(path, **settings):
    with sw.create(
        path,
        shape=(None, 16, 16),
        dtype="uint8",
        axes="tyx",
        chunks={"t": 1},
        shards={"t": 2},
        threads=1,
        **how(**settings),
    ) as writer:
        for i in range(FRAMES):
            writer.append(np.full((16, 16), i + 1, np.uint8))


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "rig" / "S.ome.zarr"
    write(path)
    return path


@pytest.fixture(scope="module")
def pool():
    pool = WorkerPool(1)
    pool.start()
    yield pool
    pool.stop()


def move(store, place, run=execute, *, delete=True):
    return move_store(store, MoveOptions(str(place), delete_source=delete, throttle=POLITE), run)


def interrupted(tasks):
    for number, result in enumerate(execute(tasks)):
        if number == 2:
            raise KeyboardInterrupt
        yield result


def die_at(number, job):
    """Runs a job that is killed at its failpoint ``number``. Returns how many it reached."""
    calls = 0

    def watch(name):
        nonlocal calls
        calls += 1
        if calls >= number:  # what a finally block would do is not done, either
            raise KilledError(name)

    failpoints.watch_all(watch)
    try:
        job()
    except KilledError:
        pass
    finally:
        failpoints.watch_all(None)
    return calls


def recover(root, pool):
    return [recover_store(path, pool, threads=1).action for path in unfinished_stores(root)]


def husk(path, *records):
    """As a release before this one left it, after a move."""
    (path / WORK_FOLDER).mkdir(parents=True)
    for destination in records:
        MoveRecord.open(path / WORK_FOLDER, str(destination))
    return path


def test_a_copy_elsewhere_that_was_interrupted_does_not_keep_the_name(store, tmp_path):
    taken = tmp_path / "A"
    taken.mkdir()
    (taken / "x").touch()
    with pytest.raises(OutputExistsError):
        move(store, taken, delete=False)
    assert move(store, tmp_path / "B", interrupted, delete=False).interrupted
    report = move(store, tmp_path / "C")
    assert report.ok
    assert not os.path.lexists(store)
    assert report.abandoned == [str(tmp_path / "B")]
    assert f"{tmp_path / 'B'} has a part of it" in send_summary(report)
    assert [entry.name for entry in store.parent.iterdir()] == []
    write(store)
    assert verify_store(tmp_path / "C").ok
    assert verify_store(store).ok


def test_a_move_that_is_killed_as_it_ends_leaves_a_name_that_can_be_used_again(store, tmp_path, pool):
    """At each point from the last file of the source on. The same command, recovery or a creation ends it."""
    original = tmp_path / "original"
    shutil.copytree(store, original)

    def job(place):
        return move(store, place)

    points = []
    failpoints.watch_all(points.append)
    try:
        assert job(tmp_path / "counted").ok
    finally:
        failpoints.watch_all(None)
    last_file = max(i for i, name in enumerate(points) if name == "compact.before_delete_source")
    assert "moved.before_take_name" in points[last_file:]
    assert "moved.before_remove" in points[last_file:]
    for number in range(last_file + 2, len(points) + 1):
        end = ("again", "recover", "create", "overwrite")[number % 4]
        shutil.copytree(original, store)
        place = tmp_path / f"{number}"
        assert die_at(number, lambda place=place: job(place)) >= number
        assert verify_store(place).ok, "all of it had arrived"
        if os.path.lexists(store):
            assert is_moved_away(store), points[number - 1]
            with pytest.raises(ShardFormatError, match="shardwright recover"):
                verify_store(store)
        if end == "again" and os.path.lexists(store):
            assert job(place).ok
        if end == "recover":
            assert set(recover(store.parent, pool)) <= {"leftovers removed"}
            assert not list(store.parent.iterdir()), points[number - 1]
        write(store, overwrite=end == "overwrite")
        assert [entry.name for entry in store.parent.iterdir()] == [store.name], points[number - 1]
        shutil.rmtree(store)


@pytest.mark.parametrize("end", ["recover root", "recover store", "create", "overwrite", "increment"])
def test_what_an_older_release_left_gives_the_name_free(end, tmp_path, pool):
    path = husk(tmp_path / "rig" / "S.ome.zarr", tmp_path / "A", tmp_path / "B")
    for folder in (path / "0/c/1", path / "0" / WORK_FOLDER, path / "0" / EDIT_FOLDER):
        folder.mkdir(parents=True)
        if folder.name != "1":
            (folder / LOCK_NAME).touch()
    if end.startswith("recover"):
        at = path if end == "recover store" else path.parent
        dry = json.loads(run_cli("recover", at, "--dry-run", "--json").stdout)
        assert [found["action"] for found in dry["stores"]] == ["leftovers would be removed"]
        assert path.is_dir()
        assert recover(at, pool) == ["leftovers removed"]
        assert not list(path.parent.iterdir())
    settings = {"create": {}, "overwrite": {"overwrite": True}, "increment": {"name_taken": "increment"}}
    write(path, **settings.get(end, {}))
    assert verify_store(path).ok
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_a_job_holds_stays(tmp_path, pool):
    for folder, name in ((".", MOVE_LOCK_NAME), ("0", LOCK_NAME)):
        path = husk(tmp_path / folder / "S.ome.zarr", tmp_path / "A")
        (path / folder).mkdir(exist_ok=True)
        with locked(path / folder, name):
            with pytest.raises(OutputExistsError):
                write(path)
            if name == MOVE_LOCK_NAME:
                assert unfinished_stores(path.parent) == []
            else:
                with pytest.raises(LockedError, match="a job is at work"):
                    recover(path, pool)
        assert (path / WORK_FOLDER).is_dir()


def test_only_a_move_leaves_such_a_folder(store, tmp_path, pool):
    """A store at rest, a place to which a move has just begun to send, an empty folder, what a user put
    there, and a link to such a folder are none."""
    claimed = tmp_path / "rig" / "claimed"
    open_destination(str(claimed)).claim("token")
    (tmp_path / "rig" / "empty").mkdir()
    note = husk(tmp_path / "rig" / "note", tmp_path / "A") / "note.txt"
    note.touch()
    dangling = husk(tmp_path / "rig" / "dangling", tmp_path / "A") / "0"
    dangling.symlink_to(tmp_path / "nowhere")
    (tmp_path / "rig" / "link").symlink_to(husk(tmp_path / "elsewhere", tmp_path / "A"))
    (store / WORK_FOLDER).mkdir()
    MoveRecord.open(store / WORK_FOLDER, str(tmp_path / "A"))
    assert unfinished_stores(tmp_path / "rig") == []
    before = sorted(tmp_path.rglob("*"))
    for path in sorted((tmp_path / "rig").iterdir()):
        if path.name == "empty":
            continue  # whose name a new store may take
        with pytest.raises(OutputExistsError):
            write(path)
        assert not is_moved_away(path) or path.is_symlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_renamed_is_emptied(store, tmp_path):
    def fail():
        raise OSError(13, "Permission denied")

    failpoints.set_hook("moved.before_take_name", fail)
    try:
        assert move(store, tmp_path / "A").ok
    finally:
        failpoints.set_hook("moved.before_take_name", None)
    assert not os.path.lexists(store)
