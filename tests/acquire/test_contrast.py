"""Contrast windows come from the pixels: while they are written, and after a crash from what is sealed."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.python import commands
from yaozarrs import validate_zarr_store

import shardwright as sw
from shardwright.acquire.limits import IMAGE_BYTES, Limits
from shardwright.acquire.workers import WorkerPool
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.grid import IMAGE_SHIFT
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.store import contrast_samples, store_metadata
from shardwright.store.contrast_samples import ContrastSamples
from shardwright.store.sampled_channels import SampledChannels

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
SHAPE = (96, 128)


def array(axes: dict[str, tuple[int | None, int]], dtype: str = "uint16", **more) -> sw.ArraySpec:
    """Frame axes by name as (count, chunk), shards of two chunks."""
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=2)
        for name, (count, chunk) in axes.items()
    ]
    dimensions += [
        sw.Dimension(name=n, count=c, chunk_size=c // 2, shard_size_chunks=2)
        for n, c in zip("yx", SHAPE, strict=True)
    ]
    return sw.ArraySpec(dtype=dtype, dimensions=tuple(dimensions), **more)


def ramp(low: float, high: float, dtype: str = "uint16") -> np.ndarray:
    """Every pixel another value, from low in one corner to high in the other."""
    return np.linspace(low, high, SHAPE[0] * SHAPE[1]).reshape(SHAPE).astype(dtype)


def windows(group: Path) -> list[dict[str, float]]:
    ome = json.loads((group / "zarr.json").read_text())["attributes"]["ome"]
    return [channel["window"] for channel in ome["omero"]["channels"]]


def assert_near(window: dict[str, float], start: float, end: float) -> None:
    """As percentiles of a ramp are found in a sample of it."""
    near = 1 + (end - start) / 50
    assert start <= window["start"] <= start + near, window
    assert end - near <= window["end"] <= end, window


def write(path: Path, spec: sw.ArraySpec, frames: list[np.ndarray]) -> Path:
    with sw.create(path, spec) as writer:
        for frame in frames:
            writer.append(frame)
    return path


def test_a_12_bit_camera_does_not_open_black(tmp_path):
    path = write(tmp_path / "a.ome.zarr", array({"t": (None, 2)}), [ramp(100, 3000)] * 5)
    (window,) = windows(path)
    assert_near(window, 100, 3000)
    assert (window["min"], window["max"]) == (0, 4095)
    validate_zarr_store(str(path))
    assert verify_store(path).ok


# each chunk has one channel, or two, or all of them
@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("order", ["tc", "ct"])
def test_each_channel_has_its_own(tmp_path, chunk, order):
    axes = {"t": (4, 2), "c": (3, chunk)}
    spec = array({name: axes[name] for name in order}, storage_order=("t", "c", "y", "x"))
    path, ends = tmp_path / "a.ome.zarr", [(10, 60), (1000, 4000), (300, 60_000)]
    with sw.create(path, spec) as writer:
        for t in range(4):
            for c in range(3):
                writer.append(ramp(*ends[c]), index=(t, c) if order == "tc" else (c, t))
    for window, (start, end) in zip(windows(path), ends, strict=True):
        assert_near(window, start, end)
    validate_zarr_store(str(path))


@pytest.mark.parametrize("dtype", ["uint16", "bool"])
def test_channels_without_a_count_have_one_window_together_at_the_end(tmp_path, dtype):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, array({"c": (None, 1)}, dtype)) as writer:
        for number in range(3):
            writer.append(ramp(number, 1000, dtype))
        writer.flush()
        assert "omero" not in json.loads((path / "zarr.json").read_text())["attributes"]["ome"]
    first, *others = windows(path)
    assert others == [first, first]
    assert first["end"] == 1 if dtype == "bool" else first["end"] > 900
    validate_zarr_store(str(path))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int16"])
def test_floats_and_signed_integers(tmp_path, dtype):
    path = write(tmp_path / "a.ome.zarr", array({"t": (None, 1)}, dtype), [ramp(-20, 500, dtype)] * 3)
    assert_near(windows(path)[0], -20, 500)


def test_floats_that_are_not_finite_do_not_count(tmp_path):
    frame = ramp(0, 1, "float32")
    frame[::3], frame[1::3, ::2] = np.nan, np.inf
    assert_near(windows(write(tmp_path / "a.ome.zarr", array({"t": (None, 1)}, "float32"), [frame]))[0], 0, 1)


def test_a_bool_has_the_range_of_its_dtype(tmp_path):
    path = write(tmp_path / "a.ome.zarr", array({"t": (None, 1)}, "bool"), [ramp(0, 1.9, "uint8") > 0])
    assert windows(path) == [{"min": 0, "max": 1, "start": 0, "end": 1}]


@pytest.mark.parametrize("value", [0, 7, 65535])
def test_a_window_of_a_constant_image_is_not_empty(tmp_path, value):
    path = write(tmp_path / "a.ome.zarr", array({"t": (None, 1)}), [np.full(SHAPE, value, np.uint16)] * 2)
    (window,) = windows(path)
    assert window["min"] <= window["start"] < window["end"] <= window["max"]
    assert value in (window["start"], window["end"])


def test_a_given_window_wins(tmp_path):
    channels = [sw.Channel(name="a", window=(5, 50)), sw.Channel(name="b")]
    path = tmp_path / "a.ome.zarr"
    spec = array({"t": (2, 1), "c": (2, 2)}, channels=channels)
    write(path, spec, [ramp(1000, 4000)] * 4)
    given, found = windows(path)
    assert given == {"min": 0, "max": 65535, "start": 5, "end": 50}
    assert_near(found, 1000, 4000)


def test_places_without_a_frame_do_not_count(tmp_path):
    """Half of each slab, and all of channel 1, are fill value."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, array({"t": (6, 2), "c": (2, 2)})) as writer:
        for t in (0, 2, 4):
            writer.append(ramp(2000, 3000), index=(t, 0))
    found, never = windows(path)
    assert_near(found, 2000, 3000)
    assert (never["start"], never["end"]) == (0, 65535), "the dtype's range, since nothing is known"


def test_frames_of_the_whole_acquisition_count(tmp_path):
    path = write(
        tmp_path / "a.ome.zarr", array({"t": (None, 1)}), [ramp(100 * t, 100 * t + 99) for t in range(60)]
    )
    (window,) = windows(path)
    assert window["start"] < 2000
    assert window["end"] > 4000


def test_periods_of_the_acquisition_do_not_hide_frames(tmp_path):
    """The only bright plane of 32 comes up as often as chance wants it, not never or always."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, array({"t": (16, 1), "z": (32, 1)}), threads=1) as writer:
        for n in range(16 * 32):
            writer.append(ramp(5000, 6000) if n % 32 >= 24 else ramp(100, 200))
    (window,) = windows(path)
    assert_near(window, 100, 6000)


def test_a_viewer_sees_the_window_while_the_acquisition_goes_on(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, array({"t": (None, 1)})) as writer:
        for _ in range(4):
            writer.append(ramp(100, 3000))
        writer.flush()
        while not list(path.glob("0/c/0/0/0")):
            writer.flush()
        (window,) = windows(path)
        assert_near(window, 100, 3000)


@pytest.mark.filterwarnings("ignore:Object at .shardwright")
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_what_a_user_has_put_into_the_group_stays(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, array({"t": (None, 1)})) as writer:
        writer.append(ramp(100, 3000))
        group = zarr.open_group(path, mode="r+")
        group.attrs["mine"] = {"sample": 7}
        zarr.consolidate_metadata(path)
        for _ in range(4):
            writer.append(ramp(100, 3000))
    assert_near(windows(path)[0], 100, 3000)
    group = zarr.open_group(path, mode="r", use_consolidated=True)
    assert group.attrs["mine"] == {"sample": 7}
    assert group["0"].shape == (5, *SHAPE)
    assert verify_store(path).ok


# ------------------------------------------------------------------ several images


@pytest.mark.parametrize(("remembered", "wanted"), [(3, ["1", "2"]), (0, ["0", "1", "2"])])
def test_the_end_reads_no_image_whose_windows_would_stay(tmp_path, monkeypatch, remembered, wanted):
    """A plate has thousands. What was updated is read: its user may have taken windows back. So is what is
    beyond the bound of windows that are remembered."""
    path, read = tmp_path / "a.ome.zarr", []
    monkeypatch.setattr(store_metadata, "_MOST_SHOWN", remembered)
    given = store_metadata.read_metadata
    monkeypatch.setattr(
        store_metadata, "read_metadata", lambda at, **how: (read.append(at.name), given(at, **how))[1]
    )
    with sw.create(path, array({"t": (None, 1)}), images=["same", "brighter", "updated"]) as writer:
        for image in ("same", "brighter", "updated"):
            for _ in range(2):
                writer.append(ramp(100, 3000), image=image)
        writer.update_metadata({"mine": 1}, image="updated")
        while not all((path / f"{number}/0/c/0/0/0").exists() for number in range(3)):
            writer.flush()
        read.clear()
        for _ in range(2):
            writer.append(ramp(100, 9000), image="brighter")
    assert sorted(name for name in read if name != path.name) == wanted
    for number, end in enumerate((3000, 9000, 3000)):
        assert_near(windows(path / str(number))[0], 100, end)


@pytest.mark.parametrize(("last", "end"), [(3000, 7), (9000, 9000)])
def test_a_window_of_another_program_stays_until_ours_moves(tmp_path, last, end):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, array({"t": (None, 1)})) as writer:
        for _ in range(2):
            writer.append(ramp(100, 3000))
        while not (path / "0/c/0/0/0").exists():
            writer.flush()
        group = json.loads((path / "zarr.json").read_text())
        group["attributes"]["ome"]["omero"]["channels"][0]["window"] |= {"start": 1, "end": 7}
        (path / "zarr.json").write_text(json.dumps(group))
        for _ in range(2):
            writer.append(ramp(100, last))
    (window,) = windows(path)
    assert window["end"] == pytest.approx(end, rel=0.02)


def test_positions_have_windows_of_their_own(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, array({"t": (None, 2)}), images=["bright", "dim", "never"]) as writer:
        for _ in range(3):
            writer.append(ramp(1000, 9000), image="bright")
            writer.append(ramp(10, 40), image="dim")
    assert_near(windows(path / "0")[0], 1000, 9000)
    assert_near(windows(path / "1")[0], 10, 40)
    validate_zarr_store(str(path))
    assert verify_store(path).ok


def test_the_wells_of_a_plate_share_windows_so_that_they_compare(tmp_path):
    path, plate = tmp_path / "a.ome.zarr", sw.Plate(rows=1, columns=3, fields=1)
    with sw.create(path, array({"c": (2, 1)}), plate=plate) as writer:
        for well, factor in (("A/1/0", 1), ("A/3/0", 10)):
            writer.append(ramp(100, 200 * factor), image=well, index=(0,))
            writer.append(ramp(7, 70), image=well, index=(1,))
    for well in ("A/1/0", "A/3/0"):  # one that was shown early stays, if nobody can tell it from the last
        assert_near(windows(path / well)[0], 100, 2000)
        assert_near(windows(path / well)[1], 7, 70)
    validate_zarr_store(str(path))


# ------------------------------------------------------------------ after a crash


@pytest.fixture(scope="module")
def server():
    return commands()


@pytest.fixture(scope="module")
def pool():
    pool = WorkerPool(2)
    pool.start()
    yield pool
    pool.stop()


def write_and_die(_channel, path: str, spec: sw.ArraySpec, images, frames) -> None:
    """``frames``: (image, low, high)."""
    writer = sw.create(path, spec, images=images)
    for image, low, high in frames:
        writer.append(ramp(low, high), image=image)
    writer.flush()
    os._exit(0)


def died(server, path: Path, spec: sw.ArraySpec, images, frames) -> Path:
    assert server.start(write_and_die, str(path), spec, images, frames).wait() == 0
    return path


def test_windows_of_a_store_that_was_killed_and_recovered(tmp_path, server, pool):
    spec = array({"t": (None, 2), "c": (2, 1)}, channels=[{"name": "a"}, {"name": "b", "window": (1, 2)}])
    path = died(server, tmp_path / "a.ome.zarr", spec, None, [(None, 100, 3000), (None, 9, 99)] * 5)
    recover_store(path, pool, threads=2)
    found, given = windows(path)
    assert_near(found, 100, 3000)
    assert (given["start"], given["end"]) == (1, 2)
    assert verify_store(path).ok


def test_windows_of_a_store_that_was_killed_and_resumed_know_both_lives(tmp_path, server):
    path = died(server, tmp_path / "a.ome.zarr", array({"t": (None, 2)}), None, [(None, 1000, 3000)] * 8)
    with sw.resume(path) as writer:
        for _ in range(8):
            writer.append(ramp(20, 40))
    (window,) = windows(path)
    assert (window["start"] < 41, window["end"] > 2900) == (True, True)


def test_windows_of_positions_that_were_killed(tmp_path, server, pool):
    images = ["bright", "dim", "never"]
    frames = [("bright", 1000, 9000), ("dim", 10, 40)] * 3
    path = died(server, tmp_path / "a.ome.zarr", array({"t": (None, 2)}), images, frames)
    recover_store(path, pool, threads=2)
    assert_near(windows(path / "0")[0], 1000, 9000)
    assert_near(windows(path / "1")[0], 10, 40)


def test_damage_is_no_error_of_recovery(tmp_path, server, pool):
    """All that is sealed is cut off, and a frame is left whose shard is sealed only now."""
    path = died(server, tmp_path / "a.ome.zarr", array({"t": (None, 1)}), None, [(None, 100, 3000)] * 9)
    sealed = list(path.glob("0/c/*/0/0"))
    for shard in sealed:
        os.truncate(shard, 10)
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"ome": None}}
    (path / "zarr.json").write_text(json.dumps(group))
    recover_store(path, pool, threads=2)
    assert sealed
    assert json.loads((path / "zarr.json").read_text()) == group


def test_very_many_channels_are_read_in_part(tmp_path, server, pool, monkeypatch):
    monkeypatch.setattr(contrast_samples, "_MOST_CHUNKS", 2)
    images = ["a", "b", "c"]
    path = died(
        server, tmp_path / "a.ome.zarr", array({"t": (None, 1)}), images, [(i, 100, 3000) for i in images]
    )
    recover_store(path, pool, threads=2)
    ends = [windows(path / str(image))[0]["end"] for image in range(3)]
    assert all(1000 < end <= 3000 for end in ends[:2]), "by one chunk of each"
    assert ends[2] == 65535, "the dtype's range still"


# ------------------------------------------------------------------ the samples


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_window_depends_on_the_frames_and_not_on_their_order(random, frames):
    spec = parse_acquisition(array({"t": (None, 1)}))
    stack = [ramp(100 * t, 100 * t + 50) for t in range(frames)]
    found = []
    for _ in range(2):
        samples, order = ContrastSamples(spec), [*range(frames), *range(0, frames, 3)]
        random.shuffle(order)
        for slab in order:
            samples.add(slab, np.array([stack[slab].ctypes.data]))
        found.append(samples.windows(0))
    assert found[0] == found[1]


def test_samples_become_ever_fewer(monkeypatch):
    taken = []
    monkeypatch.setattr(contrast_samples, "sample_pixels", lambda *a: taken.append(a))
    samples = ContrastSamples(parse_acquisition(array({"t": (None, 1)})))
    for slab in range(20_000):
        samples.add(slab, np.ones(1, np.int64))
    assert 16 <= len(taken) < 250, "about 16 (1 + ln(20,000 / 16)) = 130"


def taken_bytes(spec: sw.AcquisitionSpec, frames_per_slab: int, slabs: int) -> tuple[ContrastSamples, int]:
    """Samples of ``slabs`` slabs of each image, every place with a ramp from 100 to 3000, and the memory that
    they take."""
    samples, frame = ContrastSamples(spec), ramp(100, 3000)
    samples.add(0, np.full(frames_per_slab, frame.ctypes.data))  # compiles
    addresses = np.full(frames_per_slab, frame.ctypes.data)
    samples = ContrastSamples(spec)
    tracemalloc.start()
    try:
        for slab in range(slabs):
            for image in range(len(spec.names)):
                samples.add((image << IMAGE_SHIFT) + slab, addresses)
        return samples, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


MANY = {  # images, channels, channels of a chunk, images with a bound of frames of their own; samples kept
    "a channel in each of many images": (3000, 1, 1, False, 3000),
    "channels in many images": (1000, 60, 1, False, 1),
    "channels in a chunk": (2000, 8, 8, False, 1),
    "ragged images": (100, 60, 1, True, 1),
}


@pytest.mark.parametrize(("images", "count", "chunk", "ragged", "kept"), MANY.values(), ids=MANY)
def test_samples_of_many_images_take_the_memory_that_is_planned(images, count, chunk, ragged, kept):
    names, axes = [f"p{i}" for i in range(images)], {"c": (count, chunk)}
    if ragged:
        spec = parse_acquisition(
            {"images": {n: array({"t": (t, 1), **axes}) for t, n in enumerate(names, 1)}}
        )
    else:
        spec = parse_acquisition({"array": array({"t": (None, 1), **axes}), "images": names})
    planned = SampledChannels(spec).memory_bytes
    samples, taken = taken_bytes(spec, chunk, min(count // chunk, 2))
    assert len(samples._kept) == kept
    assert taken <= planned + (64 << 10)
    assert planned <= 12 << 20
    assert Limits.derive(spec, threads=1).table_bytes >= planned + images * IMAGE_BYTES
    window = samples.windows(images - 1)[0]
    assert (window.start < 300, window.end > 2800) == (True, True)


def test_images_whose_channels_are_all_of_their_own_kind_are_sampled_up_to_a_bound():
    kinds = [array({"t": (None, 1), "c": (1000 - n, 1)}) for n in range(10)]
    spec = parse_acquisition({"images": {f"p{n}": kind for n, kind in enumerate(kinds)}})
    sampled = SampledChannels(spec)
    assert sampled.shared == [0, 1, 2, 3, *[None] * 6]
    assert sampled.memory_bytes <= 12 << 20
    samples, _ = taken_bytes(spec, 1, 1)
    assert [bool(samples.windows(image)) for image in range(10)] == [True] * 4 + [False] * 6
    assert samples.sealed_windows(Path("/nowhere"), [9]) == {9: {}}


@pytest.mark.parametrize(("count", "chunk", "given"), [(2, 4096, 0), (1024, 1024, 1023), (1024, 1, 0)])
def test_samples_of_many_channels_are_bounded(count, chunk, given):
    channels = [sw.Channel(name="a", window=(0, 1) if i < given else None) for i in range(count)]
    spec = parse_acquisition(array({"t": (None, 1), "c": (count, chunk)}, channels=channels))
    samples, frame = ContrastSamples(spec), ramp(100, 3000)
    for slab in range(20 * -(-count // chunk)):
        addresses = np.zeros(chunk, np.int64)
        addresses[:count] = frame.ctypes.data
        samples.add(slab, addresses)
    assert SampledChannels(spec).memory_bytes <= 5 << 20
    assert set(samples.windows(0)) == set(range(given, count))
