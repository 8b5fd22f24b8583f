"""What a process has, seen from outside: memory of its own, threads, open files; now, and at most."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import NamedTuple, Self


class ProcessStatus(NamedTuple):
    """``own_bytes``: without mapped files and shared memory; ``most_bytes``: the most of all at once."""

    own_bytes: int
    most_bytes: int
    threads: int
    descriptors: int


def process_status(pid: int) -> ProcessStatus:
    process = Path(f"/proc/{pid}")
    status = (process / "status").read_text()
    own = int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) << 10
    most = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10
    threads, descriptors = (sum(1 for _ in (process / each).iterdir()) for each in ("task", "fd"))
    return ProcessStatus(own, most, threads, descriptors)


class ProcessPeak:
    """Looks at a process again and again while the block runs. ``own_bytes`` and ``descriptors``: the most
    that were seen."""

    def __init__(self, pid: int) -> None:
        self.own_bytes = self.descriptors = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self._see()

    def _see(self) -> None:
        now = process_status(self._pid)
        self.own_bytes = max(self.own_bytes, now.own_bytes)
        self.descriptors = max(self.descriptors, now.descriptors)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._see()
