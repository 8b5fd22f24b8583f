"""``compact --to embryo.ozx``: a store in one zip file, as RFC-9 of OME-Zarr describes it, made by a job that
may die at any point."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import zipfile

import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.writing import how
from zarr.storage import ZipStore

import shardwright as sw
from shardwright.cli.app import main
from shardwright.disk import beneath
from shardwright.disk.changed_file import ChangedFile
from shardwright.model.errors import (
    ConfigError,
    InvalidNameError,
    LockedError,
    OutputExistsError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StorageFullError,
)
from shardwright.read.verify_store import verify_store
from shardwright.rework.runtime import job_record
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer import archive_file
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.archive_file import ArchiveFile
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_record import MoveRecord
from shardwright.rework.transfer.move_store import move_store

from .images import POLITE, die_at_every_point
from .moving_store import PIXELS, KilledError, assert_arrived, execute, files
from .test_move_again import DAMAGED, damage, mend

WORK = ".embryo.ozx.compact"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "away" / "embryo.ozx"


@pytest.fixture(autouse=True)
def away(tmp_path):
    (tmp_path / "away").mkdir()


def pack(store, target, run=execute, **options):
    return move_store(store, MoveOptions(str(target), throttle=POLITE, **options), run)


def dies_after(count):
    def run(tasks):
        for number, task in enumerate(tasks):
            if number == count:
                raise KilledError
            yield run_task(task)

    return run


def assert_is_whole(target, before, tmp_path):
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert_arrived(str(target), before, tmp_path)
    assert verify_store(target).ok
    with zipfile.ZipFile(target) as archive:
        infos = archive.infolist()
        headers = 30 + 20
        held = sum(headers + len(info.filename) + info.file_size for info in infos)
        assert held == archive.start_dir, "there is no hole in it"
        in_file = sorted(infos, key=lambda info: info.header_offset)
    documents = [name for name in before if name.endswith("zarr.json")]
    expected = sorted(documents, key=lambda name: (name.count("/"), name))
    for order in (infos, in_file):
        assert [info.filename for info in order[: len(documents)]] == expected


def test_it_is_as_the_specification_wants_it(store, target, tmp_path):
    before = files(store)
    report = pack(store, target)
    assert (report.ok, report.sent, report.destination) == (True, len(before), str(target))
    assert_is_whole(target, before, tmp_path)
    assert files(store) == before
    with zipfile.ZipFile(target) as archive:
        comment = json.loads(archive.comment)
        assert archive.namelist()[:2] == ["zarr.json", "0/zarr.json"]
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert all(info.extra.startswith(struct.pack("<HH", 1, 24)) for info in archive.infolist()), "ZIP64"
    version = json.loads(before["zarr.json"])["attributes"]["ome"]["version"]
    assert comment == {"ome": {"version": version, "zipFile": {"centralDirectory": {"jsonFirst": True}}}}
    again = target.with_name("again.ozx")
    pack(store, again)
    assert again.read_bytes() == target.read_bytes()


def test_other_readers_open_it(store, target):
    pack(store, target)
    with ZipStore(target, mode="r") as held:
        group = zarr.open_group(held, mode="r")
        np.testing.assert_array_equal(group["0"][...], PIXELS)
        np.testing.assert_array_equal(group["1"][...], PIXELS[:, ::2, ::2])
    inner = {"driver": "zip", "base": {"driver": "file", "path": str(target)}, "path": "0/"}
    opened = tensorstore.open({"driver": "zarr3", "kvstore": inner}).result()
    np.testing.assert_array_equal(opened.read().result(), PIXELS)


@pytest.mark.parametrize("options", [{}, {"delete_source": True}], ids=["copy", "move"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_storage_call_the_same_command_ends_it(store, target, tmp_path, options, step):
    before = files(store)
    was_there = False

    def job():
        if store.exists():  # else all of the move is done but for what is cleared up beside the store
            pack(store, target, **options)

    for number in die_at_every_point(job, step):
        if target.exists():
            was_there = True
            assert verify_store(target).ok, number
        else:
            assert not was_there, "what was whole once is whole for ever"
            assert files(store).items() >= before.items()
    if options:
        assert not store.exists()
    else:
        assert files(store) == before
    assert_is_whole(target, before, tmp_path)


def test_what_has_arrived_is_not_sent_again(store, target, tmp_path):
    before = files(store)
    with pytest.raises(KilledError):
        pack(store, target, dies_after(3))
    assert not target.exists()
    again = []

    def notes(tasks):
        for task in tasks:
            again.append(task["key"])
            yield run_task(task)

    report = pack(store, target, notes)
    metadata = sum(key.endswith("zarr.json") for key in before)
    assert (report.ok, report.finished, len(again)) == (True, metadata + 3, len(before) - metadata - 3)
    assert_is_whole(target, before, tmp_path)


def test_a_key_that_was_cut_short_is_written_anew(store, target, tmp_path):
    before = files(store)
    with pytest.raises(KilledError):
        pack(store, target, dies_after(3))
    with (target.parent / WORK / "archive").open("ab") as growing:
        growing.write(bytes(100_000))
    assert pack(store, target).ok
    assert_is_whole(target, before, tmp_path)


@pytest.mark.parametrize("key", ["0/c/0/0/0", "0/zarr.json", "frames/zarr.json"])
def test_what_was_changed_since_is_sent_again_with_all_behind_it(store, target, tmp_path, key):
    with pytest.raises(KilledError):
        pack(store, target, dies_after(12))
    data = (store / key).read_bytes()
    os.utime(store / key, ns=(1, 1))
    (store / "notes.txt").write_text("new")
    assert pack(store, target).ok
    after = files(store)
    assert after[key] == data
    assert_is_whole(target, after, tmp_path)


def test_what_is_gone_since_is_not_in_it(store, target, tmp_path):
    (store / "a.txt").write_text("old")
    with pytest.raises(KilledError):
        pack(store, target, dies_after(8))
    (store / "a.txt").unlink()
    assert pack(store, target).ok
    assert_is_whole(target, files(store), tmp_path)


@pytest.mark.parametrize("lost", ["entries.job", "archive"])
def test_where_a_part_of_the_work_is_lost_it_begins_anew(store, target, tmp_path, lost):
    before = files(store)
    with pytest.raises(KilledError):
        pack(store, target, dies_after(5))
    (target.parent / WORK / lost).unlink()
    report = pack(store, target)
    assert (report.ok, report.sent) == (True, len(before))
    assert_is_whole(target, before, tmp_path)


@pytest.mark.parametrize("line", [-8, -3])
def test_where_a_line_of_its_record_is_lost_what_follows_is_sent_again(store, target, tmp_path, line):
    """The others keep their places: each line says where its key begins."""
    before = files(store)
    with pytest.raises(KilledError):
        pack(store, target, dies_after(6))
    record = target.parent / WORK / "entries.job"
    lines = [line for line in record.read_bytes().split(b"\n") if line]
    lines[line] = lines[line].replace(b'"nbytes"', b'"nbytez"')
    record.write_bytes(b"\n".join(lines))
    report = pack(store, target)
    assert report.ok
    if line == -3:
        assert report.finished == len(lines) - 1 + line
    assert_is_whole(target, before, tmp_path)


def test_each_line_of_its_record_is_read_once(store, target, monkeypatch):
    """Not all of them for each key."""
    entry, seen = job_record._entry, []

    def counts(line):
        seen.append(json.loads(line)["key"])
        return entry(line)

    monkeypatch.setattr(job_record, "_entry", counts)
    before = files(store)
    monkeypatch.setattr(MoveRecord, "find", lambda *_: None)
    assert pack(store, target).ok
    assert sorted(seen) == sorted(before)


def test_a_record_that_was_written_anew_is_read_whole(tmp_path):
    """By another process of the job, also where it has become longer since."""
    one, other = (ArchiveFile(tmp_path / "a.ozx") for _ in range(2))
    one.claim("a" * 32)
    for key in ("a", "b", "c"):
        one.put_new(key, iter((b"data",)), 4)
    assert list(other.sizes()) == ["a", "b", "c"]
    one.cut(["a"])
    for key in ("dd", "ee", "ff", "gg"):
        one.put_new(key, iter((b"other",)), 5)
    assert list(other.sizes()) == ["a", "dd", "ee", "ff", "gg"]
    assert other.read("gg", 0, 5) == b"other"


def test_what_was_damaged_there_is_found_before_the_source_is_deleted(store, target, tmp_path, at_point):
    before = files(store)

    def dies():
        raise KilledError

    at_point("compact.before_deleting", dies)
    with pytest.raises(KilledError):
        pack(store, target, delete_source=True)
    at_point("compact.before_deleting", lambda: None)
    assert verify_store(target).ok
    with zipfile.ZipFile(target) as archive:
        offset = archive.getinfo("0/c/0/0/0").header_offset
    with target.open("r+b") as file:
        file.seek(offset + 200)
        byte = file.read(1)
        file.seek(offset + 200)
        file.write(bytes([byte[0] ^ 1]))
    seen = []

    def notes(tasks):
        for task in tasks:
            if task["kind"] == "move":
                seen.append((task["key"], target.exists()))
            yield run_task(task)

    report = pack(store, target, notes, delete_source=True)
    assert report.ok
    assert ("0/c/0/0/0", False) in seen, "while it is incomplete it has no name"
    assert not store.exists()
    assert_is_whole(target, before, tmp_path)


def _killed_at(at_point, point, job):
    def dies():
        raise KilledError

    at_point(point, dies)
    with pytest.raises(KilledError):
        job()
    at_point(point, lambda: None)


@pytest.mark.parametrize("where", ["directory", "end", "header", "comment"])
@pytest.mark.parametrize("point", ["compact.before_deleting", "compact.before_delete_source"])
def test_a_source_is_deleted_only_for_a_file_that_opens(store, target, tmp_path, at_point, point, where):
    """Each key can be read back, but no reader would find it: it is written anew from what the job knows."""
    before = files(store)
    _killed_at(at_point, point, lambda: pack(store, target, delete_source=True))
    whole = target.read_bytes()
    with zipfile.ZipFile(target) as archive:
        offset = archive.getinfo("0/c/0/0/0").header_offset
    at = {"directory": len(whole) - 400, "end": whole.rindex(b"PK\5\6"), "header": offset, "comment": -9}
    with target.open("r+b") as file:
        file.seek(at[where], os.SEEK_END if at[where] < 0 else os.SEEK_SET)
        file.write(bytes(4))
        if where == "comment":
            file.truncate()
    seen = []

    def sees(*arguments):
        seen.append(target.read_bytes() == whole)

    at_point("compact.before_delete_source", sees)
    assert pack(store, target, delete_source=True).ok
    assert seen
    assert all(seen)
    assert not store.exists()
    assert_is_whole(target, before, tmp_path)


def test_what_comes_once_it_has_its_name_is_sent_as_well(store, target, tmp_path, at_point):
    before = files(store) | {"notes.txt": b"new"}
    _killed_at(at_point, "compact.before_deleting", lambda: pack(store, target, delete_source=True))
    (store / "notes.txt").write_bytes(b"new")
    assert pack(store, target, delete_source=True).kept == ["notes.txt"]
    assert verify_store(target).ok, "until the next run it is what it was"
    had_name = []

    def notes(tasks):
        for task in tasks:
            yield run_task(task)
            had_name.append((task["key"], target.exists()))

    assert pack(store, target, notes, delete_source=True).ok
    assert ("notes.txt", False) in had_name
    assert not store.exists()
    assert_is_whole(target, before, tmp_path)


@pytest.fixture
def killed_with_two_names(store, target, monkeypatch):
    """Where a rename is a link and an unlink, as on a network filesystem, the job died between the two."""
    unlink = beneath.unlink

    def refuses(*arguments):
        raise OSError(errno.EINVAL, "no such rename")

    def dies(path, **options):
        if path.name == "archive" and target.exists():
            raise KilledError
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(beneath, "rename_with", refuses)
        patch.setattr(beneath, "unlink", dies)
        with pytest.raises(KilledError):
            pack(store, target)
    assert target.samefile(target.parent / WORK / "archive")
    return target.read_bytes()


def test_a_published_file_with_its_hidden_name_is_not_changed(
    store, target, tmp_path, at_point, killed_with_two_names
):
    def dies():
        raise AssertionError("it is whole: nothing is written")

    at_point("edit.before_write", dies)
    assert pack(store, target).ok
    assert target.read_bytes() == killed_with_two_names
    assert_is_whole(target, files(store), tmp_path)


def test_before_a_published_file_is_cut_it_loses_its_name(
    store, target, tmp_path, at_point, killed_with_two_names
):
    os.utime(store / "0/c/0/0/0", ns=(1, 1))

    def named():
        assert not target.exists()

    for point in ("edit.before_cut", "edit.before_write"):
        at_point(point, named)
    assert pack(store, target).ok
    assert_is_whole(target, files(store), tmp_path)


def test_a_damaged_shard_is_sent_as_it_is_and_again_once_it_is_mended(store, original, target, tmp_path):
    before = files(store)
    damage(store / DAMAGED)
    report = pack(store, target, delete_source=True)
    assert (report.ok, report.complete, report.deleted) == (False, True, 0)
    assert [shard["key"] for shard in report.damaged] == [DAMAGED]
    assert {problem.where for problem in verify_store(target).problems} == {DAMAGED}
    np.testing.assert_array_equal(sw.open_array(target)[6:], PIXELS[6:])
    mend(store, original)
    assert pack(store, target, delete_source=True).ok
    assert_is_whole(target, before, tmp_path)


@pytest.mark.parametrize("where", ["bytes", "directory"])
def test_what_came_back_with_other_bytes_gets_no_name(store, target, monkeypatch, where):
    """A disk that stores something else: of what was put, or of what is written at the end."""
    write = ChangedFile.write
    is_last = {"bytes": lambda data: b"\x02\x01\x21" in data[:3] or len(data) > 3000, "directory": _has_end}

    def flips(self, offset, data):
        data = bytearray(data)
        if self.path.name == "archive" and is_last[where](data):
            data[16 if where == "directory" else len(data) // 2] ^= 1
        write(self, offset, bytes(data))

    monkeypatch.setattr(ChangedFile, "write", flips)
    if where == "bytes":
        report = pack(store, target)
        assert not report.ok
        assert all("came back" in failure["error"]["message"] for failure in report.failures)
    else:
        with pytest.raises(StorageError, match="came back"):
            pack(store, target)
    assert not target.exists()
    monkeypatch.undo()
    assert pack(store, target).ok
    assert verify_store(target).ok


def _has_end(data):
    return b"PK\5\6" in data


def test_a_full_disk_is_met_before_anything_is_sent(store, target, monkeypatch):
    monkeypatch.setattr(archive_file.ArchiveFile, "free_bytes", lambda _: 5000)
    with pytest.raises(StorageFullError, match="no room"):
        pack(store, target)
    assert list(target.parent.iterdir()) == []


def test_of_two_jobs_one_is_refused(store, original, target, tmp_path):
    with pytest.raises(KilledError):
        pack(store, target, dies_after(3))
    other = tmp_path / "other" / original.name
    shutil.copytree(original, other)
    with pytest.raises(LockedError, match="another job") as refused:
        pack(other, target)
    assert str(target.parent / WORK) in refused.value.hint
    shutil.rmtree(target.parent / WORK)
    before = files(other)
    assert pack(other, target).ok
    assert_is_whole(target, before, tmp_path)


def test_what_has_the_name_is_never_overwritten(store, target):
    for make in (lambda: target.write_bytes(b"mine"), target.mkdir, lambda: target.symlink_to("nowhere")):
        make()
        with pytest.raises(OutputExistsError):
            pack(store, target)
        target.rmdir() if target.is_dir() else target.unlink()
    with pytest.raises(KilledError):
        pack(store, target, dies_after(3))
    target.write_bytes(b"mine")  # while it is made
    with pytest.raises(OutputExistsError):
        pack(store, target)
    assert target.read_bytes() == b"mine"
    assert [path.name for path in target.parent.iterdir() if path.name != WORK] == [target.name]
    target.unlink()
    assert pack(store, target).ok


def _running(store):
    writer = sw.create(store.with_name("runs.ome.zarr"), shape=(None, 8, 8), dtype="uint8", **how())
    writer.append(np.zeros((8, 8), np.uint8))
    return writer, store.with_name("runs.ome.zarr")


def test_a_store_that_is_written_is_refused(store, target):
    writer, path = _running(store)
    with writer, pytest.raises(LockedError, match="being written"):
        pack(path, target)
    assert list(target.parent.iterdir()) == []
    assert pack(path, target).ok


def _edited(store):
    (store / "0/.shardwright-edit").mkdir()
    (store / "0/.shardwright-edit/c.0.0.0.journal").write_bytes(b"half")
    return store


def _without_image(store):
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    return store


def _of_another_version(store):
    document = json.loads((store / "zarr.json").read_text())
    del document["attributes"]["ome"]["version"]
    (store / "zarr.json").write_text(json.dumps(document))
    return store


def _with(name):
    def add(store):
        (store / name).write_text("")
        return store

    return add


REFUSED = {
    "an update that was interrupted": (_edited, LockedError),
    "an array alone": (lambda store: store / "0", ConfigError),
    "a group without an image": (_without_image, ShardFormatError),
    "no version of OME-Zarr": (_of_another_version, ConfigError),
    "an archive in it": (_with("old.ozx"), ConfigError),
    "a name that zip readers take for two": (_with("a\\b"), ConfigError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_such_file_can_hold_is_refused_before_anything_is_made(store, target, what):
    make, error = REFUSED[what]
    with pytest.raises(error):
        pack(make(store), target)
    assert list(target.parent.iterdir()) == []


def test_places_that_cannot_be(store, target, monkeypatch):
    for place in (store / "x.ozx", store / "0" / "x.ozx"):
        with pytest.raises(ConfigError, match="in the store itself"):
            pack(store, place)
    (target.parent / "zarr.json").write_text("{}")
    with pytest.raises(ConfigError, match="in another store"):
        pack(store, target)
    (target.parent / "zarr.json").unlink()
    for place in ("s3://bucket/embryo.ozx", "gs://bucket/embryo.ozx"):
        with pytest.raises(ConfigError):
            open_destination(place)
    for name in (".ozx", "._embryo.ozx"):
        with pytest.raises(InvalidNameError, match="would be hidden"):
            pack(store, target.with_name(name))
    with pytest.raises(InvalidNameError, match="compact STORE --to"):
        sw.create(target, shape=(1, 8, 8), dtype="uint8")
    monkeypatch.setattr(archive_file, "MOST_DIRECTORY_BYTES", 500)
    with pytest.raises(ConfigError, match="too many files"):
        pack(store, target)
    assert list(target.parent.iterdir()) == []


def run(*arguments, status=0):
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    assert end.value.code == status


def test_the_command(store, original, target, capsys):
    run("compact", store, "--to", target, "--json", "--no-idle")
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["ok"], facts["destination"], facts["complete"]) == (True, str(target), True)
    assert verify_store(target).ok
    run("compact", store, "--to", target.with_name("moved.ozx"), "--move", "--no-idle")
    assert "all verified" in capsys.readouterr().out
    assert not store.exists()
    assert target.with_name("moved.ozx").read_bytes() == target.read_bytes()
    target.with_name("._moved.ozx").write_bytes(b"what a Mac says of moved.ozx")
    run("verify", target.parent)
    assert "._moved" not in capsys.readouterr().out
    for options in (["--workers", 2], ["--scheduler", "tcp://127.0.0.1:1"]):
        run("compact", store, "--to", target.with_name("b.ozx"), *options, status=2)
        assert "one worker makes a file .ozx" in capsys.readouterr().err
    run("compact", target, "--no-idle", status=2)
    assert "is a zip file, or lies in one" in capsys.readouterr().err
    run("rechunk", original, target.with_name("c.ozx"), "--chunks", "t=4", status=1)
    assert "compact STORE --to" in capsys.readouterr().err
    for command in (["delete", target, "--yes"], ["rename", target, "d"]):
        run(*command, status=1)
        assert "is a file" in capsys.readouterr().err


def test_what_changes_stores_refuses_one_in_a_file(store, target):
    pack(store, target)
    data = target.read_bytes()
    for change in (
        lambda: sw.update(target, {"t": 3}, 7),
        lambda: sw.erase(target, {"t": 3}),
        lambda: sw.resume(target),
        lambda: sw.ChunkStore(target),
        lambda: pack(target, target.with_name("b.ozx")),
    ):
        with pytest.raises(ShardwrightError):
            change()
    assert target.read_bytes() == data
