"""Regions of whole stores get new values, or none: as a NumPy model says, for every reader, levels too."""

from __future__ import annotations

import inspect
import json
import os
import threading
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.harness.json_process import TIMEOUT_S
from tests.harness.python import start_python
from tests.harness.writing import how
from tests.kernels import reference
from tests.read.spellings import BIG, GIVES_DELTA_BACK, LITTLE, numcodec, sharded, shards
from tests.repack.images import POLITE, die_at_every_point, read_everywhere, run_here

import shardwright as sw
from shardwright.model.errors import (
    FrameDtypeError,
    FrameIndexError,
    LockedError,
    ShardChangedError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StrategyError,
    UnknownImageError,
    ValuesChangedError,
)
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit import region_changes, shard_lock
from shardwright.rework.edit.edit_recovery import recover_edits
from shardwright.rework.edit.region_edit import erase, update
from shardwright.rework.edit.shard_lock import shard_locked
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.shard.edit_files import JOURNAL_SUFFIX, edit_file

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
SHAPE = (11, 3, 37, 45)  # t, z, y, x


def spec(**fields) -> sw.ArraySpec:
    sizes = {"t": (None, 2, 2), "z": (3, 2, 1), "y": (37, 16, 2), "x": (45, 16, 2)}
    if fields.pop("sharded", True) is False:
        sizes = {name: (count, chunk, None) for name, (count, chunk, _) in sizes.items()}
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for name, (count, chunk, shard) in sizes.items()
    ]
    return sw.ArraySpec(**{"dtype": "uint16", "dimensions": dimensions, **fields})


def write(path: Path, array: sw.ArraySpec | None = None, **settings) -> np.ndarray:
    """A finished store; returns its values."""
    array = array or spec()
    values = np.random.default_rng(3).integers(1, 100, SHAPE).astype(array.dtype)
    with sw.create(path, array, **how(**settings)) as writer:
        for frame in values.reshape(-1, *SHAPE[-2:]):
            writer.append(frame)
    return values


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_sound(store: Path) -> None:
    report = verify_store(store)
    assert report.problems == []
    hidden = [path for path in store.rglob(".shardwright*") if path.is_file()]
    assert hidden == []


def levels_of(values: np.ndarray, count: int, factors: tuple[int, ...], method: str = "mean"):
    made = [values]
    for _ in range(count):
        made.append(reference.downsample(made[-1], tuple(map(min, factors, made[-1].shape)), method))
    return made[1:]


KINDS = {
    "lz4": {},
    "uncompressed, index at the start": {"codec": None, "index_location": "start"},
    "zstd with checksums": {"codec": sw.Zstd(), "chunk_checksum": True},
    "gzip of floats": {"codec": sw.Gzip(), "dtype": "float32", "fill_value": -1.0},
    "without shards": {"sharded": False},
}


@settings(
    max_examples=3, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_any_updates_and_erasures_are_as_numpy_does_them(tmp_path_factory, kind, data) -> None:
    store = tmp_path_factory.mktemp("any") / "a.ome.zarr"
    model = write(store, spec(**kind, levels=sw.Levels(count=2)))
    fill = kind.get("fill_value", 0)
    table = files_below(store / "frames")
    for number in range(4):
        region, place = {}, []
        for name, count in zip("tzyx", SHAPE, strict=True):
            start = data.draw(st.integers(0, count - 1))
            stop = data.draw(st.integers(start + 1, count))
            named = data.draw(st.booleans())
            region |= {name: slice(start, stop)} if named else {}
            place.append(slice(start, stop) if named else slice(None))
        strategy = data.draw(st.sampled_from(["auto", "rewrite"]))
        if data.draw(st.booleans()):
            erase(store, region, strategy=strategy)
            model[tuple(place)] = fill
        else:
            values = np.random.default_rng(number).integers(0, 50, model[tuple(place)].shape)
            sw.update(store, region, values.astype(model.dtype), strategy=strategy)
            model[tuple(place)] = values
    np.testing.assert_array_equal(read_everywhere(store / "0"), model)
    for name, level in enumerate(levels_of(model, 2, (1, 1, 2, 2)), 1):
        np.testing.assert_array_equal(read_everywhere(store / str(name)), level)
    assert files_below(store / "frames") == table
    assert_sound(store)


@pytest.mark.parametrize("method", ["mean", "min", "max", "nearest"])
def test_levels_are_those_that_are_made_anew(tmp_path, method) -> None:
    """Of factors that are not 2, along frames too, with windows that the region cuts."""
    one, other = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    options = PyramidOptions(2, method, {"t": 2, "y": 3, "x": 2})
    model = write(one)
    add_levels(one, options, run_here, throttle=POLITE)
    region = {"t": slice(3, 6), "y": slice(5, 20), "x": 9}
    report = update(one, region, 77)
    assert report.warnings == []
    assert [changes.name for changes in report.arrays] == ["0", "1", "2"]
    model[3:6, :, 5:20, 9] = 77
    with sw.create(other, spec()) as writer:
        for frame in model.reshape(-1, *SHAPE[-2:]):
            writer.append(frame)
    add_levels(other, options, run_here, throttle=POLITE)
    for name in "012":
        np.testing.assert_array_equal(read_everywhere(one / name), read_everywhere(other / name))
    assert_sound(one)


def test_erased_frames_are_those_of_the_order_of_acquisition(tmp_path) -> None:
    """Frames came with z faster than t, and are stored so; then with t faster than z."""
    store = tmp_path / "a.ome.zarr"
    model = write(store)
    report = erase(store, slice(4, 15))
    model.reshape(-1, *SHAPE[-2:])[4:15] = 0
    np.testing.assert_array_equal(read_everywhere(store / "0"), model)
    assert report.arrays[0].chunks_absent > 0
    swapped = tmp_path / "b.ome.zarr"
    array = sw.default_layout((2, 9, 20, 20), "uint8", "tzyx", order=("z", "t"))
    frames = np.random.default_rng(1).integers(1, 9, (18, 20, 20)).astype(np.uint8)
    with sw.create(swapped, array) as writer:
        for frame in frames:
            writer.append(frame)
    erase(swapped, (5, 8))
    erase(swapped, 12)
    frames[[5, 6, 7, 12]] = 0
    expected = frames.reshape(9, 2, 20, 20).swapaxes(0, 1)
    np.testing.assert_array_equal(read_everywhere(swapped / "0"), expected)


@pytest.mark.parametrize("order", [("t", "z"), ("z", "t")])
def test_updated_frames_are_those_of_the_order_of_acquisition(tmp_path, order) -> None:
    """Frames came in either order, and are stored with z faster than t. Some cross both ends of an axis."""
    store = tmp_path / "a.ome.zarr"
    counts = {"t": 4, "z": 3}
    array = sw.default_layout((4, 3, 20, 22), "uint8", "tzyx", chunks={"y": 16, "x": 16}, order=order)
    random = np.random.default_rng(1)
    frames = random.integers(1, 9, (12, 20, 22)).astype(np.uint8)
    with sw.create(store, array) as writer:
        for frame in frames:
            writer.append(frame)
    new = random.integers(10, 20, (10, 20, 22)).astype(np.uint8)
    update(store, slice(1, 11), new)
    frames[1:11] = new
    update(store, 11, new[3])
    frames[11] = new[3]
    update(store, (2, 4), 99)
    frames[2:4] = 99
    expected = frames.reshape(*(counts[name] for name in order), 20, 22)
    expected = expected if order == ("t", "z") else expected.swapaxes(0, 1)
    np.testing.assert_array_equal(read_everywhere(store / "0"), expected)


def test_update_and_erase_take_the_same_arguments() -> None:
    """But for the values, and the ``frames`` of an earlier release."""
    of_update, of_erase = (dict(inspect.signature(call).parameters) for call in (update, erase))
    del of_update["values"]
    assert list(of_update) == list(of_erase)
    for name, parameter in of_update.items():
        assert parameter == of_erase[name]


def test_the_last_chunk_takes_the_shard_along(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write(store, spec(levels=sw.Levels(count=1)))
    report = erase(store, {"t": slice(0, 4), "z": slice(0, 2)})
    assert [(changes.shards, changes.shards_removed) for changes in report.arrays] == [(4, 4), (1, 1)]
    for key in ("0/c/0/0/0/0", "0/c/0/0/1/1", "1/c/0/0/0/0"):
        assert not (store / key).exists()
    assert (store / "0/c/1/0/0/0").exists()
    assert_sound(store)
    again = erase(store, {"t": slice(0, 4), "z": slice(0, 2)})
    assert sum(changes.bytes_written for changes in again.arrays) == 0


def test_chunks_that_are_covered_are_not_read(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write(store)
    whole = update(store, {"t": slice(0, 2), "z": slice(2, 3), "y": slice(32, 37)}, 9)
    assert (whole.arrays[0].chunks, whole.arrays[0].chunks_read) == (3, 0)  # at the array's edge
    part = update(store, {"t": slice(0, 1), "z": slice(2, 3), "y": slice(32, 37)}, 9)
    assert (part.arrays[0].chunks, part.arrays[0].chunks_read) == (3, 3)


def test_a_dry_run_tells_and_changes_nothing(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write(store, spec(levels=sw.Levels(count=1)))
    before = files_below(store)
    steps: list[tuple[int, int]] = []
    told = update(store, {"t": 3}, 1, dry_run=True, on_progress=lambda *step: steps.append(step))
    assert files_below(store) == before
    done = update(store, {"t": 3}, 1)
    facts = [(c.name, c.shards, c.chunks, c.chunks_read) for c in told.arrays]
    assert facts == [(c.name, c.shards, c.chunks, c.chunks_read) for c in done.arrays]
    total = sum(shards for _, shards, _, _ in facts)
    assert steps == [(number, total) for number in range(1, total + 1)]


@pytest.mark.parametrize("strategy", ["rewrite", "append"])
def test_a_strategy_that_is_asked_for_is_used(tmp_path, strategy) -> None:
    store = tmp_path / "a.ome.zarr"
    model = write(store)
    report = update(store, {"t": slice(0, 1), "y": 3}, 8, strategy=strategy, max_unused=1.0)
    assert set(report.arrays[0].strategies) == {strategy}
    model[0, :, 3] = 8
    np.testing.assert_array_equal(read_everywhere(store / "0"), model)
    assert_sound(store)


def test_a_level_of_another_program_is_named_and_left(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write(store, spec(levels=sw.Levels(count=2)))
    document = json.loads((store / "1/zarr.json").read_text())
    del document["attributes"]["shardwright"]["method"]
    (store / "1/zarr.json").write_text(json.dumps(document))
    before = files_below(store / "1")
    report = update(store, {"t": 0}, 5)
    assert [changes.name for changes in report.arrays] == ["0"]
    assert "level 1" in report.warnings[0]
    assert "do not say how it was made" in report.warnings[0]
    assert "shardwright rechunk" in report.warnings[0]
    assert "level 2" in report.warnings[1]
    assert files_below(store / "1") == before


PEERS = {
    "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
    "big-endian": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    "shuffled by numcodecs": {"compressors": [zarr.codecs.BloscCodec(cname="zstd"), zarr.codecs.GzipCodec()]},
}


@pytest.mark.parametrize("codecs", PEERS.values(), ids=PEERS)
def test_arrays_of_peers_keep_their_codecs(tmp_path, codecs) -> None:
    path = tmp_path / "a.zarr"
    array = zarr.create_array(path, shape=(50, 30), shards=(40, 40), chunks=(20, 10), dtype="int32", **codecs)
    model = np.arange(1500, dtype=np.int32).reshape(50, 30)
    array[...] = model
    update(path, {"0": slice(13, 45), "1": slice(5, 12)}, np.arange(224).reshape(32, 7))
    erase(path, {"0": slice(0, 20)})
    model[13:45, 5:12] = np.arange(224).reshape(32, 7)
    model[:20] = 0
    np.testing.assert_array_equal(read_everywhere(path), model)
    assert verify_store(path).problems == []


def test_one_axis_alone(tmp_path) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(path, shape=(50,), shards=(20,), chunks=(10,), dtype="float64")[...] = np.arange(50.0)
    update(path, {"0": (15, 33)}, 0.5)
    expected = np.arange(50.0)
    expected[15:33] = 0.5
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], expected)
    with pytest.raises(FrameIndexError, match="has no frames"):
        erase(path, 3)


def test_no_axis_at_all(tmp_path) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(path, shape=(), dtype="uint16")[...] = 3
    update(path, {}, 5)
    assert zarr.open_array(path, mode="r")[()] == 5
    erase(path, {})
    assert zarr.open_array(path, mode="r")[()] == 0


@pytest.mark.parametrize("dtype", ["uint16", "complex64"], ids=["kernels", "zarr-python"])
def test_what_a_cropped_array_has_outside_of_its_shape_stays(tmp_path, dtype) -> None:
    path = tmp_path / "a.zarr"
    layout = {"shape": (4, 16, 16), "shards": (4, 16, 16), "chunks": (1, 8, 8), "dtype": dtype}
    array = zarr.create_array(path, **layout)
    array[...] = 3
    array.resize((4, 16, 12))
    update(path, {"0": 0, "1": 0}, np.dtype(dtype).type(9))
    array.resize((4, 16, 16))
    expected = np.full((4, 16, 16), 3, dtype)
    expected[0, 0, :12] = 9
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], expected)


@pytest.fixture
def plate(tmp_path) -> Path:
    store = tmp_path / "plate.ome.zarr"
    layout = {"shape": (4, 20, 20), "dtype": "uint8", "axes": "tyx"}
    with sw.create(store, **layout, images=["left", "right"], order=("p", "t")) as writer:
        for name in ("left", "right"):
            for _ in range(4):
                writer.append(np.full((20, 20), 5, np.uint8), image=name)
    return store


def test_one_of_several_images_is_named(plate) -> None:
    for name in (None, "middle"):
        with pytest.raises(UnknownImageError, match="left, right"):
            erase(plate, 0, image=name)
    erase(plate, (1, 3), image="right")
    update(plate, {"t": 0}, 9, image="0")
    (left, right) = (read_everywhere(plate / name / "0") for name in "01")
    assert left[:, 0, 0].tolist() == [9, 5, 5, 5]
    assert right[:, 0, 0].tolist() == [5, 0, 0, 5]
    update(plate / "1", {"t": 1}, 3)
    assert read_everywhere(plate / "1/0")[:, 0, 0].tolist() == [5, 3, 0, 5]
    assert_sound(plate)


def test_an_array_given_alone_takes_its_levels_along_and_a_level_is_refused(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    model = write(store, spec(levels=sw.Levels(count=1)))
    update(store / "0", {"t": 1}, 200)
    model[1] = 200
    np.testing.assert_array_equal(read_everywhere(store / "1"), levels_of(model, 1, (1, 1, 2, 2))[0])
    with pytest.raises(ShardFormatError, match="is a level of lower resolution"):
        update(store / "1", {"t": 1}, 200)


def test_what_is_refused_changes_nothing(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write(store)
    away = tmp_path / "shard"
    (store / "0/c/2/1/1/1").rename(away)
    (store / "0/c/2/1/1/1").symlink_to(away)
    before = files_below(store)
    for call in (
        lambda: update(store, {"t": 20}, 1),
        lambda: update(store, {"t": 1}, np.ones((3, 37, 44), "u2")),
        lambda: update(store, {"t": 1}, -1),
        lambda: update(store, {"t": 1}, 1, strategy="best"),
        lambda: update(store, {}, 1),
        lambda: update(store / "0/c/0/0/0/0", {"t": 1}, 1),
        lambda: update(store, {"t": 1}, None),
        lambda: update(store, None, 1),
        lambda: update(store, slice(4, 15), np.ones((10, *SHAPE[-2:]), "u2")),
        lambda: update(store, 3, np.ones(SHAPE[-1], "u2")),
        lambda: erase(store, (3, 34)),
    ):
        with pytest.raises(ShardwrightError):
            call()
        assert files_below(store) == before
    with pytest.raises(StorageError, match="a link to a shard on another disk"):
        erase(store, (0, 33))


def test_a_store_that_is_being_written_is_refused(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    with sw.create(store, spec()) as writer:
        writer.append(np.ones(SHAPE[-2:], np.uint16))
        writer.flush()
        for path in (store, store / "0"):
            with pytest.raises(LockedError, match="still being written"):
                erase(path, {"t": 0})


def test_an_update_that_is_killed_has_changed_whole_shards_and_the_next_completes_it(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    before = write(store, spec(levels=sw.Levels(count=1)))
    region, place = {"t": 1, "z": 0, "x": slice(3, 30)}, (1, 0, slice(None), slice(3, 30))
    after = before.copy()
    after[place] = 77
    for _ in die_at_every_point(lambda: update(store, region, 77), step=13):
        recover_edits(store)
        found = read_everywhere(store / "0")
        for y in (slice(0, 32), slice(32, None)):  # the rows of the two shards that change
            assert any(np.array_equal(found[..., y, :], one[..., y, :]) for one in (before, after))
    np.testing.assert_array_equal(read_everywhere(store / "0"), after)
    np.testing.assert_array_equal(read_everywhere(store / "1"), levels_of(after, 1, (1, 1, 2, 2))[0])
    assert_sound(store)


PAINTER = """
import sys
import shardwright as sw
for value in range(1, 9):
    sw.update(sys.argv[1], {"x": int(sys.argv[2])}, value)
"""


def test_processes_that_paint_the_same_chunks_lose_nothing(tmp_path) -> None:
    """Each column of a chunk is one process's; each writes all shards, and all levels, again and again."""
    store = tmp_path / "a.ome.zarr"
    sizes = {"t": (2, 1, 2), "y": (16, 16, 1), "x": (16, 16, 1)}
    array = sw.ArraySpec(
        dtype="uint8",
        dimensions=[
            sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
            for name, (count, chunk, shard) in sizes.items()
        ],
        levels=sw.Levels(count=1),
    )
    with sw.create(store, array) as writer:
        for _ in range(2):
            writer.append(np.zeros((16, 16), np.uint8))
    painters = [start_python("-c", PAINTER, store, str(column)) for column in (2, 3, 9)]
    assert [painter.wait(120) for painter in painters] == [0, 0, 0]
    expected = np.zeros((2, 16, 16), np.uint8)
    expected[..., [2, 3, 9]] = 8
    np.testing.assert_array_equal(read_everywhere(store / "0"), expected)
    np.testing.assert_array_equal(read_everywhere(store / "1"), levels_of(expected, 1, (1, 2, 2))[0])
    assert_sound(store)


@pytest.fixture
def changed_between(monkeypatch):
    """``changed_between(times, change)``: ``change`` comes between the reading and the writing."""

    def patch(times: int, change) -> None:
        real, left = region_changes.edit_shard, [times]

        def edit(*arguments, **options):
            if left[0]:
                left[0] -= 1
                change()
            return real(*arguments, **options)

        monkeypatch.setattr(region_changes, "edit_shard", edit)

    return patch


def test_a_shard_that_changes_between_reading_and_writing_is_read_again(tmp_path, changed_between) -> None:
    store = tmp_path / "a.ome.zarr"
    model = write(store)
    array = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store / "0")}}, open=True
    ).result()

    def foreign() -> None:
        (store / "0/shards.crc32c").unlink(missing_ok=True)  # which another program does not keep
        array[0, 0, 1, :5].write(np.full(5, 40, np.uint16)).result()

    changed_between(1, foreign)
    update(store, {"t": 0, "z": 0, "y": 0, "x": slice(0, 5)}, 50)
    model[0, 0, 1, :5], model[0, 0, 0, :5] = 40, 50
    np.testing.assert_array_equal(read_everywhere(store / "0"), model)


def test_a_shard_that_never_rests_is_an_error(tmp_path, changed_between) -> None:
    store = tmp_path / "a.ome.zarr"
    write(store)
    ticks = iter(range(1, 1000))
    changed_between(1000, lambda: os.utime(store / "0/c/0/0/0/0", ns=(0, next(ticks))))
    with pytest.raises(ShardChangedError):
        update(store, {"t": 0, "z": 0, "y": 0, "x": 0}, 50)


def test_an_edit_of_another_process_is_waited_for_before_chunks_are_read(tmp_path, monkeypatch) -> None:
    """Its file is half written: chunks of it would look damaged, or be taken for values. Of the level below
    too."""
    store = tmp_path / "a.ome.zarr"
    model = write(store, spec(levels=sw.Levels(count=1)))
    key = "c/0/0/0/0"
    at_work, waited_for, ended = threading.Event(), threading.Event(), []
    monkeypatch.setattr(shard_lock, "sleep", lambda seconds: (waited_for.set(), time.sleep(seconds)))

    def other(array: str) -> None:
        whole, name = (store / array / key).read_bytes(), key
        with shard_locked(store / array, name):
            journal = edit_file(store / array, name, JOURNAL_SUFFIX)
            journal.touch()
            (store / array / key).write_bytes(bytes(len(whole)))
            at_work.set()
            waited_for.wait(TIMEOUT_S)
            (store / array / key).write_bytes(whole)
            journal.unlink()
            ended.append(array)

    for value, array in enumerate(["0", "1"], 30):
        at_work.clear()
        waited_for.clear()
        thread = threading.Thread(target=other, args=(array,))
        thread.start()
        assert at_work.wait(TIMEOUT_S)
        try:
            update(store, {"t": 0, "z": 0, "y": 0, "x": slice(0, 5)}, value)
            assert waited_for.is_set()
            assert ended[-1] == array
        finally:
            waited_for.set()
            thread.join()
        model[0, 0, 0, :5] = value
        np.testing.assert_array_equal(read_everywhere(store / "0"), model)
        (level,) = levels_of(model, 1, (1, 1, 2, 2))
        np.testing.assert_array_equal(read_everywhere(store / "1"), level)


@pytest.mark.parametrize(
    ("codec", "dtype", "becomes"),
    [
        ([numcodec("delta", dtype="<u2"), BIG], "uint16", 77 if GIVES_DELTA_BACK else None),
        ([numcodec("bitround", keepbits=2), LITTLE], "float32", 80),  # whose array it is has chosen to round
    ],
)
def test_codecs_of_the_array_may_round_values_and_not_change_them(tmp_path, codec, dtype, becomes) -> None:
    """``becomes``: what 77 is read as; None where the codecs are refused."""
    spelling = replace(shards([LITTLE]), data_type=dtype, codecs=[sharded(codec)], fill_value=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of codecs without a specification
        spelling.write(tmp_path / "a.zarr")
        before = np.asarray(zarr.open_array(tmp_path / "a.zarr", mode="r")[...])
        files = files_below(tmp_path / "a.zarr")
        region, values = {"0": slice(0, 1)}, np.full((1, 7, 6), 77, dtype)
        if becomes is not None:
            update(tmp_path / "a.zarr", region, values)
            after = np.asarray(zarr.open_array(tmp_path / "a.zarr", mode="r")[...])
            assert set(after[0].ravel().tolist()) == {becomes}
            np.testing.assert_array_equal(after[1:], before[1:])
        else:
            with pytest.raises(ValuesChangedError, match=r"numcodecs\.delta"):
                update(tmp_path / "a.zarr", region, values)
            assert files_below(tmp_path / "a.zarr") == files


def sound_and_strange(tmp_path: Path) -> Path:
    """An array of two shards, of which the second has no room for other chunks where they lie."""
    path = tmp_path / "a.zarr"
    array = zarr.create_array(
        path,
        shape=(8, 16),
        shards=(4, 16),
        chunks=(4, 16),
        dtype="uint8",
        compressors=zarr.codecs.GzipCodec(),
    )
    array[:4] = np.random.default_rng(1).integers(0, 256, (4, 16))
    array[4:] = 1
    return path


@pytest.mark.parametrize("strategy", ["in_place", "gap", "append"])
def test_no_shard_is_changed_if_a_later_one_cannot_be(tmp_path, strategy) -> None:
    path = sound_and_strange(tmp_path)
    shard = path / "c/1/0"
    if strategy == "append":  # it needs a file with one name
        (tmp_path / "other").hardlink_to(shard)
    before = files_below(path)
    noise = np.random.default_rng(2).integers(0, 256, (8, 16)).astype("uint8")
    if strategy == "gap":  # the first shard has one
        update(path, {"0": slice(0, 4)}, noise[:4], strategy="append")
        before = files_below(path)
    with pytest.raises(StrategyError, match=f"strategy '{strategy}' cannot do this"):
        update(path, {}, noise, strategy=strategy)
    assert files_below(path) == before
    update(path, {}, noise)
    np.testing.assert_array_equal(read_everywhere(path), noise)


def test_no_shard_is_changed_if_a_later_one_has_bytes_of_another_format(tmp_path) -> None:
    path = sound_and_strange(tmp_path)
    shard = path / "c/1/0"
    data = shard.read_bytes()
    # before the index, at the end, whose entry still names the chunk
    shard.write_bytes(data[:-20] + b"not ours" * 40 + data[-20:])
    before = files_below(path)
    with pytest.raises(ShardFormatError, match="c/1/0"):
        update(path, {"1": slice(0, 3)}, 7, strategy="rewrite")
    assert files_below(path) == before


def test_a_level_that_cannot_be_changed_as_asked_is_changed_all_the_same(tmp_path) -> None:
    """What its chunks take is known when the image is changed."""
    store = tmp_path / "a.ome.zarr"
    model = write(store, spec(levels=sw.Levels(count=1), codec=None))
    for shard in (store / "1").rglob("c/*/*/*/*"):
        (tmp_path / shard.relative_to(store).as_posix().replace("/", ".")).hardlink_to(shard)
    report = update(store, {"t": 0}, 5, strategy="in_place")
    assert [set(changes.strategies) for changes in report.arrays] == [{"in_place"}, {"rewrite"}]
    model[0] = 5
    np.testing.assert_array_equal(read_everywhere(store / "0"), model)
    np.testing.assert_array_equal(read_everywhere(store / "1"), levels_of(model, 1, (1, 1, 2, 2))[0])


def test_a_shard_that_is_damaged_is_replaced_whole(tmp_path) -> None:
    path = sound_and_strange(tmp_path)
    (path / "c/1/0").write_bytes(b"no shard")
    update(path, {}, 3)
    assert (read_everywhere(path) == 3).all()


def test_a_damaged_journal_stops_only_edits_of_its_shard(tmp_path) -> None:
    """A level is made of shards of the image of which one has such a journal; not of the other ones."""
    store = tmp_path / "a.ome.zarr"
    write(store, spec(levels=sw.Levels(count=1)))
    journal = edit_file(store / "0", "c/2/0/0/0", JOURNAL_SUFFIX)
    journal.parent.mkdir()
    journal.write_bytes(b"SWEDITJN" + bytes(100))
    update(store, {"t": 0}, 5)
    with pytest.raises(ShardwrightError, match=r"another release|is damaged"):
        update(store, {"t": 8}, 5)
    journal.unlink()
    update(store, {"t": 8}, 5)


TEXTS = {
    "of any length": (str, "", ["a", "much longer\0", "ö"], b"x"),
    "of a fixed length": ("<U5", "", ["a", "seven", "ö"], "longer"),
    "bytes": ("variable_length_bytes", b"", [b"a", b"much longer\0", b""], "x"),
    "bytes of a fixed length": ("S5", b"", [b"a", b"seven", b""], b"longer"),
}


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize(("dtype", "fill", "texts", "wrong"), TEXTS.values(), ids=TEXTS)
def test_text_is_updated_and_erased(tmp_path, dtype, fill, texts, wrong) -> None:
    path = tmp_path / "a.zarr"
    array = zarr.create_array(path, shape=(6, 3), shards=(4, 2), chunks=(2, 2), dtype=dtype)
    model = np.full((6, 3), fill, object)
    update(path, {"0": 1}, texts)
    model[1] = texts
    update(path, {"1": slice(0, 2), "0": slice(2, 4)}, texts[0])
    model[2:4, :2] = texts[0]
    update(path, {"0": 5}, np.array(texts, array.dtype if array.dtype.kind in "US" else object))
    model[5] = texts
    assert zarr.open_array(path)[...].tolist() == model.tolist()
    before = files_below(path)
    for values in (
        wrong,
        [texts[0], texts[0], wrong],
        7,
        [1, 2, 3],
        np.array([texts[0], None, None], object),
    ):
        with pytest.raises(FrameDtypeError, match="cannot hold these values"):
            update(path, {"0": 1}, values)
    assert files_below(path) == before
    erase(path, {"0": slice(0, 4)})
    model[:4] = fill
    assert zarr.open_array(path)[...].tolist() == model.tolist()
    assert verify_store(path).problems == []


@pytest.mark.parametrize("dtype", ["datetime64[s]", "timedelta64[ms]"])
def test_what_is_no_number_is_a_typed_error(tmp_path, dtype) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(path, shape=(6,), shards=(4,), chunks=(2,), dtype=dtype)
    for values in ("text", b"x", None, [1.5] * 6, object()):
        with pytest.raises(FrameDtypeError):
            update(path, {}, values)
