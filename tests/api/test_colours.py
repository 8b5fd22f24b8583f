"""Colour cameras: a frame (rows, columns, 3 or 4) is taken as it comes, in process and through a daemon, and
stored by channel. In all that a user counts it is one frame; the frame table has a row for each channel."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.python import commands
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.limits import MESSAGE_BYTES, Limits
from shardwright.array.acquisition_spec import AcquisitionSpec, parse_acquisition
from shardwright.model.frame_status import FrameStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.array.frame_sink import FrameSink

SHAPE = (20, 24)
WAYS = ("writer", "shm", "message")


def frames_of(count: int, channels: int = 3, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(channels).integers(1, 200, (count, *SHAPE, channels)).astype(dtype)


def layout_of(count: int | None, colors: int = 3, **fields: Any) -> sw.ArraySpec:
    fields = {"chunks": {"t": 2, "y": 10, "x": 24}, "axes": "tyxc"} | fields
    return sw.default_layout((count, *SHAPE, colors), "uint8", **fields)


def by_channel(frames: np.ndarray) -> np.ndarray:
    return np.moveaxis(frames, -1, -3)


def stored(store: object, image: str = "") -> np.ndarray:
    return zarr.open_array(f"{store}/{image}0", mode="r")[...]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def acquire(way: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Opens an acquisition of a specification, in this process or at a daemon."""
    if way == "writer":
        yield lambda spec: sw.create(tmp_path / "a.ome.zarr", spec)
        return
    endpoint = request.getfixturevalue("endpoint")
    with sw.connect(endpoint, transport=way) as daemon:
        yield lambda spec: daemon.acquire("a", spec)


def test_frames_of_colours_are_stored_by_channel(acquire):
    frames = frames_of(9)
    sink: FrameSink
    with acquire(layout_of(9)) as sink:
        sink.append(frames[0])
        sink.append(frames[1], copy=False)
        sink.append_many(frames[2:5])
        sink.append_many(frames[5:7], copy=False)
        with sink.claim() as into:
            assert (into.shape, into.dtype) == ((3, *SHAPE), np.uint8)
            into[...] = by_channel(frames[7])
        sink.append(np.asfortranarray(frames[8]))
        assert (sink.frames, sink.copied, sink.frames_dropped) == (9, 3, 0)
        sink.flush()
        assert (sink.watermark.stored, sink.watermark.durable) == (9, 9)
        assert sink.released == 9
    assert sink.receipt.frames_stored == 27
    assert np.array_equal(stored(sink.path), by_channel(frames))


def test_all_channels_of_a_frame_have_its_id_and_metadata(acquire):
    frames = frames_of(5, channels=4)
    with acquire(layout_of(6, colors=4, frame_json_bytes=64)) as sink:
        sink.append(frames[0], frame_id=4, metadata={"delta_t": 0.5, "note": "first"})
        sink.append(frames[1], index=3, frame_id=70)
        sink.append(frames[2], index={"t": 0})
        sink.append_many(frames[3:], indices=[1, 2], frame_ids=[8, 9], metadata={"delta_t": [1.0, 2.0]})
    table = sw.frame_table(sink.path).set_index(["index_t", "index_c"]).sort_index()
    assert table["frame_id"].tolist() == [-1] * 4 + [8] * 4 + [9] * 4 + [70] * 4 + [4] * 4
    assert table.loc[4]["json"].tolist() == [json.dumps({"note": "first"}, separators=(",", ":"))] * 4
    assert [set(table.loc[t]["delta_t"]) for t in (1, 2, 4)] == [{1.0}, {2.0}, {0.5}]
    assert np.array_equal(stored(sink.path), by_channel(frames[[2, 3, 4, 1, 0]]))


def test_ids_alone_are_places_of_frames(acquire):
    frames = frames_of(4)
    with acquire(layout_of(4)) as sink:
        sink.append_many(frames[:2], frame_ids=[3, 1])
        sink.append(frames[2], frame_id=0)
        for wrong in (4, -1):
            with pytest.raises(sw.errors.FrameIndexError, match=f"expected 0 to 3; got {wrong}"):
                sink.append(frames[3], frame_id=wrong)
            with pytest.raises(sw.errors.FrameIndexError, match=f"expected 0 to 3; got {wrong}"):
                sink.append_many(frames[3:], frame_ids=[wrong])
        sink.append(frames[3], frame_id=2)
    assert np.array_equal(stored(sink.path), by_channel(frames[[2, 1, 3, 0]]))


def test_the_last_place_of_an_array_without_a_count_is_that_of_a_whole_frame(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", layout_of(None)) as writer:
        for place in ({"index": (1 << 48) // 3}, {"frame_id": (1 << 48) // 3}):
            with pytest.raises(sw.errors.FrameIndexError, match="outside the array"):
                writer.append(frames_of(1)[0], **place)
        writer.append(frames_of(1)[0])


def test_images_of_stacks_come_in_their_order(acquire):
    """Stored as OME-Zarr wants it, with c before z."""
    frames = frames_of(12)
    array = sw.default_layout(
        (2, 3, *SHAPE, 3), "uint8", "tzyxc", order=("t", "p", "z"), images=2, chunks={"y": 10, "x": 24}
    )
    spec = AcquisitionSpec(array=array, images=("u", "v"), order=("t", "p", "z", "c"))
    with acquire(spec) as sink:
        for frame in frames[:5]:
            sink.append(frame)
        sink.append_many(frames[5:])
        with pytest.raises(sw.errors.FrameIndexError, match="more frames than the acquisition has places"):
            sink.append(frames[0])
    places = frames.reshape(2, 2, 3, *SHAPE, 3)  # t, image, z
    for image in range(2):
        pixels = np.moveaxis(by_channel(places[:, image]), 2, 1)
        assert np.array_equal(stored(sink.path, f"{image}/"), pixels)


def test_images_in_any_order_count_their_own_frames(acquire):
    frames = frames_of(6)
    with acquire(AcquisitionSpec(array=layout_of(3), images=("u", "v"))) as sink:
        for n, frame in enumerate(frames):
            sink.append(frame, image="uv"[n % 2])
    for image in range(2):
        assert np.array_equal(stored(sink.path, f"{image}/"), by_channel(frames[image::2]))


def test_a_full_image_says_how_many_frames_it_has(acquire):
    frames = frames_of(3)
    with acquire(layout_of(2)) as sink:
        sink.append(frames[0])
        with pytest.raises(sw.errors.FrameIndexError, match="at most 2 frames; got frame 3"):
            sink.append_many(frames[:2])
        sink.append(frames[1])
        with pytest.raises(sw.errors.FrameIndexError, match="at most 2 frames; got frame 3"):
            sink.append(frames[2])
        with pytest.raises(sw.errors.FrameIndexError, match="at most 2 frames; got frame 3"):
            sink.claim()


@pytest.mark.parametrize(
    ("frame", "facts", "text"),
    [
        (np.zeros(SHAPE, "uint8"), {}, r"wrong frame shape; expected \(20, 24, 3\); got \(20, 24\)"),
        (np.zeros((*SHAPE, 4), "uint8"), {}, r"expected \(20, 24, 3\); got \(20, 24, 4\)"),
        (
            frames_of(1)[0],
            {"index": (0, 1)},
            r"that of all its channels; expected a number for each of t; got",
        ),
        (frames_of(1)[0], {"index": {"t": 0, "c": 1}}, "the index of a frame has no axis 'c'"),
        (frames_of(2), {}, "`append_many` takes several frames at once"),
    ],
)
def test_what_is_no_frame_of_colours_is_told(tmp_path, frame, facts, text):
    with (
        sw.create(tmp_path / "a.ome.zarr", layout_of(4)) as writer,
        pytest.raises(sw.errors.ShardwrightError, match=text),
    ):
        writer.append(frame, **facts)


@pytest.fixture
def small_ring(monkeypatch):
    """Of the fewest slots that there may be."""
    monkeypatch.setattr("shardwright.acquire.limits.SMALL_RING_BYTES", MESSAGE_BYTES)


def test_of_a_frame_that_is_dropped_no_channel_is_stored(tmp_path, small_ring):
    """Though slots were free for some of them: claims keep the others."""
    frames = frames_of(40)
    with sw.create(tmp_path / "a.ome.zarr", layout_of(40), **how(overload="drop")) as writer:
        ring = Limits.derive(layout_of(40), threads=1).ring_frames
        claims = [writer.claim() for _ in range(ring // 3)]
        assert ring % 3, "else there is no rest that would do for a part of a frame"
        writer.append(frames[0], index=0)
        writer.append_many(frames[1:3], indices=[1, 2])
        with writer.claim(index=3) as into:
            into[...] = 1
        assert writer.frames_dropped == 4
        for claim in claims:
            claim.give_back()
        writer.append(frames[4], index=4)
        assert writer.frames == 5
    table = sw.frame_table(writer.path)
    assert table["status"].tolist() == ["dropped"] * 12 + ["stored"] * 3
    assert (writer.receipt.frames_dropped, writer.receipt.frames_stored) == (12, 3)


@pytest.mark.usefixtures("small_ring")
@pytest.mark.parametrize("channels", [3, 4])
def test_the_smallest_ring_takes_frames_on_and_on(tmp_path, channels):
    """Slots come back one by one, as the slabs of the channels are stored."""
    frames = frames_of(60, channels)
    for number, chunk in enumerate(({"t": 1}, {"t": 5}, {"t": 2, "c": 2}, {"t": 2, "c": channels})):
        layout = layout_of(None, channels, chunks={"y": 10, "x": 24} | chunk)
        with sw.create(tmp_path / f"{number}.ome.zarr", layout) as writer:
            for frame in frames[:30]:
                writer.append(frame)
            writer.append_many(frames[30:])
        assert np.array_equal(stored(writer.path), by_channel(frames))


@pytest.mark.usefixtures("small_ring")
@pytest.mark.parametrize(("channels", "chunk"), [(3, {"t": 8}), (4, {"t": 5}), (4, {"t": 8, "c": 3})])
def test_the_smallest_ring_takes_frames_in_any_order(tmp_path, channels, chunk):
    """Slabs of one channel alone that make room for newer frames free no slots: those of the others keep
    them."""
    frames, deep = frames_of(64, channels), chunk["t"]
    places = [place for place in range(64) if place % deep < deep - 1]
    layout = layout_of(64, channels, chunks={"y": 10, "x": 24} | chunk)
    with sw.create(tmp_path / "a.ome.zarr", layout, **how(on_duplicate="count")) as writer:
        for place in [*places, *range(63, 0, -9)]:
            writer.append(frames[place], index=place)
    assert np.array_equal(stored(writer.path)[places], by_channel(frames)[places])


def test_a_resumed_store_takes_frames_of_colours(tmp_path):
    frames = frames_of(6)
    path = tmp_path / "a.ome.zarr"
    assert commands().start(write_and_die, str(path), 3, 9).wait() == 0
    with sw.resume(path) as writer:
        assert (writer.frames, writer.watermark.stored) == (3, 3)
        writer.append_many(frames[3:])
    assert np.array_equal(stored(path), by_channel(frames))


def write_and_die(_channel: object, path: str, count: int, places: int) -> None:
    """Of ``count`` frames the first ``places`` channels are stored."""
    writer = sw.create(path, layout_of(6), **how(store_within_ms=1))
    submit = writer._acquisition.submit
    writer._acquisition.submit = lambda records, at: submit(records[:places], at[:places])
    writer.append_many(frames_of(6)[:count])
    while writer._acquisition.stored_watermark < places:
        time.sleep(0.001)
    os._exit(0)


def send_and_die(_channel: object, endpoint: str) -> None:
    stream = sw.connect(endpoint).acquire("a", layout_of(6), frames_expected=6)
    stream.append_many(frames_of(6)[:3])
    stream.flush()
    os._exit(0)


def test_a_frame_that_was_stored_in_part_was_not_acknowledged_and_costs_no_other(tmp_path):
    frames = frames_of(6)
    path = tmp_path / "a.ome.zarr"
    assert commands().start(write_and_die, str(path), 2, 4).wait() == 0
    with sw.resume(path) as writer:
        assert writer.watermark.stored >= 1
        assert writer.frames == 2
        writer.append_many(frames[2:])
        writer.append(frames[1], index=1)
    assert np.array_equal(stored(path), by_channel(frames))
    table = sw.frame_table(path).sort_values("sequence")
    assert table["sequence"].tolist() == list(range(21))
    found = [FrameStatus[name.upper()] for name in table["status"]]
    assert [
        found.count(status) for status in (FrameStatus.STORED, FrameStatus.LOST, FrameStatus.DUPLICATE)
    ] == [
        18,
        2,
        1,
    ]


def test_progress_counts_frames(tmp_path):
    told: list[tuple[int, int | None]] = []
    with sw.create(
        tmp_path / "a.ome.zarr", layout_of(4), on_progress=lambda *counts: told.append(counts)
    ) as writer:
        writer.append_many(frames_of(4))
    assert told[-1] == (4, 4)


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, *SHAPE, 3), "tyxc"), ((*SHAPE, 4), "yxc"), ((2, 3, *SHAPE, 3), "tzyxc")]
)
def test_an_array_of_colours_is_saved(tmp_path, shape, axes):
    pixels = np.random.default_rng(1).integers(0, 255, shape, dtype=np.uint8)
    sw.save(tmp_path / "a.ome.zarr", pixels, axes=axes)
    expected = by_channel(pixels)
    assert np.array_equal(
        stored(tmp_path / "a.ome.zarr"), np.moveaxis(expected, 2, 1) if axes[1] == "z" else expected
    )


def test_frames_of_colours_are_saved_one_by_one(tmp_path):
    frames = frames_of(5)
    assert sw.save(tmp_path / "a.ome.zarr", iter(frames), axes="tyxc").frames_stored == 15
    assert np.array_equal(stored(tmp_path / "a.ome.zarr"), by_channel(frames))


def test_an_axis_of_other_columns_is_one_of_the_frame():
    """A line of spectra, as before."""
    for axes, shape in (("tyxc", (None, 20, 24, 5)), ("txc", (None, 20, 3))):
        spec = sw.default_layout(shape, "uint8", axes)
        assert ([d.name for d in spec.dimensions], spec.interleaved) == (list(axes), False)
        assert "interleaved" not in spec.model_dump()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"axes": "tzyx", "interleaved": True}, "frames of colours need an axis of 3 or 4 channels"),
        ({"axes": "czyx", "interleaved": True}, "frames of colours need an axis of 3 or 4 channels"),
        ({"axes": "tcyx", "interleaved": True}, None),
    ],
)
def test_a_specification_says_that_frames_are_interleaved(fields, text):
    if text is None:
        spec = sw.default_layout((None, 3, *SHAPE), "uint8", **fields)
        assert spec == sw.default_layout((None, *SHAPE, 3), "uint8", "tyxc")
        assert sw.ArraySpec.model_validate_json(spec.model_dump_json()) == spec
        return
    with pytest.raises(sw.errors.SpecError, match=text):
        sw.default_layout((None, 3, *SHAPE), "uint8", **fields)


def test_images_of_colours_and_others_are_not_mixed():
    grey = sw.default_layout((None, *SHAPE), "uint8")
    with pytest.raises(sw.errors.SpecError, match="interleaved, with as many channels, must be the same"):
        parse_acquisition({"images": {"a": layout_of(None), "b": grey}})
    with pytest.raises(sw.errors.SpecError, match="order: ends with the channels"):
        parse_acquisition({"array": layout_of(None), "images": ["a", "b"], "order": ["t", "c", "p"]})


def channels_of(store: object) -> list[dict[str, Any]]:
    channels: list[dict[str, Any]] = zarr.open_group(str(store), mode="r").attrs["ome"]["omero"]["channels"]
    return channels


def test_viewers_find_the_colours_with_one_window(tmp_path):
    frames = frames_of(4, channels=4)
    frames[..., 1] //= 8
    frames[..., 3] = 255
    with sw.create(tmp_path / "a.ome.zarr", layout_of(4, colors=4)) as writer:
        writer.append_many(frames)
    channels = channels_of(writer.path)
    assert [(c["label"], c["color"], c["active"]) for c in channels] == [
        ("red", "FF0000", True),
        ("green", "00FF00", True),
        ("blue", "0000FF", True),
        ("alpha", "FFFFFF", False),
    ]
    windows = [tuple(c["window"].values()) for c in channels]
    assert windows[0] == windows[1] == windows[2]
    assert windows[0][2] <= 1
    assert windows[0][3] >= 190
    assert windows[3] == (0, 255, 0, 255)


def test_a_store_that_was_resumed_has_one_window_too(tmp_path):
    assert commands().start(write_and_die, str(tmp_path / "a.ome.zarr"), 3, 9).wait() == 0
    with sw.resume(tmp_path / "a.ome.zarr"):
        pass
    windows = [tuple(c["window"].values()) for c in channels_of(tmp_path / "a.ome.zarr")]
    assert windows[0] == windows[1] == windows[2]
    assert windows[0][3] >= 190


def test_channels_that_are_named_keep_their_names(tmp_path):
    layout = layout_of(1, channels=[{"name": "R"}, {"name": "G", "color": "yellow"}, {"name": "B"}])
    with sw.create(tmp_path / "a.ome.zarr", layout) as writer:
        writer.append(frames_of(1)[0])
    assert [(c["label"], c["color"]) for c in channels_of(writer.path)] == [
        ("R", "FF0000"),
        ("G", "FFFF00"),
        ("B", "0000FF"),
    ]


def test_another_client_continues_with_frames_of_colours(endpoint):
    frames = frames_of(6)
    assert commands().start(send_and_die, endpoint).wait() == 0
    with sw.connect(endpoint) as daemon:
        told: list[tuple[int, int | None]] = []
        with daemon.acquire("a", reopen=True, on_progress=lambda *counts: told.append(counts)) as stream:
            assert (stream.spec.interleaved, stream.frames) == (True, 3)
            stream.append_many(frames[3:])
        assert told[-1] == (6, 6), "with those of the first client"
        assert np.array_equal(stored(stream.path), by_channel(frames))
