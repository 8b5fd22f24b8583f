"""Runs the contenders: one process each, frames drawn once, rounds interleaved so that a slow minute of the machine hits everyone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .case import Case
from .json_process import JsonProcess, cpu_seconds, unreclaimable_bytes


@dataclass(frozen=True)
class Entry:
    """Who takes part: ``contender`` writes ``case``, and is called ``label`` in what is reported; in no more than ``most_rounds``."""

    label: str
    contender: str
    case: Case
    most_rounds: int | None = None


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

    def __init__(self, entry: Entry, frames: Path, folder: Path) -> None:
        arguments = [entry.contender, str(frames), str(folder), entry.case.to_json()]
        self._process = JsonProcess("benchmarks.child", arguments, folder.parent / f"{folder.name}.log")
        self._rounds = 0
        try:
            ready = self._process.answer()
        except BaseException:
            self.close()
            raise
        self._pids: list[int] = ready["pids"]
        self._frames_held_bytes: int = ready["frames_held_bytes"]
        self.result = Result(entry.label, ready["kind"], ready["planned_memory_bytes"])

    def round(self, timed: bool) -> None:
        """One round; the first, which warms up, is not timed. What it wrote stays until ``clear``."""
        self._rounds += 1
        cpu_before = self._cpu_seconds()
        answer = self._process.ask({"do": "round", "name": self._name}, self._sample_memory)
        self.result.stored_bytes = answer["stored_bytes"]
        if timed:
            self.result.seconds.append(answer["seconds"])
            self.result.cpu_seconds.append(self._cpu_seconds() - cpu_before)

    def verify(self) -> None:
        self._process.ask({"do": "verify", "name": self._name})

    def clear(self) -> None:
        """Delete what was written and wait until the disk has nothing left to do, so that the next one starts on a quiet machine."""
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


def compare(taking_part: Sequence[Entry], rounds: int, folder: Path, say: Callable[[str], None]) -> list[Result]:
    """Every contender's result, in the order given. One that fails says so in its result and does not stop the others.

    The order turns from round to round: whoever comes after a slow one is never the same.
    """
    case = taking_part[0].case
    assert all(entry.case.pixels == case.pixels for entry in taking_part), "they all write the same frames"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    results = {entry.label: Result(entry.label, "", None) for entry in taking_part}
    children: dict[str, Child] = {}

    def attempt(label: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (whatever breaks a peer is its result)
            results[label].error = str(error).replace(str(folder), "FOLDER")
            say(f"{label} failed: {error}")
            if label in children:
                children.pop(label).close()

    def close_all() -> None:
        for child in children.values():
            child.close()

    def start(entry: Entry, frames: Path) -> None:
        child = children[entry.label] = Child(entry, frames, folder / entry.label)
        results[entry.label] = child.result
        child.round(timed=False)
        child.verify()
        child.clear()

    def timed_round(child: Child) -> None:
        child.round(timed=True)
        child.clear()

    with frames_file(case) as frames, ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(close_all)
        for entry in taking_part:
            say(f"warming up and verifying {entry.label}")
            attempt(entry.label, partial(start, entry, frames))
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            labels = [entry.label for entry in taking_part if entry.label in children and number < (entry.most_rounds or rounds)]
            first = number % max(1, len(labels))
            for label in labels[first:] + labels[:first]:
                attempt(label, partial(timed_round, children[label]))
    return list(results.values())
