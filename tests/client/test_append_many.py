"""Many frames at once go the way of as many single ones, at a cost in calls that does not grow with their
number."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from tests.harness.ack_ranges import encode_ranges

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.client.frame_ring import FrameRing
from shardwright.client.link import Link
from shardwright.client.outbox import Outbox
from shardwright.client.stream import Stream
from shardwright.model.errors import (
    ClosedError,
    FrameIndexError,
    FrameShapeError,
    MetadataError,
    OverloadError,
)
from shardwright.wire.controls import Open, Opened, Welcome
from shardwright.wire.descriptor import FRAME_DROPPED, FRAME_NOT_HELD, descriptor_dtype
from shardwright.wire.in_flight import NO_SLOT
from shardwright.wire.messages import MAX_PIXELLESS_FRAMES, Counter, Kind, Level, decode_header

WELCOME = Welcome(None, None, 1000, 10_000, 1 << 20, 1 << 18, 1024, "test", 60_000)


def make_stream(
    *,
    slots: int = 64,
    batch_frames: int = 16,
    count: int | None = None,
    overload: str = "block",
    fields: tuple[str, ...] = (),
) -> Stream:
    """A stream over message transport whose I/O thread is the test."""
    axes = [("t", count, 1), ("y", 4, 4), ("x", 5, 5)]
    spec = ArraySpec(
        dtype="uint8",
        dimensions=[Dimension(name=n, count=c, chunk_size=s) for n, c, s in axes],
        frame_fields=fields,
    )
    opened = Opened(
        0,
        "/data/a",
        spec.model_dump(mode="json"),
        "message",
        slots * 20,
        slots,
        20,
        None,
        "ab" * 16,
        1,
        0,
        (),
        overload,
        "stored",
    )
    stream = None
    outbox = Outbox(
        slot_count=slots,
        batch_frames=batch_frames,
        check_position=lambda position: Grid.of(stream.spec).check_position(position),
        wake=lambda: None,
        descriptor=descriptor_dtype(len(fields)),
        overload=overload,
    )
    link = Link(Open(0, "a", None, None, "message"), 7, opened, parse_acquisition(spec), WELCOME, outbox)
    outbox.swap_ring(FrameRing.local(parse_acquisition(spec), slots))
    stream = Stream(link, lambda _: None)
    stream._forgotten.detach()  # it has no daemon that could end it
    return stream


def stack(count: int, first: int = 0) -> np.ndarray:
    return np.repeat(np.arange(first, first + count, dtype=np.uint8), 20).reshape(count, 4, 5)


def sealed(stream: Stream) -> list:
    stream._outbox.seal_if_older(0.0, 1e18)
    return list(iter(stream._outbox.next_frames, None))


def values(stream: Stream, batches: list) -> list[int]:
    return [value for slots, _ in batches for value in stream._outbox.ring.frames[slots][:, 0, 0].tolist()]


def records_of(batches: list) -> np.ndarray:
    return np.concatenate([records for _, records in batches])


def release(stream: Stream, first: int, last: int) -> None:
    stream._outbox.release(np.array([[first, last]], np.uint64))


def test_they_are_the_frames_that_single_appends_would_make():
    one_by_one, at_once = make_stream(fields=("laser",)), make_stream(fields=("laser",))
    frames = stack(40)
    for i, frame in enumerate(frames):
        one_by_one.append(
            frame, frame_id=3 * i, metadata={"delta_t": i / 2, "exposure_time": 0.25, "laser": -i}
        )
    at_once.append_many(
        frames,
        frame_ids=range(0, 120, 3),
        metadata={"delta_t": np.arange(40) / 2, "exposure_time": 0.25, "laser": -np.arange(40)},
    )
    expected, batches = sealed(one_by_one), sealed(at_once)
    assert [slots.tolist() for slots, _ in batches] == [slots.tolist() for slots, _ in expected]
    assert values(at_once, batches) == list(range(40))
    theirs, ours = records_of(expected), records_of(batches)
    assert (ours["camera_ns"] >= theirs["camera_ns"].max()).all()
    for records in (theirs, ours):
        for name in ("camera_ns", "monotonic_ns"):
            assert (records[name] > 0).all()
    without_times = [name for name in ours.dtype.names if name not in ("camera_ns", "monotonic_ns")]
    for name in without_times:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_without_a_place_they_go_on_counting():
    stream = make_stream(batch_frames=8)
    stream.append(stack(1)[0])
    stream.append_many(stack(20, first=1))
    stream.append(stack(1, first=21)[0])
    batches = sealed(stream)
    records = records_of(batches)
    assert (
        records["sequence"].tolist()
        == records["position"].tolist()
        == values(stream, batches)
        == list(range(22))
    )
    assert (records["frame_id"] == -1).all()
    assert [len(slots) for slots, _ in batches] == [8, 8, 6]
    assert stream.frames == 22


def test_no_frames_are_no_frames():
    stream = make_stream()
    stream.append_many(stack(0))
    stream.append_many(stack(0), frame_ids=[], metadata={"delta_t": []})
    assert (stream.frames, sealed(stream)) == (0, [])


def test_more_frames_than_slots_wait_for_slots():
    stream = make_stream(slots=8, batch_frames=4)
    appending = threading.Thread(target=stream.append_many, args=(stack(30),))
    appending.start()
    came: list[int] = []
    while len(came) < 30:
        for batch in sealed(stream):
            came += values(stream, [batch])
            release(stream, len(came) - len(batch[0]), len(came) - 1)
    appending.join()
    assert came == list(range(30))


def test_dropped_ones_are_told_of_in_their_order_and_beyond_a_bound_only_counted():
    stream = make_stream(slots=4, batch_frames=16, overload="drop")
    stream.append_many(stack(10), frame_ids=range(100, 110))
    batches = sealed(stream)
    records = records_of(batches)
    assert np.concatenate([slots for slots, _ in batches]).tolist() == [0, 1, 2, 3, *[NO_SLOT] * 6]
    assert records["flags"].tolist() == [0] * 4 + [FRAME_DROPPED] * 6
    assert records["position"].tolist() == list(range(100, 110))
    stream.append_many(np.broadcast_to(stack(1), (MAX_PIXELLESS_FRAMES, 4, 5)))
    more = records_of(sealed(stream))
    assert len(more) == MAX_PIXELLESS_FRAMES - 6  # so many are told of already
    assert set(more["flags"].tolist()) == {FRAME_DROPPED}
    release(stream, 4, 9)
    last = records_of(sealed(stream))
    assert last["sequence"].tolist() == list(range(MAX_PIXELLESS_FRAMES + 4, MAX_PIXELLESS_FRAMES + 10))
    assert set(last["flags"].tolist()) == {FRAME_NOT_HELD}
    assert (stream.frames, stream.frames_dropped) == (MAX_PIXELLESS_FRAMES + 10, MAX_PIXELLESS_FRAMES + 6)


def test_the_count_of_frames_goes_on_when_more_are_held_than_may_be_told_of():
    """Frames that were only counted become descriptors as they are sent, after the bound was filled again by
    others."""
    stream = make_stream(slots=0, batch_frames=256, overload="drop")
    box = stream._outbox
    frame = stack(1)
    stream.append_many(np.broadcast_to(frame, (MAX_PIXELLESS_FRAMES + 256, 4, 5)))
    assert len(records_of(sealed(stream))) == MAX_PIXELLESS_FRAMES
    release(stream, 0, 255)
    stream.append_many(np.broadcast_to(frame, (256, 4, 5)))
    assert set(records_of(sealed(stream))["flags"].tolist()) == {FRAME_NOT_HELD}
    assert box._queue.room_without_pixels == -256
    before = box.next_sequence
    stream.append_many(np.broadcast_to(frame, (300, 4, 5)))
    assert box.next_sequence == before + 300
    assert stream.frames_dropped == before + 300


def test_who_may_not_wait_fails():
    stream = make_stream(slots=4, overload="fail")
    with pytest.raises(OverloadError):
        stream.append_many(stack(10))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"frame_ids": [0, 1, 2, 11]}, FrameIndexError),
        ({"frame_ids": [0, 1]}, FrameIndexError),
        ({"indices": [[0], [1], [2], [-1]]}, FrameIndexError),
        ({"metadata": {"delta_t": [1, 2]}}, MetadataError),
    ],
    ids=str,
)
def test_what_is_wrong_with_one_is_said_before_any_is_sent(options, error):
    stream = make_stream(count=10)
    with pytest.raises(error):
        stream.append_many(stack(4), **options)
    with pytest.raises(FrameShapeError):
        stream.append_many(stack(4)[:, 1:])
    with pytest.raises(FrameIndexError):
        stream.append_many(stack(11))
    assert (stream.frames, sealed(stream)) == (0, [])
    stream.append_many(stack(10))
    assert len(stream._outbox._queue.free) == 54


def test_the_end_gives_the_slots_back():
    stream = make_stream()
    stream._outbox.finish()
    with pytest.raises(ClosedError):
        stream.append_many(stack(4))
    assert len(stream._outbox._queue.free) == 64


def test_a_ring_that_is_exchanged_meanwhile_gets_the_frames():
    stream = make_stream()
    old, new = stream._outbox.ring, FrameRing.local(stream.images, 64)
    add_many, rings = stream._outbox.add_many, iter([new])

    def exchanged_once(ring, *args, **more):
        if (next_ring := next(rings, None)) is not None:
            stream._outbox.swap_ring(next_ring)
        return add_many(ring, *args, **more)

    stream._outbox.add_many = exchanged_once
    stream.append_many(stack(5, first=1))
    assert old is not stream._outbox.ring is new
    assert values(stream, sealed(stream)) == [1, 2, 3, 4, 5]
    assert stream.frames == 5


def calls_of(work) -> int:
    """How many Python and C functions ``work`` calls in this thread."""
    count = 0

    def count_calls(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_the_calls_do_not_grow_with_the_frames():
    stream = make_stream(slots=4096, batch_frames=1024)
    few, many = stack(2), np.broadcast_to(stack(1), (1000, 4, 5))
    ids = np.arange(1000)
    delta = ids / 2
    stream.append_many(few)  # what is done only once is done
    sealed(stream)
    calls = [
        calls_of(
            lambda frames=frames: stream.append_many(
                frames, frame_ids=ids[: len(frames)], metadata={"delta_t": delta[: len(frames)]}
            )
        )
        for frames in (few, many)
    ]
    assert calls[1] <= calls[0]


def test_the_calls_for_an_ack_do_not_grow_with_its_ranges():
    """Frames that lie in different slabs are released one by one: each is a range of its own."""
    calls = []
    for count in (4, 400):
        stream = make_stream(slots=1024, batch_frames=1024)
        link, daemon = stream._link, Counter(7)
        link.receive(decode_header(daemon.control(Kind.OPENED, link.opened.to_body())[0]), b"")
        link.ready()
        stream.append_many(np.broadcast_to(stack(1), (2 * count, 4, 5)))
        stream._outbox.seal_if_older(0.0, 1e18)
        assert len(list(link.outgoing())) == 1
        ranges = [(Level.RELEASED, i, i) for i in range(0, 2 * count, 2)]
        header, body = daemon.message(Kind.ACK, [encode_ranges(ranges)], count=count)
        calls.append(
            calls_of(lambda link=link, header=header, body=body: link.receive(decode_header(header), body))
        )
        assert len(stream._outbox._queue.free) == 1024 - count
    assert calls[1] <= calls[0]
