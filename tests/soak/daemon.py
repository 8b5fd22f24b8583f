"""The daemon of a soak, one after another: started, killed, asked over its control socket. The events of each
life are kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.harness.daemon import DaemonProcess
from tests.harness.json_process import wait_for

from shardwright.daemon.control_client import ControlClient
from shardwright.model.errors import SessionLostError, TimedOutError

if TYPE_CHECKING:
    from .settings import Places

OWN_SESSION = "import os; os.setsid()"  # Ctrl-C is for the soak alone


class SoakDaemon:
    """A context manager that leaves no process behind. ``lives``: how many daemons there were."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._daemon: DaemonProcess | None = None
        self.lives = 0
        self.url = ""
        self.web_pid = 0
        self.plan_bytes = 0  # the most memory that the daemon says it will take

    @property
    def pid(self) -> int:
        """0 while there is none."""
        daemon = self._daemon
        return 0 if daemon is None else daemon.process.pid

    @property
    def dead(self) -> bool:
        """Whether it has ended by itself: ``stop`` and ``kill`` leave nothing that could be dead."""
        return self._daemon is not None and self._daemon.process.poll() is not None

    def start(self) -> None:
        self.lives += 1
        with self._file("events").open("wb") as events, self._file("errors").open("wb") as errors:
            self._daemon = DaemonProcess(self._places.config, sabotage=OWN_SESSION, output=(events, errors))
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
        assert self._daemon is not None
        web, self.web_pid = Path(f"/proc/{self.web_pid}"), 0
        daemon, self._daemon = self._daemon, None
        daemon.kill()
        wait_for(lambda: not web.exists(), "the web process to follow the daemon that was killed")

    def stop(self) -> int:
        """Its exit code."""
        assert self._daemon is not None
        daemon, self._daemon = self._daemon, None
        return daemon.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemon is not None:
            self._daemon.__exit__()
            self._daemon = None
