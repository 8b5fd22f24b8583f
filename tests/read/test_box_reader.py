"""Boxes of a shard: any box of any layout, whichever chunks are read together, decoded in parts or not there;
damaged bytes are an error."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from shardwright.model.errors import ShardFormatError
from shardwright.read import box_reader
from shardwright.read.box_reader import empty_box
from shardwright.read.live_view import LiveView

from . import stores

if TYPE_CHECKING:
    from pathlib import Path

SHAPE, CHUNK = (8, 24, 40), (2, 6, 8)
# what is read together: all, by the gap between chunks, by the size; and a chunk of its own in parts
LIMITS: dict[str, dict[str, int]] = {
    "together": {},
    "each alone": {"COALESCE_BYTES": -1, "BATCH_BYTES": 1},
    "small batches": {"BATCH_BYTES": 700, "COALESCE_BYTES": 300},
    "in parts": {"BATCH_BYTES": 1, "PART_BYTES": 16},
}


def write(path: Path, compressor: str | None, *, checksum: bool) -> np.ndarray[Any, Any]:
    """Writes one shard in which some chunks are fill."""
    layout = stores.Layout(compressor, checksum, shape=SHAPE, shards=SHAPE, chunks=CHUNK)
    stores.write_with_zarr_python(path, layout)
    array = zarr.open_array(path, mode="r+")
    array[2:4, 6:18, 8:24] = 0
    array[6:, :6, :8] = 0
    return np.asarray(array[...])


def boxes(count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    rng = np.random.default_rng(2)
    low = [tuple(int(rng.integers(0, n)) for n in SHAPE) for _ in range(count)]
    high = [tuple(int(rng.integers(a + 1, n + 1)) for a, n in zip(each, SHAPE, strict=True)) for each in low]
    of_one_chunk = [((0, 0, 0), (2, 5, 7)), ((5, 7, 9), (6, 8, 10)), ((4, 6, 8), (6, 12, 16))]
    return [((0, 0, 0), SHAPE), *of_one_chunk, *zip(low, high, strict=True)]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("compressor", stores.COMPRESSORS)
def test_any_box_is_that_of_the_array(tmp_path, monkeypatch, compressor, checksum, limits):
    pixels = write(tmp_path / "a.zarr", compressor, checksum=checksum)
    for name, value in LIMITS[limits].items():
        monkeypatch.setattr(box_reader, name, value)
    monkeypatch.setattr(box_reader.os, "cpu_count", lambda: 3)
    view = LiveView(tmp_path / "a.zarr")
    for low, high in boxes(25):
        found = view.read_box("", (0, 0, 0), low, high)
        right = pixels[tuple(map(slice, low, high))]
        if found is None:
            assert not right.any()
        else:
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("limits", ["together", "each alone"])
def test_a_damaged_chunk_is_an_error_that_names_the_check(tmp_path, monkeypatch, limits):
    write(tmp_path / "a.zarr", "blosc", checksum=True)
    shard = tmp_path / "a.zarr/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    for name, value in LIMITS[limits].items():
        monkeypatch.setattr(box_reader, name, value)
    with pytest.raises(ShardFormatError, match="crc32c of the chunk does not match"):
        LiveView(tmp_path / "a.zarr").read_box("", (0, 0, 0), (0, 0, 0), SHAPE)


def test_memory_of_a_box_is_used_again_only_when_nobody_has_a_part_of_it():
    shape = (256, 1024)
    box = empty_box(shape, np.dtype(np.uint16))
    box[...] = 7
    part = box[3:5, ::2].T
    del box
    gc.collect()
    others = [empty_box(shape, np.dtype(np.uint16)) for _ in range(8)]
    for other in others:
        other[...] = 1
    assert (part == 7).all()
