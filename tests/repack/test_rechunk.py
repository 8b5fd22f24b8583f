"""A store with other chunks: the same values, everything else of the image goes along, in bounded memory,
whatever kills the job."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import numpy as np
import pytest
import yaozarrs
import zarr
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.kernels import reference
from zarr.codecs import ZstdCodec

from shardwright.array.spec import Blosc, Gzip, Zstd
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import BudgetError, LockedError, OutputExistsError, ShardFormatError, SpecError
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.chunk_encoder import encoder_peak_bytes
from shardwright.rework.jobs.new_shard import plan_shards
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import (
    KEEP_CODEC,
    RechunkOptions,
    plan_new_store,
    working_folder,
    write_new_store,
)
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import watch_grants
from shardwright.shard.edit_files import JOURNAL_SUFFIX, edit_file

from .images import (
    NOT_IDLE,
    POLITE,
    damage_a_chunk,
    multiscale,
    read_everywhere,
    run_here,
    write_image,
)


def rechunk(store, new, run=run_here, **options):
    options.setdefault("chunks", {"z": 4, "y": 6, "x": 8})
    chosen = RechunkOptions(**options)
    return write_new_store(plan_new_store(store, chosen), new, chosen, run, throttle=POLITE)


CODECS = [KEEP_CODEC, None, Zstd(level=5), Gzip(level=2), Blosc(cname="zstd", clevel=5, shuffle="bitshuffle")]


@settings(max_examples=5, phases=[Phase.generate])
@given(data=st.data())
def test_any_chunks_shards_and_codecs_hold_the_same_values(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("any")
    sizes = [data.draw(st.integers(2, 6)) for _ in "zyx"]
    source = {
        "shape": [data.draw(st.integers(1, 5)) for _ in "zyx"],
        "chunks": [data.draw(st.integers(1, 4)) for _ in "zyx"],
    }
    spec = {
        "dtype": data.draw(st.sampled_from(["uint8", "uint16", "float32", "bool"])),
        "chunk_checksum": data.draw(st.booleans()),
    }
    spec |= {
        "index_location": data.draw(st.sampled_from(["start", "end"])),
        "codec": data.draw(st.sampled_from([None, Blosc(), Zstd()])),
    }
    values = write_image(folder / "a.ome.zarr", shard_chunks=(4, 3, 4), **source, **spec)
    chunks = dict(zip("zyx", sizes, strict=True))
    shards = {name: n * data.draw(st.integers(1, 3)) for name, n in chunks.items()}
    report = rechunk(
        folder / "a.ome.zarr",
        folder / "b.ome.zarr",
        chunks=chunks,
        shards=shards,
        codec=data.draw(st.sampled_from(CODECS)),
    )
    assert report.ok
    np.testing.assert_array_equal(read_everywhere(folder / "b.ome.zarr" / "0"), values)
    assert verify_store(folder / "b.ome.zarr").problems == []
    shutil.rmtree(folder)


def test_the_whole_image_goes_along(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old, attributes={"sample": "liver"})
    add_levels(old, PyramidOptions(2), run_here, throttle=POLITE)
    report = rechunk(old, new, codec=Zstd(level=5))
    assert report.made == ["0", "1", "2"]
    for name in "012":
        np.testing.assert_array_equal(read_everywhere(new / name), read_everywhere(old / name))
        assert zarr.open_array(new / name, mode="r").attrs["sample"] == "liver"
    assert json.loads((new / "zarr.json").read_text()) == json.loads((old / "zarr.json").read_text())
    tables = [zarr.open_group(store / "frames", mode="r") for store in (old, new)]
    assert {name for name, _ in tables[0].arrays()} == {name for name, _ in tables[1].arrays()}
    for name, column in tables[0].arrays():
        np.testing.assert_array_equal(column[:], tables[1][name][:])
    yaozarrs.validate_zarr_store(str(new))
    opened = open_store(new)
    assert opened.arrays[0].chunk_shape == (4, 6, 8)
    assert opened.arrays[0].codecs.compressor == "zstd"
    assert all(shard.gap_bytes == 0 for array in opened.arrays for shard in inspect_shards(opened, array))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_new_levels_of_the_rechunked_image(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    values = write_image(old)
    rechunk(old, new, pyramid=PyramidOptions(2, "max", {"z": 2, "y": 2, "x": 2}))
    for name in "012":
        np.testing.assert_array_equal(read_everywhere(new / name), values)
        values = reference.downsample(values, (2, 2, 2), "max")
    assert multiscale(new)["type"] == "max"
    assert multiscale(old).get("type") is None


def test_shards_of_an_earlier_run_are_not_made_again(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    values = write_image(old)

    def one_then_interrupted(tasks):
        yield from run_here([next(iter(tasks))])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rechunk(old, new, one_then_interrupted)
    assert not new.exists()
    report = rechunk(old, new)
    assert report.shards_found == 1
    assert report.shards_made == parse_array(new / "0").shards_in_shape - 1
    np.testing.assert_array_equal(read_everywhere(new / "0"), values)


def test_a_damaged_chunk_is_named_and_the_rest_waits_for_the_next_run(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    values = write_image(old)
    damage_a_chunk(old / "0" / "c" / "0" / "0" / "0")
    report = rechunk(old, new)
    assert not report.ok
    assert not new.exists()
    assert "chunk 0/0/0 in" in report.failures[0]["error"]["message"]
    assert report.shards_made > 0
    damage_a_chunk(old / "0" / "c" / "0" / "0" / "0")
    assert rechunk(old, new).shards_found == report.shards_made
    np.testing.assert_array_equal(read_everywhere(new / "0"), values)


def acquire_again(store) -> np.ndarray:
    """Delete it and put another acquisition in its place, whose shards have the same lengths."""
    before = [path.stat().st_size for path in sorted((store / "0" / "c").rglob("0"))]
    shutil.rmtree(store)
    values = write_image(store, codec=None, seed=4)
    assert [path.stat().st_size for path in sorted((store / "0" / "c").rglob("0"))] == before
    return values


def test_an_acquisition_again_under_the_same_name_is_not_mixed_with_the_first(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old, codec=None)

    def one_then_interrupted(tasks):
        yield from run_here([next(iter(tasks))])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rechunk(old, new, one_then_interrupted)
    values = acquire_again(old)
    assert rechunk(old, new).shards_found == 0
    np.testing.assert_array_equal(read_everywhere(new / "0"), values)


def test_an_acquisition_again_in_the_middle_of_a_run_is_noticed(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old, codec=None)

    def acquired_again(tasks):
        first, *rest = tasks
        yield from run_here([first])
        acquire_again(old)
        yield from run_here(rest)

    with pytest.raises(ShardFormatError, match="changed while it was read"):
        rechunk(old, new, acquired_again)
    assert not new.exists()


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old)

    def moved_away(tasks):
        (old / "0" / "c" / "1" / "0" / "0").unlink()
        yield from run_here(tasks)

    with pytest.raises(ShardFormatError, match="changed while it was read"):
        rechunk(old, new, moved_away)
    assert not new.exists()


def test_half_an_update_is_not_rechunked(tmp_path) -> None:
    """Neither one that was cut short before, nor one while the job reads."""
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old)
    journal = edit_file(old / "0", "c/1/0/0", JOURNAL_SUFFIX)

    def update(tasks):
        journal.parent.mkdir()
        journal.touch()
        yield from run_here(tasks)

    for run in (update, run_here):
        with pytest.raises(LockedError, match="its update was interrupted"):
            rechunk(old, new, run)
        assert not new.exists()
        with pytest.raises(LockedError, match="its update was interrupted"):
            add_levels(old, PyramidOptions(1), run_here, throttle=POLITE)
    journal.unlink()
    assert rechunk(old, new).made == ["0"]


def test_memory_stays_within_the_plan_and_no_chunk_is_read_twice_where_it_need_not(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old, shape=(32, 256, 256), chunks=(1, 256, 256), shard_chunks=(32, 1, 1))
    rechunk(old, new, chunks={"z": 16, "y": 64, "x": 64})
    (new / "0" / "c" / "0" / "0" / "0").unlink()
    task = {
        "kind": "make",
        "lossy": False,
        "factors": [1, 1, 1],
        "method": None,
        "source": str(old / "0"),
        "array": str(new / "0"),
        "shard": [0, 0, 0],
        "work": str(tmp_path),
        "throttle": NOT_IDLE,
    }
    opened = open_store(old)
    encoded = sum(shard.encoded_bytes for shard in inspect_shards(opened, opened.arrays[0]))
    with pytest.raises(BudgetError) as refused:
        plan_shards(parse_array(old / "0"), parse_array(new / "0"), (1, 1, 1), None, 1 << 20)
    least_bytes = int(str(refused.value.expected).split()[0])  # enough for one chunk at a time
    for memory_bytes, reads in ((14 << 20, 1), (least_bytes, 16)):  # each of 16 columns reads every frame
        plan = plan_shards(parse_array(old / "0"), parse_array(new / "0"), (1, 1, 1), None, memory_bytes)
        tracemalloc.start()
        try:
            result = run_task({**task, "memory_bytes": memory_bytes})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert result["ok"], result
        assert peak <= result["peak_bytes"] == plan.peak_bytes <= memory_bytes
        assert result["bytes_read"] == reads * encoded
        (new / "0" / "c" / "0" / "0" / "0").unlink()


def test_the_context_of_the_compressor_is_in_the_plan(tmp_path) -> None:
    """At zstd's level 12 it holds more than all else of an encoder."""
    beside = []
    for level in (1, 12):
        path = tmp_path / f"{level}.zarr"
        zarr.create_array(
            path, shape=(1024, 1024), chunks=(1024, 1024), dtype="u2", compressors=ZstdCodec(level=level)
        )
        array = parse_array(path)
        beside.append(encoder_peak_bytes(array) - array.configured_codec().context_bytes)
    assert beside[0] == beside[1]
    assert encoder_peak_bytes(array) > 20 << 20


def test_reading_back_takes_its_share_of_the_rate_piece_by_piece(tmp_path, monkeypatch) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old, shape=(16, 32, 32), chunks=(1, 32, 32), shard_chunks=(16, 1, 1), codec=None)
    monkeypatch.setattr("shardwright.rework.jobs.new_shard.PIECE_BYTES", 4 * 2048)
    granted = []
    watch_grants(granted.append)
    try:
        report = rechunk(old, new, chunks={"z": 1, "y": 32, "x": 32})
    finally:
        watch_grants(None)
    assert sum(granted) == 3 * report.bytes_read, "read, written and read back"
    assert granted[-4:] == [4 * 2048, 4 * 2048, 4 * 2048, 2 * 2048], "14 chunks: two frames are fill value"


def test_what_cannot_be_is_refused(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old)
    with pytest.raises(SpecError, match="no such axes"):
        rechunk(old, new, chunks={"q": 3})
    with pytest.raises(SpecError, match="whole chunks"):
        rechunk(old, new, chunks={"x": 8}, shards={"x": 12})
    with pytest.raises(BudgetError):
        rechunk(old, new, memory_bytes=1 << 10)
    working_folder(new).mkdir(exist_ok=True)
    lock = StoreLock.take(working_folder(new) / "lock")
    with pytest.raises(LockedError):
        rechunk(old, new)
    lock.release()
    new.mkdir()
    with pytest.raises(OutputExistsError):
        rechunk(old, new)
    (old / ".shardwright").mkdir()
    with pytest.raises(ShardFormatError, match="not finished"):
        rechunk(old, tmp_path / "c.ome.zarr")


def sparse_image(path, frames: int, *places: int):
    """An image whose metadata name ``frames`` frames, in shards of two, and that has those at ``places``."""
    group = {"name": path.name, "axes": [{"name": n, "type": "space"} for n in "zyx"]}
    scale = [{"type": "scale", "scale": [1.0, 1.0, 1.0]}]
    group["datasets"] = [{"path": "0", "coordinateTransformations": scale}]
    zarr.create_group(path, attributes={"ome": {"version": "0.5", "multiscales": [group]}})
    array = zarr.create_array(
        path / "0",
        shape=(frames, 6, 5),
        shards=(2, 6, 5),
        chunks=(1, 6, 5),
        dtype="uint16",
        dimension_names=tuple("zyx"),
    )
    for place in places:
        array[place] = place % 1000 + 1
    return path


@pytest.mark.parametrize("frames", [20_000_000, 2**40])
def test_work_and_memory_follow_the_shards_that_are_there(tmp_path, frames) -> None:
    last = frames - 1
    store = sparse_image(tmp_path / "a.ome.zarr", frames, 0, 7, last)
    tasks = []

    def run(given):
        for task in given:
            tasks.append(task["key"])
            assert len(tasks) < 100, "one for each shard that the shape names"
            yield from run_here([task])

    options = {"chunks": {"z": 3}, "shards": {"z": 3}, "pyramid": PyramidOptions(1, factors={"z": 2})}
    rechunk(store, tmp_path / "warm.ome.zarr", run, memory_bytes=32 << 20, **options)  # compiles the kernels
    tasks.clear()
    tracemalloc.start()
    try:
        report = rechunk(store, tmp_path / "b.ome.zarr", run, memory_bytes=32 << 20, **options)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.ok
    assert peak_bytes < 32 << 20
    # shards of two frames reach shards of three, and these shards of three frames of the level
    made = sorted({frame // 3 for place in (0, 7, last) for frame in (place // 2 * 2, place // 2 * 2 + 1)})
    above = sorted(
        {frame // 2 // 3 for shard in made for frame in range(3 * shard, min(3 * shard + 3, frames))}
    )
    assert tasks == [
        f"{name}/c/{shard}/0/0" for name, shards in (("0", made), ("1", above)) for shard in shards
    ]
    old, new = (zarr.open_array(tmp_path / name / "0", mode="r") for name in ("a.ome.zarr", "b.ome.zarr"))
    assert new.shape == old.shape
    for place in (0, 5, 6, 7, 8, last - 3, last):
        assert new[place].tolist() == old[place].tolist()
    level = zarr.open_array(tmp_path / "b.ome.zarr" / "1", mode="r")
    assert level[3].tolist() == [[4] * 5] * 6  # the mean of an absent frame and 8
    assert verify_store(tmp_path / "b.ome.zarr", threads=1).problems == []


def test_too_many_shards_are_refused_before_any_is_made(tmp_path) -> None:
    store = sparse_image(tmp_path / "a.ome.zarr", 2**40, 5)
    rechunk(store, tmp_path / "b.ome.zarr", chunks={"z": 2**14}, shards={"z": 2**14})
    single = {"chunks": {"z": 1, "y": 1, "x": 1}, "shards": {"z": 1, "y": 1, "x": 1}}
    with pytest.raises(BudgetError, match="too many shards") as refused:
        rechunk(tmp_path / "b.ome.zarr", tmp_path / "c.ome.zarr", memory_bytes=12 << 20, **single)
    assert "--memory" in str(refused.value)
    beyond = tmp_path / "d.zarr"
    zarr.create_array(beyond, shape=(8, 2**40, 2**40), chunks=(1, 16, 16), dtype="uint8")
    with pytest.raises(BudgetError, match="too many shards"):
        rechunk(beyond, tmp_path / "e.zarr", chunks={})
    assert rechunk(beyond, tmp_path / "f.zarr", chunks={"dim_1": 2**12, "dim_2": 2**12}).ok
