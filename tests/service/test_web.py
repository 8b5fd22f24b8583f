"""The web process beside a real daemon: it tells what the daemon does, and whatever is done to it, frames go on."""

from __future__ import annotations

import json
import os
import select
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from .daemon_process import DaemonProcess, run_cli
from .web.web_process import ask

if TYPE_CHECKING:
    from pathlib import Path

HTTP = 'http: {enabled: true, listen: "127.0.0.1:*"}\n'


@pytest.fixture
def web_config(config: Path) -> Path:
    config.write_text(config.read_text() + HTTP)
    return config


def port_of(ready: dict[str, Any]) -> int:
    port = urlsplit(ready["status_page"]).port
    assert port is not None
    return port


def status(port: int) -> dict[str, Any]:
    answer = ask(port, "/api/status")
    assert answer.status == 200, answer
    snapshot: dict[str, Any] = json.loads(answer.body)
    return snapshot


def test_the_page_and_its_numbers_are_there_and_end_with_the_daemon(web_config: Path) -> None:
    with DaemonProcess(web_config) as daemon:
        ready = daemon.wait_for("ready")
        page = daemon.wait_for("web_ready")
        assert page["url"] == ready["status_page"]
        port = port_of(ready)
        assert b"<html" in ask(port, "/").body
        endpoint = ready["endpoints"][0]
        assert status(port)["streams"]["cam0"]["frames_received"] == 0
        result = run_cli("camera", "--connect", endpoint, "--name", "x", "--stream", "cam0", "--frames", "21")
        assert result.returncode == 0, result.stderr
        assert status(port)["streams"]["cam0"]["frames_stored"] == 21
        assert daemon.stop() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(page["pid"], 0)


def test_the_page_does_not_outlive_a_daemon_that_is_killed(web_config: Path) -> None:
    with DaemonProcess(web_config) as daemon:
        daemon.wait_for("ready")
        watch = os.pidfd_open(daemon.wait_for("web_ready")["pid"])
        try:
            daemon.process.kill()

            assert select.select([watch], [], [], 30)[0], "it lives on"
        finally:
            os.close(watch)
