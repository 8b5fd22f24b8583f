"""Fuzzing of the journal's and the staging area's parsers: ``python -m tests.fuzz.journal --inputs 1000000``

Each input is a damaged file. The parser must refuse it or say of every row exactly what a second, plain
reading of FORMAT.md says; it must not crash, hang, leak a descriptor, or allocate more than the size that the
file should have, whatever the file says. An input is made from seed and number alone: ``--parser NAME --first
N --inputs 1`` makes input N again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from .damage import damaged
from .parsers import JournalParser, PackedJournalParser, StagingParser

if TYPE_CHECKING:
    from types import FrameType

PATIENCE_SECONDS = 20  # for a batch that takes some 0.1 s
BATCH = 250
MEASURED_BATCHES = 8  # one of so many is run with tracemalloc, which makes it three times slower
PARSERS = {"journal": JournalParser, "packed-journal": PackedJournalParser, "staging": StagingParser}
SPARE_ADDRESS_SPACE_BYTES = 256 << 20  # what the process may map beyond what it has at the start


@dataclass
class Tally:
    """What became of the inputs; ``rows`` counts the rows of accepted files by the state they were given."""

    outcomes: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    peak_bytes: int = 0


def run(name: str, inputs: int, seed: int = 0, first: int = 0) -> Tally:
    """Raises ``AssertionError`` (or whatever the parser raised) with the number of the input as a note. Call
    it in the main thread."""
    tally = Tally()
    parser = PARSERS[name]()
    previous = signal.signal(signal.SIGALRM, _too_slow)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "file"
        path.touch()
        descriptors = _open_descriptors()
        try:
            for number in range(first, first + inputs):
                if (number - first) % BATCH == 0:
                    signal.alarm(PATIENCE_SECONDS)
                    _measure((number - first) // BATCH % MEASURED_BATCHES == 0)
                try:
                    _one(parser, path, Random(f"{seed} {number}"), tally)
                except BaseException as error:
                    error.add_note(
                        f"input {number} of seed {seed}: python -m tests.fuzz.journal --parser {name} "
                        f"--seed {seed} --first {number} --inputs 1"
                    )
                    raise
        finally:
            signal.alarm(0)
            _measure(False)
            signal.signal(signal.SIGALRM, previous)
        assert _open_descriptors() == descriptors, "a parser left a descriptor open"
    return tally


def _one(parser: JournalParser | StagingParser, path: Path, random: Random, tally: Tally) -> None:
    image, size = damaged(parser.intact, random)
    with path.open("r+b", buffering=0) as file:
        file.truncate(0)
        file.write(image)
        file.truncate(size)
    tracemalloc.reset_peak()
    held = tracemalloc.get_traced_memory()[0]
    found = parser.parse(path)
    peak = tracemalloc.get_traced_memory()[1] - held  # 0 while not measuring
    tally.peak_bytes = max(tally.peak_bytes, peak)
    assert peak <= len(parser.intact.image), f"parsing allocated {peak} bytes, more than the file should have"
    expected = parser.expected(image, size)
    assert (found is None) == (expected is None), "refused" if found is None else "accepted"
    tally.outcomes["refused" if found is None else "accepted"] += 1
    for place, (got, want) in enumerate(zip(found or (), expected or (), strict=True)):
        assert got == want, f"row {place}: {got}, not {want}"
        tally.rows[f"state {got[1]}"] += 1


def _measure(on: bool) -> None:
    """Switched for batches, not for inputs: each time that tracemalloc is switched on costs some memory for
    good."""
    if on and not tracemalloc.is_tracing():
        tracemalloc.start()
    elif not on:
        tracemalloc.stop()


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"{BATCH} inputs took more than {PATIENCE_SECONDS} s")


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _limit_address_space() -> None:
    """From here on an allocation by a size that a file claims fails at once."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + SPARE_ADDRESS_SPACE_BYTES, resource.RLIM_INFINITY))


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--inputs", type=int, default=1_000_000, help="for each parser")
    options.add_argument("--parser", choices=PARSERS, action="append", help="only this one")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--first", type=int, default=0, help="number of the first input")
    options.add_argument("--json", action="store_true", help="a line for each parser: its tally")
    chosen = options.parse_args()
    _limit_address_space()
    for name in chosen.parser or PARSERS:
        start = time.monotonic()
        tally = run(name, chosen.inputs, chosen.seed, chosen.first)
        seconds = time.monotonic() - start
        if chosen.json:
            print(json.dumps({"parser": name, **vars(tally)}), flush=True)
            continue
        print(
            f"{name}: {chosen.inputs} inputs of seed {chosen.seed} in {seconds:.0f} s; most allocated by "
            f"one: {tally.peak_bytes} bytes",
            flush=True,
        )
        for counter in (tally.outcomes, tally.rows):
            print("   ", ", ".join(f"{what}: {count}" for what, count in sorted(counter.items())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
