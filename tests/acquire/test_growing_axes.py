"""Several axes without a count: each frame names its index, and each axis ends with the newest of them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.daemon import run_cli
from tests.harness.writing import how

import shardwright as sw
from shardwright import errors
from shardwright.acquire.accounts import Accounts
from shardwright.array.grid import Grid
from shardwright.model.names import WORKSPACE
from shardwright.read.verify_store import verify_store
from shardwright.shard.manifest import manifest_path

if TYPE_CHECKING:
    from pathlib import Path


DEPTHS = (5, 2, 7, 1)  # planes of each time point
SHAPE = (12, 16)


def spec(**more) -> sw.ArraySpec:
    axes = [("t", None, 1, 1), ("z", None, 3, 1), ("c", 2, 1, 2), ("y", 12, 6, 2), ("x", 16, 16, 1)]
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for name, count, chunk, shard in axes
    ]
    more.setdefault("storage_order", ("t", "c", "z", "y", "x"))
    return sw.ArraySpec(dtype="uint16", dimensions=tuple(dimensions), fill_value=9, **more)


def frame(t: int, z: int, c: int) -> np.ndarray:
    return np.full(SHAPE, 500 * t + 10 * z + c + 10, np.uint16)


def indices(depths: tuple[int, ...] = DEPTHS) -> list[tuple[int, int, int]]:
    return [(t, z, c) for t, depth in enumerate(depths) for z in range(depth) for c in range(2)]


def expected(depths: tuple[int, ...] = DEPTHS) -> np.ndarray:
    array = np.full((len(depths), max(depths), 2, *SHAPE), 9, np.uint16)
    for index in indices(depths):
        array[index] = frame(*index)
    return array.swapaxes(1, 2)


def check(path: Path, receipt: sw.Receipt, depths: tuple[int, ...] = DEPTHS) -> None:
    np.testing.assert_array_equal(zarr.open_array(path / "0", mode="r")[...], expected(depths))
    assert (receipt.frames_stored, receipt.frames_missing) == (len(indices(depths)), 0)
    assert not receipt.trouble, "nobody expected more of any stack"
    assert verify_store(path).ok
    table = sw.frame_table(path).sort_values("sequence")
    found = zip(table.index_t.tolist(), table.index_z.tolist(), table.index_c.tolist(), strict=True)
    assert list(found) == indices(depths)


@pytest.mark.parametrize("at_once", [False, True], ids=["append", "append_many"])
def test_each_axis_ends_with_its_newest_index(tmp_path, at_once):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec()) as writer:
        if at_once:
            writer.append_many(np.stack([frame(*i) for i in indices()]), indices=indices())
        else:
            for index in indices():
                writer.append(frame(*index), index=index)
        assert writer.receipt.frames_missing == 0, "the camera may still send them"
    check(path, writer.receipt)


def test_more_steps_than_shard_rows_that_may_be_open(tmp_path):
    depths = tuple(1 + t % 4 for t in range(90))
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec()) as writer:
        assert writer._limits.open_shard_rows < len(depths)
        for index in indices(depths):
            writer.append(frame(*index), index=index)
    check(path, writer.receipt, depths)


def test_frames_without_an_index_are_refused(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", spec()) as writer:
        for place in ({}, {"frame_id": 3}):
            with pytest.raises(errors.FrameIndexError, match="Give index"):
                writer.append(frame(0, 0, 0), **place)
        for place in ({}, {"frame_ids": [3, 4]}):
            with pytest.raises(errors.FrameIndexError, match="Give index"):
                writer.append_many(np.stack([frame(0, 0, 0)] * 2), **place)
        with pytest.raises(errors.FrameIndexError, match="0 to 65535"):
            writer.append(frame(0, 0, 0), index=(0, 65536, 0))
        writer.append(frame(0, 0, 0), index=(0, 0, 0))
    assert writer.receipt.frames_stored == 1


def test_a_slower_axis_that_shares_chunks_or_shards_is_refused():
    t, *others = spec().dimensions
    for sizes in ({"chunk_size": 2}, {"shard_size_chunks": 2}):
        with pytest.raises(ValueError, match="'z' has no count and changes faster than 't'"):
            sw.ArraySpec(dtype="uint16", dimensions=(t.model_copy(update=sizes), *others))
    with pytest.raises(ValueError, match="reduce it later"):
        spec(levels=sw.Levels(count=1, factors={"z": 2, "y": 2, "x": 2}))


def test_axes_that_leave_too_few_places_or_cannot_be_described_are_refused():
    t, z, c, *plane = spec().dimensions
    p, q = (z.model_copy(update={"name": name, "type": "other", "chunk_size": 1}) for name in "pq")
    few = sw.ArraySpec(dtype="uint16", dimensions=(t, p, z, c, *plane))
    assert Grid.of(few).lasts[:2] == (2**48 // 2**33 - 1, 65535)
    with pytest.raises(ValueError, match="'t' would end at 1, since each further axis"):
        sw.ArraySpec(dtype="uint16", dimensions=(t, q, p, z, *plane))
    with pytest.raises(ValueError, match="'c' is a channel axis and needs a count"):
        sw.ArraySpec(dtype="uint16", dimensions=(t, c.model_copy(update={"count": None}), *plane))
    with pytest.raises(errors.FrameIndexError, match="along axis 0"):
        Grid.of(few).position_of((2**15, 0, 0, 0))


def test_what_is_missing_is_counted_image_by_image(tmp_path):
    """Of the ragged one only what came and is not stored, while it runs and in the end."""
    regular = sw.default_layout((8, *SHAPE), "uint16", "tyx")
    images = {"ragged": spec(), "regular": regular}
    with sw.create(tmp_path / "a.ome.zarr", images=images, **how(on_duplicate="count")) as writer:
        for index in indices():
            writer.append(frame(*index), image="ragged", index=index)
        writer.append(frame(0, 0, 0), image="ragged", index=(0, 0, 0))
        for t in (0, 5):
            writer.append(frame(t, 0, 0), image="regular", index=(t,))
        running = writer.receipt
        assert {name: counts["frames_missing"] for name, counts in running.images.items()} == {
            "ragged": 0,
            "regular": 4,
        }
        assert running.frames_missing == 4
    receipt = writer.receipt
    assert receipt.frames_missing == receipt.images["regular"]["frames_missing"] == 4
    assert receipt.images["ragged"]["frames_missing"] == 0
    assert receipt.frames_duplicate == 1


def test_the_cost_of_a_frame_does_not_grow_with_the_images():
    """Each array operation of a batch is over its frames, or over all images at once: none for each image."""
    images = [sw.Image(name=f"p{i}") for i in range(3000)]
    grids = sw.AcquisitionSpec(array=spec(), images=images).grids
    accounts = Accounts(grids)
    position = np.array([grids.grids[2999].position_of((4, 6, 1))])
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        accounts.receive(np.array([0]), position)
    finally:
        sys.setprofile(None)
    assert accounts.extents[2999].tolist() == [5, 7]
    assert accounts.extents[0].tolist() == [0, 0]
    assert calls < 300


def test_an_older_release_is_told_by_the_first_manifest(tmp_path):
    def format_of(path: Path) -> int:
        return json.loads(manifest_path(path / WORKSPACE, 1).read_text())["format"]

    with sw.create(tmp_path / "a.ome.zarr", spec()) as writer:
        assert format_of(writer.path) == 8
        writer.append(frame(0, 0, 0), index=(0, 0, 0))


def test_a_grown_store_is_repacked_as_others_are(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec()) as writer:
        for index in indices():
            writer.append(frame(*index), index=index)
    for options in (["compact"], ["pyramid", "--levels", "1", "--method", "max", "--factors", "z=2,y=2,x=2"]):
        done = run_cli(*options, path)
        assert done.returncode == 0, done.stderr
    check(path, writer.receipt)
    above = zarr.open_array(path / "1", mode="r")[...]
    assert above.shape == (4, 2, 4, 6, 8)
    assert above[0, 1, 2].max() == max(frame(0, 4, 1).max(), 9)


def test_the_default_layout_of_two_axes_without_a_count(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, shape=(None, None, 12, 16), dtype="uint16", axes="tzyx") as writer:
        for t, z, c in indices():
            if c == 0:
                writer.append(frame(t, z, 0), index=(t, z))
    found = zarr.open_array(path / "0", mode="r")[...]
    np.testing.assert_array_equal(np.where(found, found, 9), expected()[:, 0])
