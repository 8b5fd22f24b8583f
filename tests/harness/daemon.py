"""A daemon in a process of its own, as ``shardwright serve`` starts it, and the commands that are run against
it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

CLI = (sys.executable, "-m", "shardwright.cli")
TIMEOUT_S = 120  # the kernels may have to be compiled first


def run_cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)


class DaemonProcess:
    """Started by the constructor; ``wait_for`` reads events. A context manager that leaves no process
    behind."""

    def __init__(
        self,
        config: Path,
        *,
        sabotage: str = "",
        environment: dict[str, str] | None = None,
        read: bool = True,
    ) -> None:
        """``sabotage`` is Python that runs in the daemon's process before the daemon does; ``environment`` is
        added to this process's own; with ``read`` False nobody reads its events."""
        run = f"import sys\n{sabotage}\nfrom shardwright.cli.app import main\nmain(sys.argv[1:])"
        command = [sys.executable, "-c", run, "serve", str(config), "--log-format", "json"]
        environment = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        if read:
            self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next event of this name."""
        while True:
            line = self._lines.get(timeout=TIMEOUT_S)
            assert line is not None, f"the daemon ended without {event}: {self.events}"
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def rest(self) -> list[str]:
        """The names of all events up to the end of the process."""
        while (line := self._lines.get(timeout=TIMEOUT_S)) is not None:
            self.events.append(json.loads(line))
        return [event["event"] for event in self.events]

    def errors(self) -> str:
        """What stands on standard error, once the process has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def exit_code(self) -> int:
        return self.process.wait(timeout=TIMEOUT_S)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.exit_code()

    def __enter__(self) -> DaemonProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._reader.ident is not None:
            self._reader.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


def bring_back(config: Path) -> None:
    """The next start, and the end that seals what it has taken up."""
    with DaemonProcess(config) as daemon:
        for path in daemon.wait_for("ready")["unfinished"]:
            assert daemon.wait_for("acquisition_recovered")["path"] == path
        assert daemon.stop() == 0
