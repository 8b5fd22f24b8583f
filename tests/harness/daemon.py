"""A daemon in a process of its own, as ``shardwright serve`` starts it, and the commands that are run against
it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from .json_process import TIMEOUT_S, JsonProcess, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLI = (sys.executable, "-m", "shardwright.cli")


def run_cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment()
    )


def camera(endpoint: str, name: str, *options: str) -> dict[str, Any]:
    """``shardwright camera``, to its end: the receipt."""
    result = run_cli("camera", "--connect", endpoint, "--name", name, "--json", *options)
    assert result.returncode == 0, result.stderr
    receipt: dict[str, Any] = json.loads(result.stdout)
    return receipt


class DaemonProcess:
    """Started by the constructor; ``wait_for`` reads events. A context manager that leaves no process
    behind.

    ``events``: those that were read so far. ``sabotage`` is Python that runs in the daemon's process before
    the daemon does.
    """

    def __init__(
        self,
        config: Path,
        *,
        sabotage: str = "",
        environment: dict[str, str] | None = None,
        read: bool = True,
        evidence: Path | None = None,
    ) -> None:
        """``environment`` is added to this process's own. With ``read`` False nobody reads its events; with
        ``evidence`` they and its errors are kept in files, PATH.events and PATH.errors, instead."""
        self.config = config
        run = f"import sys\n{sabotage}\nfrom shardwright.cli.app import main\nmain(sys.argv[1:])"
        command = [sys.executable, "-c", run, "serve", str(config), "--log-format", "json"]
        if evidence is None:
            self._said = JsonProcess(command, more=environment, read=read, stdin=None, stderr=subprocess.PIPE)
        else:
            with (
                evidence.with_suffix(".events").open("wb") as events,
                evidence.with_suffix(".errors").open("wb") as errors,
            ):
                self._said = JsonProcess(
                    command, more=environment, read=False, stdin=None, stdout=events, stderr=errors
                )
        self.process = self._said.process
        self.events = self._said.lines

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next event of this name."""
        while (said := self._said.next()) is not None:
            if said["event"] == event:
                return said
        raise AssertionError(f"the daemon ended without {event}: {self.events}")

    @property
    def ready(self) -> dict[str, Any]:
        """Its event of that name, waited for if it was not heard yet."""
        heard = next((event for event in self.events if event["event"] == "ready"), None)
        return heard or self.wait_for("ready")

    @property
    def endpoint(self) -> str:
        """The first of them; waits until it is served."""
        endpoint: str = self.ready["endpoints"][0]
        return endpoint

    def signal(self, number: signal.Signals) -> None:
        self._said.signal(number)

    def rest(self) -> list[str]:
        """The names of all events up to the end of the process."""
        return [event["event"] for event in self._said.rest()]

    def errors(self) -> str:
        """What stands on standard error, once the process has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def exit_code(self) -> int:
        return self._said.exit_code()

    def kill(self) -> None:
        """SIGKILL; returns once it is gone."""
        self.process.kill()
        assert self.exit_code() == -signal.SIGKILL

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.exit_code()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._said.close()


@contextmanager
def serving(config: Path) -> Iterator[DaemonProcess]:
    """A daemon that is ready to answer, and must stop cleanly at the end."""
    with DaemonProcess(config) as daemon:
        assert daemon.ready
        yield daemon
        assert daemon.stop() == 0, daemon.errors()


def bring_back(config: Path) -> None:
    """The next start, and the end that seals what it has taken up."""
    with DaemonProcess(config) as daemon:
        for path in daemon.ready["unfinished"]:
            assert daemon.wait_for("acquisition_recovered")["path"] == path
        assert daemon.stop() == 0
