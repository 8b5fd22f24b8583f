"""The processes around a daemon: scripted cameras and a pulse. Each is a context manager that leaves no
process behind."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from .camera import Script

ROOT = Path(__file__).parents[2]
SILENCE_S = 120.0  # only so that a hang becomes a failure


def start_module(module: str, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


class _Peer:
    process: subprocess.Popen[str]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Camera(_Peer):
    """``facts`` is the newest of everything that the camera said; ``lines`` all of it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.facts: dict[str, Any] = {"sent": 0, "stored": 0, "durable": 0}
        self.lines: list[dict[str, Any]] = []
        self.process = start_module("tests.faults.camera")
        self._heard: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdin is not None
        self.process.stdin.write(script.to_line() + "\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))
            self.facts.update(self.lines[-1])
            self._heard.put(True)
        self._heard.put(False)

    def wait_until(self, condition) -> None:
        """Until ``condition(facts)`` holds after something was said."""
        while not condition(self.facts):
            assert self._heard.get(timeout=SILENCE_S), f"the camera ended early: {self.facts}"

    def wait_stopped(self, seconds: float) -> int:
        """Until no frame was sent for that long; returns the frames sent."""
        sent, since_s = self.facts["sent"], time.monotonic()
        while time.monotonic() - since_s < seconds:
            time.sleep(0.02)
            if self.facts["sent"] != sent:
                sent, since_s = self.facts["sent"], time.monotonic()
        return sent

    def wait_for_end(self) -> dict[str, Any]:
        """The last facts: ``receipt`` or ``error`` among them."""
        assert self.process.wait(SILENCE_S) == 0
        self._reader.join()
        return self.facts


class Pulse(_Peer):
    """Listens to a daemon's heartbeats; ``stop`` returns ``beats`` and ``longest_gap_ms``."""

    def __init__(self, endpoint: str) -> None:
        self.process = start_module("tests.faults.pulse", endpoint)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def stop(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        return json.loads(self.process.stdout.readline())


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
