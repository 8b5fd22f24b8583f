"""The store of a live view in the hands of zarr-python, dask and xarray, and its keys as any client reads
them."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dask
import dask.array
import numpy as np
import pytest
import xarray
import zarr
from tests.harness.event_loop import collected, sync
from tests.harness.plain_arrays import without_shards
from tests.harness.writing import how
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype

import shardwright as sw
from shardwright.codecs.chain import written_codecs
from shardwright.codecs.decode import decode_chunk_into
from shardwright.disk import beneath, failpoints
from shardwright.model.errors import LinkError, ShardFormatError, StorageError, StoreGoneError
from shardwright.read.live_shard import ComposedShard, LiveKeys
from shardwright.read.live_view import LiveView
from shardwright.read.zarr_store import LiveStore
from shardwright.shard.sealed_shard import SealedShard

from . import stores
from .live_judge import SHAPE, frame
from .test_live_view import QUICK, expected, spec

SELECTIONS: list[Any] = [
    np.s_[:],
    np.s_[3],
    np.s_[-1, 5:20, 7:],
    np.s_[2:7, 11:13, 30],
    np.s_[::3, ::2, 1::5],
    np.s_[4, 3, 2],
    np.s_[5:5],
    np.s_[..., 17],
]


class Plain(LiveStore):
    """Its shards are read by zarr-python's own codec, through keys and byte ranges."""

    def _with_our_codec(self, folder: str, document: dict[str, Any]) -> dict[str, Any]:
        return document


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "a.ome.zarr"
    with sw.create(path, spec(levels=1), **how(**QUICK)) as writer:
        for i in range(11):
            writer.append(frame(i))
    return path


@pytest.fixture
def writing(tmp_path):
    """A store with sealed shards, slabs in a shard in progress, and staged frames."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        for i in range(15):
            writer.append(frame(i))
        writer.flush()
        yield path, writer


def keys_of(store: Any, prefix: str = "") -> list[str]:
    return list(collected(store.list_prefix(prefix)))


def opened(store: LiveStore, path: str = "0") -> zarr.Array:
    return zarr.open_array(store, path=path, mode="r")


# ---------------------------------------------------------------------- zarr-python


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_every_selection_is_that_of_the_files(finished, selection):
    ours, files = opened(sw.open(finished)), zarr.open_array(finished / "0", mode="r")
    np.testing.assert_array_equal(ours[selection], files[selection])


def test_the_size_of_an_array_is_that_of_its_keys(finished):
    """Not that of keys whose folder's name begins with its."""
    store = sw.open(finished)
    nbytes = sum(sync(store.getsize(key)) for key in keys_of(store, "0/"))
    assert opened(store).nbytes_stored() == sync(store.getsize_prefix("0/")) == nbytes
    assert sync(store.getsize_prefix("fr")) == 0
    assert sync(store.getsize_prefix("")) == sum(sync(store.getsize(key)) for key in keys_of(store))


def test_selections_by_lists_and_masks_are_those_of_the_files(finished):
    ours, files = opened(sw.open(finished)), zarr.open_array(finished / "0", mode="r")
    mask = np.zeros(files.shape, np.bool_)
    mask[::4, 3, 5::7] = True
    for select in (
        lambda a: a.oindex[[0, 9, 4], [3, 20], :],
        lambda a: a.vindex[[0, 9, 4], [3, 20, 3], [1, 2, 31]],
        lambda a: a.get_mask_selection(mask),
        lambda a: a.blocks[1, 0, 0],
        lambda a: a.oindex[np.arange(11) % 3 == 1, :, 4],
    ):
        np.testing.assert_array_equal(select(ours), select(files))


@pytest.mark.parametrize("compressor", stores.COMPRESSORS)
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("index_location", ["start", "end", "none"])
def test_arrays_of_other_writers_are_read_the_same(tmp_path, compressor, checksum, index_location):
    layout = stores.Layout(compressor, checksum, index_location)
    stores.write_with_zarr_python(tmp_path / "a.zarr", layout)
    for store in (sw.open(tmp_path / "a.zarr"), Plain(tmp_path / "a.zarr")):
        array = zarr.open_array(store, mode="r")
        for selection in (np.s_[:], np.s_[3, 2:5, 1], np.s_[4]):
            np.testing.assert_array_equal(array[selection], stores.pixels(layout)[selection])


@pytest.mark.parametrize("encoding", ["v2", "default"])
def test_what_we_do_not_understand_is_left_to_zarr_python(tmp_path, encoding):
    array = zarr.create_array(
        tmp_path / "a.zarr",
        shape=(8, 8),
        chunks=(2, 2),
        shards=(4, 4),
        dtype="uint16",
        chunk_key_encoding={"name": encoding, "separator": "."},
    )
    array[...] = 7
    assert (zarr.open_array(sw.open(tmp_path / "a.zarr"), mode="r")[...] == 7).all()


@pytest.mark.parametrize("name", ["c", "0"])
@pytest.mark.parametrize("form", [lambda array: array, without_shards], ids=["shards", "no shards"])
def test_a_folder_may_have_a_name_that_is_a_part_of_chunk_keys(tmp_path, form, name):
    path, image = tmp_path / "a.ome.zarr", f"{name}/{name}/0"
    plate = sw.Plate(rows=[name], columns=[name])
    with sw.create(path, form(spec()), plate=plate, **how(**QUICK)) as writer:
        for i in range(5):
            writer.append(frame(i), image=image)
        writer.flush()
        for _ in ("while it is written", "finished"):
            store, key = sw.open(path), f"{image}/0/c/0/0/0"
            assert sync(store.exists(key))
            np.testing.assert_array_equal(opened(store, f"{image}/0")[...], expected(5))
            assert LiveView(path).shard_of_key(key)[0] == f"{image}/0"
            found = LiveKeys(LiveView(path), fixed_slots=True).find(key)
            assert isinstance(found, ComposedShard)
            assert found.has(0, found.nbytes)
            writer.close()


@pytest.mark.parametrize("folder", ["", "0", "c/0"])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(("encoding", "separator"), [("default", "/"), ("default", "."), ("v2", "/")])
def test_the_document_of_an_array_says_what_its_keys_are(tmp_path, encoding, separator, rank, folder):
    path = tmp_path / "a.zarr"
    zarr.create_group(path)
    array = zarr.create_array(
        path / folder,
        shape=(8,) * rank,
        chunks=(4,) * rank,
        dtype="uint16",
        compressors=zarr.codecs.BloscCodec(),
        chunk_key_encoding={"name": encoding, "separator": separator},
        overwrite=not folder,
    )
    array[...] = 7
    store = Plain(path)
    store._keys = LiveKeys(store.view, fixed_slots=True)
    keys = [key for key in keys_of(store) if not key.endswith("zarr.json")]
    assert len(keys) == 4 ** (rank // 2)
    assert all(isinstance(store._keys.find(key), ComposedShard) for key in keys)
    assert (zarr.open_array(store, path=folder, mode="r")[...] == 7).all()


@pytest.mark.parametrize("shards", [None, (8, 8)], ids=["no shards", "shards"])
@pytest.mark.parametrize(("encoding", "separator"), [("default", "/"), ("default", "."), ("v2", "/")])
def test_an_array_that_is_moved_away_is_no_fill_value(tmp_path, encoding, separator, shards):
    """Its document goes before its chunks do, for who has read it and for whom it was sent to."""
    path = tmp_path / "a.zarr"
    zarr.create_group(path)
    array = zarr.create_array(
        path / "0",
        shape=(8, 8),
        chunks=(4, 4),
        shards=shards,
        dtype="uint16",
        compressors=zarr.codecs.BloscCodec(),
        chunk_key_encoding={"name": encoding, "separator": separator},
    )
    array[...] = 7
    over_http = Plain(path)
    over_http._keys = LiveKeys(over_http.view, fixed_slots=True)
    arrays = [opened(store) for store in (sw.open(path), Plain(path), over_http)]
    arrays.append(pickle.loads(pickle.dumps(arrays[0])))
    arrays.append(zarr.open_array(sw.open(path).with_read_only(True), path="0", mode="r"))
    assert all((array[...] == 7).all() for array in arrays)
    (path / "0/zarr.json").unlink()
    for _ in ("its chunks are still there", "and no more"):
        for array in arrays:
            with pytest.raises(ShardFormatError, match=r"^0 is no array that is read here"):
                array[0, 0]
        for file in (path / "0").rglob("*"):
            if file.is_file():
                file.unlink()
    shutil.rmtree(path)
    for array in arrays:
        with pytest.raises(StoreGoneError):
            array[0, 0]


@pytest.mark.parametrize("encoding", ["default", "v2"])
def test_chunks_of_another_layout_are_an_error(tmp_path, encoding):
    def create(chunks: tuple[int, int]) -> zarr.Array:
        keys = {"name": encoding, "separator": "/"}
        return zarr.create_array(
            path / "0", shape=(8, 8), chunks=chunks, dtype="uint16", chunk_key_encoding=keys, overwrite=True
        )

    path = tmp_path / "a.zarr"
    zarr.create_group(path)
    create((4, 4))[...] = 7
    store = sw.open(path)
    array = opened(store)
    assert (array[...] == 7).all()
    array_of_now = zarr.open_array(path / "0")
    array_of_now.attrs["note"] = "a document of another version, and the same array"
    (path / "0" / array_of_now.metadata.encode_chunk_key((0, 0))).unlink()
    assert array[0, 0] == 0
    assert array[7, 7] == 7
    create((2, 2))
    with pytest.raises(ShardFormatError, match="another layout than when it was opened"):
        array[0, 0]
    assert opened(store)[0, 0] == 0


@pytest.mark.parametrize("form", [lambda array: array, without_shards], ids=["shards", "no shards"])
def test_a_second_root_that_is_not_mounted_is_an_error_and_no_fill_value(tmp_path, form):
    path, second = tmp_path / "rig/a.ome.zarr", tmp_path / "second"
    with sw.create(path, form(spec()), **how(**QUICK)) as writer:
        for i in range(5):
            writer.append(frame(i))
    spilled = second / path.name / "0/c/0/0/0"
    spilled.parent.mkdir(parents=True)
    (path / "0/c/0/0/0").rename(spilled)
    (path / "0/c/0/0/0").symlink_to(spilled)
    readers = {
        "sw.open": lambda: opened(sw.open(path))[0],
        "by keys": lambda: zarr.open_array(Plain(path), path="0", mode="r")[0],
        "open_array": lambda: sw.open_array(path)[0],
        "chunk store": lambda: zarr.open_array(sw.ChunkStore(path), path="0", mode="r")[0],
    }
    for name, read in readers.items():
        np.testing.assert_array_equal(read(), frame(0), err_msg=name)
    second.rename(tmp_path / "unmounted")
    for read in readers.values():
        with pytest.raises(LinkError, match="is the second root mounted"):
            read()


def test_a_sparse_selection_reads_the_chunks_that_it_wants(tmp_path, monkeypatch):
    with sw.create(tmp_path / "a.ome.zarr", spec(chunk=1, shard=64), **how(**QUICK)) as writer:
        for i in range(64):
            writer.append(frame(i))
    array = opened(sw.open(tmp_path / "a.ome.zarr"))
    boxes = []
    real = LiveView.read_box
    monkeypatch.setattr(LiveView, "read_box", lambda *args: boxes.append(args) or real(*args))
    np.testing.assert_array_equal(array[::20], expected(64)[::20])
    np.testing.assert_array_equal(array.oindex[[0, 63]], expected(64)[[0, 63]])
    np.testing.assert_array_equal(
        array.vindex[[0, 63], [1, 2], [3, 4]], expected(64)[[0, 63], [1, 2], [3, 4]]
    )
    assert not boxes
    np.testing.assert_array_equal(array[3:40:2], expected(64)[3:40:2])
    assert boxes


def test_metadata_are_those_of_the_files(finished):
    ours, files = opened(sw.open(finished)), zarr.open_array(finished / "0", mode="r")
    assert ours.metadata.to_dict() == files.metadata.to_dict()
    assert (ours.shards, ours.chunks, ours.fill_value) == (files.shards, files.chunks, files.fill_value)
    group = zarr.open_group(sw.open(finished), mode="r")
    assert dict(group.attrs) == dict(zarr.open_group(finished, mode="r").attrs)
    assert sorted(group.keys()) == ["0", "1", "frames"]
    assert sorted(group["frames"]["sequence"][:].tolist()) == list(range(11))


def test_what_is_not_ours_in_a_store_is_left_to_zarr_python(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        writer.append(frame(0))
    label = zarr.create_array(path / "labels" / "cells", shape=(4, 6), chunks=(2, 3), dtype="int32")
    label[...] = np.arange(24).reshape(4, 6)
    np.testing.assert_array_equal(opened(sw.open(path), "labels/cells")[...], label[...])


def test_nothing_can_be_written(finished):
    store = sw.open(finished)
    assert store.read_only
    assert not store.supports_writes
    with pytest.raises(ValueError, match="read-only"):
        opened(store)[0] = 0
    value = default_buffer_prototype().buffer.from_bytes(b"x")
    for wish in (store.set("a", value), store.delete("zarr.json")):
        with pytest.raises(ValueError, match="read-only"):
            sync(wish)


def test_a_missing_zarr_python_is_named_with_what_installs_it(finished):
    code = f"import sys; sys.modules['zarr'] = None; import shardwright; shardwright.open({str(finished)!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(sw.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "ConfigError: shardwright.open needs shardwright[zarr]" in done.stderr
    assert "pip install" in done.stderr


def test_equal_stores_are_of_one_path(finished, writing):
    store = sw.open(finished)
    assert store == sw.open(finished)
    assert store != sw.open(writing[0])
    assert pickle.loads(pickle.dumps(store)) == store
    assert store.with_read_only(True) == store
    assert str(finished) in repr(store)


# ---------------------------------------------------------------------- other processes and libraries


def total(array: zarr.Array) -> int:
    return int(array[...].astype(np.int64).sum())


def test_an_array_can_be_sent_to_another_process(writing):
    array = opened(sw.open(writing[0]))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(total, array).result() == int(expected(15).astype(np.int64).sum())


def test_dask_reads_a_running_acquisition_in_processes(writing):
    array = dask.array.from_zarr(opened(sw.open(writing[0])))
    assert array.chunks[0] == (4, 4, 4, 3)
    with dask.config.set(scheduler="processes", num_workers=2):
        np.testing.assert_array_equal(array.compute(), expected(15))


def test_xarray_opens_an_image(writing):
    store = sw.open(writing[0])
    data = xarray.DataArray(dask.array.from_zarr(opened(store)), dims=("t", "y", "x"))
    np.testing.assert_array_equal(data.isel(t=14).values, frame(14))
    found = xarray.open_zarr(store, consolidated=False, zarr_format=3, mask_and_scale=False)
    np.testing.assert_array_equal(found["0"].isel(t=slice(9, 15)).values, expected(15)[9:])


# ---------------------------------------------------------------------- keys


def test_zarr_python_alone_reads_the_keys_of_a_running_acquisition(writing):
    for selection in SELECTIONS[:6]:
        np.testing.assert_array_equal(
            opened(Plain(writing[0]))[selection], expected(15)[selection], err_msg=str(selection)
        )


@pytest.mark.parametrize(
    "fields",
    [{"codec": sw.Zstd()}, {"codec": sw.Gzip()}, {"codec": None}, {"chunk_checksum": True}],
    ids=["zstd", "gzip", "none", "checksum"],
)
@pytest.mark.parametrize("io", ["pwrite", "mmap"])
def test_staged_frames_are_whole_chunks_of_their_codec(tmp_path, fields, io):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(**fields), **how(io=io, **QUICK)) as writer:
        for i in range(6):
            writer.append(frame(i))
        writer.flush()
        array = opened(Plain(path))
        assert type(array.metadata.codecs[0]).__name__ == "ShardingCodec"
        np.testing.assert_array_equal(array[...], expected(6))


def is_absent(keys: LiveKeys, key: str) -> bool:
    found = keys.find(key)
    return found is None or not found.has(0, found.nbytes)


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
@pytest.mark.parametrize("index_location", ["start", "end"])
def test_the_places_in_a_shard_stay_while_it_fills_and_when_it_is_sealed(tmp_path, index_location):
    path, lengths, generations = tmp_path / "a.ome.zarr", set(), []
    with sw.create(path, spec(index_location=index_location), **how(io="pwrite", **QUICK)) as writer:
        keys = LiveKeys(LiveView(path))
        assert is_absent(keys, "0/c/0/0/0")
        for i in range(8):
            writer.append(frame(i))
            writer.flush()
            shard = keys.find("0/c/0/0/0")
            assert isinstance(shard, ComposedShard)
            lengths.add(shard.nbytes)
            generations.append(shard.generation)
            whole = shard.read(0, shard.nbytes)
            assert len(whole) == shard.nbytes
            for start, stop in itertools.pairwise((0, 1, 100, 4097, shard.nbytes - 7, shard.nbytes)):
                assert shard.read(start, stop) == whole[start:stop]
            assert keys.find("0/c/0/0/0").generation == generations[-1]
        while not (path / "0/c/0/0/0").exists():
            pass
        shard = keys.find("0/c/0/0/0")
        lengths.add(shard.nbytes)
        assert shard.read(0, shard.nbytes) == whole
    assert len(lengths) == 1
    assert len(set(generations)) == len(generations)
    sealed = keys.find("0/c/0/0/0")
    assert not isinstance(sealed, ComposedShard)
    assert sealed.read(0, sealed.nbytes) == (path / "0/c/0/0/0").read_bytes()


@pytest.mark.parametrize(
    "fields",
    [{}, {"codec": sw.Zstd()}, {"codec": sw.Gzip()}, {"codec": None}, {"chunk_checksum": True}],
    ids=["blosc", "zstd", "gzip", "none", "checksum"],
)
def test_a_key_without_shards_is_one_encoded_chunk_of_the_same_length_at_all_times(tmp_path, fields):
    """Partly staged, whole, and sealed while the acquisition runs; then the file is the key."""
    path, lengths, generations = tmp_path / "a.ome.zarr", set(), []
    array = without_shards(spec(**fields))
    with sw.create(path, array, **how(io="pwrite", **QUICK)) as writer:
        keys = LiveKeys(LiveView(path))
        assert is_absent(keys, "0/c/0/0/0")
        decode = written_codecs(array)
        for i in range(9):
            writer.append(frame(i))
            writer.flush()
            chunk = keys.find("0/c/0/0/0")
            assert isinstance(chunk, ComposedShard)
            lengths.add(chunk.nbytes)
            generations.append(chunk.generation)
            whole = chunk.read(0, chunk.nbytes)
            assert len(whole) == chunk.nbytes
            for start, stop in itertools.pairwise((0, 1, 17, 100, chunk.nbytes - 7, chunk.nbytes)):
                assert chunk.read(start, stop) == whole[start:stop]
            decoded = np.empty((4, SHAPE[0] // 2, 20), np.uint16)
            decode_chunk_into(memoryview(whole), decode, decoded.view(np.uint8).reshape(-1))
            there = min(i + 1, 4)
            np.testing.assert_array_equal(decoded[:there], expected(there)[:, : SHAPE[0] // 2, :20])
            assert not decoded[there:].any()
        while not (path / "0/c/0/0/0").exists():
            pass
        chunk = keys.find("0/c/0/0/0")
        lengths.add(chunk.nbytes)
        assert chunk.read(0, chunk.nbytes) == whole
        assert keys.find("0/c/2/0/0").nbytes in lengths
        assert is_absent(keys, "0/c/3/0/0")
        np.testing.assert_array_equal(opened(sw.open(path))[...], expected(9))
    assert len(lengths) == 1
    assert len(set(generations[:4])) == 4
    sealed = keys.find("0/c/0/0/0")
    assert not isinstance(sealed, ComposedShard)
    assert sealed.read(0, sealed.nbytes) == (path / "0/c/0/0/0").read_bytes()


def test_the_keys_of_a_running_acquisition_are_listed(writing):
    path, writer = writing
    store = sw.open(path)
    shards = [f"0/c/{t}/{y}/0" for t in (0, 1) for y in (0, 1)]
    assert [key for key in keys_of(store) if "/c/" in key] == shards
    assert sorted(collected(store.list_dir("0"))) == ["c", "shards.crc32c", "zarr.json"]
    assert not [key for key in keys_of(store) if key.startswith(".") or "/." in key]
    for key in keys_of(store):
        assert sync(store.exists(key)), key
        assert sync(store.getsize(key)) == len(store.get_sync(key)), key
    writer.close()
    on_disk = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert set(keys_of(store)) == on_disk


@pytest.mark.parametrize("kind", [sw.open, sw.ChunkStore])
def test_a_folder_that_cannot_be_listed_is_an_error_and_no_absent_keys(finished, monkeypatch, kind):
    store, real = kind(finished), beneath.entries_in

    def entries_in(path: Path, **more: Any) -> Any:
        if path.name == "c":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, **more)

    assert "0/c/0/0/0" in keys_of(store, "0/")
    monkeypatch.setattr(beneath, "entries_in", entries_in)
    for prefix in ("0/", "0/c/"):
        with pytest.raises(StorageError, match="Raise the limit of open files"):
            keys_of(store, prefix)
    assert keys_of(store, "nothing/") == []


def test_a_shard_that_is_edited_while_its_index_is_read_is_found_again(finished, monkeypatch):
    real, torn = SealedShard.check_sound, [True]

    def check_sound(shard: SealedShard[Any]) -> None:
        if torn:
            raise ShardFormatError(f"index fails its checksum: {torn.pop()}")
        real(shard)

    monkeypatch.setattr(SealedShard, "check_sound", check_sound)
    found = LiveKeys(LiveView(finished), fixed_slots=True).find("0/c/0/0/0")
    assert isinstance(found, ComposedShard)
    assert not torn
    assert found.has(0, found.nbytes)
    monkeypatch.setattr(SealedShard, "check_sound", Mock(side_effect=ShardFormatError("damaged")))
    with pytest.raises(ShardFormatError, match="damaged"):
        LiveKeys(LiveView(finished), fixed_slots=True).find("0/c/0/0/0")


def test_byte_ranges_of_documents_and_shards(finished):
    store = sw.open(finished)
    for key in ("zarr.json", "0/c/0/0/0", "frames/zarr.json"):
        whole = store.get_sync(key).to_bytes()
        ranges = {
            RangeByteRequest(2, 9): whole[2:9],
            OffsetByteRequest(5): whole[5:],
            SuffixByteRequest(6): whole[-6:],
            RangeByteRequest(3, 10**9): whole[3:],
        }
        for wish, right in ranges.items():
            assert store.get_sync(key, byte_range=wish).to_bytes() == right
        asked = [(key, wish) for wish in ranges]
        found = sync(store.get_partial_values(default_buffer_prototype(), asked))
        assert [buffer.to_bytes() for buffer in found] == list(ranges.values())


@pytest.mark.parametrize(
    "key", ["", "..", "../a", "0/../zarr.json", "/etc/passwd", ".shardwright/lock", "0//c", "a\0b", "nothing"]
)
def test_keys_that_are_not_there(writing, key):
    store = sw.open(writing[0])
    assert store.get_sync(key) is None
    assert not sync(store.exists(key))


def test_a_shard_that_changes_between_two_reads_is_never_mixed(tmp_path):
    """One read of the view takes all chunks from one state, whatever happens after it has found them."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(codec=None), **how(**QUICK)) as writer:
        for i in range(7):
            writer.append(frame(i))
        writer.flush()
        view = LiveView(path)
        done = []

        def seal(name: str) -> None:
            if name == "staging.before_read" and not done:
                done.append(True)
                failpoints.watch_all(None)
                for i in range(7, 17):
                    writer.append(frame(i))
                writer.flush()

        failpoints.watch_all(seal)
        try:
            found = view.read_box("0", (0, 0, 0), (0, 0, 0), (8, SHAPE[0] // 2, SHAPE[1]))
        finally:
            failpoints.watch_all(None)
        assert done
        np.testing.assert_array_equal(found[:7], expected(7)[:, : SHAPE[0] // 2])
        assert (found[7] == frame(7)[: SHAPE[0] // 2]).all() or not found[7].any()
