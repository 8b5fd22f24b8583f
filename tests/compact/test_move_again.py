"""A move that is run again: over damaged shards and mended ones, over what changed here or was lost there in the time between."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import zarr

from shardwright.cli.compact_to import send, summary
from shardwright.compact.destination import CLAIM_KEY, open_destination
from shardwright.compact.move_store import MoveOptions, bytes_left, move_store
from shardwright.compact.tasks import run_task
from shardwright.model.errors import LockedError
from shardwright.read.verify import verify_store
from shardwright.storage import failpoints

from .moving import PIXELS, POLITE, KilledError, assert_arrived, execute, fetched, files

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
    return move_store(store, MoveOptions(place, delete_source=True, manners=POLITE), run)


def test_a_damaged_shard_is_sent_as_it_is_named_and_sent_again_when_it_is_mended(store, original, place, tmp_path, at_point):
    before = files(store)
    damage(store / DAMAGED)
    found = files(store)
    report = move(store, place)
    assert (report.ok, report.complete, report.failures, report.deleted) == (False, True, [], 0)
    assert [(shard["key"], shard["error"]["code"]) for shard in report.damaged] == [(DAMAGED, "shard_format")]
    assert report.sent == len(before)
    assert f"damaged, sent as it is: {DAMAGED}: " in summary(report)
    assert "nothing was deleted" in summary(report)
    assert no_work(files(store)) == found
    copy = fetched(place, tmp_path)
    assert (copy / DAMAGED).read_bytes() == found[DAMAGED]
    assert all(problem.startswith(DAMAGED.removeprefix("0/")) or DAMAGED in problem for problem in map(str, verify_store(copy).problems))
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
        if any(store.rglob("*.json")):
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
    assert (report.ok, report.finished) == (True, 5)
    assert not set(done) & set(asked)


def killed_while_deleting(store, place, at_point, *, after):
    """A job that had sent all and deleted ``after`` files."""
    calls = []

    def dies():
        calls.append(None)
        if len(calls) == after + 1:
            raise KilledError

    at_point("compact.before_delete_source", dies)
    with pytest.raises(KilledError):
        move(store, place)
    failpoints.set_hook("compact.before_delete_source", None)


def damage_there(place, key):
    destination = open_destination(place)
    sound = destination.read(key, 0, destination.size(key))
    destination.delete(key)
    bad = bytearray(sound)
    bad[len(bad) // 2] ^= 1
    destination.put_new(key, iter([bytes(bad)]), len(bad))
    return sound


def test_before_an_earlier_run_s_source_is_deleted_all_of_it_is_read_back_and_what_was_damaged_is_sent_again(store, place, tmp_path, at_point):
    before = files(store)
    killed_while_deleting(store, place, at_point, after=0)
    assert no_work(files(store)) == before
    damage_there(place, "0/c/1/0/0")
    report = move(store, place)
    assert report.ok
    assert (report.verified, report.deleted) == (len(before) - 1, len(before))
    assert report.sent == 1 + sum(key.endswith("zarr.json") for key in before), "the shard, and the metadata that was closed meanwhile"
    assert not store.exists()
    assert_arrived(place, before, tmp_path)


def test_a_copy_that_was_damaged_while_its_source_was_being_deleted_keeps_what_is_left(store, place, tmp_path, at_point):
    before = files(store)
    killed_while_deleting(store, place, at_point, after=10)
    left = no_work(files(store))
    assert 0 < len(left) < len(before) - 5
    shard = min(key for key in left if "/c/" in key)
    sound = damage_there(place, shard)
    for _ in range(2):
        report = move(store, place)
        assert (report.ok, report.deleted, [failure["key"] for failure in report.failures]) == (False, 0, [shard])
        assert "is not what was sent any more" in report.failures[0]["error"]["message"]
        assert no_work(files(store)) == left
    open_destination(place).delete(shard)
    open_destination(place).put_new(shard, iter([sound]), len(sound))
    report = move(store, place)
    assert (report.ok, report.sent, report.verified, report.deleted) == (True, 0, len(left), len(left))
    assert not store.exists()
    assert_arrived(place, before, tmp_path)


def test_nothing_is_deleted_when_the_source_changed_after_it_was_sent_and_the_next_run_sends_that(store, tmp_path, at_point):
    def writes_a_note():
        (store / "notes.txt").write_text("new")

    destination = tmp_path / "away"
    at_point("compact.before_put_sync", writes_a_note)
    report = move(store, str(destination))
    failpoints.set_hook("compact.before_put_sync", None)
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


def test_the_command_tells_how_far_it_is_also_when_a_part_of_the_source_is_deleted_already(store, tmp_path, at_point, capsys):
    class Here:
        workers = 1

        def run(self, tasks, on_moved):
            for task in tasks:
                on_moved(task, 1)
                yield run_task(task)

    killed_while_deleting(store, str(tmp_path / "away"), at_point, after=10)
    options = MoveOptions(str(tmp_path / "away"), delete_source=True, manners=POLITE)
    left = bytes_left(store, options)
    assert left.keys() == no_work(files(store)).keys()
    assert send(store, options, Here(), bytes_per_s=1e9, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["verified"], facts["bytes_read"]) == (True, len(left), sum(left.values()))
    assert not store.exists()
