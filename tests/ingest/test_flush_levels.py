"""Flushes to a level through the daemon, and what it tells its clients of frames that readers see."""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.harness.json_process import wait_for

import shardwright as sw
from shardwright.acquire import sealer
from shardwright.ingest import IngestServer
from shardwright.model import errors
from shardwright.model.write_settings import WriteSettings
from shardwright.wire.controls import MAX_UPDATES, FlushTo, Updated, Visible, Welcome
from shardwright.wire.descriptor import DESCRIPTOR
from shardwright.wire.messages import BATCH_PRELUDE, DTYPE_CODE, Kind, decode_control

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
WAYS = ["shm", "message"]


def array(t: int = 1, shard: int = 64) -> sw.ArraySpec:
    return sw.default_layout((None, 8, 12), "uint16", "tyx", chunks={"t": t}, shards={"t": shard * t})


def frame(number: int) -> np.ndarray:
    return np.full((8, 12), number + 1, np.uint16)


def records(count: int) -> np.ndarray:
    found = np.zeros(count, DESCRIPTOR)
    found["sequence"] = found["position"] = found["slot"] = np.arange(count)
    found["frame_id"] = -1
    return found


def seen(stream: sw.Stream, image: str = "0") -> int:
    found: int = zarr.open_array(Path(stream.path) / image, mode="r").shape[0]
    return found


@pytest.mark.parametrize("transport", WAYS)
def test_each_step_is_readable_when_the_flush_returns(start, transport):
    daemon = start(write=WriteSettings(live="append", sync_interval_ms=3_600_000))
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", array()) as stream,
    ):
        for step in range(5):
            stream.append(frame(step))
            stream.flush("visible", 60)
            assert seen(stream) == stream.watermark.visible == step + 1
            assert stream.watermark.durable == 0
        stream.append(frame(5))
        stream.flush("stored", 60)
        assert stream.watermark.stored == 6
        assert stream.watermark.durable == 0
        stream.flush(60)
        assert stream.watermark.durable == 6
    assert stream.watermark == sw.Watermark(6, 6, 6)


def test_what_cannot_be_shown_is_refused_and_the_stream_goes_on(start):
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", array(shard=4)) as stream:
        for i in range(6):
            stream.append(frame(i))
        with pytest.raises(errors.VisibilityError, match=r'live: none.*4 of 6.*live="append"'):
            stream.flush("visible")
        assert stream.watermark.visible == seen(stream) == 4
        stream.append(frame(6))


def test_each_image_has_its_count(start):
    daemon = start(write=WriteSettings(live="append"))
    spec = sw.AcquisitionSpec(array=array(), images=("left", "right"))
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec) as stream:
        for i in range(3):
            stream.append(frame(i), image="left")
        stream.append(frame(0), image="right")
        stream.add_image("third")
        stream.append(frame(0), image="third")
        stream.flush("visible", 60)
        assert stream.watermark.images == {"left": 3, "right": 1, "third": 1}
        assert stream.watermark.visible == 5


def test_the_daemon_flushes_for_others_than_the_client(start):
    daemon = start(write=WriteSettings(live="append", sync_interval_ms=3_600_000))
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", array()) as stream:
        stream.append(frame(0))
        stream.flush("stored", 60)
        assert daemon.server.flush("a", "visible").result(60).visible == 1
        assert daemon.server.flush("a").result(60) == sw.Watermark(1, 1, 1)
        assert daemon.server.account("a")["watermark"] == asdict(sw.Watermark(1, 1, 1))
        with pytest.raises(errors.UnknownAcquisitionError):
            daemon.server.flush("b")
    wait_for(lambda: not daemon.server.acquiring(), "the end")
    with pytest.raises(errors.UnknownAcquisitionError):
        daemon.server.flush("a")


def test_a_daemon_of_an_earlier_release_takes_no_level(start, monkeypatch):
    whole = Welcome.to_body
    monkeypatch.setattr(Welcome, "to_body", lambda self: whole(replace(self, flush_levels=False)))
    daemon = start(write=WriteSettings(live="append"))
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", array()) as stream:
        stream.append(frame(0))
        with pytest.raises(errors.VersionError, match="earlier release"):
            stream.flush("visible")
        stream.flush("stored", 60)  # by way of durable
        assert stream.watermark.stored == 1


def test_a_client_of_an_earlier_release_is_told_nothing_of_visible_frames(start, raw):
    daemon = start(write=WriteSettings(live="append"))
    client = raw(daemon.ipc)
    session, _ = client.open("a", array())
    body = BATCH_PRELUDE.pack(DTYPE_CODE["uint16"], 8, 12, 0) + records(1).tobytes()
    client.send(
        [*session.message(Kind.FRAMES, [body], count=1, pixel_parts=1, payload_bytes=192), bytes(192)]
    )
    client.send(session.control(Kind.FLUSH_TO, FlushTo(0, "visible").to_body()))
    kinds = []
    while Kind.UPDATED not in kinds:
        header, parts = client.receive()
        kinds.append(header.kind)
    assert Updated.from_body(decode_control(parts[0])) == Updated(0, None)
    assert Kind.VISIBLE not in kinds


def test_a_level_that_nobody_knows_ends_the_session(start, raw):
    daemon = start()
    client = raw(daemon.ipc)
    session, _ = client.open("a", array())
    client.send(session.control(Kind.FLUSH_TO, {"request": 0, "level": "read"}))
    header, problem = client.receive_error(until=True)
    assert (problem["code"], problem["fatal"]) == ("protocol", True)
    assert header.session == session.session


def test_at_most_64_wait(start, raw, double):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    session, _ = client.open("a", array())
    double.take_updates = lambda _: []
    for request in range(MAX_UPDATES + 1):
        client.send(session.control(Kind.FLUSH_TO, FlushTo(request, "stored").to_body()))
    header, parts = client.receive()
    while header.kind is not Kind.UPDATED:
        header, parts = client.receive()
    answer = Updated.from_body(decode_control(parts[0]))
    assert answer.request == MAX_UPDATES
    assert answer.error is not None
    assert answer.error.code == "overload"


@pytest.mark.parametrize("body", [{"frames": 1, "images": {"-1": 2}}, {"frames": 1, "images": {"a": 2}}, {}])
def test_counts_that_cannot_be_are_a_protocol_error(body):
    with pytest.raises(errors.ProtocolError):
        Visible.from_body(body)


def test_a_stream_that_reconnects_asks_again(start, proxy):
    daemon = start(write=WriteSettings(live="append", sync_interval_ms=3_600_000))
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection, connection.acquire("a", array()) as stream:
        stream.append(frame(0))
        stream.flush("visible", 60)
        link.cut()
        wait_for(lambda: link.connections, "the cut")
        stream.append(frame(1))
        link.mend()
        stream.flush("visible", 60)
        assert stream.reconnects == 1
        assert stream.watermark.visible == seen(stream) == 2


def test_nobody_remembers_flushes_that_the_ack_answers(start, raw, monkeypatch):
    """However many a client sends while the disk is slow."""
    go_on = threading.Event()
    commit = sealer.Sealer._commit
    monkeypatch.setattr(sealer.Sealer, "_commit", lambda *args: (go_on.wait(60), commit(*args))[1])
    daemon = start(write=WriteSettings(sync_interval_ms=3_600_000))
    client = raw(daemon.ipc)
    session, _ = client.open("a", array())
    body = BATCH_PRELUDE.pack(DTYPE_CODE["uint16"], 8, 12, 0) + records(1).tobytes()
    client.send(
        [*session.message(Kind.FRAMES, [body], count=1, pixel_parts=1, payload_bytes=192), bytes(192)]
    )
    for _ in range(100):
        client.send(session.message(Kind.FLUSH, []))
    (acquisition,) = (each.acquisition for each in daemon.server._sessions)
    try:
        wait_for(lambda: acquisition._updates_asked == 100, "all of them")
        assert not acquisition._core.notifications.flushes
    finally:
        go_on.set()


def test_a_flush_that_a_stopping_daemon_has_not_begun_fails(start, monkeypatch):
    daemon = start(write=WriteSettings(live="append"))
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", array())
        stream.append(frame(0))
        stream.flush("stored", 60)
        monkeypatch.setattr(IngestServer, "_begin_asked", lambda _: None)  # as right before its last round
        asked = daemon.server.flush("a", "visible")
        stream.close()
    daemon.stop()
    with pytest.raises(errors.SessionLostError, match="stopping"):
        asked.result(60)
