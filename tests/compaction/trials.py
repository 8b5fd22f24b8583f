"""One job, one moment, one misfortune: what is left is judged, the job is run again, and judged again.

killed     SIGKILL at a storage call; and once more in the run that goes on
failing    an I/O error at a storage call, or at it and all after it, also those of clearing up
full       no block free on the filesystem from a storage call on
changed    bytes of a working file, or of the source, become others while a shard is packed
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.disk import failpoints

from .jobs import run_and_die, run_job
from .judge import finished_shards, judge_end, judge_moment
from .stores import Ground, shards_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.filler import Filler
    from tests.harness.fork_server import ForkServer

_CLEAR_ERRORS = {"storage", "storage_full"}


@dataclass
class Tally:
    """``ended``: how many trials, by misfortune and whether the job came to its end in spite of it."""

    trials: int = 0
    deaths: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def add(self, what: str, problems: list[str], *, how: str) -> None:
        self.trials += 1
        self.ended[how] = self.ended.get(how, 0) + 1
        for problem in problems:
            print(f"VIOLATION {what}: {problem}", file=sys.stderr, flush=True)
            self.violations.append(f"{what}: {problem}")


def every(count: int, of: int) -> range:
    """About ``count`` storage calls out of ``of``, from all over the job; 0: all."""
    return range(1, of + 1, max(1, of // count) if count else 1)


def last_of_each(points: list[str]) -> list[int]:
    """The last storage call of each kind."""
    return sorted({point: number for number, point in enumerate(points, 1)}.values())


class Trials:
    """Trials of one job. ``folder`` must lie on the filesystem that is to be tried."""

    def __init__(self, ground: Ground, folder: Path, tally: Tally) -> None:
        self._ground = ground
        self._folder = folder
        self._tally = tally
        self._numbers = itertools.count()

    def killed(self, server: ForkServer, call: int, *, then: int = 0) -> None:
        """``then``: the storage call of the second run at which that is killed as well, if it gets so far."""
        what = f"{self._ground.job} killed at {self._point(call)}" + (
            f", then at call {then}" if then else ""
        )
        with self._fresh() as (folder, old):
            problems: list[str] = []
            finished: dict[tuple[int, int], str] = {}
            for each in filter(None, (call, then)):
                child = server.start(run_and_die, self._ground.job, folder, each)
                said = child.drain()
                died = child.wait() == -signal.SIGKILL
                self._tally.deaths += died
                if not died and not (each == then and said and said[0][1]["ok"]):
                    problems.append(f"it was to be killed, but: {said}")
                problems += judge_moment(self._ground, folder)
                finished |= finished_shards(self._ground, folder, old)
            self._tally.add(what, problems + self._again(folder, finished), how="killed")

    def failing(self, call: int, *, for_ever: bool) -> None:
        def fail(number: int, _point: str) -> None:
            if number == call or (for_ever and number > call):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        self._disturbed(
            f"I/O error {'from' if for_ever else 'at'} {self._point(call)}", "failing", fail, lambda: None
        )

    def full(self, call: int, filler: Filler) -> None:
        def fill(number: int, _point: str) -> None:
            if number == call:
                filler.fill()

        self._disturbed(f"no room from {self._point(call)} on", "full", fill, filler.release)

    def _disturbed(
        self, what: str, how: str, at_call: Callable[[int, str], None], restore: Callable[[], None]
    ) -> None:
        with self._fresh() as (folder, old):
            _, report = run_job(self._ground.job, folder, at_call)
            restore()
            problems = judge_moment(self._ground, folder)
            problems += [
                f"not a clear error: {error}"
                for error in errors_of(report)
                if error.get("code") not in _CLEAR_ERRORS
            ]
            if not report["ok"] and not errors_of(report):
                problems.append(f"not done, and no error says why: {report}")
            problems += self._again(folder, finished_shards(self._ground, folder, old))
            self._tally.add(
                f"{self._ground.job}, {what}", problems, how=f"{how}, {'done' if report['ok'] else 'refused'}"
            )

    def changed(self, point: str, change: Callable[[Path], Callable[[], list[str]]]) -> list[dict[str, Any]]:
        """``change`` is made to the folder when ``point`` is first reached; what it returns says afterwards
        what is wrong. The errors of the job."""
        checks: list[Callable[[], list[str]]] = []
        with self._fresh() as (folder, _):

            def hook() -> None:
                if not checks:
                    checks.append(change(folder))

            failpoints.set_hook(point, hook)
            try:
                _, report = run_job(self._ground.job, folder)
            finally:
                failpoints.set_hook(point, None)
            self._tally.add(
                f"{self._ground.job}, changed at {point}",
                [problem for check in checks for problem in check()],
                how="changed",
            )
            return errors_of(report)

    def _again(self, folder: Path, finished: dict[tuple[int, int], str]) -> list[str]:
        _, report = run_job(self._ground.job, folder)
        if not report["ok"]:
            return [f"run again: {report}"]
        return [f"run again: {problem}" for problem in judge_end(self._ground, folder, finished)]

    def _point(self, call: int) -> str:
        return f"call {call} ({self._ground.points[call - 1]})"

    def _fresh(self) -> _Fresh:
        return _Fresh(self._ground, self._folder / f"{self._ground.job}-{next(self._numbers)}", self._tally)


class _Fresh:
    """A folder as it is before the job, and the files of its shards; gone at the end, unless something was
    wrong: then it is evidence."""

    def __init__(self, ground: Ground, folder: Path, tally: Tally) -> None:
        self._ground = ground
        self._folder = folder
        self._violations, self._before = tally.violations, len(tally.violations)

    def __enter__(self) -> tuple[Path, dict[tuple[int, int], str]]:
        self._ground.lay(self._folder)
        return self._folder, shards_in(self._folder)

    def __exit__(self, *_: object) -> None:
        if len(self._violations) == self._before:
            shutil.rmtree(self._folder)


def errors_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Every error that a job's report tells of, whichever job it was."""
    return list(_errors(report))


def _errors(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "error" in report:
        yield report["error"]
    failures = report.get("failures", [])
    for failure in failures.values() if isinstance(failures, dict) else failures:
        yield failure.get("error", failure)
