"""Several writers in one array: regions of which no two share a file, absent chunks of a fixed size that take
a free slot, and a warning where a small write costs a whole shard."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import dask
import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.writing import how
from tests.repack.images import die_at_every_point, read_everywhere, write_image

import shardwright as sw
from shardwright.disk.files import FileIdentity
from shardwright.model.errors import PartialWriteWarning, StorageError, StrategyError
from shardwright.read.store import parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit import shard_edit
from shardwright.rework.edit.accepted_shards import verify_and_accept
from shardwright.rework.edit.edit_recovery import recover_edits

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (8, 32, 32)


def slotted(path: Path, **options) -> np.ndarray:
    """An uncompressed store of one shard whose chunks lie in slots, with those of frames 4 to 7 absent."""
    t = sw.Dimension(name="t", count=SHAPE[0], chunk_size=2, shard_size_chunks=4)
    y, x = (sw.Dimension(name=name, count=32, chunk_size=16, shard_size_chunks=2) for name in "yx")
    spec = sw.ArraySpec(dtype="uint16", dimensions=[t, y, x], codec=None, **options)
    values = np.arange(1, 1 + np.prod(SHAPE), dtype="uint16").reshape(SHAPE)
    values[4:] = 0
    with (
        warnings.catch_warnings(action="ignore", category=sw.errors.LayoutWarning),
        sw.create(path, spec, **how(io="mmap")) as writer,
    ):
        writer.append_many(values)
    return values


# ---------------------------------------------------------------------- regions


def test_regions_cover_the_array_once_and_each_is_one_file(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path)
    stored, regions = parse_array(path / "0"), list(sw.shard_regions(path))
    count = np.zeros(stored.shape, int)
    for region in regions:
        count[region] += 1
        assert {s.start // n for s, n in zip(region, stored.shard_shape, strict=True)} == {
            (s.stop - 1) // n for s, n in zip(region, stored.shard_shape, strict=True)
        }
    assert (count == 1).all()
    assert len(regions) == stored.shards_in_shape
    assert list(sw.shard_regions(path, "0")) == list(sw.shard_regions(path / "0")) == regions
    with pytest.raises(StorageError):
        sw.shard_regions(path, "7")


@pytest.mark.parametrize("writer", ["update", "chunk store", "zarr-python", "tensorstore"])
def test_tasks_of_dask_write_side_by_side(tmp_path, writer) -> None:
    """Neighbours in one shard would lose each other's chunks by a writer without locks."""
    path = tmp_path / "a.ome.zarr"
    values = write_image(path, shard_chunks=(2, 1, 1))
    array = {
        "update": None,
        "chunk store": lambda: zarr.open_array(sw.ChunkStore(path / "0"), mode="r+"),
        "zarr-python": lambda: zarr.open_array(path / "0", mode="r+"),
        "tensorstore": lambda: tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/0/"}}
        ).result(),
    }[writer]
    opened = array and array()

    def work(region: tuple[slice, ...]) -> None:
        new = values[region] + 1
        if opened is None:
            sw.update(path, dict(zip("zyx", region, strict=True)), new)
        elif writer == "tensorstore":
            opened[region].write(new).result()
        else:
            opened[region] = new

    dask.compute(*map(dask.delayed(work), sw.shard_regions(path)), scheduler="threads", num_workers=4)
    np.testing.assert_array_equal(read_everywhere(path / "0"), values + 1)
    if array is not None and writer != "chunk store":
        assert verify_and_accept(path, ["all"]).accepted
    assert verify_store(path).problems == []


# ---------------------------------------------------------------------- slots


@pytest.mark.parametrize("index", ["start", "end"])
@pytest.mark.parametrize("checksum", [False, True])
def test_absent_chunks_of_a_fixed_size_take_free_slots(tmp_path, index, checksum) -> None:
    path = tmp_path / "a.ome.zarr"
    values = slotted(path, index_location=index, chunk_checksum=checksum)
    shard = path / "0" / "c" / "0" / "0" / "0"
    before = shard.stat()
    values[3:6, :16] = np.random.default_rng(2).integers(1, 999, (3, 16, 32))
    # some chunks are there, others are not
    report = sw.update(path, {"t": slice(3, 6), "y": slice(0, 16)}, values[3:6, :16])
    assert report.arrays[0].strategies == {"in_place": 1}
    assert (shard.stat().st_ino, shard.stat().st_size) == (before.st_ino, before.st_size)
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)
    assert verify_store(path).problems == []
    values[6:] = 9
    assert sw.update(path, {"t": slice(6, 8)}, 9, strategy="in_place").arrays[0].strategies == {"in_place": 1}
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)
    assert shard.stat().st_size == before.st_size


def test_absent_chunks_of_other_sizes_are_not_put_into_gaps_in_place(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path)  # compressed; frame 4 never came
    with pytest.raises(StrategyError, match="is absent"):
        sw.update(path, {"z": 4}, 6, strategy="in_place")


def test_without_a_free_slot_they_are_appended_with_an_index(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    values = slotted(path)
    shard = path / "0" / "c" / "0" / "0" / "0"
    sw.update(path, {"t": slice(4, 8)}, 5)  # all slots are full
    zarr.open_array(path / "0", mode="r+")[6:, :16] = 0  # and zarr-python packs it, without these chunks
    verify_and_accept(path, ["all"])
    before = shard.stat()
    with pytest.raises(StrategyError, match="gap"):
        sw.update(path, {"t": slice(6, 8), "y": slice(0, 16)}, 6, strategy="in_place")
    report = sw.update(path, {"t": slice(6, 8), "y": slice(0, 16)}, 6)
    assert report.arrays[0].strategies == {"append": 1}
    assert shard.stat().st_ino == before.st_ino
    values[4:] = 5
    values[6:, :16] = 6
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)
    assert verify_store(path).problems == []


def test_killed_at_every_storage_call_all_chunks_are_old_or_new(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    old = slotted(path, chunk_checksum=True)
    new = old.copy()
    new[3:6, :16] = 77
    region = {"t": slice(3, 6), "y": slice(0, 16)}
    for _ in die_at_every_point(lambda: sw.update(path, region, 77, strategy="in_place")):
        recover_edits(path)
        found = sw.open_array(path)[...]
        assert (found == old).all() or (found == new).all()
        assert verify_store(path).problems == []
    np.testing.assert_array_equal(read_everywhere(path / "0"), new)


# ---------------------------------------------------------------------- the warning


def rewrite(path: Path, part: dict) -> None:
    sw.update(path, part, 4, strategy="rewrite")


def store_pixels(store: sw.ChunkStore) -> None:
    zarr.open_array(store, mode="r+")[0, :8, 0] = 4


@pytest.mark.parametrize("writer", ["update", "chunk store"])
def test_a_small_write_that_costs_a_large_shard_warns(tmp_path, monkeypatch, writer) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path, codec=None)
    whole, part = {"z": slice(0, 4), "y": slice(0, 16), "x": slice(0, 32)}, {"z": 0, "y": slice(0, 8), "x": 0}
    with warnings.catch_warnings(action="error"):
        sw.update(path, part, 3, strategy="rewrite")  # a small shard is nothing to tell of
        monkeypatch.setattr(shard_edit, "_LARGE_BYTES", 1 << 10)
        sw.update(path, part, 3)  # within the file
        sw.update(path, whole, 3, strategy="rewrite")
    store = sw.ChunkStore(path / "0", strategy="rewrite")
    with pytest.warns(PartialWriteWarning) as told:
        rewrite(path, part) if writer == "update" else store_pixels(store)
    text, written = str(told[0].message), (path / "0/c/0/0/0").stat().st_size
    assert text.startswith(f"{8 * 16 * 2} bytes of chunks")
    assert f"{written} bytes are written" in text


def test_where_warnings_are_errors_a_costly_write_changes_nothing(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path, codec=None)
    monkeypatch.setattr(shard_edit, "_LARGE_BYTES", 1 << 10)
    shard, record = path / "0/c/0/0/0", path / "0/shards.crc32c"
    before = shard.read_bytes(), FileIdentity.at(shard), record.read_bytes()
    with warnings.catch_warnings(action="error"), pytest.raises(PartialWriteWarning):
        rewrite(path, {"z": 0, "y": slice(0, 8), "x": 0})
    assert (shard.read_bytes(), FileIdentity.at(shard), record.read_bytes()) == before
