"""``./tools/prove integrations``: other projects' own suites over our doors, in the releases that a door
names, and apart from these in the newest ones. Exit code 0 when a pinned release fails in nothing but its
listed exceptions, and as many tests pass as the table of the doors says.

The suites and environments are installed below ``.cache`` by pip.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.cached_environment import CannotInstallError
from tests.harness.json_process import ROOT

from .bluesky import suite as ophyd_async
from .micromanager import suite as pymmcore_plus
from .ome_writers import suite as ome_writers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from .suite_run import SuiteRun

# A door: PROJECT, PINNED, RUNS, release_of(newest=) -> SourceRelease, run(over, newest=) -> SuiteRun.
DOORS: dict[str, ModuleType] = {door.PROJECT: door for door in (ome_writers, pymmcore_plus, ophyd_async)}
TABLE = ROOT / "src/shardwright/integrations/README.md"


def rows() -> dict[tuple[str, str], tuple[str, str]]:
    """Returns the table of the doors: version, and how many of its tests pass, by project and door."""
    found = re.findall(r"(?m)^\| ([\w-]+) \| ([\d.]+) \| ([^|]+) \| ([\d,]+ of [\d,]+) \|", TABLE.read_text())
    return {(project, over): (version, passed) for project, version, over, passed in found}


def row_of(run: SuiteRun) -> tuple[str, str]:
    return run.version, f"{run.passed} of {len(run.tests)}"


def problems_of(run: SuiteRun) -> list[str]:
    """Returns what a run of a pinned release breaks: its own problems, and a table that says otherwise."""
    said = rows().get((run.project, run.over))
    wrong = [] if said == row_of(run) else [f"{TABLE.name} says {said}, found {row_of(run)}"]
    return [*run.problems, *wrong]


def runs_of(door: ModuleType, *, newest: bool) -> list[SuiteRun]:
    """Returns the runs of a release; none of a newest one that is the pinned one. Raises
    ``CannotInstallError``."""
    if newest and door.release_of(newest=True).version == door.PINNED["version"]:
        print(f"{door.PROJECT}: the newest release is the pinned one")
        return []
    return [door.run(over, newest=newest) for over in door.RUNS]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/prove integrations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=DOORS, action="append", help="this door alone (may be repeated)")
    parser.add_argument("--pinned", action="store_true", help="leave out the newest releases")
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args(arguments)
    told, failed = [], False
    for name in options.only or DOORS:
        for newest in (False,) if options.pinned else (False, True):
            try:
                runs = runs_of(DOORS[name], newest=newest)
            except CannotInstallError as error:
                which = "newest" if newest else "pinned"
                print(f"\x1b[1;31mNOT TESTED: {name}, {which}: pip cannot install it here: {error}\x1b[0m")
                failed |= not newest
                continue
            for run in runs:
                problems = run.problems if newest else problems_of(run)
                failed |= bool(problems) and not newest
                told.append({**run.to_dict(), "newest": newest, "problems": problems})
                which = ", newest" if newest else ""
                print(f"{name} {run.version}{which}, {run.over}: {row_of(run)[1]} pass")
                for test in sorted(run.exceptions.keys() & run.failed.keys()):
                    print(f"    expected: {test}: {run.exceptions[test].reason}")
                for problem in problems:
                    print(f"    {problem}")
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
