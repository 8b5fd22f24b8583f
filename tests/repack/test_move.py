"""A whole store sent to a folder and to a real S3 server, packed on the way; jobs that race, die and go on;
servers that die."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.python import start_python

from shardwright.cli.app import main
from shardwright.disk import beneath, failpoints
from shardwright.model.errors import (
    ConfigError,
    LinkError,
    LockedError,
    OutputExistsError,
    ShardwrightError,
    StorageError,
    StorageFullError,
)
from shardwright.remote.objects import connect_bucket
from shardwright.rework.runtime.compaction_queue import QueueEntry
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer import bucket, local_folder, move_store, transfer_item
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.destination import CLAIM_KEY
from shardwright.rework.transfer.move_plan import MoveOptions, plan_move
from shardwright.shard.edit_files import JOURNAL_SUFFIX, edit_file

from .images import POLITE
from .moving_store import PIXELS, KilledError, assert_arrived, execute, fetched, files
from .object_store import BUCKET


@pytest.mark.parametrize("order", ["morton", pytest.param("row_major", marks=pytest.mark.slow)])
def test_everything_of_a_store_arrives_packed_and_the_source_stays(store, place, tmp_path, order):
    before = files(store)
    report = move_store.move_store(store, MoveOptions(place, order=order, throttle=POLITE), execute)
    assert report.ok
    assert (report.sent, report.verified, report.deleted) == (len(before), 0, 0)
    assert_arrived(place, before, tmp_path)
    assert files(store) == before
    assert (store / "0/c/1/0/0").is_symlink()


def test_readers_read_the_array_from_the_server(store, bucket_url, object_store):
    move_store.move_store(store, MoveOptions(bucket_url, throttle=POLITE), execute)
    prefix = bucket_url.removeprefix(f"s3://{BUCKET}/")
    spec = {
        "driver": "s3",
        "bucket": BUCKET,
        "path": f"{prefix}/0/",
        "endpoint": object_store.endpoint,
        "aws_region": "us-east-1",
    }
    spec["aws_credentials"] = {"type": "environment"}
    np.testing.assert_array_equal(
        tensorstore.open({"driver": "zarr3", "kvstore": spec}).result().read().result(), PIXELS
    )
    from zarr.storage import ObjectStore as ZarrObjectStore

    array = zarr.open_array(ZarrObjectStore(connect_bucket(f"{bucket_url}/0"), read_only=True), mode="r")
    np.testing.assert_array_equal(array[...], PIXELS)


def test_every_name_at_the_destination_is_durable_before_the_source_goes(store, tmp_path, monkeypatch):
    """A power cut hardly shows it: most filesystems keep a name with the file that was synced."""
    place, synced, missing = tmp_path / "moved.ome.zarr", {}, []
    fsync = os.fsync

    def noted(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            synced[path] = {entry.name for entry in path.iterdir()}
        fsync(descriptor)

    def look():
        for folder, folders, names in os.walk(place):
            durable = synced.get(Path(folder), set())
            missing.extend(Path(folder) / name for name in {*folders, *names} - durable)

    monkeypatch.setattr(os, "fsync", noted)
    failpoints.set_hook("compact.before_delete_source", failpoints.at_time(1, look))
    try:
        move_store.move_store(store, MoveOptions(str(place), throttle=POLITE, delete_source=True), execute)
    finally:
        failpoints.set_hook("compact.before_delete_source", None)
    assert synced
    assert missing == []


def test_with_move_the_source_is_deleted_once_all_is_there(store, place, tmp_path):
    before = files(store)
    seen = []

    def look():
        seen.append((open_destination(place).size("zarr.json"), (store / "zarr.json").exists()))

    failpoints.set_hook("compact.before_delete_source", look)
    try:
        report = move_store.move_store(
            store, MoveOptions(place, delete_source=True, throttle=POLITE), execute
        )
    finally:
        failpoints.set_hook("compact.before_delete_source", None)
    assert report.ok
    assert report.deleted == len(before) == len(seen)
    assert seen[0][1]
    assert not any(group_is_there for _, group_is_there in seen[1:]), (
        "shards vanished below a store that readers could open"
    )
    assert all(size for size, _ in seen)
    assert not store.exists()
    assert not (tmp_path / "spill" / store.name).exists()
    assert_arrived(place, before, tmp_path)


def test_a_file_that_a_store_only_names_is_neither_sent_nor_deleted(store, place, tmp_path):
    """Its path ends in the store's name and the key, as that of a spilled shard does."""
    theirs = tmp_path / "home" / store.name / ".zarr.json.new"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    (store / ".zarr.json.new").symlink_to(theirs)
    with pytest.raises(LinkError, match="which is not followed"):
        move_store.move_store(store, MoveOptions(place, delete_source=True, throttle=POLITE), execute)
    assert theirs.read_bytes() == b"theirs"
    assert open_destination(place).size(".zarr.json.new") is None
    assert (store / "zarr.json").exists()


@pytest.mark.parametrize("deaths", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_job_may_die_at_any_point_and_goes_on(store, original, tmp_path, deaths):
    """At storage calls all over the job: at no moment is anything lost, what the destination shows is whole,
    and the next run completes."""
    before = files(store)

    def die_at(number, job, *, count):
        calls = 0

        def watch(name):
            nonlocal calls
            calls += 1
            if calls == number:
                raise KilledError(name)

        failpoints.watch_all(watch)
        try:
            return job()
        except KilledError:
            return None
        finally:
            failpoints.watch_all(None)
            count.append(calls)

    def job():
        return move_store.move_store(
            store, MoveOptions(str(away), delete_source=True, throttle=POLITE), execute
        )

    away, count = tmp_path / "dry-run", []
    shutil.rmtree(store)  # what is counted is what dies: a copy, without links
    shutil.copytree(original, store)
    assert die_at(0, job, count=count).ok
    for number in range(1, count[0] + 1, max(1, count[0] // deaths)):
        away = tmp_path / f"away-{number}"
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(original, store)
        assert die_at(number, job, count=[]) is None
        if (away / "zarr.json").exists():
            np.testing.assert_array_equal(zarr.open_group(away, mode="r")["0"][...], PIXELS)
        if (store / "zarr.json").exists():
            np.testing.assert_array_equal(zarr.open_group(store, mode="r")["0"][...], PIXELS)
        assert (away / "zarr.json").exists() or (store / "zarr.json").exists()
        if any(store.rglob("*.json")) or any(store.rglob("*.job")):  # else it was at its very end
            assert job().ok
        assert files(store).keys() <= {".compact/move.lock"}, (
            "at the very end only a lock that nobody holds may be left"
        )
        assert_arrived(str(away), before, tmp_path)


def test_finished_files_are_not_sent_again(store, place):
    calls = []

    def dies_after_three(tasks):
        for task in tasks:
            if len(calls) == 3:
                raise KilledError
            calls.append(task["key"])
            yield run_task(task)

    with pytest.raises(KilledError):
        move_store.move_store(store, MoveOptions(place, throttle=POLITE), dies_after_three)
    run_task(
        {
            **next(
                t for t in plan_move(store, MoveOptions(place, throttle=POLITE)).data if t["key"] not in calls
            )
        }
    )
    again = []

    def notes(tasks):
        for task in tasks:
            again.append(task["key"])
            yield run_task(task)

    report = move_store.move_store(store, MoveOptions(place, throttle=POLITE), notes)
    assert report.ok
    assert (report.finished, report.verified, report.sent) == (3, 1, len(files(store)) - 4)
    assert not set(calls) & set(again)
    assert open_destination(place).size(CLAIM_KEY) is None
    assert not (store / ".compact").exists()


def test_what_was_changed_since_it_was_sent_is_sent_again(store, place, tmp_path):
    refused = {
        "key": "1/c/0/0/0",
        "ok": False,
        "error": {"code": "storage", "message": "no"},
        "bytes_read": 0,
        "bytes_written": 0,
    }
    options = MoveOptions(place, throttle=POLITE)
    report = move_store.move_store(
        store, options, lambda tasks: (refused if t["key"] == refused["key"] else run_task(t) for t in tasks)
    )
    assert not report.ok
    assert report.sent > 4
    assert open_destination(place).size("0/zarr.json") is None
    zarr.open_array(store / "0", mode="r+")[3] = 1
    report = move_store.move_store(store, options, execute)
    assert report.ok
    assert report.sent == 2 + sum(key.endswith("zarr.json") for key in files(store))
    assert (zarr.open_array(fetched(place, tmp_path) / "0", mode="r")[3] == 1).all()


RACE = """
import sys
from pathlib import Path
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.model.errors import LockedError, OutputExistsError
print("ready", flush=True)
sys.stdin.readline()
try:
    print(move_store(Path(sys.argv[1]), MoveOptions(sys.argv[2]), lambda tasks: (run_task(task) for task in tasks)).ok)
except (LockedError, OutputExistsError) as error:
    print("refused")
"""  # noqa: E501


def race_in_processes(sources, place):
    jobs = [start_python("-c", RACE, source, place, stdin=PIPE, stdout=PIPE) for source in sources]
    for job in jobs:
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    return [job.communicate()[0].strip() for job in jobs]


def race_in_threads(sources, place):
    """Jobs share nothing but the place, so threads race as processes do."""
    begin = threading.Barrier(len(sources))

    def job(source):
        begin.wait()
        try:
            return str(move_store.move_store(source, MoveOptions(place, throttle=POLITE), execute).ok)
        except (LockedError, OutputExistsError):
            return "refused"

    with ThreadPoolExecutor(len(sources)) as threads:
        return list(threads.map(job, sources))


@pytest.mark.parametrize("race", [race_in_threads, pytest.param(race_in_processes, marks=pytest.mark.slow)])
def test_of_two_jobs_that_race_one_is_refused_and_the_output_is_one_jobs(original, place, tmp_path, race):
    """Two sources with other pixels, one destination."""
    sources = []
    for i in range(2):
        sources.append(tmp_path / f"rig-{i}" / original.name)
        shutil.copytree(original, sources[i])
        zarr.open_array(sources[i] / "0", mode="r+")[...] = i + 1
    ended = race(sources, place)
    assert sorted(ended) == ["True", "refused"]
    assert (zarr.open_array(fetched(place, tmp_path) / "0", mode="r")[...] == ended.index("True") + 1).all()
    assert not (sources[ended.index("refused")] / ".compact").exists()


def test_a_server_that_is_killed_in_the_middle_is_an_error_and_the_next_run_completes(
    store, mortal_object_store, monkeypatch, tmp_path
):
    before, done = files(store), []
    url = f"s3://{BUCKET}/moved"

    def kills_the_server(tasks):
        for task in tasks:
            if len(done) == 2:
                mortal_object_store.kill()
            done.append(run_task(task))
            yield done[-1]

    options = MoveOptions(url, delete_source=True, throttle=POLITE)
    report = move_store.move_store(store, options, kills_the_server)
    assert not report.ok
    assert [result["ok"] for result in done] == [True, True, False], (
        "the other files would have to fail, each after its own retries"
    )
    assert "cannot look at" in report.failures[0]["error"]["message"]
    assert "AWS_ENDPOINT_URL" in report.failures[0]["error"]["hint"]
    assert {key: data for key, data in files(store).items() if not key.startswith(".compact/")} == before
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL"):
        move_store.move_store(store, options, execute)
    mortal_object_store.start()
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "30")  # its volumes come back one by one
    report = move_store.move_store(store, options, execute)
    assert report.ok
    assert report.verified == 2
    assert not store.exists()
    assert_arrived(url, before, tmp_path)


def test_a_server_that_is_killed_while_a_large_shard_goes_out_in_parts(
    store, mortal_object_store, monkeypatch
):
    monkeypatch.setattr(bucket, "MULTIPART_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(bucket, "_PART_BYTES", 5 << 20)
    destination = open_destination(f"s3://{BUCKET}/large")
    destination.claim("token")

    def parts():
        for i in range(6):
            if i == 3:
                mortal_object_store.kill()
            yield bytes(5 << 20)

    with pytest.raises(StorageError, match=r"large/\.compact/0\.c\.0\..*\.part"):
        destination.put_new("0/c/0", parts(), 30 << 20)
    mortal_object_store.start()
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "30")  # its volumes come back one by one
    destination = open_destination(f"s3://{BUCKET}/large")
    assert destination.claim("token") is False
    assert destination.size("0/c/0") is None
    destination.put_new("0/c/0", (bytes(5 << 20) for _ in range(6)), 30 << 20)
    assert destination.size("0/c/0") == 30 << 20


def test_a_bit_that_flips_at_the_destination_is_found_and_named(store, place, monkeypatch):
    destination = open_destination(place)
    kind, flipped = type(destination), []
    read = kind.read

    def flips(self, key, offset, nbytes):
        data = bytearray(read(self, key, offset, nbytes))
        if key == "0/c/0/0/0":
            flipped.append(key)
            data[len(data) // 2] ^= 1
        return bytes(data)

    monkeypatch.setattr(kind, "read", flips)
    report = move_store.move_store(store, MoveOptions(place, delete_source=True, throttle=POLITE), execute)
    monkeypatch.undo() if "://" not in place else monkeypatch.setattr(kind, "read", read)
    assert flipped
    assert not report.ok
    assert [failure["key"] for failure in report.failures] == ["0/c/0/0/0"]
    assert "chunk " in report.failures[0]["error"]["message"]
    assert destination.size("0/c/0/0/0") is None
    assert destination.size("0/zarr.json") is None, "a store without one of its shards must not be readable"
    assert (store / "0/c/0/0/0").exists()
    assert move_store.move_store(store, MoveOptions(place, throttle=POLITE), execute).ok


def test_what_cannot_be_moved_is_refused_before_anything_is_sent(store, place, tmp_path):
    def refused(error: type[ShardwrightError], words: str, path=store, to=place, **options):
        with pytest.raises(error, match=words):
            move_store.move_store(path, MoveOptions(to, throttle=POLITE, **options), execute)
        assert not (path / ".compact").exists()

    refused(ConfigError, "lies in the store", to=str(store / "inside"))
    refused(ConfigError, "part of a store", path=store / "0", delete_source=True)
    (store / ".shardwright").mkdir()
    refused(LockedError, "still being written.*shardwright recover")
    (store / ".shardwright").rmdir()
    (store / "0/c/9").symlink_to(tmp_path / "unmounted" / store.name / "0/c/9")
    refused(StorageError, "is the second root mounted")
    (store / "0/c/9").unlink()
    (store / "0/c/9").symlink_to(tmp_path / "elsewhere")
    refused(StorageError, "is a symbolic link, which is not followed")
    (store / "0/c/9").unlink()
    open_destination(place).put_new("somebodys", iter([b"data"]), 4)
    refused(OutputExistsError, "not empty.*somebodys")
    open_destination(place).delete("somebodys")
    assert move_store.move_store(store, MoveOptions(place, throttle=POLITE), execute).ok
    refused(OutputExistsError, "not empty")


def interrupted_update(array):
    """The journal that an update leaves."""
    journal = edit_file(array, "c/0/0", JOURNAL_SUFFIX)
    journal.parent.mkdir(exist_ok=True)
    journal.write_bytes(b"what is being written")
    return journal


def test_a_store_that_begins_to_go_on_just_before_a_move_has_its_lock_is_not_moved(store, place, monkeypatch):
    locked = move_store.locked

    @contextmanager
    def locked_late(path, name):
        (path / ".shardwright").mkdir()  # by a writer that has let the lock go since
        with locked(path, name):
            yield

    before = files(store)
    monkeypatch.setattr(move_store, "locked", locked_late)
    with pytest.raises(LockedError, match="still being written"):
        move_store.move_store(store, MoveOptions(place, throttle=POLITE, delete_source=True), execute)
    assert files(store) == before


def test_an_interrupted_update_of_an_array_that_no_image_names_keeps_the_store(store, place):
    label = store / "labels/cells/0"
    for folder in (store / "labels", store / "labels/cells"):
        zarr.create_group(folder)
    zarr.create_array(label, shape=(4, 8), shards=(4, 8), chunks=(1, 8), dtype="uint8")[...] = 1
    journal = interrupted_update(label)
    options = MoveOptions(place, throttle=POLITE, delete_source=True)
    with pytest.raises(LockedError, match=r"labels/cells/0/c\.0\.0 is being updated, or its update was"):
        move_store.move_store(store, options, execute)
    assert not open_destination(place).sizes()
    journal.unlink()
    assert move_store.move_store(store, options, execute).ok


def test_the_journal_of_an_update_that_began_before_a_move_keeps_the_source(store, tmp_path):
    def updated(tasks):
        yield from execute(tasks)
        interrupted_update(store / "0")

    report = move_store.move_store(
        store, MoveOptions(str(tmp_path / "away"), throttle=POLITE, delete_source=True), updated
    )
    assert report.kept == ["0/.shardwright-edit/c.0.0.journal"]
    assert report.deleted == 0
    assert (store / report.kept[0]).exists()


def test_a_folder_without_room_is_refused_before_anything_is_begun(store, tmp_path, monkeypatch):
    """What is needed is what the packed files take, not the source's with its gaps."""
    needed = sum(len(data) for data in files(copied(store, tmp_path / "packed")).values())
    assert needed < sum(len(data) for data in files(store).values())
    monkeypatch.setattr(local_folder.LocalFolder, "free_bytes", lambda _: needed - 1)
    away = tmp_path / "away"
    with pytest.raises(StorageFullError, match=rf"{needed} bytes free.*{needed - 1}"):
        move_store.move_store(store, MoveOptions(str(away), throttle=POLITE), execute)
    assert not away.exists()
    assert not (store / ".compact").exists()
    monkeypatch.setattr(local_folder.LocalFolder, "free_bytes", lambda _: needed)
    assert move_store.move_store(store, MoveOptions(str(away), throttle=POLITE), execute).ok


def test_a_part_that_another_job_ends_meanwhile_takes_no_room(tmp_path, monkeypatch):
    """Between the two looks at it. Who is to be refused is told so, and not that a file is missing."""
    listed = beneath.matching
    work = tmp_path / ".compact"
    work.mkdir()
    (work / "there.part").write_bytes(bytes(1 << 20))
    (work / "gone.part").touch()

    def then_gone(folder, pattern):
        found = listed(folder, pattern)
        (work / "gone.part").unlink()
        return found

    monkeypatch.setattr(beneath, "matching", then_gone)
    monkeypatch.setattr(local_folder, "free_bytes", lambda _: 7)
    assert local_folder.LocalFolder(tmp_path).free_bytes() == 7 + (1 << 20)


def copied(store, away):
    assert move_store.move_store(store, MoveOptions(str(away), throttle=POLITE), execute).ok
    return away


def test_a_disk_that_is_full_in_the_middle_ends_the_job_and_the_next_goes_on(store, tmp_path):
    def is_full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fills_up_after_two(tasks):
        for count, task in enumerate(tasks):
            if count == 2:
                failpoints.set_hook("put.before_preallocate", is_full)
            yield run_task(task)

    options = MoveOptions(str(tmp_path / "away"), throttle=POLITE)
    try:
        report = move_store.move_store(store, options, fills_up_after_two)
    finally:
        failpoints.set_hook("put.before_preallocate", None)
    assert [failure["error"]["code"] for failure in report.failures] == ["storage_full"]
    assert (report.sent, report.complete) == (2, False)
    assert move_store.move_store(store, options, execute).ok


def test_with_move_nothing_of_earlier_jobs_keeps_the_folders(store, tmp_path):
    """A daemon's wish, a record of recompressed shards, a shard in the making on either side."""
    spilled = (store / "0/c/1/0/0").resolve().parents[3] / ".compact"
    spilled.mkdir()
    (spilled / "c.1.0.0.ab.packed").write_bytes(b"half")
    QueueEntry(store).add()
    for name in ("done", "c.0.0.0.cd.packed", "pause"):
        (store / "0/.compact" / name).write_bytes(b"left")
    report = move_store.move_store(
        store, MoveOptions(str(tmp_path / "away"), delete_source=True, throttle=POLITE), execute
    )
    assert report.ok
    assert not store.exists()
    assert not any((tmp_path / "spill").rglob("*.packed"))
    assert not spilled.parent.exists()


def test_a_move_to_a_copy_that_was_made_before_says_what_to_do(store, place):
    assert move_store.move_store(store, MoveOptions(place, throttle=POLITE), execute).ok
    with pytest.raises(OutputExistsError, match=r"without --move.*shardwright verify"):
        move_store.move_store(store, MoveOptions(place, delete_source=True, throttle=POLITE), execute)


def test_two_jobs_do_not_send_one_store_at_once(store, tmp_path):
    inside, go_on = threading.Event(), threading.Event()

    def waits(tasks):
        inside.set()
        go_on.wait()
        yield from execute(tasks)

    first = threading.Thread(
        target=move_store.move_store, args=(store, MoveOptions(str(tmp_path / "a"), throttle=POLITE), waits)
    )
    first.start()
    assert inside.wait(60)
    try:
        with pytest.raises(LockedError, match=str(os.getpid())):
            move_store.move_store(store, MoveOptions(str(tmp_path / "b"), throttle=POLITE), execute)
    finally:
        go_on.set()
        first.join()
    assert (tmp_path / "a/zarr.json").exists()


def test_a_part_is_all_of_a_shard_that_is_in_memory(store, tmp_path, monkeypatch):
    """Parts of 1000 bytes: chunks and the index are cut anywhere, and still each is checked."""
    monkeypatch.setattr(transfer_item, "PART_BYTES", 1000)
    before, sizes = files(store), []
    watched = transfer_item._watched

    def measures(*arguments):
        for part in watched(*arguments):
            sizes.append(len(part))
            yield part

    monkeypatch.setattr(transfer_item, "_watched", measures)
    assert move_store.move_store(store, MoveOptions(str(tmp_path / "away"), throttle=POLITE), execute).ok
    assert max(sizes) == 1000
    assert_arrived(str(tmp_path / "away"), before, tmp_path)


def test_the_command_moves_a_store_with_a_process_of_its_own(
    store, bucket_url, tmp_path, monkeypatch, capsys
):
    before = files(store)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the command's handlers are for its own process
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "compact",
                str(store),
                "--to",
                bucket_url,
                "--move",
                "--workers",
                "1",
                "--order",
                "morton",
                "--no-idle",
                "--json",
            ]
        )
    assert ended.value.code == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["sent"], facts["deleted"]) == (True, len(before), len(before))
    assert not store.exists()
    assert_arrived(bucket_url, before, tmp_path)


def test_the_command_refuses_what_makes_no_sense_and_what_is_there(store, tmp_path, monkeypatch, capsys):
    def refused(code, words, *arguments):
        with pytest.raises(SystemExit) as ended:
            main(["compact", str(store), *map(str, arguments), "--no-idle"])
        assert ended.value.code == code
        assert words in capsys.readouterr().err

    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the command's handlers are for its own process
    refused(2, "--move needs --to", "--move")
    refused(2, "do not go together", "--to", "x", "--recompress", "zstd")
    refused(2, "ignores DEST", "--to", "x", "--dry-run")
    refused(2, "takes exactly one store", store, "--to", "x")
    refused(2, "s3://BUCKET/PREFIX", "--to", "gs://x/y")
    refused(2, "AWS_ACCESS_KEY_ID", "--to", "s3://x/y")
    refused(1, "nothing is ever overwritten", "--to", tmp_path)
