"""The one format of what jobs leave for their next run, also as earlier releases wrote it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from shardwright.disk import system
from shardwright.disk.files import new_name
from shardwright.model.errors import FormatVersionError, ShardFormatError, StorageFullError
from shardwright.rework.runtime.compaction_queue import QueueEntry
from shardwright.rework.runtime.done_list import DoneList
from shardwright.rework.runtime.job_folder import JobFolder
from shardwright.rework.runtime.job_record import JobRecord, add_entry, delete_job, read_job, write_job
from shardwright.rework.transfer.destination import Claim
from shardwright.rework.transfer.move_record import MoveRecord, SentFile
from shardwright.shard.checked_json import checksum

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FACTS = {"source": "a hash", "numbers": [1, 2.5, None, "ä"]}
ENTRIES = [{"key": f"c/{n}", "crc32c": n} for n in range(3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "job"
    write_job(path, "build", FACTS, ENTRIES)
    return path


def test_what_was_written_and_appended_is_read(path: Path) -> None:
    for n in (3, 4):
        add_entry(path, {"key": f"c/{n}"}, synced=bool(n % 2))
    assert read_job(path, "build") == JobRecord(FACTS, [*ENTRIES, {"key": "c/3"}, {"key": "c/4"}])
    assert read_job(path.with_name("none"), "build") is None
    assert read_job(path / "none", "build") is None


def test_an_entry_that_a_crash_cut_short_costs_neither_those_before_nor_those_after(path: Path) -> None:
    add_entry(path, {"key": "c/3"}, synced=False)
    whole = path.stat().st_size
    add_entry(path, {"key": "c/4"}, synced=False)
    for end in range(whole, path.stat().st_size - 1):
        text = path.read_bytes()
        os.truncate(path, end)
        assert read_job(path, "build") == JobRecord(FACTS, [*ENTRIES, {"key": "c/3"}])
        add_entry(path, {"key": "c/5"}, synced=False)
        assert read_job(path, "build") == JobRecord(FACTS, [*ENTRIES, {"key": "c/3"}, {"key": "c/5"}])
        path.write_bytes(text)


def test_a_write_that_was_cut_short_is_made_again(path: Path, monkeypatch) -> None:
    """The disk takes a part of a line, then there is room again."""
    append, short = system.calls.append, [9]
    monkeypatch.setattr(
        system.calls, "append", lambda fd, data: append(fd, data[: short.pop() if short else None])
    )
    add_entry(path, {"key": "c/3"}, synced=False)
    assert read_job(path, "build") == JobRecord(FACTS, [*ENTRIES, {"key": "c/3"}])


def test_every_byte_of_what_was_written_whole_is_checked(path: Path) -> None:
    """Other than of an appended entry, all that is missing of it is damage."""
    sound = path.read_bytes()
    for place, byte in enumerate(sound):
        path.write_bytes(sound[:place] + bytes([byte ^ 1]) + sound[place + 1 :])
        with pytest.raises(ShardFormatError) as refused:
            read_job(path, "build")
        assert not isinstance(refused.value, FormatVersionError), "it is of this release, and damaged"
    for end in range(len(sound) - 1):  # the last byte is a line end
        path.write_bytes(sound[:end])
        with pytest.raises(ShardFormatError, match="is damaged"):
            read_job(path, "build")


def test_a_record_of_another_kind_or_of_a_later_release_is_refused(path: Path) -> None:
    with pytest.raises(ShardFormatError, match="not that of the job 'move'"):
        read_job(path, "move")
    header = {"job": "build", "version": 3}
    path.write_bytes(json.dumps({"check": checksum(header), **header}).encode() + b"\n")
    with pytest.raises(FormatVersionError, match="version 1 to 2; got version 3"):
        read_job(path, "build")


# ---------------------------------------------------------------- of an earlier release


def lines(facts: Iterable[object]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in facts)


def test_a_list_of_an_earlier_release_goes_on_and_becomes_one_of_this(tmp_path: Path) -> None:
    options, shards = {"level": 1}, [tmp_path / f"shard{n}" for n in range(3)]
    old = []
    for n, shard in enumerate(shards):
        shard.write_bytes(b"x" * n)
        facts = {"key": str(n), "file_bytes": n, "mtime_ns": shard.stat().st_mtime_ns}
        old.append({"version": 1, **facts, "options": options if n else {"level": 2}})
    path = tmp_path / "done"
    path.write_bytes(b'\n{"torn": \n' + lines(old[:2]))
    done = DoneList(path, options)
    assert [done.has(str(n), shard) for n, shard in enumerate(shards)] == [False, True, False]
    for n in (2, 0):
        done.add(str(n), shards[n])
    again = DoneList(path, options)
    assert [again.has(str(n), shard) for n, shard in enumerate(shards)] == [True, True, True]
    assert len(read_job(path, "done").entries) == 3
    other = DoneList(path, {"level": 3})
    assert not other.has("1", shards[1])
    other.add("1", shards[1])
    assert not DoneList(path, options).has("1", shards[1])


def test_a_damaged_list_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "shard").touch()
    DoneList(tmp_path / "done", {}).add("c/0", tmp_path / "shard")
    with (tmp_path / "done").open("r+b") as file:
        file.write(b"?")
    done = DoneList(tmp_path / "done", {})
    assert not done.has("c/0", tmp_path / "shard")
    done.add("c/0", tmp_path / "shard")
    assert DoneList(tmp_path / "done", {}).has("c/0", tmp_path / "shard")


def test_a_job_of_an_earlier_release_keeps_its_shards_and_another_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "job/made").mkdir(parents=True)
    (tmp_path / "job/job.json").write_text(json.dumps(FACTS))
    with JobFolder.locked(tmp_path / "job") as folder:
        folder.begin(FACTS, lambda: pytest.fail("it is this very job"))
        assert {path.name for path in folder.path.iterdir()} == {"lock", "job.json", "made", "work"}
        folder.begin({}, lambda: None)
        assert {path.name for path in folder.path.iterdir()} == {"lock", "job", "work"}
        assert folder.found() == {}


def test_what_is_there_of_two_jobs_is_of_neither(tmp_path: Path) -> None:
    """An earlier release has been at another job in this folder, and left the record of this one's."""
    with JobFolder.locked(tmp_path / "job") as folder:
        folder.begin(FACTS, lambda: None)
        (folder.path / "job.json").write_text(json.dumps({**FACTS, "source": "another"}))
        (folder.path / "made").mkdir()
        assert folder.found() is None
        folder.begin(FACTS, lambda: None)
        assert {path.name for path in folder.path.iterdir()} == {"lock", "job", "work"}


def test_a_queue_and_a_claim_of_an_earlier_release(tmp_path: Path) -> None:
    entry = QueueEntry(tmp_path)
    entry.add()
    entry.queued_file.write_text('{"version": 1, "failures": 2}')
    entry.check_version()
    assert entry.failures == 2
    claim = Claim.of_this_process("a token")
    assert Claim.decode("/there", lines([{"version": 1, **asdict(claim)}])) == claim
    assert Claim.decode("/there", claim.encode()) == claim


SENT = [SentFile(key, [1, 1], 1, 1) for key in ("a", "b")]


def older_move(folder: Path, *, complete: bool, deleting: bool) -> MoveRecord:
    """Returns what the two files say that an earlier release wrote."""
    record = MoveRecord(folder, "/there", "a token", True, complete, deleting)
    facts = {"version": 1, "destination": "/there", "token": "a token", "claimed": True}
    facts |= {"complete": complete, "deleting": deleting}
    sent = [asdict(each) for each in SENT]
    path = record._path.with_suffix(".json")
    path.write_bytes(lines([facts | ({"sent": sent} if complete else {})]))
    path.with_suffix(".sent").write_bytes(lines(sent[:1]) + b'{"torn": \n' + lines(sent[1:]))
    record.sent = {each.key: each for each in SENT}
    record.unproved = {"a", "b"}
    return record


STATES = [(False, False), (True, False), (True, True)]


@pytest.mark.parametrize(("complete", "deleting"), STATES, ids=["sending", "complete", "deleting"])
def test_a_move_of_an_earlier_release_goes_on_and_becomes_one_of_this(
    tmp_path: Path, complete: bool, deleting: bool
) -> None:
    expected = older_move(tmp_path, complete=complete, deleting=deleting)
    assert MoveRecord.destinations_in(tmp_path) == ["/there"]
    record = MoveRecord.find(tmp_path, "/there")
    assert record == expected
    third = SentFile("c", [1, 1], 1, 1)
    record.add(third)
    assert [path.name for path in tmp_path.iterdir()] == [record._path.name]
    again = MoveRecord.find(tmp_path, "/there")
    assert again.sent == {**expected.sent, "c": third}
    assert (again.token, again.claimed) == ("a token", True)
    assert (again.complete, again.deleting) == (complete, deleting)
    assert MoveRecord.destinations_in(tmp_path) == ["/there"]


def test_of_both_records_of_a_move_that_of_this_release_counts_and_neither_is_left(tmp_path: Path) -> None:
    """A power cut brought the older one back."""
    older_move(tmp_path, complete=True, deleting=True)
    record = MoveRecord(tmp_path, "/there", "a newer token")
    record.save()
    older_move(tmp_path, complete=True, deleting=True)
    found = MoveRecord.find(tmp_path, "/there")
    assert (found.token, found.deleting, found.sent) == ("a newer token", False, {})
    found.delete()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record_of_a_move_says_what_to_look_at_before_it_is_deleted(tmp_path: Path) -> None:
    record = MoveRecord(tmp_path, "/there", "a token", complete=True)
    record.sent = {each.key: each for each in SENT}
    record.save()
    lost = record._path.read_bytes().splitlines(keepends=True)
    record._path.write_bytes(b"".join(lost[:-1]))
    with pytest.raises(ShardFormatError, match=r"of its first 2 entries one is missing") as refused:
        MoveRecord.find(tmp_path, "/there")
    assert "zarr.json of the store is still here" in refused.value.hint
    assert "shardwright compact STORE --to /there" in refused.value.hint


def test_a_move_goes_on_deleting_once_that_is_durable(tmp_path: Path, at_point) -> None:
    """The run that recorded it was killed before the name of the record was durable."""
    record, synced = MoveRecord(tmp_path, "/there", "a token", complete=True, deleting=True), []
    record.save()
    at_point("directory.before_sync", lambda: synced.append(True))
    MoveRecord.find(tmp_path, "/there").begin_deleting()
    assert synced


def test_a_damaged_record_of_an_earlier_release_is_named(tmp_path: Path) -> None:
    record = older_move(tmp_path, complete=True, deleting=False)
    record._path.with_suffix(".json").write_text('{"version": 1, "complete": true, "token": "a"}')
    with pytest.raises(ShardFormatError, match=r"move\..*\.\* is damaged") as refused:
        MoveRecord.find(tmp_path, "/there")
    assert record._path.name not in str(refused.value)


def test_a_full_disk_leaves_the_older_record(tmp_path: Path, at_point) -> None:
    expected = older_move(tmp_path, complete=True, deleting=False)
    record = MoveRecord.find(tmp_path, "/there")

    def full() -> None:
        raise StorageFullError("no room")

    at_point("replace.before_rename", full)
    with pytest.raises(StorageFullError):
        record.begin_deleting()
    assert MoveRecord.find(tmp_path, "/there") == expected


def test_what_a_killed_run_left_as_it_wrote_a_record_goes_with_it(path: Path) -> None:
    """The folder of jobs goes only when nothing is in it."""
    new_name(path).write_bytes(path.read_bytes()[:9])
    delete_job(path)
    assert list(path.parent.iterdir()) == []
