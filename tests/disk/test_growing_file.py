"""Files that grow: each piece is there whole or not at all, and room behind the end is reserved."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from shardwright.disk import failpoints
from shardwright.disk.growing_file import GrowingFile
from shardwright.model.errors import StorageError, StorageFullError

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096


@pytest.fixture
def file(tmp_path):
    made = GrowingFile(tmp_path / "file", 64 * PAGE)
    yield made
    made.close()


def sizes(path: Path) -> tuple[int, int]:
    """The length, and what it takes of the disk."""
    facts = path.stat()
    return facts.st_size, facts.st_blocks * 512


def test_pieces_follow_each_other(file):
    file.append([b"one", b"two"])
    file.append([])
    file.append([b"three"])
    assert file.path.read_bytes() == b"onetwothree"
    assert file.nbytes == 11


def test_room_is_reserved_behind_the_end_and_given_back(file):
    assert sizes(file.path) == (0, 64 * PAGE)
    file.append([bytes(PAGE)])
    file.finish()
    assert sizes(file.path) == (PAGE, PAGE)


def test_a_write_that_the_system_cuts_short_is_gone_on_with(file, monkeypatch):
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: write(fd, [parts[0][:2]], at))
    file.append([b"one", b"two"])
    assert file.path.read_bytes() == b"onetwo"


@pytest.mark.parametrize("when", ["at once", "half way"])
def test_a_write_that_fails_leaves_the_file_as_it_was(file, monkeypatch, when):
    file.append([b"sound"])
    write = os.pwritev

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    half = full if when == "at once" else lambda fd, parts, at: write(fd, [parts[0][:2]], at)
    monkeypatch.setattr(os, "pwritev", half)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageFullError):
        file.append([b"one", b"two"])
    monkeypatch.undo()
    assert file.path.read_bytes() == b"sound"
    assert sizes(file.path) == (5, 64 * PAGE), "the room stays"
    file.append([b" again"])
    assert file.path.read_bytes() == b"sound again"


@pytest.mark.parametrize("punches", [True, False])
def test_a_part_becomes_zeros(file, monkeypatch, punches):
    if not punches:
        monkeypatch.setattr("shardwright.disk.files.punch_hole", lambda *_: False)
        monkeypatch.setattr("shardwright.disk.files._ZEROS", bytes(1000))
    data = bytes([7]) * (6 * PAGE)
    for start, stop in ((10, 20), (PAGE - 1, PAGE + 1), (100, 5 * PAGE - 3), (PAGE, 2 * PAGE)):
        file.append([data])
        at = file.nbytes - len(data)
        file.clear(at + start, at + stop)
        found = file.path.read_bytes()[at:]
        assert found == data[:start] + bytes(stop - start) + data[stop:]


def test_a_failed_sync_is_final(file):
    failpoints.set_hook("growing.before_sync", failpoints.at_time(1, failpoints._raise_eio))
    try:
        with pytest.raises(StorageError):
            file.finish()
        with pytest.raises(StorageError, match="failed before"):
            file.finish()
    finally:
        failpoints.set_hook("growing.before_sync", None)


def test_one_without_room_is_not_left(tmp_path):
    failpoints.set_hook("growing.before_preallocate", failpoints._raise_enospc)
    try:
        with pytest.raises(StorageFullError):
            GrowingFile(tmp_path / "file", PAGE)
    finally:
        failpoints.set_hook("growing.before_preallocate", None)
    assert not list(tmp_path.iterdir())


def test_a_name_that_another_file_has_by_now_stays(file):
    assert file.has_name(file.path)
    file.path.unlink()
    file.path.write_bytes(b"another")
    assert not file.has_name(file.path)
    file.discard()
    assert file.path.read_bytes() == b"another"
