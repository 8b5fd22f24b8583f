"""tools/bench latency, small, cameras, overload, flat, prediction: one part of the record by itself, without
writing a record."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cases import cameras, flat, latency, overload, prediction, small
from .machine import filesystem_of
from .outcomes import outcomes_of_part
from .testbed import Places

Say = Callable[[str], None]
Measure = Callable[[Places, bool, Say], dict[str, Any]]
PARTS: dict[str, tuple[Measure, Callable[[dict[str, Any]], str], str | None]] = {
    "latency": (latency.measure, latency.text, latency.__doc__),
    "small": (small.measure, small.text, small.__doc__),
    "cameras": (cameras.measure, cameras.text, cameras.__doc__),
    "overload": (overload.measure, overload.text, overload.__doc__),
    "flat": (flat.measure, flat.text, flat.__doc__),
    "prediction": (prediction.measure, prediction.text, prediction.__doc__),
}
MEMORY_FOLDER = Path("/dev/shm")


def parse(part: str, arguments: list[str], folder: Path) -> argparse.Namespace:
    described = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog=f"tools/bench {part}", description=PARTS[part][2], formatter_class=described
    )
    parser.add_argument(
        "--quick", action="store_true", help="a trial at a fraction of the size; no measurement"
    )
    if part == "latency":
        parser.add_argument(
            "--share",
            type=float,
            default=latency.SHARE,
            help="of the sustainable rate, at which the camera sends",
        )
    if part == "overload":
        parser.add_argument(
            "--seconds",
            type=float,
            help=f"how long the camera runs under each policy; {overload.SECONDS:g} unless given",
        )
        parser.add_argument(
            "--times", type=float, default=overload.TIMES, help="the camera's rate, in sustainable rates"
        )
    add_places(parser, folder)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args(arguments)


def add_places(parser: argparse.ArgumentParser, folder: Path) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        default=folder,
        help="where the disk cases write; its folder `record` is emptied first",
    )
    parser.add_argument(
        "--memory-folder",
        type=Path,
        default=MEMORY_FOLDER,
        help="a folder on a tmpfs, for the cases without a disk",
    )


def places_of(options: argparse.Namespace) -> Places:
    """Ends the program where the folder in memory is on a disk."""
    if filesystem_of(options.memory_folder) not in ("tmpfs", "ramfs"):
        raise SystemExit(
            f"tools/bench: --memory-folder {options.memory_folder} is on a disk; name a folder on a tmpfs"
        )
    places = Places(
        (options.folder / "record").resolve(), (options.memory_folder / "shardwright-record").resolve()
    )
    for folder in (places.disk, places.memory):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return places


def remove(places: Places) -> None:
    for folder in (places.disk, places.memory):
        shutil.rmtree(folder, ignore_errors=True)


def main(part: str, arguments: list[str], folder: Path) -> int:
    """A figure that is not reached is no failure."""
    options = parse(part, arguments, folder)
    measure, text, _ = PARTS[part]
    further = {name: value for name, value in vars(options).items() if name in ("share", "seconds", "times")}
    places = places_of(options)
    try:
        found = measure(
            places, options.quick, lambda said: print(said, file=sys.stderr, flush=True), **further
        )
    finally:
        remove(places)
    outcomes = outcomes_of_part(part, found["rows"])
    if options.json:
        print(json.dumps({"part": part, **found, "outcomes": [outcome.to_dict() for outcome in outcomes]}))
    else:
        print(f"\n{text(found)}\n")
        print("\n".join(f"{outcome.ours}: {outcome.asked}: {outcome.verdict}" for outcome in outcomes))
    return 0
