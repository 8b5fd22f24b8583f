"""A real daemon asked over its control socket, by the client and by the commands."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from shardwright.config.model import CONTROL_SOCKET, DEFAULT_ENDPOINT, Config, Output
from shardwright.model.errors import ProtocolError
from shardwright.service.control_client import RUN_FOLDER, SOCKET_NAME, ControlClient

from .daemon_process import DaemonProcess, run_cli

if TYPE_CHECKING:
    from pathlib import Path


def test_commands_look_where_a_daemon_has_its_socket_by_default(folder: Path) -> None:
    assert Config(output=Output(root=folder)).control_socket_path == str(RUN_FOLDER / SOCKET_NAME)
    assert DEFAULT_ENDPOINT.startswith(f"ipc://{RUN_FOLDER}/")
    assert CONTROL_SOCKET == SOCKET_NAME


def test_a_daemon_is_asked_for_its_status_and_drained(config: Path, folder: Path) -> None:
    with DaemonProcess(config) as daemon:
        ready = daemon.wait_for("ready")
        assert ready["control_socket"] == f"{folder}/control.sock"
        result = run_cli("status", config, "--json")
        assert (result.returncode, result.stderr) == (0, "")
        status = json.loads(result.stdout)
        assert (status["state"], status["pid"], status["acquisitions"]) == ("serving", daemon.process.pid, [])
        with ControlClient(ready["control_socket"], timeout_s=60) as client:
            client.ask("drain")
        assert daemon.wait_for("stopping")["request"] == "drain"
        assert daemon.exit_code() == 0
    assert not (folder / "control.sock").exists()


@pytest.mark.parametrize("arguments", [("status",), ("status", "--json")])
def test_without_a_daemon_commands_say_so_in_one_line(config: Path, arguments: tuple[str, ...]) -> None:
    result = run_cli(*arguments, config)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("shardwright: no daemon answers at ")
    assert result.stderr.count("\n") == 1


def test_a_control_socket_that_another_daemon_serves_is_refused_before_anything_is_begun(config: Path, folder: Path) -> None:
    other = folder / "other.yaml"
    other.write_text(config.read_text().replace("./in.sock", "./other.sock").replace("./data", "./other"))
    (folder / "other").mkdir()
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        result = run_cli("serve", other)
        assert (result.returncode, result.stdout) == (2, "")
        assert "control.socket: " in result.stderr
        assert "is in use" in result.stderr
        assert result.stderr.count("\n") == 1
        assert not (folder / "other.sock.ring").exists()
        assert run_cli("status", config).returncode == 0
        assert daemon.stop() == 0


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


def test_without_a_control_socket_nobody_can_ask(config: Path) -> None:
    config.write_text(config.read_text() + "control: {socket: none}\n")
    with DaemonProcess(config) as daemon:
        assert daemon.wait_for("ready")["control_socket"] is None
        result = run_cli("status", config)
        assert result.returncode == 2
        assert "has no control socket" in result.stderr
        assert daemon.stop() == 0


def test_events_are_told_as_they_were_written(config: Path) -> None:
    with DaemonProcess(config) as daemon:
        ready = daemon.wait_for("ready")
        with ControlClient(ready["control_socket"], timeout_s=60) as client:
            told = client.ask("events")["events"]
            assert [event["event"] for event in told] == [event["event"] for event in daemon.events]
            assert told[-1] == {"number": told[-1]["number"], **ready}
            assert client.ask("events", after=told[-1]["number"])["events"] == []
            for wrong in (-1, "1", True, 1.5, None):
                with pytest.raises(ProtocolError, match="after of a control request is not valid"):
                    client.ask("events", after=wrong)
        assert daemon.stop() == 0
