"""Readers far away, for whom a request costs more than bytes: what zarr-python asks for at its default
settings, ten chunks at a time, takes few requests, over HTTP and of a bucket of a real S3 server."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from aiohttp import web
from tests.harness.event_loop import sync
from tests.harness.plain_server import PlainServer
from tests.repack.conftest import bucket_url, object_store  # noqa: F401  (fixtures)
from zarr.buffer import default_buffer_prototype

import shardwright as sw
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read import box_reader, live_sealed
from shardwright.read.zarr_store import _Box
from shardwright.remote import object_shard
from shardwright.remote.object_path import _threads
from shardwright.remote.object_shard import ObjectRanges, ShardSize
from shardwright.remote.objects import Objects, connect_bucket
from shardwright.rework.chunks import shard_scheduler
from shardwright.rework.chunks.shard_scheduler import ShardScheduler

from .chunked_stores import FileServer, buffer, get, get_many

CHUNKS, CHUNK = (12, 16), (10, 10)  # in each of two shards
SHARD = tuple(n * c for n, c in zip(CHUNKS, CHUNK, strict=True))
INDEX_BYTES = 192 * 16 + 4
VALUES = np.random.default_rng(3).integers(0, 1 << 16, (2 * SHARD[0], SHARD[1]), np.uint16)
LONGER = 10_000  # bytes of coalescing: a shard, of 42 kB, has more
KEYS = [f"c/{i}/{j}" for i in range(CHUNKS[0]) for j in range(CHUNKS[1])]  # of the first shard
READS = {"one chunk": np.s_[:10, :10], "36 chunks": np.s_[:60, :60], "all 192": np.s_[: SHARD[0]]}


def write(folder, values=VALUES):
    array = zarr.create_array(
        folder,
        shape=values.shape,
        chunks=CHUNK,
        shards=SHARD,
        dtype=values.dtype,
        compressors=None,
        overwrite=True,
    )
    array[...] = values
    return folder


def put(folder, url):
    """As another program does."""
    for path in filter(Path.is_file, folder.rglob("*")):
        obstore.put(connect_bucket(url), path.relative_to(folder).as_posix(), path.read_bytes())


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "served")


@pytest.fixture
def server(folder):
    with FileServer(folder) as server:
        yield server


@pytest.fixture(params=["s3", "http"])
def url(request, folder):
    if request.param == "s3":
        url = request.getfixturevalue("bucket_url")
        put(folder, url)
        return url
    return request.getfixturevalue("server").url


@pytest.fixture
def asked(monkeypatch):
    """The requests for shards: key, what is asked for. A moment is long, so that none depends on the time."""
    requests: list[tuple[str, Any]] = []
    request = Objects.get

    def noted(self, key, options):
        if not key.endswith("zarr.json"):
            requests.append(("/".join(key.split("/")[-3:]), options["range"]))
        return request(self, key, options)

    monkeypatch.setattr(Objects, "get", noted)
    monkeypatch.setattr(shard_scheduler, "KEPT_S", 1e9)
    return requests


def chunk(number, values=VALUES):
    i, j = divmod(number, CHUNKS[1])
    return values[10 * i : 10 * i + 10, 10 * j : 10 * j + 10].tobytes()


@pytest.mark.parametrize("read", READS)
def test_a_short_shard_takes_one_request(url, asked, read):
    image = zarr.open_array(sw.ChunkStore(url, "r"), mode="r")
    np.testing.assert_array_equal(image[READS[read]], VALUES[READS[read]])
    assert asked == [("c/0/0", {"suffix": 1 << 20})]
    asked.clear()
    np.testing.assert_array_equal(zarr.open_array(sw.open(url), mode="r")[READS[read]], VALUES[READS[read]])
    assert asked == [("c/0/0", {"suffix": 1 << 20})]


READERS = {"open": lambda url: zarr.open_array(sw.open(url), mode="r"), "open_array": sw.open_array}


@pytest.fixture
def longer(monkeypatch):
    """The shards count as long ones, of which several ranges are asked for, by a machine of one processor."""
    monkeypatch.setattr(live_sealed, "WHOLE_BYTES", LONGER)
    monkeypatch.setattr(box_reader, "REMOTE_BATCH_BYTES", 8_000)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def is_range(wanted):
    return isinstance(wanted, tuple)


@pytest.fixture
def hold_ranges(monkeypatch):
    """A call with a number answers no request for a range before so many were made."""
    get_object = Objects.get

    def hold(number):
        all_of_them = threading.Barrier(number, timeout=60)

        def held(self, key, options):
            if not key.endswith("zarr.json") and is_range(options["range"]):
                all_of_them.wait()
            return get_object(self, key, options)

        monkeypatch.setattr(Objects, "get", held)

    return hold


@pytest.mark.usefixtures("longer")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("reader", READERS)
def test_a_longer_shard_takes_two_rounds(url, asked, hold_ranges, reader, read):
    """Its index, and ranges, of which all are asked for before one has come."""
    image = READERS[reader](url)
    np.testing.assert_array_equal(image[READS[read]], VALUES[READS[read]])
    assert asked[0] == ("c/0/0", {"suffix": INDEX_BYTES})
    ranges = [wanted for _, wanted in asked[1:]]
    assert all(map(is_range, ranges))
    assert len(ranges) >= {"one chunk": 1, "36 chunks": 2, "all 192": 5}[read]
    in_order = pairwise(sorted(ranges))
    assert all(one[1] <= another[0] for one, another in in_order), "no byte comes twice"
    del image  # and its view
    hold_ranges(len(ranges))
    np.testing.assert_array_equal(READERS[reader](url)[READS[read]], VALUES[READS[read]])


@pytest.mark.usefixtures("longer")
def test_ranges_that_are_asked_for_together_are_of_one_state(url, folder, tmp_path, monkeypatch):
    """The shard is replaced after two of them were answered."""
    other = write(tmp_path / "other", REPLACED)
    get_object, numbers = Objects.get, count(1)

    def get_after(self, key, options):
        if not key.endswith("zarr.json") and is_range(options["range"]) and next(numbers) == 3:
            (other / "c/0/0").replace(folder / "c/0/0")
            if url.startswith("s3"):
                put(folder, url)
        return get_object(self, key, options)

    monkeypatch.setattr(Objects, "get", get_after)
    np.testing.assert_array_equal(sw.open_array(url)[: SHARD[0]], REPLACED[: SHARD[0]])


@pytest.mark.usefixtures("longer")
def test_an_error_of_a_range_that_was_asked_for_ahead_is_raised(url, monkeypatch):
    get_object, numbers = Objects.get, count(1)

    def fail(self, key, options):
        if not key.endswith("zarr.json") and is_range(options["range"]) and next(numbers) >= 3:
            raise StorageError("no route to the server")
        return get_object(self, key, options)

    image = sw.open_array(url)
    with monkeypatch.context() as patched:
        patched.setattr(Objects, "get", fail)
        with pytest.raises(StorageError, match="no route"):
            image[: SHARD[0]]
    np.testing.assert_array_equal(image[: SHARD[0]], VALUES[: SHARD[0]])


@pytest.fixture
def held(monkeypatch):
    """The bytes that are asked for and not yet taken, after each time."""
    sizes = [0]
    ask = ObjectRanges.ask

    def noted(self, version, bounds):
        nbytes, answers = sum(stop - start for start, stop in bounds), ask(self, version, bounds)
        sizes.append(sizes[-1] + nbytes)

        def taken():
            sizes.append(sizes[-1] - nbytes)
            return answers()

        return taken

    monkeypatch.setattr(ObjectRanges, "ask", noted)
    return sizes


@pytest.mark.usefixtures("longer")
@pytest.mark.parametrize(("batch_bytes", "chunk_bytes"), [(1_000, 200), (50, 200), (10, 200)])
def test_what_is_asked_for_ahead_is_bounded(server, held, monkeypatch, batch_bytes, chunk_bytes):
    """Also of chunks that are longer than a batch is to be."""
    monkeypatch.setattr(box_reader, "REMOTE_BATCH_BYTES", batch_bytes)
    np.testing.assert_array_equal(sw.open_array(server.url)[: SHARD[0]], VALUES[: SHARD[0]])
    ahead_bytes = box_reader.BATCHES_AHEAD * batch_bytes
    assert ahead_bytes // 2 < max(held) <= ahead_bytes + max(batch_bytes, chunk_bytes)
    assert held[-1] == 0, "nothing is asked for in vain"


@pytest.fixture
def batches(monkeypatch):
    """The numbers of chunks that were read together."""
    counts = []
    read_chunks = ShardScheduler.read_chunks

    def counted(self, ref, wanted, *, sure=False):
        counts.append(len(wanted))
        return read_chunks(self, ref, wanted, sure=sure)

    monkeypatch.setattr(ShardScheduler, "read_chunks", counted)
    return counts


@pytest.mark.parametrize(("read", "groups"), [("one chunk", 1), ("36 chunks", 4), ("all 192", 20)])
def test_a_longer_shard_takes_one_round_for_each_group(url, asked, batches, read, groups):
    """And one for its index."""
    image = zarr.open_array(sw.ChunkStore(url, "r", coalesce_bytes=LONGER), mode="r")
    np.testing.assert_array_equal(image[READS[read]], VALUES[READS[read]])
    assert len(batches) == groups
    assert [what for _, what in asked if "suffix" in what] == [{"suffix": INDEX_BYTES}]
    assert len(asked) <= 1 + 2 * groups, "ranges of a group come side by side"


def test_what_is_asked_for_in_one_turn_of_the_loop_is_one_batch(server, batches):
    async def read(store):
        asked = [store.get(key, default_buffer_prototype()) for key in [*KEYS[:9], "zarr.json", "none"]]
        return [None if data is None else data.to_bytes() for data in await asyncio.gather(*asked)]

    with sw.ChunkStore(server.url, "r") as store:
        *found, document, nothing = sync(read(store))
    assert found == [chunk(i) for i in range(9)]
    assert document.startswith(b"{")
    assert nothing is None
    assert batches == [9]


def test_a_call_that_is_cancelled_takes_no_other_with_it(server):
    async def read(store):
        tasks = [asyncio.ensure_future(store.get(key, default_buffer_prototype())) for key in KEYS[:3]]
        await asyncio.sleep(0)  # all have begun
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with sw.ChunkStore(server.url, "r") as store:
        first, second, third = sync(read(store))
        assert isinstance(second, asyncio.CancelledError)
        assert [first.to_bytes(), third.to_bytes()] == [chunk(0), chunk(2)]
        assert get(store, KEYS[1]) == chunk(1)


def test_calls_of_a_turn_that_were_all_cancelled_leave_nothing_behind(server):
    async def read(store):
        tasks = [asyncio.ensure_future(store.get(key, default_buffer_prototype())) for key in KEYS[:3]]
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # the one that answers them, too
            task.cancel()
        await asyncio.sleep(0)
        found = await store.get(KEYS[3], default_buffer_prototype())
        return found.to_bytes(), await asyncio.gather(*tasks, return_exceptions=True)

    with sw.ChunkStore(server.url, "r") as store:
        found, others = asyncio.run(read(store))
        assert found == chunk(3)
        assert {type(other) for other in others} == {asyncio.CancelledError}
        assert not store._gets._groups


def test_loops_of_several_threads_read_one_store(server):
    """Each loop ends with its reads, and another one follows it."""

    async def read(store, keys):
        found = await asyncio.gather(*(store.get(key, default_buffer_prototype()) for key in keys))
        return [data.to_bytes() for data in found]

    def run(thread):
        for start in range(thread, 40, 4):
            found = asyncio.run(read(store, KEYS[start : start + 5]))
            assert found == [chunk(i) for i in range(start, start + 5)]

    with sw.ChunkStore(server.url, "r") as store, ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(4)))


def test_an_error_is_that_of_its_own_call(server, folder):
    for name in ("good", "short", "denied"):
        write(folder / name)
    (folder / "zarr.json").write_bytes(b'{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    (folder / "short/c/0/0").write_bytes(b"short")

    def deny(request):
        if request.path == "/denied/zarr.json":
            raise web.HTTPForbidden

    async def read(store):
        names = ("good", "short", "denied")
        asked = [store.get(f"{name}/c/0/0", default_buffer_prototype()) for name in names]
        return await asyncio.gather(*asked, return_exceptions=True)

    server.before = deny
    with sw.ChunkStore(server.url, "r") as store:
        good, short, denied = sync(read(store))
    assert good.to_bytes() == chunk(0)
    assert isinstance(short, ShardFormatError)
    assert isinstance(denied, StorageError)


REPLACED = VALUES ^ 1


def test_what_is_kept_answers_once_and_for_a_moment(url, folder, asked, monkeypatch):
    with sw.ChunkStore(url, "r") as store:
        assert get_many(store, KEYS[:2]) == [chunk(0), chunk(1)]
        write(folder, REPLACED)
        if url.startswith("s3"):
            put(folder, url)
        assert get(store, KEYS[2]) == chunk(2), "of the state that the first ones have"
        assert len(asked) == 1
        assert get_many(store, [KEYS[1], KEYS[3]]) == [chunk(1, REPLACED), chunk(3, REPLACED)]
        assert len(asked) == 2, "the other state came with the answer that it is another one"
        write(folder)
        if url.startswith("s3"):
            put(folder, url)
        monkeypatch.setattr(shard_scheduler, "KEPT_S", -1)
        assert get(store, KEYS[4]) == chunk(4)
        assert len(asked) == 3


def test_a_chunk_that_is_asked_for_again_is_not_sent_again(server, asked):
    with sw.ChunkStore(server.url, "r") as store:
        get_many(store, KEYS[:2])
        answers = []
        get_object = Objects.get

        def noted(self, key, options):
            answers.append(get_object(self, key, options))
            return answers[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Objects, "get", noted)
            assert get_many(store, KEYS[:2]) == [chunk(0), chunk(1)]
        assert answers == [None], "304: it is what the caller has"


def test_absent_chunks_of_a_known_index_cost_nothing_at_first(server, folder, asked):
    values = VALUES.copy()
    values[:10, 10:] = 0  # fill
    write(folder, values)
    with sw.ChunkStore(server.url, "r", coalesce_bytes=LONGER) as store:
        assert get_many(store, KEYS[:2]) == [chunk(0), None]
        asked.clear()
        assert get_many(store, KEYS[2:16]) == [None] * 14
        assert asked == []
        assert get_many(store, KEYS[2:4]) == [None] * 2
        assert len(asked) == 1


def test_what_is_kept_is_bounded(server, asked):
    with sw.ChunkStore(server.url, "r", index_cache_bytes=50_000) as store:  # a shard and a bit
        get(store, "c/0/0")
        get(store, "c/12/0")  # the other shard
        assert get(store, "c/12/1") == VALUES[120:130, 10:20].tobytes(), "kept"
        assert get(store, KEYS[1]) == chunk(1), "asked for again, since its shard had to go"
        assert [key for key, _ in asked] == ["c/0/0", "c/1/0", "c/0/0"]


def test_nothing_is_read_from_what_was_kept_before_our_own_change(bucket_url, folder, asked):  # noqa: F811
    """Also by another store of this process, and of a chunk that was not asked for yet."""
    put(folder, bucket_url)
    with sw.ChunkStore(bucket_url) as store, sw.ChunkStore(bucket_url, "r") as other:
        live = zarr.open_array(sw.open(bucket_url), mode="r")
        for reader in (store, other):
            assert get(reader, KEYS[0]) == chunk(0)
        live.store_path.store.find("c/0/0").read(None)
        changes = {KEYS[0]: REPLACED, KEYS[5]: REPLACED}
        sync(store.set_many((key, buffer(chunk(KEYS.index(key), REPLACED))) for key in changes))
        for reader in (store, other):
            assert get_many(reader, [KEYS[5], KEYS[6]]) == [chunk(5, REPLACED), chunk(6)]
        np.testing.assert_array_equal(live[:10, 50:60], REPLACED[:10, 50:60])
        sync(other.with_read_only(False).delete_dir("c"))
        assert get_many(other, [KEYS[7]]) == [None]


def test_the_next_shard_is_expected_to_be_as_long_as_the_last_one(server, asked):
    with sw.ChunkStore(server.url, "r", coalesce_bytes=11_000) as store:  # a quarter of a shard
        get(store, KEYS[0])
        get(store, "c/12/0")
    edges = [what["suffix"] for _, what in asked if "suffix" in what]
    assert edges == [11_000, INDEX_BYTES]
    assert ShardSize.before_the_first(1000, 4000).is_short
    assert not ShardSize.before_the_first(1000, 4001).is_short


def test_a_short_shard_whose_index_came_alone_is_fetched_by_one_more_request(server, asked):
    with sw.ChunkStore(server.url, "r") as store:
        get(store, "zarr.json")
        store._backend._sizes[Path()] = ShardSize(1 << 20, is_short=False)
        get(store, KEYS[0])
        assert get_many(store, KEYS[5:9]) == [chunk(i) for i in range(5, 9)]
        get(store, "c/12/0")
    assert asked == [
        ("c/0/0", {"suffix": INDEX_BYTES}),
        ("c/0/0", (0, 192 * 200)),
        ("c/1/0", {"suffix": 1 << 20}),
    ]


def test_a_list_of_keys_takes_indexes_alone(server, asked):
    with sw.ChunkStore(server.url, "r") as store:
        assert sync(store.exists(KEYS[0]))
    assert asked == [("c/0/0", {"suffix": INDEX_BYTES})]


def test_a_long_range_comes_in_parts_side_by_side(folder, monkeypatch):
    monkeypatch.setattr(object_shard, "RANGE_BYTES", 192 * 100)
    both, met = threading.Barrier(2, timeout=60), []

    with PlainServer(folder) as server:
        objects = Objects(server.url)
        shard = ObjectRanges(objects, "c/0/0", _threads)
        assert shard.nbytes == 192 * 200 + INDEX_BYTES

        def together(method, _path):
            if method == "GET":
                met.append(both.wait())

        server.answer = together
        (data,) = shard.ranges(shard.version, [(0, 192 * 200)])
        assert bytes(data) == (folder / "c/0/0").read_bytes()[: 192 * 200]
        assert sorted(met) == [0, 1]
        asked = [wanted for method, _, wanted in server.asked if method == "GET"]
    assert sorted(asked) == ["bytes=0-19199", "bytes=19200-38399"]


@pytest.mark.parametrize("coalesce_bytes", [1 << 20, LONGER])
def test_an_answer_that_is_too_short_is_an_error(server, monkeypatch, coalesce_bytes):
    request = Objects.get

    def cut(self, key, options):
        data, answer = request(self, key, options)
        return data[:-1], answer

    monkeypatch.setattr(Objects, "get", cut)
    with (
        sw.ChunkStore(server.url, "r", coalesce_bytes=coalesce_bytes) as store,
        pytest.raises(ShardFormatError, match="ends too early"),
    ):
        get(store, KEYS[0])


def test_a_server_without_ranges_is_told_as_such(folder, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "0")
    with (
        PlainServer(folder, has_ranges=False) as server,
        sw.ChunkStore(server.url, "r") as store,
        pytest.raises(StorageError, match="answers requests for ranges"),
    ):
        get(store, KEYS[0])


@pytest.mark.parametrize("has_suffixes", [True, False])
def test_a_server_without_etags_is_read_whole_too(folder, has_suffixes, asked):
    """Of a shard that is replaced within the second, by one of its length, no two states are mixed."""
    with PlainServer(folder, has_suffixes=has_suffixes) as server, sw.ChunkStore(server.url, "r") as store:
        assert get_many(store, KEYS[:7]) == [chunk(i) for i in range(7)]
        before = (folder / "c/0/0").stat()
        write(folder, REPLACED)
        os.utime(folder / "c/0/0", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert get(store, KEYS[7]) == chunk(7), "of the state that the first ones have"
        assert get_many(store, KEYS[::7]) == [chunk(i, REPLACED) for i in range(0, 192, 7)]


SHARDS = np.arange(36 * 4 * 64 * 64, dtype=np.uint16).reshape(36 * 4, 64, 64)


@pytest.fixture
def many(tmp_path):
    path = tmp_path / "many"
    zarr.create_array(
        path, shape=SHARDS.shape, chunks=(1, 32, 64), shards=(4, 64, 64), dtype="uint16", compressors=None
    )[...] = SHARDS
    with PlainServer(path) as server:
        yield server


def test_shards_that_zarr_python_asks_for_together_are_read_together(many):
    """Ten at a time: a look at zarr.json, and a request for each shard, side by side."""
    image = zarr.open_array(sw.open(many.url), mode="r")
    many.asked.clear()
    np.testing.assert_array_equal(image[...], SHARDS)
    looks = [path for _, path, _ in many.asked if path.endswith("zarr.json")]
    assert len(many.asked) - len(looks) == 36
    assert len(looks) <= 18, "of 36 shards"


def test_a_shard_that_cannot_be_read_takes_no_other_with_it(many, tmp_path):
    (tmp_path / "many/c/1/0/0").write_bytes(b"no shard")
    store = sw.open(many.url)
    zarr.open_array(store, mode="r")
    boxes = [_Box(f"c/{i}/0/0", (0, 0, 0), (4, 64, 64), (4, 64, 64), (1, 32, 64)) for i in (0, 1, 2)]
    others = _Box("c/3/0/0", (1, 0, 0), (2, 64, 64), (4, 64, 64), (1, 32, 64))

    async def read():
        asked = [store.read_box(box) for box in (*boxes, others)]
        return await asyncio.gather(*asked, return_exceptions=True)

    first, bad, second, other = sync(read())
    np.testing.assert_array_equal(first, SHARDS[:4])
    np.testing.assert_array_equal(second, SHARDS[8:12])
    np.testing.assert_array_equal(other, SHARDS[13:14])
    assert isinstance(bad, ShardFormatError)


def test_an_array_of_another_type_is_not_given_as_the_one_that_was_opened(server, folder):
    """Nor its values converted, where the view has met the new array meanwhile."""
    store = sw.open(server.url)
    image = zarr.open_array(store, mode="r")
    write(folder, VALUES.astype("float32") + 0.5)
    assert store.view.array("").stored.dtype == np.float32
    with pytest.raises(ShardFormatError):
        image[...]


def test_one_box_may_be_asked_for_twice(many):
    store = sw.open(many.url)
    zarr.open_array(store, mode="r")
    box = _Box("c/1/0/0", (0, 0, 0), (4, 64, 64), (4, 64, 64), (1, 32, 64))

    async def read():
        return await asyncio.gather(store.read_box(box), store.read_box(box))

    for found in sync(read()):
        np.testing.assert_array_equal(found, SHARDS[4:8])


def test_of_more_shards_than_are_kept_none_comes_whole(many, monkeypatch):
    monkeypatch.setattr(live_sealed, "MOST_OPEN_SHARDS", 3)
    image = sw.open_array(many.url)
    many.asked.clear()
    np.testing.assert_array_equal(image[:16, :1], SHARDS[:16, :1])
    first = [wanted for _, path, wanted in many.asked if "/c/" in path][:4]
    assert first == ["bytes=-132"] * 4


def test_files_of_one_batch_are_asked_for_side_by_side(many):
    """Also those whose indexes are known: a plane through many shards is one round."""
    image = sw.open_array(many.url)
    image[:8]
    both, met = threading.Barrier(2, timeout=60), []

    def together(_method, path):
        if "/c/" in path:
            met.append(both.wait())

    many.answer = together
    np.testing.assert_array_equal(image[3:5, :3], SHARDS[3:5, :3])
    assert sorted(met) == [0, 1]


def test_an_edge_is_for_the_read_that_asked_for_it(server, folder, asked):
    """Else a later one would get it unasked."""
    image = sw.open_array(server.url)
    image._view.locate("", (0, 0), np.array([0]))
    write(folder, REPLACED)
    np.testing.assert_array_equal(image[:10, :10], REPLACED[:10, :10])
    assert [what for _, what in asked] == [{"suffix": 1 << 20}, (0, 200), {"suffix": 1 << 20}]
