"""Frames of a colour camera through the daemon: all channels of one are there, or none counts; what counts
frames, and what counts channels."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from tests.harness.daemon import camera

import shardwright as sw
from shardwright.array.spec import parse_spec
from shardwright.ingest.ingest_settings import StreamSettings
from shardwright.model.write_settings import WriteSettings

from .test_bad_messages import frames_message

SPEC = sw.default_layout((None, 8, 12, 3), "uint16", "tyxc", chunks={"t": 2, "y": 8, "x": 12})
FRAMES = np.random.default_rng(1).integers(1, 200, (7, 8, 12, 3)).astype(np.uint16)
BY_CHANNEL = np.moveaxis(FRAMES, -1, 1)


def stored(path: str) -> np.ndarray:
    return zarr.open_array(f"{path}/0", mode="r")[...]


def test_another_client_begins_behind_a_frame_that_came_in_part(start, raw, wait):
    """As of a client that died in the middle of what it sent again."""
    daemon = start()
    client = raw(daemon.ipc)
    counter, opened = client.open("a", SPEC)
    assert opened["spec"]["interleaved"] is True
    client.send(frames_message(counter, BY_CHANNEL.reshape(-1, 8, 12)[:4]))
    wait(lambda: daemon.server.snapshot()["acquisitions"][0]["frames_received"] == 4)
    client.close()
    daemon.event("acquisition_detached")
    with sw.connect(daemon.ipc) as connection:
        with connection.acquire("a", reopen=True) as stream:
            assert stream.frames == 2
            stream.append_many(FRAMES[2:4])
            stream.append(FRAMES[4])
            stream.append(FRAMES[1], index=1)
        found = sw.frame_table(stream.path).sort_values("sequence")["status"].tolist()
        assert found == ["stored"] * 4 + ["lost"] * 2 + ["stored"] * 9 + ["duplicate"] + ["stored"] * 2
        assert np.array_equal(stored(stream.path), BY_CHANNEL[:5])


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_a_daemon_counts_channels_and_a_client_frames(start, wait, transport):
    daemon = start()
    with sw.connect(daemon.ipc, transport=transport) as connection:
        stream = connection.acquire("a", SPEC, frames_expected=7)
        stream.append_many(FRAMES)
        stream.flush()
        shown = daemon.server.snapshot()["acquisitions"][0]
        assert (shown["frames_expected"], shown["frames_stored"]) == (21, 21)
        assert (stream.watermark.stored, stream.watermark.durable) == (7, 7)
        with pytest.warns(DeprecationWarning, match="stream.frames"):
            assert stream.frames_sent == 7
        stream.close()
    assert np.array_equal(stored(stream.path), BY_CHANNEL)


@pytest.mark.parametrize("many", [False, True])
def test_a_frame_without_slots_for_all_its_channels_is_dropped(start, double, wait, many):
    double.holding = True
    daemon = start(StreamSettings("cam0", SPEC, 20, WriteSettings(overload="drop")), doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", stream="cam0") as stream:
        if many:
            stream.append_many(FRAMES)
        else:
            for frame in FRAMES:
                stream.append(frame)
        assert (stream.frames, stream.frames_dropped) == (7, 1), "two slots were free"
        wait(lambda: daemon.acquisitions[0].next_sequence == 21)
        double.holding = False
    places = daemon.acquisitions[0].disk.place_of
    assert [sequence for sequence, place in places.items() if place < 0] == [18, 19, 20]


def test_the_simulated_camera_sends_to_a_stream_of_colours(start, tmp_path):
    daemon = start(StreamSettings("cam0", SPEC, None, WriteSettings()))
    receipt = camera(daemon.ipc, "a", "--stream", "cam0", "--frames", "5")
    assert receipt["frames_stored"] == 15
    assert stored(receipt["path"]).shape == (5, 3, 8, 12)


def test_a_claim_is_given_back_and_frames_that_wait_take_its_slots(start):
    daemon = start(StreamSettings("cam0", SPEC, 20, WriteSettings(overload="fail")))
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", stream="cam0") as stream:
        claims = [stream.claim() for _ in range(2)]
        claims[0].give_back()
        claims[1].pixels[...] = BY_CHANNEL[0]
        claims[1].commit()
        stream.append(FRAMES[1])
        with pytest.raises(sw.errors.FrameShapeError):
            stream.append(FRAMES[0][..., 0])
        with pytest.raises(ValueError, match="read-only"):
            claims[1].pixels[0, 0, 0] = 1
    assert np.array_equal(stored(stream.path), BY_CHANNEL[:2])


def test_earlier_peers_refuse_what_they_do_not_know():
    """They forbid keys that they do not know; a specification without colours has none that is new."""
    facts = SPEC.model_dump(mode="json")
    assert facts["interleaved"] is True
    assert "interleaved" not in sw.default_layout((None, 8, 12), "uint16").model_dump(mode="json")
    with pytest.raises(sw.errors.SpecError, match="later_field"):
        parse_spec({**facts, "later_field": True})
