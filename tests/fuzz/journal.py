"""Fuzzing of the journal's and the staging area's parsers: ``python -m tests.fuzz.journal --inputs 1000000``

Each input is a damaged file. The parser must refuse it or say of every row exactly what a second, plain
reading of FORMAT.md says; it must not crash, hang, leak a descriptor, or allocate more than the size that the
file should have, whatever the file says. An input is made from seed and number alone: ``--parser NAME --first
N --inputs 1`` makes input N again.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.run_folder import MEMORY

from .campaign import Tally, allocated_by, main, try_each
from .damage import damaged
from .parsers import JournalParser, PackedJournalParser, StagingParser

if TYPE_CHECKING:
    from random import Random

PARSERS = {"journal": JournalParser, "packed-journal": PackedJournalParser, "staging": StagingParser}
SPARE_ADDRESS_SPACE_BYTES = 256 << 20  # what the process may map beyond what it has at the start


def run(name: str, inputs: int, seed: int = 0, first: int = 0) -> Tally:
    """Raises ``AssertionError`` (or whatever the parser raised), see ``try_each``."""
    tally, parser = Tally(), PARSERS[name]()
    # small, but for holes; a disk may refuse sizes that a damaged length asks for
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "file"
        path.touch()
        descriptors = _open_descriptors()
        again = f"tests.fuzz.journal --parser {name}"
        try_each(lambda random: _one(parser, path, random, tally), again, inputs, seed, first)
        assert _open_descriptors() == descriptors, "a parser left a descriptor open"
    return tally


def _one(parser: JournalParser | StagingParser, path: Path, random: Random, tally: Tally) -> None:
    image, size = damaged(parser.intact, random)
    with path.open("r+b", buffering=0) as file:
        file.truncate(0)
        file.write(image)
        file.truncate(size)
    found, peak = allocated_by(lambda: parser.parse(path))
    tally.peak_bytes = max(tally.peak_bytes, peak)
    assert peak <= len(parser.intact.image), f"parsing allocated {peak} bytes, more than the file should have"
    expected = parser.expected(image, size)
    assert (found is None) == (expected is None), "refused" if found is None else "accepted"
    tally.outcomes["refused" if found is None else "accepted"] += 1
    for place, (got, want) in enumerate(zip(found or (), expected or (), strict=True)):
        assert got == want, f"row {place}: {got}, not {want}"
        tally.rows[f"state {got[1]}"] += 1


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _limit_address_space() -> None:
    """From here on an allocation by a size that a file claims fails at once."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + SPARE_ADDRESS_SPACE_BYTES, resource.RLIM_INFINITY))


if __name__ == "__main__":
    _limit_address_space()
    sys.exit(main(__doc__, "parser", PARSERS, run))
