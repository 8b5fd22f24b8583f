"""The notify protocol between a real daemon and a real Unix datagram socket, as systemd has one; and what
SIGHUP takes over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.daemon import DaemonProcess
from tests.harness.json_process import wait_for

import shardwright as sw
from shardwright.daemon.service_manager import (
    Manager,
    NotifySocket,
    ServiceManager,
    status_text,
    take_manager,
)
from shardwright.model.errors import SessionLostError
from shardwright.simulate.photons import PhotonFrames

from .notify_listener import NotifyListener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE = PhotonFrames((48, 80), seed=5)
# A service has no terminal: its SIGHUP asks for a reload.
NO_TERMINAL = "import os; os.setsid()"
# Whoever gets to the point waits there while the gate is closed.
HOLD = """
import pathlib, time
from shardwright.disk.failpoints import set_hook
gate = pathlib.Path({gate!r})
def hold():
    while gate.exists():
        gate.with_name("held").touch()
        time.sleep(0.02)
set_hook({point!r}, hold)
"""


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, folder: Path) -> Iterator[NotifyListener]:
    with NotifyListener(folder if request.param == "path" else None) as listener:
        yield listener


@pytest.fixture
def manager(folder: Path) -> Iterator[NotifyListener]:
    with NotifyListener(folder) as listener:
        yield listener


def daemon_of(
    manager: NotifyListener, config: Path, *, sabotage: str = "", watchdog_s: float | None = None
) -> DaemonProcess:
    environment = {"NOTIFY_SOCKET": manager.address}
    if watchdog_s is not None:
        environment["WATCHDOG_USEC"] = str(round(watchdog_s * 1e6))
    return DaemonProcess(config, sabotage=f"{NO_TERMINAL}\n{sabotage}", more=environment)


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == 0


class Gate:
    def __init__(self, folder: Path) -> None:
        self.path, self._held = folder / "gate", folder / "held"

    def sabotage(self, point: str) -> str:
        return HOLD.format(gate=str(self.path), point=point)

    def close(self) -> None:
        self.path.touch()

    def wait_until_held(self) -> None:
        wait_for(self._held.exists, "somebody at the gate")

    def open(self) -> None:
        self.path.unlink()


def test_a_life_as_the_manager_hears_it(listener: NotifyListener, config: Path, folder: Path) -> None:
    with daemon_of(listener, config) as daemon:
        ready = listener.wait_for("READY")
        assert connects(folder / "in.sock")
        assert connects(folder / "in.sock.ring")
        assert ready["READY"] == "1"
        assert ready["STATUS"].startswith("serving: 0 acquisitions, 0 frames, disk ")
        assert not any("WATCHDOG" in message or "STOPPING" in message for message in listener.heard)
        daemon.signal(signal.SIGTERM)
        assert listener.wait_for("STOPPING")["STATUS"].startswith("draining: ")
        assert daemon.exit_code() == 0
        later = listener.waiting()
        assert not any("READY" in message or "WATCHDOG" in message for message in later)


def test_ready_waits_for_the_sockets(manager: NotifyListener, config: Path, folder: Path) -> None:
    gate = Gate(folder)
    gate.close()
    slow = (
        "from shardwright.ingest import IngestServer\nbind = IngestServer.bind\nIngestServer.bind = "
        "lambda server: (hold(), bind(server))"
    )
    with daemon_of(manager, config, sabotage=f"{gate.sabotage('never')}\n{slow}") as daemon:
        gate.wait_until_held()
        assert manager.waiting() == []
        gate.open()
        manager.wait_for("READY")
        assert connects(folder / "in.sock")
        assert daemon.stop() == 0


def test_ready_never_comes_from_a_daemon_that_cannot_bind(manager: NotifyListener, config: Path) -> None:
    with DaemonProcess(config) as first:
        first.wait_for("ready")
        with daemon_of(manager, config) as second:
            assert second.exit_code() == 1
        assert not any("READY" in message for message in manager.waiting())
        assert first.stop() == 0


def test_the_status_counts_frames(manager: NotifyListener, config: Path) -> None:
    with daemon_of(manager, config, watchdog_s=0.4) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        with sw.connect(endpoint) as connection, connection.acquire("seen", stream="cam0") as stream:
            for i in range(10):
                stream.append(SOURCE.frame(i))
            status = manager.wait_for(
                lambda message: "1 acquisition, 10 frames" in message.get("STATUS", "")
            )["STATUS"]
            assert "frames/s" in status
            assert "ring " in status
        manager.wait_for(lambda message: "0 acquisitions, 10 frames" in message.get("STATUS", ""))
        assert daemon.stop() == 0


def test_a_stuck_disk_stops_the_watchdog_and_one_that_goes_on_starts_it_again(
    manager: NotifyListener, config: Path, folder: Path
) -> None:
    gate = Gate(folder)
    with daemon_of(manager, config, sabotage=gate.sabotage("sealer.before_commit"), watchdog_s=1) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        manager.wait_for("WATCHDOG")
        with sw.connect(endpoint) as connection, connection.acquire("stuck", stream="cam0") as stream:
            gate.close()
            stream.append(SOURCE.frame(0))
            gate.wait_until_held()
            stuck = daemon.wait_for("stuck_warning")
            assert stuck["stall_s"] >= stuck["limit_s"] == 0.5
            manager.wait_for(lambda message: "a call has taken" in message.get("STATUS", ""))
            # any other call that took long was told of, too: from now on this one does
            time.sleep(stuck["limit_s"])
            manager.waiting()
            manager.next()  # it may have been on its way
            quiet = [manager.next() for _ in range(4)]
            assert all("STATUS" in message and "WATCHDOG" not in message for message in quiet)
            gate.open()
            daemon.wait_for("stuck_no_more")
            manager.wait_for("WATCHDOG")
        assert daemon.stop() == 0


def test_sealing_asks_for_time_until_it_is_stuck(manager: NotifyListener, config: Path, folder: Path) -> None:
    gate = Gate(folder)
    with daemon_of(manager, config, sabotage=gate.sabotage("shard.before_rename"), watchdog_s=2) as daemon:
        connection = sw.connect(daemon.wait_for("ready")["endpoints"][0], reconnect_timeout_ms=0)
        stream = connection.acquire("sealed", stream="cam0")
        stream.append(SOURCE.frame(0))
        stream.flush()  # else the signal might come first, and there is nothing to seal
        gate.close()
        daemon.signal(signal.SIGTERM)
        manager.wait_for("STOPPING")
        assert int(manager.wait_for("EXTEND_TIMEOUT_USEC")["EXTEND_TIMEOUT_USEC"]) >= 10_000_000
        gate.wait_until_held()
        # it asks twice a second while it gets on, which ends after a second
        assert manager.falls_silent(quiet_s=2.5, most=20)
        gate.open()
        assert daemon.exit_code() == 0
        assert not any("WATCHDOG" in message for message in manager.waiting())
        assert "acquisition_ended" in daemon.rest()
        with contextlib.suppress(SessionLostError):  # it may have heard by now that the daemon has stopped
            connection.close()


def reload(manager: NotifyListener, daemon: DaemonProcess) -> str:
    """The result, as the manager hears it."""
    before_usec = time.monotonic_ns() // 1000
    daemon.signal(signal.SIGHUP)
    assert before_usec <= int(manager.wait_for("RELOADING")["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    return manager.wait_for("READY")["STATUS"]


def test_a_reload_takes_over_what_can_change_live_and_names_the_rest(
    manager: NotifyListener, config: Path
) -> None:
    text = config.read_text()
    with daemon_of(manager, config) as daemon:
        manager.wait_for("READY")
        pid = daemon.process.pid
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        assert reload(manager, daemon) == "reloaded: nothing changed"
        live = "log: {level: debug}\ncompaction: {enabled: true, after_s: 0}\n"
        live += "notify: [{events: [disk_low], command: ['true']}]\n"  # which is not
        config.write_text(
            text.replace("2GiB", "3GiB").replace("create: false", "create: false, low_water: 1000TiB") + live
        )
        status = reload(manager, daemon)
        assert status == (
            "reloaded: compaction.after_s, compaction.enabled, log.level, output.low_water "
            "changed; restart needed for memory.budget, notify"
        )
        daemon.wait_for("reloaded")
        told = daemon.wait_for("reloaded")
        assert told["changed"] == [
            "compaction.after_s",
            "compaction.enabled",
            "log.level",
            "output.low_water",
        ]
        assert told["needs_restart"] == ["memory.budget", "notify"]
        with sw.connect(endpoint) as connection, connection.acquire("after", stream="cam0") as stream:
            stream.append(SOURCE.frame(0))
        assert daemon.wait_for("disk_low")["low_water_bytes"] == 1000 << 40
        assert daemon.process.pid == pid
        assert daemon.stop() == 0


def test_a_reload_changes_what_runs(manager: NotifyListener, config: Path) -> None:
    """Lines are left out and told again, and a running acquisition warns by the new limit."""
    text = config.read_text()
    with daemon_of(manager, config) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        with sw.connect(endpoint) as connection, connection.acquire("running", stream="cam0") as stream:
            for i in range(8):  # the first group; the next but one is prepared with the ninth frame
                stream.append(SOURCE.frame(i))
            config.write_text(text + "log: {level: error}\n")
            reload(manager, daemon)
            config.write_text(text.replace("create: false", "create: false, low_water: 1000TiB"))
            reload(manager, daemon)
            for i in range(8, 24):
                stream.append(SOURCE.frame(i))
            assert daemon.wait_for("disk_low")["path"].endswith("running.ome.zarr")
        assert daemon.stop() == 0
        # The first reload was told at level error, so its line is not there; the second one's is, before
        # disk_low or after it: the new limit is in force before the line is told.
        assert daemon.rest().count("reloaded") == 1


def test_a_broken_file_keeps_the_old_configuration_and_says_so(manager: NotifyListener, config: Path) -> None:
    text = config.read_text()
    with daemon_of(manager, config, watchdog_s=0.4) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        manager.wait_for("READY")
        for broken, problem in (
            ("output: [\n", "not YAML"),
            (text + "logg: {}\n", "logg"),
            (text.replace("2GiB", "1MiB"), "memory"),
        ):
            config.write_text(broken)
            status = reload(manager, daemon)
            assert status.startswith("reload refused, the old configuration stays: ")
            assert problem in status
            assert str(config) in daemon.wait_for("reload_failed")["message"]
        manager.wait_for(
            lambda message: "serving" in message.get("STATUS", "") and "reload refused" in message["STATUS"]
        )
        config.write_text(text)
        assert reload(manager, daemon) == "reloaded: nothing changed"
        manager.wait_for(
            lambda message: "serving" in message.get("STATUS", "") and "reload" not in message["STATUS"]
        )
        with sw.connect(endpoint) as connection, connection.acquire("still", stream="cam0") as stream:
            stream.append(SOURCE.frame(0))
        assert daemon.stop() == 0


def test_a_manager_that_is_gone_costs_one_event(config: Path, folder: Path) -> None:
    with DaemonProcess(
        config, more={"NOTIFY_SOCKET": str(folder / "nobody"), "WATCHDOG_USEC": "400000"}
    ) as daemon:
        assert "nobody" not in daemon.wait_for("notify_failed")["error"]
        daemon.wait_for("ready")
        assert daemon.stop() == 0
        assert daemon.rest().count("notify_failed") == 1


def test_variables_are_taken_from_the_environment_so_that_children_do_not_speak() -> None:
    complaints: list[str] = []

    def taken(**variables: str) -> Any:
        environment = {**variables, "HOME": "/x"}
        manager = take_manager(complaints.append, environment)
        assert environment == {"HOME": "/x"}
        if manager is not None:
            manager.socket.close()
        return manager

    assert taken() is None
    assert taken(WATCHDOG_USEC="1000") is None
    assert taken(NOTIFY_SOCKET="/run/x").watchdog_s is None
    assert taken(NOTIFY_SOCKET="@x", WATCHDOG_USEC="1500000").watchdog_s == 1.5
    assert taken(NOTIFY_SOCKET="@x", WATCHDOG_USEC="1500000", WATCHDOG_PID=str(os.getpid())).watchdog_s == 1.5
    assert taken(NOTIFY_SOCKET="@x", WATCHDOG_USEC="1500000", WATCHDOG_PID="1").watchdog_s is None
    assert complaints == []
    assert taken(NOTIFY_SOCKET="vsock:2:1234") is None
    assert taken(NOTIFY_SOCKET="@x", WATCHDOG_USEC="soon").watchdog_s is None
    assert [complaint.split(":")[0] for complaint in complaints] == ["NOTIFY_SOCKET", "WATCHDOG_USEC"]


def test_a_line_break_in_a_value_cannot_pass_for_another_variable(manager: NotifyListener) -> None:
    notify = NotifySocket(manager.address, print)
    notify.send(STATUS="a\nREADY=1")
    notify.close()
    assert manager.next() == {"STATUS": "a READY=1"}


def test_a_long_status_does_not_cost_the_variable_beside_it(manager: NotifyListener) -> None:
    """systemd drops a datagram of more than 4096 bytes whole."""
    notify = NotifySocket(manager.address, print)
    notify.send(WATCHDOG=1, STATUS="\U0001f52c" * 5000)
    notify.close()
    message = manager.next()
    assert message["WATCHDOG"] == "1"
    assert message["STATUS"].endswith("\U0001f52c…")
    assert sum(len(f"{name}={value}\n".encode()) for name, value in message.items()) <= 4096


def test_a_reload_says_nothing_after_stopping(manager: NotifyListener) -> None:
    """A SIGHUP while the daemon is sealing, or one whose disk answers late: a READY then would tell of a life
    that is over."""
    notify = NotifySocket(manager.address, print)
    told = ServiceManager(Manager(notify), lambda: SNAPSHOT, lambda event, facts: None)
    stop, ended = threading.Event(), threading.Event()
    told.reloading()
    for event in (stop, ended):
        event.set()
    told.run(stop, ended)
    told.reloaded("reloaded: nothing changed", "")
    told.reloading()
    notify.close()
    assert [next(iter(message)) for message in manager.waiting()] == ["RELOADING", "STOPPING"]


SNAPSHOT = {
    "state": "draining",
    "acquisitions": [],
    "sums": {"frames_received": 0, "frames_stored": 0, "frames_durable": 0, "shards_sealed": 0},
    "disks": [],
    "stall_s": 0.0,
}


def test_the_status_says_what_is_wrong() -> None:
    disk = {"role": "root", "free_bytes": 1 << 30, "low_water_bytes": 2 << 30}
    snapshot = {
        "state": "serving",
        "acquisitions": [],
        "sums": {"frames_received": 1234},
        "disks": [disk],
        "stall_s": 0.1,
    }
    assert status_text(snapshot) == "serving: 0 acquisitions, 1,234 frames, disk 1.0 GiB free (LOW)"
    gone = {"role": "spill", "free_bytes": None, "low_water_bytes": 1}
    assert status_text({**snapshot, "disks": [gone], "stall_s": 31.2}) == (
        "serving: 0 acquisitions, 1,234 frames, spill disk does not answer, a call has taken 31 s so far"
    )
