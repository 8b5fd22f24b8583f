"""A finished store gets another name, or goes, in one step; what is at work, elsewhere or not ours stays."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.daemon import start_cli

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import (
    InvalidNameError,
    LockedError,
    OutputExistsError,
    StorageError,
)
from shardwright.model.names import WORK_FOLDER, numbered
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.rework.name_changes import delete_store, rename_store
from shardwright.store import new_store
from shardwright.store.new_store import abandoned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FRAME = np.full((8, 8), 7, np.uint8)
LAYOUT = {"shape": (None, 8, 8), "dtype": "uint8", "axes": "tyx"}
CHANGES = {"rename": lambda path: rename_store(path, "new"), "delete": delete_store}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with sw.create(tmp_path / "a.ome.zarr", **LAYOUT) as writer:
        writer.append(FRAME)
    return tmp_path / "a.ome.zarr"


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return CHANGES[request.param]


def frames_in(path: Path) -> int:
    return int(sw.open_array(path).shape[0])


def test_a_store_has_its_new_name_with_its_suffix(store):
    assert rename_store(store, "b") == store.with_name("b.ome.zarr")
    assert rename_store(store.with_name("b.ome.zarr"), "c.zarr") == store.with_name("c.zarr")
    assert [path.name for path in store.parent.iterdir()] == ["c.zarr"]
    assert frames_in(store.with_name("c.zarr")) == 1


@pytest.mark.parametrize("name", ["../b", "b/c", ".b", "", "a", "a.ome.zarr"])
def test_a_name_that_is_none_is_refused(store, name):
    with pytest.raises(InvalidNameError):
        rename_store(store, name)
    assert frames_in(store) == 1


def test_a_name_that_is_taken_is_refused(store):
    store.with_name("b.ome.zarr").mkdir()
    with pytest.raises(OutputExistsError, match="already there"):
        rename_store(store, "b")
    assert frames_in(store) == 1


def test_a_store_is_deleted_with_all_its_files(store):
    files, told = sum(path.is_file() for path in store.rglob("*")), []
    assert delete_store(store, lambda done, of: told.append((done, of))) == files
    assert told == [(done, files) for done in range(1, files + 1)]
    assert list(store.parent.iterdir()) == []


def test_a_link_to_a_store_leads_to_nothing(store, change):
    link = store.with_name("link.ome.zarr")
    link.symlink_to(store)
    with pytest.raises(StorageError, match="is a link to"):
        change(link)
    assert frames_in(link) == 1


def test_what_another_program_wrote_stays(tmp_path, change):
    array = zarr.create_array(tmp_path / "b.zarr", shape=(2,), dtype="uint8")
    array[:] = 1
    with pytest.raises(OutputExistsError, match="no store that was written here"):
        change(tmp_path / "b.zarr")
    assert zarr.open_array(tmp_path / "b.zarr")[1] == 1


def test_a_store_that_is_written_stays(tmp_path, change):
    with sw.create(tmp_path / "a.ome.zarr", **LAYOUT) as writer:
        writer.append(FRAME)
        with pytest.raises(OutputExistsError, match="it is an acquisition that is unfinished"):
            change(tmp_path / "a.ome.zarr")
    assert frames_in(tmp_path / "a.ome.zarr") == 1


def test_a_store_on_which_a_job_is_at_work_stays(store, change):
    (store / "0" / WORK_FOLDER).mkdir()
    lock = StoreLock.take(store / "0" / WORK_FOLDER / "lock")
    try:
        with pytest.raises(LockedError, match="a job is at work"):
            change(store)
    finally:
        lock.release()
    change(store)


def test_a_job_that_begins_between_the_look_and_the_name_keeps_the_store(store, change):
    locks = []

    def begin() -> None:
        (store / "0" / WORK_FOLDER).mkdir()
        locks.append(StoreLock.take(store / "0" / WORK_FOLDER / "lock"))

    points = ("names.before_rename", "names.before_set_aside")
    for point in points:
        failpoints.set_hook(point, begin)
    try:
        with pytest.raises(LockedError, match="a job is at work"):
            change(store)
    finally:
        for point in points:
            failpoints.set_hook(point, None)
        for lock in locks:
            lock.release()
    assert locks
    assert frames_in(store) == 1
    assert [path.name for path in store.parent.iterdir()] == ["a.ome.zarr"]


def test_a_store_with_parts_elsewhere_stays(store, tmp_path, change):
    other = tmp_path / "other"
    other.mkdir()
    (other / "0").write_bytes(b"1")
    (store / "0/c/9").mkdir()
    (store / "0/c/9/0").symlink_to(other / "0")
    with pytest.raises(OutputExistsError, match="a part of it lies elsewhere"):
        change(store)
    assert (other / "0").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: mounts need root")
def test_what_is_mounted_in_a_store_stays(store, change):
    (store / "extra").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", store / "extra"], check=True)
    try:
        (store / "extra/kept").write_bytes(b"1")
        with pytest.raises(OutputExistsError, match="a part of it lies elsewhere"):
            change(store)
        assert (store / "extra/kept").exists()
    finally:
        subprocess.run(["umount", store / "extra"], check=True)


@pytest.mark.parametrize(
    ("point", "has_name"),
    [
        ("names.before_set_aside", True),
        ("replaced.before_give_up", False),
        ("replaced.before_remove", False),
        ("replaced.before_remove@20", False),
    ],
)
def test_a_deletion_that_is_killed_leaves_a_whole_store_or_none(store, point, has_name):
    kill = point.replace("@", "=kill@") if "@" in point else f"{point}=kill"
    killed = start_cli("delete", "--yes", store, more={"SHARDWRIGHT_FAILPOINTS": kill})
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert store.exists() is has_name
    if has_name:
        assert frames_in(store) == 1
    else:
        assert len(unfinished_stores(store.parent)) == 1, "`recover` removes it as well"
    if has_name or point == "replaced.before_give_up":  # not decided: it has its name back first
        delete_store(store)
    else:
        with pytest.raises(StorageError, match=r"no such store.* had left is gone now"):
            delete_store(store)
    assert list(store.parent.iterdir()) == []
    with pytest.raises(StorageError, match=r"no such store: .*a\.ome\.zarr$"):
        delete_store(store)


@pytest.mark.parametrize(("point", "name"), [("names.before_rename", "a"), ("directory.before_sync", "b")])
def test_a_rename_that_is_killed_leaves_one_name(store, point, name):
    killed = start_cli("rename", store, "b", more={"SHARDWRIGHT_FAILPOINTS": f"{point}=kill"})
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in store.parent.iterdir()] == [f"{name}.ome.zarr"]
    assert frames_in(store.with_name(f"{name}.ome.zarr")) == 1


def test_a_deletion_removes_what_an_earlier_one_has_left(store):
    killed = start_cli(
        "delete", "--yes", store, more={"SHARDWRIGHT_FAILPOINTS": "replaced.before_remove=kill"}
    )
    killed.communicate()
    with sw.create(store, **LAYOUT) as writer:
        writer.append(FRAME)
    assert [path.name for path in store.parent.iterdir()] == ["a.ome.zarr"], "a creation does as well"
    delete_store(store)
    assert list(store.parent.iterdir()) == []


def test_nobody_takes_a_store_that_is_being_deleted_for_abandoned(store):
    """A creation beside it would remove files of a store that may still get its name back."""
    found = []
    failpoints.set_hook("replaced.before_remove", lambda: found.append(abandoned(store.parent)))
    try:
        delete_store(store)
    finally:
        failpoints.set_hook("replaced.before_remove", None)
    assert found
    assert not any(found)


def test_a_store_whose_name_was_taken_meanwhile_gets_a_number(store):
    locks = []

    def begin() -> None:
        (store / "0" / WORK_FOLDER).mkdir()
        locks.append(StoreLock.take(store / "0" / WORK_FOLDER / "lock"))
        failpoints.set_hook("directory.before_sync", lambda: store.mkdir(exist_ok=True))

    failpoints.set_hook("names.before_set_aside", begin)
    try:
        with pytest.raises(LockedError, match="a job is at work"):
            delete_store(store)
    finally:
        for point in ("names.before_set_aside", "directory.before_sync"):
            failpoints.set_hook(point, None)
        for lock in locks:
            lock.release()
    assert frames_in(numbered(store, 2)) == 1


def test_a_store_in_which_an_acquisition_is_written_stays(store, change):
    with sw.create(store / "inner.ome.zarr", **LAYOUT) as writer:
        writer.append(FRAME)
        writer.flush()
        with pytest.raises(OutputExistsError, match="an acquisition in it is unfinished"):
            change(store)
        with pytest.raises(OutputExistsError, match="an acquisition in it is unfinished"):
            sw.create(store, **LAYOUT, overwrite=True)
    assert (frames_in(store), frames_in(store / "inner.ome.zarr")) == (1, 1)


@pytest.mark.parametrize("gets_back", [True, False])
def test_a_deletion_that_ends_before_it_is_decided_gives_the_name_back(store, gets_back):
    """Ctrl-C while the store is looked through; where its name cannot be given back at once, whoever clears
    up beside it next does that."""

    def interrupt() -> None:
        failpoints.set_hook("directory.before_sync", stop)

    def stop() -> None:
        if not store.exists():
            raise KeyboardInterrupt

    def fail() -> None:
        raise OSError(5, "Input/output error")

    hooks = {"names.before_set_aside": interrupt, "replaced.before_put_back": None if gets_back else fail}
    for point, hook in hooks.items():
        failpoints.set_hook(point, hook)
    try:
        with pytest.raises(KeyboardInterrupt):
            delete_store(store)
    finally:
        for point in (*hooks, "directory.before_sync"):
            failpoints.set_hook(point, None)
    assert store.exists() is gets_back
    with sw.create(store.with_name("b.ome.zarr"), **LAYOUT) as writer:
        writer.append(FRAME)
    assert frames_in(store) == 1
    assert sorted(path.name for path in store.parent.iterdir()) == ["a.ome.zarr", "b.ome.zarr"]


def test_a_deletion_works_where_no_folder_can_be_made(store, monkeypatch):
    def full(_path: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(new_store.beneath, "make_folder", full)
    assert delete_store(store) > 0
    assert list(store.parent.iterdir()) == []


def test_leftovers_that_cannot_be_removed_hinder_no_deletion(store, monkeypatch):
    def refuse(_folder: object) -> None:
        raise StorageError("not yours")

    (store.parent / ".shardwright-0123456789abcdef.making").mkdir()
    monkeypatch.setattr(new_store, "remove_abandoned", refuse)
    assert delete_store(store) > 0
    with pytest.raises(StorageError, match=r"no such store: .*a\.ome\.zarr$"):
        delete_store(store)


@pytest.mark.parametrize("path", ["/", "a.ome.zarr/0/.."])
def test_what_is_no_name_is_refused(store, change, path):
    with pytest.raises(InvalidNameError, match="no name of a store"):
        change(store.parent / path)
    assert frames_in(store) == 1


def test_a_point_in_a_name_is_no_suffix(store):
    assert rename_store(store, "run.1").name == "run.1.ome.zarr"
    plain = store.with_name("run.1.ome.zarr").rename(store.with_name("run.1"))
    assert rename_store(plain, "other").name == "other"
