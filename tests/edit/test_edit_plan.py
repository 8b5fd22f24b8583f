"""Random edits of random shards, by every strategy: the file that results is read by a small reader of its
own and compared with a dictionary."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.disk.files import data_ranges
from shardwright.model.errors import StrategyError
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit.edit_plan import (
    STRATEGIES,
    EditPlan,
    ShardFacts,
    common,
    meets,
    minus,
    plan_edit,
    union,
    unused_bytes,
)
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.source_shard import SourceShard
from shardwright.rework.unknown_bytes import unknown_bytes
from shardwright.shard.index import EMPTY, LITTLE_ENDIAN, LITTLE_ENDIAN_CRC32C, ShardIndex, empty_index

from .arrays import contents, encoded, make_array, put_slots

CHUNKS = 6
NOISE = st.one_of(st.none(), st.integers(0, 256))  # None: erased
EDITS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, CHUNKS - 1), NOISE, min_size=1, max_size=4),
        st.sampled_from(STRATEGIES),
        st.sampled_from((0.0, 0.25, 1.0)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    edits=EDITS,
    first=st.dictionaries(st.integers(0, CHUNKS - 1), st.integers(0, 256)),
    place=st.sampled_from(("start", "end")),
    checked=st.booleans(),
    slots=st.booleans(),
    recorded=st.booleans(),
    inner=st.booleans(),
)
def test_any_edits_make_the_shard_that_a_dictionary_makes(
    edits, first, place, checked, slots, recorded, inner
):
    folder = Path(tempfile.mkdtemp())
    try:
        kind = {"index": place, "index_checksum": checked, "recorded": recorded, "chunk_checksum": inner}
        array = make_array(folder / "a", **kind)
        model = {number: encoded(array, number, noise) for number, noise in first.items()}
        if slots and model:
            put_slots(array, model, 0, 0)
        elif model:
            edit_shard(array, (0, 0), model)
        for version, (wanted, strategy, max_unused) in enumerate(edits):
            most_unused = max(max_unused, share_that_is_unused(array))
            chunks = {
                n: None if noise is None else encoded(array, version + 10, noise)
                for n, noise in wanted.items()
            }
            try:
                report = edit_shard(array, (0, 0), chunks, strategy=strategy, max_unused=max_unused)
            except StrategyError:
                assert strategy not in ("auto", "rewrite")
            else:
                model = {n: data for n, data in {**model, **chunks}.items() if data is not None}
                assert_as_reported(array, report, strategy, most_unused)
            assert contents(array, 0, 0) == model
        assert not verify_store(array.path).problems
    finally:
        shutil.rmtree(folder)


def share_that_is_unused(array):
    """Without holes."""
    path = array.path / "c/0/0"
    if not path.exists():
        return 0.0
    with SourceShard(array, (0, 0)) as source:
        unused = ShardFacts(array.index, source.index.entries, source.file.nbytes).unused
        data = list(data_ranges(source.file.descriptor, 0, source.file.nbytes))
        return sum(stop - start for start, stop in common(unused, data)) / source.file.nbytes


def assert_as_reported(array, report, strategy, most_unused):
    path = array.path / "c/0/0"
    if not path.exists():
        assert (report.file_bytes, report.unused_bytes) == (0, 0)
        return
    assert report.strategy == strategy or strategy == "auto"
    with SourceShard(array, (0, 0)) as source:
        assert unknown_bytes(source, source.pack_plan("row_major"), lambda _: None) is None
        live = {tuple(entry) for entry in source.index.entries.tolist() if entry[0] != EMPTY}
    unused = path.stat().st_size - array.index_bytes - sum(nbytes for _, nbytes in live)
    assert (report.file_bytes, report.unused_bytes) == (path.stat().st_size, unused)
    if strategy == "auto" and report.bytes_written:
        assert share_that_is_unused(array) <= most_unused


def facts(*chunks, index="end", file_bytes=None, checked=True, **more):
    """A shard of chunks (offset, bytes), None for absent ones."""
    codec = LITTLE_ENDIAN_CRC32C if checked else LITTLE_ENDIAN
    shard_index = ShardIndex(len(chunks), index, codec)
    entries = empty_index(len(chunks))
    for number, chunk in enumerate(chunks):
        if chunk is not None:
            entries[number] = chunk
    end = max((offset + nbytes for offset, nbytes in filter(None, chunks)), default=0)
    return ShardFacts(shard_index, entries, file_bytes or end + shard_index.behind_bytes, **more)


def plan_of(shard, sizes, strategy="auto", max_unused=0.25):
    return plan_edit(shard, sizes, strategy, max_unused)


def test_a_chunk_may_grow_over_the_gap_behind_it_and_no_further():
    shard = facts((0, 100), (150, 100), None)
    assert plan_of(shard, {0: 150}, "in_place").offsets == {0: 0}
    with pytest.raises(StrategyError, match="room for 150 bytes"):
        plan_of(shard, {0: 151}, "in_place")
    with pytest.raises(StrategyError, match="room for 100 bytes"):
        plan_of(shard, {1: 101}, "in_place")
    unknown = facts((0, 100), (150, 100), are_gaps_free=False)
    with pytest.raises(StrategyError, match="room for 100 bytes"):
        plan_of(unknown, {0: 101}, "in_place")


def test_slots_stay_slots_unless_the_edit_wastes_more():
    """Of 64 KiB each, half filled; their tails are holes, or are not."""
    slots = [(n * 65536, 30000) for n in range(64)]
    tails = tuple((n * 65536 + 32768, (n + 1) * 65536) for n in range(64))
    assert plan_of(facts(*slots), {3: 30000}).strategy == "in_place"
    assert plan_of(facts(*slots), {3: 30001}).strategy == "in_place"
    assert plan_of(facts(*slots), {3: 29999}).strategy == "rewrite"
    assert plan_of(facts(*slots, holes=tails), {3: 29999}).strategy == "in_place"
    assert plan_of(facts(*slots, holes=tails), dict.fromkeys(range(10))).strategy == "in_place"
    assert plan_of(facts(*slots, holes=tails), dict.fromkeys(range(40))).strategy == "rewrite"
    left = plan_of(facts(*slots, holes=tails), {3: 40000}).after.holes
    assert left[3] == (3 * 65536 + 40960, 4 * 65536), "what is written into a hole takes whole pages"


def test_chunks_that_share_bytes_are_not_overwritten():
    shard = facts((0, 100), (0, 100), (40, 200), (300, 10))
    for number in (0, 1, 2):
        with pytest.raises(StrategyError, match="shares bytes"):
            plan_of(shard, {number: 10}, "in_place")
    assert plan_of(shard, {3: 10}, "in_place").offsets == {3: 300}
    after = plan_of(shard, {0: None}, "in_place").after
    assert unused_bytes(after) == 60, "the other chunk still has the bytes of the erased one"


def test_gaps_are_filled_longest_chunk_first():
    shard = facts((50, 50), (200, 50), (300, 50), None)
    assert plan_of(shard, {0: 40, 3: 100}, "gap").offsets == {3: 100, 0: 0}
    with pytest.raises(StrategyError, match="no gap has room for the 101 bytes"):
        plan_of(shard, {3: 101}, "gap")
    assert plan_of(facts((0, 10), index="start", file_bytes=200), {0: 50}, "gap").offsets


@pytest.mark.parametrize("place", ["start", "end"])
def test_what_is_appended_lies_behind_everything(place):
    start = 36 if place == "start" else 0
    shard = facts((start, 100), (start + 100, 50), index=place)
    plan = plan_of(shard, {1: 70, 0: 20}, "append")
    assert plan.offsets == {0: shard.file_bytes, 1: shard.file_bytes + 20}
    assert plan.after.file_bytes == shard.file_bytes + 90 + (36 if place == "end" else 0)
    assert plan.retired == ((150, 186) if place == "end" else None)


def test_a_reason_why_the_file_must_not_change_rules_out_all_but_a_new_file():
    shard = facts((0, 100), (100, 100), unchangeable="it is frozen")
    assert plan_of(shard, {0: None}).strategy == "rewrite"
    with pytest.raises(StrategyError, match="it is frozen") as caught:
        plan_of(shard, {0: None}, "append")
    assert caught.value.expected == "strategy rewrite"


def test_a_new_file_is_taken_where_it_costs_no_more_than_a_journal():
    shard = facts(*((i * 1000, 1000) for i in range(8)))
    assert plan_of(shard, {0: 1000}).strategy == "in_place"
    assert plan_of(shard, dict.fromkeys(range(3), 1000)).strategy == "in_place"
    assert plan_of(shard, dict.fromkeys(range(4), 1000)) == EditPlan("rewrite", {}, None)


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))).map(union)


@given(RANGES, RANGES, st.integers(0, 39), st.integers(1, 20))
def test_the_arithmetic_of_ranges(one, other, start, length):
    def points(ranges):
        return set(np.concatenate([np.arange(a, b) for a, b in ranges]).tolist() if ranges else [])

    assert points(minus(one, other)) == points(one) - points(other)
    assert points(common(one, other)) == points(one) & points(other)
    assert points(union([*one, *other])) == points(one) | points(other)
    place = (start, start + length)
    assert meets(place, one) == bool(points([place]) & points(one))
