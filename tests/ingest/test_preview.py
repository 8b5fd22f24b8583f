"""The preview is the frame that was sent, whichever way it came, and costs nothing while nobody asks."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.ingest.frame_preview import MOST_PIXELS, PreviewTap, saturated, value_range, viewable
from shardwright.model import errors
from shardwright.wire.descriptor import DESCRIPTOR

WAYS = ["shm", "message"]


def pixels_of(preview) -> np.ndarray:
    preview = json.loads(json.dumps(preview))
    flat = np.frombuffer(base64.b64decode(preview["data"]), np.dtype(preview["dtype"]).newbyteorder("<"))
    return flat.reshape(preview["height"], preview["width"])


def preview_of(daemon, wait, acquisition, frame, **which):
    """Asks until the next frame is to be taken, sends ``frame``, and returns what was made of it."""
    sequence, tap = acquisition.frames, daemon.server._sessions.totals.running[-1].preview

    def asked():
        daemon.server.preview(**which)
        return tap.wanted

    wait(asked)
    acquisition.append(frame, frame_id=sequence)
    return wait(lambda: (now := daemon.server.preview(**which)) and now["frame"] == sequence and now)


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_preview_is_the_newest_frame_that_was_sent(start, spec_of, frames_of, wait, transport, dtype):
    daemon = start()
    frames = frames_of(6, (20, 30), dtype)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec_of(shape=(20, 30), dtype=dtype)) as stream,
    ):
        assert daemon.server.preview(name="a") is None
        for i, frame in enumerate(frames):
            preview = preview_of(daemon, wait, stream, frame, stream="client")
            np.testing.assert_array_equal(pixels_of(preview), frame)
            assert (preview["dtype"], preview["frame"], preview["frame_id"]) == (dtype, i, i)
            assert preview["time_s"] >= 0
        assert pixels_of(daemon.server.preview(name="a")).shape == (20, 30)


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize(
    "shape", [(MOST_PIXELS + 1, 3 * MOST_PIXELS), (2 * MOST_PIXELS + 1, MOST_PIXELS // 2)]
)
def test_a_large_frame_is_made_small_by_leaving_pixels_out_and_keeps_its_proportions(
    start, spec_of, frames_of, wait, transport, shape
):
    daemon = start()
    (frame,) = frames_of(1, shape)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec_of(shape=shape)) as stream,
    ):
        preview = preview_of(daemon, wait, stream, frame, name="a")
    np.testing.assert_array_equal(pixels_of(preview), frame[::3, ::3])


def test_of_a_batch_the_newest_frame_that_has_pixels_is_taken(spec_of, frames_of):
    spec, frames = spec_of(shape=(4, 6)), frames_of(3, (4, 6))
    tap = PreviewTap(parse_acquisition(spec))
    batch = np.zeros(3, DESCRIPTOR)
    batch["sequence"], batch["frame_id"] = [7, 8, 9], -1
    assert tap.ask() is None
    tap.take(batch, np.zeros(3, np.int64))
    assert tap.wanted, "a batch without pixels leaves the wish open"
    tap.take(batch, np.array([frames[0].ctypes.data, frames[1].ctypes.data, 0]))
    preview = tap.ask()
    assert preview is not None
    frames[:] = 0  # a copy was made
    assert pixels_of(preview.to_dict()).any()
    assert (preview.to_dict()["frame"], preview.to_dict()["frame_id"]) == (8, None)


def test_what_is_known_of_a_frame_travels_with_it(start, spec_of, frames_of, wait):
    daemon = start()
    spec = {
        "dtype": "uint16",
        "dimensions": [
            {"name": "t", "type": "time", "count": None, "chunk_size": 1, "shard_size_chunks": 4},
            {"name": "c", "type": "channel", "count": 2, "chunk_size": 1, "shard_size_chunks": 1},
            {"name": "z", "type": "space", "count": 3, "chunk_size": 1, "shard_size_chunks": 3},
            {"name": "y", "type": "space", "count": 20, "chunk_size": 20, "shard_size_chunks": 1},
            {"name": "x", "type": "space", "count": 30, "chunk_size": 30, "shard_size_chunks": 1},
        ],
        "channels": [{"name": "phase"}, {"name": "GFP", "color": "00FF00"}],
    }
    images = {"array": spec, "images": ["left", "right"]}
    frame = np.full((20, 30), 9, np.uint16)
    frame[:2], frame[2] = 4095, 3
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", images) as stream:

        def preview_at(image, index):
            sequence, tap = stream.frames, daemon.server._sessions.totals.running[-1].preview

            def asked():
                daemon.server.preview(name="a")
                return tap.wanted

            wait(asked)
            stream.append(frame, image=image, index=index)
            return wait(lambda: (now := daemon.server.preview(name="a")) and now["frame"] == sequence and now)

        first = preview_at("left", (0, 0, 1))
        second = preview_at("right", (2, 1, 0))
    assert (first["image"], first["index"]) == ("left", {"t": 0, "c": 0, "z": 1})
    assert (second["image"], second["index"]) == ("right", {"t": 2, "c": 1, "z": 0})
    assert first["channel"] == {"name": "phase", "color": None}
    assert second["channel"] == {"name": "GFP", "color": "00FF00"}
    assert second["range"] == [3, 4095]
    assert second["saturated"] == pytest.approx(0.1), "of a camera with 12 bits"


@pytest.mark.parametrize(
    ("dtype", "values", "part"),
    [
        ("uint8", [0, 255, 255, 3], 0.5),
        ("uint16", [0, 255, 3, 4], 0.25),
        ("uint16", [0, 127, 127, 127], 0.0),
        ("uint16", [0, 4094, 4094, 1], 0.0),
        ("uint16", [65535, 4095, 0, 0], 0.25),
        ("int16", [32767, 0, 0, 0], None),
        ("float32", [1.0, 0.0, 0.0, 0.0], None),
    ],
)
def test_saturated_is_the_greatest_value_of_some_number_of_bits(dtype, values, part):
    assert saturated(np.array([values], dtype)) == part


def test_a_range_has_only_values_that_are_numbers():
    assert value_range(np.array([[np.nan, -1.5], [np.inf, 2.0]])) == [-1.5, 2.0]
    assert value_range(np.full((2, 2), np.nan, np.float32)) is None
    assert value_range(np.array([[7, 3]], np.uint8)) == [3, 7]
    assert [type(end) for end in value_range(np.array([[True, False]])) or ()] == [float, float]


def test_a_frame_whose_own_axis_is_of_channels_is_of_the_first_one(frames_of):
    axes = [("t", None, "time"), ("c", 4, "channel"), ("x", 6, "space")]
    dimensions = [
        {"name": name, "type": kind, "count": count, "chunk_size": count or 1, "shard_size_chunks": 1}
        for name, count, kind in axes
    ]
    channels = [{"name": name} for name in "abcd"]
    tap = PreviewTap(parse_acquisition({"dtype": "uint16", "dimensions": dimensions, "channels": channels}))
    (frame,) = frames_of(1, (4, 6))
    tap.take(np.zeros(1, DESCRIPTOR), np.array([frame.ctypes.data]))
    taken = tap.ask()
    assert taken is not None
    assert taken.to_dict()["channel"] == {"name": "a", "color": None}


def test_nothing_is_taken_that_nobody_asked_for(start, spec_of, frames_of, wait, monkeypatch):
    taken = []
    take = PreviewTap.take
    monkeypatch.setattr(PreviewTap, "take", lambda tap, *batch: taken.append(take(tap, *batch)))
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:

        def send():
            for frame in frames_of(20):
                stream.append(frame)
            sent = stream.frames
            wait(lambda: daemon.server.snapshot()["acquisitions"][0]["frames_received"] == sent)

        send()
        assert taken == []
        daemon.server.preview(name="a")
        send()
        wait(lambda: taken)  # a frame counts as received a moment earlier
        send()
        assert len(taken) == 1, "asked once, taken once"


def test_whoever_asks_all_the_time_gets_no_more_than_so_many(spec_of, frames_of):
    tap, (frame,) = PreviewTap(parse_acquisition(spec_of(shape=(4, 6)))), frames_of(1, (4, 6))
    batch = np.zeros(1, DESCRIPTOR)
    tap.ask()
    tap.take(batch, np.array([frame.ctypes.data]))
    # as if it had been taken just now, however slow this machine is
    tap._last = replace(tap._last, taken_s=tap._last.taken_s + 3600)
    assert tap.ask() is not None
    assert not tap.wanted


def test_unknown_streams_and_names_are_refused_and_ended_acquisitions_show_nothing(
    start, spec_of, frames_of, wait
):
    daemon = start()
    with pytest.raises(errors.UnknownStreamError):
        daemon.server.preview(stream="cam7")
    with pytest.raises(errors.InvalidNameError):
        daemon.server.preview(name="../etc")
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        preview_of(daemon, wait, stream, frames_of(1)[0], name="a")
    daemon.event("acquisition_ended")
    assert daemon.server.preview(name="a") is None
    assert daemon.server.preview(stream="client") is None


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "uint32"])
def test_other_dtypes_are_shown_from_their_least_to_their_greatest_value(dtype):
    values = np.array([[0, 1], [1, 0]] if dtype == "bool" else [[3, 7], [5, 3]], dtype)
    expected = {0: 0, 1: 65535} if dtype == "bool" else {3: 0, 5: 32767, 7: 65535}
    assert viewable(values).tolist() == [[expected[value] for value in row] for row in values.tolist()]
    assert viewable(values).dtype == np.uint16


def test_values_that_are_no_numbers_are_dark_and_infinite_ones_at_the_ends():
    values = np.array([[np.nan, np.inf, -np.inf, 1.0, 2.0]])
    assert viewable(values).tolist() == [[0, 65535, 0, 0, 65535]]
    assert viewable(np.full((2, 2), np.nan)).tolist() == [[0, 0], [0, 0]]
    assert viewable(np.full((1, 2), 5.0)).tolist() == [[0, 0]]
