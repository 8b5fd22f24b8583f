"""Shards that are HDF5 files at the same time: readers of Zarr and of HDF5 find the same pixels, before and
after a library has opened the files by HDF5 to change them; what would break that is refused by name."""

import errno
import itertools
import json
import shutil
import subprocess

import h5py
import hdf5plugin
import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk.files import open_regular
from shardwright.model.errors import (
    ConfigError,
    LockedError,
    ResumeError,
    ShardFormatError,
    ShardwrightError,
    StorageFullError,
    StrategyError,
)
from shardwright.read import hdf5_sources
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store
from shardwright.shard.shard_description import user_block_bytes

from .images import POLITE, run_here
from .moving_store import execute

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
SHAPE = (11, 70, 90)
HDF5 = Options(container="hdf5", idle=False)
KINDS = [("blosc", "uint16"), ("zstd", "float32"), ("none", "int8"), (sw.Blosc(cname="zstd"), "uint8")]


class Here:
    workers = 1

    def run(self, tasks, on_moved=None):
        for task in tasks:
            yield run_task({**task, "throttle": {**task["throttle"], "idle": False}})

    def close(self) -> None: ...


def compact(store, options=HDF5) -> dict:
    return run(plan(open_store(store), options), Here()).to_dict()


def pixels(dtype="uint16") -> np.ndarray:
    """Noise; one corner is empty in some frames, so that chunks are absent."""
    made = np.random.default_rng(5).poisson(20, SHAPE).astype(dtype)
    made[4:8, :64, :64] = 0
    return made


@pytest.fixture
def store_of(tmp_path):
    def write(codec="blosc", dtype="uint16", name="run.ome.zarr", **settings):
        chunks, shards = {"t": 2, "y": 32, "x": 32}, {"t": 4, "y": 64, "x": 64}
        made = {"axes": "tyx", "chunks": chunks, "shards": shards, "codec": codec}
        made["levels"] = settings.pop("levels", None)
        with sw.create(tmp_path / name, shape=SHAPE, dtype=dtype, **made, **how(**settings)) as writer:
            writer.append_many(pixels(dtype))
        return tmp_path / name

    return write


def by_zarr(array) -> np.ndarray:
    return np.asarray(zarr.open_array(array, mode="r")[...])


def by_tensorstore(array) -> np.ndarray:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(array)}}
    return np.asarray(tensorstore.open(spec).result().read().result())


def by_hdf5(store, name="0") -> np.ndarray:
    with h5py.File(store / "acquisition.h5") as file:
        return file[name][...]


def shards_of(store, level="0"):
    return sorted(path for path in (store / level / "c").rglob("*") if path.is_file())


@pytest.mark.parametrize("live", ["none", "index"])
@pytest.mark.parametrize(("codec", "dtype"), KINDS)
def test_readers_of_both_formats_find_the_same(store_of, codec, dtype, live) -> None:
    store, wanted = store_of(codec, dtype, levels=2, live=live), pixels(dtype)
    assert compact(store)["ok"]
    for read in (by_zarr, by_tensorstore):
        np.testing.assert_array_equal(read(store / "0"), wanted)
    np.testing.assert_array_equal(by_hdf5(store), wanted)
    np.testing.assert_array_equal(by_hdf5(store, "1"), by_zarr(store / "1"))
    with h5py.File(store / "acquisition.h5") as file:
        assert set(file) == {"0", "1", "2"}
        assert {source.file_name for source in file["0"].virtual_sources()} == {
            path.relative_to(store).as_posix() for path in shards_of(store)
        }
    first = shards_of(store)[0]
    with h5py.File(first) as file:
        assert file["data"].chunks == (2, 32, 32)
        np.testing.assert_array_equal(file["data"][:2, :32, :32], wanted[:2, :32, :32])
    assert verify_store(store).problems == []
    array = parse_array(store / "0")
    assert (array.container, array.index_location) == ("hdf5", "start")


@pytest.mark.parametrize("codec", ["blosc", "none"])
def test_the_index_outlives_what_hdf5_does_to_the_files(store_of, codec) -> None:
    """With the index at the end the first of these cut it off."""
    store = store_of(codec)
    assert compact(store)["ok"]
    for path in shards_of(store):
        before = path.stat().st_size
        with h5py.File(path, "r+") as file:
            file.attrs["note"] = np.arange(2000)
            file.create_group("analysis").create_dataset("mask", data=np.ones((64, 64), "uint8"))
        assert path.stat().st_size != before
    np.testing.assert_array_equal(by_zarr(store / "0"), pixels())
    np.testing.assert_array_equal(by_tensorstore(store / "0"), pixels())
    np.testing.assert_array_equal(by_hdf5(store), pixels())
    assert verify_store(store).problems == []
    kept = [path.read_bytes() for path in shards_of(store)]
    report = compact(store, Options(idle=False))  # what others have put there stays
    assert (report["packed"], report["skipped"]) == (0, len(kept))
    assert [path.read_bytes() for path in shards_of(store)] == kept


def test_a_user_block_is_as_large_as_the_index(tmp_path) -> None:
    store, wanted = tmp_path / "many.ome.zarr", pixels()[:4]
    chunks, shards = {"t": 1, "y": 2, "x": 4}, {"t": 4, "y": 64, "x": 64}
    with sw.create(
        store, shape=wanted.shape, dtype="uint16", axes="tyx", chunks=chunks, shards=shards
    ) as writer:
        writer.append_many(wanted)
    assert compact(store, Options(container="hdf5", describe=True, idle=False))["ok"]
    array, path = parse_array(store / "0"), store / "0/c/0/0/0"
    assert array.index_bytes == 16 * 4 * 32 * 16 + 4
    with h5py.File(path) as file:
        assert file.userblock_size == user_block_bytes(array.index_bytes + 500) == 65536
    np.testing.assert_array_equal(by_hdf5(store), wanted)
    np.testing.assert_array_equal(by_zarr(store / "0"), wanted)


def test_h5dump_reads_a_shard(store_of) -> None:
    """A program that knows neither h5py nor us."""
    if shutil.which("h5dump") is None:
        pytest.skip("NOT TESTED: no h5dump; apt-get install hdf5-tools")
    store = store_of("none")
    assert compact(store)["ok"]
    asked = ["h5dump", "-d", "/data", "-s", "0,0,0", "-c", "1,1,8", "-y", "-w", "0", str(shards_of(store)[0])]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert ", ".join(map(str, pixels()[0, 0, :8])) in said
    header = subprocess.run(
        ["h5dump", "-p", "-H", str(store / "acquisition.h5")], capture_output=True, text=True, check=True
    ).stdout
    assert "VIRTUAL" in header
    assert '"0/c/0/0/0"' in header


def test_a_moved_store_keeps_both_forms(store_of, tmp_path) -> None:
    store = store_of()
    assert compact(store, Options(container="hdf5", describe=True, idle=False))["ok"]
    kept = [path.read_bytes() for path in shards_of(store)]
    away = tmp_path / "away.ome.zarr"
    report = move_store(store, MoveOptions(str(away), throttle=POLITE), execute)
    assert (report.ok, report.unpacked, report.damaged) == (True, [], [])
    assert [path.read_bytes() for path in shards_of(away)] == kept
    shutil.rmtree(store)
    np.testing.assert_array_equal(by_hdf5(away), pixels())
    assert verify_store(away).problems == []


@pytest.mark.parametrize(
    ("named", "fields"),
    [
        ("gzip", {"codec": sw.Gzip()}),
        ("crc32c", {"chunk_checksum": True}),
        ("transpose", {"storage_order": ("t", "x", "y")}),
        ("without shards", {"shards": None}),
    ],
)
def test_what_hdf5_does_not_hold_is_refused_by_name(tmp_path, named, fields) -> None:
    store, shards = tmp_path / "run.ome.zarr", fields.pop("shards", 2)
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=k, shard_size_chunks=shards)
        for name, count, k in (("t", 4, 2), ("y", 32, 16), ("x", 32, 16))
    ]
    with sw.create(store, sw.ArraySpec(dtype="uint16", dimensions=dimensions, **fields)) as writer:
        writer.append_many(np.ones((4, 32, 32), "uint16"))
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with pytest.raises(ShardFormatError, match=f"cannot be packed as HDF5.*{named}"):
        compact(store)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("fault", ["damaged", "spilled", "in progress"])
def test_a_store_that_cannot_be_packed_whole_is_left_as_it_is(store_of, tmp_path, fault) -> None:
    store = store_of()
    shard = store / "0/c/1/0/1"
    if fault == "damaged":
        data = bytearray(shard.read_bytes())
        data[-3] ^= 1
        shard.write_bytes(data)
    elif fault == "spilled":
        file = tmp_path / "spill" / store.name / "0/c/1/0/1"
        file.parent.mkdir(parents=True)
        shard.rename(file)
        shard.symlink_to(file)
    else:
        (store / ".shardwright").mkdir()
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with pytest.raises(ShardwrightError) as caught:
        compact(store)
    assert isinstance(caught.value, LockedError) == (fault == "in progress")
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_zstd_frame_that_does_not_tell_its_size_leaves_the_store_in_one_form(tmp_path) -> None:
    """HDF5's filter needs it. Shards that were packed before are read as before."""
    store = tmp_path / "foreign.zarr"
    array = zarr.create_array(
        store,
        shape=(4, 64),
        chunks=(1, 32),
        shards=(2, 64),
        dtype="uint16",
        compressors=zarr.codecs.ZstdCodec(),
    )
    array[...] = wanted = np.arange(256, dtype="uint16").reshape(4, 64)
    path = store / "c/1/0"
    ours = parse_array(store)
    with ours.open_shard((1, 0)) as sealed:
        entries = sealed.entries.copy()
        chunks = [bytes(sealed.file.read(int(e["offset"]), int(e["nbytes"]))) for e in entries]
    raw = wanted[2, :32].tobytes()
    # RFC 8878: magic, no content size, window of 2 MiB, one raw block, the last one
    chunks[0] = b"\x28\xb5\x2f\xfd\x00\x58" + (len(raw) << 3 | 1).to_bytes(3, "little") + raw
    at = 0
    for entry, chunk in zip(entries, chunks, strict=True):
        entry["offset"], entry["nbytes"], at = at, len(chunk), at + len(chunk)
    path.write_bytes(b"".join(chunks) + ours.index.encode(entries))
    report = compact(store)
    assert list(report["failures"]) == ["c/1/0"]
    assert "does not tell its whole size" in report["failures"]["c/1/0"]["message"]
    np.testing.assert_array_equal(by_zarr(store), wanted)
    assert parse_array(store).container is None
    assert not (store / "acquisition.h5").exists()


def test_a_bare_array_has_one_dataset(tmp_path) -> None:
    store = tmp_path / "bare.zarr"
    array = zarr.create_array(
        store,
        shape=(5, 50),
        chunks=(1, 16),
        shards=(2, 32),
        dtype="float64",
        fill_value=np.nan,
        compressors=None,
    )
    array[:3] = wanted = np.random.default_rng(1).random((3, 50))
    assert compact(store)["ok"]
    found = by_hdf5(store, "data")
    np.testing.assert_array_equal(found[:3], wanted)
    assert np.isnan(found[3:]).all()
    np.testing.assert_array_equal(by_zarr(store)[:3], wanted)


def test_changes_are_refused_before_anything_changes(store_of) -> None:
    store = store_of()
    assert compact(store)["ok"]
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    refused = "hdf5 files as well, and are not changed"
    with pytest.raises(ShardFormatError, match=refused):
        sw.update(store, {"t": (0, 1)}, 7)
    with pytest.raises(ShardFormatError, match=refused):
        sw.erase(store, {"t": (0, 4)})
    chunks = zarr.open(sw.ChunkStore(store))["0"]
    np.testing.assert_array_equal(chunks[...], pixels())
    with pytest.raises(ShardFormatError, match=refused):
        chunks[4:6, :32, :32] = 7  # of a shard that is not there
    with pytest.raises(ConfigError, match="keep their chunks"):
        compact(store, Options(recompress={"cname": "zstd", "clevel": 1, "shuffle": None}))
    with pytest.raises(ConfigError, match="keep their chunks"):
        compact(store, Options(trim=True))
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("live", ["none", "index"])
def test_frames_do_not_go_on_in_it(tmp_path, live) -> None:
    store = tmp_path / "grows.ome.zarr"
    made = {"shape": (None, 32, 32), "dtype": "uint16", "axes": "tyx", "chunks": {"t": 2}, "shards": {"t": 4}}
    with sw.create(store, **made, **how(live=live)) as writer:
        writer.append_many(np.ones((3, 32, 32), "uint16"))
    assert compact(store)["ok"]
    with pytest.raises(ResumeError, match="packed as HDF5"):
        sw.resume(store)


def test_an_edit_that_began_before_is_refused_too(store_of) -> None:
    """It knows the array as it was: it would write another index than the one that is read now."""
    from shardwright.rework.edit.shard_edit import edit_shard

    store = store_of()
    array = parse_array(store / "0")
    with array.open_shard((0, 0, 0)) as sealed:
        entry = sealed.entries[0]
        chunk = bytes(sealed.file.read(int(entry["offset"]), int(entry["nbytes"])))
    assert compact(store)["ok"]
    with pytest.raises(ShardFormatError, match="are not changed"):
        edit_shard(array, (0, 0, 0), {1: chunk})
    np.testing.assert_array_equal(by_zarr(store / "0"), pixels())


def test_new_arrays_of_such_shards_are_plain(store_of, tmp_path) -> None:
    store = store_of()
    assert compact(store)["ok"]
    options, new = RechunkOptions({"t": 1}), tmp_path / "new.ome.zarr"
    write_new_store(plan_new_store(store, options), new, options, run_here, throttle=POLITE)
    assert parse_array(new / "0").container is None
    assert not (new / "acquisition.h5").exists()
    np.testing.assert_array_equal(by_zarr(new / "0"), pixels())
    sw.update(new, {"t": (0, 1)}, 7)
    add_levels(store, PyramidOptions(1), run_here, throttle=POLITE)
    assert parse_array(store / "1").container is None
    assert compact(store)["ok"]
    assert parse_array(store / "1").container == "hdf5"
    np.testing.assert_array_equal(by_hdf5(store, "1"), by_zarr(store / "1"))


def test_verify_tells_what_is_no_hdf5_any_more(store_of) -> None:
    store = store_of("none")
    assert compact(store)["ok"]
    zarr.open_array(store / "0", mode="r+")[0, 0, 70] = 9  # zarr-python writes the second shard anew
    (store / "acquisition.h5").unlink()
    problems = [str(problem) for problem in verify_store(store).problems]
    key = shards_of(store)[1].relative_to(store).as_posix()
    assert f"{key}: it is no hdf5 file of this array, as its zarr.json says: it was replaced" in problems
    assert any("acquisition.h5 is not there" in problem for problem in problems)
    assert compact(store)["ok"]
    assert (store / "acquisition.h5").exists()


def test_verify_names_shards_that_the_virtual_dataset_has_and_that_are_gone(store_of, monkeypatch) -> None:
    """Also without a record of the shards, which stores of other programs do not have."""
    monkeypatch.setattr(hdf5_sources, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(hdf5_sources, "_MOST_NAME_BYTES", 100)  # names lie across pieces
    store = store_of("none", levels=2)
    assert compact(store)["ok"]
    levels = [store / level for level in "012"]
    for level in levels:
        (level / "shards.crc32c").unlink()
    found = hdf5_sources.hdf5_sources(store / "acquisition.h5", [parse_array(level) for level in levels])
    assert found == {
        level: {p.relative_to(level).as_posix() for p in shards_of(store, level.name)} for level in levels
    }
    assert verify_store(store).problems == []
    gone = shards_of(store)[1]
    key = gone.relative_to(store).as_posix()
    gone.rename(store.parent / "elsewhere")
    problems = [str(problem) for problem in verify_store(store).problems]
    assert problems == [f"{key}: missing, although acquisition.h5 names it: both formats read fill value"]


def test_verify_reads_the_virtual_dataset_once_for_all_arrays(store_of, monkeypatch) -> None:
    """A plate has thousands of them."""
    store, opened = store_of("none", levels=2), []
    assert compact(store)["ok"]
    monkeypatch.setattr(hdf5_sources, "open_regular", lambda path: opened.append(path) or open_regular(path))
    assert verify_store(store).problems == []
    assert opened == [store / "acquisition.h5"]


def test_a_name_that_ends_as_one_of_another_array_is_not_taken_for_it(tmp_path) -> None:
    """Other programs give arrays any names."""
    arrays = {}
    for name in ("2", "12", "left 2", "é2"):
        zarr.create_array(tmp_path / name, shape=(9,), chunks=(3,), shards=(3,), dtype="uint8")
        arrays[name] = parse_array(tmp_path / name)
    with h5py.File(tmp_path / "acquisition.h5", "w") as file:
        for i, name in enumerate(arrays):
            layout = h5py.VirtualLayout(shape=(9,), dtype="uint8")
            layout[:3] = h5py.VirtualSource(f"{name}/c/{i}", "data", (3,), "uint8")[:]
            file.create_virtual_dataset(name, layout)
    found = hdf5_sources.hdf5_sources(tmp_path / "acquisition.h5", [*arrays.values()])
    assert found == {tmp_path / name: {f"c/{i}"} for i, name in enumerate(arrays)}


def test_hdf5_that_was_damaged_ends_no_process(store_of) -> None:
    """What we do never reads it: h5py ends the process for some of these files."""
    store = store_of("none")
    assert compact(store)["ok"]
    path, array = shards_of(store)[0], parse_array(store / "0")
    sound = path.read_bytes()
    with array.open_shard((0, 0, 0)) as sealed:
        entries, live = sealed.entries, sealed.index.live
    chunks = [(int(e["offset"]), int(e["offset"] + e["nbytes"])) for e in entries[live]]
    own = [at for at in range(1024, len(sound)) if not any(start <= at < stop for start, stop in chunks)]
    random = np.random.default_rng(3)
    for _ in range(20):
        data = bytearray(sound)
        for at in random.choice(own, 200):
            data[at] ^= 1 << random.integers(8)
        path.write_bytes(data)
        verify_store(store)
        plan(open_store(store), HDF5)
        np.testing.assert_array_equal(by_zarr(store / "0"), pixels())


def test_a_shard_that_zarr_python_replaced_is_packed_again(store_of) -> None:
    store = store_of()
    assert compact(store)["ok"]
    zarr.open_array(store / "0", mode="r+")[0, 0, 0] = 9
    report = compact(store, Options(idle=False))
    assert (report["ok"], report["packed"]) == (True, 1)
    wanted = pixels()
    wanted[0, 0, 0] = 9
    np.testing.assert_array_equal(by_hdf5(store), wanted)
    np.testing.assert_array_equal(by_zarr(store / "0"), wanted)


def test_consolidated_metadata_say_where_the_index_is(store_of) -> None:
    store = store_of()
    with pytest.warns(UserWarning, match="Consolidated"):
        zarr.consolidate_metadata(store)
    assert compact(store)["ok"]
    copied = json.loads((store / "zarr.json").read_text())["consolidated_metadata"]["metadata"]["0"]
    assert copied["codecs"] == json.loads((store / "0/zarr.json").read_text())["codecs"]
    assert verify_store(store).problems == []


@pytest.mark.parametrize("live", ["none", "index"])
def test_a_shard_that_is_edited_between_two_runs_is_packed_again(store_of, monkeypatch, live) -> None:
    """The first run ends before zarr.json says what the shards are. An edit that would let HDF5 name the old
    bytes is refused: it makes a shard without HDF5."""
    from shardwright.rework.jobs import compact_store as module

    store = store_of("none", live=live)
    monkeypatch.setattr(module, "publish", lambda *_: None)
    assert compact(store)["ok"]
    np.testing.assert_array_equal(by_zarr(store / "0"), pixels())
    assert verify_store(store).problems == []
    place = {"t": (0, 2), "y": (0, 32), "x": (0, 32)}
    for strategy in ("in_place", "gap", "append"):
        with pytest.raises(StrategyError, match="describes itself"):
            sw.update(store, place, 9, strategy=strategy)
    sw.erase(store, place)
    assert verify_store(store).problems == []
    monkeypatch.undo()
    report = compact(store)
    assert (report["ok"], report["packed"]) == (True, 1)
    wanted = pixels()
    wanted[:2, :32, :32] = 0
    for found in (by_zarr(store / "0"), by_tensorstore(store / "0"), by_hdf5(store)):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("live", ["none", "index"])
def test_a_run_that_was_not_ended_is_undone_by_packing(store_of, monkeypatch, tmp_path, live) -> None:
    from shardwright.rework.jobs import compact_store as module

    store, away = store_of(live=live), tmp_path / "away.ome.zarr"
    monkeypatch.setattr(module, "publish", lambda *_: None)
    assert compact(store)["ok"]
    assert move_store(store, MoveOptions(str(away), throttle=POLITE), execute).unpacked == []
    assert compact(store, Options(idle=False))["packed"] > 0
    for each in (store, away):
        np.testing.assert_array_equal(by_zarr(each / "0"), pixels())
        assert verify_store(each).problems == []
        assert not any(b"HDF\r" in path.read_bytes() for path in shards_of(each))


@pytest.mark.parametrize("live", ["none", "index"])
def test_an_edit_right_before_zarr_json_changes_keeps_it_as_it_was(store_of, monkeypatch, live) -> None:
    from shardwright.rework.jobs import compact_store as module

    store, publish = store_of("none", live=live), module.publish
    with pytest.warns(UserWarning, match="Consolidated"):
        zarr.consolidate_metadata(store)

    def edited(*arguments) -> None:
        sw.erase(store, {"t": (0, 2), "y": (0, 32), "x": (0, 32)})
        publish(*arguments)

    monkeypatch.setattr(module, "publish", edited)
    with pytest.raises(LockedError, match="was changed while the store was packed as HDF5"):
        compact(store)
    wanted = pixels()
    wanted[:2, :32, :32] = 0
    np.testing.assert_array_equal(by_zarr(store / "0"), wanted)
    assert parse_array(store / "0").container is None
    assert "consolidated_metadata" in json.loads((store / "zarr.json").read_text())
    monkeypatch.undo()
    assert compact(store)["ok"]
    for found in (by_zarr(store / "0"), by_hdf5(store)):
        np.testing.assert_array_equal(found, wanted)


def test_a_file_of_hdf5_that_is_not_ours_is_left_alone(store_of) -> None:
    store = store_of("none", live="index")
    array = parse_array(store / "0")
    path = store / "0/c/0/0/0"
    data = path.read_bytes()
    other = store.parent / "other.h5"
    with h5py.File(other, "w", userblock_size=512) as file:
        file["tables"] = np.arange(100)
    with array.open_shard((0, 0, 0)) as sealed:
        entries = sealed.entries.copy()
        live = sealed.index.live
    made = bytearray(other.read_bytes())
    for number in live.tolist():
        offset, nbytes = int(entries["offset"][number]), int(entries["nbytes"][number])
        entries["offset"][number] = len(made)
        made += data[offset : offset + nbytes]
    index = array.index.encode(entries)
    made[: len(index)] = index
    path.write_bytes(made)
    report = compact(store)
    assert list(report["failures"]) == ["0/c/0/0/0"]
    assert "file of another format" in report["failures"]["0/c/0/0/0"]["hint"]
    assert path.read_bytes() == bytes(made)
    assert parse_array(store / "0").container is None


@pytest.mark.parametrize("at", [1, 3, 20])
def test_a_full_disk_leaves_the_shard_as_it_is(store_of, at) -> None:
    """The error comes while HDF5's library writes, which does not pass it on."""
    from shardwright.disk import failpoints

    store = store_of()
    before = [path.read_bytes() for path in shards_of(store)]
    calls = itertools.count(1)

    def full() -> None:
        if next(calls) >= at:
            raise OSError(errno.ENOSPC, "no space")

    failpoints.set_hook("compact.before_index", full)
    try:
        report = compact(store)
    finally:
        failpoints.set_hook("compact.before_index", None)
    assert {failure["code"] for failure in report["failures"].values()} == {StorageFullError.code}
    np.testing.assert_array_equal(by_zarr(store / "0"), pixels())
    packed = [path.read_bytes() != data for path, data in zip(shards_of(store), before, strict=True)]
    assert sum(packed) == report["packed"]


def test_the_plugin_is_there() -> None:
    """Else the tests above would read no compressed chunk by HDF5."""
    assert h5py.h5z.filter_avail(hdf5plugin.BLOSC_ID)
    assert h5py.h5z.filter_avail(hdf5plugin.ZSTD_ID)
