"""The judge's end of a faulty writer: starts the process, hands it scenarios, keeps every claim, and tells
how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Self

from tests.harness.json_process import JsonProcess, environment
from tests.harness.python import start_python

from .scenario import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .scenario import Scenario

SILENCE_S = 90.0  # the first start may compile the kernels; after it only a hang is silent for so long


class WriterProcess:
    """One process for many scenarios; when one killed it, the next starts another. A context manager that
    leaves no process behind.

    ``under``: a command that the process is started with (strace). ``more`` is added to this process's own
    environment.
    """

    def __init__(self, under: Sequence[str] = (), more: Mapping[str, str] | None = None) -> None:
        self._under = under
        self._environment = environment(more)
        self._said: JsonProcess | None = None

    def run(self, scenario: Scenario) -> Outcome:
        self._start()
        assert self._said is not None
        self._said.tell(scenario.to_line())
        outcome = Outcome()
        while (claims := self._next()) != {"done": True}:
            if claims is None:
                self._end(outcome)
                break
            outcome.take(claims)
        return outcome

    @property
    def pid(self) -> int:
        self._start()
        assert self._said is not None
        return self._said.process.pid

    def _start(self) -> None:
        if self._said is not None:
            return
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the process)
        command = ("-m", "tests.faults.faulty_writer")
        pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": self._errors}
        options: dict[str, Any] = {**pipes, "env": self._environment, "start_new_session": True}
        self._said = JsonProcess(
            subprocess.Popen([*self._under, sys.executable, *command], text=True, **options)
            if self._under
            else start_python(*command, **options)
        )
        if self._next() is None:
            outcome = Outcome()
            self._end(outcome)
            raise AssertionError(f"the writer did not start:\n{outcome.trace}")

    def _next(self) -> dict[str, Any] | None:
        assert self._said is not None
        try:
            return self._said.next(SILENCE_S)
        except TimeoutError:
            os.killpg(self._said.process.pid, signal.SIGABRT)  # faulthandler tells where it hangs
            return None

    def _end(self, outcome: Outcome) -> None:
        assert self._said is not None
        code = self._said.exit_code()
        self._errors.seek(0)
        outcome.death, outcome.trace = -code, self._errors.read()
        self._close()

    def _close(self) -> None:
        said, self._said = self._said, None
        if said is None:
            return
        if said.process.poll() is None:
            os.killpg(said.process.pid, signal.SIGKILL)
        said.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
