"""Processes that are driven by lines of JSON, one answer to each command, and the CPU time and memory of a
process."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

SAMPLE_INTERVAL_S = 0.02
ANSWER_LIMIT_S = 300.0  # a writer that hangs is a failure, not a bench that never ends
TOOLS = Path(__file__).resolve().parents[1]


def say(text: str) -> None:
    """Tells the user how far a measurement is."""
    print(text, file=sys.stderr, flush=True)


class ProcessFailedError(RuntimeError):
    """The process ended, answered with an error, or did not answer; the text is the end of its log."""


class JsonProcess:
    """``python -m MODULE ARGUMENTS`` in the folder tools/. Whatever it prints besides its answers goes to
    ``log``. The first answer says that it is ready."""

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
        """Sends a command and waits for its answer. Raises ``ProcessFailedError``."""
        self.send(command)
        return self.answer(meanwhile)

    def send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessFailedError(self._end_of_log()) from None

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
            raise ProcessFailedError(self._end_of_log())
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        """Ends its input, upon which it ends; kills it after a minute. May be called again."""
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

    def _end_of_log(self) -> str:
        self._process.wait()
        self._log.seek(0)
        return "".join(self._log.readlines()[-8:]).strip() or "the process ended without a word"


def open_answers() -> TextIO:
    """Standard output of a driven process, for answers alone: what libraries print goes to the log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def serve(answers: TextIO, ready: dict[str, Any], handle: Callable[[dict[str, Any]], Any]) -> None:
    """The driven process: answers with ``ready``, then each command with what ``handle`` returns of it, until
    its input ends. None is answered as an empty object."""
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(handle(json.loads(line)) or {}), file=answers, flush=True)


@dataclass(frozen=True)
class Usage:
    """The CPU time, user and system, that some processes and their ended children have used so far, and the
    memory that the processes hold now: anonymous and shared. Pages of files belong to the page cache and are
    not counted, but for those of files on a tmpfs."""

    cpu_s: float
    memory_bytes: int

    @classmethod
    def of(cls, pids: list[int]) -> Usage:
        return cls(sum(map(_cpu_s, pids)), sum(map(_memory_bytes, pids)))


def _memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _cpu_s(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
