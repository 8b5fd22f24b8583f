"""A daemon in a process of its own, as ``shardwright serve`` starts it, and the commands that are run against
it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from subprocess import PIPE
from typing import IO, TYPE_CHECKING, Any, Self

from . import told_events
from .json_process import JsonProcess, environment
from .python import run_python, start_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .fork_server import Child


CLI = (sys.executable, "-m", "shardwright.cli")  # in a Python that is started anew
RUN = """
import sys
{first}
from shardwright.cli.app import main
sys.argv[0] = "shardwright"
main(sys.argv[1:])
"""
# A command's own worker processes are forks, too: each would import all of it again, at idle priority. Those
# that are spawned, as a shell's command has them, are tested in tests/repack.
FORKS_WORKERS = """
import multiprocessing
import warnings
warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*fork")
forks = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda _method=None: forks
"""


def start_cli(
    *arguments: str | Path, first: str = "", more: dict[str, str] | None = None, **options: Any
) -> Child:
    """``shardwright``, to be heard. ``first``: Python that runs before it does; ``more`` is added to its
    environment."""
    code = RUN.format(first=FORKS_WORKERS + first)
    return start_python(
        "-c", code, *arguments, env=environment(more), **{"stdout": PIPE, "stderr": PIPE, **options}
    )


def run_cli(*arguments: str | Path, first: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """``shardwright`` to its end. ``first``: Python that runs before it does."""
    return run_python("-c", RUN.format(first=FORKS_WORKERS + first), *arguments, **options)


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
        process: subprocess.Popen[str] | Child
        if fresh or output:
            events, errors = output or (PIPE, PIPE)
            process = subprocess.Popen(
                [sys.executable, "-c", RUN.format(first=sabotage), *arguments],
                stdout=events,
                stderr=errors,
                text=True,
                env=environment(more),
            )
        else:
            process = start_cli(*arguments, first=sabotage, more=more)
        self._said = JsonProcess(process, read=read and output is None)
        self.process = process
        self.events = self._said.lines

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next event of this name."""
        while (said := self._said.next()) is not None:
            told_events.check(said["event"], said)
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
        for said in self._said.rest():
            told_events.check(said["event"], said)
        return [event["event"] for event in self.events]

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
