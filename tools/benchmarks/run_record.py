"""tools/bench record: runs the table, judges it, appends it to RECORD.jsonl and draws the chart and the
README's digest anew.

Every comparison and part by itself: one that fails is told and does not stop the others. Ctrl-C ends the run
without a record.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from . import chart, record, record_table
from . import table as digest
from .cases.throughput import Comparison, chosen_comparisons, chosen_parts, names_to_choose
from .contest import compare
from .machine import commit, cores_busy, machine_facts, software_versions
from .outcomes import Outcome, outcomes_of, outcomes_of_part, rows_of
from .part_command import PARTS, add_places, places_of, remove
from .record import BUSY_CORES, Machine, Record, RecordError
from .testbed import Places

Say = Callable[[str], None]
Measured = tuple[dict[str, Any], list[Outcome]]  # as the record keeps it, and what it proves
QUICK_FRAMES = 64
QUICK_ROUNDS = 2
NOTES = (
    "Peers write through the page cache and never sync; the bench syncs for them, inside their time.",
    (
        "Floors write no file format, no frame table and no index; the kernel floor takes frames from where "
        "they lie, without a ring."
    ),
    (
        "floor-together: each frame copied into a ring, the kernel, and O_DIRECT to the disk, all at once, with "  # noqa: E501
        "nothing handed from one to the next."
    ),
    (
        "chucky is not among them: no registry of Python, Node or Rust packages has that writer (the package of "  # noqa: E501
        "this name on PyPI is another project)."
    ),
)


def parse(arguments: list[str], folder: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench record", description="The whole table, appended to the record."
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=names_to_choose(),
        metavar="NAME",
        help="repeatable: a case, CASE/SCENE/PLACE, or a part",
    )
    parser.add_argument("--list", action="store_true", help="print the names that --only takes, and stop")
    parser.add_argument(
        "--continue",
        action="store_true",
        dest="goes_on",
        help="take over from the last record what is not run now: one record in several pieces",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a trial of everything at a fraction of the size; no measurement"
    )
    add_places(parser, folder)
    parser.add_argument(
        "--to",
        type=Path,
        default=record.PATH,
        help="the record to append to; only with the default are chart and README renewed",
    )
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str], folder: Path) -> int:
    """Exits with 1 when something failed; a figure that is not reached is no failure."""
    options = parse(arguments, folder)
    if options.list:
        print("\n".join(names_to_choose()))
        return 0
    last = last_to_go_on_with(options) if options.goes_on else None
    made = run(options, lambda text: print(text, file=sys.stderr, flush=True))
    if last is not None:
        made = record.joined(last, made)
    record.append(made, options.to)
    if options.to == record.PATH and not made.quick:
        chart.draw_newest()
        digest.renew()
    print(made.model_dump_json() if options.json else record_table.text(made))
    failed = [
        row
        for part in (*made.comparisons.values(), *made.parts.values())
        for row in part.get("rows", [])
        if "error" in row
    ]
    return 1 if failed or any("error" in part for part in made.parts.values()) else 0


def last_to_go_on_with(options: argparse.Namespace) -> Record:
    """Asked for before anything is measured. Ends the program where there is none, or it is of another
    commit."""
    try:
        last = record.load(options.to)[-1]
    except (RecordError, IndexError) as error:
        raise SystemExit(f"tools/bench record --continue: there is nothing to go on with: {error}") from error
    if (last.commit, last.dirty, last.quick) != (*commit(), options.quick):
        raise SystemExit(
            "tools/bench record --continue: the last record is of another commit or size; "
            "begin a new one without --continue"
        )
    return last


def run(options: argparse.Namespace, say: Say) -> Record:
    comparisons, parts, outcomes = {}, {}, []
    head, dirty = commit()
    places = places_of(options)
    try:
        facts = machine_facts(places.disk)
        for comparison in chosen_comparisons(options.only):
            kept, found = timed(
                comparison.name, partial(compared, comparison, places, options.quick, say), say
            )
            comparisons[comparison.name] = kept
            outcomes += found
        for part in chosen_parts(options.only):
            try:
                parts[part], _ = timed(part, partial(measured_part, part, places, options.quick, say), say)
            except Exception as error:  # noqa: BLE001  (an hour of other measurements must not be lost with it)
                parts[part] = {
                    "rows": [],
                    "error": str(error)
                    .replace(str(places.disk), "FOLDER")
                    .replace(str(places.memory), "FOLDER"),
                }
                say(f"{part} failed: {error}")
            outcomes += outcomes_of_part(part, parts[part]["rows"])
    finally:
        remove(places)
    return Record(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=head,
        dirty=dirty,
        machine=Machine.model_validate(facts),
        software=software_versions(),
        quick=options.quick,
        comparisons=comparisons,
        parts=parts,
        outcomes=[outcome.to_dict() for outcome in outcomes],
        notes=list(NOTES),
    )


def timed(name: str, run_it: Callable[[], Measured], say: Say) -> Measured:
    """What it returns, with how long it took and what else the machine was doing just before:
    ``cores_busy_before``, 0 where it was idle."""
    say(f"--- {name}")
    busy, begin_s = cores_busy(), time.monotonic()
    if busy > BUSY_CORES:
        say(f"the machine is not idle: {busy:.2f} cores are busy with something else")
    kept, found = run_it()
    return {"took_s": round(time.monotonic() - begin_s), "cores_busy_before": round(busy, 2), **kept}, found


def measured_part(part: str, places: Places, quick: bool, say: Say) -> Measured:
    return PARTS[part][0](places, quick, say), []


def compared(comparison: Comparison, places: Places, quick: bool, say: Say) -> Measured:
    """One comparison as the record keeps it, and what it proves."""
    folder = places.disk if comparison.place == "disk" else places.memory
    taking_part = comparison.entries(QUICK_FRAMES if quick else None)
    rounds = QUICK_ROUNDS if quick else comparison.rounds
    rows = rows_of(compare(taking_part, rounds, folder / "work", say), taking_part)
    kept = {"rounds": rounds, "case": json.loads(taking_part[0].case.to_json()), "rows": rows}
    return kept, outcomes_of(rows, comparison)
