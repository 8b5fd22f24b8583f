"""A store of chunks in a bucket of a real S3 server: shards are read by few requests and replaced on
condition, so that no writer undoes what another has done."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.harness.event_loop import sync
from tests.harness.writing import how
from tests.properties.readers import READERS
from tests.repack.conftest import bucket_url, object_store  # noqa: F401  (fixtures)
from tests.repack.moving_store import fetched

import shardwright as sw
from shardwright.model.errors import BudgetError, ShardChangedError, ShardFormatError, StorageError
from shardwright.read.verify_store import verify_store
from shardwright.remote.objects import Objects, connect_bucket
from shardwright.rework.chunks.byte_budget import ByteBudget
from shardwright.rework.chunks.object_backend import ObjectVersion

from .chunk_machine import ChunkMachine
from .chunked_stores import (
    PLAIN_BYTES,
    RANGES_AT_THE_END,
    buffer,
    document,
    documents,
    get,
    get_many,
    listed,
    sharding,
)

CHUNKS = [f"raw/c/{i}/{j}" for i in range(2) for j in range(2)]  # all of one shard
SHARD = "raw/c/0/0"


class Counted:
    """obstore, of which each call is listed; ``before`` is called with its name and arguments."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before: Any = lambda name, *args, **kwargs: None

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.before(name, *args, **kwargs)
            return getattr(obstore, name)(*args, **kwargs)

        return call

    def take_calls(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def url(bucket_url):  # noqa: F811
    """A place with the documents of ``chunked_stores``."""
    bucket = connect_bucket(bucket_url)
    for key, data in documents().items():
        if key != "around/zarr.json":
            bucket.put(key, data)
    return bucket_url


@pytest.fixture
def store(url):
    with sw.ChunkStore(url) as store:
        yield store


@pytest.fixture
def counted(monkeypatch):
    counted = Counted()
    monkeypatch.setattr(Objects, "_api", counted)
    return counted


def fill(store, value=1):
    """Sets the four chunks of a shard."""
    sync(store.set_many((key, buffer(bytes([value] * 6))) for key in CHUNKS))


def test_random_operations_do_as_the_memory_store_and_peers_read_the_shards(bucket_url, tmp_path):  # noqa: F811
    made = []

    class InBucket(ChunkMachine):
        def make_store(self):
            self._url = f"{bucket_url}/{len(made)}"
            made.append(self._url)
            for key, data in documents().items():
                if key != "around/zarr.json":
                    connect_bucket(self._url).put(key, data)
            return sw.ChunkStore(self._url)

        def folder(self):
            return fetched(self._url, tmp_path / str(len(made)))

    run_state_machine_as_test(InBucket, settings=settings(max_examples=5, stateful_step_count=15))


@pytest.mark.parametrize("data", [b"\1\2\3\4", b""])
def test_a_range_past_the_end_gives_what_it_gives_in_a_folder(store, tmp_path, data):
    with sw.ChunkStore(tmp_path) as folder:
        for place in (folder, store):
            place.set_sync("notes", buffer(data))
        for asked in RANGES_AT_THE_END:
            assert get(store, "notes", asked) == get(folder, "notes", asked), asked
            assert get(store, "none", asked) is None


def test_a_batch_takes_one_request_a_shard_and_two_of_a_longer_one(store, url, counted):
    fill(store)
    counted.take_calls()
    assert get_many(store, CHUNKS) == [b"\1" * 6] * 4
    assert counted.take_calls() == ["get"]
    with sw.ChunkStore(url, coalesce_bytes=0) as in_parts:
        assert get_many(in_parts, CHUNKS) == [b"\1" * 6] * 4
        assert counted.take_calls()[-2:] == ["get", "get"]
    assert get_many(store, CHUNKS[1:3]) == [b"\1" * 6] * 2
    assert counted.take_calls() == ["get"]
    keys = [f"raw/c/{i}/{j}" for i in range(4) for j in range(4)]
    get_many(store, keys)  # three shards that do not exist, and one that is known
    assert counted.take_calls() == ["get"] * 4


def test_a_new_shard_is_one_request_and_a_changed_one_is_read_and_put(store, counted):
    get(store, "raw/zarr.json")
    fill(store)  # of the record of the array, which has none, and the shard
    assert counted.take_calls()[-2:] == ["get", "put"]
    store.set_sync(CHUNKS[0], buffer(b"\2" * 6))
    assert counted.take_calls() == ["get", "put"]
    assert get_many(store, CHUNKS) == [b"\2" * 6, *[b"\1" * 6] * 3]


def test_an_erase_of_absent_chunks_puts_nothing(store, counted):
    fill(store)
    store.delete_sync(CHUNKS[0])
    counted.take_calls()
    store.delete_sync(CHUNKS[0])
    store.delete_sync("raw/c/3/3")
    assert "put" not in counted.take_calls()


def test_a_shard_that_is_replaced_between_index_and_ranges_is_read_again(url, counted):
    store, other = sw.ChunkStore(url, coalesce_bytes=0), sw.ChunkStore(url)
    fill(store)

    def replace(name, _store, key, *_, **kwargs):
        if "if_match" in kwargs.get("options", {}):
            counted.before = lambda *_, **__: None
            fill(other, 2)

    counted.before = replace
    assert get_many(store, CHUNKS) == [b"\2" * 6] * 4
    assert get_many(store, CHUNKS) == [b"\2" * 6] * 4


def test_two_writers_of_one_shard_lose_nothing(url):
    """Each sets its chunks and counts in a common one, through a store of its own."""
    stores = [sw.ChunkStore(url) for _ in range(3)]
    stores[0].set_sync(CHUNKS[3], buffer(bytes(6)))
    failed = []

    def write(number, store):
        try:
            for n in range(1, 7):
                store.set_sync(CHUNKS[number], buffer(bytes([n] * 6)))
                store._write_many([(CHUNKS[3], [(number, bytes([n]))])])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=item) for item in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert get_many(stores[0], CHUNKS) == [b"\6" * 6] * 3 + [bytes([6, 6, 6, 0, 0, 0])]


def test_a_writer_that_is_never_first_gives_up_and_changes_nothing(store, url, counted, monkeypatch):
    monkeypatch.setattr("shardwright.rework.chunks.shard_scheduler.sleep", lambda s: None)
    fill(store)
    bucket = connect_bucket(url)
    count = iter(range(2, 100))  # other bytes, so another ETag

    def first(name, *_, **__):
        if name == "put":
            data = bytes(obstore.get(bucket, SHARD).bytes())
            obstore.put(bucket, SHARD, bytes([next(count)]) * 6 + data[6:])

    counted.before = first
    with pytest.raises(ShardChangedError, match="changed it 20 times"):
        store.set_sync(CHUNKS[1], buffer(b"\7" * 6))
    counted.before = lambda *_, **__: None
    assert get_many(store, CHUNKS) == [bytes([21]) * 6, *[b"\1" * 6] * 3]


def test_the_last_chunk_takes_its_object_with_it(store, url):
    fill(store)
    for key in CHUNKS:
        store.delete_sync(key)
    with pytest.raises(FileNotFoundError):
        obstore.head(connect_bucket(url), SHARD)
    assert listed(store, "raw/c") == []


def test_a_chunk_that_comes_while_the_last_one_is_erased_is_kept(store, url, counted):
    store.set_sync(CHUNKS[0], buffer(b"\1" * 6))
    other = sw.ChunkStore(url)

    def come_first(name, _store, *args, **_):
        if name == "sign" and args[1] == SHARD:
            counted.before = lambda *_, **__: None
            other.set_sync(CHUNKS[1], buffer(b"\2" * 6))

    counted.before = come_first
    store.delete_sync(CHUNKS[0])
    assert get_many(store, CHUNKS[:2]) == [None, b"\2" * 6]


def test_a_server_that_deletes_on_no_condition_keeps_the_object_as_a_shard_without_chunks(
    store, url, monkeypatch
):
    def ignores(_objects, key, _tag):
        obstore.delete(connect_bucket(url), key)
        return 204

    monkeypatch.setattr(Objects, "delete_if", ignores)
    store.set_sync(CHUNKS[0], buffer(b"\1" * 6))
    store.delete_sync(CHUNKS[0])
    assert obstore.head(connect_bucket(url), SHARD)["size"] == 4 * 16 + 4
    assert listed(store, "raw/c") == []
    store.set_sync(CHUNKS[1], buffer(b"\2" * 6))
    assert get_many(store, CHUNKS[:2]) == [None, b"\2" * 6]


@pytest.mark.parametrize("change", [b"\2" * 6, None])
def test_without_a_strong_etag_nothing_is_changed(store, counted, monkeypatch, change):
    store.set_sync(CHUNKS[0], buffer(b"\1" * 6))
    of = ObjectVersion.of
    monkeypatch.setattr(ObjectVersion, "of", lambda meta: of({**meta, "e_tag": f"W/{meta['e_tag']}"}))
    counted.take_calls()
    write = store.delete_sync if change is None else lambda key: store.set_sync(key, buffer(change))
    with pytest.raises(StorageError, match="no strong ETag"):
        write(CHUNKS[0])
    assert not {"put", "sign", "delete"} & set(counted.take_calls())


def test_a_bad_chunk_is_refused_by_the_address_of_its_shard(store, url):
    with pytest.raises(ShardFormatError, match=f"{url}/raw"):
        store.set_sync(CHUNKS[0], buffer(b"1234567"))
    connect_bucket(url).put(SHARD, b"no shard" * 20)
    with pytest.raises(ShardFormatError, match="crc32c"):
        store.set_sync(CHUNKS[0], buffer(b"123456"))
    fill(store)
    assert get_many(store, CHUNKS) == [b"\1" * 6] * 4


def test_an_acquisition_that_was_copied_stays_sound(bucket_url, tmp_path):  # noqa: F811
    """It has a record of its shards, which gets a line for each new one."""
    path = tmp_path / "a.ome.zarr"
    dimensions = [
        sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=2),
        sw.Dimension(name="y", count=64, chunk_size=32, shard_size_chunks=2),
        sw.Dimension(name="x", count=64, chunk_size=32, shard_size_chunks=2),
    ]
    frames = np.random.default_rng(3).poisson(99, (8, 64, 64)).astype(np.uint16)
    with sw.create(path, sw.ArraySpec(dtype="uint16", dimensions=dimensions), **how(io="pwrite")) as writer:
        for frame in frames:
            writer.append(frame)
    copy_to(path, bucket_url)
    with sw.ChunkStore(bucket_url) as store:
        array = zarr.open_group(store)["0"]
        array[3:6, 10:50, 20:60] = frames[3:6, 10:50, 20:60] = 0
        array[6:8, 32:, 32:] = frames[6:8, 32:, 32:] = 0
    copy = fetched(bucket_url, tmp_path)
    for peer, read in READERS.items():
        np.testing.assert_array_equal(read(copy / "0"), frames, err_msg=peer)
    assert verify_store(copy).ok


def copy_to(path, url):
    bucket = connect_bucket(url)
    for file in path.rglob("*"):
        if file.is_file():
            bucket.put(file.relative_to(path).as_posix(), file.read_bytes())


MEBIBYTE = 1 << 20


def put_large(url, chunks, shards=1):
    """Puts an array of shards, each of so many chunks of a mebibyte; returns the keys of their first ones."""
    described = document([sharding(PLAIN_BYTES)], (1, chunks * MEBIBYTE))
    described["codecs"][0]["configuration"]["chunk_shape"] = [1, MEBIBYTE]
    connect_bucket(url).put(
        "large/zarr.json", json.dumps({**described, "shape": [shards, chunks * MEBIBYTE]}).encode()
    )
    with sw.ChunkStore(url) as store:
        for shard in range(shards):
            chunk = buffer(bytes([shard + 1]) * MEBIBYTE)
            sync(store.set_many((f"large/c/{shard}/{n}", chunk) for n in range(chunks)))
    return [f"large/c/{shard}/0" for shard in range(shards)]


def memory_bytes(name):
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.PartialWriteWarning")
def test_an_edit_holds_an_object_once_in_memory(store, url):
    chunks = 96
    (key,) = put_large(url, chunks)
    store.set_sync(key, buffer(bytes(MEBIBYTE)))  # what is allocated once
    before = memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    store.set_sync(key, buffer(b"\7" * MEBIBYTE))
    assert memory_bytes("VmHWM") - before < 1.6 * chunks * MEBIBYTE
    assert get(store, key) == b"\7" * MEBIBYTE
    assert get(store, "large/c/0/95") == b"\1" * MEBIBYTE


def test_edits_side_by_side_keep_to_one_budget_and_wait_for_room(store, url, counted):
    keys = put_large(url, 2, shards=6)
    of_one = 2 * (3 * MEBIBYTE + 2 * (2 * 16 + 4))  # the object, and the new chunk and index, twice
    budget = store._backend._edits = ByteBudget(2 * of_one + 1)
    seen = []
    counted.before = lambda name, *_, **__: name == "put" and seen.append(budget._taken_bytes)
    sync(store.set_many((key, buffer(b"\7" * MEBIBYTE)) for key in keys))
    assert set(seen) <= {of_one, 2 * of_one}
    assert len(seen) == len(keys)
    assert budget._taken_bytes == 0
    assert get_many(store, keys) == [b"\7" * MEBIBYTE] * 6


def test_an_object_beyond_the_budget_is_refused_before_it_is_read(store, url):
    keys = put_large(url, 4, shards=2)
    store._backend._edits = ByteBudget(9 * MEBIBYTE)
    with pytest.raises(BudgetError, match=r"large/c/0/0 is too large") as caught:
        store.set_sync(keys[0], buffer(bytes(MEBIBYTE)))
    assert "Copy the array to a disk" in caught.value.hint
    assert get_many(store, keys) == [b"\1" * MEBIBYTE, b"\2" * MEBIBYTE]
    assert store._backend._edits._taken_bytes == 0


def test_whoever_waits_for_room_is_served_in_turn():
    budget = ByteBudget(10)
    assert not budget.take(8, "a")
    order = []

    def edit(name, nbytes):
        assert budget.take(nbytes, name)
        order.append(name)
        budget.give(nbytes)

    threads = []
    for name, nbytes in (("large", 10), ("small", 1)):
        threads.append(threading.Thread(target=edit, args=(name, nbytes)))
        threads[-1].start()
        while len(budget._waiting) < len(threads):
            pass
    budget.give(8)
    for thread in threads:
        thread.join()
    assert order == ["large", "small"]
