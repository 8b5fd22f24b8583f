"""Edited shards as other programs read them."""

import gzip

import numpy as np
import pytest
from tests.harness.writing import how
from tests.properties.readers import READERS

import shardwright as sw
from shardwright.read.store import parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit.shard_edit import edit_shard

from .arrays import chunks_in, encoded, make_array

EDITS = {
    "in_place": {1: 10, 4: None},
    "gap": {2: 12},
    "append": {0: 250, 1: 250},
    "rewrite": {5: None, 3: 100},
}


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("reader", READERS)
def test_other_programs_read_the_new_chunks(tmp_path, place, reader):
    array = make_array(tmp_path / "a", index=place)
    edit_shard(array, (0, 0), {n: encoded(array, n + 1, 40) for n in range(6)})
    expected = READERS[reader](array.path)
    for number, (strategy, noises) in enumerate(EDITS.items()):
        chunks = {n: None if k is None else encoded(array, 100 + n + number, k) for n, k in noises.items()}
        edit_shard(array, (0, 0), chunks, strategy=strategy)
        for chunk, data in chunks.items():
            y, x = (i * 16 for i in divmod(chunk, 3))
            values = 0 if data is None else np.frombuffer(gzip.decompress(data), np.uint8).reshape(16, 16)
            expected[y : y + 16, x : x + 16] = values
        assert np.array_equal(READERS[reader](array.path), expected), strategy


@pytest.mark.parametrize("io", ["mmap", "pwrite"])
@pytest.mark.parametrize("strategy", ["auto", "append", "rewrite"])
def test_an_acquired_store_takes_edits(tmp_path, io, strategy):
    plane = [sw.Dimension(name=axis, count=64, chunk_size=32, shard_size_chunks=2) for axis in "yx"]
    frames = sw.Dimension(name="t", count=4, chunk_size=2, shard_size_chunks=2)
    pixels = np.random.default_rng(1).poisson(90, (4, 64, 64)).astype(np.uint16)
    store = tmp_path / "a.ome.zarr"
    with sw.create(store, sw.ArraySpec(dtype="uint16", dimensions=[frames, *plane]), **how(io=io)) as writer:
        for frame in pixels:
            writer.append(frame)
    array = parse_array(store / "0")
    chunks = chunks_in((array.path / "c/0/0/0").read_bytes(), array)
    edit_shard(array, (0, 0, 0), {0: chunks[7], 5: None}, strategy=strategy)
    pixels[:2, :32, :32] = pixels[2:, 32:, 32:]
    pixels[2:, :32, 32:] = 0
    for read in READERS.values():
        assert np.array_equal(read(array.path), pixels)
    report = verify_store(store)
    assert not report.problems
    assert report.shards_recorded == 1
