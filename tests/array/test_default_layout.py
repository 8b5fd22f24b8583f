"""Chunks and shards that are chosen from shape, dtype and axes, and warnings of chunks that are too small."""

from __future__ import annotations

import math

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.acquire.limits import RUNTIME_BYTES, Limits
from shardwright.array.default_layout import CHUNK_BYTES, LEAST_CHUNK_BYTES, SHARD_BYTES, SLAB_BYTES
from shardwright.array.grid import Grid
from shardwright.array.ome import layout_warnings
from shardwright.model.errors import LayoutWarning, SpecError

KNOWN = {  # (shape, dtype, axes): chunk, shard in the order of the axes
    "the benchmarks' layout": (
        ((None, 2048, 2048), "uint16", "tyx"),
        [16, 256, 256],
        [64, 2048, 2048],
    ),
    "channels last: a frame is a slab": (
        ((None, 3, 2048, 2048), "uint16", "tcyx"),
        [1, 1, 1024, 1024],
        [21, 3, 2048, 2048],
    ),
    "stacks": (
        ((None, 2, 50, 2304, 2304), "uint16", "tczyx"),
        [1, 1, 8, 256, 256],
        [1, 1, 32, 2304, 2304],
    ),
    "a small fast camera": (((None, 128, 128), "uint16", "tyx"), [64, 128, 128], [16384, 128, 128]),
    "a camera whose rows are no power of two": (
        ((None, 2160, 2560), "uint16", "tyx"),
        [8, 240, 256],
        [48, 2160, 2560],
    ),
    "one frame larger than a shard": (((100_000, 100_000), "uint16", "yx"), [1024, 1024], [2048, 100_352]),
    "one short stack": (((10, 512, 512), "uint8", "zyx"), [10, 256, 256], [10, 512, 512]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_usual_arrays(name):
    arguments, chunk, shard = KNOWN[name]
    spec = sw.default_layout(*arguments)
    assert [d.chunk_size for d in spec.dimensions] == chunk
    assert [d.shard_size for d in spec.dimensions] == shard


@given(
    frame=st.tuples(st.integers(1, 20_000), st.integers(1, 20_000)),
    counts=st.lists(st.integers(1, 3000), max_size=4),
    unlimited=st.booleans(),
    axes=st.permutations("tczp"),
    dtype=st.sampled_from(["uint8", "uint16", "float32", "float64"]),
)
def test_every_choice_keeps_to_its_bounds(frame, counts, unlimited, axes, dtype):
    shape = ([None, *counts[1:]] if unlimited and counts else counts) + list(frame)
    spec = sw.default_layout(shape, dtype, [*axes[: len(counts)], "y", "x"])
    chunk_bytes = math.prod(d.chunk_size for d in spec.dimensions) * spec.itemsize
    shard_bytes = math.prod(d.shard_size for d in spec.dimensions) * spec.itemsize
    grid = Grid.of(spec)
    assert chunk_bytes <= CHUNK_BYTES
    # a whole frame of edge chunks may be up to twice its pixels
    assert shard_bytes <= max(2 * SHARD_BYTES, 2 * CHUNK_BYTES)
    assert grid.held_frames * spec.frame_bytes <= max(SLAB_BYTES, spec.frame_bytes)
    assert grid.open_shard_rows == 1, "frames in order fill one shard row after the other"
    assert grid.open_slabs == 1 or spec.frame_bytes < LEAST_CHUNK_BYTES, "and one slab after the other"
    warned = [
        text for text in layout_warnings(spec) if text.startswith(("chunk_size", "axes: OME-Zarr 0.5 wants"))
    ]
    assert warned == []
    limits = Limits.derive(spec, threads=4)
    assert limits.memory_bytes <= RUNTIME_BYTES + 4 * (SLAB_BYTES + spec.frame_bytes) + (256 << 20)


OVERRIDES = {  # what a user gives: chunk, shard in the order of the axes
    "the depth": ((None, 2048, 2048), "tyx", {"chunks": {"t": 1}}, [1, 1024, 1024], [64, 2048, 2048]),
    "a slow axis": (
        (None, 3, 2048, 2048),
        "tcyx",
        {"chunks": {"t": 16}},
        [16, 1, 256, 256],
        [16, 3, 2048, 2048],
    ),
    "whole frames": (
        (None, 2048, 2048),
        "tyx",
        {"chunks": {"y": 2048, "x": 2048}},
        [1, 2048, 2048],
        [64, 2048, 2048],
    ),
    "a shard of many stacks": (
        (None, 2, 50, 512, 512),
        "tczyx",
        {"shards": {"t": 4}},
        [1, 1, 16, 256, 256],
        [4, 2, 64, 512, 512],
    ),
    "half of the channels": (
        (None, 4, 512, 512),
        "tcyx",
        {"shards": {"c": np.int64(2)}},
        [1, 1, 512, 512],
        [1, 2, 512, 512],
    ),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_the_other_axes_adapt_to_what_is_given(name):
    shape, axes, options, chunk, shard = OVERRIDES[name]
    spec = sw.default_layout(shape, "uint16", axes, **options)
    assert [d.chunk_size for d in spec.dimensions] == chunk
    assert [d.shard_size for d in spec.dimensions] == shard


def test_without_shards_the_chunks_are_the_same():
    arguments = ((None, 2, 50, 2304, 2304), "uint16", "tczyx")
    spec = sw.default_layout(*arguments, shards=False)
    assert [d.shard_size_chunks for d in spec.dimensions] == [None] * 5
    assert [d.chunk_size for d in spec.dimensions] == [
        d.chunk_size for d in sw.default_layout(*arguments).dimensions
    ]


@pytest.mark.parametrize("shards", [True, 0, "none"])
def test_shards_are_given_by_axis_or_left_out(shards):
    with pytest.raises(SpecError, match="shards is given by axis"):
        sw.default_layout((None, 64, 64), "uint16", "tyx", shards=shards)


SMALL_FRAMES = {
    "an axis of one channel": ((None, 1, 64, 64), "uint16", "tcyx", [256, 1, 64, 64]),
    "two channels": ((None, 2, 100, 100), "uint8", "tcyx", [128, 1, 100, 100]),
    "short stacks": ((None, 7, 16, 16), "uint8", "tzyx", [1024, 7, 16, 16]),
}


@pytest.mark.parametrize("name", SMALL_FRAMES)
def test_chunks_of_small_frames_are_deep(name):
    *arguments, chunk = SMALL_FRAMES[name]
    assert [d.chunk_size for d in sw.default_layout(*arguments).dimensions] == chunk


def test_a_store_of_shape_dtype_and_axes_alone(tmp_path):
    frames = np.random.default_rng(1).integers(0, 4000, (2, 3, 40, 50), np.uint16)
    path = tmp_path / "a.ome.zarr"
    with sw.create(
        path,
        shape=(None, 3, 40, 50),
        dtype="uint16",
        axes="tcyx",
        scales={"y": 0.1, "x": 0.1},
        units={"y": "micrometer", "x": "micrometer"},
        chunks={"t": 1, "y": 20},
        shards={"t": 2},
        codec="zstd",
    ) as writer:
        for frame in frames.reshape(-1, 40, 50):
            writer.append(frame)
    array = zarr.open_array(path / "0", mode="r")
    assert array.shape == (2, 3, 40, 50)
    assert array.chunks == (1, 1, 20, 50)
    assert array.shards == (2, 3, 40, 50)
    np.testing.assert_array_equal(array[:], frames)


def test_channels_that_come_faster_than_stacks_are_stored_as_ome_zarr_wants():
    spec = sw.default_layout((None, 5, 2, 64, 64), "uint8", "tzcyx")
    assert spec.storage_order == ("t", "c", "z", "y", "x")
    assert layout_warnings(spec) == []


WRONG = {
    "no axes": (((4, 4), "uint8", "y"), {}, "the same length"),
    "one axis": (((4,), "uint8", "y"), {}, "the same length"),
    "a size for another axis": (((4, 4), "uint8", "yx"), {"chunks": {"z": 2}}, "chunks is given by axis"),
    "a unit for another axis": (
        ((4, 4), "uint8", "yx"),
        {"units": {"t": "second"}},
        "units is given by axis",
    ),
    "no chunk": (((4, 4), "uint8", "yx"), {"chunks": {"y": 0}}, "1 or more"),
    "a text": (((4, 4), "uint8", "yx"), {"shards": {"y": "4"}}, "1 or more"),
    "a cut chunk": (((40, 4), "uint8", "yx"), {"chunks": {"y": 16}, "shards": {"y": 20}}, "multiple of 16"),
    "two unlimited axes": (
        ((None, None, 4, 4), "uint8", "tzyx"),
        {"chunks": {"t": 2}},
        "'z' has no count and changes faster than 't'",
    ),
    "two axes of one name": (((4, 4, 4), "uint8", "yyx"), {}, "names must differ"),
    "too much for a chunk": (((4, 4), "uint8", "yx"), {"chunks": {"y": 2**31}}, "chunk_size"),
    "chunks as zarr takes them": (((4, 4), "uint8", "yx"), {"chunks": (4, 4)}, "given by axis.*'x': ..."),
    "an axis by number": (((4, 4), "uint8", "yx"), {"chunks": {1: 4, "q": 1}}, "given by axis"),
    "true": (((4, 4), "uint8", "yx"), {"chunks": {"y": True}}, "1 or more"),
    "a shape of one number": ((5, "uint8", "yx"), {}, "the same length"),
    "no usual axes": (((1, 2, 3, 4, 4, 4), "uint8"), {}, "the same length"),
    "dimensions": (((4, 4), "uint8", "yx"), {"dimensions": []}, "follow from shape"),
    "no dtype": (((4, 4), "pixels", "yx"), {}, "dtype 'pixels' is not one of"),
    "an order without an axis": (((4, 4, 4, 4), "uint8", "tcyx"), {"order": "c"}, "every frame axis once"),
    "an order of no names": (((4, 4, 4), "uint8", "tyx"), {"order": 1}, "every frame axis once"),
    "two orders": (((4, 4, 4), "uint8", "tyx"), {"order": "t", "storage_order": "tyx"}, "say the same"),
    "no such field": (((4, 4), "uint8", "yx"), {"colour": 1}, "colour"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name):
    arguments, options, message = WRONG[name]
    with pytest.raises(SpecError, match=message):
        sw.default_layout(*arguments, **options)


def test_images_that_take_turns_wait_for_nothing():
    """Chunks are deep only along axes that change faster than the image, and shards share their room."""
    arguments = (None, 10, 2048, 2048), "uint16", "tzyx"

    def sizes(**options) -> list[tuple[int, int]]:
        return [(d.chunk_size, d.shard_size) for d in sw.default_layout(*arguments, **options).dimensions[:2]]

    alone = sizes()
    assert alone == [(1, 6), (10, 10)]
    assert sizes(images=12, order=("p", "t", "z")) == sizes(order=("t", "z")) == alone
    assert sizes(images=12, order=("t", "p", "z")) == [(1, 1), (10, 10)]
    assert sizes(images=12, order=("t", "z", "p")) == sizes(images=12) == [(1, 1), (1, 5)]
    assert sizes(images=12, chunks={"z": 10})[1] == (10, 10)
    plate = sw.Plate(rows=8, columns=12)
    array = sw.default_layout(*arguments, images=96)
    limits = Limits.derive(sw.AcquisitionSpec(array=array, plate=plate), threads=4)
    assert limits.acquisition_bytes < 1 << 30
    assert limits.disk_reserved_bytes < 8 << 30


def test_create_knows_how_many_images_there_are(tmp_path):
    arguments = {"shape": (4, 64, 64), "dtype": "uint8", "axes": "tyx"}
    with sw.create(tmp_path / "a", **arguments, plate={"rows": 1, "columns": 2}) as writer:
        assert writer.images.array.dimensions[0].chunk_size == 1
    with sw.create(tmp_path / "b", **arguments) as writer:
        assert writer.spec.dimensions[0].chunk_size == 4


def test_channels_are_given_by_name(tmp_path):
    channels = ["GFP", sw.Channel(name="RFP", color="FF0000")]
    with sw.create(tmp_path / "a", shape=(2, 64, 64), dtype="uint8", axes="cyx", channels=channels) as writer:
        assert [channel.name for channel in writer.spec.channels] == ["GFP", "RFP"]


def test_a_spec_and_its_parts_are_not_mixed(tmp_path):
    spec = sw.default_layout((4, 4), "uint8", "yx")
    with pytest.raises(TypeError, match="and also chunks, codec, which the spec says"):
        sw.create(tmp_path / "a.ome.zarr", spec, chunks={"y": 2}, codec="none")
    with pytest.raises(SpecError, match="expected shape and dtype, or a spec; got shape"):
        sw.create(tmp_path / "a.ome.zarr", shape=(4, 4))
    assert not list(tmp_path.iterdir())


def test_chunks_that_are_too_small_are_named_with_better_ones(spec_of, tmp_path):
    spec = spec_of(("t", None, 1, 16), ("y", 512, 64, 8), ("x", 512, 64, 8))
    (warning,) = layout_warnings(spec)
    assert "8192 bytes" in warning
    assert "chunk_size 16, 256, 256 with shard_size_chunks 64, 2, 2 along t, y, x" in warning
    with (
        pytest.warns(LayoutWarning, match="better is chunk_size 16"),
        sw.create(tmp_path / "a.ome.zarr", spec),
    ):
        pass
    assert layout_warnings(spec_of(("t", None, 1, 16), ("y", 64, 64, 1), ("x", 64, 64, 1))) == [], (
        "small frames have no better chunks of one frame, and their depth is the user's to choose"
    )
