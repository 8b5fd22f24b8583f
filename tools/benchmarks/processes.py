"""A process of the bench that is driven by lines of JSON, one answer a command; and what the kernel says of a
process: CPU time and memory."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAMPLE_INTERVAL_S = 0.02
ANSWER_LIMIT_S = 300.0  # a writer that hangs is a failure, not a bench that never ends
TOOLS = Path(__file__).resolve().parents[1]


class ProcessFailedError(RuntimeError):
    """The process ended, answered with an error, or did not answer; the text is the end of what it
    printed."""


class JsonProcess:
    """``python -m MODULE ARGUMENTS`` in the folder tools/. Whatever it prints besides its answers goes to
    ``log``."""

    def __init__(self, module: str, arguments: list[str], log: Path) -> None:
        self._log = log.open("w+", encoding="utf-8")
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(
            command, cwd=TOOLS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, command: dict[str, Any], meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Send and wait. Raises ``ProcessFailedError``."""
        self.say(command)
        return self.answer(meanwhile)

    def say(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessFailedError(self._last_words()) from None

    def answer(self, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The next answer; ``meanwhile`` is called every ``SAMPLE_INTERVAL_S`` until it comes."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not selector.select(SAMPLE_INTERVAL_S):
                if time.monotonic() > deadline_s:
                    self._process.kill()
                    raise ProcessFailedError(f"no answer within {ANSWER_LIMIT_S:.0f} s")
                meanwhile()
        line = self._process.stdout.readline()
        if not line:
            raise ProcessFailedError(self._last_words())
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        """End its input, on which it ends by itself; a process that does not is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        return "".join(self._log.readlines()[-8:]).strip() or "the process ended without a word"


def unreclaimable_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process; pages of files are the page cache's and not counted (those of
    files on a tmpfs are)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
