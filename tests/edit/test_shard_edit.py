"""Edits of a shard by each strategy, one after another, with what they must leave in the file."""

import pytest

from shardwright.edit.shard_edit import edit_shard
from shardwright.model.errors import ShardChangedError, StrategyError
from shardwright.model.names import EDIT_FOLDER
from shardwright.read.verify_store import verify_store
from shardwright.repack.jobs.pack_shard import pack_shard
from shardwright.repack.runtime.throttle import Throttle
from shardwright.repack.source_shard import SourceShard
from shardwright.repack.unknown_bytes import unknown_bytes
from shardwright.shard.shard_sums import ShardSums
from shardwright.storage.files import NO_FILE, FileIdentity

from .arrays import contents, encoded, make_array

KINDS = {
    "index at the end": {},
    "index at the start": {"index": "start"},
    "no checksum of the index": {"index": "start", "index_checksum": False},
    "inner checksums": {"chunk_checksum": True},
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
