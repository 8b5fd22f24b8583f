"""Frames that a client's camera writes into a slot of the stream (``claim``): over both transports, with
daemons that are replaced, and clients that die with open claims."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.harness.camera import CameraProcess, Script
from tests.harness.frames import in_order, pixels
from tests.harness.store_contents import frame_table, stored

import shardwright as sw
from shardwright.ingest import StreamSettings
from shardwright.model import errors
from shardwright.model.write_settings import WriteSettings
from shardwright.wire.descriptor import FRAME_DROPPED

WAYS = ["shm", "message"]


@pytest.fixture
def few_slots(spec_of):
    """A stream with a ring of 12 frames."""

    def stream(chunk: int = 1, **write) -> StreamSettings:
        return StreamSettings("cam0", spec_of(chunk=chunk), 12, WriteSettings(**write))

    return stream


def fill(stream, frames, **place) -> None:
    for frame in frames:
        with stream.claim(**place) as into:
            into[:] = frame


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_what_was_filled_is_what_is_read(start, spec_of, frames_of, transport: str, dtype: str):
    frames = frames_of(60, (20, 30), dtype)
    with (
        sw.connect(start().ipc, transport=transport) as connection,
        connection.acquire("a", spec_of(shape=(20, 30), dtype=dtype)) as stream,
    ):
        for i, frame in enumerate(frames):
            if i % 3:
                told = {"delta_t": 0.0}
                with stream.claim(metadata=told, frame_id=i if i % 2 else None) as into:
                    into[:] = frame
                    told["delta_t"] = i / 10
                with pytest.raises(ValueError, match="read-only"):
                    into[0, 0] = 0
            else:
                stream.append(frame, metadata={"delta_t": i / 10})
    np.testing.assert_array_equal(stored(stream.path), frames)
    table = frame_table(stream.path)
    np.testing.assert_array_equal(table["delta_t"][np.argsort(table["sequence"])], np.arange(60) / 10)
    assert stream.receipt.frames_stored == stream.frames == 60


@pytest.mark.parametrize("transport", WAYS)
def test_no_pixels_are_copied(start, double, few_slots, frames_of, transport: str, monkeypatch):
    """The frame lies in the ring that is shared, or of which the message is sent."""
    daemon = start(few_slots(), doubled=double)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        claim = stream.claim()
        assert np.shares_memory(claim.pixels, stream._outbox.ring.frames)
        monkeypatch.setattr(type(stream._outbox.ring), "put", None)
        claim.pixels[:] = frames_of(1)[0]
        claim.commit()
    assert daemon.acquisitions[0].frames == {0: frames_of(1)[0].tobytes()}


@pytest.mark.parametrize("transport", WAYS)
def test_claims_are_numbered_as_they_are_committed(start, few_slots, frames_of, transport: str):
    frames = frames_of(60)
    with (
        sw.connect(start(few_slots()).ipc, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        never = stream.claim()
        for first in range(0, 57, 3):
            claims = [stream.claim() for _ in range(3)]
            for place in (2, 0, 1):
                claims[place].pixels[:] = frames[first + (place + 1) % 3]
                claims[place].commit()
            claims[0].commit()  # once is enough
        never.give_back()
        never.commit()
        fill(stream, frames[57:])
    np.testing.assert_array_equal(stored(stream.path), frames)


@pytest.mark.parametrize("transport", WAYS)
def test_an_exception_gives_slot_and_place_back(start, spec_of, frames_of, transport: str):
    acquisition = sw.AcquisitionSpec(
        array=spec_of(count=30), images=({"name": "a"}, {"name": "b"}), order=("t", "p")
    )
    frames = frames_of(60)
    with (
        sw.connect(start().ipc, transport=transport) as connection,
        connection.acquire("a", acquisition) as stream,
    ):
        slots = len(stream._outbox._queue.free)
        for _ in range(slots + 1):
            with pytest.raises(KeyboardInterrupt), stream.claim():
                raise KeyboardInterrupt
        assert len(stream._outbox._queue.free) == slots
        fill(stream, frames)
        with pytest.raises(errors.FrameIndexError, match="name their places"):
            stream.claim(index=(0,), image="a")
        late = stream.claim()
        with pytest.raises(errors.FrameIndexError):
            late.commit()
        assert len(stream._outbox._queue.free) <= slots
    for image in (0, 1):
        np.testing.assert_array_equal(stored(f"{stream.path}/{image}"), frames[image::2])


def test_what_is_wrong_is_said_at_the_claim(start, double, spec_of):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of(count=2)) as stream:
        slots = len(stream._outbox._queue.free)
        for wrong, error in (
            ({"index": (2,)}, errors.FrameIndexError),
            ({"frame_id": -1}, errors.FrameIndexError),
            ({"image": "no"}, errors.UnknownImageError),
            ({"metadata": {"no": 1}}, errors.MetadataError),
        ):
            with pytest.raises(error):
                stream.claim(**wrong)
        assert len(stream._outbox._queue.free) == slots
        fill(stream, np.ones((2, 8, 12), np.uint16))
        with pytest.raises(errors.FrameIndexError):
            stream.claim()


@pytest.mark.parametrize("overload", ["block", "degrade", "fail"])
def test_more_claims_than_the_ring_are_an_error_and_the_stream_goes_on(
    start, few_slots, frames_of, overload: str
):
    frames = frames_of(40)
    with (
        sw.connect(start(few_slots(overload=overload)).ipc) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        claims = [stream.claim() for _ in range(12)]
        for again in (stream.claim, lambda: stream.append(frames[0])):
            with pytest.raises(errors.OverloadError, match="open claims"):
                again()
        for claim in claims[2:]:
            claim.give_back()
        for frame in frames:
            fill(stream, [frame])
            stream.flush()
    np.testing.assert_array_equal(stored(stream.path), frames)


def test_a_claim_waits_for_a_slot(start, double, few_slots, frames_of, wait):
    double.holding = True
    daemon = start(few_slots(), doubled=double)
    frames = frames_of(60)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", stream="cam0") as stream:
        camera = threading.Thread(target=fill, args=(stream, frames))
        camera.start()
        (acquisition,) = daemon.acquisitions
        wait(lambda: acquisition.in_flight == 12)
        assert camera.is_alive()
        double.holding = False
        camera.join()
    assert acquisition.frames == {i: frame.tobytes() for i, frame in enumerate(frames)}


@pytest.mark.parametrize("transport", WAYS)
def test_drop_drops_at_the_commit(start, double, few_slots, frames_of, wait, transport: str):
    double.holding = True
    daemon = start(few_slots(overload="drop"), doubled=double)
    frames = frames_of(12)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        fill(stream, frames)
        stream.claim().give_back()  # of a frame that was to be dropped
        first, second = stream.claim(frame_id=12), stream.claim(frame_id=13)
        second.commit()
        first.commit()
        (acquisition,) = daemon.acquisitions
        wait(lambda: acquisition.next_sequence == 14)
        double.holding = False
    records = np.concatenate(acquisition.descriptors)
    assert records[records["flags"] == FRAME_DROPPED]["frame_id"].tolist() == [13, 12]
    assert (stream.frames, stream.frames_dropped, stream.receipt.frames_dropped) == (14, 2, 2)


def test_a_full_ring_fails_the_claim(start, double, few_slots, frames_of):
    double.holding = True
    daemon = start(few_slots(overload="fail"), doubled=double)
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", stream="cam0")
        fill(stream, frames_of(12))
        with pytest.raises(errors.OverloadError, match="could not keep up"):
            stream.claim()
        stream.close()
    assert stream.receipt.frames_stored == 12


@pytest.mark.parametrize("transport", WAYS)
def test_claims_stay_open_over_a_new_daemon(start, double, spec_of, frames_of, wait, transport: str):
    """The ring is another one then: what was filled in the old one comes along, at its commit."""
    double.holding = True
    first = start(doubled=double)
    frames = frames_of(8)
    with (
        sw.connect(first.ipc, transport=transport) as connection,
        connection.acquire("a", spec_of()) as stream,
    ):
        claims = [stream.claim() for _ in range(4)]
        fill(stream, frames[:4])
        claims[0].pixels[:], claims[1].pixels[:] = frames[4], frames[5]
        wait(lambda: first.acquisitions[0].submitted)
        first.kill()
        double.holding = False
        second = start(doubled=double, root=first.root, adopt=[first.root / "a.ome.zarr"])
        wait(lambda: stream.reconnects == 1 and stream.watermark.stored == 4)
        claims[2].pixels[:] = frames[6]
        for claim in claims[:3]:
            claim.commit()
        fill(stream, frames[7:])
        claims[3].give_back()
    (recovered,) = second.acquisitions
    assert recovered.frames == {i: frame.tobytes() for i, frame in enumerate(frames)}


@pytest.mark.parametrize("transport", WAYS)
def test_open_claims_end_with_their_stream(start, spec_of, frames_of, transport: str):
    daemon = start()
    frames = frames_of(20)
    with sw.connect(daemon.ipc, transport=transport) as connection:
        with connection.acquire("a", spec_of()) as stream:
            open_one, given_back = stream.claim(), stream.claim()
            fill(stream, frames)
        with connection.acquire("b", spec_of()) as other:
            assert not np.shares_memory(open_one.pixels, other._outbox.ring.frames), (
                "a camera may write there"
            )
            given_back.give_back()
            with pytest.raises(errors.ClosedError):
                open_one.commit()
            with pytest.raises(errors.ClosedError):
                stream.claim()
            fill(other, frames)
    for name in (stream, other):
        np.testing.assert_array_equal(stored(name.path), frames)


@pytest.mark.parametrize("transport", WAYS)
def test_a_client_that_dies_with_open_claims_loses_only_them(start, transport: str):
    daemon = start(resume_timeout_ms=0)
    script = Script(
        daemon.ipc,
        "victim",
        in_order(7),
        shape=(8, 12),
        slab_frames=2,
        transport=transport,
        close=False,
        claims=3,
    )
    with CameraProcess(script) as victim:
        victim.wait_until(lambda facts: facts["sent"] == 7 and facts["stored"] >= 4)
        daemon.wait_for_frames("victim", 7)
        victim.kill()
        ended = daemon.event("acquisition_ended")
    assert (ended["frames_received"], ended["frames_stored"]) == (7, 7)
    for i, frame in enumerate(stored(daemon.root / "victim.ome.zarr")[:7]):
        np.testing.assert_array_equal(frame, pixels(i, shape=(8, 12)))


def test_a_claim_that_outlives_its_stream_writes_into_no_other(start, few_slots, frames_of):
    """The next stream of the connection may have as large a ring, but not this one."""
    frames = frames_of(3)
    daemon = start(few_slots(chunk=3, store_within_ms=600_000))
    with sw.connect(daemon.ipc, transport="shm") as connection:
        with connection.acquire("a", stream="cam0") as first:
            claims = [first.claim() for _ in range(6)]
        with connection.acquire("b", stream="cam0") as second:
            for frame in frames[:2]:
                second.append(frame)
            for claim in claims:  # the driver goes on filling what it was given
                claim.pixels[...] = 7
            second.append(frames[2])
        for claim in claims:
            with pytest.raises(errors.ClosedError):
                claim.commit()
    np.testing.assert_array_equal(stored(second.path), frames)
