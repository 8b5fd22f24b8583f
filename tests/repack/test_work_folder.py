from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shardwright.disk import failpoints
from shardwright.model.errors import LockedError
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.work_folder import (
    PAUSE_NAME,
    WorkFolder,
    working_path,
)

from .stores import leftovers, task

if TYPE_CHECKING:
    from shardwright.read.store import StoredArray


def test_one_job_at_a_time(store_of):
    array = store_of()
    refused = pytest.raises(LockedError, match=r"another process holds .*process")
    with WorkFolder.locked(array.path) as work:
        assert work.path == array.path / ".compact"
        with refused, WorkFolder.locked(array.path):
            pass
    assert not work.path.exists(), "nothing left in it"
    with WorkFolder.locked(array.path):
        pass


def test_a_pause_file_that_stays_keeps_the_folder(store_of):
    with WorkFolder.locked(store_of().path) as work:
        (work.path / PAUSE_NAME).touch()
    assert [path.name for path in work.path.iterdir()] == ["pause"]


def test_leftovers_are_cleared(store_of, tmp_path):
    array = store_of()
    for key in ("c/0/0/0", "c/0/0/1"):
        name = working_path(array, key)
        assert name.parent.parent == array.path
        assert name.name.startswith(key.replace("/", ".") + ".")
        name.write_bytes(b"half a shard")
    with WorkFolder.locked(array.path) as work:
        assert len(work.clear_leftovers()) == 2
        assert not leftovers(tmp_path)
    assert not list(tmp_path.rglob(".compact")), "empty folders go"


def test_names_of_working_files_differ(store_of):
    array = store_of()
    assert working_path(array, "c/0/0/0") != working_path(array, "c/0/0/0")


def die_while_packing(array: StoredArray, point: str) -> int:
    """How a child ends that is to end at this point."""
    child = os.fork()
    if child == 0:
        try:
            failpoints.set_hook(point, lambda: os._exit(9))
            with WorkFolder.locked(array.path):
                run_task(task(array, 0, 0, 0, order="morton"))
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("point", ["compact.before_index", "compact.before_rename", "directory.before_sync"])
def test_what_a_dead_job_left_is_cleared_and_done_again(store_of, point):
    array = store_of()
    assert die_while_packing(array, point) == 9
    with WorkFolder.locked(array.path) as work:
        cleared = work.clear_leftovers()
        assert len(cleared) == (point.startswith("compact"))
        assert run_task(task(array, 0, 0, 0, order="morton"))["ok"]
