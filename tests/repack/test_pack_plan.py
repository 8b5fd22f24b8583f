import dataclasses

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model.errors import ShardFormatError
from shardwright.rework.pack_plan import PackPlan
from shardwright.rework.source_shard import SourceShard
from shardwright.shard.chunk_order import ORDERS, chunk_order
from shardwright.shard.index import EMPTY, LITTLE_ENDIAN_CRC32C, empty_index
from shardwright.shard.sealed_shard import ReadIndex

SHARD = (0, 0, 0)


@pytest.fixture(scope="module")
def array(tmp_path_factory):
    """An array of 2x3x2 chunks of up to 4 KiB a shard; only its metadata is used."""
    import zarr

    path = tmp_path_factory.mktemp("array")
    zarr.create_array(path, shape=(8, 48, 32), shards=(8, 48, 32), chunks=(4, 16, 16), dtype="uint16")
    from shardwright.read.store import parse_array

    return parse_array(path)


@st.composite
def shards(draw):
    """(chunks in file order, gap before each, bytes of each, bytes after the last)"""
    chunks = draw(st.permutations(range(12)))[: draw(st.integers(0, 12))]
    gaps = draw(st.lists(st.integers(0, 5000), min_size=len(chunks), max_size=len(chunks)))
    sizes = draw(st.lists(st.integers(1, 4000), min_size=len(chunks), max_size=len(chunks)))
    return chunks, gaps, sizes


def entries_of(array, shard):
    entries, position = empty_index(12), array.index_bytes if array.index_location == "start" else 0
    for chunk, gap, nbytes in zip(*shard, strict=True):
        entries[chunk] = (position + gap, nbytes)
        position += gap + nbytes
    return entries, position


@given(shards(), st.sampled_from(ORDERS), st.sampled_from(["start", "end"]))
def test_chunks_follow_each_other_in_the_order_and_nothing_else_is_in_the_file(
    array, shard, order, index_location
):
    array = dataclasses.replace(array, index_location=index_location)
    entries, data_end = entries_of(array, shard)
    plan = PackPlan.of(array, SHARD, entries, order)
    packed = plan.entries()
    assert plan.chunks.tolist() == [
        chunk for chunk in chunk_order(order, array.shard_chunks) if chunk in shard[0]
    ]
    assert np.array_equal(packed["nbytes"], entries["nbytes"]), (
        "each chunk has its size, absent ones stay absent"
    )
    assert np.array_equal(packed["offset"] == EMPTY, entries["offset"] == EMPTY)
    live = np.sort(packed[packed["offset"] != EMPTY], order="offset")
    assert live["offset"].tolist() == (plan.data_start + np.cumsum([0, *live["nbytes"]])[:-1]).tolist(), (
        "no gap"
    )
    assert plan.file_bytes == sum(shard[2]) + array.index_bytes
    assert plan.gap_bytes == sum(shard[1])
    assert plan.index_offset == (0 if index_location == "start" else sum(shard[2]))
    assert not list(ReadIndex.of(array.index, None, plan.file_bytes, packed).faults())
    again = PackPlan.of(array, SHARD, packed, order)
    assert again.matches(plan.file_bytes)
    assert not again.matches(plan.file_bytes + 1), "something else is in the file"
    file_bytes = data_end + (array.index_bytes if index_location == "end" else 0)
    assert plan.matches(file_bytes) == (sum(shard[1]) == 0 and np.array_equal(packed, entries))


def test_chunks_that_share_bytes_are_written_apart(array):
    entries = empty_index(12)
    entries[2], entries[5], entries[6], entries[9] = (10, 100), (10, 100), (60, 100), (170, 5)
    plan = PackPlan.of(array, SHARD, entries, "row_major")
    assert plan.gap_bytes == 10 + 10
    assert plan.live_bytes == 305
    assert not plan.matches(175 + array.index_bytes)


def test_an_entry_that_cannot_be_is_named(array, tmp_path):
    entries = empty_index(12)
    entries[7] = (10, 500)
    entries[8] = (400, 0)
    array = dataclasses.replace(array, path=tmp_path)
    path = array.path / array.shard_key(SHARD)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(1000) + LITTLE_ENDIAN_CRC32C.encode(entries))
    with pytest.raises(ShardFormatError, match=r"chunk 1/1/0 of .*c/0/0/0: chunk has a size of 0"):
        SourceShard(array, SHARD)


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_another_index_has_other_checksums(array, index_location) -> None:
    """An index that ends in its own crc32c has one crc32c as a whole, whatever it says: another one that came
    back in its place would not be noticed."""
    array = dataclasses.replace(array, index_location=index_location)
    entries, _ = entries_of(array, (range(12), [0] * 12, range(1, 13)))
    plans = [PackPlan.of(array, SHARD, entries, order) for order in ("row_major", "column_major")]
    assert len({crc32c.crc32c(array.index.encode(plan.entries())) for plan in plans}) == 1
    indexes = set()
    for plan in plans:
        sizes, crcs = plan.segments(np.arange(12, dtype=np.uint32))
        assert (sizes.sum(), len(sizes)) == (plan.file_bytes, len(crcs))
        names = [plan.segment_name(i) for i in range(len(sizes))]
        of_index = ["the index" in name for name in names]
        assert of_index == (
            [True] * 2 + [False] * 12 if index_location == "start" else [False] * 12 + [True] * 2
        )
        indexes.add(tuple(crcs[of_index].tolist()))
    assert len(indexes) == 2
