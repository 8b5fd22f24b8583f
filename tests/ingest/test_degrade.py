"""The overload policy ``degrade`` through a daemon, with real sockets, ring and pipeline: a full ring reaches
the encoders, and everybody is told."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.acquire import overload_level
from shardwright.array.spec import Zstd
from shardwright.disk import failpoints
from shardwright.ingest import StreamSettings
from shardwright.model.write_settings import WriteSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPE, RING = (64, 64), 24
DEGRADE = WriteSettings(overload="degrade")


@pytest.fixture
def throttle(monkeypatch):
    """``with throttle() as let``: only so many tasks as are let go on to encode; at the end all."""
    monkeypatch.setattr(overload_level, "DWELL_S", 0.01)
    tickets = threading.Semaphore(0)
    failpoints.set_hook("slots.before_store", tickets.acquire)

    @contextmanager
    def closing() -> Iterator[Callable[[int], None]]:
        try:
            yield tickets.release
        finally:
            tickets.release(1000)

    yield closing
    failpoints.set_hook("slots.before_store", None)


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_a_camera_that_is_too_fast_for_the_codec_loses_nothing(
    start, spec_of, frames_of, wait, throttle, tmp_path, transport
):
    spec = spec_of(shape=SHAPE).model_copy(update={"codec": Zstd(level=3)})
    daemon = start(StreamSettings("cam0", spec, RING, DEGRADE), root=tmp_path)
    images = frames_of(40, SHAPE)

    def level() -> str:
        return daemon.server.snapshot()["acquisitions"][0]["degrade_level"]

    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
        throttle() as let,
    ):
        for image in images[:22]:
            stream.append(image)
        # some may still be on their way when the level rises: it would fall while few of them wait
        wait(lambda: daemon.server.snapshot()["streams"]["cam0"]["frames_received"] == 22)
        wait(lambda: level() == "faster")
        assert daemon.server.snapshot()["streams"]["cam0"]["degrade_level"] == 1
        # two that may have begun as configured, then a faster one for each worker; and the ring is still as
        # full
        let(4)
        wait(lambda: level() == "uncompressed")
        assert daemon.server.snapshot()["streams"]["cam0"]["degrade_level"] == 2
        let(1000)
        wait(lambda: level() == "configured")
        for count, image in enumerate(images[22:], 23):
            stream.append(image)
            # slab by slab: where workers get no processor for a moment, the level would rise again
            wait(lambda stored=count // 2 * 2: stream.watermark.stored >= stored)
    receipt = stream.receipt
    assert (receipt.frames_received, receipt.frames_stored, receipt.frames_missing, receipt.frames_lost) == (
        40,
        40,
        0,
        0,
    )
    assert receipt.frames_faster >= 4
    assert receipt.frames_uncompressed > 0
    assert (receipt.chunks_faster, receipt.chunks_uncompressed) == (
        receipt.frames_faster // 2,
        receipt.frames_uncompressed // 2,
    )
    assert np.array_equal(zarr.open_array(tmp_path / "a.ome.zarr" / "0", mode="r")[...], images)
    wait(lambda: daemon.count("acquisition_ended"))
    ended, totals = daemon.event("acquisition_ended"), daemon.server.snapshot()["streams"]["cam0"]
    for name in ("frames_faster", "frames_uncompressed", "chunks_faster", "chunks_uncompressed"):
        assert ended[name] == totals[name] == getattr(receipt, name)
    assert totals["degrade_level"] == 0
    told = [
        (facts["before"], facts["degrade_level"])
        for event, facts in daemon.events
        if event == "overload_level"
    ]
    assert told[:2] == [("configured", "faster"), ("faster", "uncompressed")]
    assert told[-1] == ("faster", "configured")
    assert daemon.event("overload_level")["path"].endswith("a.ome.zarr")


def test_once_the_ring_is_full_the_camera_waits(start, spec_of, frames_of, wait, throttle, tmp_path):
    daemon = start(StreamSettings("cam0", spec_of(shape=SHAPE), RING, DEGRADE), root=tmp_path)
    images, appended = frames_of(40, SHAPE), []
    with (
        sw.connect(daemon.ipc) as connection,
        connection.acquire("a", stream="cam0") as stream,
        throttle() as let,
    ):

        def send() -> None:
            for image in images:
                stream.append(image)
                appended.append(1)

        camera = threading.Thread(target=send)
        camera.start()
        wait(lambda: daemon.server.snapshot()["acquisitions"][0]["ring_fill"] == 1)
        assert len(appended) <= RING + 1
        let(1000)
        camera.join()
    assert stream.receipt.frames_stored == 40


def test_a_client_is_told_to_block(start, spec_of, raw, tmp_path):
    """Also one of an earlier release, which knows no other policies."""
    daemon = start(root=tmp_path, write=DEGRADE)
    _, opened = raw(daemon.ipc).open("a", spec_of())
    assert opened["overload"] == "block"


def test_the_ring_of_each_poll_is_the_client_s_credit(start, spec_of, frames_of, wait, double, tmp_path):
    daemon = start(StreamSettings("cam0", spec_of(), RING, WriteSettings()), root=tmp_path, doubled=double)
    double.holding = True
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", stream="cam0") as stream:
        acquisition = daemon.acquisitions[0]
        for image in frames_of(5):
            stream.append(image)
        wait(lambda: acquisition.ring_seen[-1] == (5, RING))
        acquisition.holding = False
        wait(lambda: acquisition.ring_seen[-1] == (0, RING))
