"""How a store of chunks asks: over HTTP, where each request is counted; and what it does when a shard is
replaced between two of them."""

from __future__ import annotations

import crc32c
import numpy as np
import pytest
import zarr
from tests.harness.event_loop import sync
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype

import shardwright as sw
from shardwright.model.errors import ConfigError, ShardChangedError, StorageError
from shardwright.rework.chunks.chunk_store import COALESCE_BYTES
from shardwright.rework.chunks.local_backend import LocalBackend
from shardwright.rework.chunks.object_backend import ObjectRanges

from .chunked_stores import (
    CHUNK_BYTES,
    RANGES_AT_THE_END,
    SHAPE,
    FileServer,
    buffer,
    get,
    get_many,
    listed,
    make_store,
    names_in,
)

# zarr-python warns of codecs around shards
pytestmark = pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")

VALUES = np.arange(1, 1 + SHAPE[0] * SHAPE[1], dtype=np.uint8).reshape(SHAPE)
CHUNKS = [f"raw/c/{i}/{j}" for i in range(2) for j in range(2)]  # all of one shard


@pytest.fixture
def folder(tmp_path):
    path = make_store(tmp_path / "store")
    for name in ("raw", "a/zstd", "a/dotted", "plain", "around"):
        zarr.open_array(path / name)[...] = VALUES
    return path


@pytest.fixture
def server(folder):
    with FileServer(folder) as server:
        yield server


def opened(url, **settings):
    return sw.ChunkStore(url, mode="r", **settings)


def chunk(i, j, values=VALUES):
    """The bytes of an uncompressed chunk."""
    padded = np.full((8, 12), 9, np.uint8)
    padded[: SHAPE[0]] = values
    return padded[2 * i : 2 * i + 2, 3 * j : 3 * j + 3].tobytes()


ALL = [chunk(i, j) for i in range(2) for j in range(2)]


def ranges(server, path="raw/c/0/0"):
    """The ranges of a shard that were asked for since the last time."""
    return [asked for _, key, asked in server.take_asked() if key == path]


@pytest.mark.parametrize("data", [b"\1\2\3\4", b""])
def test_a_range_past_the_end_gives_what_it_gives_in_a_folder(server, folder, data):
    (folder / "notes").write_bytes(data)
    with opened(server.url) as store, opened(folder) as local:
        for asked in RANGES_AT_THE_END:
            assert get(store, "notes", asked) == get(local, "notes", asked), asked
            assert get(store, "none", asked) is None


NOT_WHOLE = 23  # bytes of coalescing: one less than a shard has of chunks


def test_a_batch_takes_two_requests_a_shard_and_one_when_the_index_is_known(server):
    with opened(server.url, coalesce_bytes=NOT_WHOLE) as store:
        assert get_many(store, CHUNKS) == ALL
        assert len(ranges(server)) == 2
        assert get_many(store, [CHUNKS[3], CHUNKS[0]]) == [ALL[3], ALL[0]]
        assert [key for _, key, _ in server.asked] == ["raw/c/0/0"]  # nothing else is asked either
        assert get_many(store, [(CHUNKS[1], RangeByteRequest(1, 3)), (CHUNKS[1], SuffixByteRequest(2))]) == [
            ALL[1][1:3],
            ALL[1][-2:],
        ]
        assert len(ranges(server)) == 2


def test_an_index_at_the_start_is_found_there(server):
    with opened(server.url, coalesce_bytes=0) as store:
        assert get_many(store, ["a/zstd/c/0/0"])[0]
        first, second = ranges(server, "a/zstd/c/0/0")
        assert first == "bytes=0-63"
        assert second is not None


def test_gaps_longer_than_asked_for_are_not_read(server):
    keys = [CHUNKS[0], CHUNKS[3]]
    with opened(server.url, coalesce_bytes=11) as store:
        assert get_many(store, keys) == [ALL[0], ALL[3]]
        assert sorted(ranges(server)) == ["bytes=-68", "bytes=0-5", "bytes=18-23"]
    with opened(server.url, coalesce_bytes=12) as store:
        assert get_many(store, keys) == [ALL[0], ALL[3]]
        assert sorted(ranges(server)) == ["bytes=-68", "bytes=0-23"]


def test_a_batch_beyond_the_bound_takes_a_round_for_each_part(server, monkeypatch):
    monkeypatch.setattr("shardwright.rework.chunks.shard_scheduler.PART_BYTES", 13)  # two chunks
    rounds = []
    fetch = ObjectRanges.ranges

    def counted(self, version, ranges):
        rounds.append(ranges)
        return fetch(self, version, ranges)

    monkeypatch.setattr(ObjectRanges, "ranges", counted)
    with opened(server.url, coalesce_bytes=NOT_WHOLE) as store:
        assert get_many(store, [*CHUNKS, CHUNKS[0]]) == [*ALL, ALL[0]]
        assert rounds == [[(0, 12)], [(12, 24)]]
        assert store._scheduler._fetched._taken_bytes == 0
        rounds.clear()
        assert get_many(store, [CHUNKS[0], CHUNKS[3]]) == [ALL[0], ALL[3]]
        assert rounds == [[(0, 6), (18, 24)]]  # with the gap between them it would be too much


def test_what_is_read_ahead_is_bounded(server, monkeypatch):
    monkeypatch.setattr("shardwright.rework.chunks.chunk_store.BATCH_BYTES", 2 * CHUNK_BYTES)
    asked = []

    def requests():
        for key in CHUNKS:
            asked.append(key)
            yield key, default_buffer_prototype(), None

    async def read(store):
        found = []
        async for key, data in store.get_many(requests()):
            found.append((key, data.to_bytes(), len(asked)))
        return found

    with opened(server.url) as store:
        found = sync(read(store))
    assert found == list(zip(CHUNKS, ALL, [2, 2, 4, 4], strict=True))


@pytest.mark.parametrize("change", ["set", "patch", "erase"])
def test_a_large_batch_of_changes_is_made_in_parts_in_order(folder, monkeypatch, change):
    edits = []
    edit = LocalBackend.edit

    def counted(self, array, shard, key, chunks, expected):
        edits.append(sorted(chunks))
        edit(self, array, shard, key, chunks, expected)

    monkeypatch.setattr(LocalBackend, "edit", counted)
    with sw.ChunkStore(folder) as store:
        make = {
            "set": lambda: store.set_many((key, buffer(b"\7" * 6)) for key in [*CHUNKS, CHUNKS[0]]),
            "patch": lambda: store.set_partial_values((key, 5, b"\7") for key in [*CHUNKS, CHUNKS[0]]),
            "erase": lambda: store.erase_values(iter([*CHUNKS, CHUNKS[0]])),
        }[change]
        wanted = {"set": [b"\7" * 6] * 4, "patch": [data[:5] + b"\7" for data in ALL], "erase": [None] * 4}
        of_one = 1024 + {"set": 6, "patch": 2 * 6 + 1, "erase": 0}[change]
        monkeypatch.setattr("shardwright.rework.chunks.chunk_store.BATCH_BYTES", 2 * of_one)
        sync(make())
        assert edits == [[0, 1], [2, 3], [0]]
        assert get_many(store, CHUNKS) == wanted[change]
        edits.clear()
        monkeypatch.setattr("shardwright.rework.chunks.chunk_store.BATCH_BYTES", 4 * of_one)
        zarr.open_array(folder / "raw")[...] = VALUES
        sync(make())
        assert edits == [[0, 1, 2, 3], [0]]  # it fits: one edit


def test_an_absent_chunk_of_a_known_index_is_asked_for_once_on_condition(server, folder):
    zarr.open_array(folder / "raw")[0:2, 0:3] = 9  # fill: absent
    with opened(server.url) as store:
        assert get_many(store, CHUNKS[:2]) == [None, ALL[1]]
        server.take_asked()
        assert get_many(store, CHUNKS[:1]) == [None]
        assert ranges(server) == [f"bytes=-{COALESCE_BYTES}"]
        zarr.open_array(folder / "raw")[0:2, 0:3] = VALUES[0:2, 0:3]
        assert get_many(store, CHUNKS[:1]) == [ALL[0]]


def test_zarr_python_reads_all_of_an_array_with_few_requests(server):
    with opened(server.url) as store:
        group = zarr.open_group(store, mode="r", use_consolidated=False)
        for name in ("raw", "a/zstd", "a/dotted", "plain", "around"):
            server.take_asked()
            np.testing.assert_array_equal(group[name][...], VALUES)
        # gets that come while others are served are served together
        server.take_asked()
        np.testing.assert_array_equal(group["raw"][:4, :6], VALUES[:4, :6])
        assert len(ranges(server)) <= 4


def test_everything_is_listed_without_lists(server, folder):
    (folder / "zarr.json").write_text(
        '{"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"multiscales": [{"datasets": '
        '[{"path": "raw"}, {"path": "a/dotted"}, {"path": "plain"}, {"path": "gone"}]}]}}}'
    )
    with opened(server.url) as store, opened(folder) as local:
        there = [key for key in listed(local) if key.startswith(("raw/", "a/dotted/", "plain/"))]
        assert listed(store) == sorted([*there, "zarr.json"])
        assert listed(store, "raw/c/1/") == [f"raw/c/1/{j}" for j in range(4)]
        assert names_in(store, "raw/c") == ["0", "1", "2", "3"]
        assert names_in(store, "raw") == ["c", "zarr.json"]
        assert names_in(store, "") == ["a", "plain", "raw", "zarr.json"]
        assert names_in(store, "a/dotted") == names_in(local, "a/dotted")
        assert names_in(store, "plain") == ["c", "zarr.json"]


def test_a_folder_is_listed_without_asking_for_every_shard(server, folder):
    (folder / "zarr.json").write_text(
        '{"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"plate": {"wells": '
        '[{"path": "raw"}]}}}}'
    )
    with opened(server.url) as store:
        assert names_in(store, "") == ["raw", "zarr.json"]
        assert {key for _, key, _ in server.take_asked()} == {"zarr.json", "raw/zarr.json"}
        assert names_in(store, "raw") == ["c", "zarr.json"]
        assert len([key for _, key, _ in server.take_asked() if "/c/" in key]) == 1


REPLACED = VALUES[::-1].copy()


def test_a_shard_that_is_replaced_between_index_and_ranges_is_read_again(server, folder):
    def replace(request):
        if (request.headers.get("Range") or "").startswith("bytes=0-"):
            server.before = lambda request: None
            zarr.open_array(folder / "raw")[...] = REPLACED

    server.before = replace
    with opened(server.url, coalesce_bytes=NOT_WHOLE) as store:
        assert get_many(store, CHUNKS) == [chunk(i, j, REPLACED) for i in range(2) for j in range(2)]
        assert len(ranges(server)) == 4


def test_a_known_index_is_not_used_for_another_shard(server, folder):
    with opened(server.url) as store:
        assert get_many(store, CHUNKS) == ALL
        zarr.open_array(folder / "raw")[...] = REPLACED
        assert get_many(store, CHUNKS[2:]) == [chunk(1, j, REPLACED) for j in range(2)]
        (folder / "raw/c/0/0").unlink()
        assert get_many(store, CHUNKS[2:]) == [None, None]


@pytest.mark.parametrize("without", [("ETag",), ("ETag", "Last-Modified")])
def test_a_server_without_etags_is_noticed_by_what_else_it_says(folder, without):
    with FileServer(folder, without=without) as server, opened(server.url) as store:
        assert get_many(store, CHUNKS) == ALL
        zarr.open_array(folder / "raw")[:2, :3] = 9  # a chunk less: another size
        assert get_many(store, CHUNKS) == [None, *ALL[1:]]


def test_without_etags_an_index_that_changed_after_the_ranges_is_noticed(folder):
    """Another shard of the same size and second: its chunks change places."""
    path = folder / "raw/c/0/0"
    with FileServer(folder, without=("ETag", "Last-Modified")) as server, opened(server.url) as store:
        assert get_many(store, CHUNKS) == ALL  # the index is known from here on
        data = path.read_bytes()
        body, index, crc = data[: -4 * 16 - 4], data[-4 * 16 - 4 : -4], data[-4:]
        assert crc == crc32c.crc32c(index).to_bytes(4, "little")
        index = index[16:32] + index[:16] + index[32:]
        path.write_bytes(body + index + crc32c.crc32c(index).to_bytes(4, "little"))
        assert get_many(store, CHUNKS) == [ALL[1], ALL[0], *ALL[2:]]


def test_a_shard_that_is_replaced_again_and_again_is_given_up(server, folder, monkeypatch):
    monkeypatch.setattr("shardwright.rework.chunks.shard_scheduler.sleep", lambda s: None)

    def replace(request):
        if (request.headers.get("Range") or "").startswith("bytes=0-"):
            data = (folder / "raw/c/0/0").read_bytes()
            (folder / "raw/c/new").write_bytes(b"\0" * 8 + data)
            (folder / "raw/c/new").replace(folder / "raw/c/0/0")

    server.before = replace
    in_parts = opened(server.url, coalesce_bytes=NOT_WHOLE)
    with in_parts as store, pytest.raises(ShardChangedError, match="changed it 20 times"):
        get_many(store, CHUNKS)


def test_a_server_is_only_read(server):
    with pytest.raises(ConfigError, match="can only be read"):
        sw.ChunkStore(server.url)
    with opened(server.url) as store:
        with pytest.raises(ValueError, match="read-only"):
            store.set_sync("raw/c/0/0", None)
        assert not store.supports_writes


def test_a_server_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "0")
    with (
        opened("http://127.0.0.1:9") as store,
        pytest.raises(StorageError, match=r"http://127\.0\.0\.1:9/zarr"),
    ):
        get(store, "zarr.json")
