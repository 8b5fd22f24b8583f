"""A folder is not taken for durable because it is there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.harness.power_cut import disk_at, failing_folder

from shardwright.disk import beneath, failpoints, files
from shardwright.disk.files import DurableFolders, make_directories, sync_directory, write_file
from shardwright.model.errors import StorageError

MAKERS = {"one folder": lambda: make_directories, "an owner": lambda: DurableFolders().make}


def acknowledge(folder: Path) -> Path:
    """A durable file in a folder."""
    write_file(folder / "0", b"acknowledged")
    sync_directory(folder)
    return folder / "0"


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("way", ["answer lost", "sync fails"])
def test_a_folder_whose_making_failed_once_is_durable_the_second_time(tmp_path, maker, depth, way):
    make = maker()
    with disk_at(tmp_path / "disk") as disk:
        folder = disk.root / "0" / "c" / "1"
        with failing_folder(disk, way, depth), pytest.raises(StorageError, match="Input/output error"):
            make(folder)
        make(folder)
        file = acknowledge(folder)
        disk.lose_power()
        assert file.exists()


def test_a_folder_that_another_thread_has_made_and_not_synced_is_durable(tmp_path):
    folders = DurableFolders()
    with disk_at(tmp_path / "disk") as disk:
        folder = disk.root / "c"
        folders.make(disk.root)

        def beside() -> None:
            failpoints.set_hook("directory.before_sync", None)
            folders.make(folder)
            acknowledge(folder)
            raise OSError(errno.EIO, "the sync of its maker")

        failpoints.set_hook("directory.before_sync", beside)
        with pytest.raises(StorageError, match="sync folder"):
            folders.make(folder)
        disk.lose_power()
        assert (folder / "0").exists()


def test_folders_of_a_process_that_was_killed_are_durable_when_the_next_one_uses_them(tmp_path):
    with disk_at(tmp_path / "disk") as disk:
        folder = disk.root / "0" / "c"
        make_directories(folder, synced=False)
        make_directories(folder)
        file = acknowledge(folder)
        disk.lose_power()
        assert file.exists()


def test_a_folder_that_is_known_to_be_durable_costs_no_sync(tmp_path, synced):
    folders = DurableFolders(tmp_path)
    (tmp_path / "c" / "0").mkdir(parents=True)
    for _ in range(3):
        folders.make(tmp_path / "c" / "0")
        folders.make(tmp_path / "c" / "1")
    assert synced == [tmp_path, tmp_path / "c", tmp_path / "c"]
    (tmp_path / "c" / "1").rmdir()
    folders.make(tmp_path / "c" / "1")
    assert synced[3:] == [tmp_path / "c"]


@pytest.fixture
def synced(monkeypatch) -> list[Path]:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    return synced


def test_the_memory_is_bounded(tmp_path, synced, monkeypatch):
    monkeypatch.setattr(files, "_MOST_KNOWN_FOLDERS", 3)
    monkeypatch.setattr(files, "_MOST_JUST_MADE", 3)
    folders = DurableFolders(tmp_path)
    for number in range(10):
        folders.make(tmp_path / str(number))
        assert len(folders._known) <= 3
        assert len(folders._just_made) <= 3
    before = len(synced)
    folders.make(tmp_path / "0")
    assert len(synced) > before


def test_folders_that_this_user_cannot_have_made_are_left(tmp_path, synced, monkeypatch):
    assert not beneath.is_changeable(Path("/"))
    assert not beneath.is_changeable(Path("/proc")), "a mount point"
    assert beneath.is_changeable(tmp_path)
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    make_directories(tmp_path)
    assert not synced
    make_directories(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
