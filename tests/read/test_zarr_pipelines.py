"""Stores that we write are read by each way that zarr-python has to fetch and decode chunks, and hold every
chunk that they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.compaction.jobs import Here
from tests.harness.levels import level_problems
from tests.harness.plain_arrays import without_shards
from tests.harness.writing import how
from tests.properties.readers import (
    FUSED_PIPELINE,
    IS_FUSED,
    keys_that_zarr_python_misses,
    regions,
    with_fused_pipeline,
)
from zarr.registry import get_pipeline_class

import shardwright as sw
from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options, plan, run

from .live_judge import frame
from .test_live_view import QUICK, spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FRAMES = 16  # two rows of shards, whole ones
SELECTIONS: list[Any] = [np.s_[:], np.s_[3], np.s_[2:11, 5:20, 7:], np.s_[::3, ::2, 1::5], np.s_[5:5]]
CODECS = {"uncompressed": {"codec": None}, "blosc": {}, "zstd": {"codec": "zstd"}, "plain": {}}
OPENED = {
    "a folder": lambda path: path,
    "a live store": sw.open,
    "a store of chunks": lambda path: sw.ChunkStore(path, "r"),
}


pytestmark = pytest.mark.skipif(
    not IS_FUSED,
    reason="NOT TESTED: zarr-python 3.4 needs Python 3.12; no earlier one has FusedCodecPipeline, nor the "
    "setting read_missing_chunks",
)


@pytest.fixture
def fused() -> Iterator[None]:
    """Chunks are fetched and decoded in threads, with no event loop, where a store allows."""
    with zarr.config.set({"codec_pipeline.path": FUSED_PIPELINE}):
        assert get_pipeline_class().__name__ == "FusedCodecPipeline"
        yield


@pytest.fixture(params=CODECS)
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "a.ome.zarr"
    array = spec(**CODECS[request.param])
    with sw.create(
        path, without_shards(array) if request.param == "plain" else array, **how(**QUICK)
    ) as writer:
        for i in range(FRAMES):
            writer.append(frame(i))
    return path


def written(frames: int = FRAMES) -> np.ndarray:
    return np.stack([frame(i) for i in range(frames)])


@pytest.mark.parametrize("way", OPENED)
def test_a_finished_store_is_read_by_the_fused_pipeline(finished: Path, way: str, fused: None) -> None:
    array = zarr.open_array(OPENED[way](finished), path="0", mode="r")
    for selection in SELECTIONS:
        assert np.array_equal(array[selection], written()[selection]), selection


@pytest.fixture
def unfinished(tmp_path: Path) -> Iterator[Path]:
    """Shards that are sealed, slabs in a shard in progress, and staged frames."""
    with sw.create(tmp_path / "b.ome.zarr", spec(), **how(**QUICK)) as writer:
        for i in range(FRAMES - 1):
            writer.append(frame(i))
        writer.flush()
        yield tmp_path / "b.ome.zarr"


def test_a_store_that_is_written_is_read_by_the_fused_pipeline(unfinished: Path, fused: None) -> None:
    array = zarr.open_array(sw.open(unfinished), path="0", mode="r")
    for selection in SELECTIONS:
        assert np.array_equal(array[selection], written(FRAMES - 1)[selection]), selection


def test_a_store_that_is_written_has_every_chunk(unfinished: Path) -> None:
    with zarr.config.set({"array.read_missing_chunks": False}):
        array = zarr.open_array(sw.open(unfinished), path="0", mode="r")
        assert np.array_equal(array[:], written(FRAMES - 1))


def test_chunks_are_written_by_the_fused_pipeline(finished: Path, fused: None) -> None:
    changed = written()
    changed[3:12, 4:20] = 9
    with sw.ChunkStore(finished) as store:
        zarr.open_array(store, path="0")[3:12, 4:20] = 9
    assert np.array_equal(zarr.open_array(finished, path="0", mode="r")[:], changed)


@pytest.mark.parametrize("way", OPENED)
def test_a_finished_store_has_every_chunk(finished: Path, way: str) -> None:
    """``read_missing_chunks: False`` makes a key that is not there an error, not fill value."""
    with zarr.config.set({"array.read_missing_chunks": False}):
        array = zarr.open_array(OPENED[way](finished), path="0", mode="r")
        assert np.array_equal(array[:], written())


@pytest.mark.parametrize("way", OPENED)
def test_a_shard_that_is_gone_is_an_error_then(finished: Path, way: str) -> None:
    """Which shows that the setting asks for them."""
    for key in ("0/c/1/0/0", "0/c/8/0/0"):
        (finished / key).unlink(missing_ok=True)
    with zarr.config.set({"array.read_missing_chunks": False}):
        array = zarr.open_array(OPENED[way](finished), path="0", mode="r")
        with pytest.raises(
            (FileNotFoundError, KeyError, zarr.errors.BaseZarrError, sw.errors.ShardwrightError)
        ):
            array[:]


LEFT_OUT = {
    "as written": lambda store, pixels: None,
    "packed": lambda store, pixels: run(plan(open_store(store), Options("morton")), Here()),
    "updated": lambda store, pixels: change(store, pixels, np.s_[8:10, 3:5], 7),
    "erased": lambda store, pixels: change(store, pixels, np.s_[0:8, 12:24], None),
}


def change(store: Path, pixels: np.ndarray, region: tuple[slice, slice], value: int | None) -> None:
    pixels[region] = value or 0
    named = {"t": region[0], "y": region[1]}
    if value is None:
        sw.erase(store, named)
    else:
        sw.update(store, named, value)


@pytest.mark.parametrize("what", LEFT_OUT)
@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_left_out_is_all_fill_and_nothing_else_is(
    tmp_path: Path, codec: str, levels: int | None, what: str
) -> None:
    """A shard of fill value alone, or a chunk without shards, has no file: where no key may be missing
    zarr-python raises for it, and for no other."""
    store, pixels, array = tmp_path / "a.ome.zarr", written(), spec(**CODECS[codec], levels=levels)
    pixels[8:] = 0  # the shards of a row, and above it
    with sw.create(store, without_shards(array) if codec == "plain" else array, **how(**QUICK)) as writer:
        for frame in pixels:
            writer.append(frame)
    LEFT_OUT[what](store, pixels)
    assert np.array_equal(with_fused_pipeline(store / "0"), pixels)
    assert level_problems(store) == []
    for path in sorted(store.glob("[01]")):
        values, opened = with_fused_pipeline(path), zarr.open_array(path, mode="r")
        absent = [key for key, region in regions(opened) if not values[region].any()]
        assert absent or what == "updated"
        assert [key for key, _ in regions(opened) if not (path / key).exists()] == absent
        assert keys_that_zarr_python_misses(path) == absent
