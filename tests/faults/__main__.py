"""The fault suites at full length: every storage call, every filesystem, half-minute stalls. ``tools/prove
faults [--json FILE] [pytest arguments]``

Needs root, loop devices, FUSE, and: apt-get install nbdkit nbdfuse fuse3 strace e2fsprogs xfsprogs
btrfs-progs. One line a test as it ends, then a JSON summary: tests by outcome, what was skipped and why,
recorded figures. Exit status 0 only when all passed and none was skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


class Summary:
    """A pytest plugin that keeps how each test ended."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.failed: list[str] = []
        self.figures: dict[str, dict[str, Any]] = {}
        self._started_s = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("/")[-1]
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.skipped:
            self.skipped[name] = (
                str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
            )
        if report.failed:
            self.failed.append(name)
        if report.when == "call" and report.user_properties:
            self.figures[name] = dict(report.user_properties)

    def to_dict(self) -> dict[str, Any]:
        return {
            "suite": "faults",
            "seconds": round(time.monotonic() - self._started_s, 1),
            "outcomes": dict(self.outcomes),
            "failed": self.failed,
            "skipped": self.skipped,
            "figures": self.figures,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/prove faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the summary there")
    options, further = parser.parse_known_args()
    summary = Summary()
    code = pytest.main([str(HERE), "-m", "slow or not slow", "-v", *further], plugins=[summary])
    text = json.dumps(summary.to_dict(), indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    return int(code) or (1 if summary.skipped else 0)


if __name__ == "__main__":
    sys.exit(main())
