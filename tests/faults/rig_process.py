"""The judge's end of a rig: starts the process, hands it scenarios, keeps every claim, and tells how it
ended."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from .scenario import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .scenario import Scenario

ROOT = Path(__file__).parents[2]
SILENCE_S = 90.0  # the first start may compile the kernels; after it only a hang is silent for so long


class Rig:
    """One process for many scenarios; when one killed it, the next starts another. A context manager that
    leaves no process behind.

    ``under``: a command that the process is started with (strace). ``environment`` is added to this process's
    own.
    """

    def __init__(self, under: Sequence[str] = (), environment: dict[str, str] | None = None) -> None:
        self._under = list(under)
        self._environment = {**os.environ, **(environment or {})}
        self._environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), str(ROOT / "src"), self._environment.get("PYTHONPATH", "")]
        )
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run(self, scenario: Scenario) -> Outcome:
        self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(scenario.to_line() + "\n")
        self._process.stdin.flush()
        outcome = Outcome()
        while (line := self._next_line()) != "done\n":
            if line is None:
                self._end(outcome)
                break
            outcome.take(line)
        return outcome

    @property
    def pid(self) -> int:
        self._start()
        assert self._process is not None
        return self._process.pid

    def _start(self) -> None:
        if self._process is not None:
            return
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the process)
        command = [*self._under, sys.executable, "-m", "tests.faults.rig"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        self._lines = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        if self._next_line() is None:
            outcome = Outcome()
            self._end(outcome)
            raise AssertionError(f"the rig did not start:\n{outcome.trace}")

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _next_line(self) -> str | None:
        try:
            return self._lines.get(timeout=SILENCE_S)
        except queue.Empty:
            assert self._process is not None
            os.killpg(self._process.pid, signal.SIGABRT)  # faulthandler tells where it hangs
            return None

    def _end(self, outcome: Outcome) -> None:
        assert self._process is not None
        code = self._process.wait(SILENCE_S)
        self._errors.seek(0)
        outcome.death, outcome.trace = -code, self._errors.read()
        self._close()

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
