"""``./tools/prove mutants``: every mutant against the suite that must catch it. Exit code 0 when none
survived.

First each suite runs on the code as it is, and must pass. ``--gear test`` tries the mutants that the quicker
gear of the tests catches, ``--suite tests`` those of the rooms around the writer, in seconds each: they name
their tests. ``--write`` puts the table, with what this run found, into MUTANTS.md; with ``--only none`` it
runs nothing and renews the table alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

from tests.harness.gears import ROOT

from .mutant import NAMED, SUITES, Gear, Mutant
from .mutants import MUTANTS
from .run import Outcome, run_suite, try_mutant

TABLE = Path(__file__).parent / "MUTANTS.md"
COLUMNS = ("Mutant", "Room", "Taken out", "Caught by", "Gear", "Definition", "Last run")
NOT_RUN = "not run"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/prove mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutant (may be given again)")
    parser.add_argument(
        "--suite", action="append", choices=sorted(SUITES), help="mutants of this suite (may be given again)"
    )
    parser.add_argument(
        "--room", action="append", choices=sorted({m.room for m in MUTANTS}), help="of this room"
    )
    parser.add_argument(
        "--gear", choices=get_args(Gear), help="as this gear alone tries them (default: as each does)"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write MUTANTS.md; keeps what it says of mutants that were not run now, and are as they were",
    )
    options = parser.parse_args()
    chosen = [
        (gear, tried)
        for m in MUTANTS
        if (not options.only or m.name in options.only)
        and (not options.suite or m.suite in options.suite)
        and (not options.room or m.room in options.room)
        for gear, tried in m.tried_by.items()
        if options.gear in (None, gear)
    ]
    summary: dict[str, Any] = {"suites": {}, "mutants": {}, "survivors": []}
    sound = set()
    for suite in sorted({mutant.suite for _, mutant in chosen}):
        outcome = run_suite(as_it_is(suite, [mutant for _, mutant in chosen]))
        say(
            outcome,
            f"{suite} as it is",
            "passes" if outcome.code == 0 else f"FAILS WITHOUT ANY MUTANT (exit code {outcome.code})",
        )
        summary["suites"][suite] = {"passes": outcome.code == 0, "seconds": outcome.seconds}
        if outcome.code == 0:
            sound.add(suite)
    for gear, mutant in chosen:
        if mutant.suite not in sound:
            summary["survivors"].append(mutant.name)
            continue
        outcome = try_mutant(mutant)
        verdict = verdict_of(outcome)
        say(outcome, mutant.name, verdict, mutant.room, gear)
        found = {"caught_by": mutant.caught_by, "verdict": verdict, "seconds": outcome.seconds}
        summary["mutants"].setdefault(mutant.name, {"room": mutant.room})[gear] = found
        if not outcome.caught:
            summary["survivors"].append(mutant.name)
    if options.write:
        verdicts = {name: f"{by_gear(found)}, {this_run()}" for name, found in summary["mutants"].items()}
        TABLE.write_text(table(verdicts, rows(TABLE.read_text(encoding="utf-8"))), encoding="utf-8")
    print(json.dumps(summary, indent=2))
    return 1 if summary["survivors"] else 0


def as_it_is(suite: str, chosen: list[Mutant]) -> tuple[str, ...]:
    """Returns the command that must pass without a mutant."""
    if suite != NAMED:
        return SUITES[suite]
    tests = {test for mutant in chosen if mutant.suite == suite for test in mutant.options}
    return (*SUITES[suite], *sorted(tests))


def say(outcome: Outcome, what: str, verdict: str, room: str = "", gear: str = "") -> None:
    print(f"{outcome.seconds:7.1f} s  {gear:<4}  {room:<10}  {what}: {verdict}", file=sys.stderr, flush=True)
    if verdict not in ("caught", "passes"):
        print(outcome.tail, file=sys.stderr, flush=True)


def verdict_of(outcome: Outcome) -> str:
    if outcome.caught:
        return "caught"
    if outcome.code == 0:
        return "SURVIVES"
    return f"NOT TRIED ({', '.join(sorted(outcome.mistakes)) or f'exit code {outcome.code}'})"


def by_gear(found: dict[str, Any]) -> str:
    """The verdict of each gear that tried a mutant, such as ``caught by test and all``."""
    gears: dict[str, list[str]] = {}
    for gear in get_args(Gear):
        if gear in found:
            gears.setdefault(found[gear]["verdict"], []).append(gear)
    return "; ".join(f"{verdict} by {' and '.join(names)}" for verdict, names in gears.items())


def this_run() -> str:
    """The commit, with a + where files differ from it, and the day."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return f"{commit}, {time.strftime('%Y-%m-%d', time.gmtime())}"


def rows(text: str) -> list[tuple[str, ...]]:
    """The cells of each mutant in the text of the table."""
    return [tuple(line.strip("| ").split(" | ")) for line in text.splitlines() if line.startswith("| `")]


def table(found: dict[str, str], before: list[tuple[str, ...]]) -> str:
    """``found``: what a run found, by the mutant's name. ``before``: the rows so far."""
    lines = [
        "# Mutants",
        "",
        "Written by `./tools/prove mutants --write` from `mutants.py` and `rooms.py`. A row has what is",
        "taken out of the code, the suite or tests that must fail then, and the gear that has them (`test`",
        "is `./tools/test`, `all` is `./tools/test --all`). Then come a checksum of the mutant's text and of",
        "the names of its tests, and what its last run found: at which commit (`+`: with changes beside it),",
        "on which day. With quick tests beside a long suite both gears try a mutant; `by` names those that",
        "caught it.",
        f"`{NOT_RUN}` stands where nobody has tried the mutant as it is now.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    kept = {row[:1] + row[-2:-1]: row[-1] for row in before}
    for mutant in MUTANTS:
        cells = definition_of(mutant)
        last_run = found.get(mutant.name) or kept.get((cells[0], cells[-1]), NOT_RUN)
        lines.append(f"| {' | '.join((*cells, last_run))} |")
    return "\n".join(lines) + "\n"


def definition_of(mutant: Mutant) -> tuple[str, ...]:
    """The cells of its row but for the last one."""
    return (
        f"`{mutant.name}`",
        mutant.room,
        mutant.removes,
        mutant.caught_by,
        mutant.gear,
        mutant.definition,
    )


if __name__ == "__main__":
    sys.exit(main())
