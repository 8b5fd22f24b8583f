"""Frames are put into the chunks of their slab as they come (``partial_chunks: in_place``): nothing waits in
memory, and what was stored is there after a kill, however little of a chunk came."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.json_process import wait_for
from tests.harness.store_contents import snapshot
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import full_disk
from shardwright.acquire.limits import Limits
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.disk import failpoints
from shardwright.model.errors import (
    BudgetError,
    FormatVersionError,
    SpecError,
    StorageError,
    StorageFullError,
)
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.take_over import with_manifest
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard import manifest
from shardwright.shard.manifest import read_manifest
from shardwright.shard.shard_row_files import Placement, ShardRowFiles

if TYPE_CHECKING:
    from shardwright.acquire.workers import WorkerPool

pytestmark = [
    pytest.mark.usefixtures("each_file_syncs_alone"),
    pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning"),
]
ROWS, COLUMNS = 30, 22
QUICK: dict[str, Any] = {"sync_interval_ms": 20, "threads": 2, "partial_chunks": "in_place"}
SHAPES: dict[str, dict[str, Any]] = {
    "t": {"axes": (("t", None, 4, 2),), "frames": 15},
    "tz": {"axes": (("t", None, 2, 4), ("z", 5, 2, 2)), "frames": 35},
    "stored in another order": {
        "axes": (("t", None, 2, 2), ("z", 5, 2, 4)),
        "frames": 35,
        "storage_order": ("z", "t", "y", "x"),
    },
    "transposed": {"axes": (("t", None, 4, 2),), "frames": 15, "storage_order": ("t", "x", "y")},
    "index first": {"axes": (("t", None, 4, 2),), "frames": 15, "index_location": "start"},
    "whole frames": {"axes": (("t", None, 3, 2),), "frames": 15, "y": (ROWS, 1), "x": (COLUMNS, 1)},
    "bands": {"axes": (("t", None, 3, 2),), "frames": 15, "y": (10, 2), "x": (COLUMNS, 1)},
    "fill value": {"axes": (("t", None, 4, 2),), "frames": 15, "fill_value": 77},
    "without shards": {"axes": (("t", None, 4, None),), "frames": 15, "y": (8, None), "x": (8, None)},
    "one frame": {"axes": (("t", None, 1, 4),), "frames": 9},
}


def spec(axes: tuple[tuple[str, int | None, int, int | None], ...], **fields: Any) -> sw.ArraySpec:
    del fields["frames"]
    sizes = (*axes, ("y", ROWS, *fields.pop("y", (8, 2))), ("x", COLUMNS, *fields.pop("x", (8, 2))))
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for name, count, chunk, shard in sizes
    ]
    return sw.ArraySpec(dtype="uint16", dimensions=dimensions, codec=None, **fields)


def frames(shape: str) -> np.ndarray:
    """Some chunks of some slabs are all fill value, others of single frames."""
    count, fill = SHAPES[shape]["frames"], SHAPES[shape].get("fill_value", 0)
    values = np.random.default_rng(7).integers(1, 900, (count, ROWS, COLUMNS), np.uint16)
    values[:, :8, :8] = fill
    values[2, 8:16] = fill
    return values


def check_values(store: Path, shape: str, values: np.ndarray, *, problems: bool = False) -> None:
    fields = SHAPES[shape]
    counts = [count or -1 for _, count, _, _ in fields["axes"]]
    names = [name for name, *_ in fields["axes"]] + ["y", "x"]
    expected = values.reshape(*counts, ROWS, COLUMNS)
    if "storage_order" in fields:
        expected = expected.transpose([names.index(name) for name in fields["storage_order"]])
    assert (zarr.open_array(store / "0", mode="r")[...] == expected).all()
    opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/0/"}})
    assert (opened.result().read().result() == expected).all()
    assert bool(verify_store(store, threads=1).problems) == problems


def left_behind(tmp_path: Path, shape: str, count: int, **settings: Any) -> Path:
    """Returns a copy of a store with ``count`` frames, as a kill would leave it."""
    with sw.create(tmp_path / "b.ome.zarr", spec(**SHAPES[shape]), **how(**settings, **QUICK)) as writer:
        for frame in frames(shape)[:count]:
            writer.append(frame)
        writer.flush()
        store = snapshot(tmp_path / "b.ome.zarr", tmp_path / "a.ome.zarr")
    shutil.rmtree(tmp_path / "b.ome.zarr")
    return store


@pytest.mark.parametrize(("shape", "io"), [*zip(SHAPES, itertools.cycle(["pwrite", "mmap"]), strict=False)])
def test_frames_in_order(tmp_path: Path, shape: str, io: Any) -> None:
    store, values = tmp_path / "a.ome.zarr", frames(shape)
    with sw.create(store, spec(**SHAPES[shape]), **how(io=io, **QUICK)) as writer:
        for frame in values:
            writer.append(frame)
    assert writer.receipt.frames_durable == len(values)
    check_values(store, shape, values)


@pytest.mark.parametrize("durability", ["stored", "durable"])
def test_frames_in_any_order_with_some_missing(tmp_path: Path, durability: Any) -> None:
    store, values = tmp_path / "a.ome.zarr", frames("tz")
    order = np.random.default_rng(3).permutation(35)
    with sw.create(store, spec(**SHAPES["tz"]), durability=durability, **how(**QUICK)) as writer:
        for n in order[order != 13].tolist():
            writer.append(values[n], index=divmod(n, 5))
    values[13] = 0
    check_values(store, "tz", values)


def test_chunks_that_are_all_fill_are_left_out_where_that_is_zero(tmp_path: Path) -> None:
    stored = {}
    for shape in ("t", "fill value"):
        store = tmp_path / f"{shape}.ome.zarr"
        with sw.create(store, spec(**SHAPES[shape]), **how(**QUICK)) as writer:
            for frame in frames(shape):
                writer.append(frame)
        stored[shape] = verify_store(store, threads=1).chunks
    assert stored["fill value"] == stored["t"] + 4, "one of each slab: bytes are in its place already"


def test_a_chunk_is_deeper_than_memory(tmp_path: Path) -> None:
    """A slab of 400 frames passes through a ring of 9."""
    fields = {"axes": (("t", None, 400, 1),), "frames": 400}
    array, values = spec(**fields), np.random.default_rng(1).integers(1, 900, (401, ROWS, COLUMNS), np.uint16)
    placed = parse_acquisition(array).in_place()
    least = Limits.derive(placed, threads=2, ring_frames=9)
    assert least.held_frames == 0
    with pytest.raises(BudgetError):
        Limits.derive(array, threads=2, ring_frames=9)
    store = tmp_path / "a.ome.zarr"
    with sw.create(store, array, **how(**QUICK)) as writer:
        for frame in values:
            writer.append(frame)
        writer.flush()
        assert writer.receipt.frames_durable == 401
    assert (zarr.open_array(store / "0", mode="r")[...] == values).all()


@pytest.mark.parametrize("count", [1, 3, 4, 6, 14])
def test_what_a_dead_writer_left_is_recovered(tmp_path: Path, shared_pool: WorkerPool, count: int) -> None:
    """However little of a slab came. Of other arrays: ``tests/covering``."""
    store, values = left_behind(tmp_path, "t", count), frames("t")
    recovery = recover_store(store, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_lost) == (count, 0)
    assert (zarr.open_array(store / "0", mode="r")[...] == values[:count]).all()
    assert verify_store(store, threads=1).problems == []


@pytest.mark.parametrize(("count", "io"), [(1, "pwrite"), (3, "mmap"), (7, "mmap"), (22, "pwrite")])
def test_a_dead_writers_acquisition_goes_on(tmp_path: Path, count: int, io: Any) -> None:
    values = frames("tz")
    store = left_behind(tmp_path, "tz", count, io=io)
    with sw.resume(store, threads=2, **how(chunk_order="morton")) as writer:  # of another option: parts stay
        assert writer.frames == count
        for frame in values[count:]:
            writer.append(frame)
    check_values(store, "tz", values)


def test_earlier_releases_refuse_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = left_behind(tmp_path, "t", 3)
    monkeypatch.setattr(manifest, "FORMAT", 6)
    with pytest.raises(FormatVersionError):
        sw.resume(store)


@pytest.mark.parametrize(
    ("fields", "settings", "why"),
    [
        ({"codec": "zstd"}, {}, "no codec"),
        ({"chunk_checksum": True}, {}, "no codec"),
        ({"levels": 1}, {}, "no codec"),
        ({}, {"io": "direct"}, "whole pages"),
        ({}, {"live": "index"}, "live none"),
        ({}, {"chunk_order": "morton"}, "no other chunk_order"),
        ({}, {"partial_chunks": "nowhere"}, "unknown partial_chunks"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    tmp_path: Path, fields: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    array = spec(**SHAPES["t"]).model_dump() | fields
    with pytest.raises(SpecError, match=why):
        sw.create(tmp_path / "a.ome.zarr", array, **how(**QUICK | settings))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("io", ["pwrite", "mmap"])
def test_readers_see_frames_of_chunks_that_are_not_full(tmp_path: Path, io: Any) -> None:
    store, values = tmp_path / "a.ome.zarr", frames("t")
    with sw.create(store, spec(**SHAPES["t"]), **how(io=io, **QUICK)) as writer:
        for number, frame in enumerate(values, 1):
            writer.append(frame)
            writer.flush()
            seen = zarr.open_array(sw.open(store), path="0", mode="r")[...]
            assert seen.shape[0] == number
            assert (seen == values[:number]).all()
    check_values(store, "t", values)


def test_contrast_windows_come_from_frames_that_are_in_their_chunks(tmp_path: Path) -> None:
    windows = {}
    for way in ("collect", "in_place"):
        store = tmp_path / f"{way}.ome.zarr"
        with sw.create(store, spec(**SHAPES["t"]), **how(**QUICK | {"partial_chunks": way})) as writer:
            for frame in np.tile(frames("t")[3:5, 16:], (8, 3, 1))[:, :ROWS]:
                writer.append(frame)
        windows[way] = zarr.open_group(store, mode="r").attrs["ome"]["omero"]["channels"][0]["window"]
    assert windows["in_place"]["end"] == pytest.approx(windows["collect"]["end"], rel=0.1)


@pytest.mark.parametrize(
    "point", ["slots.before_write", "staging.before_write", "journal.before_frames", "journal.before_chunks"]
)
@pytest.mark.parametrize("count", [0, 2, 5])
def test_an_error_ends_it_and_nothing_acknowledged_is_lost(
    tmp_path: Path, shared_pool: WorkerPool, point: str, count: int
) -> None:
    """Files that are not whole are not moved to new ones."""
    store, values = tmp_path / "a.ome.zarr", frames("t")

    def fail() -> None:
        raise OSError(5, "broken")

    writer = sw.create(store, spec(**SHAPES["t"]), **how(io="pwrite", **QUICK))
    for frame in values[:count]:
        writer.append(frame)
    writer.flush()
    failpoints.set_hook(point, fail)
    try:
        with pytest.raises(StorageError, match="broken"):  # noqa: PT012  (any of the calls may tell)
            for frame in values[count:]:
                writer.append(frame)
                writer.flush()
    finally:
        failpoints.set_hook(point, None)
        with pytest.raises(StorageError):
            writer.close()
    kept = writer.receipt.frames_durable
    assert kept >= count
    if (store / ".shardwright").exists():
        assert recover_store(store, shared_pool, threads=2).frames_kept >= kept
    got = zarr.open_array(store / "0", mode="r")[...]
    assert (got[:kept] == values[:kept]).all()


def test_a_full_disk_is_over_once_there_are_files_although_no_slab_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_disk, "RETRY_S", 0.02)
    store, values = tmp_path / "a.ome.zarr", frames("t")[:10]  # two of them are in the second shard row

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with sw.create(store, spec(**SHAPES["t"]), on_full="block", **how(**QUICK)) as writer:
        acquisition = writer._driver.acquisition
        failpoints.set_hook("shard.before_preallocate", full)
        try:
            for frame in values:
                writer.append(frame)
            wait_for(lambda: acquisition.waits_for_disk, "the disk to be full")
        finally:
            failpoints.set_hook("shard.before_preallocate", None)
        writer.flush()
        assert writer.receipt.frames_durable == 10
        assert not acquisition.waits_for_disk
    check_values(store, "t", values)


@pytest.mark.parametrize(
    ("point", "may_be_durable"),
    [("shard.before_sync", {5}), ("staging.before_sync", {5, 6, 7}), ("journal.before_sync", {5})],
)
def test_a_failed_sync_makes_nothing_durable(
    tmp_path: Path, shared_pool: WorkerPool, point: str, may_be_durable: set[int]
) -> None:
    """Of the staging area neither; but the shard row, which is well, is sealed where its files can be at that
    moment, with those frames that came before the failure was told, and they are durable then. Else recovery
    finds them without a record, as frames of which nothing was promised."""
    store, values = tmp_path / "a.ome.zarr", frames("t")

    def fail() -> None:
        raise OSError(5, "broken")

    writer = sw.create(store, spec(**SHAPES["t"]), **how(**QUICK))
    for frame in values[:5]:
        writer.append(frame)
    writer.flush()
    failpoints.set_hook(point, fail)
    try:
        try:  # any of the calls may tell
            writer.append(values[5])
            writer.append(values[6])
            writer.flush()
            writer.flush()
        except StorageError as error:
            assert "broken" in str(error)  # noqa: PT017  (the end alone tells where all was sealed before)
        else:
            assert writer.watermark.durable == 7
        with pytest.raises(StorageError, match="broken"):
            writer.close()
    finally:
        failpoints.set_hook(point, None)
    durable = writer.receipt.frames_durable
    assert durable in may_be_durable
    if (store / ".shardwright").exists():
        recover_store(store, shared_pool, threads=2)
    got = zarr.open_array(store / "0", mode="r")[...]
    assert (got[:durable] == values[:durable]).all()


def test_a_part_that_rots_is_a_frame_lost(tmp_path: Path, shared_pool: WorkerPool) -> None:
    store, values = left_behind(tmp_path, "t", 3), frames("t")
    path = store / ".shardwright" / "c.0.0.0.partial"
    data = bytearray(path.read_bytes())
    part = 8 * 8 * 2
    at = data.index(values[1, :8, 8:16].tobytes()[:16])  # of the second chunk
    assert at % 4096 == part
    data[at] ^= 1
    path.write_bytes(data)
    recovery = recover_store(store, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_lost) == (2, 1)
    got = zarr.open_array(store / "0", mode="r")[...]
    values[1] = 0
    assert (got == values[:3]).all(), "of a lost frame nothing is left"


def test_a_lost_shard_or_journal_is_frames_lost(tmp_path: Path, shared_pool: WorkerPool) -> None:
    """No entry of a journal tells of frames whose chunks are not full: without a header it is no journal that
    was never begun."""
    for name, left in (("c.0.0.1.partial", None), ("0.journal", b"\xff" * 4096), ("0.journal", bytes(4096))):
        store = left_behind(tmp_path / f"{name}{left and left[0]}", "t", 3)
        path = store / ".shardwright" / name
        path.unlink() if left is None else path.write_bytes(left)
        recovery = recover_store(store, shared_pool, threads=2)
        assert (recovery.frames_kept, recovery.frames_lost) == (0, 3)


def test_the_plan_has_no_chunk_in_memory() -> None:
    sizes = (("t", None, 1000, 1), ("y", 1024, 512, 2), ("x", 1024, 512, 2))
    dimensions = [sw.Dimension(name=n, count=c, chunk_size=k, shard_size_chunks=s) for n, c, k, s in sizes]
    array = sw.ArraySpec(dtype="uint16", dimensions=dimensions, codec=None)
    collected = Limits.derive(array, threads=4)
    placed = Limits.derive(parse_acquisition(array).in_place(), threads=4)
    assert placed.chunk_bytes == 500 << 20
    assert placed.acquisition_bytes < 128 << 20 < collected.acquisition_bytes // 8


@pytest.mark.parametrize("on_full", ["block", "spill"])
def test_a_full_disk_is_waited_for_though_no_slab_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_full: Any
) -> None:
    """The next shard row's files are refused while frames, fewer than a slab, already need them."""
    store, refused = tmp_path / "a.ome.zarr", [0]
    create = ShardRowFiles.create.__func__  # type: ignore[attr-defined]

    def made(cls: Any, placement: Placement, layout: Any, shard_row: int, *rest: Any, **more: Any) -> Any:
        if placement.spill is None and shard_row > 0 and refused[0] < 3:
            refused[0] += 1
            raise StorageFullError("no room")
        return create(cls, placement, layout, shard_row, *rest, **more)

    monkeypatch.setattr(ShardRowFiles, "create", classmethod(made))
    monkeypatch.setattr(full_disk, "RETRY_S", 0.01)
    array = spec(axes=(("t", None, 64, 2),), frames=0)
    values = np.random.default_rng(1).integers(1, 900, (150, ROWS, COLUMNS), np.uint16)
    spill = {"spill_root": tmp_path / "second"} if on_full == "spill" else {}
    with sw.create(store, array, on_full=on_full, **how(**spill, **QUICK)) as writer:
        for frame in values:
            writer.append(frame)
        writer.flush()
    assert refused[0] >= (3 if on_full == "block" else 1)
    assert (zarr.open_array(store / "0", mode="r")[...] == values).all()


def test_a_file_of_the_same_name_in_another_root_is_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_pool: WorkerPool
) -> None:
    """A creation in the first root was refused, and a power cut brought its shards back."""
    create = ShardRowFiles.create.__func__  # type: ignore[attr-defined]

    def made(cls: Any, placement: Placement, *rest: Any, **more: Any) -> Any:
        if placement.spill is None:
            raise StorageFullError("no room")
        return create(cls, placement, *rest, **more)

    monkeypatch.setattr(ShardRowFiles, "create", classmethod(made))
    values, made_in, left = frames("t"), tmp_path / "made", tmp_path / "left"
    spill = {"on_full": "spill", "spill_root": made_in / "second"}
    with sw.create(made_in / "a.ome.zarr", spec(**SHAPES["t"]), **how(**spill, **QUICK)) as writer:
        for frame in values[:3]:
            writer.append(frame)
        writer.flush()
        snapshot(made_in, left)
    store, second = left / "a.ome.zarr", left / "second"
    for name in (path.name for path in second.rglob("*.partial")):
        (store / ".shardwright" / name).write_bytes(bytes(8192))
    found = UnfinishedStore(store, replace(read_manifest(store / ".shardwright"), spill_root=str(second)))
    with_manifest(found, found.manifest, lambda: None)
    assert recover_store(store, shared_pool, threads=2).frames_kept == 3


def test_frames_are_read_with_one_file_open_at_a_time(tmp_path: Path, shared_pool: WorkerPool) -> None:
    """An array without shards has a file for each chunk."""
    store = left_behind(tmp_path, "without shards", 3)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = UnfinishedStore.read(store)
    reader = found.frames_in_place
    assert reader is not None
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, limits[1]))
    try:
        pixels = reader.read(2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert pixels is not None
    assert (pixels.view("<u2").reshape(ROWS, COLUMNS) == frames("without shards")[2]).all()


def test_too_many_open_files_are_no_lost_frames(tmp_path: Path) -> None:
    store = left_behind(tmp_path, "t", 3)
    found = UnfinishedStore.read(store)
    area, reader = found.open_staging(), found.frames_in_place
    assert area is not None
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(StorageError, match="Too many open files"):
            area.read(reader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        area.close()
