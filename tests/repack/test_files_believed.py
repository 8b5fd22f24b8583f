"""Files of ours that say what we never wrote: each is one typed error, or as if it were not there."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardwright.acquire.accounts import SequenceSet
from shardwright.disk.files import read_regular
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.json_text import parse_json
from shardwright.rework.runtime.compaction_queue import QueueEntry
from shardwright.rework.runtime.done_list import DoneList
from shardwright.rework.runtime.job_folder import JobFolder
from shardwright.rework.runtime.job_record import add_entry, read_job, write_job
from shardwright.rework.transfer.destination import Claim
from shardwright.rework.transfer.move_record import MoveRecord, SentFile
from shardwright.shard.checked_json import encode_checked, read_checked
from shardwright.shard.growing_copy import last_sound_index
from shardwright.shard.index import ShardIndex, empty_index
from shardwright.shard.shard_sums import ShardSums, sum_lines

if TYPE_CHECKING:
    from pathlib import Path

DEEP = b"[" * 100_000


@pytest.mark.parametrize("text", [DEEP, b"NaN", b"[1e999]", b"-Infinity", b"\xff", b"", b"9" * 5000])
def test_what_is_no_json_is_one_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_a_file_of_a_hole_is_not_read(tmp_path: Path):
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 1 << 40)
    with pytest.raises(ShardFormatError, match="too long"):
        read_regular(tmp_path / "file", 1 << 20)


def test_what_can_be_decoded_and_not_encoded_is_damaged(tmp_path: Path):
    (tmp_path / "file").write_bytes(b'{"a":' + b"[" * 900 + b"]" * 900 + b"}")
    with pytest.raises(ShardFormatError, match="is damaged"):
        read_checked(tmp_path / "file", 1 << 20)
    (tmp_path / "file").write_bytes(encode_checked({"a": 1}))
    assert read_checked(tmp_path / "file", 1 << 20) == {"a": 1}


@pytest.mark.parametrize("key", ["\ud800", "c/0"])
def test_a_line_of_a_record_whose_key_is_no_text_is_passed_over(tmp_path: Path, key):
    line = json.dumps({"version": 1, "key": key, "crc32c": 1, "check": 1})
    record = ShardSums(tmp_path)
    record.path.write_bytes(sum_lines({"c/1": 7}) + line.encode() + b"\n" + DEEP + b"\n")
    assert record.read() == {"c/1": {7}}
    assert record.of("c/1") == {7}


@pytest.mark.parametrize("text", [b'{"failures": 1e999}', b'{"failures": -1}', DEEP, b'{"failures": "3"}'])
def test_an_entry_of_the_queue_that_says_no_number_has_failed_never(tmp_path: Path, text):
    entry = QueueEntry(tmp_path)
    entry.add(3)
    assert entry.failures == 3
    entry.queued_file.write_bytes(text)
    entry.check_version()
    assert entry.failures == 0


@pytest.mark.parametrize("facts", [{"key": []}, {"key": {}}, {"mtime_ns": [1]}, {"file_bytes": 1.5}, {}])
def test_an_entry_of_the_done_list_of_other_types_is_passed_over(tmp_path: Path, facts):
    shard, options = tmp_path / "shard", {"level": 1}
    shard.write_bytes(b"x")
    DoneList(tmp_path / "done", options).add("c/0", shard)
    (entry,) = read_job(tmp_path / "done", "done").entries
    add_entry(tmp_path / "done", entry | facts if facts else {"key": "c/0"}, synced=False)
    with (tmp_path / "done").open("ab") as file:
        file.write(DEEP + b"\n")
    assert DoneList(tmp_path / "done", options).has("c/0", shard)


@pytest.mark.parametrize("text", [DEEP, b"[]", b'{"a": 1e999}'])
def test_a_job_that_cannot_be_read_is_none(tmp_path: Path, text):
    (tmp_path / "job").write_bytes(text)
    assert JobFolder(tmp_path).found() is None


@pytest.mark.parametrize("text", [DEEP, b"[]", b'{"token": "a", "host": "b", "pid": 1e999, "since": "c"}'])
def test_a_claim_that_is_none_is_an_error(text):
    with pytest.raises(StorageError, match="is not the claim of a job"):
        Claim.decode("/there", text)


def change_entry(folder: Path, facts: dict) -> None:
    """In the record of the one move, with checksums that hold."""
    (path,) = folder.glob("move.*.job")
    record = read_job(path, "move")
    write_job(path, "move", record.facts, [record.entries[0] | facts])


@pytest.mark.parametrize(
    "key",
    ["../outside", "/outside", "a/../../outside", "", "a//b", "a\0b", "\ud800", "9" * 5000, 7, None],
    ids=lambda key: repr(key)[:20],
)
def test_a_record_of_a_move_names_files_of_its_store_alone(tmp_path: Path, key):
    """What it names is deleted here when all is there."""
    record = MoveRecord(tmp_path, "/there", "0" * 32, claimed=True, complete=True, deleting=True)
    record.sent = {"a": SentFile("a", [1, 1], 1, 1)}
    record.save()
    found = MoveRecord.find(tmp_path, "/there")
    assert found is not None
    assert found.sent == record.sent
    change_entry(tmp_path, {"key": key})
    with pytest.raises(ShardFormatError, match="is damaged"):
        MoveRecord.find(tmp_path, "/there")


@pytest.mark.parametrize(
    "facts", [{"nbytes": -1}, {"nbytes": "1"}, {"crc32c": 1.5}, {"source": "ab"}, {"damaged": 1}]
)
def test_a_record_of_a_move_has_numbers_of_files(tmp_path: Path, facts):
    record = MoveRecord(tmp_path, "/there", "0" * 32, claimed=True, complete=True)
    record.sent = {"a": SentFile("a", [1, -1], 1, 1)}
    record.save()
    change_entry(tmp_path, facts)
    with pytest.raises(ShardFormatError, match="is damaged"):
        MoveRecord.find(tmp_path, "/there")


@pytest.mark.parametrize("number", [2**62, 2**63, 2**64 - 2])
def test_an_index_that_names_bytes_outside_of_its_file_is_not_sound(tmp_path: Path, number):
    """The last one of a growing file, which recovery copies; only its first and last entries are looked at
    before its checksum is."""
    index = ShardIndex(400, "end")
    layout = SimpleNamespace(index=index, index_bytes=index.nbytes, chunks=400)
    sound, strange = empty_index(400), empty_index(400)
    sound[200] = (0, 10)
    strange[200] = (number, 10)
    path = tmp_path / "shard"
    pages = (encoded.rjust(8192, b"\0") for encoded in map(index.encode, (sound, strange)))
    path.write_bytes(b"".join(pages))
    with path.open("rb") as file:
        entries, end = last_sound_index(file.fileno(), layout)
    assert end == 8192
    assert entries[200] == sound[200]


def test_a_sequence_that_no_camera_reaches_is_an_error_and_costs_no_memory():
    found = SequenceSet()
    found.add(np.array([0, 1, 5]))
    for sequence in (2**31, 2**40, 2**63 - 1):
        with pytest.raises(ShardFormatError, match="a sequence that cannot be"):
            found.add(np.array([sequence]))
    assert (found.value, found.stop) == (2, 6)
