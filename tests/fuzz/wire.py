"""Fuzzing of what both sides do with messages: ``python -m tests.fuzz.wire --inputs 1000000``

Each input is one message, valid until it was damaged, given to a daemon or a client in the middle of a
conversation. Whatever it is, the daemon's loop and the client's thread must come through: no exception but
the protocol's own, no hang, and no more memory than ``most_bytes`` of the message. What the daemon lets
through to the pipeline is checked again: places inside the array, addresses inside the memory of that very
message or ring. An input is made from seed and number alone: ``--side NAME --first N --inputs 1`` makes input
N again.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import tracemalloc
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from .messages import damaged
from .sides import ClientSide, DaemonSide

if TYPE_CHECKING:
    from types import FrameType

PATIENCE_SECONDS = 20  # for a batch that takes some 0.1 s
BATCH = 250
MEASURED_BATCHES = 8  # one of so many is run with tracemalloc, which makes it three times slower
SIDES = {"daemon": DaemonSide, "client": ClientSide}
# JSON of a message may become lists of empty lists; everything else is bounded by its own length
SPARE_BYTES, BYTES_A_BYTE = 1 << 20, 64


def most_bytes(parts: list[bytes]) -> int:
    return SPARE_BYTES + BYTES_A_BYTE * sum(map(len, parts))


def run(name: str, inputs: int, seed: int = 0, first: int = 0) -> Counter[str]:
    """How many inputs ended in which way. Raises what went wrong with the number of the input as a note. Call
    it in the main thread."""
    outcomes: Counter[str] = Counter()
    previous = signal.signal(signal.SIGALRM, _too_slow)
    try:
        side = SIDES[name]()
        for number in range(first, first + inputs):
            if (number - first) % BATCH == 0:
                signal.alarm(PATIENCE_SECONDS)
                # not the first: libraries load what they need
                _measure((number - first) // BATCH % MEASURED_BATCHES == 1)
            try:
                outcomes[_one(side, Random(f"{seed} {number}"))] += 1
            except BaseException as error:
                error.add_note(
                    f"input {number} of seed {seed}: python -m tests.fuzz.wire --side {name} "
                    f"--seed {seed} --first {number} --inputs 1"
                )
                raise
    finally:
        signal.alarm(0)
        _measure(False)
        signal.signal(signal.SIGALRM, previous)
    return outcomes


def _one(side: DaemonSide | ClientSide, random: Random) -> str:
    side.begin()
    parts = damaged(side.message(random), random)
    tracemalloc.reset_peak()
    held = tracemalloc.get_traced_memory()[0]
    outcome = side.take(parts)
    peak = tracemalloc.get_traced_memory()[1] - held  # 0 while not measuring
    assert peak <= most_bytes(parts), f"{sum(map(len, parts))} bytes made it allocate {peak}"
    return outcome


def _measure(on: bool) -> None:
    if on and not tracemalloc.is_tracing():
        tracemalloc.start()
    elif not on:
        tracemalloc.stop()


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"{BATCH} inputs took more than {PATIENCE_SECONDS} s")


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--inputs", type=int, default=1_000_000, help="for each side")
    options.add_argument("--side", choices=SIDES, action="append", help="only this one")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--first", type=int, default=0, help="number of the first input")
    options.add_argument("--json", action="store_true", help="a line for each side: its outcomes")
    chosen = options.parse_args()
    for name in chosen.side or SIDES:
        start = time.monotonic()
        outcomes = run(name, chosen.inputs, chosen.seed, chosen.first)
        if chosen.json:
            print(json.dumps({"side": name, "outcomes": outcomes}), flush=True)
            continue
        print(
            f"{name}: {chosen.inputs} inputs of seed {chosen.seed} in {time.monotonic() - start:.0f} s",
            flush=True,
        )
        print("   ", ", ".join(f"{what}: {count}" for what, count in sorted(outcomes.items())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
