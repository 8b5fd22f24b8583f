"""The ballast takes real room, gives it back, and is content with a full disk."""

from __future__ import annotations

import errno
import os

import pytest

from shardwright.disk import beneath
from shardwright.disk.ballast import Ballast
from shardwright.model.errors import StorageError, StorageFullError

MIB = 1 << 20


def test_fill_takes_blocks_and_release_gives_them_back(tmp_path):
    ballast = Ballast(tmp_path / "ballast", MIB)
    assert ballast.release() is False
    assert ballast.fill() is True
    assert ballast.path.stat().st_blocks * 512 >= MIB
    assert ballast.fill() is True, "again: it is there already"
    assert ballast.release() is True
    assert not ballast.path.exists()
    assert ballast.release() is False
    ballast.fill()
    ballast.release()
    assert list(tmp_path.iterdir()) == []


def test_the_ballast_of_a_process_that_died_is_found(tmp_path):
    assert Ballast(tmp_path / "ballast", MIB).fill()
    assert Ballast(tmp_path / "ballast", MIB).release() is True


def test_a_ballast_whose_making_was_killed_is_made_again(tmp_path):
    ballast = Ballast(tmp_path / "ballast", MIB)
    ballast.path.touch()
    assert not ballast.is_there
    assert ballast.fill()
    assert ballast.is_there


def test_no_ballast(tmp_path):
    ballast = Ballast(tmp_path / "ballast", 0)
    assert ballast.fill() is True
    assert ballast.release() is False
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_error_and_nothing_is_left(tmp_path, failing, number):
    failing("ballast.before_fill", number)
    assert Ballast(tmp_path / "ballast", MIB).fill() is False
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_is_an_error(tmp_path, failing):
    failing("ballast.before_fill", errno.EIO)
    with pytest.raises(StorageError, match="cannot fill"):
        Ballast(tmp_path / "ballast", MIB).fill()


def test_work_that_finds_no_room_gets_the_ballasts_once(tmp_path):
    ballast, tries = Ballast(tmp_path / "ballast", MIB), []

    def work():
        tries.append(ballast.path.exists())
        if ballast.path.exists() or len(tries) > 2:
            raise StorageFullError("no room")
        return "done"

    ballast.fill()
    assert ballast.spent_on(work) == "done"
    assert tries == [True, False]
    with pytest.raises(StorageFullError):
        ballast.spent_on(work)
    assert len(tries) == 3, "without room to free it is not tried again"


def test_a_disk_that_fails_at_a_look_is_a_typed_error(tmp_path, monkeypatch):
    ballast = Ballast(tmp_path / "ballast", 1 << 16)
    assert not ballast.is_there
    assert ballast.fill()
    assert ballast.is_there
    assert Ballast(tmp_path / "none", 0).is_there, "nothing is missing"

    def failing(path, **options):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(beneath, "stat", failing)
    with pytest.raises(StorageError, match="look at"):
        _ = ballast.is_there
