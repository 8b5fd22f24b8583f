"""A daemon in a process of its own, as ``shardwright serve`` starts it, and the commands that are run against
it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Self

from shardwright.cli.app import COMMANDS

from .fork_server import ForkServer
from .json_process import TIMEOUT_S, JsonProcess, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .fork_server import Child


CLI = (sys.executable, "-m", "shardwright.cli")


def load_commands() -> None:
    """All that any command imports."""
    for module, _ in COMMANDS.values():
        import_module(module)
    import_module("shardwright.daemon.assemble")


@cache
def commands() -> ForkServer:
    """Whatever runs a command here forks it from this one, which imported and compiled everything once."""
    return ForkServer(prepare="tests.harness.daemon:load_commands")


def run_cli(*arguments: str | Path, first: str = "") -> subprocess.CompletedProcess[str]:
    """``shardwright`` to its end. ``first``: Python that runs before it does."""
    child = commands().command(*arguments, first=first)
    output, errors = child.communicate(TIMEOUT_S)
    return subprocess.CompletedProcess(arguments, child.wait(), output, errors)


def camera(endpoint: str, name: str, *options: str) -> dict[str, Any]:
    """``shardwright camera``, to its end: the receipt."""
    result = run_cli("camera", "--connect", endpoint, "--name", name, "--json", *options)
    assert result.returncode == 0, result.stderr
    receipt: dict[str, Any] = json.loads(result.stdout)
    return receipt


class DaemonProcess:
    """Started by the constructor; ``wait_for`` reads events. A context manager that leaves no process
    behind.

    ``events``: those that were read so far.
    """

    def __init__(
        self,
        config: Path,
        *,
        sabotage: str = "",
        more: dict[str, str] | None = None,
        fresh: bool = False,
        read: bool = True,
        output: tuple[IO[bytes], IO[bytes]] | None = None,
    ) -> None:
        """A fork of a process that has imported everything and compiled its kernels; with ``fresh`` or
        ``output`` a Python of its own.

        ``sabotage`` is Python that runs in it before the daemon does; ``more`` is added to its environment.
        With ``read`` False nobody reads its events; ``output``: files that take its events and its errors
        instead.
        """
        self.config = config
        arguments = ("serve", str(config), "--log-format", "json")
        first = f"import sys\n{sabotage}\n"
        process: subprocess.Popen[str] | Child
        if fresh or output:
            run = f"{first}from shardwright.cli.app import main\nmain(sys.argv[1:])"
            events, errors = output or (subprocess.PIPE, subprocess.PIPE)
            process = subprocess.Popen(
                [sys.executable, "-c", run, *arguments],
                stdout=events,
                stderr=errors,
                text=True,
                env=environment(more),
            )
        else:
            process = commands().command(*arguments, first=first, more=more)
        self._said = JsonProcess(process, read=read and output is None)
        self.process = process
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
