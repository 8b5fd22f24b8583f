"""The folder of a job that makes new arrays: what a run keeps of an earlier one, and what it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardwright.model.errors import LockedError, StorageError, StorageFullError
from shardwright.rework.runtime.job_folder import JobFolder

if TYPE_CHECKING:
    from pathlib import Path

JOB = {"source": "a hash", "arrays": [{"shape": [4, 4]}]}


def begin(path: Path, job: dict) -> None:
    """A run that has made one shard and is interrupted while it makes another."""
    with JobFolder.locked(path) as folder:
        folder.begin(job, lambda: None)
        (path / "store/0").mkdir(parents=True, exist_ok=True)
        (path / "store/0/c").write_bytes(job["source"].encode())
        (folder.work / "c.packed").write_bytes(b"half")


def test_the_same_job_keeps_its_shards_but_no_working_files(tmp_path):
    begin(tmp_path / "job", JOB)
    with JobFolder.locked(tmp_path / "job") as folder:
        assert folder.found() == JOB
        folder.begin(JOB, lambda: pytest.fail("there is room for what is there"))
        assert (folder.path / "store/0/c").read_bytes() == b"a hash"
        assert list(folder.work.iterdir()) == []


@pytest.mark.parametrize("found", [{**JOB, "source": "another hash"}, None])
def test_another_job_or_one_that_cannot_be_read_is_cleared(tmp_path, found):
    begin(tmp_path / "job", found or JOB)
    if found is None:
        (tmp_path / "job/job").write_text("{")
    with JobFolder.locked(tmp_path / "job") as folder:
        folder.begin(JOB, lambda: None)
        assert folder.found() == JOB
        assert {path.name for path in folder.path.iterdir()} == {"lock", "job", "work"}


def test_without_room_the_folder_does_not_say_that_the_job_has_begun(tmp_path):
    def no_room() -> None:
        raise StorageFullError("no room")

    with JobFolder.locked(tmp_path / "job") as folder, pytest.raises(StorageFullError):
        folder.begin(JOB, no_room)
    assert not (tmp_path / "job").exists(), "nothing is in it"


def test_one_run_at_a_time_and_nothing_is_left_of_a_job_that_is_done(tmp_path):
    begin(tmp_path / "job", JOB)
    with JobFolder.locked(tmp_path / "job") as folder:
        with pytest.raises(LockedError), JobFolder.locked(tmp_path / "job"):
            pytest.fail("another run is at work")
        folder.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_was_deleted_is_not_made_again_for_its_jobs_folder(tmp_path):
    with pytest.raises(StorageError), JobFolder.locked(tmp_path / "gone/.compact"):
        pytest.fail("there is no such store")
    assert not (tmp_path / "gone").exists()
