"""A store of chunks in a bucket of a real S3 server whose answers get lost after it has done what was asked:
a writer knows its own object, and undoes nothing that another has done meanwhile."""

from __future__ import annotations

from contextlib import suppress

import obstore
import pytest
from tests.harness.event_loop import sync
from tests.repack.conftest import beside_proxy, bucket_url, object_store, proxy  # noqa: F401  (fixtures)

import shardwright as sw
from shardwright.model.errors import StorageError
from shardwright.remote.objects import connect_bucket
from shardwright.shard.shard_sums import SUMS_NAME

from .chunked_stores import buffer, documents, get_many

CHUNKS = [f"raw/c/{i}/{j}" for i in range(2) for j in range(2)]  # all of one shard
SHARD = "raw/c/0/0"
ONE, TWO = b"\1" * 6, b"\2" * 6


@pytest.fixture
def place(bucket_url, beside_proxy):  # noqa: F811
    """``place(name)``: the address of a new place with the documents of ``chunked_stores`` and a record of
    the array's shards, and a store whose answers are not lost."""

    def make(name):
        url = f"{bucket_url}/{name}"
        with beside_proxy():
            bucket = connect_bucket(url)
            beside = sw.ChunkStore(url)
            listed(beside)  # connected
        for key, data in documents().items():
            if key != "around/zarr.json":
                bucket.put(key, data)
        bucket.put(f"raw/{SUMS_NAME}", b"")
        return url, bucket, beside

    return make


def listed(store):
    return [key for key in CHUNKS if get_many(store, [key]) != [None]]


def until_done(call):
    """Makes a call, again if it failed typed."""
    for _ in range(2):
        with suppress(StorageError):
            return call()
    return call()


def fill(store):
    sync(store.set_many((key, buffer(ONE)) for key in CHUNKS))


def set_first(store):
    store.set_sync(CHUNKS[0], buffer(TWO))


def patch_first(store):
    sync(store.set_partial_values([(CHUNKS[0], 2, b"\7\7")]))


def erase_first(store):
    store.delete_sync(CHUNKS[0])


def erase_all(store):
    sync(store.erase_prefix("raw/c/"))


NOTHING = [None] * 4


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ([], fill, [ONE] * 4),
        ([], set_first, [TWO, None, None, None]),
        ([fill], set_first, [TWO, ONE, ONE, ONE]),
        ([fill], patch_first, [b"\1\1\7\7\1\1", ONE, ONE, ONE]),
        ([fill], erase_first, [None, ONE, ONE, ONE]),
        ([set_first], erase_first, NOTHING),
        ([fill], erase_all, NOTHING),
    ],
)
def test_an_edit_is_done_whichever_answer_is_lost(place, proxy, before, change, after):  # noqa: F811
    for number, loss in proxy.each_lost():
        url, bucket, beside = place(f"{loss}{number}")
        for made in before:
            made(beside)
        with sw.ChunkStore(url) as store:
            until_done(lambda store=store: change(store))
            assert get_many(store, CHUNKS) == after
        assert get_many(beside, CHUNKS) == after
        keys = {found["path"] for batch in obstore.list(bucket) for found in batch}
        assert (SHARD in keys) is (after != NOTHING), "no shard without chunks is left"


@pytest.mark.parametrize("loss", ["cut", "gateway"])
@pytest.mark.parametrize("before", [[], [fill]])
def test_what_another_writer_does_before_the_answer_is_lost_is_kept(place, proxy, before, loss):  # noqa: F811
    url, _, beside = place("raced")
    for made in before:
        made(beside)
    number = 1  # the record is put first
    with sw.ChunkStore(url) as store:
        proxy.lose(number, loss, lambda: beside.set_sync(CHUNKS[1], buffer(b"\3" * 6)))
        set_first(store)
        assert SHARD in proxy.asked[number]
        assert get_many(store, CHUNKS[:2]) == [TWO, b"\3" * 6]


@pytest.mark.parametrize("loss", ["cut", "gateway"])
def test_a_chunk_that_comes_after_the_last_was_erased_is_kept(place, proxy, loss):  # noqa: F811
    url, _, beside = place("erased")
    set_first(beside)
    with sw.ChunkStore(url) as store:
        set_first(store)
        until_done(lambda: erase_first(store))  # how the server deletes is known then
        set_first(store)
        proxy.lose(1, loss, lambda: beside.set_sync(CHUNKS[1], buffer(b"\3" * 6)))
        until_done(lambda: erase_first(store))
        assert proxy.asked[1].startswith("DELETE")
        assert get_many(store, CHUNKS[:2]) == [None, b"\3" * 6]
