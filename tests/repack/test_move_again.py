"""A move that is run again: over damaged shards and mended ones, over what changed here or was lost there in
the time between."""

from __future__ import annotations

import errno
import json
import os
import shutil

import numpy as np
import pytest
import zarr

from shardwright.cli.compact import send, send_summary
from shardwright.disk import failpoints
from shardwright.disk.lock import is_locked
from shardwright.model.errors import ConfigError, LockedError, ShardFormatError, StorageError
from shardwright.model.names import WORK_FOLDER
from shardwright.read.verify_store import verify_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.work_folder import LOCK_NAME
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.destination import CLAIM_KEY
from shardwright.rework.transfer.move_plan import MoveOptions, plan_move
from shardwright.rework.transfer.move_record import MoveRecord
from shardwright.rework.transfer.move_store import bytes_to_move, move_store

from .images import POLITE
from .moving_store import PIXELS, KilledError, assert_arrived, execute, fetched, files

DAMAGED = "0/c/0/0/0"


def damage(path):
    """As a disk does it that gives back other bytes one day: neither size nor time tell."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    with path.open("r+b") as shard:
        shard.write(b"\xff" * 16)
    os.utime(path, ns=times)


def mend(store, original):
    """From a backup, which keeps size and times."""
    (store / DAMAGED).unlink()
    shutil.copy2(original / DAMAGED, store / DAMAGED)


def no_work(tree):
    return {key: data for key, data in tree.items() if ".compact/" not in key}


def move(store, place, run=execute):
    return move_store(store, MoveOptions(place, delete_source=True, throttle=POLITE), run)


def test_a_damaged_shard_is_sent_as_it_is_named_and_sent_again_when_it_is_mended(
    store, original, place, tmp_path, at_point
):
    before = files(store)
    damage(store / DAMAGED)
    found = files(store)
    report = move(store, place)
    assert (report.ok, report.complete, report.failures, report.deleted) == (False, True, [], 0)
    assert [(shard["key"], shard["error"]["code"]) for shard in report.damaged] == [(DAMAGED, "shard_format")]
    assert report.sent == len(before)
    assert f"damaged, sent as it is: {DAMAGED}: " in send_summary(report)
    assert "nothing was deleted" in send_summary(report)
    assert no_work(files(store)) == found
    copy = fetched(place, tmp_path)
    assert (copy / DAMAGED).read_bytes() == found[DAMAGED]
    assert all(
        problem.startswith(DAMAGED.removeprefix("0/")) or DAMAGED in problem
        for problem in map(str, verify_store(copy).problems)
    )
    np.testing.assert_array_equal(zarr.open_array(copy / "0", mode="r")[6:], PIXELS[6:])

    with pytest.raises(LockedError):
        open_destination(place).claim("another job")
    deleted = []
    for point in ("compact.before_delete", "compact.before_delete_object"):
        at_point(point, lambda: deleted.append(open_destination(place).size("zarr.json")))
    report = move(store, place)
    assert (report.ok, report.sent, report.finished) == (False, 0, len(before))
    assert [shard["key"] for shard in report.damaged] == [DAMAGED]
    assert deleted == [], "a store that is as it was need not be closed to readers"

    mend(store, original)
    open_to_readers = []

    def looks(tasks):
        for task in tasks:
            if task["kind"] == "move":
                open_to_readers.append(open_destination(place).size("zarr.json"))
            yield run_task(task)

    report = move(store, place, looks)
    assert (report.ok, report.damaged) == (True, [])
    assert open_to_readers == [None], "one shard was sent, while nobody could open the store"
    assert report.deleted == len(before)
    assert not store.exists()
    assert open_destination(place).size(CLAIM_KEY) is None
    shutil.rmtree(copy) if "://" in place else None
    assert_arrived(place, before, tmp_path)


@pytest.mark.parametrize("deaths", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_sending_a_mended_shard_may_die_at_any_point(store, original, tmp_path, deaths):
    before, away = files(store), tmp_path / "away"
    damage(store / DAMAGED)
    assert not move(store, str(away)).ok
    mend(store, original)
    for name in (store.parent, away):
        shutil.copytree(name, tmp_path / "kept" / name.name, symlinks=True)

    def job(number):
        calls = 0

        def watch(name):
            nonlocal calls
            calls += 1
            if calls == number:
                raise KilledError(name)

        failpoints.watch_all(watch)
        try:
            move(store, str(away))
        except KilledError:
            pass
        finally:
            failpoints.watch_all(None)
        return calls

    count = job(0)
    for number in range(1, count + 1, max(1, count // deaths)):
        for name in (store.parent, away, tmp_path / "spill"):
            shutil.rmtree(name, ignore_errors=True)
        for name in (store.parent, away):
            shutil.copytree(tmp_path / "kept" / name.name, name, symlinks=True)
        (tmp_path / "spill" / store.name / "0/c/1/0").mkdir(parents=True)
        shutil.copy2(original / "0/c/1/0/0", tmp_path / "spill" / store.name / "0/c/1/0/0")
        assert job(number) >= number, "it was to be killed"
        if (away / "zarr.json").exists():
            assert files(away).keys() >= before.keys(), "readers see a store of which something is missing"
            assert all(DAMAGED in str(problem) for problem in verify_store(away).problems)
        assert (away / "zarr.json").exists() or no_work(files(store)) == before
        if files(store):
            assert move(store, str(away)).ok
        assert_arrived(str(away), before, tmp_path)


def test_what_has_arrived_is_not_asked_for_file_by_file(store, place, monkeypatch):
    done, asked = [], []

    def dies_after_five(tasks):
        for task in tasks:
            if len(done) == 5:
                raise KilledError
            done.append(task["key"])
            yield run_task(task)

    with pytest.raises(KilledError):
        move(store, place, dies_after_five)
    kind = type(open_destination(place))
    size = kind.size
    monkeypatch.setattr(kind, "size", lambda self, key: asked.append(key) or size(self, key))
    report = move(store, place)
    assert (report.ok, report.verified) == (True, 5)
    assert not set(done) & set(asked)


def killed_while_deleting(store, place, at_point, *, after):
    """A job that had sent all and deleted ``after`` files."""
    killed_at(store, place, at_point, "compact.before_delete_source", number=after + 1)


def killed_at(store, place, at_point, point, *, number=1):
    calls = []

    def dies():
        calls.append(None)
        if len(calls) == number:
            raise KilledError

    at_point(point, dies)
    with pytest.raises(KilledError):
        move(store, place)
    failpoints.set_hook(point, None)


def damage_there(place, key):
    destination = open_destination(place)
    sound = destination.read(key, 0, destination.size(key))
    destination.delete(key)
    bad = bytearray(sound)
    bad[len(bad) // 2] ^= 1
    destination.put_new(key, iter([bytes(bad)]), len(bad))
    return sound


def test_before_an_earlier_run_s_source_is_deleted_all_of_it_is_read_back_and_what_was_damaged_is_sent_again(
    store, place, tmp_path, at_point
):
    before = files(store)
    killed_at(store, place, at_point, "compact.before_deleting")
    assert no_work(files(store)) == before
    damage_there(place, "0/c/1/0/0")
    report = move(store, place)
    assert report.ok
    assert (report.verified, report.deleted) == (len(before) - 1, len(before))
    assert report.sent == 1 + sum(key.endswith("zarr.json") for key in before), (
        "the shard, and the metadata that was closed meanwhile"
    )
    assert not store.exists()
    assert_arrived(place, before, tmp_path)


def dies_after(number):
    """Runs tasks as ``execute`` does, and is killed when so many are done."""

    def run(tasks):
        for count, task in enumerate(tasks):
            if count == number:
                raise KilledError
            yield run_task(task)

    return run


def test_what_a_run_that_was_killed_had_sent_is_read_back_before_the_source_is_deleted(
    store, place, tmp_path
):
    before, done = files(store), []

    def dies_after_five(tasks):
        for result in dies_after(5)(tasks):
            done.append(result["key"])
            yield result

    with pytest.raises(KilledError):
        move(store, place, dies_after_five)
    shard = next(key for key in done if "/c/" in key)
    damage_there(place, shard)
    report = move(store, place)
    assert (report.ok, report.verified, report.finished, report.deleted) == (True, 4, 0, len(before))
    assert not store.exists()
    assert_arrived(place, before, tmp_path)


def test_what_was_sent_before_a_shard_was_mended_is_read_back_before_the_source_is_deleted(
    store, original, place, tmp_path
):
    before, other = files(store), "0/c/1/0/0"
    damage(store / DAMAGED)
    assert not move(store, place).ok
    mend(store, original)
    damage_there(place, other)
    report = move(store, place)
    assert (report.ok, report.deleted) == (True, len(before))
    assert not store.exists()
    assert_arrived(place, before, tmp_path)


def found_record(store, away) -> MoveRecord:
    found = MoveRecord.find(store / ".compact", str(away))
    assert found is not None
    return found


def test_what_was_sent_to_a_place_that_was_cleared_since_does_not_count_once_its_keys_come_back(
    store, tmp_path, at_point
):
    """An entry of the record that is older than the claim: its file came back, and the run was killed before
    it was verified."""
    away = tmp_path / "away"
    options = MoveOptions(str(away), throttle=POLITE)
    with pytest.raises(KilledError):
        move_store(store, options, dies_after(3))
    sent = list(found_record(store, away).sent)
    assert len(sent) == 3
    shutil.rmtree(away)
    with pytest.raises(KilledError):
        move_store(store, options, dies_after(0))
    for key in sent:
        (away / key).parent.mkdir(parents=True, exist_ok=True)
        run_task(next(task for task in plan_move(store, options).data if task["key"] == key))
        damage_there(str(away), key)
    report = move_store(store, options, execute)
    assert (report.ok, report.finished) == (True, 0)
    assert_arrived(str(away), files(store), tmp_path)


def test_a_claim_that_is_made_anew_forgets_what_was_sent_before_it_is_there(store, tmp_path, at_point):
    """Killed just after the claim, which the next run believes."""
    away = tmp_path / "away"
    options = MoveOptions(str(away), throttle=POLITE)
    with pytest.raises(KilledError):
        move_store(store, options, dies_after(3))
    shutil.rmtree(away)

    def dies():
        raise KilledError

    at_point("put.before_rename", dies)
    with pytest.raises(KilledError):
        move_store(store, options, execute)
    assert not found_record(store, away).sent


def put_back(store, place):
    """As somebody does who finds that the store here cannot be opened."""
    destination = open_destination(place)
    (store / "zarr.json").write_bytes(destination.read("zarr.json", 0, destination.size("zarr.json")))


def test_a_store_of_which_a_part_is_deleted_is_never_sent_again_nor_deleted_there(
    store, place, tmp_path, at_point
):
    before = files(store)
    killed_while_deleting(store, place, at_point, after=10)
    put_back(store, place)
    left = no_work(files(store))
    there = files(fetched(place, tmp_path))
    for _ in range(3):
        report = move(store, place)
        assert (report.ok, report.deleting, report.sent, report.deleted, report.kept) == (
            False,
            True,
            0,
            0,
            ["zarr.json"],
        )
        assert "nothing was deleted" not in send_summary(report)
        assert "deletes the rest" in send_summary(report)
        assert no_work(files(store)) == left
        assert files(fetched(place, tmp_path)) == there
    with pytest.raises(ConfigError, match="--move again"):
        move_store(store, MoveOptions(place, throttle=POLITE), execute)
    (store / "zarr.json").unlink()
    report = move(store, place)
    assert (report.ok, report.deleting, report.deleted) == (True, True, len(left) - 1)
    assert not store.exists()
    assert_arrived(place, before, tmp_path)


def test_that_deleting_has_begun_is_durable_before_anything_is_gone(store, tmp_path, at_point):
    seen = []
    at_point(
        "compact.before_delete_source",
        lambda: seen.append(MoveRecord.find(store / ".compact", str(tmp_path / "away")).deleting),
    )
    assert move(store, str(tmp_path / "away")).ok
    assert seen
    assert all(seen)


def test_nobody_works_on_an_array_while_the_source_is_checked_and_deleted(store, tmp_path, at_point):
    held = []
    at_point(
        "compact.before_delete_source",
        lambda: held.append(is_locked(store / "0/.compact/lock") and is_locked(store / "1/.compact/lock")),
    )
    killed_at(store, str(tmp_path / "away"), at_point, "compact.before_deleting")

    def looks(tasks):
        for task in tasks:
            held.append(is_locked(store / "0/.compact/lock"))
            yield run_task(task)

    at_point(
        "compact.before_delete_source",
        lambda: held.append(is_locked(store / "0/.compact/lock") and is_locked(store / "1/.compact/lock")),
    )
    assert move(store, str(tmp_path / "away"), looks).ok
    assert len(held) > 50
    assert all(held)
    assert not store.exists()


def test_where_no_file_is_left_nothing_is_said_to_have_been_verified(store, tmp_path):
    copy, empty = tmp_path / "copy", tmp_path / "empty"
    (empty / "0/c").mkdir(parents=True)
    with pytest.raises(ShardFormatError):
        move(empty, str(copy))
    assert empty.is_dir(), "no store is anywhere"
    assert move_store(store, MoveOptions(str(copy), throttle=POLITE), execute).ok
    report = move(empty, str(copy))
    assert (report.ok, report.nothing_left) == (True, True)
    assert "there is no file left to move" in send_summary(report)
    assert "verified" not in send_summary(report)
    assert not empty.exists()


def test_folders_that_could_not_be_removed_are_removed_by_the_next_run(store, place, at_point):
    def fail() -> None:
        raise OSError(errno.EIO, "the disk fails")

    for point in ("moved.before_take_name", "compact.before_remove_source_folder"):
        at_point(point, fail)
    assert move(store, place).ok
    assert store.is_dir()
    assert files(store) == {}
    for point in ("moved.before_take_name", "compact.before_remove_source_folder"):
        at_point(point, lambda: None)
    assert move(store, place).nothing_left
    assert not store.exists()


def test_locks_that_a_power_cut_brought_back_go_with_their_folders(store, place):
    """They are not synced away before the record of the move."""
    assert move(store, place).ok
    assert not store.exists()
    for folder in (store, store / "0"):
        (folder / WORK_FOLDER).mkdir(parents=True)
        (folder / WORK_FOLDER / LOCK_NAME).touch()
    report = move(store, place)
    assert (report.ok, report.nothing_left, store.exists()) == (True, True, False)


def test_a_copy_that_was_damaged_while_its_source_was_being_deleted_keeps_what_is_left(
    store, place, tmp_path, at_point
):
    before = files(store)
    killed_while_deleting(store, place, at_point, after=10)
    left = no_work(files(store))
    assert 0 < len(left) < len(before) - 5
    shard = min(key for key in left if "/c/" in key)
    sound = damage_there(place, shard)
    for _ in range(2):
        report = move(store, place)
        assert (report.ok, report.deleted, [failure["key"] for failure in report.failures]) == (
            False,
            0,
            [shard],
        )
        assert "is lost or damaged" in report.failures[0]["error"]["message"]
        assert no_work(files(store)) == left
    open_destination(place).delete(shard)
    open_destination(place).put_new(shard, iter([sound]), len(sound))
    report = move(store, place)
    assert (report.ok, report.sent, report.verified, report.deleted) == (True, 0, len(left), len(left))
    assert not store.exists()
    assert_arrived(place, before, tmp_path)


def test_nothing_is_deleted_when_the_source_changed_after_it_was_sent_and_the_next_run_sends_that(
    store, tmp_path, at_point
):
    def writes_a_note():
        (store / "notes.txt").write_text("new")

    destination = tmp_path / "away"
    at_point("put.before_sync", writes_a_note)
    report = move(store, str(destination))
    failpoints.set_hook("put.before_sync", None)
    assert (report.complete, report.ok, report.kept, report.deleted) == (True, False, ["notes.txt"], 0)
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["0"][...], PIXELS)
    before = no_work(files(store))
    assert move(store, str(destination)).ok
    assert not store.exists()
    assert_arrived(str(destination), before, tmp_path)


def test_what_was_sent_and_is_gone_here_since_is_deleted_there(store, place, tmp_path):
    (store / "draft.txt").write_text("no more than that")
    damage(store / DAMAGED)
    assert not move(store, place).ok
    (store / "draft.txt").unlink()
    assert not move(store, place).ok
    assert open_destination(place).size("draft.txt") is None
    assert open_destination(place).size("zarr.json") is not None


def test_what_was_erased_here_after_all_was_sent_keeps_the_source_and_the_next_run_deletes_it_there(
    store, tmp_path, monkeypatch
):
    place, erased = str(tmp_path / "away"), "0/c/2/0/0"

    def no_answer(*_):
        raise StorageError("the destination does not answer")

    with monkeypatch.context() as patched:
        patched.setattr("shardwright.rework.transfer.move_store._StoreMove._lost", no_answer)
        with pytest.raises(StorageError):
            move(store, place)
    assert found_record(store, place).complete
    (store / erased).unlink()
    report = move(store, place)
    assert (report.ok, report.kept, report.deleted) == (False, [erased], 0)
    assert move(store, place).ok
    assert open_destination(place).size(erased) is None
    assert not store.exists()


def test_a_second_root_that_is_not_mounted_is_not_taken_for_one_that_is_deleted_already(
    store, tmp_path, at_point
):
    def dies():
        raise KilledError

    place, second = str(tmp_path / "away"), tmp_path / "spill"
    at_point("compact.before_delete_spilled", dies)
    with pytest.raises(KilledError):
        move(store, place)
    failpoints.set_hook("compact.before_delete_spilled", None)
    second.rename(tmp_path / "unmounted")
    left = files(store)
    with pytest.raises(StorageError, match=r"which is not there\. Mount the second root, then try again"):
        move(store, place)
    assert files(store) == left
    (tmp_path / "unmounted").rename(second)
    assert move(store, place).ok
    assert not store.exists()
    assert not list(second.iterdir())


def test_the_command_tells_how_far_it_is_also_when_a_part_of_the_source_is_deleted_already(
    store, tmp_path, at_point, capsys
):
    class Here:
        workers = 1

        def run(self, tasks, on_moved):
            for task in tasks:
                on_moved(task, 1)
                yield run_task(task)

    killed_while_deleting(store, str(tmp_path / "away"), at_point, after=10)
    options = MoveOptions(str(tmp_path / "away"), delete_source=True, throttle=POLITE)
    left = bytes_to_move(store, options)
    assert left.keys() == no_work(files(store)).keys()
    assert send(store, options, Here(), bytes_per_s=1e9, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["verified"], facts["bytes_read"]) == (True, len(left), sum(left.values()))
    assert not store.exists()
