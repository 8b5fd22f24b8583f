"""The command line of tools/bench."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import chart, contest, record, run, table
from .cases import SCENES, Case, overload, steps, throughput
from .cases import latency as latency_part
from .peers import CONTENDERS, REPACKERS
from .record import Record, RecordError
from .testbed import Places, empty_places

DESCRIPTION = """Writers compared on the same frames, layout and codec, final sync counted.

tools/bench record    all comparisons and parts, appended to benchmarks/RECORD.jsonl; --list, --only
tools/bench chart     draw the chart of the newest record, and renew the READMEs' tables
tools/bench latency   how long append takes; small: 20,000 frames a second; cameras: four at once;
                      overload: a camera that is faster than the codec; fair: a slow one beside it;
                      flat: after a million frames; prediction: check --measure against the rate then
                      held; reading: of a finished store; seen: from append to another process;
                      plates: many images of a few frames; opening: create and close beside syncs;
                      kernel: frames to encoded chunks on one core, beside the Blosc libraries;
                      scaling: on 1, 2, 4, 8 and 16 cores;
                      start: from the start of a process until create returns, cold and warm;
                      steps: of a bluesky run (extra bluesky)
tools/bench compact   ways to repack a store
"""
APART = {"steps": steps}  # parts that no record has
FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "bench"


def parser_of(command: str, description: str | None, sizes: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"tools/bench {command}", description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help=sizes)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    folder = "where to write; its folder `work` is emptied first"
    parser.add_argument("--folder", type=Path, default=FOLDER, help=folder)
    return parser


def compare(arguments: Sequence[str], command: str, known: dict[str, str], description: str | None) -> int:
    """tools/bench and tools/bench compact. Exits with 1 when a contender failed."""
    parser = parser_of(command, description, "64 frames and 2 rounds instead of 256 and 5")
    names = f"repeatable; of {', '.join(known)}"
    parser.add_argument("--only", action="append", choices=list(known), metavar="NAME", help=names)
    parser.add_argument("--rounds", type=int, help="timed rounds of each contender")
    parser.add_argument("--frames", type=int, help="frames of a round, a multiple of 64")
    parser.add_argument("--scene", choices=SCENES, default="spots", help="see benchmarks/cases/__init__.py")
    threads = "compressing threads of each peer and floor, processes of jobs; our writers choose themselves"
    parser.add_argument("--threads", type=int, default=2, help=threads)
    if known is CONTENDERS:
        parser.add_argument("--cname", choices=["lz4", "zstd", "none"], default="lz4")
        parser.add_argument("--clevel", type=int, default=1)
        parser.add_argument("--shuffle", choices=["noshuffle", "shuffle", "bitshuffle"], default="shuffle")
    options = parser.parse_args(arguments)
    frames = options.frames or (64 if options.quick else 256)
    rounds = options.rounds or (2 if options.quick else 5)
    codec = {name: vars(options)[name] for name in ("cname", "clevel", "shuffle") if name in options}
    case = Case(frames=frames, scene=options.scene, threads=options.threads, **codec)
    taking_part = contest.entries(options.only or list(known), case, known)
    rows = [result.row() for result in contest.compare(taking_part, rounds, options.folder / "work")]
    if options.json:
        print(json.dumps({"case": json.loads(case.to_json()), "rounds": rounds, "rows": rows}))
    else:
        size = f"{frames} frames of 2048 x 2048 uint16 ({case.raw_bytes / 1e9:.2f} GB)"
        counted = "live" if known is REPACKERS else "raw"
        print(f"\n{size} a round, scene {case.scene}, {rounds} rounds; GB/s of {counted} bytes\n")
        print(table.table(rows, throughput.COLUMNS))
    return 1 if any("error" in row for row in rows) else 0


def places_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    parser = parser_of(command, description, "a trial at a fraction of the size; no measurement")
    memory = "a folder on a tmpfs, for the cases without a disk"
    parser.add_argument("--memory-folder", type=Path, default=Path("/dev/shm"), help=memory)
    return parser


def within_places(options: argparse.Namespace, measure: Callable[[Places], Any]) -> Any:
    """Ends the program where the folder in memory is on a disk."""
    if run.filesystem_of(options.memory_folder) not in ("tmpfs", "ramfs"):
        raise SystemExit(
            f"tools/bench: --memory-folder {options.memory_folder} is on a disk; name a folder on a tmpfs"
        )
    with empty_places(options.folder / "work", options.memory_folder / "shardwright-bench") as places:
        return measure(places)


def part(arguments: Sequence[str], command: str) -> int:
    """One part by itself, without a record."""
    module = {**run.PARTS, **APART}[command]
    parser = places_parser(command, module.__doc__)
    if command == "latency":
        share = "of the sustainable rate, at which the camera sends"
        parser.add_argument("--share", type=float, default=latency_part.SHARE, help=share)
    if command == "overload":
        seconds = f"how long the camera runs under each policy; {overload.SECONDS:g} unless given"
        times = "the camera's rate, in sustainable rates"
        parser.add_argument("--seconds", type=float, help=seconds)
        parser.add_argument("--times", type=float, default=overload.TIMES, help=times)
    options = parser.parse_args(arguments)
    further = {name: vars(options)[name] for name in ("share", "seconds", "times") if name in options}
    found = within_places(options, lambda places: module.measure(places, options.quick, **further))
    if options.json:
        print(json.dumps({"part": command, **found}))
    else:
        print(f"\n{table.part_text(found, module.COLUMNS)}")
    return 0


def make_record(arguments: Sequence[str]) -> int:
    """Exits with 1 when something failed."""
    parser = places_parser("record", "All comparisons and parts, appended to the record.")
    names = throughput.names_to_choose(record.PARTS)
    only = "repeatable: a case, CASE/SCENE/PLACE, or a part"
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=only)
    parser.add_argument("--list", action="store_true", help="print the names that --only takes, and stop")
    again = "take over from the last record all that is not run now: one record in several pieces"
    parser.add_argument("--continue", action="store_true", dest="goes_on", help=again)
    to = "the record to append to; only with the default are chart and READMEs renewed"
    parser.add_argument("--to", type=Path, default=record.PATH, help=to)
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(names))
        return 0
    last = last_to_continue(options.to, options.quick) if options.goes_on else None
    comparisons = throughput.chosen_comparisons(options.only)
    parts = [name for name in record.PARTS if options.only is None or name in options.only]
    made: Record = within_places(
        options, lambda places: run.make_record(comparisons, parts, places, quick=options.quick)
    )
    if last is not None:
        made = record.joined(last, made)
    record.append(made, options.to)
    if options.to == record.PATH and not made.quick:
        renew(record.PATH, chart.PATH)
    print(made.model_dump_json() if options.json else table.text(made))
    found = (*made.comparisons.values(), *made.parts.values())
    return 1 if any("error" in one for group in found for one in (group, *group["rows"])) else 0


def last_to_continue(path: Path, quick: bool) -> Record:
    """Ends the program where there is none, or it is of another commit: before anything is measured."""
    try:
        last = record.load(path)[-1]
    except (RecordError, IndexError) as error:
        raise SystemExit(f"tools/bench record --continue: no record to continue: {error}") from error
    if (last.commit, last.dirty, last.quick) != (*run.commit(), quick):
        raise SystemExit(
            "tools/bench record --continue: the last record is of another commit or size; "
            "begin a new one without --continue"
        )
    return last


def renew(source: Path, target: Path) -> None:
    """Draws the chart of the newest whole record; writes the READMEs' tables where both paths are the
    checked-in ones. Raises ``RecordError``."""
    target.write_text(chart.draw(record.newest(source)), encoding="utf-8")
    if (source, target) == (record.PATH, chart.PATH):
        table.renew()


def draw_chart(arguments: Sequence[str]) -> int:
    said = "Draws the chart of the newest whole record, and renews the READMEs' tables."
    parser = argparse.ArgumentParser("tools/bench chart", description=said)
    parser.add_argument("--record", type=Path, default=record.PATH, help="the record to draw")
    parser.add_argument("--to", type=Path, default=chart.PATH, help="the SVG")
    options = parser.parse_args(arguments)
    try:
        renew(options.record, options.to)
    except RecordError as error:
        raise SystemExit(f"tools/bench chart: {error}") from error
    print(options.to)
    return 0


def main(arguments: Sequence[str]) -> int:
    command, rest = "".join(arguments[:1]), arguments[1:]
    if command in run.PARTS or command in APART:
        return part(rest, command)
    if command == "record":
        return make_record(rest)
    if command == "chart":
        return draw_chart(rest)
    if command == "compact":
        return compare(rest, command, REPACKERS, "One acquired store made gapless by several means.")
    return compare(arguments, "", CONTENDERS, DESCRIPTION)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
