"""Where the time of the tests goes: ``./tools/test --all --record-durations`` writes tests/durations.tsv.

One line for each file: its gear (``test``: a part of ``./tools/test``; ``all``: of ``--all`` alone;
``both``), its tests, their seconds in all, those of the longest one, and which of ``./tools/test`` take more
than ``MOST_S``. Seconds are of the clock, with twice as many tests at once as the machine has cores.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .gears import LONG, MOST_S, is_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

TABLE = Path(__file__).parents[1] / "durations.tsv"
COLUMNS = ("file", "gear", "tests", "seconds", "longest_s", "long")


class Row(NamedTuple):
    file: str
    gear: str
    tests: int
    seconds: float
    longest_s: float
    long: tuple[str, ...]  # names of tests, without their parameters


@dataclass
class Recorder:
    """Hears what the tests of a run took, and records it at the end."""

    _seconds: dict[str, float] = field(default_factory=dict)  # by test
    _whole: set[str] = field(default_factory=set)  # tests of --all alone

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # not by its mark: among the keywords of a report are the names of its parameters, too
        self.add(report.nodeid, report.duration, is_whole=is_whole(report.nodeid))

    def pytest_sessionfinish(self) -> None:
        self.write(TABLE)

    def add(self, test: str, seconds: float, *, is_whole: bool) -> None:
        """A part of a test, or all of it."""
        self._seconds[test] = self._seconds.get(test, 0.0) + seconds
        if is_whole:
            self._whole.add(test)

    def write(self, path: Path) -> None:
        tests: dict[str, list[str]] = {}
        for test in self._seconds:
            tests.setdefault(test.partition("::")[0], []).append(test)
        rows = sorted((self._row(file, names) for file, names in tests.items()), key=lambda row: -row.seconds)
        lines = ["\t".join(COLUMNS), *("\t".join(map(str, (*row[:-1], " ".join(row.long)))) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _row(self, file: str, tests: list[str]) -> Row:
        whole = self._whole.intersection(tests)
        long = (test for test in tests if test not in whole and self._seconds[test] > MOST_S)
        return Row(
            file,
            "test" if not whole else "all" if len(whole) == len(tests) else "both",
            len(tests),
            round(sum(self._seconds[test] for test in tests), 1),
            round(max(self._seconds[test] for test in tests), 1),
            tuple(sorted({test.partition("::")[2].partition("[")[0] for test in long})),
        )


def unnamed_long(reports: Iterable[pytest.TestReport]) -> list[str]:
    """A line for each test of more than ``MOST_S`` that ``LONG`` does not name: the longest case of it."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid] += report.duration
    longest: dict[str, float] = {}
    for test, took_s in seconds.items():
        name = test.partition("[")[0]
        longest[name] = max(took_s, longest.get(name, 0.0))
    return [
        f"LONG: {test} took {took_s:.1f} s; above {MOST_S:.0f} s gears.py names it, in WHOLE or in LONG"
        for test, took_s in sorted(longest.items())
        if took_s > MOST_S and test not in LONG
    ]


def read(path: Path = TABLE) -> list[Row]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    assert tuple(head.split("\t")) == COLUMNS
    rows = (line.split("\t") for line in lines)
    return [
        Row(file, gear, int(n), float(s), float(most), tuple(long.split()))
        for file, gear, n, s, most, long in rows
    ]
