"""A real daemon asked over its control socket, by the client and by the commands."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import socket
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess, run_cli, start_cli
from tests.harness.json_process import wait_for
from tests.harness.store_contents import stored

import shardwright as sw
from shardwright.config.model import CONTROL_SOCKET, DEFAULT_ENDPOINT, Config, Output
from shardwright.daemon.control_client import RUN_FOLDER, SOCKET_NAME, ControlClient
from shardwright.model.errors import ProtocolError

if TYPE_CHECKING:
    from pathlib import Path


def test_commands_look_where_a_daemon_has_its_socket_by_default(folder: Path) -> None:
    assert Config(output=Output(root=folder)).control_socket_path == str(RUN_FOLDER / SOCKET_NAME)
    assert DEFAULT_ENDPOINT.startswith(f"ipc://{RUN_FOLDER}/")
    assert CONTROL_SOCKET == SOCKET_NAME


def test_a_daemon_is_asked_for_its_status(daemon: DaemonProcess) -> None:
    assert daemon.ready["control_socket"] == f"{daemon.config.parent}/control.sock"
    result = run_cli("status", daemon.config, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    status = json.loads(result.stdout)
    assert (status["state"], status["pid"], status["acquisitions"]) == ("serving", daemon.process.pid, [])


@pytest.mark.parametrize("arguments", [("status",), ("status", "--json")])
def test_without_a_daemon_commands_say_so_in_one_line(config: Path, arguments: tuple[str, ...]) -> None:
    result = run_cli(*arguments, config)
    assert result.returncode == 1
    if "--json" in arguments:
        assert json.loads(result.stdout)["error"]["code"] == "session_lost"
    else:
        assert result.stdout == ""
    assert result.stderr.startswith("shardwright: no daemon answers at ")
    assert result.stderr.count("\n") == 1


def test_a_control_socket_that_another_daemon_serves_is_refused_before_anything_is_begun(
    daemon: DaemonProcess,
) -> None:
    other = daemon.config.parent / "other.yaml"
    other.write_text(
        daemon.config.read_text().replace("./in.sock", "./other.sock").replace("./data", "./other")
    )
    (daemon.config.parent / "other").mkdir()
    result = run_cli("serve", other)
    assert (result.returncode, result.stdout) == (1, "")
    assert "control.socket: " in result.stderr
    assert "is in use" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (daemon.config.parent / "other.sock.ring").exists()
    assert run_cli("status", daemon.config).returncode == 0


def test_the_control_socket_of_a_killed_daemon_is_replaced(config: Path, folder: Path) -> None:
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        daemon.signal(signal.SIGKILL)
        daemon.exit_code()
    assert (folder / "control.sock").is_socket()
    assert run_cli("status", config).returncode == 1
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        assert run_cli("status", config).returncode == 0
        assert daemon.stop() == 0


def test_a_daemon_without_a_control_socket_cannot_be_asked(config: Path) -> None:
    config.write_text(config.read_text() + "control: {socket: none}\n")
    result = run_cli("status", config)
    assert result.returncode == 2
    assert "has no control socket" in result.stderr


def test_events_are_told_as_they_were_written(daemon: DaemonProcess) -> None:
    with ControlClient(daemon.ready["control_socket"], timeout_s=60) as client:
        told = client.ask("events")["events"]
        written = daemon.events[: len(told)]
        assert told[: len(written)] == [
            {"number": number, **event} for number, event in enumerate(written, 1)
        ]
        assert client.ask("events", after=told[-1]["number"])["events"] == []
        for wrong in (-1, "1", True, 1.5, None):
            with pytest.raises(ProtocolError, match="after of a control request is not valid"):
                client.ask("events", after=wrong)


def test_the_newest_frame_is_shown_to_whoever_asks(daemon: DaemonProcess) -> None:
    with (
        sw.connect(daemon.endpoint) as connection,
        ControlClient(daemon.ready["control_socket"], timeout_s=60) as client,
    ):
        stream = connection.acquire("shown", stream="cam0")
        value = 0
        # the frame after the question is the one that is taken
        while (preview := client.ask("preview", name="shown")["preview"]) is None:
            value += 1
            stream.append(np.full((48, 80), value, np.uint16))
            stream.flush()
        assert (preview["width"], preview["height"], preview["dtype"]) == (80, 48, "uint16")
        pixels = np.frombuffer(base64.b64decode(preview["data"]), "<u2").reshape(48, 80)
        assert (pixels == preview["frame"] + 1).all()
        assert client.ask("preview", stream="cam0")["preview"]["width"] == 80
        assert client.ask("preview", name="nobody")["preview"] is None
        for wrong in ({}, {"name": "shown", "stream": "cam0"}, {"name": 1}, {"stream": None}):
            with pytest.raises(ProtocolError):
                client.ask("preview", **wrong)
        with pytest.raises(sw.errors.UnknownStreamError):
            client.ask("preview", stream="cam7")
        stream.close()


def bother(path: str, over: threading.Event) -> None:
    """A client that asks without end and reads no answer, one after another."""
    request = json.dumps({"version": 1, "do": "status"}).encode() + b"\n"
    while not over.is_set():
        with socket.socket(socket.AF_UNIX) as flood, contextlib.suppress(OSError):
            flood.settimeout(1.0)
            flood.connect(path)
            while not over.is_set():
                flood.sendall(request * 100)


def test_clients_that_hang_flood_or_talk_nonsense_cost_no_frame_and_no_answer(daemon: DaemonProcess) -> None:
    path, over = daemon.ready["control_socket"], threading.Event()
    floods = [threading.Thread(target=bother, args=(path, over)) for _ in range(3)]
    with contextlib.ExitStack() as others:
        for first_words in (b"", b'{"version": 1, "do"', b"\xff\x00GET / HTTP/1.1\r\n\r\n", b"x" * 70_000):
            client = others.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(path)
            with contextlib.suppress(OSError):
                client.sendall(first_words)
        half = others.enter_context(socket.socket(socket.AF_UNIX))
        half.connect(path)
        half.shutdown(socket.SHUT_WR)
        for thread in floods:
            thread.start()
        try:
            camera = run_cli(
                "camera",
                "--connect",
                daemon.endpoint,
                "--name",
                "bothered",
                "--stream",
                "cam0",
                "--frames",
                "500",
                "--json",
            )
            assert json.loads(camera.stdout)["frames_durable"] == 500
            with ControlClient(path, timeout_s=60) as client_that_waits:
                assert client_that_waits.ask("status")["status"]["streams"]["cam0"]["frames_lost"] == 0
        finally:
            over.set()
            for thread in floods:
                thread.join()


def test_an_acquisition_is_stopped_sealed_and_its_client_told_while_others_go_on(
    daemon: DaemonProcess,
) -> None:
    frame = np.zeros((48, 80), np.uint16)
    with sw.connect(daemon.endpoint) as connection:
        stopped, other = (connection.acquire(name, stream="cam0") for name in ("stopped", "other"))
        for stream in (stopped, other):
            for _ in range(10):
                stream.append(frame)
            stream.flush()
        listed = json.loads(run_cli("list", "--daemon", daemon.config, "--json").stdout)["acquisitions"]
        assert [(one["name"], one["frames_stored"]) for one in listed] == [("stopped", 10), ("other", 10)]
        assert "stopped" in run_cli("list", "--daemon", daemon.config).stdout

        result = run_cli("stop", "stopped", daemon.config)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == (
            f"stopped is sealed: 10 frames are stored in {daemon.config.parent}/data/stopped.ome.zarr\n"
        )
        with pytest.raises(sw.errors.SessionLostError, match="stopped on request"):
            stopped.close()
        assert stopped.receipt.frames_durable == 10

        again = run_cli("stop", "stopped", daemon.config)
        assert (again.returncode, again.stdout) == (1, "")
        assert again.stderr.startswith("shardwright: no acquisition of this name is open; got stopped")
        assert run_cli("stop", "../stopped", daemon.config).returncode == 1
        other.append(frame)
        other.close()
        assert other.receipt.frames_stored == 11
    # its client has the receipt before the daemon forgets it
    wait_for(lambda: run_cli("list", "--daemon", daemon.config).stdout == "no acquisition is open\n")
    assert stored(daemon.config.parent / "data" / "stopped.ome.zarr").shape == (10, 48, 80)


def test_a_drained_daemon_is_watched_to_its_end_seals_what_is_open_and_exits_with_0(
    config: Path, folder: Path
) -> None:
    with DaemonProcess(config) as daemon:
        ready = daemon.wait_for("ready")
        endpoint, path = ready["endpoints"][0], ready["control_socket"]
        connection = sw.connect(endpoint, reconnect_timeout_ms=0)
        stream = connection.acquire("open", stream="cam0")
        stream.append(np.zeros((48, 80), np.uint16))
        stream.flush()
        command = ["status", "--watch", "--interval", "0.1", "--socket", path]
        with start_cli(*command, "--json") as lines, start_cli(*command) as tables:
            assert lines.stdout is not None
            assert tables.stdout is not None
            uptimes = [json.loads(lines.stdout.readline())["uptime_s"] for _ in range(3)]
            assert uptimes == sorted(set(uptimes))
            assert any(line.split() == ["state", "serving"] for line in tables.stdout)
            result = run_cli("drain", config)
            assert (result.returncode, result.stderr) == (0, "")
            pid = daemon.process.pid
            assert result.stdout == (
                f"process {pid} is draining; 1 acquisition to seal\nprocess {pid} has ended\n"
            )
            assert daemon.exit_code() == 0
            assert "no daemon answers" in lines.communicate()[1]
            assert lines.returncode == 1
            assert any("no daemon answers" in line for line in tables.stdout)
            tables.send_signal(signal.SIGINT)
            tables.communicate()
            assert tables.returncode == 0
        assert daemon.rest()[-1] == "stopped"
        with pytest.raises(sw.errors.ShardwrightError):
            connection.close()
    assert stored(folder / "data" / "open.ome.zarr").shape == (1, 48, 80)
    assert not (folder / "control.sock").exists()
