"""Changes of names that the disk has made and does not admit."""

from __future__ import annotations

import errno

import pytest
from tests.harness.lost_answers import ANSWERS, losing

from shardwright.disk import beneath
from shardwright.disk.files import (
    add_name,
    exchange,
    make_directories,
    publish_folder,
    rename_without_replacing,
    replace_by_rename,
    replace_file,
    takes_second_names,
)
from shardwright.model.errors import OutputExistsError, StorageError

WAYS = range(3)


@pytest.fixture
def one(tmp_path):
    path = tmp_path / "one"
    path.write_bytes(b"1")
    return path


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two"
    path.write_bytes(b"2")
    return path


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rename", [rename_without_replacing, replace_by_rename, publish_folder])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_rename_that_was_done_is_done(one, tmp_path, rename, kind, way):
    if kind == "folder":
        one.unlink()
        (one / "inner").mkdir(parents=True)
    with losing(0, way) as disk:
        rename(one, tmp_path / "new")
    assert disk.asked == ["rename"]
    assert not one.exists()
    assert (tmp_path / "new" / "inner").exists() if kind == "folder" else (tmp_path / "new").exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_file_is_replaced_and_exchanged(one, two, tmp_path, way):
    with losing(0, way):
        exchange(one, two)
    assert (one.read_bytes(), two.read_bytes()) == (b"2", b"1")
    with losing(0, way):
        replace_by_rename(one, two)
    assert two.read_bytes() == b"2"
    with losing(0, way) as disk:
        replace_file(two, b"3")
    assert "rename" in disk.asked
    assert two.read_bytes() == b"3"
    assert list(tmp_path.iterdir()) == [two]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_disk_without_such_a_rename_links_and_deletes(one, tmp_path, monkeypatch, number, way):
    monkeypatch.setattr(beneath, "RENAME_NOREPLACE", 1 << 20)  # EINVAL
    with losing(number, way) as disk:
        rename_without_replacing(one, tmp_path / "new")
    assert disk.asked == ["add_name", "unlink"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("way", WAYS)
def test_names_that_were_given_or_deleted(one, tmp_path, way):
    link, folder = tmp_path / "link", tmp_path / "folder"
    folder.mkdir()
    with losing(0, way):
        add_name(one, tmp_path / "new")
    with losing(0, way):
        beneath.unlink(one)
    with losing(0, way):
        beneath.remove_folder(folder)
    with losing(0, way):
        beneath.make_link(link, tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"new", "link"}
    for number in range(2):
        with losing(number, way):
            assert takes_second_names(tmp_path / "new")


def test_a_folder_that_seems_to_be_anothers_is_durable_all_the_same(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("shardwright.disk.files.sync_directory", synced.append)
    with losing(0):
        make_directories(tmp_path / "new")
    assert synced[-1] == tmp_path


def test_what_was_not_done_stays_an_error(one, two, tmp_path):
    """Also where a rival has the name."""
    missing = tmp_path / "missing"
    with pytest.raises(OutputExistsError):
        rename_without_replacing(one, two)
    with pytest.raises(OutputExistsError):
        add_name(one, two)
    with pytest.raises(FileExistsError):
        beneath.make_link(two, one)
    for rename in (rename_without_replacing, replace_by_rename, publish_folder):
        with pytest.raises(StorageError, match="No such file"):
            rename(missing, two)
    with pytest.raises(FileNotFoundError):
        beneath.unlink(missing)
    with pytest.raises(FileNotFoundError):
        beneath.remove_folder(missing)
    assert (one.read_bytes(), two.read_bytes()) == (b"1", b"2")


@pytest.mark.parametrize("answer", [errno.ENOENT, errno.EIO])
def test_a_rename_that_failed_is_not_taken_for_done(one, two, monkeypatch, answer):
    """Nor one between two names of one file, which changes nothing."""
    with losing(-1) as disk:
        monkeypatch.setattr(disk, "_answer", lambda *_: (_ for _ in ()).throw(OSError(answer, "no")))
        for call in (lambda: replace_by_rename(one, two), lambda: exchange(one, two)):
            with pytest.raises(StorageError):
                call()
        with pytest.raises(OSError, match="no"):
            beneath.unlink(one)
    assert (one.read_bytes(), two.read_bytes()) == (b"1", b"2")
    two.unlink()
    two.hardlink_to(one)
    with losing(0), pytest.raises(StorageError):
        replace_by_rename(one, two)
    assert {"rename", "add_name"} <= ANSWERS.keys()
