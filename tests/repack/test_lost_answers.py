"""A real S3 server whose answers get lost after it has done what was asked: no job takes its own object for
another's, none loses anything, and what was not told is right when the job is run again."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import pytest
import zarr
from tests.harness.in_threads import in_threads
from zarr.storage import ObjectStore as ZarrObjectStore

from shardwright.model.errors import LockedError, OutputExistsError, ShardwrightError
from shardwright.remote.objects import NOT_IMPLEMENTED, Objects, connect_bucket
from shardwright.rework.jobs.rechunk_store import RechunkOptions
from shardwright.rework.transfer import bucket, move_store
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.destination import CLAIM_KEY
from shardwright.rework.transfer.move_plan import MoveOptions

from .images import POLITE
from .moving_store import execute
from .test_rechunk_transfer import rechunk_to

MIB = 1 << 20
LARGE = 6 * MIB


def put(destination, key, data, part_bytes=MIB):
    destination.put_new(key, (data[i : i + part_bytes] for i in range(0, len(data), part_bytes)), len(data))


def until_done(job):
    """Runs a job, again if it failed typed."""
    for _ in range(2):
        with suppress(ShardwrightError):
            if job().ok:
                return
    assert job().ok


@pytest.fixture
def small_parts(monkeypatch):
    """As small as the server takes them: of ``LARGE`` bytes there are two."""
    monkeypatch.setattr(bucket, "MULTIPART_FROM_BYTES", 5 * MIB)
    monkeypatch.setattr(bucket, "_PART_BYTES", 5 * MIB)


@pytest.fixture
def beside(beside_proxy):
    """``beside(url)``: a destination of another job, whose answers are not lost."""

    def connect(url):
        with beside_proxy():
            return open_destination(url)

    return connect


@pytest.mark.parametrize("nbytes", [0, 1000, LARGE])
def test_a_put_whose_answer_is_lost_is_done(bucket_url, proxy, small_parts, nbytes):
    data = os.urandom(nbytes)
    for number, loss in proxy.each_lost():
        destination = open_destination(f"{bucket_url}/{loss}{number}")
        put(destination, "0/c/0", data)
        assert destination.size("0/c/0") == nbytes
        assert not nbytes or destination.read("0/c/0", 0, nbytes) == data
        assert list(destination._objects.sizes()) == [("0/c/0", nbytes)], "no part is left"


@pytest.mark.parametrize("nbytes", [1000, LARGE])
def test_a_rivals_key_is_no_success_whatever_is_lost(bucket_url, proxy, beside, small_parts, nbytes):
    """Of the same size, so that the bytes alone tell them apart."""
    theirs = os.urandom(nbytes)
    for number, loss in proxy.each_lost():
        url = f"{bucket_url}/{loss}{number}"
        destination, rival = open_destination(url), beside(url)

        def parts(rival=rival):
            yield bytes(nbytes - 1)
            in_threads(lambda: put(rival, "shard", theirs))  # obstore drives this one
            yield b"\0"

        with pytest.raises(OutputExistsError):
            destination.put_new("shard", parts(), nbytes)
        assert rival.read("shard", 0, nbytes) == theirs


def test_a_claim_whose_answer_is_lost_is_ours_and_no_claim_is_left_for_ever(bucket_url, proxy):
    for number, loss in proxy.each_lost():
        destination = open_destination(f"{bucket_url}/{loss}{number}")
        assert destination.claim("ours") is True
        with pytest.raises(LockedError):
            destination.claim("theirs")
        destination.release("ours")
        assert destination.size(CLAIM_KEY) is None


@pytest.mark.parametrize("loss", ["cut", "gateway"])
def test_a_release_whose_answer_is_lost_leaves_the_next_jobs_claim(bucket_url, proxy, beside, loss):
    """A DELETE that is repeated without a condition would delete it."""
    ours, theirs = open_destination(bucket_url), beside(bucket_url)
    ours.claim("ours")
    proxy.lose(0, loss, lambda: theirs.claim("theirs"))
    ours.release("ours")
    with pytest.raises(LockedError):
        open_destination(bucket_url).claim("another")
    theirs.release("theirs")
    assert theirs.size(CLAIM_KEY) is None


def test_a_server_that_deletes_on_no_condition_is_left_without_a_claim(bucket_url, monkeypatch):
    destination = open_destination(bucket_url)
    destination.claim("ours")
    monkeypatch.setattr(Objects, "delete_if", lambda *_: NOT_IMPLEMENTED)
    destination.release("ours")
    assert destination.size(CLAIM_KEY) is None


def small_store(path):
    """Two shards and their metadata: few requests."""
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    array = zarr.create_array(
        path, shape=(8, 8), shards=(4, 8), chunks=(2, 4), dtype="uint16", dimension_names=["y", "x"]
    )
    array[...] = values
    return values


def read(url):
    return zarr.open_array(ZarrObjectStore(connect_bucket(url), read_only=True), mode="r")[...]


@pytest.mark.parametrize("delete_source", [False, True])
def test_a_move_ends_right_whichever_answer_is_lost(tmp_path, bucket_url, proxy, delete_source):
    for number, loss in proxy.each_lost():
        source, url = tmp_path / f"{loss}{number}.zarr", f"{bucket_url}/{loss}{number}"
        values = small_store(source)
        options = MoveOptions(url, delete_source=delete_source, throttle=POLITE)
        until_done(lambda source=source, options=options: move_store.move_store(source, options, execute))
        assert source.exists() is not delete_source
        destination = open_destination(url)
        assert destination.size(CLAIM_KEY) is None
        assert destination.sizes().keys() == {"zarr.json", "c/0/0", "c/1/0"}
        np.testing.assert_array_equal(read(url), values)


def test_a_rechunk_to_a_bucket_ends_right_whichever_answer_is_lost(tmp_path, bucket_url, proxy):
    store = tmp_path / "a.zarr"
    values, options = small_store(store), RechunkOptions({"y": 8, "x": 4})
    for number, loss in proxy.each_lost():
        url = f"{bucket_url}/{loss}{number}"
        until_done(lambda url=url: rechunk_to(store, url, options))
        np.testing.assert_array_equal(read(url), values)
        assert open_destination(url).size(CLAIM_KEY) is None
        assert [path.name for path in tmp_path.iterdir()] == [store.name]
