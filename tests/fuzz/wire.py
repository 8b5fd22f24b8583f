"""Fuzzing of what both sides do with messages: ``python -m tests.fuzz.wire --inputs 1000000``

Each input is one message, valid until it was damaged, given to a daemon or a client in the middle of a
conversation. Whatever it is, the daemon's loop and the client's thread must come through: no exception but
the protocol's own, no hang, and no more memory than ``most_bytes`` of the message. What the daemon lets
through to the pipeline is checked again: places inside the array, addresses inside the memory of that very
message or ring. An input is made from seed and number alone: ``--side NAME --first N --inputs 1`` makes input
N again.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .campaign import Tally, allocated_by, main, try_each
from .messages import damaged
from .sides import ClientSide, DaemonSide

if TYPE_CHECKING:
    from random import Random

SIDES = {"daemon": DaemonSide, "client": ClientSide}
# JSON of a message may become lists of empty lists; everything else is bounded by its own length
SPARE_BYTES, BYTES_A_BYTE = 1 << 20, 64


def most_bytes(parts: list[bytes]) -> int:
    return SPARE_BYTES + BYTES_A_BYTE * sum(map(len, parts))


def run(name: str, inputs: int, seed: int = 0, first: int = 0) -> Tally:
    """Raises what went wrong, see ``try_each``."""
    tally, side = Tally(), SIDES[name]()
    # not the first batch is measured: libraries load what they need
    again = f"tests.fuzz.wire --side {name}"
    try_each(lambda random: _one(side, random, tally), again, inputs, seed, first, measured=1)
    return tally


def _one(side: DaemonSide | ClientSide, random: Random, tally: Tally) -> None:
    side.begin()
    parts = damaged(side.message(random), random)
    outcome, peak = allocated_by(lambda: side.take(parts))
    assert peak <= most_bytes(parts), f"{sum(map(len, parts))} bytes made it allocate {peak}"
    tally.peak_bytes = max(tally.peak_bytes, peak)
    tally.outcomes[outcome] += 1


if __name__ == "__main__":
    sys.exit(main(__doc__, "side", SIDES, run))
