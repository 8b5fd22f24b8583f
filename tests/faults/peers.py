"""What stands beside a daemon and looks at it: its pulse, and its memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self

from tests.harness.json_process import JsonProcess
from tests.harness.python import start_module


class Pulse:
    """Listens to a daemon's heartbeats in a process of its own; ``stop`` returns ``beats`` and
    ``longest_gap_ms``. A context manager that leaves no process behind."""

    def __init__(self, endpoint: str) -> None:
        self._said = JsonProcess(start_module("tests.faults.pulse", endpoint))
        assert self._said.next() == {"ready": True}

    def stop(self) -> dict[str, Any] | None:
        assert self._said.process.stdin is not None
        self._said.process.stdin.close()
        return self._said.next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._said.close()


class MemoryWatch:
    """The most memory that a process held while the ``with`` block ran, sampled: its own (``anonymous``) and
    its shared rings, not the page cache."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._status = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def sample(self) -> int:
        fields = dict(line.split(":", 1) for line in self._status.read_text(encoding="ascii").splitlines())
        return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, self.sample())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
