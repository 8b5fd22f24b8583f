"""A shard that another program has changed is told from one that is damaged, and put on record as it is."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
import zarr
from tests.repack.images import damage_a_chunk, die_at_every_point, write_image

import shardwright as sw
from shardwright.cli.app import main
from shardwright.model.errors import LockedError, ShardChangedError, ShardFormatError
from shardwright.read.store import parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit import accepted_shards
from shardwright.rework.edit.accepted_shards import verify_and_accept
from shardwright.rework.runtime.work_folder import WorkFolder

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0/c/0/0/0"
ARRAYS = {
    "blosc": {},
    "checksums": {"codec": sw.Zstd(), "chunk_checksum": True},
    "uncompressed": {"codec": None, "index_location": "start"},
    "without shards": {"shard_chunks": None},
}


@pytest.fixture(params=ARRAYS)
def store(request, tmp_path: Path) -> Path:
    """The shard ``KEY`` of it is sound, and as zarr-python has written it."""
    path = tmp_path / "a.ome.zarr"
    write_image(path, **ARRAYS[request.param])
    change(path)
    return path


def change(path: Path, value: int = 7) -> None:
    """One pixel changes, by zarr-python."""
    zarr.open_array(path / "0", mode="r+")[0, 3, 5] = value


def problems(path: Path) -> dict[str, bool]:
    """Where, and whether it is a change."""
    return {problem.where: problem.is_change for problem in verify_store(path).problems}


def test_a_pixel_of_another_program_is_a_change_until_it_is_accepted(store) -> None:
    assert problems(store) == {KEY: True}
    if parse_array(store / "0").is_sharded:  # else all of a file is replaced
        with pytest.raises(ShardFormatError, match="altered or replaced") as refused:
            sw.update(store, {"z": 0, "y": 4, "x": 5}, 9)
        assert "--accept" in str(refused.value.hint)
    assert verify_and_accept(store, [KEY]).accepted == [KEY]
    assert verify_store(store).problems == []
    sw.update(store, {"z": 0, "y": 4, "x": 5}, 9)
    sw.erase(store, {"z": 0, "y": 5, "x": 5})
    image = zarr.open_array(store / "0", mode="r")
    assert (int(image[0, 3, 5]), int(image[0, 4, 5]), int(image[0, 5, 5])) == (7, 9, 0)
    assert verify_store(store).problems == []
    assert verify_and_accept(store, ["all"]).accepted == []


def test_what_does_not_decode_is_never_accepted(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path)
    change(path)
    damage_a_chunk(path / KEY)
    assert problems(path) == {KEY: False}
    for keys in ([KEY], ["all"]):
        report = verify_and_accept(path, keys)
        assert report.accepted == []
        assert not report.ok
    record = (path / "0" / "shards.crc32c").read_bytes()
    damage_a_chunk(path / KEY)  # healed: it is the change that it was
    assert problems(path) == {KEY: True}
    assert (path / "0" / "shards.crc32c").read_bytes() == record


def test_what_may_be_a_loss_needs_its_own_key(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path)
    swapped, gone = path / "0/c/1/0/0", path / "0/c/0/1/0"
    swapped.write_bytes((path / "0/c/0/0/1").read_bytes())
    gone.unlink()
    assert verify_and_accept(path, ["all"]).accepted == []
    found = ["0/c/0/1/0", "0/c/1/0/0"]
    assert sorted(problems(path)) == found
    assert sorted(verify_and_accept(path, found).accepted) == found
    assert verify_store(path).problems == []
    sw.update(path, {"z": 0}, 3)  # the shard that is gone may be made again
    assert verify_store(path).problems == []


def test_it_is_refused_beside_a_job_and_while_the_shard_changes(store) -> None:
    with WorkFolder.locked(store / "0"), pytest.raises(LockedError):
        verify_and_accept(store, ["all"])

    for wrong in ("0/zarr.json", "1/c/0/0/0", "c/0/0/0", "0/c/0/0"):
        report = verify_and_accept(store, [wrong])
        assert [warning.where for warning in report.warnings] == [wrong]
    assert problems(store) == {KEY: True}


def test_a_shard_that_changes_while_it_is_verified_is_not_recorded(store, monkeypatch) -> None:
    taken = accepted_shards.shard_locked

    def changed_before(*given):
        change(store, 11)
        os.utime(store / KEY)
        return taken(*given)

    monkeypatch.setattr(accepted_shards, "shard_locked", changed_before)
    record = (store / "0" / "shards.crc32c").read_bytes()
    with pytest.raises(ShardChangedError):
        verify_and_accept(store, ["all"])
    assert (store / "0" / "shards.crc32c").read_bytes() == record


def test_killed_at_every_storage_call_it_is_a_change_or_accepted(store) -> None:
    for _ in die_at_every_point(lambda: verify_and_accept(store, ["all"])):
        assert problems(store) in ({KEY: True}, {})
    assert problems(store) == {}
    assert not (store / "0" / ".compact").exists() or not any((store / "0" / ".compact").iterdir())


def verify(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["verify", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_the_command_says_which_and_records_it(store, capsys) -> None:
    assert verify(store) == 1
    said = capsys.readouterr().out
    assert "shards that another program has changed are sound" in said
    assert "--accept" in said
    assert verify(store, "--accept", "all", "--json") == 0
    assert json.loads(capsys.readouterr().out)["accepted"] == [KEY]
    assert verify(store) == 0
    assert verify(store.parent, "--accept", "all") == 2


def test_arrays_of_older_spellings_are_refused(tmp_path) -> None:
    zarr.create_array(tmp_path / "a.zarr", shape=(4,), dtype="u1", chunks=(2,), zarr_format=2)[...] = 1
    with pytest.raises(ShardFormatError, match="is read but not changed"):
        verify_and_accept(tmp_path / "a.zarr", ["all"])
