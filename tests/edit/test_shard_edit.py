"""Edits of a shard by each strategy, one after another, with what they must leave in the file."""

import pytest

from shardwright.disk.files import NO_FILE, FileIdentity
from shardwright.model.errors import (
    LockedError,
    ShardChangedError,
    ShardFormatError,
    StorageError,
    StrategyError,
)
from shardwright.model.names import EDIT_FOLDER, MOVE_LOCK_NAME
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.jobs.pack_shard import pack_shard
from shardwright.rework.runtime.throttle import Throttle
from shardwright.rework.runtime.work_folder import locked
from shardwright.rework.source_shard import SourceShard
from shardwright.rework.unknown_bytes import unknown_bytes
from shardwright.shard.index import empty_index
from shardwright.shard.shard_sums import ShardSums

from .arrays import contents, encoded, make_array, put_slots

KINDS = {
    "index at the end": {},
    "index at the start": {"index": "start"},
    "no checksum of the index": {"index": "start", "index_checksum": False},
    "inner checksums": {"chunk_checksum": True},
    "an index of another program": {"index_endian": "big"},
    "a record": {"recorded": True},
    "a record, inner checksums": {"recorded": True, "chunk_checksum": True, "index": "start"},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def array(request, tmp_path):
    return make_array(tmp_path / "a", **request.param)


def full(array, noise=60):
    return {n: encoded(array, n + 1, noise) for n in range(array.chunks_per_shard)}


def assert_sound(array, expected, *shard):
    """The shard has these chunks, nothing that compaction would not know, its sum on record, and nothing is
    left behind."""
    assert contents(array, *shard) == expected
    assert not (array.path / EDIT_FOLDER).exists()
    if expected:
        with SourceShard(array, shard) as source:
            unknown = unknown_bytes(source, source.pack_plan("row_major"), lambda _: None)
        assert unknown is None
    report = verify_store(array.path)
    assert not report.problems, report.problems
    if ShardSums(array.path).exists() and expected:
        assert report.shards_recorded


@pytest.mark.parametrize("strategy", ["in_place", "gap", "append", "rewrite"])
def test_each_strategy_changes_these_chunks_and_no_other(array, strategy):
    expected = full(array)
    assert edit_shard(array, (0, 0), expected).strategy == "rewrite"
    assert_sound(array, expected, 0, 0)
    if strategy == "gap":  # one that the chunk fits
        edit_shard(array, (0, 0), {2: None, 3: None}, strategy="in_place")
        del expected[2], expected[3]
        assert_sound(array, expected, 0, 0)
    new = encoded(array, 9, 50)
    report = edit_shard(array, (0, 0), {1: new}, strategy=strategy)
    expected[1] = new
    assert report.strategy == strategy
    assert report.file_bytes == report.identity.nbytes == (array.path / "c/0/0").stat().st_size
    assert_sound(array, expected, 0, 0)


def test_without_a_choice_the_cheapest_strategy_that_keeps_the_file_dense_is_used(tmp_path):
    array = make_array(tmp_path / "a", chunks=(4, 8))
    assert edit_shard(array, (0, 0), full(array, 200)).strategy == "rewrite", "a new shard"
    same = encoded(array, 1, 199)
    used = [
        edit_shard(array, (0, 0), chunks, max_unused=0.2).strategy
        for chunks in (
            {0: same},  # fits where it lies
            {5: None, 6: None},  # two gaps
            {0: encoded(array, 2, 230)},  # fits only where those lay
            {1: encoded(array, 3, 256), 2: encoded(array, 4, 256)},  # neither, but both into the rest of it
            {n: encoded(array, n, 240) for n in (3, 4)},  # where the last two lay
            {n: encoded(array, n, 250) for n in range(1, 30)},  # nearly all
            full(array, 30),
        )
    ]
    assert used == ["in_place", "in_place", "gap", "append", "gap", "rewrite", "rewrite"]
    assert_sound(array, full(array, 30), 0, 0)


def test_more_unused_bytes_than_allowed_pack_the_shard(array):
    expected = full(array)
    edit_shard(array, (0, 0), expected)
    report = edit_shard(array, (0, 0), {0: None, 1: None, 2: None}, max_unused=1)
    assert report.strategy == "in_place"
    assert report.unused_bytes == sum(len(expected.pop(n)) for n in (0, 1, 2))
    assert report.file_bytes == FileIdentity.at(array.path / "c/0/0").nbytes
    assert_sound(array, expected, 0, 0)
    report = edit_shard(array, (0, 0), {3: expected[3]}, max_unused=0.1)
    assert (report.strategy, report.unused_bytes) == ("rewrite", 0)
    assert_sound(array, expected, 0, 0)


def test_the_last_chunk_erased_deletes_the_shard(array):
    edit_shard(array, (0, 0), {2: encoded(array, 1), 4: encoded(array, 2)})
    assert not edit_shard(array, (0, 0), {2: None}).removed
    report = edit_shard(array, (0, 0), {0: None, 4: None})
    assert (report.removed, report.file_bytes, report.identity) == (True, 0, NO_FILE)
    assert not (array.path / "c/0/0").exists()
    assert_sound(array, {}, 0, 0)
    assert not edit_shard(array, (0, 0), {4: None}).removed, "there was none"
    edit_shard(array, (0, 0), {4: encoded(array, 3)})
    assert_sound(array, {4: encoded(array, 3)}, 0, 0)


def test_absent_chunks_erased_change_nothing(array):
    edit_shard(array, (0, 0), {2: encoded(array, 1)})
    before = FileIdentity.at(array.path / "c/0/0")
    assert edit_shard(array, (0, 0), {1: None, 5: None}).bytes_written == 0
    assert FileIdentity.at(array.path / "c/0/0") == before


def test_a_strategy_that_cannot_says_why_and_which_can(tmp_path):
    array = make_array(tmp_path / "a", index_checksum=False)
    edit_shard(array, (0, 0), {n: encoded(array, n + 1, 60) for n in range(5)})
    long = encoded(array, 7, 250)
    before = (array.path / "c/0/0").read_bytes()
    for strategy, chunks, why in (
        ("in_place", {0: long}, "room for"),
        ("in_place", {5: long}, "chunk 5 is absent"),
        ("gap", {0: long}, "no gap has room"),
        ("append", {0: long}, "has no checksum"),
    ):
        with pytest.raises(StrategyError, match=why) as caught:
            edit_shard(array, (0, 0), chunks, strategy=strategy)
        assert caught.value.expected == "strategy rewrite"
    with pytest.raises(StrategyError, match="no sound shard"):
        edit_shard(array, (1, 0), {0: long}, strategy="append")
    with pytest.raises(StrategyError, match="unknown strategy"):
        edit_shard(array, (0, 0), {0: long}, strategy="cheap")
    assert (array.path / "c/0/0").read_bytes() == before
    array = make_array(tmp_path / "b")
    edit_shard(array, (0, 0), {n: encoded(array, n + 1, 60) for n in range(5)})
    with pytest.raises(StrategyError) as caught:
        edit_shard(array, (0, 0), {0: long}, strategy="in_place")
    assert caught.value.expected == "strategy append or rewrite"


def test_what_is_no_chunk_or_no_shard_is_refused(tmp_path):
    array = make_array(tmp_path / "a", chunk_checksum=True)
    good = encoded(array, 1)
    for shard, chunks, why in (
        ((0,), {0: good}, "no shard"),
        ((2, 0), {0: good}, "no shard"),
        ((-1, 0), {0: good}, "no shard"),
        ((0, 0), {6: good}, "no chunk 6"),
        ((0, 0), {-1: good}, "no chunk -1"),
        ((0, 0), {0: b""}, "not encoded as"),
        ((0, 0), {0: bytes(1 << 20)}, "not encoded as"),
        ((0, 0), {0: b"PK" + good}, "not encoded as"),
        ((0, 0), {0: good[:-1] + b"!"}, "fails its crc32c"),
    ):
        with pytest.raises(ShardFormatError, match=why):
            edit_shard(array, shard, chunks)
    with pytest.raises(StrategyError, match="max_unused"):
        edit_shard(array, (0, 0), {0: good}, max_unused=2)
    assert [path.name for path in array.path.iterdir()] == ["zarr.json"]


@pytest.mark.parametrize("recorded", [False, True])
def test_an_array_without_shards_has_files_of_one_chunk(tmp_path, recorded):
    array = make_array(tmp_path / "a", sharded=False, recorded=recorded)
    path = array.path / "c/3/2"
    report = edit_shard(array, (3, 2), {0: encoded(array, 4)})
    assert (report.strategy, path.read_bytes()) == ("rewrite", encoded(array, 4))
    edit_shard(array, (3, 2), {0: encoded(array, 5)})
    assert path.read_bytes() == encoded(array, 5)
    assert not verify_store(array.path).problems
    with pytest.raises(StrategyError, match="has no shards"):
        edit_shard(array, (3, 2), {0: encoded(array, 5)}, strategy="in_place")
    assert edit_shard(array, (3, 2), {0: None}).removed
    assert not path.exists()


def test_what_was_read_is_what_is_changed(array):
    expected = full(array)
    report = edit_shard(array, (0, 0), expected, expected=NO_FILE)
    seen = FileIdentity.at(array.path / "c/0/0")
    assert seen == report.identity
    with pytest.raises(ShardChangedError):
        edit_shard(array, (0, 0), {0: None}, expected=NO_FILE)
    identities = [seen]
    for value in range(5):  # within one tick of the filesystem's clock
        new = encoded(array, value + 10, 10)
        report = edit_shard(array, (0, 0), {0: new}, strategy="in_place", expected=identities[-1])
        identities.append(report.identity)
        assert report.identity == FileIdentity.at(array.path / "c/0/0")
    assert len(set(identities)) == len(identities)
    for old in identities[:-1]:
        with pytest.raises(ShardChangedError, match="changed or replaced"):
            edit_shard(array, (0, 0), {1: None}, expected=old)
    assert_sound(array, {**expected, 0: new}, 0, 0)


def test_a_file_with_a_second_name_is_left_under_that_name(array):
    expected = full(array)
    edit_shard(array, (0, 0), expected)
    snapshot = array.path.parent / "snapshot"
    snapshot.hardlink_to(array.path / "c/0/0")
    before = snapshot.read_bytes()
    for strategy in ("in_place", "append"):
        with pytest.raises(StrategyError, match="hard link"):
            edit_shard(array, (0, 0), {1: expected[2]}, strategy=strategy)
    assert edit_shard(array, (0, 0), {1: expected[2]}).strategy == "rewrite"
    assert snapshot.read_bytes() == before
    assert_sound(array, {**expected, 1: expected[2]}, 0, 0)


def test_a_link_to_another_disk_is_refused(array):
    edit_shard(array, (0, 0), full(array))
    path = array.path / "c/0/0"
    away = path.rename(array.path.parent / "away")
    path.symlink_to(away)
    with pytest.raises(StorageError, match="link"):
        edit_shard(array, (0, 0), {1: None})


def test_a_store_that_is_written_or_moved_is_refused(tmp_path):
    (tmp_path / "zarr.json").write_text("{}")
    array = make_array(tmp_path / "0")
    (tmp_path / ".shardwright").mkdir()
    with pytest.raises(LockedError, match="still being written"):
        edit_shard(array, (0, 0), {0: encoded(array, 1)})
    (tmp_path / ".shardwright").rmdir()
    with locked(tmp_path, MOVE_LOCK_NAME), pytest.raises(LockedError, match="is being moved"):
        edit_shard(array, (0, 0), {0: encoded(array, 1)})
    edit_shard(array, (0, 0), {0: encoded(array, 1)})


def with_header(array) -> bytes:
    """The shard as a file of another format as well: with bytes of its own behind the chunks."""
    path = array.path / "c/0/0"
    data, size = path.read_bytes(), array.index_bytes
    if array.index_location == "start":
        path.write_bytes(data + b"trailer")
    else:
        path.write_bytes(data[:-size] + b"trailer" + data[-size:])
    return b"trailer"


@pytest.mark.parametrize("place", ["start", "end"])
def test_bytes_that_nobody_knows_stay(tmp_path, place):
    array = make_array(tmp_path / "a", index=place)
    expected = full(array)
    edit_shard(array, (0, 0), expected)
    foreign, path = with_header(array), array.path / "c/0/0"
    for strategy, chunks in (
        ("in_place", {1: encoded(array, 1, 20)}),
        ("append", {2: encoded(array, 2, 250)}),
    ):
        edit_shard(array, (0, 0), chunks, strategy=strategy)
        expected |= chunks
        assert contents(array, 0, 0) == expected
        assert foreign in path.read_bytes()
    before = path.read_bytes()
    with pytest.raises(StrategyError, match="unknown meaning"):
        edit_shard(array, (0, 0), {2: encoded(array, 2, 20)}, strategy="gap")
    for chunks in ({1: None}, dict.fromkeys(expected), full(array)):
        with pytest.raises(ShardFormatError, match="belong neither"):
            edit_shard(array, (0, 0), chunks, strategy="rewrite")
    assert path.read_bytes() == before


def test_a_damaged_chunk_is_not_copied_but_may_be_replaced(tmp_path):
    array = make_array(tmp_path / "a", chunk_checksum=True)
    expected = full(array)
    edit_shard(array, (0, 0), expected)
    path = array.path / "c/0/0"
    data = bytearray(path.read_bytes())
    data[data.index(expected[3]) + 15] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardFormatError, match="crc32c of the chunk"):
        edit_shard(array, (0, 0), {1: expected[2]}, strategy="rewrite")
    assert path.read_bytes() == data
    edit_shard(array, (0, 0), {3: expected[3]}, strategy="rewrite")
    assert_sound(array, expected, 0, 0)
    path.write_bytes(b"no shard")
    with pytest.raises(ShardFormatError):
        edit_shard(array, (0, 0), {1: expected[2]})
    edit_shard(array, (0, 0), expected)
    assert_sound(array, expected, 0, 0)


@pytest.mark.parametrize("strategy", ["in_place", "rewrite"])
def test_a_shard_that_is_not_the_recorded_one_is_refused(tmp_path, strategy):
    array = make_array(tmp_path / "a", recorded=True)
    expected = full(array)
    edit_shard(array, (0, 0), expected)
    path = array.path / "c/0/0"
    data = bytearray(path.read_bytes())
    data[data.index(expected[3]) + 15] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardFormatError, match="altered or replaced"):
        edit_shard(array, (0, 0), {1: expected[1]}, strategy=strategy)
    assert path.read_bytes() == data
    edit_shard(array, (0, 0), expected)
    assert_sound(array, expected, 0, 0)


def test_a_recorded_shard_that_is_gone_is_refused_unless_all_of_it_is_given(tmp_path):
    array = make_array(tmp_path / "a", recorded=True)
    expected = full(array)
    edit_shard(array, (0, 0), expected)
    record = ShardSums(array.path)
    (total,) = record.of("c/0/0") - {None}
    record.path.write_bytes(b"")  # a record that says nothing of a time without the shard, as a writer's
    record.append({"c/0/0": total})
    (array.path / "c/0/0").unlink()
    with pytest.raises(ShardFormatError, match=f"(?s)is missing, although.*delete {record.path}"):
        edit_shard(array, (0, 0), {1: expected[1]})
    assert [problem.what[:7] for problem in verify_store(array.path).problems] == ["missing"]
    edit_shard(array, (0, 0), expected)
    assert_sound(array, expected, 0, 0)
    edit_shard(array, (0, 0), dict.fromkeys(expected))
    edit_shard(array, (0, 0), {1: expected[1]})
    assert_sound(array, {1: expected[1]}, 0, 0)


def test_a_compaction_takes_an_edited_shard_and_keeps_its_sum(array):
    expected = full(array)
    edit_shard(array, (0, 0), expected)
    strategies = ("append", "in_place") if array.index.codec.has_checksum else ("in_place",)
    for strategy in strategies:
        edit_shard(array, (0, 0), {1: None, 4: expected[4]}, strategy=strategy)
    del expected[1]
    task = {"array": str(array.path), "shard": [0, 0], "order": "row_major"}
    assert pack_shard(task, Throttle(idle=False))["gain_bytes"] > 0
    assert_sound(array, expected, 0, 0)


def test_an_old_index_that_the_end_of_a_slot_would_cut_is_cleared(tmp_path):
    array = make_array(tmp_path / "a", chunks=(20, 15))  # an index of 4,804 bytes
    path, chunk = array.path / "c/0/0", encoded(array, 1)
    put_slots(array, {0: chunk}, 0, 0)
    data = path.read_bytes()
    path.write_bytes(data[:-4804].ljust(2 * 4096 - 4804, b"\0") + data[-4804:])
    assert contents(array, 0, 0) == {0: chunk}
    edit_shard(array, (0, 0), {7: encoded(array, 2)}, strategy="append")
    assert_sound(array, {0: chunk, 7: encoded(array, 2)}, 0, 0)


def test_an_edit_of_a_shard_of_slots_leaves_nothing_of_an_encoder(array):
    expected = full(array)
    put_slots(array, expected, 0, 0)
    edit_shard(array, (0, 0), {1: encoded(array, 1, 256)}, strategy="in_place")
    expected[1] = encoded(array, 1, 256)
    assert b"remains" in (array.path / "c/0/0").read_bytes(), "slots stay slots"
    assert_sound(array, expected, 0, 0)
    edit_shard(array, (0, 0), {2: expected[1]}, strategy="gap")
    expected[2] = expected[1]
    assert b"remains" not in (array.path / "c/0/0").read_bytes()
    assert_sound(array, expected, 0, 0)


def test_slots_whose_ends_are_holes_are_changed_where_they_lie(tmp_path):
    """As an acquisition leaves them, where chunks are shorter than their slots."""
    array = make_array(tmp_path / "a")
    entries, chunks = empty_index(array.chunks_per_shard), {}
    path = array.path / "c/0/0"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for number in range(array.chunks_per_shard):
            chunks[number] = encoded(array, number, 200)
            entries[number] = (number << 16, len(chunks[number]))
            file.seek(number << 16)
            file.write(chunks[number])
        file.seek(array.chunks_per_shard << 16)
        file.write(array.index.encode(entries))
    chunks[1] = encoded(array, 99, 150)
    assert len(chunks[1]) < len(encoded(array, 1, 200))
    assert edit_shard(array, (0, 0), {1: chunks[1]}).strategy == "in_place"
    assert_sound(array, chunks, 0, 0)
