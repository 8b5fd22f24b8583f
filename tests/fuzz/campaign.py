"""The numbered inputs of a fuzzer, tried one by one and watched for hangs and memory, and its command.

``tally_of`` runs the command in a process of its own: it counts descriptors and memory, and other tests'
threads would be counted with them.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.harness.json_process import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

ROOT = Path(__file__).parents[2]
BATCH = 250
MEASURED_BATCHES = 8  # one of so many is run with tracemalloc, which makes it three times slower


@dataclass
class Tally:
    """What became of the inputs; ``rows`` counts the rows of accepted files by the state they were given,
    ``peak_bytes`` is the most that one input made allocate."""

    outcomes: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    peak_bytes: int = 0


def try_each(
    one: Callable[[Random], None], again: str, inputs: int, seed: int, first: int, *, measured: int = 0
) -> None:
    """Calls ``one`` with the random numbers of each input. Raises what it raised, with a note how that input
    is made again: by the command ``again``. Call it in the main thread.

    ``measured``: which of ``MEASURED_BATCHES`` batches is run with tracemalloc.
    """
    previous = signal.signal(signal.SIGALRM, _too_slow)
    try:
        for number in range(first, first + inputs):
            batch, place = divmod(number - first, BATCH)
            if place == 0:
                signal.alarm(int(TIMEOUT_S))
                _measure(batch % MEASURED_BATCHES == measured)
            try:
                one(Random(f"{seed} {number}"))
            except BaseException as error:
                error.add_note(
                    f"input {number} of seed {seed}: python -m {again} --seed {seed} --first {number} "
                    f"--inputs 1"
                )
                raise
    finally:
        signal.alarm(0)
        _measure(False)
        signal.signal(signal.SIGALRM, previous)


def allocated_by(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and the most bytes that it held meanwhile; 0 in a batch that is not measured."""
    tracemalloc.reset_peak()
    held = tracemalloc.get_traced_memory()[0]
    result = call()
    return result, tracemalloc.get_traced_memory()[1] - held


def _measure(on: bool) -> None:
    """Switched for batches, not for inputs: each time that tracemalloc is switched on costs some memory for
    good."""
    if on and not tracemalloc.is_tracing():
        tracemalloc.start()
    elif not on:
        tracemalloc.stop()


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"{BATCH} inputs took more than {TIMEOUT_S:.0f} s")


def main(
    what: str | None, kind: str, names: Collection[str], run: Callable[[str, int, int, int], Tally]
) -> int:
    """The command of a fuzzer that has several parsers or sides (``kind``)."""
    options = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=1_000_000, help=f"for each {kind}")
    options.add_argument(f"--{kind}", choices=names, action="append", dest="only", help="only this one")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--first", type=int, default=0, help="number of the first input")
    options.add_argument("--json", action="store_true", help=f"a line for each {kind}: its tally")
    chosen = options.parse_args()
    for name in chosen.only or names:
        start = time.monotonic()
        tally = run(name, chosen.inputs, chosen.seed, chosen.first)
        if chosen.json:
            print(json.dumps({kind: name, **vars(tally)}), flush=True)
            continue
        seconds = time.monotonic() - start
        print(
            f"{name}: {chosen.inputs} inputs of seed {chosen.seed} in {seconds:.0f} s; most allocated by "
            f"one: {tally.peak_bytes} bytes",
            flush=True,
        )
        for counter in filter(None, (tally.outcomes, tally.rows)):
            print("   ", ", ".join(f"{what}: {count}" for what, count in sorted(counter.items())), flush=True)
    return 0


def tally_of(module: str, *options: str) -> dict[str, Any]:
    """What ``python -m tests.fuzz.MODULE`` with these options says of its one parser or side; whatever goes
    wrong there fails here with its words."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{module}", *options, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tally: dict[str, Any] = json.loads(done.stdout)
    return tally
