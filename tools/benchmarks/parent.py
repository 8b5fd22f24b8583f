"""Runs the contenders: one process each, frames drawn once, rounds interleaved so that a slow minute of the machine hits everyone."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .case import Case

SAMPLE_INTERVAL_S = 0.02
TOOLS = Path(__file__).resolve().parents[1]


@dataclass
class Result:
    """One contender's measurements; a list entry is one timed round. ``memory_bytes`` is the peak of what cannot be reclaimed, frames left out."""

    name: str
    kind: str
    planned_memory_bytes: int | None
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    stored_bytes: int = 0
    memory_bytes: int = 0
    error: str | None = None


class Child:
    """A contender's process, seen from here."""

    def __init__(self, name: str, case: Case, frames: Path, folder: Path) -> None:
        self._log = (folder.parent / f"{name}.log").open("w+", encoding="utf-8")
        arguments = [sys.executable, "-m", "benchmarks.child", name, str(frames), str(folder), case.to_json()]
        self._process = subprocess.Popen(arguments, cwd=TOOLS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self._rounds = 0
        try:
            ready = self._answer()
        except BaseException:
            self.close()
            raise
        self._pids: list[int] = ready["pids"]
        self._frames_held_bytes: int = ready["frames_held_bytes"]
        self.result = Result(name, ready["kind"], ready["planned_memory_bytes"])

    def round(self, timed: bool) -> None:
        """One round; the first, which warms up, is not timed."""
        self._rounds += 1
        cpu_before = self._cpu_seconds()
        self._say("round")
        answer = self._answer(self._sample_memory)
        self.result.stored_bytes = answer["stored_bytes"]
        if timed:
            self.result.seconds.append(answer["seconds"])
            self.result.cpu_seconds.append(self._cpu_seconds() - cpu_before)

    def verify(self) -> None:
        self._say("verify")
        self._answer()

    def close(self) -> None:
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

    def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, "name": f"round-{self._rounds}"}) + "\n")
        self._process.stdin.flush()

    def _answer(self, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not selector.select(SAMPLE_INTERVAL_S):
                meanwhile()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError("".join(self._log.readlines()[-8:]).strip() or "the process ended without a word")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def _sample_memory(self) -> None:
        held = unreclaimable_bytes(self._pids[0]) - self._frames_held_bytes
        self.result.memory_bytes = max(self.result.memory_bytes, held)

    def _cpu_seconds(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids)


def unreclaimable_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process; pages of files are the page cache's and not counted."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def frames_file(case: Case) -> Iterator[Path]:
    """The distinct frames, drawn once, in memory that every child can read."""
    with tempfile.NamedTemporaryFile(prefix="shardwright-frames-", dir="/dev/shm") as file:
        case.draw().tofile(file)
        file.flush()
        yield Path(file.name)


def compare(names: list[str], case: Case, rounds: int, folder: Path, say: Callable[[str], None]) -> list[Result]:
    """Every contender's result, in the order of ``names``. One that fails says so in its result and does not stop the others."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    results = {name: Result(name, "", None) for name in names}
    children: dict[str, Child] = {}

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (whatever breaks a peer is its result)
            results[name].error = str(error)
            say(f"{name} failed: {error}")
            if name in children:
                children.pop(name).close()

    def close_all() -> None:
        for child in children.values():
            child.close()

    def start(name: str, frames: Path) -> None:
        child = children[name] = Child(name, case, frames, folder / name)
        results[name] = child.result
        child.round(timed=False)
        child.verify()

    with frames_file(case) as frames, ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(close_all)
        for name in names:
            say(f"warming up and verifying {name}")
            attempt(name, partial(start, name, frames))
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name, child in list(children.items()):
                attempt(name, partial(child.round, timed=True))
    return list(results.values())
