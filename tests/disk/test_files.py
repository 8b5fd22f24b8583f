"""The seam to the filesystem: replacing, renaming, folders, preallocation, holes; each with a failure in the
middle."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from shardwright.disk import failpoints, files, filesystems, system
from shardwright.disk.files import (
    AtomicFile,
    DurableFolders,
    append_file,
    copy_file,
    file_held,
    make_directories,
    preallocate,
    punch_hole,
    rename_without_replacing,
    renew,
    replace_file,
    storage_errors,
)
from shardwright.disk.lock import StoreLock
from shardwright.disk.replace_files import replace_files
from shardwright.model.errors import (
    FencedError,
    LinkError,
    OutputExistsError,
    StorageError,
    StorageFullError,
)


def test_replace_file_writes_and_replaces(tmp_path):
    path = tmp_path / "zarr.json"
    replace_file(path, b"one")
    replace_file(path, b"two" * 100_000)
    assert path.read_bytes() == b"two" * 100_000
    assert [p.name for p in tmp_path.iterdir()] == ["zarr.json"]


@pytest.mark.parametrize("point", ["replace.before_sync", "replace.before_rename"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_replace_that_fails_keeps_the_old_and_leaves_nothing_else(tmp_path, failing, point, old):
    path = tmp_path / "zarr.json"
    if old is not None:
        path.write_bytes(old)
    failing(point)
    with pytest.raises(StorageError, match=r"cannot write .*zarr\.json: Input/output error"):
        replace_file(path, b"new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == ({} if old is None else {"zarr.json": old})


def test_a_filesystem_that_an_error_has_made_read_only_is_not_synced(tmp_path, monkeypatch):
    """The kernel writes nothing out there, and its syncfs succeeds."""
    whole = filesystems.WholeSync(tmp_path)
    found = os.statvfs(tmp_path)
    assert whole.sync("directory")
    read_only = os.statvfs_result((*found[:8], found.f_flag | os.ST_RDONLY, found.f_namemax))
    monkeypatch.setattr(os, "fstatvfs", lambda _: read_only)
    assert not whole.sync("directory")
    whole.close()


@pytest.mark.parametrize("fails", [None, 1, 2])
def test_many_files_are_replaced_with_the_syncs_of_a_few(tmp_path, monkeypatch, fails):
    """A sync of all that fails may be another program's: each file and folder is then synced by itself."""
    calls: list[str] = []

    def sync_filesystem(descriptor: int) -> None:
        calls.append("all")
        if calls.count("all") == fails:
            raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: True)
    monkeypatch.setattr(system.calls, "sync_filesystem", sync_filesystem)
    failpoints.watch_all(calls.append)
    try:
        first = {tmp_path / str(n) / "zarr.json": b"group" for n in range(8)}
        second = {tmp_path / str(n) / "0/zarr.json": b"array" for n in range(8)}
        replace_files(tmp_path, DurableFolders(tmp_path), [first, second])
    finally:
        failpoints.watch_all(None)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == first | second
    assert not list(tmp_path.rglob(".*"))
    steps = [call for call in calls if call in ("all", "replace.before_rename")]
    renames = 8 * ["replace.before_rename"]
    if fails is None:
        assert steps == ["all", *renames, "all", *renames, "all"]
    syncs = calls.count("replace.before_sync") - 1, calls.count("directory.before_sync")
    assert syncs[0] == (16 if fails == 1 else 0)
    assert (syncs[1] >= 16) is (fails is not None)


@pytest.mark.parametrize("point", ["replace.before_create", "replace.before_write", "replace.before_rename"])
@pytest.mark.parametrize("after", [0, 5, 15])
def test_many_files_of_which_one_fails_leave_no_other_name(tmp_path, failing, point, after):
    """A few threads write and name them: the error of any comes out, and no new bytes stay."""
    wanted = {tmp_path / str(n) / "zarr.json": b"new" for n in range(16)}
    failing(point, after=after)
    with pytest.raises(StorageError, match="Input/output error"):
        replace_files(tmp_path, DurableFolders(tmp_path), [wanted])
    there = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert set(there) <= wanted.keys()
    assert len(there) < len(wanted)
    assert not there or point == "replace.before_rename"


def test_many_files_take_no_name_once_their_writer_may_not(tmp_path):
    """It is asked for each step, behind the last byte: a look before that would be old."""
    first = {tmp_path / str(n) / "zarr.json": b"new" for n in range(16)}
    second = {tmp_path / str(n) / "0" / "zarr.json": b"new" for n in range(16)}
    asked = []

    def may_replace() -> None:
        asked.append(len(list(tmp_path.rglob(".zarr.json*.new"))))
        if len(asked) > 1:
            raise FencedError("taken over")

    with pytest.raises(FencedError):
        replace_files(tmp_path, DurableFolders(tmp_path), [first, second], may_replace)
    assert asked == [32, 16]
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(first)


def test_rename_without_replacing(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"mine")
    rename_without_replacing(source, target)
    assert (source.exists(), target.read_bytes()) == (False, b"mine")
    source.write_bytes(b"second")
    with pytest.raises(OutputExistsError, match="already there"):
        rename_without_replacing(source, target)
    assert (source.read_bytes(), target.read_bytes()) == (b"second", b"mine")


def test_a_rename_of_nothing_names_the_target(tmp_path):
    with pytest.raises(StorageError, match=r"rename to .*/b: No such file"):
        rename_without_replacing(tmp_path / "a", tmp_path / "b")


def test_make_directories_makes_what_is_missing_and_syncs_each_parent(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    make_directories(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert synced[-3:] == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_make_directories_through_a_file_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="create folder"):
        make_directories(tmp_path / "a" / "b")
    with pytest.raises(StorageError, match="create folder"):
        make_directories(tmp_path / "a")


def test_preallocate_takes_blocks_and_punch_gives_them_back(tmp_path):
    descriptor = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        assert preallocate(descriptor, 1 << 20) is True
        assert os.fstat(descriptor).st_size == 1 << 20
        assert os.fstat(descriptor).st_blocks * 512 >= 1 << 20
        os.pwrite(descriptor, b"x" * (1 << 20), 0)
        assert punch_hole(descriptor, 4096, (1 << 20) - 8192) is True
        assert os.fstat(descriptor).st_size == 1 << 20
        assert os.fstat(descriptor).st_blocks * 512 <= 8192 + 4096
        data = os.pread(descriptor, 1 << 20, 0)
        assert data == b"x" * 4096 + bytes((1 << 20) - 8192) + b"x" * 4096
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError), (errno.EIO, StorageError)],
)
def test_errors_are_typed_and_name_what_was_tried(number, kind):
    with (
        pytest.raises(StorageError, match=r"cannot polish /a/b: ") as caught,
        storage_errors("polish", "/a/b"),
    ):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind
    assert os.strerror(number) in str(caught.value)


@pytest.mark.parametrize("call", ["fallocate", "punch"])
def test_a_filesystem_without_the_call_is_served_all_the_same(tmp_path, monkeypatch, call):
    """Preallocation falls back to glibc's, which writes zeros; a gap just stays."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no such thing")

    descriptor = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        monkeypatch.setattr(system, "_call", unsupported)
        if call == "fallocate":
            assert preallocate(descriptor, 8192) is False
            assert os.fstat(descriptor).st_size == 8192
        else:
            os.ftruncate(descriptor, 8192)
            assert punch_hole(descriptor, 0, 4096) is False
    finally:
        os.close(descriptor)


def test_a_signal_does_not_fail_a_preallocation(tmp_path, monkeypatch):
    """Python retries its own calls after EINTR; the ones through ctypes are ours to retry."""
    answers = [errno.EINTR, errno.EINTR, 0]
    real = system._libc.fallocate

    class Interrupted:
        def fallocate(self, *arguments):
            number = answers.pop(0)
            if number:
                system.ctypes.set_errno(number)
                return -1
            return real(*arguments)

    monkeypatch.setattr(system, "_libc", Interrupted())
    descriptor = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        assert preallocate(descriptor, 8192) is True
        assert os.fstat(descriptor).st_size == 8192
    finally:
        os.close(descriptor)
    assert answers == []


HOLDER = """
    import os, signal, sys
    from pathlib import Path
    from shardwright.disk import failpoints
    from shardwright.disk.files import append_file, file_held
    path, how = Path(sys.argv[1]), sys.argv[2]
    def stop():
        print("here", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "held":
        with file_held(path, "sums", create=True):
            stop()
    else:
        failpoints.set_hook(f"sums.{how}", stop)
        append_file(path, b"\\nof the stopped", "sums")
"""


@pytest.fixture
def stopped(tmp_path):
    """Another process that was stopped in the middle of an append, or while it held the file."""
    children = []

    def stop(how: str) -> None:
        command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path / "record"), how]
        children.append(child := subprocess.Popen(command, stdout=subprocess.PIPE))
        assert child.stdout.readline() == b"here\n"

    yield stop
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.communicate()


@pytest.mark.parametrize("how", ["before_write", "before_sync", "held"])
def test_nobody_waits_for_a_process_that_was_stopped_to_append(tmp_path, stopped, how):
    """A writer that hangs is taken over, and its successor must not hang with it."""
    stopped(how)
    append_file(tmp_path / "record", b"\nours", "sums")
    assert (tmp_path / "record").read_bytes().splitlines()[-1] == b"ours"


def test_the_name_of_a_file_that_was_made_to_be_held_is_durable_with_its_first_line(tmp_path):
    path, points = tmp_path / "record", []
    with file_held(path, "sums", create=True):
        pass
    failpoints.watch_all(points.append)
    try:
        for line in (b"one\n", b"two\n"):
            append_file(path, line, "sums")
    finally:
        failpoints.watch_all(None)
    assert points == [
        "sums.before_open",
        "sums.before_write",
        "sums.before_sync",
        "directory.before_sync",
        *points[:3],
    ]


def test_who_holds_a_file_is_waited_for_so_long_and_no_longer(tmp_path, stopped):
    path = tmp_path / "record"
    with file_held(path, "sums", create=True):
        pass
    stopped("held")
    with (
        pytest.raises(StorageError, match=r"another process has held .*record for 0\.2 s"),
        file_held(path, "sums", create=True, timeout_s=0.2),
    ):
        raise AssertionError("two hold it")


@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_replaced_before_it_is_locked_is_not_what_is_held(tmp_path, monkeypatch, create):
    """As zarr.json is when attributes change: who comes next would lock the new one, and both went on."""
    path = tmp_path / "zarr.json"
    path.touch()
    real = files._lock_within

    def late(timeout_s, descriptor, path):
        monkeypatch.setattr(files, "_lock_within", real)
        files.replace_file(path, b"new")
        real(timeout_s, descriptor, path)

    monkeypatch.setattr(files, "_lock_within", late)
    with (
        file_held(path, "sums", create=create),
        pytest.raises(StorageError, match="another process has held"),
        file_held(path, "sums", create=create, timeout_s=0.05),
    ):
        raise AssertionError("two hold it")


def test_an_append_that_the_disk_cut_short_is_whole_behind_its_part(tmp_path, monkeypatch):
    real, lengths = os.write, iter([3, 1, 100])
    monkeypatch.setattr(files.os, "write", lambda descriptor, data: real(descriptor, data[: next(lengths)]))
    append_file(tmp_path / "record", b"\nwhole", "sums")
    assert (tmp_path / "record").read_bytes() == b"\nwh\n\nwhole"


@pytest.mark.parametrize("page_read", [3, 4, 5])
def test_writing_again_leaves_out_holes_and_what_cannot_be_read(tmp_path, monkeypatch, page_read):
    """As Linux reads: up to the bad page, and EIO where that is the first one."""
    page, path = mmap.PAGESIZE, tmp_path / "a"
    content = os.urandom(8 * page) + bytes(64 * page) + os.urandom(page // 2)
    with path.open("wb") as file:
        file.write(content[: 8 * page])
        file.seek(72 * page)
        file.write(content[72 * page :])
        file.flush()
        os.fsync(file.fileno())
    blocks, written, bad = path.stat().st_blocks, [], page_read * page
    pread, pwrite = os.pread, os.pwrite

    def read(descriptor: int, nbytes: int, offset: int) -> bytes:
        if bad <= offset < bad + page:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, min(nbytes, bad - offset) if offset < bad else nbytes, offset)

    def write(descriptor: int, data: bytes, offset: int) -> int:
        done = pwrite(descriptor, data[: page + 100], offset)  # a short one, as they may be
        written.append((offset, done))
        return done

    monkeypatch.setattr(os, "pread", read)
    monkeypatch.setattr(os, "pwrite", write)
    renew(path, again=True, failed=pytest.fail)
    monkeypatch.undo()
    assert path.read_bytes() == content
    assert path.stat().st_blocks == blocks, "holes stay holes"
    covered = {byte // page for offset, done in written for byte in range(offset, offset + done, 64)}
    assert covered == {*range(8), 72} - {page_read}
    assert sum(done for _, done in written) == 7 * page + page // 2


def test_on_a_full_disk_what_is_written_again_is_synced_to_make_room(tmp_path, monkeypatch):
    path, full, synced = tmp_path / "a", [True], []
    path.write_bytes(b"x" * 5000)
    pwrite, fsync = os.pwrite, os.fsync

    def write(descriptor: int, data: bytes, offset: int) -> int:
        if full and full.pop():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(len(full)), fsync(descriptor)))
    renew(path, again=True, failed=pytest.fail)
    assert synced == [1, 0], "before, and for room"
    monkeypatch.setattr(
        os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    )
    with pytest.raises(StorageFullError):
        renew(path, again=True, failed=pytest.fail)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_a_sync_that_fails_is_told_at_once_and_another_error_is_none(tmp_path, monkeypatch, number):
    path, told, written = tmp_path / "a", [], []
    path.write_bytes(b"x" * 5000)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
    monkeypatch.setattr(os, "pwrite", lambda *rest: (written.append(len(told)), pwrite(*rest))[1])
    if number == errno.EACCES:
        with pytest.raises(StorageError):
            renew(path, again=False, failed=lambda: told.append(None))
        assert (told, written) == ([], [])
    else:
        renew(path, again=False, failed=lambda: told.append(None))
        assert (told, written) == ([None], [1])


def test_a_copy_has_what_its_source_has(tmp_path):
    """Holes among the data, as preallocated files have them."""
    rng, source, target = np.random.default_rng(3), tmp_path / "source", tmp_path / "target"
    for _ in range(3):
        with source.open("wb") as file:
            for page in rng.choice(2048, 700, replace=False):
                file.seek(4096 * int(page))
                file.write(rng.bytes(4096))
            file.truncate(2048 * 4096)
        target.unlink(missing_ok=True)
        with source.open("rb", buffering=0) as reading:
            copy_file(reading, target)
        assert target.read_bytes() == source.read_bytes()


def test_a_close_that_fails_after_the_rename_is_told_and_deletes_nothing(tmp_path, monkeypatch):
    """As on NFS, where a write may fail as late as that."""
    path, close = tmp_path / "zarr.json", os.close

    def failing(descriptor):
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    new = AtomicFile(tmp_path / "new", "replace")
    monkeypatch.setattr(os, "close", failing)
    with pytest.raises(StorageError, match="cannot write"), new:
        new.replace(path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["zarr.json"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT])
def test_a_discard_whose_close_fails_deletes_the_file_and_keeps_the_first_error(
    tmp_path, monkeypatch, number
):
    close = os.close

    def failing(descriptor):
        close(descriptor)
        raise OSError(number, os.strerror(number))

    new = AtomicFile(tmp_path / "new", "replace")
    monkeypatch.setattr(os, "close", failing)
    with pytest.raises(ValueError, match="the first"), new:
        raise ValueError("the first")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_right_behind_the_rename_deletes_nothing(tmp_path, monkeypatch):
    path, close = tmp_path / "zarr.json", os.close

    def interrupted(descriptor):
        close(descriptor)
        if path.exists():
            raise KeyboardInterrupt

    new = AtomicFile(tmp_path / "new", "replace")
    new.write(0, b"new")
    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt), new:
        new.replace(path)
    monkeypatch.undo()
    assert path.read_bytes() == b"new"


@pytest.fixture
def once_at():
    """``once_at(point, action)``: the first time that storage reaches it."""
    names = []

    def hook(point, action):
        names.append(point)
        failpoints.set_hook(point, failpoints.at_time(1, action))

    yield hook
    for name in names:
        failpoints.set_hook(name, None)


@pytest.mark.parametrize("make", [files.make_folder, files.make_directories])
def test_a_folder_that_another_process_has_made_and_removed_meanwhile_is_made(tmp_path, once_at, make):
    folder = tmp_path / "a"
    once_at("directory.before_create", folder.mkdir)
    once_at("directory.before_look", folder.rmdir)
    make(folder)
    assert folder.is_dir()


def test_what_stands_where_a_folder_is_to_be_is_left(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="File exists"):
        files.make_folder(tmp_path / "file")
    with pytest.raises(LinkError, match="link is a symbolic link"):
        files.make_folder(tmp_path / "link")
    with pytest.raises(StorageError, match="No such file"):
        files.make_folder(tmp_path / "nowhere" / "a")


def test_folders_above_that_are_removed_meanwhile_are_made_again(tmp_path, once_at):
    def remove() -> None:
        once_at("directory.before_create", (tmp_path / "a").rmdir)

    once_at("directory.before_create", lambda: once_at("directory.before_sync", remove))
    files.make_directories(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_folders_that_are_synced_later_are_made_each_from_the_one_above(tmp_path, once_at, monkeypatch):
    opened, made = [], system.calls.open
    monkeypatch.setattr(system.calls, "open", lambda *path: (opened.append(path[0]), made(*path))[1])
    files.make_directories(tmp_path / "b" / "c", synced=False)
    assert opened == [f"{tmp_path}/b/c", f"{tmp_path}/b", f"{tmp_path}", "b"]
    once_at("directory.before_create", (tmp_path / "d").mkdir)
    files.make_directories(tmp_path / "d", synced=False)
    folder = tmp_path / "a" / "b" / "c"
    once_at("directory.before_create", lambda: once_at("directory.before_create", folder.parents[1].rmdir))
    files.make_directories(folder, synced=False)
    assert folder.is_dir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(StorageError, match="Not a directory"):
        files.make_directories(tmp_path / "file" / "a", synced=False)
    with pytest.raises(LinkError, match="link is a symbolic link"):
        files.make_directories(tmp_path / "link" / "new", synced=False)
    once_at("directory.before_create", lambda: (tmp_path / "e").symlink_to(tmp_path / "a"))
    with pytest.raises(LinkError):
        files.make_directories(tmp_path / "e", synced=False)


def test_what_is_made_in_a_folder_that_is_removed_meanwhile_is_made(tmp_path, once_at):
    folder = tmp_path / "a"
    once_at("lock.before_open", folder.rmdir)
    lock = files.made_in(folder, lambda: StoreLock.take(folder / "lock"))
    assert lock.is_held()
    lock.delete()
    once_at("replace.before_create", folder.rmdir)
    files.made_in(folder, lambda: files.replace_file(folder / "file", b"x"))
    assert (folder / "file").read_bytes() == b"x"


def test_a_folder_that_never_stays_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_REMOVED", 3)
    tries = []

    def fail() -> None:
        tries.append(1)
        with files.storage_errors("write", tmp_path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    with pytest.raises(StorageError, match="No such file"):
        files.made_in(tmp_path / "a", fail)
    assert len(tries) == 3
