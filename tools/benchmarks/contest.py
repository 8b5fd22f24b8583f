"""Contenders in processes of their own, their rounds interleaved so that a slow minute of the machine hits
all of them.

A contender's process (``python -m benchmarks.contest CONTENDER FRAMES FOLDER CASE``) answers

{"do": "round", "name": N}   -> {"seconds": S, "cpu_seconds": C, "stored_bytes": B}   the final sync included
{"do": "verify", "name": N}  -> {}         of the last round's output
{"do": "clear", "name": N}   -> {}         when that is deleted and the sync of it done
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from .cases import Case, emptied, saved
from .peers import CONTENDERS, contender_class, sync_tree
from .processes import JsonProcess, Usage, open_answers, say, serve

CPU_TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # the kernel's unit: less shows as nothing at all
QUIET_S, MOST_QUIET_WAIT_S = 0.3, 20.0


@dataclass(frozen=True)
class Entry:
    """A contender that takes part, in at most ``most_rounds``: the class ``contender``, called ``label`` in
    the results, writes ``case``."""

    label: str
    contender: str
    case: Case
    most_rounds: int | None = None


@dataclass
class Result:
    """One contender's measurements; a list entry is one timed round. ``counted_bytes``: of a round, from
    which speeds are made. ``memory_bytes``: the peak of what cannot be reclaimed, less the bench's frames."""

    name: str
    kind: str = ""
    counted_bytes: int = 0
    planned_memory_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    stored_bytes: int = 0
    memory_bytes: int = 0
    error: str | None = None

    def row(self) -> dict[str, Any]:
        """Medians, spread and rounds as the record keeps them."""
        row: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.error is not None or not self.seconds:
            return {**row, "error": self.error or "no round was timed"}
        gb = self.counted_bytes / 1e9
        cores = (cpu / seconds for cpu, seconds in zip(self.cpu_seconds, self.seconds, strict=True))
        return row | {
            "gb_per_s": _spread(gb / seconds for seconds in self.seconds),
            "cpu_s_per_gb": _spread(seconds / gb for seconds in self.cpu_seconds),
            "cores_used": _kept(median(cores)),
            "memory_bytes": self.memory_bytes,
            "planned_memory_bytes": self.planned_memory_bytes,
            "ratio": _kept(self.counted_bytes / self.stored_bytes),
        }


def _kept(value: float) -> float:
    return float(f"{value:.6g}")


def _spread(values: Iterable[float]) -> dict[str, Any]:
    rounds = list(values)
    rounded = [_kept(value) for value in rounds]
    return {"median": _kept(median(rounds)), "least": min(rounded), "most": max(rounded), "rounds": rounded}


class Child:
    """A contender's process, seen from here. Every method raises ``ProcessFailedError``."""

    def __init__(self, entry: Entry, frames: Path, folder: Path) -> None:
        arguments = [entry.contender, str(frames), str(folder), entry.case.to_json()]
        self._process = JsonProcess("benchmarks.contest", arguments, folder.parent / f"{folder.name}.log")
        self._rounds = 0
        self.pids: list[int] = []
        self._frames_held_bytes = 0
        self.result = Result(entry.label)

    def wait_until_ready(self) -> None:
        """Waits until it is imported, compiled and its daemon up. Several may get ready at the same time."""
        ready = self._process.answer()
        self.pids, self._frames_held_bytes = ready["pids"], ready["frames_held_bytes"]
        self.result.kind, self.result.counted_bytes = ready["kind"], ready["counted_bytes"]
        self.result.planned_memory_bytes = ready["planned_memory_bytes"]

    def warm_up(self) -> None:
        self.round(timed=False)
        self.verify()
        self.clear()

    def timed_round(self, folder: Path) -> None:
        wait_until_quiet(folder)
        self.round(timed=True)
        self.clear()

    def round(self, timed: bool) -> None:
        self._rounds += 1
        answer = self._ask("round", self._sample_memory)
        self.result.stored_bytes = answer["stored_bytes"]
        if timed:
            self.result.seconds.append(answer["seconds"])
            self.result.cpu_seconds.append(max(answer["cpu_seconds"], CPU_TICK_S))

    def verify(self) -> None:
        self._ask("verify")

    def clear(self) -> None:
        """Deletes the output of the round."""
        self._ask("clear")

    def close(self) -> None:
        self._process.close()

    def _ask(self, what: str, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        return self._process.ask({"do": what, "name": f"round-{self._rounds}"}, meanwhile)

    def _sample_memory(self) -> None:
        held = Usage.of(self.pids[:1]).memory_bytes - self._frames_held_bytes
        self.result.memory_bytes = max(self.result.memory_bytes, held)


def entries(names: Sequence[str], case: Case, known: Mapping[str, str] = CONTENDERS) -> list[Entry]:
    """Contenders that all write the same case, called by their own names."""
    return [Entry(name, known[name], case) for name in names]


def compare(
    taking_part: Sequence[Entry], rounds: int, folder: Path, limit_s: float = math.inf
) -> list[Result]:
    """Every contender's result, in the order given. One that fails says so in its result and stops no
    other. After ``limit_s`` nothing more begins: the rounds until then count."""
    case, end_s = taking_part[0].case, time.monotonic() + limit_s
    assert all(entry.case.pixels == case.pixels for entry in taking_part), "they all write the same frames"
    with emptied(folder), saved(case.draw()) as frames, ExitStack() as stack:
        say(f"starting {len(taking_part)} processes")
        children = {
            entry.label: stack.enter_context(closing(Child(entry, frames, folder / entry.label)))
            for entry in taking_part
        }

        def attempt(label: str, action: Callable[[Child], None]) -> None:
            child = children[label]
            try:
                if child.result.error is None and time.monotonic() < end_s:
                    action(child)
            except Exception as error:  # noqa: BLE001  (whatever breaks a contender is its result)
                child.result.error = str(error).replace(str(folder), "FOLDER")
                say(f"{label} failed: {error}")
                child.close()

        for label in children:
            attempt(label, Child.wait_until_ready)
        for label in children:
            say(f"warming up and verifying {label}")
            attempt(label, Child.warm_up)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            labels = [entry.label for entry in taking_part if number < (entry.most_rounds or rounds)]
            first = number % max(1, len(labels))  # the one that comes after a slow one is never the same
            for label in labels[first:] + labels[:first]:
                attempt(label, partial(Child.timed_round, folder=folder))
        return [child.result for child in children.values()]


def wait_until_quiet(folder: Path) -> None:
    """Waits until the disk below ``folder`` is at rest, 20 s at most: a filesystem goes on discarding deleted
    blocks long after a sync, and the next contender would pay for it."""
    device = folder.stat().st_dev
    counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    give_up_s = time.monotonic() + MOST_QUIET_WAIT_S
    seen, since_s = "", time.monotonic()
    while counters.exists() and time.monotonic() < give_up_s and time.monotonic() - since_s < QUIET_S:
        now = counters.read_text()
        if now != seen:
            seen, since_s = now, time.monotonic()
        time.sleep(0.05)


def main() -> None:
    place, frames_path, folder_name, case_json = sys.argv[1:]
    answers, case, folder = open_answers(), Case.from_json(case_json), Path(folder_name)
    folder.mkdir(parents=True)
    if case.cores:  # before any thread: a thread has the cores of the one that began it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: case.cores])
    frames = np.fromfile(frames_path, np.uint16).reshape(case.distinct, *case.shape)
    contender = contender_class(place)(case, frames)

    def handle(command: dict[str, Any]) -> dict[str, Any] | None:
        path = folder / command["name"]
        if command["do"] == "round":
            contender.prepare(path)
            cpu_s, begin_s = Usage.of(contender.processes()).cpu_s, time.perf_counter()
            stored_bytes = contender.write(path)
            if contender.synced:
                sync_tree(folder)
            seconds = time.perf_counter() - begin_s
            cpu_s = Usage.of(contender.processes()).cpu_s - cpu_s
            return {"seconds": seconds, "cpu_seconds": cpu_s, "stored_bytes": stored_bytes}
        if command["do"] == "verify":
            contender.verify(path)
        else:
            for old in folder.iterdir():
                if old.is_dir():  # a daemon keeps files of its own beside its stores
                    shutil.rmtree(old)
            os.sync()
        return None

    contender.start(folder)
    try:
        ready = {
            "kind": contender.kind,
            "pids": contender.processes(),
            "counted_bytes": contender.counted_bytes(),
            "frames_held_bytes": contender.frames_held_bytes(),
            "planned_memory_bytes": contender.planned_memory_bytes(),
        }
        serve(answers, ready, handle)
    finally:
        contender.stop()


if __name__ == "__main__":
    main()
