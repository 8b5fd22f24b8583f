"""The daemon at one glance: every key that the status page, the metrics and the control socket rely on, and
nothing that JSON does not know."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.config.load import load_config
from shardwright.daemon import disks as disks_module
from shardwright.daemon.assemble import Daemon
from shardwright.daemon.disks import DiskSpace
from shardwright.daemon.events import EventLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = {
    *(
        "version",
        "software",
        "pid",
        "host",
        "config",
        "state",
        "uptime_s",
        "endpoints",
        "output_root",
        "status_page",
        "memory",
        "disks",
        "clients",
    ),
    *("foreign_messages", "stall_s", "rate_hz", "bytes_per_s", "streams", "sums", "acquisitions"),
    *("armed", "compaction", "notifications", "events"),
}
STREAM_KEYS = {
    *(
        "acquisitions",
        "acquisitions_failed",
        "frames_received",
        "bytes_received",
        "frames_stored",
        "frames_durable",
        "bytes_raw",
        "bytes_stored",
    ),
    *(
        "frames_missing",
        "frames_skipped",
        "frames_duplicate",
        "frames_late",
        "frames_dropped",
        "frames_lost",
        "shards_sealed",
    ),
    *(
        f"bytes_{status}"
        for status in ("durable", "missing", "skipped", "duplicate", "late", "dropped", "lost")
    ),
    *("ring_frames", "ring_used", "slabs_total", "slabs_used", "histograms"),
    *("degrade_level", "frames_faster", "frames_uncompressed", "chunks_faster", "chunks_uncompressed"),
    *("frame_json_dropped", "places_skipped"),
}
HISTOGRAMS = {
    "queue_seconds",
    "encode_seconds",
    "store_seconds",
    "commit_seconds",
    "shard_open_seconds",
    "shard_seal_seconds",
}


@pytest.fixture
def events() -> Iterator[EventLog]:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield EventLog(descriptor)
    os.close(descriptor)


def test_a_daemon_that_has_done_nothing_shows_every_key(config: Path, folder: Path, events: EventLog) -> None:
    daemon = Daemon(load_config(config), events)
    events.emit("something", {})
    events.emit("something", {})
    snapshot: dict[str, Any] = json.loads(json.dumps(daemon.snapshots.take(), allow_nan=False))
    assert set(snapshot) == KEYS
    assert (snapshot["version"], snapshot["state"], snapshot["pid"], snapshot["config"]) == (
        1,
        "starting",
        os.getpid(),
        str(config),
    )
    assert set(snapshot["streams"]) == {"cam0", "client"}
    assert set(snapshot["sums"]) == STREAM_KEYS - {"histograms"}
    for stream in snapshot["streams"].values():
        assert set(stream) == STREAM_KEYS
        assert set(stream["histograms"]) == HISTOGRAMS
        assert not any(value for name, value in stream.items() if name != "histograms")
    assert (snapshot["acquisitions"], snapshot["clients"], snapshot["stall_s"]) == ([], 0, 0.0)
    assert snapshot["armed"] == []
    assert snapshot["memory"]["budget_bytes"] == 2 << 30
    assert [(disk["path"], disk["role"]) for disk in snapshot["disks"]] == [(str(folder / "data"), "root")]
    assert snapshot["compaction"] == {
        "enabled": False,
        "died": False,
        "queued": 0,
        "running": None,
        "paused": False,
        "done": 0,
        "failed": 0,
    }
    told = snapshot["notifications"]
    assert told == {"receivers": 0, "waiting": 0, "sent": 0, "failed": 0, "dropped": 0}
    assert snapshot["events"] == {"lines_dropped": 0, "lines_unwritten": 0, "by_name": {"something": 2}}


def test_the_state_follows_the_life_of_the_daemon(config: Path, events: EventLog) -> None:
    daemon, stop = Daemon(load_config(config), events), threading.Event()
    assert (daemon.snapshots.take()["state"], daemon.snapshots.take()["endpoints"]) == ("starting", [])
    daemon.snapshots.starting("kernels")
    assert daemon.snapshots.take()["waits_for"] == "kernels"
    daemon.snapshots.serve(("ipc:///in.sock",), "http://127.0.0.1:8790/", stop)
    assert "waits_for" not in daemon.snapshots.take()
    assert (daemon.snapshots.take()["state"], daemon.snapshots.take()["endpoints"]) == (
        "serving",
        ["ipc:///in.sock"],
    )
    stop.set()
    assert daemon.snapshots.take()["state"] == "draining"


def test_an_acquisition_that_waits_for_room_is_the_state_until_the_daemon_ends(
    config: Path, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, stop = Daemon(load_config(config), events), threading.Event()
    daemon.snapshots.serve((), None, stop)
    server = daemon.snapshots._server
    ingest, running = server.snapshot(), [{"state": "running"}]
    monkeypatch.setattr(server, "snapshot", lambda: {**ingest, "acquisitions": running})
    assert daemon.snapshots.take()["state"] == "serving"
    running.append({"state": "disk_full"})
    assert daemon.snapshots.take()["state"] == "disk_full"
    stop.set()
    assert daemon.snapshots.take()["state"] == "draining"


def test_another_low_water_is_told_after_the_next_look(tmp_path: Path) -> None:
    disks = DiskSpace([(tmp_path, "root")], 7, lambda: 0)
    disks.set_low_water(9)
    disks.look()
    assert [disk["low_water_bytes"] for disk in disks.snapshot()] == [9]


def test_disks_tell_their_room_and_a_folder_that_is_gone_tells_none(tmp_path: Path) -> None:
    disks = DiskSpace([(tmp_path, "root"), (tmp_path / "gone", "spill")], 7, lambda: 0)
    stop = threading.Event()
    stop.set()
    disks.run(stop)
    root, spill = disks.snapshot()
    facts = os.statvfs(tmp_path)
    assert (root["path"], root["role"], root["low_water_bytes"]) == (str(tmp_path), "root", 7)
    assert root["total_bytes"] == facts.f_blocks * facts.f_frsize
    assert 0 < root["free_bytes"] <= root["total_bytes"]
    assert (spill["role"], spill["free_bytes"], spill["total_bytes"]) == ("spill", None, None)


def test_a_disk_that_goes_has_no_room_any_more(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    disks = DiskSpace([(tmp_path / "disk", "root")], 7, lambda: 0)
    disks.look()
    assert disks.snapshot()[0]["free_bytes"] > 0
    (tmp_path / "disk").rmdir()
    disks.look()
    assert (disks.snapshot()[0]["free_bytes"], disks.snapshot()[0]["total_bytes"]) == (None, None)


def test_of_a_disk_that_does_not_answer_nothing_is_known_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spill").mkdir()
    disks = DiskSpace([(tmp_path, "root"), (tmp_path / "spill", "spill")], 7, lambda: 0)
    disks.look()
    asked, answered, statvfs = threading.Event(), threading.Event(), os.statvfs

    def hang(path: Path) -> os.statvfs_result:
        asked.set()
        answered.wait()
        return statvfs(path)

    monkeypatch.setattr(disks_module.os, "statvfs", hang)
    looking = threading.Thread(target=disks.look)
    looking.start()
    try:
        asked.wait()
        assert None not in [disk["free_bytes"] for disk in disks.snapshot()], "it may still answer"
        monkeypatch.setattr(disks_module, "SILENT_S", 0.0)
        root, spill = disks.snapshot()
        assert (root["free_bytes"], root["total_bytes"]) == (None, None)
        assert spill["free_bytes"] is not None
    finally:
        answered.set()
        looking.join()
    assert None not in [disk["free_bytes"] for disk in disks.snapshot()]


class FillingDisk:
    """The time and what is stored, as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.stored = 0
        monkeypatch.setattr(disks_module.time, "monotonic", lambda: self.now_s)

    def look(self, disks: DiskSpace, after_s: float, stored: int) -> dict[str, Any]:
        self.now_s, self.stored = self.now_s + after_s, stored
        disks.look()
        return disks.snapshot()[0]


def test_a_disk_is_full_after_its_room_over_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its room does meanwhile; a folder that is gone has no such time."""
    clock = FillingDisk(monkeypatch)
    disks = DiskSpace([(tmp_path, "root"), (tmp_path / "gone", "spill")], 7, lambda: clock.stored)
    assert clock.look(disks, 0, 0)["full_in_s"] is None
    assert clock.look(disks, 4, 10**8)["full_in_s"] is None, "too early to say"
    for second in range(3, 300):
        seen = clock.look(disks, 2, 10**8 * second)
    assert seen["full_in_s"] == pytest.approx(seen["free_bytes"] / (10**8 / 2))
    assert disks.snapshot()[1]["full_in_s"] is None
    assert len(disks._stored) <= disks_module.RATE_SPAN_S / 2 + 2


def test_a_rate_that_was_is_forgotten_after_the_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FillingDisk(monkeypatch)
    disks = DiskSpace([(tmp_path, "root")], 7, lambda: clock.stored)
    clock.look(disks, 0, 0)
    seen = clock.look(disks, 30, 3 * 10**9)
    assert seen["full_in_s"] == pytest.approx(seen["free_bytes"] / 10**8)
    for _ in range(round(disks_module.RATE_SPAN_S / 2) + 1):
        seen = clock.look(disks, 2, 3 * 10**9)
    assert seen["full_in_s"] is None
