"""A store of chunks on a disk: what its operations do, next to zarr's MemoryStore; what it refuses."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from hypothesis import settings
from tests.harness.event_loop import sync
from tests.harness.json_process import environment
from tests.harness.python import run_python, start_python
from tests.harness.writing import how
from tests.properties.readers import READERS

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.disk.files import replace_file
from shardwright.disk.read_file import ReadFile
from shardwright.model.errors import (
    ConfigError,
    LockedError,
    ShardFormatError,
    SpecError,
    StorageError,
    StoreGoneError,
)
from shardwright.model.names import EDIT_FOLDER, MOVE_LOCK_NAME
from shardwright.read.store import parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.chunks.local_backend import LocalBackend
from shardwright.rework.chunks.shard_scheduler import ShardRef, ShardScheduler, Write
from shardwright.rework.runtime.work_folder import locked
from shardwright.shard.index import empty_index
from shardwright.shard.sealed_shard import ReadIndex
from shardwright.shard.shard_sums import SUMS_NAME, ShardSums

from .chunk_machine import ChunkMachine
from .chunked_stores import ARRAYS, CRC, LITTLE, SHARDED, ZSTD, buffer, get, get_many, listed, make_store

if TYPE_CHECKING:
    from pathlib import Path

# zarr-python warns of codecs around shards
pytestmark = pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")

FOLDERS: list[Path] = []


class OnDisk(ChunkMachine):
    def make_store(self) -> sw.ChunkStore:
        self._path = make_store(FOLDERS[0] / f"store{len(list(FOLDERS[0].iterdir()))}")
        shutil.rmtree(self._path / "around")  # chunks of whole shards are not a matter of this
        return sw.ChunkStore(self._path)

    def folder(self) -> Path:
        return self._path


def test_random_operations_do_as_the_memory_store_and_peers_read_the_shards(tmp_path):
    FOLDERS[:] = [tmp_path]
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(OnDisk, settings=settings(max_examples=20, stateful_step_count=25))


@pytest.fixture
def path(tmp_path):
    return make_store(tmp_path / "store")


@pytest.fixture
def store(path):
    with sw.ChunkStore(path) as store:
        yield store


def document(path, name):
    return json.loads((path / name / "zarr.json").read_text())


# ---------------------------------------------------------------------- documents


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_array_is_handed_out_as_one_of_chunks(store, path, name):
    shown = json.loads(get(store, f"{name}/zarr.json"))
    [codec] = document(path, name)["codecs"]
    assert shown["chunk_grid"]["configuration"]["chunk_shape"] == codec["configuration"]["chunk_shape"]
    assert shown["codecs"] == codec["configuration"]["codecs"]
    assert zarr.open_array(store, path=name).shards is None


@pytest.mark.parametrize("name", ["plain", "around"])
def test_other_arrays_are_handed_out_as_they_are(store, path, name):
    assert get(store, f"{name}/zarr.json") == (path / name / "zarr.json").read_bytes()
    array = zarr.open_array(store, path=name)
    array[...] = 3
    assert (zarr.open_array(path / name)[...] == 3).all()


def test_an_array_with_a_field_that_is_not_understood_is_left_as_it_is(store, path):
    changed = {**document(path, "raw"), "compression": "none"}
    (path / "raw/zarr.json").write_text(json.dumps(changed))
    assert json.loads(get(store, "raw/zarr.json")) == changed


def test_nested_shards_are_the_chunks_of_the_outer_ones(tmp_path):
    inner = {"chunk_shape": [1, 3], "codecs": [{"name": "bytes"}]}
    inner |= {"index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}
    outer = json.loads(json.dumps(ARRAYS["raw"]))
    outer["codecs"][0]["configuration"]["codecs"] = [{"name": "sharding_indexed", "configuration": inner}]
    (tmp_path / "zarr.json").write_text(json.dumps(outer))
    values = np.arange(84, dtype=np.uint8).reshape(7, 12)
    with sw.ChunkStore(tmp_path) as store:
        array = zarr.open_array(store)
        assert (array.shards, array.chunks) == ((2, 3), (1, 3))
        array[...] = values
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], values)


def test_a_shape_and_attributes_are_written_back_to_the_sharded_document(store, path):
    before = document(path, "raw")
    array = zarr.open_array(store, path="raw")
    array.resize((20, 12))
    array.attrs["stage"] = 4
    after = document(path, "raw")
    assert after["shape"] == [20, 12]
    assert after["attributes"] == {"stage": 4}
    same = ("codecs", "chunk_grid", "data_type", "fill_value", "chunk_key_encoding")
    assert {field: after[field] for field in same} == {field: before[field] for field in same}
    array[19] = 7
    assert (zarr.open_array(path / "raw")[19] == 7).all()


def test_the_size_of_an_array_is_not_that_of_one_whose_name_begins_with_its(store, path):
    shutil.copytree(path / "raw", path / "raw2")
    for name in ("raw", "raw2"):
        zarr.open_array(store, path=name)[...] = 5
    chunks = sum(sync(store.getsize(key)) for key in listed(store, "raw/c/"))
    nbytes = chunks + sync(store.getsize("raw/zarr.json"))
    assert sync(store.getsize_prefix("raw")) == sync(store.getsize_prefix("raw/")) == nbytes
    assert zarr.open_array(store, path="raw").nbytes_stored() == nbytes


def test_an_array_that_is_cropped_loses_the_chunks_outside(store, path):
    array = zarr.open_array(store, path="raw")
    array[...] = 5
    array.resize((2, 12))
    assert [key for key in listed(store, "raw/c/")] == [f"raw/c/0/{j}" for j in range(4)]  # noqa: C416
    assert zarr.open_array(path / "raw").shape == (2, 12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("codecs", [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 3}}]),
        ("data_type", "int8"),
        ("fill_value", 0),
        ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [4, 6]}}),
        ("chunk_key_encoding", {"name": "v2", "configuration": {"separator": "."}}),
        ("shape", [7]),
        ("shape", [7, -1]),
        ("node_type", "group"),
    ],
)
def test_another_layout_is_refused_by_name(store, path, field, value):
    shown = json.loads(get(store, "raw/zarr.json"))
    before = (path / "raw/zarr.json").read_bytes()
    named = "sharded array" if field == "node_type" else field
    with pytest.raises(SpecError, match=named):
        store.set_sync("raw/zarr.json", buffer(json.dumps({**shown, field: value}).encode()))
    assert (path / "raw/zarr.json").read_bytes() == before


@pytest.mark.parametrize("field", ["zarr_format", "node_type"])
def test_bytes_that_are_no_document_do_not_replace_that_of_a_sharded_array(store, field):
    shown = json.loads(get(store, "raw/zarr.json"))
    with pytest.raises(SpecError, match="must describe an array"):
        store.set_sync("raw/zarr.json", buffer(json.dumps({**shown, field: 2}).encode()))


def test_a_new_sharded_array_is_refused_and_another_one_is_made(store, path):
    with pytest.raises(SpecError, match="makes no sharded array"):
        zarr.create_array(store, name="new", shape=(8,), shards=(8,), chunks=(2,), dtype="uint8")
    zarr.create_array(store, name="new", shape=(8,), chunks=(2,), dtype="uint8")[...] = 1
    assert (zarr.open_array(path / "new")[...] == 1).all()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_consolidated_metadata_are_handed_out_and_written_back_alike(store, path):
    zarr.consolidate_metadata(store)
    assert zarr.open_group(path)["raw"].shards == (4, 6)
    group = zarr.open_group(store)
    assert group.metadata.consolidated_metadata is not None
    assert group["raw"].shards is None
    group["a/zstd"][...] = 8
    assert (zarr.open_array(path / "a/zstd")[...] == 8).all()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_consolidated_metadata_that_are_too_long_are_not_handed_out_as_they_are_stored(
    store, path, monkeypatch
):
    """They would describe shards, and the keys here are of chunks."""
    zarr.consolidate_metadata(store)
    monkeypatch.setattr(
        "shardwright.array.document.MAX_METADATA_BYTES",
        (path / "zarr.json").stat().st_size - 1,
    )
    with pytest.raises(ShardFormatError, match="is too long; expected"):
        zarr.open_group(sw.ChunkStore(path), mode="r")


# ---------------------------------------------------------------------- acquisitions


def acquired(path, **settings):
    dimensions = [
        sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=2),
        sw.Dimension(name="y", count=64, chunk_size=32, shard_size_chunks=2),
        sw.Dimension(name="x", count=64, chunk_size=32, shard_size_chunks=2),
    ]
    return sw.create(
        path, sw.ArraySpec(dtype="uint16", dimensions=dimensions, **settings), **how(io="pwrite")
    )


def test_an_acquisition_is_changed_chunk_by_chunk_and_stays_sound(tmp_path):
    path = tmp_path / "a.ome.zarr"
    frames = np.random.default_rng(3).poisson(99, (8, 64, 64)).astype(np.uint16)
    with acquired(path, levels=sw.Levels(count=1)) as writer:
        with pytest.raises(LockedError, match="still being written"):
            sw.ChunkStore(path)
        for frame in frames:
            writer.append(frame)
    with sw.ChunkStore(path) as store:
        array = zarr.open_group(store)["0"]
        array[3, 10:50, 20:60] = frames[3, 10:50, 20:60] = 0
    for peer, read in READERS.items():
        np.testing.assert_array_equal(read(path / "0"), frames, err_msg=peer)
    assert verify_store(path).ok


def test_nothing_is_written_while_a_store_is_moved(path, store):
    with locked(path, MOVE_LOCK_NAME):
        for key in ("raw/c/0/0", "notes.txt"):
            with pytest.raises(LockedError, match="moved"):
                store.set_sync(key, buffer(b"123456"))


def test_nothing_is_written_while_a_store_is_acquired(path, store):
    (path / ".shardwright").mkdir()
    for key in ("raw/c/0/0", "notes.txt"):
        with pytest.raises(LockedError):
            store.set_sync(key, buffer(b"123456"))
    assert get(sw.ChunkStore(path, "r"), "raw/c/0/0") is None


# ---------------------------------------------------------------------- edits and reads


def test_chunks_of_a_shard_are_set_by_one_edit(store, path):
    edits = []
    failpoints.watch_all(lambda name: edits.append(name) if name.endswith("before_rename") else None)
    try:
        sync(
            store.set_many((f"raw/c/{i}/{j}", buffer(bytes([i, j] * 3))) for i in range(2) for j in range(2))
        )
    finally:
        failpoints.watch_all(None)
    assert len(edits) == 1, edits
    assert get(store, "raw/c/1/0") == b"\1\0" * 3
    assert [file.name for file in (path / "raw/c").rglob("*") if file.is_file()] == ["0"]


def test_a_bad_chunk_does_not_take_its_neighbours_with_it(store):
    async def both():
        import asyncio

        asked = [store.set(f"raw/c/0/{j}", buffer(b"x" * n)) for j, n in ((0, 6), (1, 7))]
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second = sync(both())
    assert first is None
    assert isinstance(second, ShardFormatError)
    assert get_many(store, ["raw/c/0/0", "raw/c/0/1"]) == [b"x" * 6, None]


def test_of_writes_that_are_made_together_the_bad_one_fails_alone():
    """Which ones meet is chance: here they do."""

    def edit(array, shard, key, chunks, expected):
        if chunks.get(1) == b"bad":
            raise ShardFormatError("chunk 1 is not encoded as its array")

    backend = SimpleNamespace(edit=edit, absent=None)
    scheduler = ShardScheduler(backend, coalesce_bytes=0, index_cache_bytes=0, concurrency=1)
    good, bad = Write({0: b"good"}), Write({1: b"bad"})
    scheduler._write(ShardRef(None, (0,), "0/c/0"), [good, bad])
    assert (good.answer.failure(), good.answer.done()) == (None, True)
    assert bad.answer.failure().is_a(ShardFormatError)


def test_bytes_behind_the_end_of_a_chunk_are_refused(store):
    store.set_sync("raw/c/0/0", buffer(b"abcdef"))
    with pytest.raises(ShardFormatError, match="offset 7 of a chunk of 6 bytes"):
        sync(store.set_partial_values([("raw/c/0/0", 7, b"x")]))
    assert get(store, "raw/c/0/0") == b"abcdef"


def test_a_shard_that_is_changed_while_it_is_read_is_read_again(store, path, monkeypatch):
    """In place, so that the open file is the one that changes."""
    zarr.open_array(path / "raw")[...] = 1
    read = ReadFile.read
    other = sw.ChunkStore(path, strategy="in_place")

    def then_changed(self, offset, nbytes):
        data = read(self, offset, nbytes)
        if nbytes == 6:
            monkeypatch.setattr(ReadFile, "read", read)
            other.set_sync("raw/c/0/0", buffer(b"\2" * 6))
        return data

    monkeypatch.setattr(ReadFile, "read", then_changed)
    assert get_many(store, ["raw/c/0/0"]) == [b"\2" * 6]


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("strategy", ["in_place", "append", "rewrite"])
def test_a_batch_is_never_of_two_states_of_a_shard(path, mode, strategy):
    zarr.open_array(path / "raw")[...] = 0
    keys = [f"raw/c/{i}/{j}" for i in range(2) for j in range(2)]
    writer, reader = sw.ChunkStore(path, strategy=strategy), sw.ChunkStore(path, mode)
    ended = threading.Event()

    def write():
        for n in range(1, 40):
            writer._write_many([(key, bytes([n]) * 6) for key in keys[:3]])
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not ended.is_set():
        first, second, third, last = get_many(reader, keys)
        assert first == second == third
        assert last == bytes(6)
    thread.join()
    assert get_many(reader, keys)[:3] == [bytes([39]) * 6] * 3


def test_an_index_is_read_once_and_again_when_the_shard_was_replaced(store, path, monkeypatch):
    zarr.open_array(path / "raw")[...] = 1
    reads = []
    read = ReadIndex.of
    monkeypatch.setattr(ReadIndex, "of", lambda *facts: (reads.append(1), read(*facts))[1])
    for _ in range(3):
        assert get(store, "raw/c/0/0") == b"\1" * 6
    assert len(reads) == 1
    zarr.open_array(path / "raw")[...] = 2
    assert get(store, "raw/c/0/0") == b"\2" * 6
    assert len(reads) == 2


def test_indexes_are_kept_within_their_memory(path, monkeypatch):
    zarr.open_array(path / "raw")[...] = 1
    reads = []
    read = ReadIndex.of
    monkeypatch.setattr(ReadIndex, "of", lambda *facts: (reads.append(1), read(*facts))[1])
    with sw.ChunkStore(path, "r", index_cache_bytes=600) as store:
        for key in ("raw/c/0/0", "raw/c/0/2", "raw/c/0/0"):
            get(store, key)
    assert len(reads) == 3


def test_two_stores_patch_one_shard_and_lose_nothing(path):
    stores = [sw.ChunkStore(path) for _ in range(3)]
    stores[0].set_sync("raw/c/0/0", buffer(bytes(6)))

    def patch(store, place):
        for n in range(1, 9):
            sync_in_thread(store, place, n)

    threads = [threading.Thread(target=patch, args=(store, place)) for place, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get(stores[0], "raw/c/0/0") == bytes([8, 8, 8, 0, 0, 0])


def sync_in_thread(store, place, value):
    store._write_many([("raw/c/0/0", [(place, bytes([value]))])])


def test_an_interrupted_edit_is_completed_before_a_chunk_is_read(path):
    zarr.open_array(path / "raw")[...] = 1
    code = (
        "import sys, shardwright as sw; from zarr.buffer import default_buffer_prototype as p\n"
        "from shardwright.disk.failpoints import load_from_environment; load_from_environment()\n"
        "store = sw.ChunkStore(sys.argv[1], strategy='in_place')\n"
        "store.set_sync('raw/c/0/0', p().buffer.from_bytes(bytes([2] * 6)))"
    )
    killed = environment({"SHARDWRIGHT_FAILPOINTS": "edit.before_delete_journal=kill@1"})
    assert run_python("-c", code, path, env=killed).returncode == -9
    with sw.ChunkStore(path, "r") as store, pytest.raises(LockedError, match="recover"):
        get(store, "raw/c/0/0")
    with sw.ChunkStore(path) as store:
        assert get(store, "raw/c/0/0") == b"\2" * 6
    assert not list((path / "raw/.shardwright-edit").glob("*.journal"))


def test_a_damaged_index_is_an_error_and_its_array_can_be_deleted(store, path):
    zarr.open_array(path / "raw")[...] = 1
    (path / "raw/c/0/0").write_bytes(b"nothing that is a shard" * 9)
    with pytest.raises(ShardFormatError, match="crc32c"):
        get(store, "raw/c/0/0")
    sync(store.delete_dir("raw"))
    assert not (path / "raw").exists()


# ---------------------------------------------------------------------- prefixes


def test_an_array_is_deleted_whole(store, path):
    for name in ("raw", "a/zstd"):
        zarr.open_array(store, path=name)[...] = 4
    sync(store.delete_dir("raw"))
    assert not (path / "raw").exists()
    assert listed(store, "raw") == []
    assert (zarr.open_array(path / "a/zstd")[...] == 4).all()
    sync(store.clear())
    assert list(path.iterdir()) == []


def test_hidden_files_are_no_keys(store, path):
    (path / "raw/.notes").write_bytes(b"1")
    assert get(store, "raw/.notes") is None
    assert "raw/.notes" not in listed(store)
    for key in ("raw/.notes", "../outside", "raw//c", ""):
        with pytest.raises(SpecError, match="no key"):
            store.set_sync(key, buffer(b"2"))
    store.delete_sync("raw/.notes")
    assert (path / "raw/.notes").read_bytes() == b"1"


# ---------------------------------------------------------------------- the store itself


def test_it_is_pickled_with_its_settings(path):
    store = pickle.loads(pickle.dumps(sw.ChunkStore(path, "r", coalesce_bytes=5, max_unused=0.5)))
    assert (store.read_only, store._settings["coalesce_bytes"], store._settings["max_unused"]) == (
        True,
        5,
        0.5,
    )
    assert store == sw.ChunkStore(path)
    assert store.with_read_only(read_only=False).read_only is False


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("ftp://x/y", "r"), ConfigError),
        (("/no/such/folder", "r"), StorageError),
        ((".", "w"), ConfigError),
    ],
)
def test_what_cannot_be_opened_is_refused(arguments, error):
    with pytest.raises(error):
        sw.ChunkStore(*arguments)


@pytest.mark.parametrize("setting", ["coalesce_bytes", "index_cache_bytes", "concurrency"])
def test_a_setting_that_is_no_number_is_named(path, setting):
    with pytest.raises(ConfigError, match=setting):
        sw.ChunkStore(path, **{setting: -1})


@pytest.mark.parametrize("settings", [{"strategy": "fastest"}, {"max_unused": 1.5}])
def test_a_strategy_that_is_none_is_named(path, settings):
    with pytest.raises(ConfigError, match="strategy or max_unused"):
        sw.ChunkStore(path, **settings)


def test_strategies_are_those_of_edits(path):
    zarr.open_array(path / "raw")[...] = 1
    before = (path / "raw/c/0/0").stat().st_ino
    with sw.ChunkStore(path, strategy="in_place") as store:
        store.set_sync("raw/c/0/0", buffer(b"\2" * 6))
    assert (path / "raw/c/0/0").stat().st_ino == before
    with sw.ChunkStore(path, strategy="rewrite") as store:
        store.set_sync("raw/c/0/0", buffer(b"\3" * 6))
    assert (path / "raw/c/0/0").stat().st_ino != before
    assert parse_array(path / "raw").is_sharded
    assert LocalBackend.has_lists


@pytest.mark.parametrize("shard_is_gone", [False, True])
def test_what_a_killed_edit_left_goes_with_its_array(tmp_path, shard_is_gone):
    """Else its journal would be applied to the next array of that name."""
    path = tmp_path / "a"

    def make(value):
        array = zarr.create_array(
            path,
            shape=(4, 8, 8),
            shards=(4, 8, 8),
            chunks=(1, 8, 8),
            dtype="uint8",
            compressors=None,
            dimension_names=["t", "y", "x"],
        )
        array[...] = value

    make(1)
    script = (
        "import os, sys\n"
        "import shardwright as sw\n"
        "from shardwright.disk import failpoints\n"
        "failpoints.set_hook('edit.before_write', lambda: os._exit(9))\n"
        "sw.update(sys.argv[1], {'t': 0}, 7)\n"
    )
    assert run_python("-c", script, path).returncode == 9
    assert list((path / EDIT_FOLDER).glob("*.journal"))
    if shard_is_gone:
        (path / "c/0/0/0").unlink()
    store = sw.ChunkStore(path)
    sync(store.delete_dir(""))
    assert not list(path.rglob("*"))
    make(5)
    sw.update(path, {"t": 3}, 9)
    assert zarr.open_array(path)[:, 0, 0].tolist() == [5, 5, 5, 9]


def test_a_shard_on_another_disk_is_not_deleted(tmp_path):
    path, folder = tmp_path / "a", "0"
    array = zarr.create_array(path / folder, shape=(4, 8), shards=(4, 8), chunks=(2, 8), dtype="uint8")
    array[...] = 1
    shard = path / folder / "c/0/0"
    shard.rename(tmp_path / "spilled")
    shard.symlink_to(tmp_path / "spilled")
    with pytest.raises(StorageError, match="another disk"):
        sync(sw.ChunkStore(path / folder).delete_dir(""))
    assert shard.is_symlink()


def test_an_index_of_bad_entries_takes_no_more_memory_than_a_good_one(path):
    array = parse_array(path / "raw")
    entries = empty_index(array.chunks_per_shard)
    good = ReadIndex.of(array.index, None, 100, entries)
    entries["offset"], entries["nbytes"] = 1 << 40, 5
    bad = ReadIndex.of(array.index, None, 100, entries)
    assert bad.nbytes == good.nbytes
    assert not any(isinstance(value, dict | list) for value in vars(bad).values())
    assert good.fault(0) is None
    assert f"5 bytes at {1 << 40}" in bad.fault(0)


PLAIN_CODECS = {"none": [LITTLE], "zstd": [LITTLE, ZSTD], "checked": [LITTLE, ZSTD, CRC]}


@pytest.fixture(params=PLAIN_CODECS.values(), ids=PLAIN_CODECS)
def recorded(request, tmp_path):
    """An array without shards that has a record of its chunks, each of which is there."""
    path = tmp_path / "a"
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps({**ARRAYS["plain"], "codecs": request.param}))
    zarr.open_array(path)[...] = 1
    (path / SUMS_NAME).write_bytes(b"")
    with sw.ChunkStore(path) as store:
        zarr.open_array(store)[...] = np.arange(84).reshape(7, 12)
    return path


def assert_all_recorded(path):
    report = verify_store(path)
    assert (report.problems, report.warnings) == ([], [])
    sums = ShardSums(path).read()
    there = {file.relative_to(path).as_posix() for file in path.rglob("c/*/*")}
    assert {key for key, values in sums.items() if values - {None}} >= there
    assert not (path / EDIT_FOLDER).exists()


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not")
def test_chunks_that_are_files_are_on_record_however_they_are_changed(recorded):
    assert_all_recorded(recorded)
    with sw.ChunkStore(recorded, strategy="append") as store:
        array = zarr.open_array(store)
        array[0, 0] = 77
        assert_all_recorded(recorded)
        sync(store.delete("c/0/1"))
        assert_all_recorded(recorded)
        sync(store.erase_values(["c/0/2", "c/1/2"]))
        assert_all_recorded(recorded)
        sync(store.erase_prefix("c/3/"))
        assert_all_recorded(recorded)
        sync(store.set_many([("c/0/1", buffer(get(store, "c/0/0")))]))
        assert_all_recorded(recorded)
    shown = zarr.open_array(recorded)[...]
    assert shown[0, 0] == shown[0, 3] == 77
    assert (shown[:4, 6:9] == 9).all()
    assert (shown[6:] == 9).all()
    with sw.ChunkStore(recorded) as store:
        sync(store.delete_dir(""))
    assert list(recorded.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "ask"), [("read", lambda s: get(s, "c/0/0")), ("size", lambda s: sync(s.exists("c/0/0")))]
)
def test_a_chunk_that_is_a_file_and_goes_with_its_array_is_no_fill_value(tmp_path, monkeypatch, call, ask):
    """Once the key was understood."""
    path = make_store(tmp_path) / "plain"
    zarr.open_array(path)[...] = 0
    real = getattr(LocalBackend, call)

    def gone(backend, key):
        if key == "c/0/0":
            shutil.rmtree(path, ignore_errors=True)
        return real(backend, key)

    monkeypatch.setattr(LocalBackend, call, gone)
    with sw.ChunkStore(path) as store, pytest.raises(StoreGoneError):
        ask(store)


PATCHER = """
import asyncio, sys
import shardwright as sw
with sw.ChunkStore(sys.argv[1]) as store:
    for value in range(1, 9):
        asyncio.run(store.set_partial_values([("c/0/0", int(sys.argv[2]), bytes([value]))]))
"""


def test_two_processes_patch_one_chunk_that_is_a_file_and_lose_nothing(tmp_path):
    """Each writes bytes of its own, and reads those of the others before it writes them back."""
    path = make_store(tmp_path) / "plain"
    zarr.open_array(path)[...] = 0
    places = range(3)
    processes = [start_python("-c", PATCHER, path, str(i)) for i in places]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert (path / "c/0/0").read_bytes() == bytes([8] * 3 + [0] * 3)


def test_a_patch_of_a_chunk_that_is_a_file_is_made_again_if_another_writer_was_first(tmp_path):
    path = make_store(tmp_path) / "plain"
    zarr.open_array(path)[...] = 0
    failpoints.set_hook(
        "compact.before_rename",
        failpoints.at_time(1, lambda: replace_file(path / "c/0/0", b"\0\0\0\0\0\5")),
    )
    try:
        with sw.ChunkStore(path) as store:
            sync(store.set_partial_values([("c/0/0", 0, b"\7")]))
    finally:
        failpoints.set_hook("compact.before_rename", None)
    assert (path / "c/0/0").read_bytes() == b"\7\0\0\0\0\5"
