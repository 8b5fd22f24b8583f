"""Samples of sealed arrays: of the right channel, without fill value, whatever is damaged."""

from __future__ import annotations

import os

import numpy as np
import pytest

from shardwright.read.chunk_samples import MOST_PIXELS, SampleBudget, channel_samples
from shardwright.read.store import parse_array

from . import stores
from .stores import COMPRESSORS, Layout, write_with_zarr_python

CHANNELS = Layout(shape=(6, 5, 50, 60), shards=(4, 4, 32, 64), chunks=(2, 2, 16, 32))


@pytest.fixture
def write(tmp_path, monkeypatch):
    def write(pixels: np.ndarray, layout: Layout):
        monkeypatch.setattr(stores, "pixels", lambda _layout: pixels.astype(layout.dtype))
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        write_with_zarr_python(path, layout)
        return parse_array(path)

    return write


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("index_location", ["start", "end"])
def test_each_channel_is_found(write, compressor, index_location):
    """The value of every pixel names its channel; the array's edges cut chunks."""
    layout = Layout(**{**vars(CHANNELS), "compressor": compressor, "index_location": index_location})
    pixels = np.broadcast_to(np.arange(1, 6).reshape(1, 5, 1, 1), layout.shape)
    array = write(pixels, layout)
    samples = channel_samples(array, 1, [0, 3, 4], 8)
    assert {channel: set(found.tolist()) for channel, found in samples.items()} == {0: {1}, 3: {4}, 4: {5}}
    assert channel_samples(array, None, [0], 30)[0].max() > 1, "of all channels together"


def test_it_takes_pixels_of_the_whole_array(write):
    layout = Layout(shape=(40, 64, 64), shards=(4, 64, 64), chunks=(1, 32, 32))
    frames = np.arange(1, 41).reshape(-1, 1, 1)
    (found,) = channel_samples(write(np.broadcast_to(frames, layout.shape), layout), None, [0], 8).values()
    assert found.size == 8 * 32 * 32 <= 8 * MOST_PIXELS
    assert len(set(found.tolist())) == 8
    assert (found.min() < 12, found.max() > 28) == (True, True)


def test_frames_that_are_fill_value_do_not_count(write):
    layout = Layout(shape=(8, 32, 32), shards=(8, 32, 32), chunks=(4, 32, 32), dtype="float32")
    pixels = np.zeros(layout.shape)
    pixels[2] = np.linspace(5, 9, 32 * 32).reshape(32, 32)
    (found,) = channel_samples(write(pixels, layout), None, [0], 4).values()
    assert found.min() >= 5
    assert channel_samples(write(np.zeros(layout.shape), layout), None, [0], 4) == {}


def test_what_cannot_be_read_is_left_out(write):
    layout = Layout(shape=(8, 32, 32), shards=(2, 32, 32), chunks=(2, 32, 32))
    array = write(np.ones(layout.shape), layout)
    *first, last = sorted(array.path.rglob("c/*/0/0"))
    for shard in first:
        os.truncate(shard, 30)
    assert set(channel_samples(array, None, [0], 16)[0].tolist()) == {1}
    os.truncate(last, 30)
    assert channel_samples(array, None, [0], 16) == {}


def test_each_chunk_is_read_once_and_charged_once(write):
    layout = Layout(shape=(3, 64, 64), shards=(1, 64, 64), chunks=(1, 64, 64))
    array, budget = write(np.ones(layout.shape), layout), SampleBudget(chunks=100, nbytes=1 << 20)
    (found,) = channel_samples(array, None, [0], 16, budget).values()
    assert found.size == 3 * MOST_PIXELS
    assert (budget.chunks, budget.nbytes) == (97, (1 << 20) - 3 * array.chunk_bytes)
    (array.path / "c/1/0/0").unlink()
    channel_samples(array, None, [0], 16, budget)
    assert budget.chunks == 95


def test_a_budget_tells_how_often_chunks_can_be_read():
    budget = SampleBudget(chunks=8, nbytes=100)
    assert [budget.times(*each) for each in ((4, 1), (1, 30), (9, 1), (1, 101), (0, 0))] == [2, 3, 0, 0, 8]
