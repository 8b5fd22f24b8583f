"""Runs the contenders: one process each, frames drawn once, rounds interleaved so that a slow minute of the
machine hits everyone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .cases import Case
from .processes import JsonProcess, cpu_seconds, unreclaimable_bytes

CPU_TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # what the kernel counts in: less shows as nothing at all
QUIET_S, MOST_QUIET_WAIT_S = 0.3, 20.0


@dataclass(frozen=True)
class Entry:
    """Who takes part: ``contender`` writes ``case``, and is called ``label`` in what is reported; in no more
    than ``most_rounds``."""

    label: str
    contender: str
    case: Case
    most_rounds: int | None = None


@dataclass
class Result:
    """One contender's measurements; a list entry is one timed round. ``memory_bytes`` is the peak of what
    cannot be reclaimed, frames left out."""

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

    def __init__(self, entry: Entry, frames: Path, folder: Path) -> None:
        arguments = [entry.contender, str(frames), str(folder), entry.case.to_json()]
        self._process = JsonProcess("benchmarks.child", arguments, folder.parent / f"{folder.name}.log")
        self._rounds = 0
        self._pids: list[int] = []
        self._frames_held_bytes = 0
        self.result = Result(entry.label, "", None)

    def wait_until_ready(self) -> None:
        """Imported, compiled, its daemon up. Several may get ready at the same time."""
        ready = self._process.answer()
        self._pids = ready["pids"]
        self._frames_held_bytes = ready["frames_held_bytes"]
        self.result.kind, self.result.planned_memory_bytes = ready["kind"], ready["planned_memory_bytes"]

    def round(self, timed: bool) -> None:
        """One round; the first, which warms up, is not timed. What it wrote stays until ``clear``."""
        self._rounds += 1
        cpu_before = self._cpu_seconds()
        answer = self._process.ask({"do": "round", "name": self._name}, self._sample_memory)
        self.result.stored_bytes = answer["stored_bytes"]
        if timed:
            self.result.seconds.append(answer["seconds"])
            self.result.cpu_seconds.append(max(self._cpu_seconds() - cpu_before, CPU_TICK_S))

    def verify(self) -> None:
        self._process.ask({"do": "verify", "name": self._name})

    def clear(self) -> None:
        """Delete what was written and wait until the disk has nothing left to do, so that the next one starts
        on a quiet machine."""
        self._process.ask({"do": "clear", "name": self._name})

    def close(self) -> None:
        self._process.close()

    @property
    def _name(self) -> str:
        return f"round-{self._rounds}"

    def _sample_memory(self) -> None:
        held = unreclaimable_bytes(self._pids[0]) - self._frames_held_bytes
        self.result.memory_bytes = max(self.result.memory_bytes, held)

    def _cpu_seconds(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids)


@contextmanager
def frames_file(case: Case) -> Iterator[Path]:
    """The distinct frames, drawn once, in memory that every child can read."""
    with tempfile.NamedTemporaryFile(prefix="shardwright-frames-", dir="/dev/shm") as file:
        case.draw().tofile(file)
        file.flush()
        yield Path(file.name)


def entries(names: Sequence[str], case: Case) -> list[Entry]:
    """Contenders that all write the same case, called by their own names."""
    return [Entry(name, name, case) for name in names]


def wait_until_quiet(folder: Path) -> None:
    """Until the disk below ``folder`` does nothing any more: a filesystem goes on discarding what was deleted
    long after a sync, and the next contender would pay for the one before. Not for ever: somebody else may be
    using it."""
    device = folder.stat().st_dev
    counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    give_up_s = time.monotonic() + MOST_QUIET_WAIT_S
    seen, since_s = "", time.monotonic()
    while counters.exists() and time.monotonic() < give_up_s and time.monotonic() - since_s < QUIET_S:
        now = counters.read_text()
        if now != seen:
            seen, since_s = now, time.monotonic()
        time.sleep(0.05)


class _Contest:
    """Children by label, and what became of each: one that fails leaves, says so in its result, and does not
    stop the others."""

    def __init__(self, taking_part: Sequence[Entry], folder: Path, say: Callable[[str], None]) -> None:
        self.children: dict[str, Child] = {}
        self.results = {entry.label: Result(entry.label, "", None) for entry in taking_part}
        self._taking_part = taking_part
        self._folder = folder
        self._say = say

    def start(self, frames: Path) -> None:
        self._say(f"starting {len(self._taking_part)} processes")
        for entry in self._taking_part:
            self._attempt(entry.label, partial(self._spawn, entry, frames))
        for label, child in list(self.children.items()):
            self._attempt(label, child.wait_until_ready)
        for label, child in list(self.children.items()):
            self._say(f"warming up and verifying {label}")
            self._attempt(label, partial(self._warm_up, child))

    def round(self, number: int, rounds: int) -> None:
        """The order turns from round to round: whoever comes after a slow one is never the same."""
        self._say(f"round {number + 1} of {rounds}")
        labels = [
            one.label
            for one in self._taking_part
            if one.label in self.children and number < (one.most_rounds or rounds)
        ]
        first = number % max(1, len(labels))
        for label in labels[first:] + labels[:first]:
            self._attempt(label, partial(self._timed_round, self.children[label]))

    def close(self) -> None:
        for child in self.children.values():
            child.close()

    def _spawn(self, entry: Entry, frames: Path) -> None:
        child = self.children[entry.label] = Child(entry, frames, self._folder / entry.label)
        self.results[entry.label] = child.result

    @staticmethod
    def _warm_up(child: Child) -> None:
        child.round(timed=False)
        child.verify()
        child.clear()

    def _timed_round(self, child: Child) -> None:
        wait_until_quiet(self._folder)
        child.round(timed=True)
        child.clear()

    def _attempt(self, label: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (whatever breaks a peer is its result)
            self.results[label].error = str(error).replace(str(self._folder), "FOLDER")
            self._say(f"{label} failed: {error}")
            if label in self.children:
                self.children.pop(label).close()


def compare(
    taking_part: Sequence[Entry], rounds: int, folder: Path, say: Callable[[str], None]
) -> list[Result]:
    """Every contender's result, in the order given."""
    case = taking_part[0].case
    assert all(entry.case.pixels == case.pixels for entry in taking_part), "they all write the same frames"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    contest = _Contest(taking_part, folder, say)
    with frames_file(case) as frames, ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(contest.close)
        contest.start(frames)
        for number in range(rounds):
            contest.round(number, rounds)
    return list(contest.results.values())
