"""A second program that writes on the same disk while something is measured: one file through the page cache,
at a rate, never synced.

``python -m benchmarks.second_writer FILE BYTES_PER_S`` writes until its input ends, then answers with what it
has written.
"""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from .processes import JsonProcess, open_answers, serve

PIECE_BYTES, FILE_BYTES = 1 << 20, 1 << 30


@contextmanager
def second_writer(file: Path, bytes_per_s: int) -> Iterator[JsonProcess]:
    """The program, which writes from now on. Asked for anything, it stops and answers with its ``rate``,
    bytes/s."""
    arguments = [str(file), str(bytes_per_s)]
    with closing(
        JsonProcess("benchmarks.second_writer", arguments, file.with_name(f"{file.name}.log"))
    ) as other:
        other.answer()
        yield other


def _write_until_asked(path: Path, bytes_per_s: int) -> float:
    """Writes the file over and over; returns bytes/s once there is input."""
    piece, done = memoryview(os.urandom(PIECE_BYTES)), 0
    with path.open("wb", buffering=0) as file, selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        begun_s = time.monotonic()
        while not selector.select(max(0.0, done / bytes_per_s - (time.monotonic() - begun_s))):
            file.seek(done % FILE_BYTES)
            done += file.write(piece)
        return done / (time.monotonic() - begun_s)


def main() -> None:
    answers = open_answers()
    path, bytes_per_s = Path(sys.argv[1]), int(sys.argv[2])
    print("{}", file=answers, flush=True)
    rate = _write_until_asked(path, bytes_per_s)
    serve(answers, {"rate": rate}, lambda _: None)


if __name__ == "__main__":
    main()
