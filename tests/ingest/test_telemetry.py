"""What the daemon counts: totals that equal the receipts exactly, gauges of what runs, how long something is
stuck. Real sockets and pipeline."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import shardwright as sw
from shardwright.acquire.acquisition import Acquisition
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.daemon.events import level_of
from shardwright.disk import failpoints
from shardwright.ingest import StreamSettings
from shardwright.ingest.registry import Sessions
from shardwright.ingest.totals import AcquisitionTotals, FrameRate
from shardwright.model import errors
from shardwright.model.receipt import COUNTS
from shardwright.model.write_settings import WriteSettings

STUCK_S = 0.2


@contextmanager
def held(point):
    """Whoever comes to ``point`` waits there, until the end or until what is yielded is set."""
    go_on = threading.Event()
    failpoints.set_hook(point, go_on.wait)
    try:
        yield go_on
    finally:
        failpoints.set_hook(point, None)
        go_on.set()


@contextmanager
def no_room():
    """Inside, no shard can be preallocated."""

    def refuse():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failpoints.set_hook("shard.before_preallocate", refuse)
    try:
        yield
    finally:
        failpoints.set_hook("shard.before_preallocate", None)


def counted(daemon, stream: str) -> dict[str, int]:
    """The totals of a stream under the names that receipts have."""
    totals = daemon.server.snapshot()["streams"][stream]
    return {name: totals["shards_sealed" if name == "shards" else name] for name in COUNTS}


def receipts(daemon) -> list[dict]:
    return [facts for event, facts in daemon.events if event in ("acquisition_ended", "acquisition_failed")]


def total(receipts: list[dict]) -> dict[str, int]:
    return {name: sum(receipt[name] for receipt in receipts) for name in COUNTS}


def acquire(daemon, name, frames, *, spec=None, stream=None, order=None, transport="shm"):
    """Frames at the places ``order``; those that come twice bring other pixels."""
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire(name, spec, stream=stream) as acquisition,
    ):
        for i, place in enumerate(range(len(frames)) if order is None else order):
            acquisition.append(frames[i % len(frames)], index=[place])
    return acquisition


def acquire_and_fail(daemon, frames, failing):
    """Two slabs are stored, then a defect ends the acquisition."""
    with sw.connect(daemon.ipc) as connection:
        acquisition = connection.acquire("failed", stream="cam0")
        for i in range(4):
            acquisition.append(frames[i])
        acquisition.flush()
        failing("slots.before_store", RuntimeError("a defect"))
        for i in range(4, 8):
            acquisition.append(frames[i])
        with pytest.raises(errors.ShardwrightError):
            acquisition.close()
        told = daemon.event("acquisition_failed")
        assert told["exception"].startswith("Traceback"), "where a defect was raised"
        assert told["exception"].endswith("RuntimeError: a defect\n")


def acquire_and_drop(daemon, frames, wait):
    """The workers are held until frames were dropped."""
    with (
        sw.connect(daemon.ipc) as connection,
        connection.acquire("dropped", stream="drops") as acquisition,
        held("slots.before_store"),
    ):
        for i in range(40):
            acquisition.append(frames[i])
        assert acquisition.frames_dropped > 0
        wait(
            lambda: (
                daemon.server.snapshot()["streams"]["drops"]["frames_dropped"] == acquisition.frames_dropped
            )
        )


def test_totals_equal_the_receipts_of_all_acquisitions_exactly(
    start, spec_of, frames_of, tmp_path, wait, failing
):
    """Missing, duplicate, late, dropped and lost frames among them; two streams and a client's own array;
    both transports."""
    frames = frames_of(40)
    streams = [
        StreamSettings("cam0", spec_of(), 12, WriteSettings()),
        StreamSettings("drops", spec_of(chunk=1), 8, WriteSettings(overload="drop")),
    ]
    daemon = start(*streams, root=tmp_path)
    acquire(daemon, "whole", frames[:10], stream="cam0")
    acquire(daemon, "twice", frames[:8], stream="cam0", order=[0, 1, 2, 2, 7, 6, 0, 3], transport="message")
    # half slabs fill the ring; the first is closed with a hole
    acquire(daemon, "late", frames, stream="cam0", order=[*range(0, 60, 2), 1])
    acquire_and_drop(daemon, frames, wait)
    acquire(daemon, "own", frames[:3], spec=spec_of(), order=[0, 2, 5], transport="message")
    acquire(daemon, "other", frames[:5], spec=spec_of())
    acquire_and_fail(daemon, frames, failing)
    wait(lambda: len(receipts(daemon)) == 7)
    by_stream = {
        "cam0": ["whole", "twice", "late", "failed"],
        "drops": ["dropped"],
        "client": ["own", "other"],
    }
    for stream, names in by_stream.items():
        mine = [
            receipt
            for receipt in receipts(daemon)
            if receipt["path"].rpartition("/")[2].removesuffix(".ome.zarr") in names
        ]
        assert len(mine) == len(names)
        assert counted(daemon, stream) == total(mine)
    everything = total(receipts(daemon))
    for name in (
        "frames_missing",
        "frames_duplicate",
        "frames_late",
        "frames_dropped",
        "frames_lost",
        "shards",
    ):
        assert everything[name] > 0, "else this test proves less than it says"
    streams_now = daemon.server.snapshot()["streams"]
    assert {name: stream["frames_skipped"] for name, stream in streams_now.items()} == {
        "cam0": 2 + 28,
        "drops": 0,
        "client": 3,
    }, "what was dropped, late or lost is counted as that alone"
    assert {
        name: (stream["acquisitions"], stream["acquisitions_failed"]) for name, stream in streams_now.items()
    } == {
        "cam0": (4, 1),
        "drops": (1, 0),
        "client": (2, 0),
    }
    for name, stream in streams_now.items():
        sent = stream["frames_received"] - stream["frames_dropped"]
        assert stream["bytes_received"] == sent * frames[0].nbytes, name
        assert stream["histograms"]["store_seconds"]["count"] == stream["frames_stored"], name
        assert (stream["ring_frames"], stream["ring_used"], stream["slabs_total"], stream["slabs_used"]) == (
            0,
            0,
            0,
            0,
        )
    assert daemon.server.snapshot()["acquisitions"] == []


def test_what_goes_wrong_is_told_at_the_first_frame_and_with_the_receipt(
    start, spec_of, frames_of, tmp_path, wait
):
    """Once for each kind and acquisition, however many frames it takes: the rest is in the counts."""
    frames = frames_of(40)
    streams = [
        StreamSettings("cam0", spec_of(), 12, WriteSettings()),
        StreamSettings("drops", spec_of(chunk=1), 8, WriteSettings(overload="drop")),
    ]
    daemon = start(*streams, root=tmp_path)
    acquire(daemon, "whole", frames[:10], stream="cam0")
    acquire(daemon, "twice", frames[:8], stream="cam0", order=[0, 1, 2, 2, 3, 1, 5])
    acquire(daemon, "late", frames, stream="cam0", order=[*range(0, 60, 2), 1, 3])
    acquire_and_drop(daemon, frames, wait)
    wait(lambda: len(receipts(daemon)) == 4 and daemon.count("acquisition_incomplete") == 3)
    told = [
        (event, name_of(facts), facts) for event, facts in list(daemon.events) if event.startswith("frames_")
    ]
    assert sorted((event, name) for event, name, _ in told) == [
        ("frames_dropped", "dropped"),
        ("frames_duplicate", "twice"),
        ("frames_late", "late"),
    ]
    by_name = {name: facts for _, name, facts in told}
    assert (by_name["twice"]["sequence"], by_name["twice"]["index"], by_name["twice"]["reason"]) == (
        3,
        [2],
        "place_taken",
    )
    assert (by_name["late"]["sequence"], by_name["late"]["index"], by_name["late"]["reason"]) == (
        30,
        [1],
        "place_closed",
    )
    incomplete = {
        name_of(facts): facts for event, facts in daemon.events if event == "acquisition_incomplete"
    }
    assert (
        incomplete["twice"].items()
        >= {"frames_received": 7, "frames_duplicate": 2, "frames_missing": 1}.items()
    )
    assert incomplete["late"].items() >= {"frames_late": 2}.items()
    assert incomplete["dropped"]["frames_dropped"] == incomplete["dropped"]["frames_missing"] == by_name[
        "dropped"
    ]["frames"] > 0 or (incomplete["dropped"]["frames_dropped"] > by_name["dropped"]["frames"])
    assert {level_of(event) for event in ("acquisition_incomplete", *(event for event, _, _ in told))} == {
        "warning"
    }


def name_of(facts) -> str:
    return facts["path"].rpartition("/")[2].removesuffix(".ome.zarr")


def test_totals_never_go_back_while_acquisitions_end(start, spec_of, frames_of, wait):
    """Another thread looks all the time: no acquisition is ever seen twice or not at all."""
    daemon, done, seen = start(), threading.Event(), []

    def look():
        while not done.wait(0.001):
            stream = daemon.server.snapshot()["streams"]["client"]
            seen.append(
                (
                    stream["acquisitions"],
                    stream["frames_received"],
                    stream["histograms"]["store_seconds"]["count"],
                )
            )

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for i in range(8):
            acquire(daemon, f"a{i}", frames_of(4), spec=spec_of())
        wait(lambda: len(receipts(daemon)) == 8)
    finally:
        done.set()
        watcher.join()
    for numbers in zip(*seen, strict=True):
        assert list(numbers) == sorted(numbers)
    assert seen[-1][0] == 8 or counted(daemon, "client")["frames_received"] == 32


def test_what_an_earlier_daemon_did_is_not_counted_twice(start, double, spec_of, frames_of, wait):
    first = start(doubled=double)
    frames = frames_of(7)
    with sw.connect(first.ipc, reconnect_timeout_ms=30_000) as connection:
        stream = connection.acquire("a", spec_of())
        for frame in frames[:4]:
            stream.append(frame)
        wait(lambda: stream.watermark.stored == 4)
        before = counted(first, "client")
        first.kill()
        second = start(doubled=double, root=first.root, adopt=[first.root / "a.ome.zarr"])
        second.event("acquisition_resumed")
        for frame in frames[4:]:
            stream.append(frame)
        stream.close()
    after = counted(second, "client")
    assert (before["frames_received"], after["frames_received"]) == (4, 3)
    assert Counter(before) + Counter(after) == Counter(
        {name: getattr(stream.receipt, name) for name in COUNTS}
    )
    assert second.server.snapshot()["streams"]["client"]["bytes_received"] == 3 * frames[0].nbytes


def test_a_running_acquisition_shows_what_it_does(start, spec_of, frames_of, wait, tmp_path, monkeypatch):
    daemon = start(StreamSettings("cam0", spec_of(count=40), 12, WriteSettings()), root=tmp_path)
    sample, moving = FrameRate.sample, []

    def look(rate, *facts):
        """A rate is that of two seconds: who looks later finds none."""
        sample(rate, *facts)
        running = daemon.server.snapshot()["acquisitions"]
        moving.extend(one for one in running if one["rate_hz"] > 0 and one["frames_received"] == 4)

    monkeypatch.setattr(FrameRate, "sample", look)
    with (
        sw.connect(daemon.ipc) as connection,
        connection.acquire("a", stream="cam0") as stream,
        held("slots.before_store"),
    ):
        for place in (0, 1, 2, 5):
            stream.append(frames_of(1)[0], index=[place])
        shown = wait(lambda: moving)[0]
        assert json.loads(json.dumps(shown)) == shown
        assert (shown["name"], shown["path"], shown["stream"], shown["state"]) == (
            "a",
            stream.path,
            "cam0",
            "running",
        )
        assert (shown["frames_expected"], shown["frames_missing"], shown["frames_in_flight"]) == (40, 2, 4)
        assert shown["ring_fill"] == 4 / 12
        assert shown["bytes_per_s"] == pytest.approx(shown["rate_hz"] * frames_of(1)[0].nbytes)
        assert shown["client"]["pid"] > 0
        cam0 = daemon.server.snapshot()["streams"]["cam0"]
        assert (cam0["ring_frames"], cam0["ring_used"], cam0["slabs_used"]) == (12, 4, 3)
        assert cam0["slabs_total"] >= 3
        wait(lambda: daemon.server.snapshot()["acquisitions"][0]["rate_hz"] == 0)  # nothing came for a while


def test_a_snapshot_looks_at_each_acquisition_once(start, spec_of, frames_of, monkeypatch):
    """So that what it says of an acquisition and of its stream agrees while frames come."""
    daemon, looks = start(), Counter()
    receipt_of, this_thread = Acquisition.receipt, threading.get_ident()

    def counted_receipt(acquisition):
        looks[acquisition.path.name] += threading.get_ident() == this_thread
        return receipt_of(acquisition)

    with (
        sw.connect(daemon.ipc) as connection,
        connection.acquire("a", spec_of()) as first,
        connection.acquire("b", spec_of()) as second,
    ):
        for stream in (first, second):
            stream.append(frames_of(1)[0])
        monkeypatch.setattr(Acquisition, "receipt", counted_receipt)
        daemon.server.snapshot()
        monkeypatch.undo()
    assert looks == {"a.ome.zarr": 1, "b.ome.zarr": 1}


def test_a_ring_that_only_room_empties_is_no_reason_to_pause_jobs(start, spec_of, frames_of, wait, tmp_path):
    """Otherwise a job that sends stores away would wait for a camera that waits for room."""
    daemon = start(StreamSettings("cam0", spec_of(), 12, WriteSettings(on_full="block")), root=tmp_path)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", stream="cam0") as stream:
        with no_room():
            for frame in frames_of(12):
                stream.append(frame)
            wait(daemon.server.waits_for_room)
            assert wait(lambda: daemon.server.snapshot()["acquisitions"][0]["ring_fill"]) > 0
            assert daemon.server.ring_fill() == 0
        wait(lambda: not daemon.server.waits_for_room())
    assert stream.receipt.frames_stored == 12


def test_the_rate_of_all_acquisitions_has_those_that_have_ended():
    """Such as single pictures, each an acquisition that is shorter than the time between two samples."""
    sessions, running = Sessions(), [fake_session("a", 10), fake_session("b", 5)]
    sessions.rate = FrameRate(0.0)
    for session in running:
        sessions.add(session)
    sessions.forget(running[0])
    sessions.sample_rates(0.5)
    assert (sessions.rate.hz, sessions.rate.bytes_per_s) == (30, 300)
    assert running[1].rate.hz == 10
    sessions.forget(running[1])
    for step in range(2, 8):
        sessions.sample_rates(step * 0.5)
    assert (sessions.rate.hz, sessions.rate.bytes_per_s) == (0, 0), "nothing came for a while"


def fake_session(identity: str, frames: int):
    acquisition = SimpleNamespace(
        identity=identity, client_epoch=1, receipt=lambda: None, path=Path(f"{identity}.ome.zarr")
    )
    return SimpleNamespace(
        acquisition=acquisition,
        account=dict,
        stream="cam0",
        totals=lambda _receipt: AcquisitionTotals(),
        why_ended=None,
        frames_received=frames,
        bytes_received=10 * frames,
        rate=FrameRate(0.0),
    )


def test_places_that_the_camera_is_still_to_come_to_are_not_skipped(start, spec_of, frames_of, wait):
    """In the middle of a z-stack; only the end tells that the rest of it never comes."""
    planes, sent, frame = 10, 14, frames_of(1)[0]
    time_axis, *plane_axes = spec_of().dimensions
    spec = ArraySpec(
        dtype="uint16", dimensions=[time_axis, Dimension(name="z", count=planes, chunk_size=1), *plane_axes]
    )
    daemon = start()

    def shown() -> tuple[int, int]:
        stream = daemon.server.snapshot()["streams"]["client"]
        return stream["frames_missing"], stream["frames_skipped"]

    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec) as stream:
        for number in range(sent):
            stream.append(frame, index=divmod(number, planes))
        wait(lambda: daemon.server.snapshot()["streams"]["client"]["frames_received"] == sent)
        assert shown() == (0, 0)
        stream.append(frame, index=[1, 7])
        wait(lambda: shown() == (3, 3))
    assert stream.receipt.frames_missing == 2 * planes - sent - 1
    wait(lambda: daemon.count("acquisition_ended") == 1)
    assert shown() == (5, 5)


@pytest.mark.parametrize("point", ["slots.before_store", "sealer.before_command"])
def test_a_thread_that_is_stuck_shows(start, spec_of, frames_of, wait, point):
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        wait(lambda: daemon.server.snapshot()["stall_s"] < STUCK_S)
        with held(point):
            for frame in frames_of(4):
                stream.append(frame)
            wait(lambda: daemon.server.snapshot()["stall_s"] > 2 * STUCK_S)
        wait(lambda: daemon.server.snapshot()["stall_s"] < STUCK_S)


def test_an_ingest_round_that_is_stuck_shows(start, wait):
    daemon, go_on = start(), threading.Event()
    receive = daemon.server._receive_some
    daemon.server._receive_some = lambda: go_on.wait() and receive()
    try:
        wait(lambda: daemon.server.snapshot()["stall_s"] > 2 * STUCK_S)
    finally:
        go_on.set()
    wait(lambda: daemon.server.snapshot()["stall_s"] < STUCK_S)
