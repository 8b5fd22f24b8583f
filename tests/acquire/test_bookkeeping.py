"""Sequence set, slab table, limits and pool on their own."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.acquire.accounts import Accounts, SequenceSet
from shardwright.acquire.assembly import SlabTable
from shardwright.acquire.closed_shard_rows import REMEMBERED_HOLES, HoleMemory
from shardwright.acquire.limits import RUNTIME_BYTES, SLOW_TASK_BYTES, TASK_BYTES, Limits, least_ring_frames
from shardwright.acquire.verdicts import Stored
from shardwright.acquire.workers import WorkerPool
from shardwright.array.grid import Grid, Grids
from shardwright.array.spec import ArraySpec, Blosc, Dimension, Gzip, Zstd
from shardwright.codecs.parameters import CodecParameters
from shardwright.model.errors import BudgetError, ShardFormatError
from shardwright.shard.frame_record import record_dtype


@given(
    order=st.integers(0, 3000).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(0, 10**6), st.integers(1, 400))
    )
)
def test_sequence_set_equals_a_set(order):
    count, seed, step = order
    # shuffled within a window, so that it moves; batches of any size
    sequences = np.argsort(np.arange(count) + np.random.default_rng(seed).uniform(0, step, count))
    mark, model = SequenceSet(), set()
    for first in range(0, count, step):
        batch = sequences[first : first + step]
        mark.add(batch)
        mark.add(batch[: batch.size // 2])  # twice does no harm
        model |= set(batch.tolist())
        assert mark.value == next(i for i in range(count + 1) if i not in model)
        assert mark.stop == max(model) + 1
        assert mark.holds(np.arange(count + 3)).tolist() == [i in model for i in range(count + 3)]
        stop = count + 2
        assert [i for first, last in mark.missing(stop) for i in range(first, last + 1)] == [
            i for i in range(stop) if i not in model
        ]
    assert mark.value == count


def test_a_sequence_set_waits_for_the_first():
    mark = SequenceSet()
    mark.add(np.arange(1, 5000))
    assert mark.value == 0
    assert mark.missing(5000) == [(0, 0)]
    assert mark.missing(5003) == [(0, 0), (5000, 5002)]
    mark.add(np.zeros(0, np.int64))
    mark.add(np.array([0]))
    assert mark.value == 5000


@pytest.mark.parametrize("stop", [2**31, 2**63 - 1, 2**64])
def test_a_stop_that_no_camera_reaches_is_an_error(stop):
    mark = SequenceSet()
    mark.expect_up_to(stop)
    mark.add(np.arange(10))
    with pytest.raises(ShardFormatError, match="a sequence that cannot be; expected below 268435466"):
        mark.check_stop()


def test_a_stop_is_judged_by_all_that_was_added():
    mark = SequenceSet()
    mark.expect_up_to((1 << 28) + 10)
    with pytest.raises(ShardFormatError):
        mark.check_stop()
    mark.add(np.arange(10))
    mark.check_stop()


SEQUENCES = st.sets(st.integers(0, 40))


@given(seen=SEQUENCES, lost=st.lists(SEQUENCES, max_size=3), lost_stop=st.integers(0, 50))
def test_missing_frames_are_counted_as_they_are_judged(seen, lost, lost_stop):
    dimensions = [Dimension(name=name, count=None if name == "t" else 4, chunk_size=4) for name in "tyx"]
    accounts = Accounts(Grids((Grid.of(ArraySpec(dtype="uint8", dimensions=dimensions)),)))
    accounts.receive(*(np.array(sorted(seen), np.int64),) * 2)
    for some in lost:
        records = np.zeros(len(some), record_dtype(0))
        records["sequence"] = sorted(some)
        accounts.lose(records)
    accounts.lost_stop = lost_stop
    gone = set().union(*lost)
    missing = [number for number in range(max({-1} | seen | gone) + 1) if number not in seen]
    judged = [number < lost_stop or number in gone for number in missing]
    assert accounts.may_be_acknowledged(np.array(missing, np.int64)).tolist() == judged
    assert accounts.missing_acknowledged() == sum(judged)


@st.composite
def specs(draw):
    axes = draw(st.integers(0, 3))
    dims = [
        Dimension(
            name=f"a{i}",
            count=draw(st.integers(1, 20)) if i or draw(st.booleans()) else None,
            chunk_size=draw(st.integers(1, 8)),
            shard_size_chunks=draw(st.integers(1, 4)),
        )
        for i in range(axes)
    ]
    dims += [
        Dimension(
            name=n,
            count=draw(st.integers(1, 600)),
            chunk_size=draw(st.integers(1, 300)),
            shard_size_chunks=draw(st.integers(1, 4)),
        )
        for n in "yx"
    ]
    return ArraySpec(
        dtype=draw(st.sampled_from(["uint8", "uint16", "float64"])),
        dimensions=dims,
        codec=draw(st.sampled_from([None, Blosc(), Zstd(), Gzip()])),
        index_location=draw(st.sampled_from(["start", "end"])),
        chunk_checksum=draw(st.booleans()),
    )


@given(spec=specs(), threads=st.integers(1, 16), batch=st.integers(1, 100))
def test_limits_relations(spec, threads, batch):
    grid = Grid.of(spec)
    limits = Limits.derive(spec, threads=threads, batch_frames=batch)
    assert limits.ring_frames >= limits.held_frames + 2 + batch
    assert limits.ring_bytes == limits.ring_frames * limits.frame_bytes
    assert limits.rows > grid.open_slabs
    assert limits.open_shard_rows > grid.open_shard_rows
    assert limits.slot_bytes >= limits.chunk_bytes
    assert limits.slot_bytes % 4096 == 0
    assert limits.chunks_per_task >= 1
    assert limits.shard_file_bytes >= limits.slot_bytes + limits.index_bytes
    worker_bytes = limits.scratch_bytes + limits.context_bytes
    assert limits.context_bytes >= CodecParameters.of(spec, grid.chunk_bytes).context_bytes
    assert limits.memory_bytes >= RUNTIME_BYTES + limits.ring_bytes + threads * worker_bytes
    assert (
        limits.disk_reserved_bytes
        > limits.mapped_bytes
        >= 2 * limits.shard_files_per_shard_row * limits.slot_bytes
    )
    assert all(isinstance(v, int) and v >= 0 for v in limits.to_dict().values())
    least = least_ring_frames(Grids((grid,)), batch)
    assert Limits.derive(spec, threads=threads, batch_frames=batch, ring_frames=least).ring_frames == least
    with pytest.raises(
        BudgetError,
        match=f"ring_frames is too small for this chunking; expected at least "
        f"{least} frames; got {least - 1}",
    ):
        Limits.derive(spec, threads=threads, batch_frames=batch, ring_frames=least - 1)
    assert (
        Limits.derive(spec, threads=threads, batch_frames=batch, memory_bytes=limits.memory_bytes) == limits
    )
    with pytest.raises(
        BudgetError,
        match=f"expected at most {limits.memory_bytes - 1:,} bytes in all; got {limits.memory_bytes:,} bytes",
    ):
        Limits.derive(spec, threads=threads, batch_frames=batch, memory_bytes=limits.memory_bytes - 1)


@pytest.mark.parametrize(
    ("codec", "most_bytes"),
    [
        (None, TASK_BYTES),
        (Blosc(), TASK_BYTES),
        (Zstd(level=1), TASK_BYTES),
        (Blosc(cname="zstd", clevel=3), TASK_BYTES),
    ]
    + [
        (slow, SLOW_TASK_BYTES)
        for slow in (Zstd(level=9), Blosc(cname="zstd", clevel=9), Blosc(cname="zlib"), Gzip(level=1))
    ],
)
def test_a_task_holds_as_much_as_is_soon_done(codec, most_bytes):
    """Nothing interrupts it, and other acquisitions wait for its worker. A chunk is the least."""
    axes = [
        Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=8),
        Dimension(name="y", count=4096, chunk_size=256, shard_size_chunks=16),
    ]
    for width, chunk_bytes in ((4096, 2 * 256 * 4096), (65536, 2 * 256 * 65536)):
        spec = ArraySpec(
            dtype="uint16",
            dimensions=[*axes, Dimension(name="x", count=width, chunk_size=width)],
            codec=codec,
        )
        assert Limits.derive(spec, threads=4).chunks_per_task == max(1, most_bytes // chunk_bytes)


def test_the_hint_names_what_to_change(spec_of):
    with pytest.raises(
        BudgetError, match="A chunk is 16 frames deep: give it a smaller chunk_size, or raise the budget"
    ):
        Limits.derive(spec_of(chunk=16), threads=1, ring_frames=1)
    axes = [
        Dimension(name="t", count=None, chunk_size=4),
        Dimension(name="z", count=50, chunk_size=1),
        *spec_of().dimensions[-2:],
    ]
    with pytest.raises(
        BudgetError, match="50 slabs are open at once, because frames change their chunk on faster axes"
    ):
        Limits.derive(ArraySpec(dtype="uint8", dimensions=axes), threads=1, ring_frames=1)


BUDGET = RUNTIME_BYTES + (64 << 20)
TOO_LARGE = {  # axes as (count, chunk, shard in chunks), threads; what takes the memory
    "a deep chunk": ((None, 256, 1), (1024, 128, 8), 1, "the ring of"),
    "a wide frame": ((None, 1, 1), (8192, 8192, 1), 1, "the ring of"),
    "a wide chunk": ((None, 1, 1), (2048, 2048, 1), 8, "what 8 threads compress at once"),
    "a long shard": ((None, 1, 1 << 14), (512, 16, 32), 1, "the table of 16,777,216 chunks in each shard"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_does_not_fit_the_budget_is_refused_with_sizes_or_a_budget_that_do(name):
    (count, chunk, shard), (edge, tile, tiles), threads, what = TOO_LARGE[name]

    def derive(chunks, shards, memory_bytes: int) -> Limits:
        axes = zip("tyx", (count, edge, edge), chunks, shards, strict=True)
        dimensions = [Dimension(name=n, count=c, chunk_size=k, shard_size_chunks=s) for n, c, k, s in axes]
        spec = ArraySpec(dtype="uint16", dimensions=dimensions)
        return Limits.derive(spec, threads=threads, memory_bytes=memory_bytes)

    given = (chunk, tile, tile), (shard, tiles, tiles)
    with pytest.raises(BudgetError, match=rf"{what}.*\) does not fit the memory budget") as refused:
        derive(*given, BUDGET)
    hint = refused.value.hint
    budget_mib = int(re.search(r"A budget of ([\d,]+) MiB is enough", hint)[1].replace(",", ""))
    assert derive(*given, budget_mib << 20).memory_bytes > BUDGET
    if name.startswith("a wide"):  # two frames, or the tasks of eight threads, are larger
        assert "chunk_size" not in hint.split(". ")[-1]
        return
    sizes = re.search(r"chunk_size ([\d, ]+) with shard_size_chunks ([\d, ]+) along t, y, x need", hint)
    better = [map(int, each.split(", ")) for each in sizes.groups()]
    assert derive(*better, BUDGET).memory_bytes <= BUDGET


def test_a_ring_that_does_not_fit_is_refused_with_one_that_does(spec_of):
    with pytest.raises(BudgetError, match=r"ring_frames \d+ fits") as refused:
        Limits.derive(spec_of(), threads=1, ring_frames=1 << 20, memory_bytes=BUDGET)
    fits = int(refused.value.hint.split()[-2])
    assert fits > 1 << 16
    Limits.derive(spec_of(), threads=1, ring_frames=fits, memory_bytes=BUDGET)


def place(table, *positions):
    n = len(positions)
    statuses = np.zeros(n, np.uint8)
    records = np.zeros(n, record_dtype(0))
    result = table.place(
        0,
        np.array(positions, np.int64),
        np.arange(100, 100 + n),
        np.arange(8, 8 * n + 8, 8),
        records,
        statuses,
    )
    return result, statuses.tolist()


def test_slab_table_life_of_a_row(spec_of):
    table = SlabTable(Grids((Grid.of(spec_of(chunk=3)),)), rows=2, record_dtype=record_dtype(0))
    assert place(table, 0)[0] == (0, [], 0), "slab 0 has no row yet"
    assert table.open(0)
    assert table.open(1)
    assert not table.open(2), "no row left"
    (done, rows, missing), statuses = place(table, 0, 0, 4, 2, 1)
    assert (done, missing, statuses) == (5, -1, [0, 1, 0, 0, 0])
    (row,) = rows
    assert table.slab[row] == 0
    assert table.sequences[row].tolist() == [100, 104, 103]
    assert table.held_frames == 1
    assert table.oldest() == 1
    closed = table.close(1)
    assert table.filled(closed).tolist() == [False, True, False]
    assert place(table, 5)[0] == (0, [], 1), (
        "a closed slab takes no more frames although its row is not free yet"
    )
    table.free(row)
    assert table.open(2)
    assert table.filled(row).tolist() == [False] * 3
    assert table.oldest() == 2


def test_hole_memory_is_bounded():
    memory = HoleMemory()
    for slab in range(REMEMBERED_HOLES + 10):
        memory.remember(slab, np.array([True, False]) if slab % 2 else None)
    assert memory.stored(REMEMBERED_HOLES + 9, np.array([0, 1, 0])).tolist() == [
        Stored.FRAME,
        Stored.CLOSED,
        Stored.FRAME,
    ]
    assert memory.stored(REMEMBERED_HOLES + 8, np.array([0, 1])).tolist() == [Stored.NO_SLAB] * 2
    assert memory.stored(0, np.array([1])).tolist() == [Stored.FRAME], (
        "of those that were forgotten every frame is a duplicate"
    )
    assert len(memory._filled) == REMEMBERED_HOLES


def test_the_pool_runs_what_it_is_given_and_ends():
    pool = WorkerPool(2)
    pool.start()
    ran = threading.Semaphore(0)

    class Task:
        def run(self, state) -> None:
            assert state.scratch(100).size >= 100
            ran.release()

    line = pool.line()
    pool.put(line, [Task(), Task()])
    for _ in range(3):
        pool.put(line, [Task()])
    assert pool.alive()
    pool.stop()
    assert all(ran.acquire(blocking=False) for _ in range(5))
    assert pool.ended()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_death_in_the_pool_is_seen_and_the_others_go_on():
    pool = WorkerPool(2)
    pool.start()
    seen = threading.Event()

    class Deadly:
        def run(self, state) -> None:
            raise RuntimeError("dead")

    class Fine:
        def run(self, state) -> None:
            seen.set()

    pool.put(pool.line(), [Deadly(), Fine()])
    assert seen.wait(60)
    pool._threads[0].join(0)
    while pool.failure is None:
        threading.Event().wait(0.01)
    assert not pool.alive()
    pool.stop()
    assert pool.failure == "dead"
    assert pool.ended()


@pytest.mark.parametrize("threads", [0, -1])
def test_a_pool_needs_a_thread(threads):
    with pytest.raises(ValueError, match="at least 1"):
        WorkerPool(threads)
