"""What the commands make of an update of a shard that was interrupted."""

from __future__ import annotations

import errno
import json
import os

import pytest
from tests.edit.arrays import contents, encoded, make_array
from tests.harness.daemon import run_cli

from shardwright.disk import failpoints
from shardwright.model.errors import StorageError
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.shard.edit_files import INTERRUPTED, JOURNAL_SUFFIX, edit_file


@pytest.fixture
def interrupted(tmp_path):
    """An array of which an update was interrupted, and the chunks that it is to have."""
    array = make_array(tmp_path / "a")
    edit_shard(array, (0, 0), {n: encoded(array, n, 60) for n in range(6)})
    new = {1: encoded(array, 11, 30), 2: None}

    def fail():
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    failpoints.set_hook("edit.before_sync", fail)
    try:
        with pytest.raises(StorageError, match="was interrupted"):
            edit_shard(array, (0, 0), new, strategy="in_place")
    finally:
        failpoints.set_hook("edit.before_sync", None)
    expected = {n: encoded(array, n, 60) for n in (0, 3, 4, 5)} | {1: new[1]}
    return array, expected


def test_it_is_told_and_recovered(interrupted):
    array, expected = interrupted
    shard = array.path / "c/0/0"
    told = run_cli("verify", array.path)
    assert told.returncode == 1
    assert INTERRUPTED in " ".join(told.stdout.split())
    inspected = json.loads(run_cli("inspect", shard, "--json").stdout)
    assert INTERRUPTED in inspected["arrays"][0]["shards"][0]["problems"]
    dry = json.loads(run_cli("recover", array.path, "--dry-run", "--json").stdout)
    assert [edit["action"] for edit in dry["edits"]] == ["interrupted"]
    done = run_cli("recover", array.path.parent)
    assert (done.returncode, done.stdout) == (0, f"{shard}: update completed\n")
    assert contents(array, 0, 0) == expected
    assert run_cli("verify", array.path).returncode == 0
    again = json.loads(run_cli("recover", array.path, "--json").stdout)
    assert again == {"ok": True, "dry_run": False, "stores": [], "edits": [], "upgrades": []}


def test_compaction_completes_it_first(interrupted):
    array, expected = interrupted
    done = run_cli("compact", array.path, "--no-idle", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stores"][0]["packed"] == 1
    assert "interrupted update completed" in done.stderr
    assert contents(array, 0, 0) == expected


def test_one_that_cannot_be_recovered_is_named(interrupted):
    array, _ = interrupted
    journal = edit_file(array.path, "c/0/0", JOURNAL_SUFFIX)
    journal.write_bytes(journal.read_bytes()[:-1])
    done = run_cli("recover", array.path)
    assert done.returncode == 1
    assert "update refused: " in done.stdout
    assert "is damaged" in done.stdout
    facts = json.loads(run_cli("recover", array.path, "--json").stdout)
    assert (facts["ok"], facts["edits"][0]["error"]["code"]) == (False, "shard_format")
    packed = run_cli("compact", array.path, "--no-idle", "--json")
    assert packed.returncode == 1
    [failure] = json.loads(packed.stdout)["stores"][0]["failures"].values()
    assert failure["code"] == "locked"
    assert run_cli("compact", array.path, "--to", array.path.parent / "b", "--no-idle").returncode == 1
    assert not (array.path.parent / "b").exists()
