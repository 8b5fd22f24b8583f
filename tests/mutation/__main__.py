"""``./tools/prove mutants``: every mutant against the suite that must catch it. Exit code 0 when none
survived.

First each suite runs on the code as it is, and must pass. ``--gear test`` tries the mutants that the quicker
gear of the tests catches, ``--suite tests`` those of the rooms around the writer, in seconds each: they name
their tests. ``--write`` puts the table, with what this run found, into MUTANTS.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, get_args

from .mutant import NAMED, SUITES, Gear, Mutant
from .mutants import MUTANTS
from .run import Outcome, run_suite, try_mutant

TABLE = Path(__file__).parent / "MUTANTS.md"
COLUMNS = ("Mutant", "Room", "Taken out", "Caught by", "Gear", "Last run")


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
    parser.add_argument("--gear", choices=get_args(Gear), help="mutants that this gear is the first to catch")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write MUTANTS.md; keeps what it says of mutants that were not run",
    )
    options = parser.parse_args()
    chosen = [
        m
        for m in MUTANTS
        if (not options.only or m.name in options.only)
        and (not options.suite or m.suite in options.suite)
        and (not options.room or m.room in options.room)
        and options.gear in (None, m.gear)
    ]
    if options.gear == "test":
        chosen = [mutant.by_quick_tests() for mutant in chosen]
    summary: dict[str, Any] = {"suites": {}, "mutants": {}, "survivors": []}
    sound = set()
    for suite in sorted({mutant.suite for mutant in chosen}):
        outcome = run_suite(as_it_is(suite, chosen))
        say(
            outcome,
            f"{suite} as it is",
            "passes" if outcome.code == 0 else f"FAILS WITHOUT ANY MUTANT (exit code {outcome.code})",
        )
        summary["suites"][suite] = {"passes": outcome.code == 0, "seconds": outcome.seconds}
        if outcome.code == 0:
            sound.add(suite)
    for mutant in chosen:
        if mutant.suite not in sound:
            summary["survivors"].append(mutant.name)
            continue
        outcome = try_mutant(mutant)
        verdict = (
            "caught"
            if outcome.caught
            else "SURVIVES"
            if outcome.code == 0
            else (f"NOT TRIED (exit code {outcome.code})")
        )
        say(outcome, mutant.name, verdict, mutant.room, mutant.gear)
        summary["mutants"][mutant.name] = {
            "room": mutant.room,
            "caught_by": mutant.caught_by,
            "gear": mutant.gear,
            "verdict": verdict,
            "seconds": outcome.seconds,
        }
        if not outcome.caught:
            summary["survivors"].append(mutant.name)
    if options.write:
        TABLE.write_text(table(summary["mutants"], written_before()), encoding="utf-8")
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


def written_before() -> dict[str, str]:
    """What the table says of each mutant now."""
    if not TABLE.exists():
        return {}
    rows = [
        line.strip("| ").split(" | ")
        for line in TABLE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[-1] for row in rows if len(row) == len(COLUMNS)}


def table(found: dict[str, Any], before: dict[str, str]) -> str:
    lines = [
        "# Mutants",
        "",
        "Written by `./tools/prove mutants --write` from `mutants.py` and `rooms.py`: what is taken out of",
        "the code, the suite or tests that must fail then, the gear that has them (`test` is `./tools/test`,",
        "`all` is `./tools/test --all`), and what the last run of each found. `not run` stands where",
        "nobody has tried it since it was added.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    lines += [
        row(mutant, found.get(mutant.name, {}).get("verdict", before.get(mutant.name, "not run")))
        for mutant in MUTANTS
    ]
    return "\n".join(lines) + "\n"


def row(mutant: Mutant, verdict: str) -> str:
    cells = f"`{mutant.name}`", mutant.room, mutant.removes, mutant.caught_by, mutant.gear, verdict
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
