"""Levels of a pyramid: right values, right metadata, nothing half made for readers, whatever kills the
job."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaozarrs
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.array.spec import Zstd
from shardwright.disk.files import replace_file
from shardwright.kernels.downsample import downsample
from shardwright.model.errors import (
    BudgetError,
    OutputExistsError,
    ShardFormatError,
    SpecError,
    StorageFullError,
)
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.new_arrays import fingerprint
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.runtime.job_folder import JobFolder
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import pause_files

from .images import (
    NOT_IDLE,
    POLITE,
    damage_a_chunk,
    die_at_every_point,
    multiscale,
    read_everywhere,
    run_here,
    write_image,
)


def levels_of(values: np.ndarray, factors: tuple[int, ...], method: str, levels: int) -> list[np.ndarray]:
    made = [values]
    for _ in range(levels):
        made.append(
            reference.downsample(
                made[-1],
                tuple(min(f, n) for f, n in zip(factors, made[-1].shape, strict=True)),
                method,
            )
        )
    return made


def add(store, levels=2, method="mean", axes=("y", "x"), **options):
    """``axes``: those to halve, or factors by axis."""
    factors = axes if isinstance(axes, dict) else dict.fromkeys(axes, 2)
    return add_levels(store, PyramidOptions(levels, method, factors, **options), run_here, throttle=POLITE)


METHODS = ["mean", "min", "max", "nearest"]
KINDS = [
    ("yx", {}),
    ("zyx", {"index_location": "start", "codec": Zstd(level=1), "chunk_checksum": True}),
    ("z", {"codec": None, "fill_value": 7, "dtype": "int8"}),
    ("yx", {"dtype": "float32", "fill_value": "NaN"}),
]


@pytest.mark.parametrize(
    ("method", "axes", "spec"),
    [
        pytest.param(m, *kind, marks=[pytest.mark.slow] if i != j else [])
        for i, m in enumerate(METHODS)
        for j, kind in enumerate(KINDS)
    ],
)
def test_levels_equal_numpy_and_are_read_by_all(tmp_path, method, axes, spec) -> None:
    store = tmp_path / "a.ome.zarr"
    values = write_image(store, **spec)
    report = add(store, 2, method, tuple(axes))
    assert report.ok
    assert report.made == ["1", "2"]
    expected = levels_of(values, tuple(2 if name in axes else 1 for name in "zyx"), method, 2)
    for name, level in zip("012", expected, strict=True):
        np.testing.assert_array_equal(read_everywhere(store / name), level)
    yaozarrs.validate_zarr_store(str(store))
    assert verify_store(store).problems == []
    opened = open_store(store)
    assert [array.path.name for array in opened.arrays] == ["0", "1", "2"]
    assert all(
        shard.gap_bytes == 0 and not shard.problems
        for array in opened.arrays[1:]
        for shard in inspect_shards(opened, array)
    )
    assert not (store / "0" / ".compact").exists()


@pytest.mark.parametrize(
    ("dtype", "names"), [("bool", "tcyx"), ("uint64", "tczyx"), ("float16", "yx"), ("float64", "czyx")]
)
def test_other_dtypes_and_ranks(tmp_path, dtype, names) -> None:
    shape = (2, 2, 3, 9, 13)[-len(names) :]
    store = tmp_path / "a.ome.zarr"
    values = write_image(
        store,
        shape=shape,
        chunks=(1, 1, 1, 4, 5)[-len(names) :],
        shard_chunks=(1, 2, 2, 2, 2)[-len(names) :],
        names=names,
        dtype=dtype,
    )
    add(store, 3)
    for name, level in zip(
        "0123", levels_of(values, (1,) * (len(names) - 2) + (2, 2), "mean", 3), strict=True
    ):
        np.testing.assert_array_equal(read_everywhere(store / name), level)


@settings(max_examples=5, phases=[Phase.generate])
@given(data=st.data())
def test_any_layout_axes_and_method(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("any")
    store = folder / "a.ome.zarr"
    layout = {
        "shape": [data.draw(st.integers(2, 7)) for _ in "zyx"],
        "chunks": [data.draw(st.integers(1, 4)) for _ in "zyx"],
    }
    factors = data.draw(st.dictionaries(st.sampled_from("zyx"), st.integers(1, 8), min_size=1))
    assume(any(factors.get(n, 1) > 1 for n in "zyx"))
    method, location = data.draw(st.sampled_from(METHODS)), data.draw(st.sampled_from(["start", "end"]))
    values = write_image(
        store, shard_chunks=[data.draw(st.integers(1, 3)) for _ in "zyx"], index_location=location, **layout
    )
    add(store, 1, method, factors)
    np.testing.assert_array_equal(
        read_everywhere(store / "1"),
        levels_of(values, tuple(factors.get(n, 1) for n in "zyx"), method, 1)[1],
    )
    assert verify_store(store).problems == []
    shutil.rmtree(folder)


def test_where_the_centres_of_elements_lie(tmp_path) -> None:
    write_image(tmp_path / "a.ome.zarr")
    write_image(tmp_path / "b.ome.zarr")
    add(tmp_path / "a.ome.zarr", 2, "mean", ("y", "x"))
    add(tmp_path / "b.ome.zarr", 2, "nearest", ("y", "x"))
    mean, nearest = multiscale(tmp_path / "a.ome.zarr"), multiscale(tmp_path / "b.ome.zarr")
    assert mean["type"] == "mean"
    scale = {"type": "scale", "scale": [0.5, 6.0, 10.0]}
    assert mean["datasets"][2] == {
        "path": "2",
        "coordinateTransformations": [scale, {"type": "translation", "translation": [0, 2.25, 3.75]}],
    }
    assert nearest["datasets"][2] == {"path": "2", "coordinateTransformations": [scale]}


def test_finished_levels_are_kept_and_more_may_be_added(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    values = write_image(store)
    add(store, 1)
    before = (store / "1" / "zarr.json").stat().st_mtime_ns
    again = add(store, 1)
    assert (again.made, again.already, again.bytes_written) == ([], ["1"], 0)
    assert (add(store, 3).made, (store / "1" / "zarr.json").stat().st_mtime_ns) == (["2", "3"], before)
    for name, level in zip("0123", levels_of(values, (1, 2, 2), "mean", 3), strict=True):
        np.testing.assert_array_equal(read_everywhere(store / name), level)
    with pytest.raises(SpecError, match="another method or other factors"):
        add(store, 4, "max")
    with pytest.raises(SpecError, match="another method or other factors"):
        add(store, 4, axes={"y": 2, "x": 3})
    assert add(store, 3, axes={"z": 1, "y": 2, "x": 2}).made == []


def test_a_damaged_chunk_is_named_the_rest_is_made_and_nothing_is_published(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write_image(store)
    damage_a_chunk(store / "0" / "c" / "0" / "0" / "0")
    report = add(store, 1)
    assert not report.ok
    assert [failure["key"] for failure in report.failures] == ["1/c/0/0/0"]
    assert "chunk 0/0/0 in" in report.failures[0]["error"]["message"]
    assert report.shards_made == 2
    assert len(multiscale(store)["datasets"]) == 1
    assert not (store / "1").exists()
    damage_a_chunk(store / "0" / "c" / "0" / "0" / "0")
    mended = add(store, 1)
    assert (mended.shards_made, mended.shards_found) == (1, 2)


def test_a_run_that_asks_for_something_else_begins_anew(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    values = write_image(store)
    for _ in die_at_every_point(lambda: add(store, 1, "min")):
        if (store / "0" / ".compact" / "levels" / "1" / "c" / "0" / "0" / "0").exists():
            break
    assert not (store / "1").exists()
    assert add(store, 1, "max").shards_found == 0
    np.testing.assert_array_equal(read_everywhere(store / "1"), levels_of(values, (1, 2, 2), "max", 1)[1])


def test_a_kill_while_the_folder_of_a_done_job_is_cleared_leaves_what_the_next_run_clears(
    tmp_path, monkeypatch
) -> None:
    store = tmp_path / "a.ome.zarr"
    levels = levels_of(write_image(store), (1, 2, 2), "mean", 2)
    folder, left = store / "0" / ".compact" / "levels", []

    def kill(_: JobFolder) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(JobFolder, "clear", kill)
        with pytest.raises(KeyboardInterrupt):
            add(store, 1)
    for _ in die_at_every_point(lambda: add(store, 1)):
        names = {path.name for path in folder.iterdir()} if folder.exists() else None
        if names is not None and names not in left:  # another job begins with this
            left.append(names)
            shutil.copytree(store, other := tmp_path / f"other{len(left)}.ome.zarr")
            assert add(other, 2).made == ["2"]
            assert not (other / "0" / ".compact").exists()
            np.testing.assert_array_equal(read_everywhere(other / "2"), levels[2])
    assert left == [{"job", "work"}, {"job"}], "the record goes last"
    assert not (store / "0" / ".compact").exists()
    np.testing.assert_array_equal(read_everywhere(store / "1"), levels[1])


def rewrite(shard) -> None:
    """The same bytes, at another time: as far as can be seen without reading, another shard of the same
    length."""
    data = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data)


def test_a_source_that_changed_between_runs_is_begun_anew(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    values = write_image(store)
    shard = store / "0" / "c" / "0" / "0" / "0"
    damage_a_chunk(shard)
    assert add(store, 1).shards_made == 2
    damage_a_chunk(shard)
    rewrite(shard)
    again = add(store, 1)
    assert (again.shards_made, again.shards_found) == (3, 0)
    np.testing.assert_array_equal(read_everywhere(store / "1"), levels_of(values, (1, 2, 2), "mean", 1)[1])


def test_a_throttle_of_the_caller_waits_for_the_pause_files_of_the_image(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write_image(store)
    waited_for = []

    def watched(tasks):
        for task in tasks:
            waited_for.append(task["throttle"]["pause_files"])
            yield run_task(task)

    throttle = replace(POLITE, pause_files=("/its/own",))
    assert add_levels(store, PyramidOptions(1), watched, throttle=throttle).ok
    assert waited_for
    assert all(files == ["/its/own", *pause_files(store / "0")] for files in waited_for)


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write_image(store)

    def rewritten(tasks):
        yield from run_here(tasks)
        rewrite(store / "0" / "c" / "0" / "0" / "0")

    with pytest.raises(ShardFormatError, match="changed while it was read"):
        add_levels(store, PyramidOptions(1), rewritten, throttle=POLITE)
    assert len(multiscale(store)["datasets"]) == 1
    assert not (store / "1").exists()


def test_a_level_that_a_stopped_run_published_of_another_source_is_not_taken_for_ours(
    tmp_path, monkeypatch
) -> None:
    store = tmp_path / "a.ome.zarr"
    write_image(store)

    def stop_before_naming(path, data) -> None:
        if path == store / "zarr.json":
            raise KeyboardInterrupt
        replace_file(path, data)

    with monkeypatch.context() as patched:
        patched.setattr("shardwright.rework.jobs.new_arrays.replace_file", stop_before_naming)
        with pytest.raises(KeyboardInterrupt):
            add(store, 1)
    assert (store / "1").exists()
    assert len(multiscale(store)["datasets"]) == 1
    rewrite(store / "0" / "c" / "0" / "0" / "0")
    with pytest.raises(OutputExistsError, match="folder of a new level exists already"):
        add(store, 1)


def test_memory_stays_within_the_plan(tmp_path) -> None:
    store = tmp_path / "a.ome.zarr"
    write_image(store, shape=(16, 512, 512), chunks=(4, 64, 64), shard_chunks=(4, 8, 8))
    add(store, 1, axes=("z", "y", "x"), memory_bytes=14 << 20)
    task = {
        "kind": "make",
        "lossy": False,
        "source": str(store / "0"),
        "array": str(store / "1"),
        "shard": [0, 0, 0],
        "work": str(tmp_path),
        "throttle": NOT_IDLE,
    }
    task |= {"factors": [2, 2, 2], "method": "mean", "memory_bytes": 14 << 20}
    (store / "1" / "c" / "0" / "0" / "0").unlink()
    tracemalloc.start()
    try:
        result = run_task(task)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result["ok"]
    assert peak <= result["peak_bytes"] <= 14 << 20
    values = read_everywhere(store / "0")
    expected = np.empty((8, 256, 256), values.dtype)
    downsample(values, expected, (2, 2, 2), "mean")
    np.testing.assert_array_equal(read_everywhere(store / "1"), expected)
    assert result["bytes_read"] <= sum(path.stat().st_size for path in (store / "0" / "c").rglob("0")), (
        "no chunk is read twice"
    )


def test_what_cannot_be_is_refused_before_it_begins(tmp_path, monkeypatch) -> None:
    store = tmp_path / "a.ome.zarr"
    write_image(store)
    for axes, message in (
        (("q",), "there is no axis 'q', expected some of z, y, x"),
        ({"x": 9}, "expected 1 to 8 along x, got 9"),
        ({"x": 1}, "no axis is left to reduce"),
        ({}, "no axis is left to reduce"),
    ):
        with pytest.raises(SpecError, match=message):
            add(store, axes=axes)
    with pytest.raises(SpecError, match="no axis is left to reduce"):
        add(store, 30)
    (store / "1").mkdir()
    (store / "1" / "mine").touch()
    with pytest.raises(OutputExistsError):
        add(store)
    (store / "1" / "mine").unlink()
    (store / "1").rmdir()
    with monkeypatch.context() as patched:
        patched.setattr("shardwright.rework.jobs.pyramid_levels.stored_bytes", lambda _: 1 << 62)
        with pytest.raises(StorageFullError, match="not enough room"):
            add(store)
    report = add(store, memory_bytes=1 << 16)
    assert report.failures[0]["error"]["code"] == BudgetError.code
    (store / ".shardwright").mkdir()
    with pytest.raises(ShardFormatError, match="not finished"):
        add(store)
    assert (
        len(json.loads((store / "zarr.json").read_text())["attributes"]["ome"]["multiscales"][0]["datasets"])
        == 1
    )


def test_a_boot_that_numbers_devices_otherwise_leaves_the_source_the_same(tmp_path, monkeypatch):
    write_image(tmp_path / "image.ome.zarr")
    array = open_store(tmp_path / "image.ome.zarr").arrays[0]
    before = fingerprint(array)
    seen = Path.stat

    def renumbered(path: Path, **options: bool) -> SimpleNamespace:
        found = seen(path, **options)
        facts = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**{**facts, "st_dev": found.st_dev + 1})

    monkeypatch.setattr(Path, "stat", renumbered)
    assert fingerprint(array) == before
