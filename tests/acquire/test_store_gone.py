"""A store that somebody deletes or moves while it is recorded: what is said of it is true, and nothing is
made again under its name."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from shardwright.acquire.acquisition import AcquisitionState
from shardwright.disk import failpoints
from shardwright.model.errors import StorageError, StoreGoneError
from shardwright.model.write_settings import WriteSettings
from shardwright.recovery.recover_store import recover_store
from shardwright.shard.intact_mark import is_intact
from shardwright.shard.manifest import read_manifest, write_manifest

NEVER_MS = 3_600_000
FRAMES = 11  # two shards are sealed, one is being filled


def delete(path):
    shutil.rmtree(path)


def move(path):
    path.rename(path.with_name("elsewhere.zarr"))


def delete_working_files(path):
    shutil.rmtree(path / ".shardwright")


def delete_all_but_the_lock(path):
    """As ``rm -rf`` leaves it for a moment."""
    shutil.rmtree(path / "0")
    for file in (path / ".shardwright").iterdir():
        if file.name != "lock":
            file.unlink()


def put_another_in_its_place(path):
    shutil.copytree(path, path.with_name("copy.zarr"))
    shutil.rmtree(path)
    path.with_name("copy.zarr").rename(path)
    workspace = path / ".shardwright"
    manifest = read_manifest(workspace)
    write_manifest(workspace, type(manifest)(**{**manifest.__dict__, "identity": "0" * 32}))


SAID = {
    delete: "was deleted while it was recorded. Its frames are gone",
    move: "was moved away while it was recorded; got .*elsewhere.zarr",
    delete_working_files: "the working files of .* were deleted while it was recorded",
    delete_all_but_the_lock: "the working files of .* were deleted while it was recorded",
    put_another_in_its_place: "was deleted while it was recorded, and its name is another store",
}


@pytest.fixture
def drive(drive_of, spec_of, shared_pool, tmp_path):
    made = drive_of(
        tmp_path / "a.zarr",
        spec_of(),
        shared_pool,
        WriteSettings(store_within_ms=20, sync_interval_ms=NEVER_MS, ballast_bytes=0),
    )
    made.submit(*range(FRAMES))
    made.until(lambda: made.acquisition.accounts.frames_stored == FRAMES)
    made.still()
    return made


def flush(acquisition):
    acquisition.flush()


def finish(acquisition):
    acquisition.finish()


def go_on(acquisition):
    """The next shard is prepared."""


@pytest.mark.parametrize("notice", [flush, finish, go_on])
@pytest.mark.parametrize("spoil", SAID)
def test_it_is_told_as_what_it_is(drive, spoil, notice):
    acquisition, path = drive.acquisition, drive.path
    spoil(path)
    left = sorted(path.rglob("*")) if path.exists() else None
    notice(acquisition)
    if notice is go_on:
        drive.submit(*range(FRAMES, FRAMES + 9))
    drive.until(lambda: acquisition.state is AcquisitionState.FAILED)
    receipt = drive.finish()
    assert isinstance(acquisition.error, StoreGoneError)
    with pytest.raises(StoreGoneError, match=SAID[spoil]):
        raise acquisition.error
    assert "taken" not in str(acquisition.error)
    assert "is kept" not in str(acquisition.error)
    assert not acquisition.left_to_recovery
    assert (sorted(path.rglob("*")) if path.exists() else None) == left, (
        "nothing is made again under its name"
    )
    if spoil is move:
        assert receipt.frames_stored >= FRAMES
    else:
        assert (receipt.frames_stored, receipt.frames_durable, receipt.shards) == (0, 0, 0)
        assert receipt.frames_lost == receipt.frames_received == receipt.frames_missing


def test_an_io_error_says_nothing_of_the_store_that_has_the_name_now(drive):
    def fail() -> None:
        put_another_in_its_place(drive.path)
        raise StorageError("cannot sync")

    failpoints.set_hook("sealer.before_commit", failpoints.at_time(1, fail))
    try:
        drive.acquisition.flush()
        drive.until(lambda: drive.acquisition.state is AcquisitionState.FAILED)
    finally:
        failpoints.set_hook("sealer.before_commit", None)
    drive.finish()
    assert isinstance(drive.acquisition.error, StoreGoneError)
    assert is_intact(drive.path / ".shardwright")


def test_what_was_moved_is_recovered_where_it_is(drive, shared_pool):
    move(drive.path)
    drive.acquisition.flush()
    drive.until(lambda: drive.acquisition.state is AcquisitionState.FAILED)
    drive.finish()
    drive.path = drive.path.with_name("elsewhere.zarr")
    recover_store(drive.path, shared_pool, threads=2)
    assert np.array_equal(drive.read(), drive.expected(range(FRAMES)))
