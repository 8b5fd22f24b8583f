"""Forms in which an array may be stored that are not the usual one: columns before rows (codec
``transpose``), and an index without checksum, at either place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.writing import how
from tests.repack.images import POLITE

import shardwright as sw
from shardwright.model.errors import SpecError
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pack_shard import pack_shard

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
ROWS, COLUMNS, FRAMES = 20, 13, 11
QUICK: dict[str, Any] = {"store_within_ms": 20, "sync_interval_ms": 20, "threads": 2}
FORMS: dict[str, dict[str, Any]] = {
    "transposed": {"storage_order": ("t", "x", "y")},
    "transposed plain": {"storage_order": ("t", "x", "y"), "index_checksum": False, "codec": None},
    "index plain": {"index_checksum": False},
    "index plain start": {"index_checksum": False, "index_location": "start", "chunk_checksum": True},
    "transposed levels": {"storage_order": ("t", "x", "y"), "levels": 2, "codec": sw.Zstd()},
    "transposed without shards": {"storage_order": ("t", "x", "y"), "shards": None},
    "transposed one frame": {"storage_order": ("t", "x", "y"), "chunk": 1, "shards": 1},
}


def spec(chunk: int = 3, shards: int | None = 2, **fields: Any) -> sw.ArraySpec:
    sizes = (("t", None, chunk), ("y", ROWS, 4), ("x", COLUMNS, 6))
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name=name, count=count, chunk_size=size, shard_size_chunks=shards)
            for name, count, size in sizes
        ],
        **fields,
    )


def frames(count: int = FRAMES) -> np.ndarray:
    return np.random.default_rng(5).integers(1, 4000, (count, ROWS, COLUMNS), np.uint16)


def as_stored(values: np.ndarray, form: str) -> np.ndarray:
    return values.swapaxes(1, 2) if "transposed" in form else values


def check(store: Path, form: str, values: np.ndarray) -> None:
    expected = as_stored(values, form)
    document = json.loads((store / "0/zarr.json").read_text())
    assert document["dimension_names"] == (["t", "x", "y"] if "transposed" in form else ["t", "y", "x"])
    assert (zarr.open_array(store / "0", mode="r")[...] == expected).all()
    opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/0/"}})
    assert (opened.result().read().result() == expected).all()
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        assert (zarr.open_array(store / "0", mode="r")[...] == expected).all()
    assert (zarr.open_array(sw.open(store), path="0", mode="r")[...] == expected).all()
    assert verify_store(store, threads=1).problems == []


@pytest.mark.parametrize("form", FORMS)
def test_the_peers_read_it(tmp_path: Path, form: str) -> None:
    store, values = tmp_path / "a.ome.zarr", frames()
    with sw.create(store, spec(**FORMS[form]), **how(**QUICK)) as writer:
        for frame in values:
            writer.append(frame)
    check(store, form, values)
    if "levels" in form:
        level = zarr.open_array(store / "1", mode="r")
        assert level.shape == (FRAMES, (COLUMNS + 1) // 2, ROWS // 2)
        means = values[:, :, : COLUMNS // 2 * 2].reshape(FRAMES, ROWS // 2, 2, COLUMNS // 2, 2)
        found = level[:, : COLUMNS // 2].swapaxes(1, 2)
        assert np.abs(found - means.mean(axis=(2, 4))).max() <= 0.5
    for array in open_store(store).arrays:
        for _, shard in array.shard_files():
            task = {"array": str(array.path), "shard": list(shard or ()), "order": "column_major"}
            assert pack_shard(task, POLITE)["ok"]
    check(store, form, values)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_seen_while_it_is_written(tmp_path: Path, form: str) -> None:
    """By zarr-python through a live view, with frames that are staged only, and frame by frame."""
    store, values = tmp_path / "a.ome.zarr", frames()
    with sw.create(store, spec(**FORMS[form]), **how(**QUICK)) as writer:
        for number, frame in enumerate(values, 1):
            writer.append(frame)
            if number in (2, 7, 11):
                writer.flush()
                seen = zarr.open_array(sw.open(store), path="0", mode="r")[...]
                assert (seen == as_stored(values[:number], form)).all()
    followed = list(sw.follow(store))
    assert len(followed) == FRAMES
    assert all((each.pixels == values[each.index[0]]).all() for each in followed)


def test_a_file_that_readers_see_grow_needs_a_checksum_of_its_index(tmp_path: Path) -> None:
    for live in ("index", "append"):
        with pytest.raises(SpecError, match="checksum of the index"):
            sw.create(tmp_path / "a.ome.zarr", spec(index_checksum=False), live=live)
    assert not list(tmp_path.iterdir())


def test_what_no_frame_axis_may_do() -> None:
    with pytest.raises(ValueError, match="either order"):
        spec(storage_order=("x", "t", "y"))
    with pytest.raises(ValueError, match="index_checksum"):
        spec(shards=None, index_checksum=False)


def test_earlier_releases_read_the_specification_of_the_usual_form() -> None:
    assert "index_checksum" not in spec().model_dump(mode="json")
    assert spec(index_checksum=False).model_dump(mode="json")["index_checksum"] is False
