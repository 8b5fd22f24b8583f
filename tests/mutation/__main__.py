"""``./tools/prove mutants``: every mutant against the suite that must catch it. Exit code 0 when none
survived.

First each suite runs on the writer as it is, and must pass. ``--write`` puts the table, with what this run
found, into MUTANTS.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .mutants import MUTANTS, SUITES, Mutant
from .run import Outcome, run_suite, try_mutant

TABLE = Path(__file__).parent / "MUTANTS.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/prove mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutant (may be given again)")
    parser.add_argument(
        "--suite", action="append", choices=sorted(SUITES), help="mutants of this suite (may be given again)"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write MUTANTS.md; keeps what it says of mutants that were not run",
    )
    options = parser.parse_args()
    chosen = [
        m
        for m in MUTANTS
        if (not options.only or m.name in options.only) and (not options.suite or m.suite in options.suite)
    ]
    summary: dict[str, Any] = {"suites": {}, "mutants": {}, "survivors": []}
    sound = set()
    for suite in sorted({mutant.suite for mutant in chosen}):
        outcome = run_suite(SUITES[suite])
        say(
            f"{suite} as it is",
            "passes" if outcome.code == 0 else f"FAILS WITHOUT ANY MUTANT (exit code {outcome.code})",
            outcome,
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
        say(mutant.name, verdict, outcome)
        summary["mutants"][mutant.name] = {
            "suite": mutant.suite,
            "verdict": verdict,
            "seconds": outcome.seconds,
        }
        if not outcome.caught:
            summary["survivors"].append(mutant.name)
    if options.write:
        TABLE.write_text(table(summary["mutants"], written_before()), encoding="utf-8")
    print(json.dumps(summary, indent=2))
    return 1 if summary["survivors"] else 0


def say(what: str, verdict: str, outcome: Outcome) -> None:
    print(f"{outcome.seconds:7.1f} s  {what}: {verdict}", file=sys.stderr, flush=True)
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
    return {row[0].strip("`"): row[3] for row in rows if len(row) == 4}


def table(found: dict[str, Any], before: dict[str, str]) -> str:
    lines = [
        "# Mutants",
        "",
        (
            "Written by `./tools/prove mutants --write` from `mutants.py`: what is taken out of the writer, the "  # noqa: E501
            "suite that must fail then, and what"
        ),
        "the last run of each found. `not run` stands where nobody has tried it since it was added.",
        "",
        "| Mutant | Taken out | Suite | Last run |",
        "|---|---|---|---|",
    ]
    lines += [
        row(mutant, found.get(mutant.name, {}).get("verdict", before.get(mutant.name, "not run")))
        for mutant in MUTANTS
    ]
    return "\n".join(lines) + "\n"


def row(mutant: Mutant, verdict: str) -> str:
    return f"| `{mutant.name}` | {mutant.removes} | {mutant.suite} | {verdict} |"


if __name__ == "__main__":
    sys.exit(main())
