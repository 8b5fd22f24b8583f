"""The order of chunks in the shards of an acquisition (``chunk_order``): each chunk has a place that is known
before its frames come, whatever order they come in. With other options, and other writers:
``tests/covering``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.chunk_orders import check_orders
from tests.harness.daemon import run_cli
from tests.harness.store_contents import snapshot
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.model.errors import SpecError
from shardwright.read.verify_store import verify_store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.usefixtures("each_file_syncs_alone"),
    pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning"),
]
ROWS, COLUMNS = 30, 22
QUICK: dict[str, Any] = {"store_within_ms": 20, "sync_interval_ms": 20, "threads": 2}
ORDERS = ("row_major", "morton")
SHAPES: dict[str, dict[str, Any]] = {
    "t": {"axes": (("t", None, 2, 4),), "frames": 15},
    "tz": {"axes": (("t", None, 1, 4), ("z", 5, 2, 2)), "frames": 35},
    "levels": {"axes": (("t", None, 2, 4),), "frames": 15, "levels": 1},
    "one slab": {"axes": (("t", None, 3, 1),), "frames": 15},
}


def spec(axes: tuple[tuple[str, int | None, int, int], ...], **fields: Any) -> sw.ArraySpec:
    fields.pop("frames")
    sizes = (*axes, ("y", ROWS, 8, 2), ("x", COLUMNS, 4, 3))
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for name, count, chunk, shard in sizes
    ]
    return sw.ArraySpec(dtype="uint16", dimensions=dimensions, **fields)


def frames(shape: str) -> np.ndarray:
    count = SHAPES[shape]["frames"]
    return np.random.default_rng(7).integers(1, 900, (count, ROWS, COLUMNS), np.uint16)


def check_values(store: Path, shape: str, values: np.ndarray) -> None:
    counts = [count or -1 for _, count, _, _ in SHAPES[shape]["axes"]]
    expected = values.reshape(*counts, ROWS, COLUMNS)
    assert (zarr.open_array(store / "0", mode="r")[...] == expected).all()
    opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/0/"}})
    assert (opened.result().read().result() == expected).all()
    assert verify_store(store, threads=1).problems == []


@pytest.mark.parametrize(
    ("shape", "io", "order"),
    [("levels", "direct", "row_major"), ("tz", "mmap", "morton"), ("one slab", "pwrite", "row_major")],
)
def test_chunks_lie_in_the_order_that_was_asked_for(tmp_path: Path, shape: str, order: Any, io: Any) -> None:
    store, values = tmp_path / "a.ome.zarr", frames(shape)
    with sw.create(store, spec(**SHAPES[shape]), **how(chunk_order=order, io=io, **QUICK)) as writer:
        for frame in values:
            writer.append(frame)
    assert check_orders(store, order) >= 4
    check_values(store, shape, values)


@pytest.mark.parametrize("order", ORDERS)
def test_whatever_the_order_of_frames(tmp_path: Path, order: Any) -> None:
    store, values = tmp_path / "a.ome.zarr", frames("t")
    with sw.create(store, spec(**SHAPES["t"]), **how(chunk_order=order, **QUICK)) as writer:
        for t in (6, 7, 1, 0, 5, 4, 3, 2, 14, 13, 12, 8, 9, 10, 11):
            writer.append(values[t], index=(t,))
    assert check_orders(store, order) >= 4
    check_values(store, "t", values)


@pytest.mark.parametrize("order", ORDERS)
def test_gaps_are_given_back_and_packed_away(tmp_path: Path, order: Any) -> None:
    store, values = tmp_path / "a.ome.zarr", frames("t")
    with sw.create(store, spec(**SHAPES["t"]), **how(chunk_order=order, **QUICK)) as writer:
        for frame in values:
            writer.append(frame)
    run_cli("compact", store, "--no-idle", "--workers", "1", "--order", order, check=True)
    assert check_orders(store, order) >= 4
    check_values(store, "t", values)


def left_behind(tmp_path: Path, shape: str, count: int, **settings: Any) -> Path:
    """Returns a copy of a store with ``count`` frames, as a kill would leave it."""
    store = tmp_path / "a.ome.zarr"
    with sw.create(tmp_path / "b.ome.zarr", spec(**SHAPES[shape]), **how(**settings, **QUICK)) as writer:
        for frame in frames(shape)[:count]:
            writer.append(frame)
        writer.flush()
        snapshot(tmp_path / "b.ome.zarr", store)
    return store


@pytest.mark.parametrize(
    ("shape", "io", "order", "after"),
    [("tz", "pwrite", "morton", "morton"), ("tz", "mmap", "row_major", "morton")],
)
def test_an_acquisition_goes_on_in_another_order(
    tmp_path: Path, shape: str, order: Any, after: Any, io: Any
) -> None:
    values = frames(shape)
    half = values.shape[0] // 2
    store = left_behind(tmp_path, shape, half, chunk_order=order, io=io)
    with sw.resume(store, **how(chunk_order=after, **QUICK)) as writer:
        assert writer.frames == half
        for frame in values[half:]:
            writer.append(frame)
    check_values(store, shape, values)
    if order == after != "arrival":
        check_orders(store, order)  # also in the shards that were in progress


def test_chunks_that_lie_elsewhere_are_not_written_over_in_a_new_order(tmp_path: Path) -> None:
    """The first slab fills the places that Morton's order has for half of it and half of the second one."""
    store = tmp_path / "a.ome.zarr"
    axes = (("t", None, 1, 4), ("y", 64, 64, 1), ("x", 128, 32, 4))
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for name, count, chunk, shard in axes
    ]
    layout = sw.ArraySpec(dtype="uint16", dimensions=dimensions, codec=None)
    values = np.random.default_rng(7).integers(1, 900, (4, 64, 128), np.uint16)
    with sw.create(tmp_path / "b.ome.zarr", layout, **how(io="pwrite", **QUICK)) as writer:
        writer.append(values[0])
        writer.flush()
        snapshot(tmp_path / "b.ome.zarr", store)
    with sw.resume(store, **how(chunk_order="morton", **QUICK)) as writer:
        for frame in values[1:]:
            writer.append(frame)
    assert (zarr.open_array(store / "0", mode="r")[...] == values).all()


@pytest.mark.parametrize("io", ["mmap", "pwrite"])
@pytest.mark.parametrize("order", ["fixed", "row_major"])
def test_an_io_error_changes_no_order(tmp_path: Path, order: Any, io: Any) -> None:
    store, values, failures = tmp_path / "a.ome.zarr", frames("tz"), [5]

    def fail() -> None:
        if failures:
            raise OSError(failures.pop(), "once")

    with sw.create(store, spec(**SHAPES["tz"]), **how(chunk_order=order, io=io, **QUICK)) as writer:
        for frame in values[:8]:
            writer.append(frame)
        writer.flush()
        failpoints.set_hook("shard.before_sync", fail)
        try:
            for frame in values[8:]:
                writer.append(frame)
            writer.flush()
        finally:
            failpoints.set_hook("shard.before_sync", None)
    assert not failures
    check_values(store, "tz", values)
    check_orders(store, "row_major" if order == "row_major" else "morton")


@pytest.mark.parametrize("order", ORDERS)
def test_readers_see_shards_grow(tmp_path: Path, order: Any) -> None:
    store, values = tmp_path / "a.ome.zarr", frames("t")
    array = spec(**SHAPES["t"], index_location="start")
    with sw.create(store, array, live="index", **how(chunk_order=order, io="pwrite", **QUICK)) as writer:
        for number, frame in enumerate(values, 1):
            writer.append(frame)
            if number in (4, 10):
                writer.flush()
                seen = zarr.open_array(sw.open(store), path="0", mode="r")[...]
                assert (seen == values[:number]).all()
    check_values(store, "t", values)
    check_orders(store, order)


@pytest.mark.parametrize("order", ["fixed", *ORDERS])
def test_a_copy_that_grows_has_its_chunks_as_they_came(tmp_path: Path, order: Any) -> None:
    with pytest.raises(SpecError, match="choose chunk_order arrival, or live index"):
        sw.create(tmp_path / "a.ome.zarr", spec(**SHAPES["t"]), live="append", **how(chunk_order=order))


def test_an_order_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown chunk_order"):
        sw.create(tmp_path / "a.ome.zarr", spec(**SHAPES["t"]), **how(chunk_order="hilbert"))  # type: ignore[arg-type]
