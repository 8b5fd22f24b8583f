"""Boxes of a shard: any box of any layout, whichever chunks are read together, decoded in parts or not there;
damaged bytes are an error."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
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


def test_threads_that_are_busy_are_not_waited_for(monkeypatch):
    """Another read may have them all: then this one is done by its own thread."""
    monkeypatch.setattr(box_reader.os, "cpu_count", lambda: 3)
    end, done = threading.Event(), []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(end.wait)
        monkeypatch.setattr(box_reader, "_pool", lambda: pool)
        reading = threading.Thread(target=box_reader._all_of, args=(done.append, range(5)))
        reading.start()
        reading.join(20)
        waits = reading.is_alive()
        end.set()
    reading.join()
    assert (waits, done) == (False, [0, 1, 2, 3, 4])


def test_a_thread_keeps_no_memory_of_a_chunk_larger_than_most():
    most = box_reader._MOST_SCRATCH_BYTES
    small = box_reader._scratch("decoded", 1000)
    assert box_reader._scratch("decoded", most + 1).size == most + 1
    assert box_reader._scratch("decoded", 1000).ctypes.data == small.ctypes.data
    assert box_reader._local.decoded.size <= most


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
