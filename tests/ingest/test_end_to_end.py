"""From a client's frames to a store that another reader opens: real sockets, real pipeline, every transport,
clients that die or stall."""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
import zmq
from tests.harness.ack_ranges import decode_ranges
from tests.harness.camera import CameraProcess, Script
from tests.harness.frames import in_order, pixels
from tests.harness.store_contents import stored

import shardwright as sw
from shardwright.disk import ring
from shardwright.ingest import StreamSettings
from shardwright.model import errors
from shardwright.model.write_settings import WriteSettings
from shardwright.wire import messages
from shardwright.wire.messages import Kind

from .test_bad_messages import frames_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.ingest_daemon import IngestDaemon

WAYS = [("ipc", "shm"), ("ipc", "message"), ("tcp", "shm"), ("tcp", "message")]
SHAPE = (8, 12)
SENT = np.stack([pixels(i, shape=SHAPE) for i in range(7)])


@contextlib.contextmanager
def sending(daemon: IngestDaemon, transport: str, name: str) -> Iterator[CameraProcess]:
    """A camera that has sent 7 frames, two slabs of which are stored, and sends no more."""
    script = Script(
        daemon.ipc, name, in_order(7), shape=SHAPE, slab_frames=2, transport=transport, close=False
    )
    with CameraProcess(script) as camera:
        camera.wait_until(lambda facts: facts["sent"] == 7 and facts["stored"] >= 4)
        daemon.wait_for_frames(name, 7)
        yield camera


def test_an_array_may_be_given_as_json_and_what_is_none_is_a_typed_error(start, spec_of, frames_of):
    daemon = start()
    frames = frames_of(2, (20, 30))
    with sw.connect(daemon.ipc) as connection:
        with pytest.raises(errors.SpecError, match="the array specification is wrong"):
            connection.acquire("a", {"dtype": "uint17"})
        with connection.acquire("a", spec_of(shape=(20, 30)).model_dump(mode="json")) as stream:
            for frame in frames:
                stream.append(frame)
    np.testing.assert_array_equal(stored(stream.receipt.path), frames)


@pytest.mark.parametrize(("live", "place"), [("index", "start"), ("append", "end")])
def test_an_array_that_a_client_brings_gets_its_index_where_live_needs_it(
    start, raw, spec_of, frames_of, live, place
):
    """Also for a client that names the array again when it goes on where another one has stopped."""
    daemon = start(write=WriteSettings(live=live))
    frames, first = frames_of(6), raw(daemon.ipc)
    counter, _ = first.open("a", spec_of())
    first.send(frames_message(counter, frames[:2]))
    daemon.wait_for_frames("a", 2)  # what waits in a socket that is closed is not sent
    first.close()
    daemon.event("acquisition_detached")
    with sw.connect(daemon.ipc) as connection:
        with pytest.raises(errors.SpecError, match="another array"):
            connection.acquire("a", spec_of(count=50), reopen=True)
        with connection.acquire("a", spec_of(), reopen=True) as stream:
            for frame in frames[2:]:
                stream.append(frame)
    np.testing.assert_array_equal(stored(stream.path), frames)
    (sharding,) = json.loads((Path(stream.path) / "0/zarr.json").read_text())["codecs"]
    assert sharding["configuration"]["index_location"] == place


def test_a_finished_acquisition_goes_on_when_a_client_reopens_it(start, spec_of, frames_of):
    """By its name alone: with the stream and the settings that it was opened with."""
    streams = [StreamSettings(name, spec_of(), 12, WriteSettings()) for name in ("cam0", "cam1")]
    daemon, frames = start(*streams), frames_of(9)
    with sw.connect(daemon.ipc) as connection:
        with connection.acquire("a", stream="cam1") as stream:
            for frame in frames[:5]:
                stream.append(frame)
        with pytest.raises(errors.OutputExistsError, match=r"reopen=True\)` goes on with it"):
            connection.acquire("a", stream="cam1")
        with pytest.raises(errors.SpecError, match="another stream's"):
            connection.acquire("a", stream="cam0", reopen=True)
        with connection.acquire("a", reopen=True) as again:
            assert again.frames == 5
            for frame in frames[5:]:
                again.append(frame)
    assert again.receipt.frames_stored == 9
    assert daemon.event("acquisition_recovered")["stream"] == "cam1"
    np.testing.assert_array_equal(stored(again.path), frames)


def test_channels_reach_the_store_and_no_client(start, spec_of, frames_of):
    """A client of an earlier release refuses a specification with a field that it does not know."""
    channel = {"name": "GFP", "color": "00FF00", "window": (100, 4095)}
    spec = sw.ArraySpec.model_validate(spec_of().model_dump() | {"channels": [channel]})
    daemon = start(StreamSettings("cam0", spec, 12, WriteSettings()))
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", stream="cam0") as stream:
        stream.append(frames_of(1)[0])
        assert stream.spec.channels == ()
    (shown,) = zarr.open_group(stream.path, mode="r").attrs["ome"]["omero"]["channels"]
    assert (shown["label"], shown["color"], shown["window"]["end"]) == ("GFP", "00FF00", 4095)


def test_an_acquisition_that_never_got_a_frame_takes_no_name(start, spec_of, frames_of):
    daemon = start()
    (frame,) = frames_of(1, (20, 30))
    with sw.connect(daemon.ipc) as connection:
        for wrong in (frame[1:], frame.astype("float32")):
            with (
                pytest.raises((errors.FrameShapeError, errors.FrameDtypeError)),
                connection.acquire("a", spec_of(shape=(20, 30))) as stream,
            ):
                stream.append(wrong)
            assert stream.receipt.frames_received == 0
            assert not Path(stream.path).exists()
        with connection.acquire("a", spec_of(shape=(20, 30))) as stream:
            stream.append(frame)
    np.testing.assert_array_equal(stored(stream.path), [frame])


@pytest.mark.parametrize(("endpoint", "transport"), WAYS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_what_was_sent_is_what_is_read(start, spec_of, frames_of, endpoint: str, transport: str, dtype: str):
    daemon = start()
    frames = frames_of(33, (20, 30), dtype)
    spec = spec_of(shape=(20, 30), dtype=dtype)
    with (
        sw.connect(getattr(daemon, endpoint), transport=transport) as connection,
        connection.acquire("a", spec) as stream,
    ):
        for frame in frames:
            stream.append(frame)
    np.testing.assert_array_equal(stored(stream.path), frames)
    receipt = stream.receipt
    assert (
        receipt.frames_received,
        receipt.frames_stored,
        receipt.frames_durable,
        receipt.frames_missing,
    ) == (33, 33, 33, 0)
    assert (stream.watermark.stored, stream.watermark.durable) == (33, 33)


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_many_frames_at_once_are_what_is_read(start, spec_of, frames_of, transport: str):
    daemon = start()
    frames = frames_of(700)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec_of()) as stream,
    ):
        first = 0
        for count in (1, 0, 250, 3, 46, 400):
            ids = np.arange(first, first + count)[::-1]
            stream.append_many(
                frames[first : first + count][::-1],
                frame_ids=ids,
                metadata={"delta_t": ids / 100, "exposure_time": 0.5},
            )
            first += count
    np.testing.assert_array_equal(stored(stream.path), frames)
    table = {name: column[:] for name, column in zarr.open_group(f"{stream.path}/frames", mode="r").arrays()}
    order = np.argsort(table["frame_id"])
    np.testing.assert_array_equal(table["frame_id"][order], np.arange(700))
    np.testing.assert_array_equal(table["delta_t"][order], np.arange(700) / 100)
    assert set(table["exposure_time"].tolist()) == {0.5}
    assert (stream.frames, stream.receipt.frames_stored) == (700, 700)


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_out_of_order_duplicate_and_missing_frames_are_placed_and_counted(
    start, spec_of, frames_of, transport: str
):
    daemon = start()
    frames = frames_of(40)
    order = [i for i in np.random.default_rng(3).permutation(40).tolist() if i not in (5, 17)]
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec_of(count=40)) as stream,
    ):
        for i in order:
            stream.append(frames[i], index=[i])
        stream.append(frames[0], index=[order[0]])  # again, with other pixels
    expected = frames.copy()
    expected[[5, 17]] = 0
    np.testing.assert_array_equal(stored(stream.path), expected)
    receipt = stream.receipt
    assert (receipt.frames_received, receipt.frames_stored, receipt.frames_missing) == (39, 38, 2)
    assert receipt.frames_duplicate + receipt.frames_late == 1


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_a_duplicate_ends_an_acquisition_whose_stream_says_so(
    start, spec_of, frames_of, tmp_path, transport: str
):
    """``on_duplicate: fail``: the client gets the error that names the frame, what came before it is sealed,
    and others go on."""
    daemon = start(
        StreamSettings("strict", spec_of(), None, WriteSettings(on_duplicate="fail")), root=tmp_path
    )
    frames = frames_of(6)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("other", spec_of()) as other,
    ):
        strict = connection.acquire("a", stream="strict")
        for i in (0, 1, 2, 1):
            strict.append(frames[i], index=[i])
        with pytest.raises(
            errors.DuplicateFrameError,
            match=r"the place of frame 3 is taken.*index \(1,\).*Check the index",
        ):
            strict.close()
        assert "the place of frame 3 is taken" in daemon.event("acquisition_ended")["reason"]
        for i in (0, 1, 1):
            other.append(frames[i], index=[i])
    np.testing.assert_array_equal(stored(tmp_path / "a.ome.zarr")[:3], frames[:3])
    assert (other.receipt.frames_stored, other.receipt.frames_duplicate) == (2, 1), (
        "the daemon counts, where nothing else is said"
    )


def test_explicit_indices_over_several_axes(start, frames_of):
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=3, chunk_size=2),
            sw.Dimension(name="z", count=4, chunk_size=2, shard_size_chunks=2),
            sw.Dimension(name="c", count=2, chunk_size=1),
            sw.Dimension(name="y", count=8, chunk_size=8),
            sw.Dimension(name="x", count=12, chunk_size=5),
        ],
        storage_order=["t", "c", "z", "y", "x"],
    )
    daemon = start()
    frames = frames_of(24).reshape(3, 4, 2, 8, 12)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec) as stream:
        for z, t, c in np.ndindex(4, 3, 2):
            stream.append(frames[t, z, c], index=(t, z, c))
    np.testing.assert_array_equal(stored(stream.path), frames.transpose(0, 2, 1, 3, 4))


def test_more_frames_than_the_ring_holds(start, spec_of, frames_of):
    daemon = start()
    frames = frames_of(4, (512, 512))
    for transport in ("shm", "message"):
        with (
            sw.connect(daemon.ipc, transport=transport) as connection,
            connection.acquire(transport, spec_of(shape=(512, 512))) as stream,
        ):
            ring_frames = stream._link.opened.ring_slots
            for i in range(3 * ring_frames):
                stream.append(frames[i % 4])
        pixels_there = stored(stream.path)
        assert len(pixels_there) == 3 * ring_frames
        assert all(np.array_equal(pixels_there[i], frames[i % 4]) for i in range(len(pixels_there)))


def test_several_clients_at_once(start, spec_of, frames_of):
    daemon = start()
    frames = frames_of(50)
    connections = [
        sw.connect(endpoint, transport=transport)
        for endpoint in (daemon.ipc, daemon.tcp)
        for transport in ("shm", "message")
    ]
    streams = [connection.acquire(f"cam{i}", spec_of()) for i, connection in enumerate(connections)]
    for frame in frames:
        for i, stream in enumerate(streams):
            stream.append(frame + i)
    for i, (connection, stream) in enumerate(zip(connections, streams, strict=True)):
        connection.close()
        np.testing.assert_array_equal(stored(stream.path), frames + i)
        assert stream.receipt.frames_stored == 50


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_a_killed_client_ends_its_own_acquisition_only(start, spec_of, frames_of, transport: str):
    daemon = start(resume_timeout_ms=0)
    frames = frames_of(7)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("bystander", spec_of()) as bystander,
    ):
        bystander.append(frames[0])
        with sending(daemon, transport, "victim") as victim:
            victim.kill()
        ended = daemon.event("acquisition_ended")
        assert daemon.event("client_lost")["pid"] == victim.pid
        bystander.append(frames[1])
    assert (ended["frames_received"], ended["frames_stored"], ended["frames_durable"]) == (7, 7, 7)
    np.testing.assert_array_equal(stored(daemon.root / "victim.ome.zarr")[:7], SENT)
    np.testing.assert_array_equal(stored(bystander.path), frames[:2])


def test_a_stalled_client_ends_its_own_acquisition_only(start, spec_of, frames_of):
    daemon = start(resume_timeout_ms=0)
    frames = frames_of(7)
    with sw.connect(daemon.ipc) as connection, connection.acquire("bystander", spec_of()) as bystander:
        bystander.append(frames[0])
        with sending(daemon, "shm", "stalled") as stalled:
            stalled.signal(signal.SIGSTOP)
            # only now: on a busy machine both may have been silent for a while
            connections = daemon.server._connections
            connections._settings = replace(connections._settings, session_timeout_ms=3000)
            assert "fell silent" in daemon.event("acquisition_detached")["reason"]
            daemon.event("acquisition_ended")
        bystander.append(frames[1])
    np.testing.assert_array_equal(stored(daemon.root / "stalled.ome.zarr")[:7], SENT)
    np.testing.assert_array_equal(stored(bystander.path), frames[:2])


def test_a_client_that_sends_but_never_reads_is_given_up(start, spec_of, raw, wait):
    """Its acks and heartbeats fill its queue; the daemon must neither block nor keep them for ever."""
    daemon = start(heartbeat_ms=1, resume_timeout_ms=0)
    client = raw(daemon.tcp, deaf=True)
    client.open("deaf", spec_of())

    client.socket.sndtimeo = 100  # once it is given up nobody takes what it sends
    refused = {"request": 1, "name": "../" + "x" * 900, "spec": None, "stream": None, "transport": "shm"}
    message = client.connection.control(Kind.OPEN, refused)
    while not daemon.count("acquisition_ended"):
        with contextlib.suppress(zmq.Again):  # not taken in time: the same one again, or one would be missing
            client.send(message)
            message = client.connection.control(Kind.OPEN, refused)
    assert "does not read" in daemon.event("acquisition_detached")["reason"]


def test_an_orderly_stop_leaves_a_store_that_can_be_read(start, spec_of, frames_of, wait):
    daemon = start()
    frames = frames_of(9)
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", spec_of())
        for frame in frames:
            stream.append(frame)
        wait(lambda: sum(s["frames_received"] for s in daemon.server.snapshot()["streams"].values()) == 9)
        daemon.stop()
        with pytest.raises(errors.SessionLostError, match="the daemon is stopping"):
            stream.close()
    assert (stream.receipt.frames_stored, stream.receipt.frames_durable) == (9, 9)
    np.testing.assert_array_equal(stored(stream.path), frames)


def test_a_refused_frame_leaves_no_trace_in_the_store(start, raw, spec_of, frames_of):
    daemon = start()
    frames = frames_of(3)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        stream.append(frames[0])
        with pytest.raises(errors.FrameShapeError):
            stream.append(frames[1].T)
        stream.append(frames[2])
    np.testing.assert_array_equal(stored(stream.path), frames[[0, 2]])


def test_an_existing_output_is_left_alone(start, spec_of, frames_of):
    daemon = start()
    with sw.connect(daemon.ipc) as connection:
        with connection.acquire("a", spec_of()) as stream:
            stream.append(frames_of(1)[0])
        before = stored(stream.path)
        with pytest.raises(errors.OutputExistsError):
            connection.acquire("a", spec_of())
        np.testing.assert_array_equal(stored(stream.path), before)


def test_an_acquisition_without_frames_has_a_receipt_and_leaves_no_store(start, spec_of):
    with sw.connect(start().ipc) as connection, connection.acquire("empty", spec_of()) as stream:
        pass
    assert (stream.receipt.frames_received, stream.receipt.frames_missing) == (0, 0)
    assert Path(stream.receipt.path).name == "empty.ome.zarr"
    assert not Path(stream.receipt.path).exists()


def test_acks_of_the_real_pipeline_release_every_frame_once(start, raw, spec_of, frames_of):
    client = raw(start().ipc)
    counter, opened = client.open("a", spec_of())
    frames = frames_of(5)
    sent = np.zeros(5, messages.DESCRIPTOR)
    sent["sequence"] = sent["position"] = sent["slot"] = np.arange(5)
    body = messages.BATCH_PRELUDE.pack(messages.DTYPE_CODE["uint16"], 8, 12, 0) + sent.tobytes()
    client.send(
        [
            *counter.message(Kind.FRAMES, [body], count=5, pixel_parts=1, payload_bytes=frames.nbytes),
            frames.tobytes(),
        ]
    )
    client.send(counter.control(Kind.FINISH, {"frames": 5}))
    told: dict[messages.Level, list[int]] = {level: [] for level in messages.Level}
    header, parts = client.receive()
    while header.kind is Kind.ACK:
        for level, first, last in decode_ranges(parts[0]):
            told[level] += range(first, last + 1)
        header, parts = client.receive()
    assert header.kind is Kind.RECEIPT
    assert (
        sorted(told[messages.Level.RELEASED])
        == told[messages.Level.STORED]
        == told[messages.Level.DURABLE]
        == list(range(5))
    )
    assert opened["credit_bytes"] == opened["ring_slots"] * frames[0].nbytes


def test_a_camera_s_next_acquisition_takes_its_ring_over_and_another_camera_s_does_not(
    start, spec_of, frames_of, monkeypatch
):
    made = []
    fresh = ring.Ring.__init__
    monkeypatch.setattr(
        ring.Ring, "__init__", lambda self, *arguments: (made.append(self), fresh(self, *arguments))[1]
    )
    daemon, frames = start(), frames_of(9, (20, 30), "uint16")

    def acquire(connection, name: str) -> None:
        with connection.acquire(name, spec_of(shape=(20, 30))) as stream:
            for frame in frames:
                stream.append(frame)
        np.testing.assert_array_equal(stored(stream.path), frames)

    with sw.connect(daemon.ipc, transport="shm") as one, sw.connect(daemon.ipc, transport="shm") as other:
        for name in "abc":
            acquire(one, name)
        assert len(made) == 1
        acquire(other, "d")
        acquire(one, "e")
        assert len(made) == 3


def test_a_name_that_is_taken_may_get_a_number(start, spec_of, frames_of):
    """Of a store that is finished, and of one that is being written."""
    daemon = start(write=WriteSettings(name_taken="increment"))
    (frame,) = frames_of(1, (20, 30))
    with sw.connect(daemon.ipc) as connection:
        with connection.acquire("a", spec_of(shape=(20, 30))) as finished:
            finished.append(frame)
        with (
            connection.acquire("a", spec_of(shape=(20, 30))) as second,
            connection.acquire("a", spec_of(shape=(20, 30))) as third,
        ):
            second.append(frame)
            third.append(frame)
    names = [Path(stream.path).name for stream in (finished, second, third)]
    assert names == ["a.ome.zarr", "a_2.ome.zarr", "a_3.ome.zarr"]
    assert all(len(stored(stream.path)) == 1 for stream in (finished, second, third))


def test_a_reopen_of_a_name_that_got_a_number_says_which_is_unfinished(start, spec_of, frames_of):
    daemon = start(write=WriteSettings(name_taken="increment"))
    (frame,) = frames_of(1, (20, 30))
    with sw.connect(daemon.ipc) as connection:
        with connection.acquire("a", spec_of(shape=(20, 30))) as finished:
            finished.append(frame)
        with connection.acquire("a", spec_of(shape=(20, 30))) as second:
            second.append(frame)
            second.flush()
            with pytest.raises(errors.ResumeError, match="is finished") as caught:
                connection.acquire("a", reopen=True)
            assert caught.value.hint.startswith("a_2 is unfinished (")
            Path(finished.path).rename(Path(finished.path).with_name("moved.ome.zarr"))
            with pytest.raises(errors.ResumeError, match=r"nothing to resume.*a_2 is unfinished"):
                connection.acquire("a", reopen=True)
        with pytest.raises(errors.ResumeError) as caught:
            connection.acquire("a", reopen=True)
        assert caught.value.hint is None, "both are finished"


def test_a_finished_store_may_be_overwritten_and_one_that_is_open_never(start, spec_of, frames_of):
    daemon = start(write=WriteSettings(name_taken="overwrite"))
    frames = frames_of(3, (20, 30))
    with sw.connect(daemon.ipc) as connection:
        for taken in (frames[:1], frames[1:]):
            with connection.acquire("a", spec_of(shape=(20, 30))) as stream:
                with pytest.raises(errors.OutputExistsError, match="unfinished"):
                    connection.acquire("a", spec_of(shape=(20, 30)))
                for frame in taken:
                    stream.append(frame)
            np.testing.assert_array_equal(stored(stream.path), taken)
        connection.acquire("a", spec_of(shape=(20, 30))).close()  # without a frame
        np.testing.assert_array_equal(stored(stream.path), frames[1:])
        folder = Path(stream.path).parent
        (folder / "b.ome.zarr").mkdir()
        with pytest.raises(errors.OutputExistsError, match="no store that was written here"):
            connection.acquire("b", spec_of(shape=(20, 30)))
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"a.ome.zarr", "b.ome.zarr"}
