"""The daemon of a soak: started, killed, asked over its control socket. Its events are kept in one file a
life."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shardwright.daemon.control_client import ControlClient
from shardwright.model.errors import SessionLostError, TimedOutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .settings import Places

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0  # only so that a hang becomes a failure; a first start compiles the kernels
POLL_S = 0.05


def environment() -> dict[str, str]:
    """Processes that a soak starts import this checkout."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """What ``condition`` returns once that is true."""
    end_s = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end_s, f"waited {seconds:.0f} s for {what}"
        time.sleep(POLL_S)
    return result


class Rig:
    """A context manager that leaves no process behind. ``lives``: how many daemons there were."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.url = ""
        self.web_pid = 0
        self.plan_bytes = 0  # the most memory that the daemon says it will take

    @property
    def pid(self) -> int:
        """0 while there is none."""
        process = self._process
        return 0 if process is None else process.pid

    @property
    def dead(self) -> bool:
        """Whether it has ended by itself: ``stop`` and ``kill`` leave nothing that could be dead."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        self.lives += 1
        command = [
            sys.executable,
            "-m",
            "shardwright.cli",
            "serve",
            str(self._places.config),
            "--log-format",
            "json",
        ]
        with self._file("events").open("wb") as events, self._file("errors").open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdout=events, stderr=errors, env=environment(), start_new_session=True
            )
        facts = wait_for(self._ready, "the daemon to serve")
        self.plan_bytes = facts["ready"]["memory_peak_bytes"]
        self.url, self.web_pid = facts["web_ready"]["url"], facts["web_ready"]["pid"]

    def _file(self, kind: str) -> Path:
        return self._places.work / f"daemon-{self.lives}.{kind}"

    def _ready(self) -> dict[str, dict[str, Any]] | None:
        """Its first events by name, once both processes serve."""
        assert not self.dead, f"the daemon did not start, see {self._file('errors')}"
        try:
            events = self.ask("events")["events"]
        except (SessionLostError, TimedOutError):
            return None
        by_name = {event["event"]: event for event in events}
        return by_name if {"ready", "web_ready"} <= by_name.keys() else None

    def ask(self, do: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """On a connection of its own: whoever asks may be any thread."""
        with ControlClient(self._places.sockets / "control.sock", timeout_s) as client:
            return client.ask(do)

    def status(self) -> dict[str, Any]:
        return self.ask("status")["status"]

    def count(self, *events: str) -> int:
        """How often any of these events has happened in this life of the daemon."""
        counts = self.status()["events"]["by_name"]
        return sum(counts.get(event, 0) for event in events)

    def kill(self) -> None:
        """SIGKILL. Its web process has nobody left to serve for, and goes as well."""
        assert self._process is not None
        web, self.web_pid = Path(f"/proc/{self.web_pid}"), 0
        process, self._process = self._process, None
        process.kill()
        process.wait()
        wait_for(lambda: not web.exists(), "the web process to follow the daemon that was killed")

    def stop(self) -> int:
        """Its exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
