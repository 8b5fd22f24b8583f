"""One writer per output: the lock between processes, with a holder that is killed, and taken over while its
holder still lives."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from unittest.mock import Mock

import pytest

from shardwright.disk import beneath, failpoints
from shardwright.disk.lock import StoreLock, is_locked
from shardwright.model.errors import LockedError, StorageError

HOLDER = """
import sys, time
from pathlib import Path
from shardwright.disk.lock import StoreLock, is_locked
lock = StoreLock.take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
print("still held" if lock.is_held() else "lost", flush=True)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds ``tmp_path/lock`` until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n", process.stderr.read()
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path, holder):
    with pytest.raises(
        LockedError, match=rf"process {holder.pid} on '{socket.gethostname()}' since 20\d\d-\d\d-\d\dT"
    ) as caught:
        StoreLock.take(tmp_path / "lock")
    assert caught.value.hint is not None
    assert holder.communicate("")[0] == "still held\n"
    StoreLock.take(tmp_path / "lock").release()


def test_a_killed_holder_holds_nothing(tmp_path, holder):
    assert is_locked(tmp_path / "lock")
    holder.send_signal(signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    assert not is_locked(tmp_path / "lock")
    lock = StoreLock.take(tmp_path / "lock")
    assert lock.is_held()
    assert f'"pid": {os.getpid()}' in (tmp_path / "lock").read_text()
    lock.release()


def test_taking_over_leaves_the_old_holder_without_it(tmp_path, holder):
    lock = StoreLock.replace(tmp_path / "lock")
    assert lock.is_held()
    with pytest.raises(LockedError, match=f"process {os.getpid()} "):
        StoreLock.take(tmp_path / "lock")
    assert holder.communicate("")[0] == "lost\n"
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]
    lock.release()


def test_one_process_cannot_take_it_twice_either(tmp_path):
    lock = StoreLock.take(tmp_path / "lock")
    with pytest.raises(LockedError):
        StoreLock.take(tmp_path / "lock")
    assert lock.is_held()
    lock.release()
    lock.release()
    assert not lock.is_held()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff" * 9999, b"[" * 9999, b'{"pid": 1e999}']
)
def test_a_holder_that_has_not_written_its_name_yet(tmp_path, text):
    lock = StoreLock.take(tmp_path / "lock")
    (tmp_path / "lock").write_bytes(text)
    with pytest.raises(LockedError, match="not given its name"):
        StoreLock.take(tmp_path / "lock")
    lock.release()


def test_a_file_deleted_between_opening_and_locking_is_not_taken(tmp_path):
    """Its finished writer deleted it: whoever locks the deleted file holds nothing."""
    times = []

    def vanish() -> None:
        times.append(1)
        if len(times) == 1:
            (tmp_path / "lock").unlink()

    failpoints.set_hook("lock.before_take", vanish)
    try:
        lock = StoreLock.take(tmp_path / "lock")
    finally:
        failpoints.set_hook("lock.before_take", None)
    assert len(times) == 2
    assert lock.is_held()
    lock.delete()
    assert list(tmp_path.iterdir()) == []


def test_deleting_after_a_take_over_leaves_the_new_file(tmp_path):
    old = StoreLock.take(tmp_path / "lock")
    new = StoreLock.replace(tmp_path / "lock")
    old.delete()
    assert new.is_held()
    new.release()


def test_a_take_over_that_fails_leaves_the_holder_its_lock(tmp_path):
    def fail() -> None:
        raise OSError(5, "Input/output error")

    old = StoreLock.take(tmp_path / "lock")
    failpoints.set_hook("lock.before_rename", fail)
    try:
        with pytest.raises(StorageError, match="take over"):
            StoreLock.replace(tmp_path / "lock")
    finally:
        failpoints.set_hook("lock.before_rename", None)
    assert old.is_held()
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]
    old.release()


def test_a_take_over_whose_folder_cannot_be_synced_keeps_no_lock(tmp_path, failing):
    """The new file has the name, and a lock that nobody can release would stay with this process."""
    failing("directory.before_sync")
    with pytest.raises(StorageError, match="sync folder"):
        StoreLock.replace(tmp_path / "lock")
    StoreLock.take(tmp_path / "lock").release()


def test_what_is_not_there_is_not_locked(tmp_path):
    assert not is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE])
def test_a_lock_that_cannot_be_looked_at_is_no_free_one(tmp_path, monkeypatch, number):
    (tmp_path / "lock").touch()
    monkeypatch.setattr(beneath, "open_file", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(StorageError, match=f"cannot look at the lock.*{os.strerror(number)}"):
        is_locked(tmp_path / "lock")


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK])
def test_where_there_are_no_locks_nothing_is_locked(tmp_path, monkeypatch, number):
    (tmp_path / "lock").touch()
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(number, os.strerror(number))))
    assert not is_locked(tmp_path / "lock")
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(StorageError, match="cannot look at the lock"):
        is_locked(tmp_path / "lock")


def test_no_folder(tmp_path):
    with pytest.raises(StorageError, match="cannot lock"):
        StoreLock.take(tmp_path / "gone" / "lock")
